"""What a person has to know before repository content leaves the machine: to whom, what, and who holds the worker.

Pure. The facts go into the `egress` object and so into the run's journal. Source: seed 004, "Sanction before egress".
"""

from __future__ import annotations

from collections.abc import Sequence

from adapters.confine import Posture, holder
from adapters.route_table import Route

_PROVIDERS = {
    "codex": "OpenAI",
    "claude": "Anthropic",
    "grok-cli": "xAI",
    "cursor": "Cursor (Anysphere), and the vendor of the model that it selects",
    "composer": "Cursor (Anysphere)",
    "grok-cursor": "xAI, through Cursor (Anysphere)",
    "antigravity": "Google",
    "devin": "Cognition",
}

MATERIAL = (
    "the sealed unit packet, with the worker prompt around it, after redaction",
    "whatever the worker reads in the unit's workspace, a worktree with the whole repository at the base commit",
    "whatever else it reads: reading is confined by no means of ours, only by your account's permissions",
)
ISOLATION = (
    "A linked worktree keeps concurrent changes apart and is no security sandbox. What holds the worker's writes is "
    "named in confinement."
)


def disclosure(
    route: Route, model: str, source: str, restrictions: Sequence[str], posture: Posture
) -> dict[str, object]:
    """The facts as JSON values, the same on every call for the same machine and arguments."""
    return {
        "source": source,
        "recipient": {
            "provider": provider(route, model),
            "target": route.target,
            "harness": route.harness,
            "route": route.name,
            "model": model,
        },
        "intermediaries": list(route.intermediaries),
        "material": list(MATERIAL),
        "restrictions": [{"text": text, "held_by": holder(text, posture)} for text in restrictions],
        "confinement": {
            "means": posture.kind,
            "enforced": posture.enforced,
            "abi": posture.abi,
            "note": posture.note,
        },
        "isolation": ISOLATION,
    }


def provider(route: Route, model: str) -> str:
    """Who serves the model, as far as route and model tell."""
    if route.name == "opencode":
        return "the provider that opencode is set to" if model == "auto" else model.partition("/")[0]
    if route.name == "command":
        return f"whoever your own command {model!r} sends it to"
    return _PROVIDERS[route.name]
