"""Whether binding and egress name one fixed, known recipient (protocol.md section 5). Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from adapters.route_table import ROUTES, Route, effort_problem, model_allowed
from controller.errors import Refused


class Sanction(msgspec.Struct, frozen=True):
    """The one recipient that a run may hand work to."""

    route: Route
    model: str
    restrictions: tuple[str, ...]
    effort: str | None = None


def parse_object(text: str, name: str) -> dict[str, Any]:
    """A JSON object given on the command line (`REFUSED` otherwise)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} is not JSON: {error}", expected="a JSON object", found=text[:80]) from None
    if not isinstance(value, dict):
        raise Refused(f"{name} must be a JSON object", expected="a JSON object", found=type(value).__name__)
    return value


def _refuse_binding(message: str, found: Any) -> Refused:
    example = '{"mode":"prefer","target":"codex","model":null,"source":"user request"}'
    return Refused(message, expected=example, found=str(found)[:200], remedy="pass --binding-json with these four keys")


def validate(binding: dict[str, Any], egress: dict[str, Any]) -> Sanction:
    """The sanctioned recipient, `REFUSED` with what is wrong. Floats have no place in either object."""
    if set(binding) != {"mode", "target", "model", "source"}:
        raise _refuse_binding("binding must have exactly mode, target, model, and source", sorted(binding))
    if binding["mode"] not in ("prefer", "require"):
        raise _refuse_binding("binding mode must be 'prefer' or 'require'", binding["mode"])
    source = binding["source"]
    if not isinstance(source, str) or not source or "\0" in source or len(source.encode("utf-8", "replace")) > 256:
        raise _refuse_binding("binding source must be a non-empty string of at most 256 bytes", source)
    model = binding["model"]
    if model is not None and (not isinstance(model, str) or not model):
        raise _refuse_binding("binding model must be null or a non-empty string", model)
    name = egress.get("route")
    route = ROUTES.get(name) if isinstance(name, str) else None
    if route is None:
        known = ", ".join(ROUTES)
        raise Refused(
            f"unsupported egress route {name!r}; supported routes: {known}",
            detail={"route": name if isinstance(name, str) else None},
            expected=f"one of {known}",
            found=repr(name)[:80],
            remedy='pass --egress-json \'{"route":"codex","intermediaries":[]}\'',
        )
    if binding["target"] != route.target:
        raise _refuse_binding(f"binding target must be {route.target!r} for route {route.name!r}", binding["target"])
    if egress.get("intermediaries") != list(route.intermediaries):
        raise Refused(
            f"egress intermediaries of route {route.name!r} must be {list(route.intermediaries)}",
            expected=json.dumps(list(route.intermediaries)),
            found=json.dumps(egress.get("intermediaries"))[:80],
        )
    restrictions = egress.get("restrictions", [])
    if not isinstance(restrictions, list) or not all(isinstance(item, str) for item in restrictions):
        raise Refused("egress restrictions must be a list of strings", expected="a list of strings", found="else")
    if not model_allowed(route.name, model):
        raise Refused(
            f"model is not compatible with route {route.name!r}: {model!r}",
            expected=f"a model of the {route.target} family, or null for {route.default_model}",
            found=repr(model)[:80],
        )
    effort = egress.get("effort")
    problem = effort_problem(route.name, effort)
    if problem is not None:
        raise Refused(f"egress {problem}", expected="low, medium or high; xhigh for codex", found=repr(effort)[:80])
    return Sanction(route, model or route.default_model, tuple(restrictions), effort)
