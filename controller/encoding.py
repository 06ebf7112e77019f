"""The one way in which structs become JSON: compact, sorted, ASCII; names that are not UTF-8 survive. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def seconds(at: str) -> str:
    """A journal time stamp in the protocol's form, without milliseconds."""
    return at[:19] + "Z" if len(at) > 20 and at[19] == "." else at


def plain(value: Any) -> Any:
    """A struct or container as JSON values (arrays as lists); lone surrogates stay (non-UTF-8 names)."""
    return _lists(msgspec.to_builtins(value))


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Compact, sorted, ASCII JSON: the form of every response and private record."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def storable(value: Any) -> Any:
    """`plain`, with every fraction as its text: the journal knows integers only."""
    return _storable(msgspec.to_builtins(value))


def _storable(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value
