"""The canonical index as a file: copied, held locked, replaced whole.

Git's own protocol is kept (`index.lock` excludes every other writer), but the lock is a hard link of a marker file
whose name belongs to the run. After a kill it is provable whose lock it is; one that is not ours is never removed
(kunchenguid/firstmate#296: deleting by age destroys another program's work).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controller import run_root
from controller.errors import Blocked
from runner import private

_WAIT_SECONDS = 3.0


def _marker(git_dir: Path, run_directory: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(run_directory)).hexdigest()[:20]
    return git_dir / f"unit-workspace-{digest}.index"


def copy(source: Path, target: Path) -> str:
    """Copy an index durably to a private file, its time stamp too (Git's racy-entry check needs it); its SHA-256."""
    with run_root.trusted():
        try:
            data = source.read_bytes()
            stamp = os.stat(source)
            times = (stamp.st_atime_ns, stamp.st_mtime_ns)
        except FileNotFoundError:  # a checkout whose HEAD tree is empty may have no index at all
            data, times = b"", (0, 0)
        private.write_atomic(target, data)
        os.utime(target, ns=times)
    return hashlib.sha256(data).hexdigest()


def digest(path: Path) -> str:
    """SHA-256 of an index file's bytes; of nothing when there is no index."""
    with run_root.trusted():
        return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


class HeldIndex:
    """The locked canonical index; `install` replaces it and lets go."""

    def __init__(self, git_dir: Path, marker: Path) -> None:
        self.index = git_dir / "index"
        self._lock = git_dir / "index.lock"
        self._marker = marker

    def install(self, source: Path) -> None:
        """Make the bytes of `source` the index, with the old index's mode and the source's time stamp."""
        with run_root.trusted():
            mode = os.stat(self.index).st_mode & 0o777 if self.index.exists() else 0o666 & ~_umask()
            stamp = os.stat(source)
            with open(source, "rb") as old, open(self._marker, "r+b") as new:
                shutil.copyfileobj(old, new)
                new.truncate()
                os.fchmod(new.fileno(), mode)
                new.flush()
                os.utime(new.fileno(), ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
                os.fsync(new.fileno())
            os.rename(self._lock, self.index)
            private.fsync_dir(self.index.parent)
            os.unlink(self._marker)

    def release(self) -> None:
        """Let go without a change, if `install` has not already."""
        with suppress(FileNotFoundError):
            if os.path.samefile(self._lock, self._marker):
                os.unlink(self._lock)
        with suppress(FileNotFoundError):
            os.unlink(self._marker)


def _umask() -> int:
    value = os.umask(0o077)
    os.umask(value)
    return value


@contextmanager
def held(git_dir: Path, run_directory: Path) -> Iterator[HeldIndex]:
    """Hold `index.lock`; `Blocked` when another program keeps it for more than three seconds."""
    clear_stale(git_dir, run_directory)
    marker = _marker(git_dir, run_directory)
    lock = git_dir / "index.lock"
    with run_root.trusted():
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    held_index = HeldIndex(git_dir, marker)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                os.link(marker, lock)
                break
            except FileExistsError:
                if time.monotonic() >= deadline:
                    raise Blocked(
                        f"another Git process holds {lock}",
                        detail={"index_lock": str(lock)},
                        expected="a free index",
                        found="index.lock",
                        remedy="let that Git command end; if none is running, remove the file yourself",
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                raise run_root.disk_error(error) from None
        yield held_index
    finally:
        held_index.release()


def is_left(git_dir: Path, run_directory: Path) -> bool:
    """Whether a command of this run holds the index, or was killed while it did."""
    return os.path.lexists(_marker(git_dir, run_directory))


def clear_stale(git_dir: Path, run_directory: Path) -> str | None:
    """Remove what a killed command of this run left; the lock file's path if there was one. Under the run's lock."""
    marker = _marker(git_dir, run_directory)
    if not os.path.lexists(marker):
        return None
    lock = git_dir / "index.lock"
    removed = None
    with suppress(FileNotFoundError):
        if os.path.samefile(lock, marker):
            os.unlink(lock)
            removed = str(lock)
    with suppress(FileNotFoundError):
        os.unlink(marker)
    return removed
