"""Which model really served the call: the served-model receipt of protocol section 13."""

from __future__ import annotations

import re

from adapters.contract import UNVERIFIED_MODEL, ModelReceiptStatus
from adapters.events import Event, text_at
from adapters.route_table import Route

MAX_MODEL_CHARACTERS = 128

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TERM = re.compile(r"[a-z]+|[0-9]+(?:\.[0-9]+)*")
_CONTEXT_SIZE = re.compile(r"\b[0-9]+(?:\.[0-9]+)?[mk]\b")
_VENDOR_WORDS = frozenset({"claude", "cursor"})
# These programs report a display name ("Composer 2.5 Fast") where they were given an id.
_REPORT_LABELS = frozenset({"cursor-agent", "agy", "devin"})
_REMARKS = re.compile(r"(?:\s*\([^()]*\))+\s*\Z")
_ALIASES = {name: f"claude-{name}-" for name in ("fable", "opus", "sonnet", "haiku")}


def announced_model(event: Event) -> str | None:
    """The model that an opening event announces, cleaned for display; None for any other event."""
    if event.get("subtype") != "init" and event.get("type") not in ("init", "system"):
        return None
    model = text_at(event, "model")
    return None if model is None else displayable(model)


def displayable(model: str) -> str:
    """`model` without escape sequences and control characters; `unverified` when nothing usable is left."""
    clean = _CONTROL.sub("", _ANSI.sub("", model)).strip()
    return clean if 0 < len(clean) <= MAX_MODEL_CHARACTERS else UNVERIFIED_MODEL


def listed_label(listing: str, model: str) -> str | None:
    """The display name in the line `<model> - <label>` of a CLI's list of models, or None.

    Remarks like `(default)`, `(current, default)` and `(NO ZDR)` are no part of the name.
    """
    for line in _ANSI.sub("", listing).splitlines():
        name, dash, label = line.strip().partition(" - ")
        if dash and name.strip() == model:
            clean = displayable(_REMARKS.sub("", label))
            return None if clean == UNVERIFIED_MODEL else clean
    return None


def receipt_status(route: Route, requested: str, served: str, label: str | None = None) -> ModelReceiptStatus:
    """Whether `served` is what was `requested`; `label` is the display name that the CLI lists for it."""
    if served == UNVERIFIED_MODEL:
        return "unverified"
    if requested == "auto":
        return "verified"
    if route.harness in _REPORT_LABELS:
        matches = _terms(label or requested) <= _terms(served)
    else:
        family = _ALIASES.get(requested, requested)
        matches = served.lower().startswith(family.lower()) or _plain(served) == _plain(requested)
    return "verified" if matches else "mismatch"


def _terms(text: str) -> frozenset[str]:
    return frozenset(_TERM.findall(_CONTEXT_SIZE.sub(" ", text.lower()))) - _VENDOR_WORDS


def _plain(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())
