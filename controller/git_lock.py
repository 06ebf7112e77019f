"""Git's own lock files, held so that it is provable after a kill whose they are.

Git's protocol is kept (`<file>.lock` excludes every other writer), but our lock is a hard link of a marker file whose
name belongs to the run. One that is not ours is never removed (kunchenguid/firstmate#296: deleting by age destroys
another program's work).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controller import run_root
from controller.errors import Blocked
from runner import private

_WAIT_SECONDS = 3.0


def marker(folder: Path, run_directory: Path, kind: str) -> Path:
    """The run's marker for one kind of lock; in the folder of Git that the lock belongs to."""
    digest = hashlib.sha256(os.fsencode(run_directory)).hexdigest()[:20]
    return folder / f"unit-workspace-{digest}.{kind}"


class Held:
    """A held lock; `install` replaces the file that it locks and lets go."""

    def __init__(self, lock: Path, own: Path) -> None:
        self._lock = lock
        self._marker = own

    def install(self, target: Path, data: bytes, mode: int, times: tuple[int, int] | None = None) -> None:
        """Make `data` the content of `target`, whole and durable; `times` are access and modification time (ns)."""
        with run_root.trusted():
            fd = os.open(self._marker, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                private.write_all(fd, data)
                os.fchmod(fd, mode)
                if times is not None:
                    os.utime(fd, ns=times)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(self._lock, target)
            private.fsync_dir(target.parent)
            os.unlink(self._marker)

    def release(self) -> None:
        """Let go without a change, if `install` has not already."""
        clear(self._marker, [self._lock])


@contextmanager
def held(lock: Path, own: Path) -> Iterator[Held]:
    """Hold `lock` through the marker `own`; `Blocked` when another program keeps it for more than three seconds."""
    clear(own, [lock])
    with run_root.trusted():
        os.close(os.open(own, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    taken = Held(lock, own)
    try:
        _link(own, lock)
        yield taken
    finally:
        taken.release()


def _link(own: Path, lock: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            os.link(own, lock)
            return
        except FileExistsError:
            if time.monotonic() >= deadline:
                raise Blocked(
                    f"another Git process holds {lock}",
                    detail={"git_lock": str(lock)},
                    expected=f"no {lock.name}",
                    found=lock.name,
                    remedy="let that Git command end; if none is running, remove the file yourself",
                ) from None
            time.sleep(0.05)
        except OSError as error:
            raise run_root.disk_error(error) from None


def clear(own: Path, locks: Iterable[Path]) -> str | None:
    """Remove what a killed command of this run left: the marker, and the lock that is a link of it (its path)."""
    if not os.path.lexists(own):
        return None
    removed = None
    for lock in locks:
        with suppress(OSError):
            if os.path.samefile(lock, own):
                os.unlink(lock)
                removed = str(lock)
    with suppress(FileNotFoundError):
        os.unlink(own)
    return removed
