"""Reading a file whose name somebody else may have chosen, without ever waiting for it or following a planted link."""

from __future__ import annotations

import errno
import os
import stat


def read_regular(path: str | os.PathLike[str], max_bytes: int, *, follow: bool) -> tuple[bytes, os.stat_result]:
    """At most `max_bytes` + 1 bytes of the regular file `path` (one more shows that there are more), and its status.

    `follow` says whether the last component may be a symbolic link. Raises `OSError`, also for what is no regular
    file; a FIFO is reported instead of waited for.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
        chunks: list[bytes] = []
        left = max_bytes + 1
        while left > 0 and (chunk := os.read(fd, min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
    finally:
        os.close(fd)
    return b"".join(chunks), status
