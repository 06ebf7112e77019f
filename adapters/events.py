"""Reads a CLI's JSONL event stream as it comes.

A line that is a JSON object is an event; anything else is text. Events of unknown type are data, never
errors: CLIs add kinds every month (`spec/agents.md`). What a route learns from its events is one frozen
`Observed`, folded event by event by the route's own pure function.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from adapters.contract import Usage

Event: TypeAlias = dict[str, object]

MAX_KEPT_ERRORS = 16
MAX_KEPT_DENIALS = 16

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class ErrorInfo(msgspec.Struct, frozen=True):
    """One error as the CLI reported it: its sentence, its own code or type word, and an HTTP status.

    When it may be tried again is told as `retry_after_seconds` or as `resets_at` (Unix time, seconds).
    """

    message: str
    kind: str | None = None
    status: int | None = None
    retry_after_seconds: int | None = None
    resets_at: int | None = None


class Observed(msgspec.Struct, frozen=True):
    """What the events have told so far.

    `verdict` is what the latest event that decides says; `ended` is true from the event after which a
    well-behaved CLI exits. `message` is the worker's latest text. `denied` names what the CLI did not let the
    worker do. `latest` names the latest event for people.
    """

    session_id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    verdict: Literal["completed", "failed"] | None = None
    ended: bool = False
    errors: tuple[ErrorInfo, ...] = ()
    message: str | None = None
    denied: tuple[str, ...] = ()
    latest: str | None = None

    def with_error(self, error: ErrorInfo) -> Observed:
        """The same with one more error, the latest last; only the latest few are kept."""
        return msgspec.structs.replace(self, errors=(*self.errors, error)[-MAX_KEPT_ERRORS:])

    def failed(self, error: ErrorInfo, *, ended: bool = False) -> Observed:
        """The same with one more error, which decides until a later event decides otherwise."""
        return msgspec.structs.replace(self.with_error(error), verdict="failed", ended=ended or self.ended)

    def with_denied(self, names: list[str]) -> Observed:
        """The same with the names of what was denied, each once; only the first few are kept."""
        denied = tuple(dict.fromkeys((*self.denied, *names)))
        return msgspec.structs.replace(self, denied=denied[:MAX_KEPT_DENIALS])


Observe: TypeAlias = Callable[[Observed, Event], Observed]
"""A route's fold: what is known, and one event, to what is known then."""


class Lines:
    """Cuts a byte stream into lines (without their newline), across chunk borders."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completed."""
        head, newline, rest = chunk.partition(b"\n")
        if not newline:
            # Parts are joined only when the line is complete, so that a long line costs linear time.
            self._parts.append(chunk)
            return []
        lines = [b"".join([*self._parts, head]), *rest.split(b"\n")]
        self._parts = [lines.pop()]
        return lines

    def finish(self) -> list[bytes]:
        """The last line when the stream ended without a newline."""
        last = b"".join(self._parts)
        self._parts = []
        return [last] if last else []


def decode_event(line: bytes) -> Event | None:
    """The JSON object on `line`, or None when the line is anything else."""
    if line.lstrip()[:1] != b"{":
        return None
    try:
        decoded = msgspec.json.decode(line)
    except msgspec.DecodeError:
        decoded = _lenient(line)
    except RecursionError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _lenient(line: bytes) -> object:
    """Decode what the strict decoder refuses: raw control characters, lone surrogates, bytes that are not
    UTF-8.
    """
    import json

    try:
        return json.loads(line.decode("utf-8", "surrogateescape"), strict=False)
    except (ValueError, RecursionError):
        return None


def text_at(event: object, *path: str) -> str | None:
    """The non-empty string at `path`, or None when anything on the way is missing or of another type."""
    found = value_at(event, *path)
    return found if isinstance(found, str) and found else None


def count_at(event: object, *path: str) -> int | None:
    """The non-negative integer at `path`, or None; a bool, a float or a string is no count."""
    found = value_at(event, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def number_at(event: object, *path: str) -> float | None:
    """The finite non-negative number at `path`, or None."""
    found = value_at(event, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if found >= 0 and math.isfinite(found) else None


def list_at(event: object, *path: str) -> list[object]:
    """The list at `path`; empty when there is none."""
    found = value_at(event, *path)
    return found if isinstance(found, list) else []


def uuid_at(event: object, *path: str) -> str | None:
    """The UUID at `path`, or None.

    A session id is put on a command line later: one like `--force` must not get that far (launcher section 15 W28).
    """
    found = text_at(event, *path)
    return found if found is not None and _UUID.fullmatch(found) else None


def message_text(event: Event) -> str | None:
    """The joined text blocks of `message.content`, as Anthropic-shaped events carry it, or None."""
    blocks = list_at(event, "message", "content")
    texts = [text for block in blocks if text_at(block, "type") == "text" and (text := text_at(block, "text"))]
    return "".join(texts) or None


def value_at(event: object, *path: str) -> object:
    """The value at `path` through nested objects, or None."""
    for key in path:
        if not isinstance(event, dict):
            return None
        event = event.get(key)
    return event


def is_event(event: Event) -> bool:
    """Whether the object says what kind of event it is."""
    return text_at(event, "type") is not None or text_at(event, "event") is not None


def event_name(event: Event) -> str | None:
    """The event's type as a short word that is safe to print, or None."""
    name = text_at(event, "type") or text_at(event, "event")
    if name is None or len(name) > 64 or not all(char.isalnum() or char in "._-/" for char in name):
        return None
    return name if name.isascii() else None
