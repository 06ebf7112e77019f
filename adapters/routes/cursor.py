"""cursor: Cursor with its own or a named model (`adapters.routes.cursor_family`)."""

from __future__ import annotations

from adapters.routes.cursor_family import cursor_adapter as adapter

__all__ = ["adapter"]
