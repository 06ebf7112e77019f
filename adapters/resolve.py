"""`cross-model-work resolve`: an ordered preference list to one fixed route, or to native work. Sends nothing.

    cross-model-work resolve --preference JSON --mode prefer|require --source TEXT
        [--host-harness NAME] [--host-model MODEL] [--restriction TEXT ...]

JSON is a list of `{"target": …, "model": …, "route": …, "effort": …}`, of which `target` or `route` must be there. One
JSON object on stdout, exit 0 for either outcome: `resolved` is `external`, with the `binding` and `egress` objects that
`unit-workspace init` takes as they are, or `native` with a `fallback_reason`. Exit 2: the command line is wrong.
Once an attempt has started there is no second candidate: that is a new sanction. Source: seed 004 ("Resolve one
requested route", "Apply preference or requirement strength", "Sanction before egress").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from adapters.confine import Posture
from adapters.disclosure import disclosure
from adapters.errors import EXIT_DONE
from adapters.preflight import Report, examine, print_json
from adapters.refusal import Refusal, unknown
from adapters.route_table import ROUTES, Route, effort_problem

Mode = Literal["prefer", "require"]
Outcome = Literal["selected", "self-equivalent", "unavailable", "not-examined"]

MAX_SOURCE_BYTES = 256

_KEYS = ("target", "model", "route", "effort")
_HARNESSES = {
    "claude-code": "claude",
    "codex-cli": "codex",
    "cursor": "cursor-agent",
    "agent": "cursor-agent",
    "composer": "cursor-agent",
    "antigravity": "agy",
    "grok-cli": "grok",
    "grok-build": "grok",
}
_DEFAULT = "auto"
_SNAPSHOT = re.compile(r"[-@][0-9]{8}\Z")


class Candidate(msgspec.Struct, frozen=True):
    """One entry of the list; `model` None is the route's default, `effort` None pins none."""

    route: Route
    model: str | None
    effort: str | None = None


class Host(msgspec.Struct, frozen=True):
    """Who asks: the harness that runs the session, and its model. None: not told."""

    harness: str | None = None
    model: str | None = None


class Examined(msgspec.Struct, frozen=True):
    """What became of one candidate, and why."""

    candidate: Candidate
    outcome: Outcome
    reason: str | None = None
    report: Report | None = None


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """The command line; the exit code."""
    import argparse

    parser = argparse.ArgumentParser(prog="cross-model-work resolve", allow_abbrev=False)
    parser.add_argument("--preference", required=True, metavar="JSON")
    parser.add_argument("--mode", required=True, choices=("prefer", "require"))
    parser.add_argument("--source", required=True)
    parser.add_argument("--host-harness")
    parser.add_argument("--host-model")
    parser.add_argument("--restriction", action="append", default=[], dest="restrictions", metavar="TEXT")
    options = parser.parse_args(arguments)
    candidates = parse_preference(options.preference)
    _check_source(options.source)
    host = Host(_harness(options.host_harness), options.host_model or None)
    examined = walk(candidates, host, lambda it: examine(it.route, it.model, environ, options.restrictions))
    print_json(answer(examined, host, options.mode, options.source, options.restrictions))
    return EXIT_DONE


def parse_preference(text: str) -> tuple[Candidate, ...]:
    """The candidates in order; `Refusal` for anything that is no list of them."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"--preference is not JSON: {error}", text[:80]) from None
    if not isinstance(entries, list) or not entries:
        raise _malformed("--preference must be a list with at least one candidate", text[:80])
    return tuple(_candidate(entry, place) for place, entry in enumerate(entries, 1))


def walk(candidates: Sequence[Candidate], host: Host, find_out: Callable[[Candidate], Report]) -> tuple[Examined, ...]:
    """Each candidate in order until the first that qualifies; those after it are not looked at."""
    examined: list[Examined] = []
    for candidate in candidates:
        if examined and examined[-1].outcome in ("selected", "not-examined"):
            examined.append(Examined(candidate, "not-examined", "an earlier candidate was selected"))
            continue
        same = self_equivalent(candidate, host)
        if same is not None:
            examined.append(Examined(candidate, "self-equivalent", same))
            continue
        report = find_out(candidate)
        outcome: Outcome = "selected" if report.available else "unavailable"
        examined.append(Examined(candidate, outcome, report.reason, report))
    return tuple(examined)


def self_equivalent(candidate: Candidate, host: Host) -> str | None:
    """Why `candidate` would only be the host calling itself; None when it is somebody else. Pure."""
    route = candidate.route
    if host.harness is None or route.harness != host.harness:
        return None
    model = candidate.model or route.default_model
    if model == _DEFAULT:
        return f"it is the host's own harness {host.harness!r} with its default model"
    if host.model in (None, _DEFAULT):
        # Nothing proves that the pinned model is the one that the host runs.
        return None
    if _same_model(model, host.model) or _same_model(host.model, model):
        return f"it is the host's own harness {host.harness!r} with the host's model {host.model!r}"
    return None


def answer(
    examined: Sequence[Examined], host: Host, mode: Mode, source: str, restrictions: Sequence[str]
) -> dict[str, object]:
    """The whole answer as JSON values. Pure."""
    selected = next((one for one in examined if one.outcome == "selected"), None)
    requested = (selected or examined[0]).candidate
    document: dict[str, object] = {
        "resolved": "native" if selected is None else "external",
        "mode": mode,
        "source": source,
        "host": {"harness": host.harness, "model": host.model},
        "candidates": [_described(one) for one in examined],
        "requested_target": requested.route.target,
        "requested_route": requested.route.name,
        "requested_model": requested.model or requested.route.default_model,
        "actual_route": requested.route.name if selected else "native",
        "actual_model": None if selected else host.model,
        "fallback_reason": None if selected else _fallback_reason(examined),
        "binding": None,
        "egress": None,
    }
    if selected is None or selected.report is None or selected.report.restrictions is None:
        return document
    held = selected.report.restrictions
    posture = Posture(held.confinement, held.enforced, held.abi, held.note)
    route = requested.route
    model = requested.model or route.default_model
    return {
        **document,
        "binding": {"mode": mode, "target": route.target, "model": requested.model, "source": source},
        "egress": {
            "route": route.name,
            "intermediaries": list(route.intermediaries),
            "restrictions": list(restrictions),
            **({} if requested.effort is None else {"effort": requested.effort}),
            "disclosure": disclosure(route, model, source, restrictions, posture),
        },
    }


def _described(one: Examined) -> dict[str, object]:
    candidate = one.candidate
    return {
        "target": candidate.route.target,
        "route": candidate.route.name,
        "model": candidate.model,
        "effort": candidate.effort,
        "outcome": one.outcome,
        "reason": one.reason,
        "preflight": None if one.report is None else msgspec.to_builtins(one.report),
    }


def _fallback_reason(examined: Sequence[Examined]) -> str:
    return "; ".join(f"{one.candidate.route.name}: {one.reason}" for one in examined)


def _candidate(entry: object, place: int) -> Candidate:
    name = f"candidate {place} of --preference"
    if not isinstance(entry, dict):
        raise _malformed(f"{name} must be an object", repr(entry)[:80])
    for key in entry:
        if key not in _KEYS:
            raise unknown(f"key in {name}:", str(key), _KEYS)
    for key, value in entry.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise _malformed(f"{name}: {key} must be a text or null", repr(value)[:80])
    route, target = entry.get("route"), entry.get("target")
    targets = tuple(dict.fromkeys(known.target for known in ROUTES.values()))
    if route is not None and route not in ROUTES:
        raise unknown(f"route in {name}:", route, ROUTES)
    if target is not None and target not in targets:
        raise unknown(f"target in {name}:", target, targets)
    if route is None and target is None:
        raise _malformed(f"{name} names neither target nor route", json.dumps(entry)[:80])
    # A target alone means its native route: another intermediary would need a permission of its own.
    found = ROUTES[route] if route else next(known for known in ROUTES.values() if known.target == target)
    if target is not None and found.target != target:
        raise _malformed(f"{name}: route {route!r} serves target {found.target!r}", repr(target))
    effort = entry.get("effort")
    problem = effort_problem(found.name, effort)
    if problem is not None:
        raise _malformed(f"{name}: {problem}", repr(effort))
    return Candidate(found, entry.get("model"), effort)


def _same_model(one: str, other: str) -> bool:
    """Whether both name one model: spelled alike but for punctuation and a snapshot's date, or `opus` and the like."""
    return _plain(one) == _plain(other) or other.lower().startswith(f"claude-{one.lower()}-")


def _plain(model: str) -> str:
    return "".join(char for char in _SNAPSHOT.sub("", model).lower() if char.isalnum())


def _malformed(message: str, found: str) -> Refusal:
    return Refusal(
        message,
        expected='for example [{"target": "codex", "model": null, "route": "codex"}]',
        found=found,
        remedy="correct --preference",
    )


def _check_source(source: str) -> None:
    if not source or "\0" in source or len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        raise Refusal(
            f"--source must be a text of 1 to {MAX_SOURCE_BYTES} bytes",
            expected="what authorizes external work, for example 'user request'",
            found=repr(source[:80]),
            remedy="name it in a few words",
        )


def _harness(name: str | None) -> str | None:
    return None if not name else _HARNESSES.get(name, name)
