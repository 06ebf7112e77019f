"""File descriptors: pipes that stand clear of the standard streams, and closing each exactly once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from types import TracebackType

_LOWEST_FD = 3


class Descriptors:
    """Descriptors of one owner, closed exactly once, at the latest on leaving the context.

    A second close of the same number would hit whatever another thread has opened meanwhile.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(*self._open)

    def add(self, fd: int) -> int:
        """Own `fd` from now on."""
        self._open.add(fd)
        return fd

    def pipe(self) -> tuple[int, int]:
        """A pipe (read, write), both ends owned."""
        read, write = pipe()
        return self.add(read), self.add(write)

    def close(self, *fds: int) -> None:
        """Close those of `fds` that are owned and still open."""
        for fd in fds:
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)


def pipe() -> tuple[int, int]:
    """A pipe (read, write), close-on-exec, never on descriptors 0 to 2 even if the caller closed those."""
    ends = os.pipe()
    if min(ends) >= _LOWEST_FD:
        return ends
    moved = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD) for fd in ends)
    for fd in ends:
        os.close(fd)
    return moved[0], moved[1]


def close_all_but(keep: Collection[int]) -> None:
    """Close every descriptor of this process that is not in `keep`."""
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                # The descriptor of the listing itself.
                pass


def null_standard_streams() -> None:
    """Point descriptors 0 to 2 at /dev/null, inheritable."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in range(_LOWEST_FD):
        if fd != null:
            os.dup2(null, fd)
    if null < _LOWEST_FD:
        os.set_inheritable(null, True)
    else:
        os.close(null)
