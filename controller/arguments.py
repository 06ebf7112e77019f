"""Checks of text arguments that several commands share. Pure."""

from __future__ import annotations

from controller.errors import Refused


def require_bounded(text: str, flag: str) -> None:
    """A text of 1 to 1024 bytes that is not blank (`REFUSED`)."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if not text.strip() or size > 1024 or "\0" in text:
        raise Refused(f"{flag} must be 1 to 1024 bytes", expected="1 to 1024 bytes, not blank", found=f"{size} bytes")
