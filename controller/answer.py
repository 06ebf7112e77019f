"""What a command answers: a status word and one JSON object (protocol.md section 2)."""

from __future__ import annotations

from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """A successful response."""

    word: str
    body: dict[str, Any]
