"""The canonical index as a file: copied, held locked, replaced whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller import git_lock, run_root
from runner import private


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

    def __init__(self, git_dir: Path, lock: git_lock.Held) -> None:
        self.index = git_dir / "index"
        self._lock = lock

    def install(self, source: Path) -> None:
        """Make the bytes of `source` the index, with the old index's mode and the source's time stamp."""
        with run_root.trusted():
            mode = os.stat(self.index).st_mode & 0o777 if self.index.exists() else 0o666 & ~_umask()
            stamp = os.stat(source)
            data = source.read_bytes()
        self._lock.install(self.index, data, mode, (stamp.st_atime_ns, stamp.st_mtime_ns))


def _umask() -> int:
    value = os.umask(0o077)
    os.umask(value)
    return value


def _marker(git_dir: Path, run_directory: Path) -> Path:
    return git_lock.marker(git_dir, run_directory, "index")


@contextmanager
def held(git_dir: Path, run_directory: Path) -> Iterator[HeldIndex]:
    """Hold `index.lock`; `Blocked` when another program keeps it for more than three seconds."""
    with git_lock.held(git_dir / "index.lock", _marker(git_dir, run_directory)) as lock:
        yield HeldIndex(git_dir, lock)


def is_left(git_dir: Path, run_directory: Path) -> bool:
    """Whether a command of this run holds the index, or was killed while it did."""
    return os.path.lexists(_marker(git_dir, run_directory))


def clear_stale(git_dir: Path, run_directory: Path) -> str | None:
    """Remove what a killed command of this run left; the lock file's path if there was one. Under the run's lock."""
    return git_lock.clear(_marker(git_dir, run_directory), [git_dir / "index.lock"])
