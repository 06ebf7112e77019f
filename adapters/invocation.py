"""What an `invocation` pins: worker, model, effort. Pure; a command line is read for its pins and never run.

An invocation stands in a task's frontmatter, in a row of the Fleet table or in the user's configuration, either as
named fields or, as in seed 003, as the command line of the CLI: `codex exec -m M -c model_reasoning_effort="medium"`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from adapters.refusal import Refusal, quoted, unknown
from adapters.route_table import ROUTES

FIELDS = ("worker", "model", "tier", "effort", "stance")

_CURSOR = "cursor"
_PROGRAMS = {
    "codex": "codex",
    "claude": "claude",
    "grok": "grok-cli",
    "agent": _CURSOR,
    "cursor-agent": _CURSOR,
    "agy": "antigravity",
    "opencode": "opencode",
    "devin": "devin",
}
_MODEL_FLAGS = ("-m", "--model")
_EFFORT_FLAGS = ("--effort", "--variant")
_EFFORT_SETTING = "model_reasoning_effort"


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """What one place says of the worker; None: it says nothing. `place` names it for people.

    `notes` say what the place holds that is not taken over.
    """

    worker: str | None = None
    model: str | None = None
    tier: str | None = None
    effort: str | None = None
    stance: str | None = None
    place: str
    notes: tuple[str, ...] = ()

    @property
    def pins_anything(self) -> bool:
        """Whether it says more than which worker."""
        return any((self.model, self.tier, self.effort, self.stance))

    def described(self) -> str:
        """Its fields as one line."""
        said = [f"{name} {value}" for name in FIELDS if (value := getattr(self, name)) is not None]
        return ", ".join(said) or "nothing"


def is_command(text: str) -> bool:
    """Whether `text` begins with the name of an agent CLI."""
    words = text.split(maxsplit=1)
    return bool(words) and PurePosixPath(words[0]).name in _PROGRAMS


def from_fields(fields: Mapping[str, str], place: str, *, line: int | None = None) -> Pins:
    """Pins from named fields; `Refusal` for a field or worker that is unknown, with the nearest name."""
    for name in fields:
        if name not in FIELDS:
            raise unknown(f"field of {place}:", name, FIELDS, line=line)
    worker = fields.get("worker")
    model = fields.get("model")
    return Pins(
        worker=None if worker is None else route_of(worker, model, place, line=line),
        model=model,
        tier=fields.get("tier"),
        effort=fields.get("effort"),
        stance=fields.get("stance"),
        place=place,
    )


def from_command(text: str, place: str, *, line: int | None = None) -> Pins:
    """Pins from the command line of an agent CLI; `Refusal` when it names no known CLI or says a thing twice."""
    try:
        words = [word for word in shlex.split(text) if word not in ("...", "…")]
    except ValueError as error:
        raise Refusal(f"{place}: the command line cannot be read: {error}", found=quoted(text), line=line) from None
    program = PurePosixPath(words[0]).name if words else ""
    if program not in _PROGRAMS:
        raise unknown(f"program in {place}:", program, _PROGRAMS, line=line)
    models: list[str] = []
    efforts: list[str] = []
    others: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag in _MODEL_FLAGS or flag in _EFFORT_FLAGS:
            found = value if equals else next(rest, "")
            (models if flag in _MODEL_FLAGS else efforts).append(_named(found, flag, place, line))
        elif word in ("-c", "--config"):
            setting, _, value = next(rest, "").partition("=")
            if setting.strip() == _EFFORT_SETTING:
                efforts.append(_named(value.strip().strip("\"'"), setting, place, line))
            else:
                others.append(f"{word} {setting}")
        elif word.startswith("-") and word not in ("-p", "--print"):
            others.append(flag)
    for what, values in (("model", models), ("effort", efforts)):
        if len(values) > 1:
            raise Refusal(
                f"{place}: the command line names the {what} {len(values)} times",
                expected=f"one {what}",
                found=", ".join(values),
                remedy="keep one of them",
                line=line,
            )
    model = models[0] if models else None
    notes = []
    if others:
        notes.append(f"{place}: only model and effort are taken over, not {', '.join(dict.fromkeys(others))}")
    return Pins(
        worker=route_of(program, model, place, line=line),
        model=model,
        effort=efforts[0] if efforts else None,
        place=place,
        notes=tuple(notes),
    )


def route_of(name: str, model: str | None, place: str, *, line: int | None = None) -> str:
    """The route that a route's or a program's name means; the Cursor CLI serves three, and the model tells which."""
    if name in ROUTES:
        return name
    route = _PROGRAMS.get(name)
    if route is None:
        raise unknown(f"worker in {place}:", name, (*ROUTES, *(p for p in _PROGRAMS if p not in ROUTES)), line=line)
    if route == _CURSOR and model is not None:
        if model == "composer" or model.startswith("composer-"):
            return "composer"
        if model.startswith("cursor-grok-"):
            return "grok-cursor"
    return route


def _named(value: str, flag: str, place: str, line: int | None) -> str:
    if not value or value.startswith(("-", "<", "$")):
        raise Refusal(
            f"{place}: {flag} has no value",
            expected="a name",
            found=quoted(value) if value else "nothing",
            remedy="write the name itself; a placeholder or the CLI's default is no pin",
            line=line,
        )
    return value
