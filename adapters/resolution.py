"""Which model a tier means: (backend, tier, effort, stance, the user's `[models]`) to model and effort. Pure.

Precedence: explicit model, then the cell of the user's configuration, then the table below. A work order names an
intent (`tier`) so that it survives the churn of model names. Source: launcher.md section 9; `frontier` as in seed
001; section 15 W29.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from adapters.refusal import Refusal, quoted, unknown
from adapters.route_table import ROUTES, model_allowed

Origin = Literal["explicit", "config", "built-in"]

TIERS = ("frontier", "deep", "standard", "light")
EFFORTS = ("low", "medium", "high", "xhigh")
STANCES = ("balanced", "conservative", "cost-aware", "claude-only")
DEFAULT_STANCE = "balanced"

TIER_EFFORT = {"frontier": "high", "deep": "high", "standard": "medium", "light": "low"}
"""The effort of a tier that nobody chose another for."""

_BUILT_IN: dict[str, dict[str, str]] = {
    "claude": {"frontier": "fable", "deep": "opus", "standard": "opus", "light": "sonnet"},
    "codex": {"deep": "gpt-5.6-sol", "standard": "gpt-5.6-terra", "light": "gpt-5.6-luna"},
    "antigravity": {
        "deep": "Gemini 3.1 Pro (High)",
        "standard": "Gemini 3.1 Pro (Low)",
        "light": "Gemini 3.5 Flash (Low)",
    },
    "cursor": {"deep": "auto", "standard": "auto", "light": "auto"},
    "devin": {"deep": "claude-opus-4.6", "standard": "claude-sonnet-4", "light": "gpt-5.5"},
    "opencode": {
        "deep": "anthropic/claude-opus-4-6",
        "standard": "openai/gpt-5.6-terra",
        "light": "opencode/mimo-v2.5-free",
    },
}
_BUILT_IN_STANCE: dict[tuple[str, str, str], str] = {
    ("claude", "cost-aware", "frontier"): "opus",
    ("claude", "cost-aware", "standard"): "sonnet",
}
LAUNCHER_BACKENDS = tuple(_BUILT_IN)
"""The backends of the launcher document. Each is served by the route of the same name."""

BACKENDS = (*LAUNCHER_BACKENDS, *(name for name in ROUTES if name not in _BUILT_IN))
"""What may be named as a backend: those, and the routes that have one default model of their own at every tier."""


class ModelMap(msgspec.Struct, frozen=True):
    """The user's `[models]`: stance (None: every stance) to backend to tier to model; `notes` name ignored cells."""

    cells: dict[str | None, dict[str, dict[str, str]]] = {}
    notes: tuple[str, ...] = ()

    def cell(self, stance: str, backend: str, tier: str) -> tuple[str, str] | None:
        """The configured model and the name of its cell, or None."""
        for key in (stance, None):
            model = self.cells.get(key, {}).get(backend, {}).get(tier)
            if model is not None:
                return model, ".".join(("models", *([key] if key else []), backend, tier))
        return None


NO_MODELS = ModelMap()


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's model. `model` is the name in the tables, `token` the same as the route's CLI takes it.

    `tier` is None for an explicit model without one, and then `effort` may be None, too: nothing is invented.
    `place` names the cell or table that decided.
    """

    backend: str
    tier: str | None
    model: str
    effort: str | None
    stance: str
    token: str
    origin: Origin
    place: str


def resolve(
    backend: str,
    *,
    tier: str | None = None,
    effort: str | None = None,
    stance: str | None = None,
    explicit: str | None = None,
    models: ModelMap = NO_MODELS,
) -> Resolution:
    """The model and effort of one work order; `Refusal` names what is unknown and the nearest known name."""
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    stance = _known("stance", stance, STANCES) or DEFAULT_STANCE
    tier = _known("tier", tier, TIERS)
    effort = _known("effort", effort, EFFORTS)
    if effort == "xhigh" and backend != "codex":
        raise Refusal(
            f"effort 'xhigh' is for codex only, and the backend is {backend!r}",
            expected="low, medium or high (rule: xhigh if and only if the backend is codex)",
            found=f"xhigh for {backend}",
            remedy="use effort high, or the backend codex",
        )
    model, origin, place = _model(backend, tier, stance, explicit, models)
    return Resolution(
        backend=backend,
        tier=tier,
        model=model,
        effort=effort or (TIER_EFFORT[tier] if tier else None),
        stance=stance,
        token=_token(backend, model, place),
        origin=origin,
        place=place,
    )


def parse_models(document: object, where: str = "config.toml") -> ModelMap:
    """Check the `models` table of the user's configuration.

    Either `{stance: {backend: {tier: model}}}` or `{backend: {tier: model}}`. A table with keys of both kinds is
    refused: reading it as either would silently ignore the other half (section 15 W29). A blank or non-text cell
    counts as not there, and a note says so.
    """
    table = _table(document, "models", where)
    stances = [key for key in table if key in STANCES]
    backends = [key for key in table if key in BACKENDS]
    if stances and backends:
        raise Refusal(
            f"{where}: [models] mixes stances ({', '.join(stances)}) with backends ({', '.join(backends)})",
            expected="only stances, each with backends in it, or only backends",
            found=f"both {stances[0]!r} and {backends[0]!r} as keys of [models]",
            remedy=f"write [models.{stances[0]}.{backends[0]}] for a stance of its own, or name no stance at all",
        )
    for key in table:
        if key not in STANCES and key not in BACKENDS:
            raise unknown(f"key in [models] of {where}:", key, STANCES if stances else (*BACKENDS, *STANCES))
    notes: list[str] = []
    if stances:
        cells: dict[str | None, dict[str, dict[str, str]]]
        cells = {key: _cells(table[key], f"models.{key}", where, notes) for key in stances}
    else:
        cells = {None: _cells(table, "models", where, notes)}
    return ModelMap(cells, tuple(notes))


def effort_in_name(model: str) -> str | None:
    """The effort that a model's own name ends with (`cursor-grok-4.6-high`, `Gemini 3.1 Pro (Low)`), or None."""
    found = re.search(r"[-( ](low|medium|high)\)?\Z", model.lower())
    return found[1] if found else None


def _known(what: str, name: str | None, known: tuple[str, ...]) -> str | None:
    if name is not None and name not in known:
        raise unknown(what, name, known)
    return name


def _model(
    backend: str, tier: str | None, stance: str, explicit: str | None, models: ModelMap
) -> tuple[str, Origin, str]:
    if explicit is not None:
        return explicit, "explicit", "the model that was named"
    if tier is None:
        raise Refusal(
            "neither a model nor a tier is named",
            expected=f"model, or tier: one of {', '.join(TIERS)}",
            found="neither",
            remedy="name one; the CLI's own default is never used",
        )
    if backend not in _BUILT_IN:
        found = models.cell(stance, backend, tier)
        if found is not None:
            return found[0], "config", found[1]
        return ROUTES[backend].default_model, "built-in", f"the default model of route {backend}"
    # A backend without a model above `deep` serves `frontier` with its deepest, also where that was configured.
    for step in (tier, "deep"):
        found = models.cell(stance, backend, step)
        if found is not None:
            return found[0], "config", found[1]
        model = _BUILT_IN_STANCE.get((backend, stance, step)) or _BUILT_IN[backend].get(step)
        if model is not None:
            return model, "built-in", f"built-in table: {backend}, {step}, {stance}"
    raise AssertionError("the built-in table has a model for every backend")


def _token(backend: str, model: str, place: str) -> str:
    """The model as the route's CLI takes it, checked against the families that the route may serve."""
    token = model
    if backend == "antigravity":
        # The tables and older releases use display names; the CLI takes `gemini-3.1-pro-high` (agents.md).
        token = re.sub(r"[ ()]+", "-", model.strip()).strip("-").lower()
    elif backend == "composer" and model == "composer":
        token = ROUTES[backend].default_model
    if model_allowed(backend, token):
        return token
    if backend == "opencode":
        expected = "provider/model, with text on both sides of the first '/'"
    else:
        expected = f"a model of the {ROUTES[backend].target} family"
    others = [name for name in ROUTES if name not in (backend, "command") and model_allowed(name, model)]
    raise Refusal(
        f"model {quoted(model)} ({place}) is not one that {backend!r} serves",
        expected=expected,
        found=quoted(model),
        remedy=f"name another model, or another worker ({', '.join(others)})" if others else "name another model",
    )


def _table(value: object, name: str, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Refusal(
            f"{where}: {name} must be a table",
            expected=f"a table [{name}]",
            found=type(value).__name__,
            remedy=f"write [{name}] and the keys below it",
        )
    return value


def _cells(value: object, name: str, where: str, notes: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for backend, tiers in _table(value, name, where).items():
        if backend not in BACKENDS:
            raise unknown(f"backend in [{name}] of {where}:", backend, BACKENDS)
        for tier, model in _table(tiers, f"{name}.{backend}", where).items():
            if tier not in TIERS:
                raise unknown(f"tier in [{name}.{backend}] of {where}:", tier, TIERS)
            if isinstance(model, str) and model.strip():
                found.setdefault(backend, {})[tier] = model.strip()
            else:
                notes.append(f"{where}: {name}.{backend}.{tier} is no text or blank, and was ignored")
    return found
