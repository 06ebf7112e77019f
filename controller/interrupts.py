"""SIGINT and SIGTERM become one word at the next safe point, never an exception between an effect and its record."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from controller.errors import Interrupted

_received: list[int] = []
_put_off = 0


def _note(signum: int, _frame: FrameType | None) -> None:
    _received.append(signum)


def install() -> None:
    """Note SIGINT, SIGTERM and SIGHUP instead of dying of them; `check` speaks of them.

    One that is ignored stays ignored: that is what `nohup` asks for.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _note)


def pending() -> str | None:
    """The name of a signal that arrived and was not spoken of yet."""
    return signal.Signals(_received[-1]).name if _received else None


def check() -> None:
    """Raise `INTERRUPTED` when a signal has arrived; once, so that putting things back can go on afterwards."""
    name = pending()
    if name is not None and not _put_off:
        _received.clear()
        raise Interrupted(f"interrupted by {name}", found=name)


@contextmanager
def put_off() -> Iterator[None]:
    """Let nothing be interrupted: a signal is spoken of afterwards. For what puts the user's bytes back."""
    global _put_off
    _put_off += 1
    try:
        yield
    finally:
        _put_off -= 1
