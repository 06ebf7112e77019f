"""The private folder of one call outside the workspace: the prompt, planted files, the raw result, temporary files."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from adapters.errors import AdapterError

# A prefix of our own: other programs make `ce-work-adapter-*` here, and hold no lock on it while they use it.
_PREFIX = "unit-workspace-adapter-"
_NAME = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{12}")


@contextmanager
def scratch_folder(environ: Mapping[str, str]) -> Iterator[Path]:
    """A folder of mode 0700 below `TMPDIR` (or `/tmp`), removed afterwards.

    An adapter that was killed cannot remove its own, which holds the prompt: so each call first removes those that
    nobody holds any more. Held is a folder whose `flock` is taken, which the kernel lets go with its process, in
    whatever pid namespace that was. Raises `AdapterError`.
    """
    base = environ.get("TMPDIR", "")
    top = Path(base if os.path.isabs(base) else "/tmp")
    _remove_abandoned(top)
    path, held = _make(top)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def _make(top: Path) -> tuple[Path, int]:
    while True:
        path = top / f"{_PREFIX}{os.urandom(6).hex()}"
        try:
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)
        except OSError as error:
            raise AdapterError(f"cannot create a private scratch directory {path}: {error.strerror}") from None
        held = _hold(path, fcntl.LOCK_EX)
        if held is not None:
            return path, held
        # Another call took it for abandoned before it was held.


def _remove_abandoned(top: Path) -> None:
    with suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            path = Path(entry.path)
            held = _hold(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if held is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)


def _hold(path: Path, how: int) -> int | None:
    """A descriptor with the lock of the folder that has this name now; None when it is held or gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, how)
        mine, there = os.fstat(fd), os.stat(path, follow_symlinks=False)
    except OSError:
        os.close(fd)
        return None
    if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
        os.close(fd)
        return None
    return fd
