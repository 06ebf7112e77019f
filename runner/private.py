"""Private files and directories: the only way that any of the three programs makes or reads its own state.

The rule is protocol section 4: directories 0700, files 0600, owned by the effective user, never reached
through a symbolic link. Modes are set explicitly and never through the process umask, which stays the user's
(section 18 row 2). Every violation raises `runner.errors.Untrusted` with `path`, `expected` and `found`;
plain I/O faults (`ENOSPC`, `EIO`, ...) stay the `OSError` that they are.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from runner.errors import Untrusted

TEMP_PREFIX = ".tmp-"
"""Every temporary file of this module begins so: one left behind by a kill can be told from a record."""

DIR_MODE = 0o700
FILE_MODE = 0o600
DEFAULT_MAX_BYTES = 2 * 1024 * 1024

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO planted under a record's name would block a plain open for ever, hence O_NONBLOCK.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_CANNOT_OPEN = {
    errno.ELOOP: "a symbolic link",
    errno.ENOTDIR: "something that is not a directory",
    errno.EACCES: "no permission to open it",
    errno.EPERM: "no permission to open it",
    errno.ENXIO: "a socket or an unattached device",
    errno.ENODEV: "a device",
}


def ensure_private_dir(path: Path) -> None:
    """Create `path` as a 0700 directory (its parent must exist) and make it durable, or validate it.

    Raises `Untrusted` for an existing path that breaks the rule, `FileNotFoundError` without a parent.
    """
    try:
        os.mkdir(path, DIR_MODE)
    except FileExistsError:
        check_private_dir(path)
        return
    fd = _open_dir(path)
    try:
        # A narrow umask takes bits away, a set-group-id parent adds one.
        if stat.S_IMODE(os.fstat(fd).st_mode) != DIR_MODE:
            os.fchmod(fd, DIR_MODE)
    finally:
        os.close(fd)
    fsync_dir(Path(path).parent)


def check_private_dir(path: Path) -> os.stat_result:
    """The status of the private directory `path`, or `Untrusted` (`FileNotFoundError` when missing)."""
    fd = _open_dir(path)
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    _check_owner_and_mode(path, status, DIR_MODE)
    return status


def read_private(path: Path, max_bytes: int | None = DEFAULT_MAX_BYTES) -> bytes:
    """The bytes of the private file `path`; `max_bytes` None means no cap.

    The cap is applied to what is really read, not only to what `stat` said, so that a file which grows
    meanwhile cannot pass it. Raises `FileNotFoundError` when missing and `Untrusted` when it breaks the rule.
    """
    return _read(path, max_bytes, FILE_MODE)


def read_owned(path: Path, max_bytes: int | None = DEFAULT_MAX_BYTES) -> bytes:
    """As `read_private`, for a file of any mode: what other programs write into job directories."""
    return _read(path, max_bytes, None)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with a 0600 file that holds `data`: temp, fsync, rename, fsync of the directory.

    A reader sees the old bytes or the new ones. A failed fsync is not retried: the page cache may already
    have dropped the bytes that it could not write.
    """
    path = Path(path)
    temp = _write_temp(path.parent, data)
    try:
        os.rename(temp, path)
    except BaseException:
        _unlink_quietly(temp)
        raise
    fsync_dir(path.parent)


def create_exclusive(path: Path, data: bytes) -> None:
    """Create the 0600 file `path` with `data`, durably; `FileExistsError` if anything has that name.

    The bytes are complete and synced under a temporary name before the final name exists, so a kill at any
    moment leaves either no `path` or a whole one (section 18 row 9).
    """
    path = Path(path)
    temp = _write_temp(path.parent, data)
    try:
        os.link(temp, path)
    finally:
        _unlink_quietly(temp)
    fsync_dir(path.parent)


def fsync_dir(path: Path) -> None:
    """Make the entries of directory `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep_temps(directory: Path) -> list[str]:
    """Remove the temporary files that killed writers left in `directory`; returns their names.

    Only for a caller that excludes every other writer of that directory (its lock is held), since a temp
    file of a live writer looks the same.
    """
    removed = []
    with os.scandir(directory) as entries:
        stale = [e.name for e in entries if e.name.startswith(TEMP_PREFIX) and e.is_file(follow_symlinks=False)]
    for name in sorted(stale):
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        removed.append(name)
    return removed


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte of `data` to `fd`, going on after short writes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_temp(directory: Path, data: bytes) -> Path:
    temp = directory / f"{TEMP_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
    fd = os.open(temp, _CREATE_FLAGS, FILE_MODE)
    try:
        try:
            os.fchmod(fd, FILE_MODE)
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        _unlink_quietly(temp)
        raise
    return temp


def _unlink_quietly(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError:
        # What cannot be removed now is swept later; the error that brought us here matters more.
        pass


def _open_dir(path: Path) -> int:
    try:
        return os.open(path, _DIR_FLAGS)
    except OSError as fault:
        # With O_DIRECTORY Linux answers ENOTDIR for a symbolic link, too.
        if fault.errno == errno.ENOTDIR and os.path.islink(path):
            raise Untrusted(path, "a real directory", "a symbolic link") from fault
        raise _untrusted_open(path, "a real directory", fault) from fault


def _untrusted_open(path: Path, expected: str, fault: OSError) -> OSError | Untrusted:
    found = _CANNOT_OPEN.get(fault.errno or 0)
    return fault if found is None else Untrusted(path, expected, found)


def _check_owner_and_mode(path: Path, status: os.stat_result, mode: int | None) -> None:
    if status.st_uid != os.geteuid():
        raise Untrusted(path, f"owner uid {os.geteuid()}", f"owner uid {status.st_uid}")
    if mode is not None and stat.S_IMODE(status.st_mode) != mode:
        raise Untrusted(path, f"mode {mode:04o}", f"mode {stat.S_IMODE(status.st_mode):04o}")


def _read(path: Path, max_bytes: int | None, mode: int | None) -> bytes:
    try:
        fd = os.open(path, _READ_FLAGS)
    except OSError as fault:
        raise _untrusted_open(path, "a regular file", fault) from fault
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(path, "a regular file", _kind(status.st_mode))
        _check_owner_and_mode(path, status, mode)
        return _read_capped(path, fd, status.st_size, max_bytes)
    finally:
        os.close(fd)


def _read_capped(path: Path, fd: int, size: int, max_bytes: int | None) -> bytes:
    if max_bytes is not None and size > max_bytes:
        raise Untrusted(path, f"at most {max_bytes} bytes", f"{size} bytes")
    chunks: list[bytes] = []
    total = 0
    while chunk := os.read(fd, 1 << 16 if size < 1 << 16 else 1 << 20):
        total += len(chunk)
        if max_bytes is not None and total > max_bytes:
            raise Untrusted(path, f"at most {max_bytes} bytes", f"more than {max_bytes} bytes, still growing")
        chunks.append(chunk)
    return b"".join(chunks)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a device"
