"""Signals as readable bytes: a program that polls descriptors learns of a signal like of anything else."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Set
from types import FrameType, TracebackType
from typing import Any

from runner.process import poll_milliseconds


class Signals:
    """A context in which `caught` signals arrive through `fd` instead of interrupting anything.

    Handlers, ignored signals, the mask and the wake-up descriptor are put back on leaving, and a signal that
    came in the very last moment is still in `received`. What the caller left blocked is let through; what it
    ignores stays ignored unless `force`. Outside the main thread Python cannot handle signals: nothing is
    caught and `fd` stays silent.
    """

    def __init__(
        self, caught: Iterable[signal.Signals], ignored: Iterable[signal.Signals] = (), *, force: bool = False
    ) -> None:
        self._caught = tuple(caught)
        self._ignored = tuple(ignored)
        self._force = force
        self._previous: dict[signal.Signals, Any] = {}
        self._mask: Set[int] = frozenset()
        self._wakeup: int | None = None
        self.fd = -1
        self._write_fd = -1
        self.received: list[int] = []

    def __enter__(self) -> Signals:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        try:
            self._wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        except ValueError:
            # Not the main thread.
            return self
        for signum in self._caught:
            if self._force or signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, _noted)
        for signum in self._ignored:
            self._previous[signum] = signal.signal(signum, signal.SIG_IGN)
        # A mask is inherited, even through exec: with SIGCHLD in it no exit would ever be noticed.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wakeup is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            for signum, handler in self._previous.items():
                # None is a handler that was not installed from Python; it cannot be named, so it is left.
                if handler is not None:
                    signal.signal(signum, handler)
            signal.set_wakeup_fd(self._wakeup)
        self.drain()
        os.close(self.fd)
        os.close(self._write_fd)

    def drain(self) -> list[int]:
        """The signals that arrived since the last call, oldest first; never blocks."""
        fresh: list[int] = []
        try:
            while data := os.read(self.fd, 512):
                fresh += data
        except BlockingIOError:
            pass
        self.received += fresh
        return fresh

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a signal arrives; what arrived is in `received`."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.poll(poll_milliseconds(seconds))
        self.drain()


def reset_all() -> None:
    """Give every signal its default disposition, for a child that is about to exec.

    Python ignores SIGPIPE and SIGXFSZ and a supervisor ignores SIGHUP; a worker must inherit none of that.
    """
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)


def _noted(signum: int, frame: FrameType | None) -> None:
    # The byte that the interpreter wrote to the wake-up descriptor is the message.
    del signum, frame
