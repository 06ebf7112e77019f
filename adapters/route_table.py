"""The fixed table of author routes, the model families each accepts, and the dispatch authorization.

Pure data and pure checks: the controller imports this module to sanction a route at `init`, the adapter to
refuse what was not sanctioned. Nothing here looks at the machine. Source: protocol section 5, section 18
row 23.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

import msgspec

RestrictionPosture = Literal["adapter-enforced", "cooperative"]
ActivityPosture = Literal["incremental", "hard-only"]
Effort = Literal["low", "medium", "high", "xhigh"]
EFFORTS: tuple[str, ...] = get_args(Effort)
DEFAULT_EFFORT: Effort = "high"


class Route(msgspec.Struct, frozen=True):
    """One way to reach an author: which model family (`target`) through which program (`harness`).

    `intermediaries` are the third parties that see the packet on the way. `restriction_posture` says who
    holds the worker inside its workspace: the CLI's own kernel sandbox (`adapter-enforced`) or its good
    will (`cooperative`).
    """

    name: str
    target: str
    harness: str
    intermediaries: tuple[str, ...]
    default_model: str
    restriction_posture: RestrictionPosture


def _table(*routes: Route) -> dict[str, Route]:
    return {route.name: route for route in routes}


ROUTES: dict[str, Route] = _table(
    Route("codex", "codex", "codex", (), "auto", "adapter-enforced"),
    Route("claude", "claude", "claude", (), "auto", "cooperative"),
    Route("grok-cli", "grok", "grok", (), "auto", "cooperative"),
    Route("cursor", "cursor", "cursor-agent", (), "auto", "adapter-enforced"),
    Route("composer", "composer", "cursor-agent", ("cursor",), "composer-2.5-fast", "adapter-enforced"),
    Route("grok-cursor", "grok", "cursor-agent", ("cursor",), "cursor-grok-4.6-high", "adapter-enforced"),
    Route("opencode", "opencode", "opencode", (), "auto", "cooperative"),
    Route("antigravity", "antigravity", "agy", (), "auto", "cooperative"),
    Route("devin", "devin", "devin", (), "auto", "cooperative"),
    Route("command", "command", "command", (), "auto", "cooperative"),
)
"""Every known route by name, in the order in which messages list them."""

SIX: tuple[str, ...] = ("codex", "claude", "grok-cli", "cursor", "composer", "grok-cursor")
"""The routes of section 5. Other programs match on these six, in this order, in one comma-separated list."""

_MODEL_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
_TAIL = r"[A-Za-z0-9._-]+"
_FAMILIES: dict[str, re.Pattern[str]] = {
    "codex": re.compile(rf"auto|gpt-{_TAIL}|o[0-9][A-Za-z0-9._-]*"),
    "claude": re.compile(rf"auto|fable|opus|sonnet|haiku|claude-{_TAIL}"),
    "grok-cli": re.compile(rf"auto|grok-{_TAIL}"),
    "composer": re.compile(rf"composer-{_TAIL}"),
    "grok-cursor": re.compile(rf"cursor-grok-{_TAIL}"),
    "opencode": re.compile(r"auto|[A-Za-z0-9][A-Za-z0-9._:-]*/[A-Za-z0-9._:-][A-Za-z0-9._:/-]*"),
    "command": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
}
_OTHER_ROUTES_OWN = re.compile(r"composer|grok|(composer|grok|cursor-grok)-.*", re.IGNORECASE)


def known_routes() -> str:
    """All route names, comma and space separated, in table order; the six of section 5 come first."""
    return ", ".join(ROUTES)


def model_allowed(route: str, model: str | None) -> bool:
    """Whether `model` (None: the route's default) belongs to the families that `route` may serve.

    For `command` the token is the name of a command that the user configured, and `auto` the default one; for
    `opencode` it is `provider/model`. An unknown route allows nothing.
    """
    known = ROUTES.get(route)
    if known is None:
        return False
    token = known.default_model if model is None else model
    if _MODEL_TOKEN.fullmatch(token) is None:
        return False
    if route == "cursor":
        # The same CLI serves these families under routes of their own; each needs a sanction of its own.
        return _OTHER_ROUTES_OWN.fullmatch(token) is None
    family = _FAMILIES.get(route)
    return family is None or family.fullmatch(token) is not None


SafeId = Annotated[str, msgspec.Meta(pattern=r"^(?!\.+\Z)[A-Za-z0-9._-]{1,128}\Z")]
"""1 to 128 characters of `A-Za-z0-9._-`, not only dots (section 4)."""
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""SHA-256 in lowercase hex."""


class Authorization(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The 13 keys of `authorization.json`: what one attempt may send, to whom and how.

    A fourteenth, `effort`, is there only where the sanction pins one (launcher section 9); without it the effort is
    `DEFAULT_EFFORT`.
    """

    schema_version: Literal[1]
    run_id: SafeId
    unit_id: SafeId
    attempt_id: SafeId
    route: str
    target: str
    harness: str
    intermediaries: tuple[str, ...]
    model_requested: str
    restriction_posture: str
    restrictions: tuple[str, ...]
    activity_posture: ActivityPosture
    packet_digest: Digest
    effort: Effort | None = None

    def to_bytes(self) -> bytes:
        """The file's exact bytes: compact sorted ASCII JSON and a newline. Their SHA-256 is the digest."""
        import json

        document = msgspec.to_builtins(self)
        if self.effort is None:
            del document["effort"]
        return json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Authorization:
        """Decode and check shape and types; raise `ValueError` saying which key is wrong.

        Whether route, target, harness, intermediaries, posture and model agree with the table is
        `disagreement_with_table`.
        """
        import json

        try:
            # The standard decoder keeps lone surrogates (names that are no UTF-8), which msgspec's does not.
            document = json.loads(data.decode("utf-8"), object_pairs_hook=_object_without_duplicates)
        except (UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"is not UTF-8 JSON: {error}") from None
        return msgspec.convert(document, cls)

    def disagreement_with_table(self) -> str | None:
        """None when every route field is what the table says, else a sentence naming field and values."""
        route = ROUTES.get(self.route)
        if route is None:
            return f"route {self.route!r} is none of {known_routes()}"
        for field, found, expected in (
            ("target", self.target, route.target),
            ("harness", self.harness, route.harness),
            ("intermediaries", self.intermediaries, route.intermediaries),
            ("restriction_posture", self.restriction_posture, route.restriction_posture),
        ):
            if found != expected:
                return f"{field} of route {self.route!r} must be {expected!r}, found {found!r}"
        if not model_allowed(self.route, self.model_requested):
            return f"model {self.model_requested!r} is not compatible with route {self.route!r}"
        return effort_problem(self.route, self.effort)


def effort_problem(route: str, effort: object) -> str | None:
    """Why a route cannot be pinned to this effort (None: not pinned), or None."""
    if effort is not None and effort not in EFFORTS:
        return f"effort must be one of {', '.join(EFFORTS)}, found {effort!r}"
    if effort == "xhigh" and route != "codex":
        return f"effort 'xhigh' is for route 'codex' only; use 'high' for route {route!r}"
    return None


AUTHORIZATION_KEYS: tuple[str, ...] = tuple(name for name in Authorization.__struct_fields__ if name != "effort")
"""The 13 keys of `authorization.json`."""


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"has the key {twice[0]!r} twice")
    return document
