"""`--emit-adapter <route>`: shows a route's command line without calling anything (protocol section 13)."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.errors import UsageError
from adapters.route_table import ROUTES, Route, known_routes, model_allowed
from adapters.routes import Call, Context, load

_PLACEHOLDERS = Call(workspace="<workspace>", prompt="<prompt-file>", raw_result="<raw-result>")


def emit_adapter(name: str, environ: Mapping[str, str]) -> str:
    """The argv of route `name`, words separated by spaces, with a space at the end.

    Raises `UsageError` for an unknown route or model override, `Unavailable` for a route without an adapter
    here.
    """
    route = ROUTES.get(name)
    if route is None:
        raise UsageError(f"unknown route {name!r}; known routes: {known_routes()}")
    model = _override(route, environ) or route.default_model
    adapter = load(name, Context(model, environ))
    return "".join(f"{word} " for word in adapter.argv(_PLACEHOLDERS))


def _override(route: Route, environ: Mapping[str, str]) -> str | None:
    """The model of the override pair when it is meant for this route; dispatch never looks at it."""
    model = environ.get("CE_WORK_MODEL_OVERRIDE", "")
    target = environ.get("CE_WORK_MODEL_OVERRIDE_TARGET", "")
    if not model and not target:
        return None
    if not model or not target:
        raise UsageError(
            "model override is not compatible: CE_WORK_MODEL_OVERRIDE and CE_WORK_MODEL_OVERRIDE_TARGET must both "
            "be set, or neither"
        )
    serving = [route] if target == route.target else [r for r in ROUTES.values() if r.target == target]
    if not serving:
        targets = ", ".join(dict.fromkeys(known.target for known in ROUTES.values()))
        raise UsageError(f"model override is not compatible: target {target!r} is none of {targets}")
    if model == "auto" or not any(model_allowed(candidate.name, model) for candidate in serving):
        raise UsageError(f"model override {model!r} is not compatible with target {target!r}")
    return model if target == route.target else None
