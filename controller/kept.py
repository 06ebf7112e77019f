"""The user's own files, moved aside while a unit is applied, and given back as the very same files.

`git read-tree -u` looks first and overwrites later, path by path: what a user saves in between is gone, and a restore
has only what Git would write, which is not what stood there where a filter drops bytes (nbstripout, line endings) or a
mode is private. So a file that a unit changes is never overwritten: it is renamed into a folder of the Git directory,
judged there, and renamed back, or given up once the unit is committed. One rename takes a file: whoever saves it after
that writes a new one, which is seen.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path

import msgspec

from controller import git_lock, run_root
from runner import private

_PATH_MAX = 4000  # of 4096 bytes; what is added to it are names of our own


class Mark(msgspec.Struct, frozen=True):
    """What tells one content of a file from the next without reading it; a rename leaves it as it is."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    mode: int

    def same_as(self, other: Mark | None) -> bool:
        """Whether nothing was written in between; also for a copy on another file system, where the inode differs."""
        if other is None or (self.size, self.mtime_ns, self.mode) != (other.size, other.mtime_ns, other.mode):
            return False
        return self.dev != other.dev or self.ino == other.ino


def mark(path: Path) -> Mark | None:
    """The mark of what is at a path, None when nothing is."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise run_root.disk_error(error) from None
    return Mark(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode)


class Shelf:
    """A folder beside the index whose name belongs to the run; paths below it are those of the checkout.

    `kind`: `kept` (the user's files of before the unit), `taken` (what a restore took away and has not judged yet) or
    `staged` (the unit's files before they are put in their places).
    """

    def __init__(self, git_dir: Path, run_directory: Path, kind: str) -> None:
        self.folder = git_lock.marker(git_dir, run_directory, kind)

    def paths(self) -> list[str]:
        """Every file on it."""
        return files_below(self.folder)

    def place(self, path: str) -> Path:
        """Where the file of a path lies here; a path that gets too long by it has a short name of its own."""
        place = self.folder / path
        if len(os.fsencode(place)) < _PATH_MAX:
            return place
        return self.folder / f"long-name-{hashlib.sha256(os.fsencode(path)).hexdigest()}"

    def take(self, top: Path, path: str) -> bool:
        """Move a file or folder of the checkout here; False when nothing is there."""
        target = self.place(path)
        source = top / path
        with run_root.trusted():
            os.makedirs(target.parent, mode=0o700, exist_ok=True)
            try:
                os.rename(source, target)
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                if not os.path.lexists(source):
                    return False
                _move_across(source, target)
        return True

    def give(self, top: Path, path: str) -> bool:
        """Move a file to its path in the checkout; False, and nothing moved, when something stands there."""
        source, target = self.place(path), top / path
        with run_root.trusted():
            os.makedirs(target.parent, exist_ok=True)
            try:
                os.link(source, target, follow_symlinks=False)
            except FileExistsError:
                if not os.path.samestat(os.lstat(source), os.lstat(target)):
                    return False
            except OSError as error:
                # A file system without hard links, or another one than the Git directory's.
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                    raise
                if os.path.lexists(target):
                    return False
                _move_across(source, target)
                return True
            os.unlink(source)
        return True

    def drop(self, path: str) -> None:
        """Remove one file."""
        with run_root.trusted():
            self.place(path).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the folder with all that is on it."""
        run_root.remove_tree(self.folder)


def files_below(folder: Path) -> list[str]:
    """Files and links below a folder, relative to it, sorted; `Blocked` for a folder that cannot be read."""

    def fail(error: OSError) -> None:
        raise run_root.disk_error(error)

    names = []
    for base, folders, files in os.walk(
        folder, onerror=lambda e: None if isinstance(e, FileNotFoundError) else fail(e)
    ):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        names += [os.path.relpath(os.path.join(base, name), folder) for name in files + links]
    return sorted(names)


def _move_across(source: Path, target: Path) -> None:
    """As `rename`, between file systems: whole and durable there before it goes here."""
    draft = target.parent / f"{private.TEMP_PREFIX}{os.urandom(8).hex()}"
    if stat.S_ISDIR(os.lstat(source).st_mode):
        shutil.copytree(source, draft, symlinks=True)
        os.rename(draft, target)
        run_root.remove_tree(source)
        return
    shutil.copy2(source, draft, follow_symlinks=False)
    if not draft.is_symlink():
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
    os.rename(draft, target)
    os.unlink(source)
