"""Finds the worker's final answer in whatever a CLI printed.

The answer is the last JSON object that has all five worker keys, wherever it stands: on a line of its own,
spread over lines, in a code fence, nested in another object, or inside a string of one (protocol section 13).
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from adapters.contract import WORKER_KEYS

JsonObject: TypeAlias = dict[str, object]

_ANCHOR = "terminal_status"
# Raw line breaks inside strings are not valid JSON, but models write them.
_DECODER = json.JSONDecoder(strict=False)
# How an object with keys begins; inside a JSON string the quote would have a backslash before it.
_OBJECT = re.compile(r'\{\s*"')
_MAX_NESTED_STRINGS = 8
_WINDOW = 1024 * 1024

# Work is counted in characters that a plain scan passes, about a nanosecond each.
_WORK_AT_LEAST = 100_000_000
_WORK_PER_CHARACTER = 64
_LOOK = 200
_ATTEMPT = 2000
_DECODED_CHARACTER = 16


def find_answer(output: bytes | str) -> JsonObject | None:
    """The last object with all five keys in `output`, or None; non-UTF-8 bytes become lone surrogates.

    Output that was made to be slow to search (it comes from the worker) is given up on after about a second.
    """
    text = output if isinstance(output, str) else output.decode("utf-8", "surrogateescape")
    try:
        return _Search(_WORK_AT_LEAST + _WORK_PER_CHARACTER * len(text)).last_in_text(text, 0)
    except RecursionError:
        return None


class _Search:
    """Looks, from the end backwards, at every place where the word `terminal_status` stands."""

    def __init__(self, work: int) -> None:
        self._work = work

    def last_in_text(self, text: str, depth: int) -> JsonObject | None:
        end = len(text)
        while depth <= _MAX_NESTED_STRINGS and self._work > 0:
            anchor = text.rfind(_ANCHOR, 0, end)
            self._work -= end - max(anchor, 0)
            if anchor < 0:
                return None
            found, end = self._at(text, anchor, depth)
            if found is not None:
                return found
        return None

    def _at(self, text: str, anchor: int, depth: int) -> tuple[JsonObject | None, int]:
        """The answer around `anchor`, and the index before which to look on when there is none."""
        start = text.rfind("\n", 0, anchor) + 1
        end = text.find("\n", anchor)
        line = text[start:] if end < 0 else text[start:end]
        self._work -= len(line)
        if line.lstrip()[:1] in ("{", "["):
            self._work -= _ATTEMPT + len(line) * _DECODED_CHARACTER
            try:
                decoded = _DECODER.decode(line)
            except (ValueError, RecursionError):
                pass
            else:
                return self._last_in_value(decoded, depth), start
        return self._around(text, anchor, depth), anchor

    def _around(self, text: str, anchor: int, depth: int) -> JsonObject | None:
        """The answer in the innermost object that begins before `anchor` and ends after it."""
        # A failed attempt counts line breaks from the beginning of its text: a window of it only.
        window = text[max(0, anchor - _WINDOW) : anchor + 5 * _WINDOW]
        self._work -= len(window)
        anchor = min(anchor, _WINDOW)
        brace = anchor
        while self._work > 0:
            brace = window.rfind("{", 0, brace)
            if brace < 0:
                return None
            self._work -= _LOOK
            if _OBJECT.match(window, brace) is None:
                continue
            try:
                decoded, end = _DECODER.raw_decode(window, brace)
            except json.JSONDecodeError as error:
                self._work -= _ATTEMPT + error.pos + (error.pos - brace) * _DECODED_CHARACTER
                continue
            except RecursionError:
                self._work -= len(window)
                continue
            self._work -= _ATTEMPT + (end - brace) * _DECODED_CHARACTER
            if end > anchor:
                return self._last_in_value(decoded, depth)
        return None

    def _last_in_value(self, value: object, depth: int) -> JsonObject | None:
        if isinstance(value, str):
            return self.last_in_text(value, depth + 1) if _ANCHOR in value else None
        if isinstance(value, dict):
            if value.keys() >= WORKER_KEYS:
                return value
            value = list(value.values())
        if isinstance(value, list):
            for item in reversed(value):
                found = self._last_in_value(item, depth)
                if found is not None:
                    return found
        return None
