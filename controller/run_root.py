"""The private run root: where runs lie, what may be trusted there, and the only makers of run state (section 4)."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controller.errors import Blocked, NotFound, Refused, Unreadable
from runner import private
from runner.errors import Untrusted

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
LOCKS = ".locks"
JOURNAL = "journal.jsonl"
MANIFEST = "manifest.json"
INIT_PREFIX = f"{private.TEMP_PREFIX}init-"
_DRAFT = re.compile(rf"{re.escape(INIT_PREFIX)}[0-9a-f]{{12}}\Z")
PACKET_MAX = 200_000
RESULT_MAX = 5 * 1024 * 1024
ADAPTER_LOG_MAX = 10 * 1024 * 1024


def safe_id(value: str, what: str) -> str:
    """A run, unit, attempt or job id: 1-128 of `A-Za-z0-9._-`, not only dots (`REFUSED`)."""
    if not _SAFE_ID.match(value) or not value.strip("."):
        raise Refused(
            f"unsafe {what}: {value[:140]!r}",
            expected="1-128 characters of A-Z a-z 0-9 . _ -, not only dots",
            found=repr(value[:140]),
            remedy=f"choose another {what}",
        )
    return value


@contextmanager
def trusted() -> Iterator[None]:
    """Turn what `runner.private` does not trust, and OS errors, into the controller's words."""
    try:
        yield
    except Untrusted as error:
        raise Unreadable(
            f"cannot trust {error.path}: expected {error.expected}, found {error.found}",
            expected=str(error.expected),
            found=str(error.found),
            remedy="see who changed it; put owner and mode back, or use another runs root",
        ) from None
    except OSError as error:
        raise disk_error(error) from None


def disk_error(error: OSError) -> Blocked:
    """A failed system call as a refusal that says what to do."""
    name = os.strerror(error.errno or 0)
    mend = "free space or repair the file system"
    if error.errno in (errno.EACCES, errno.EPERM):
        mend = "give yourself permission there (chmod u+rwX)"
    elif str(error.filename).startswith("/proc/self/"):
        mend = "mount /proc: without it nothing can be said about processes and mounts"
    return Blocked(
        f"{name}: {error.filename or 'private run state'}",
        detail={"errno": error.errno},
        found=name,
        remedy=f"{mend}, then run `resume --run-id`; nothing recorded is lost",
    )


def safe_run_id(run_id: str) -> str:
    """A safe id that is none of the names that the runs root keeps for itself."""
    if run_id == LOCKS or run_id.startswith(private.TEMP_PREFIX):
        raise Refused(
            f"reserved run id: {run_id}", expected="another name", found=run_id, remedy="choose another run id"
        )
    return safe_id(run_id, "run id")


def _owner_roots() -> list[Path]:
    name = f"compound-engineering-{os.geteuid()}"
    return [Path("/tmp") / name, Path(os.environ.get("TMPDIR") or "/tmp") / name]


def configured_root() -> Path | None:
    """The runs root that the environment names, or None."""
    runs = os.environ.get("CE_WORK_RUNS_ROOT")
    if runs:
        return Path(os.path.abspath(runs))
    jobs = os.environ.get("CE_PEER_JOBS_ROOT")
    return Path(os.path.abspath(jobs)) / "ce-work" if jobs else None


def _open_owner_root(path: Path) -> bool:
    """Create or repair a default owner root; False when this place cannot hold one."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Unreadable(f"cannot safely open owner scratch root {path}: not a directory", found="a link or file")
    if found.st_uid != os.geteuid():
        raise Unreadable(f"owner scratch root is not owned by current user: {path}", found=f"uid {found.st_uid}")
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)
    return os.access(path, os.W_OK | os.X_OK)


def lookup_roots() -> list[Path]:
    """Where existing runs are looked for, in order; roots that the environment names are exclusive."""
    configured = configured_root()
    if configured is not None:
        return [configured]
    roots: dict[object, Path] = {}
    for owner in _owner_roots():
        root = owner / "ce-work"
        try:
            found = os.stat(root)
        except OSError:
            roots.setdefault(root, root)
        else:
            roots.setdefault((found.st_dev, found.st_ino), root)  # $TMPDIR may be another name of /tmp
    return list(roots.values())


def creation_root() -> Path:
    """The runs root for new runs, created and trusted, with its `.locks`."""
    configured = configured_root()
    if configured is not None:
        with trusted():
            os.makedirs(configured.parent, mode=0o700, exist_ok=True)
        return ensure_root(configured)
    for root in _owner_roots():
        if _open_owner_root(root):
            return ensure_root(root / "ce-work")
    raise Unreadable("cannot safely open owner scratch root under /tmp or $TMPDIR", found="no writable place")


def ensure_root(root: Path) -> Path:
    """A trusted runs root with its `.locks`; created if missing."""
    if root.parent in _owner_roots() and configured_root() is None:
        _open_owner_root(root.parent)
    with trusted():
        private.ensure_private_dir(root)
        private.ensure_private_dir(root / LOCKS)
    return root


def find_run(run_id: str) -> Path:
    """The directory of an existing run; `NOT_FOUND` when no root holds it."""
    safe_run_id(run_id)
    for root in lookup_roots():
        path = root / run_id
        if path.is_dir() and not path.is_symlink():
            ensure_root(root)
            with trusted():
                private.check_private_dir(path)
            return path
        if path.is_symlink():
            raise Unreadable(f"run directory {path} is a symbolic link", expected="a private directory", found="a link")
    searched = ", ".join(str(root) for root in lookup_roots())
    raise NotFound(
        f"no run {run_id} under {searched}",
        detail={"candidates": []},
        expected="the id of an existing run",
        found="no such directory",
        remedy="check the id and CE_WORK_RUNS_ROOT; `runs` lists what is there",
    )


def lock_name(kind: str, key: str) -> str:
    """The file name of a lock in `.locks` for a key."""
    suffix = "json" if kind == "integration" else "lock"
    return f"{kind}-{hashlib.sha256(os.fsencode(key)).hexdigest()}.{suffix}"


def is_draft(path: Path) -> bool:
    """Whether a killed `init` or `gc` left this: nobody else makes such names, and they make private folders only."""
    try:
        return _DRAFT.match(path.name) is not None and bool(private.check_private_dir(path))
    except (Untrusted, OSError):
        return False


def make_dir(path: Path) -> None:
    """A private directory, created or trusted."""
    with trusted():
        private.ensure_private_dir(path)


def read(path: Path, limit: int | None = 2 * 1024 * 1024) -> bytes:
    """The bytes of a private file; `UNREADABLE` when missing or not to be trusted."""
    try:
        with trusted():
            return private.read_private(path, limit)
    except Blocked as error:
        if error.detail.get("errno") == 2:
            raise Unreadable(f"private file {path} is missing", expected="a private file", found="nothing") from None
        raise


def require_private(path: Path) -> None:
    """`UNREADABLE` when a file that is there breaks the private rule; its content is not looked at."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) != 0o600:
        raise Unreadable(
            f"cannot trust {path}",
            expected=f"a regular file of uid {os.geteuid()} with mode 0600",
            found=f"{stat.filemode(info.st_mode)} of uid {info.st_uid}",
            remedy="see who changed it; put owner and mode back, or remove it: it is written again",
        )


def write(path: Path, data: bytes) -> None:
    """Write a private file atomically and durably."""
    with trusted():
        private.write_atomic(path, data)


def remove_tree(path: Path) -> None:
    """Remove a directory of the run, never through a link or a mount (`Blocked`, and nothing removed, for a mount).

    A worker may have taken away its own permissions, or nested folders deeper than a path, a recursion or the number of
    open files reaches: folders are moved up before they are emptied. Another process may be removing the same tree.
    """
    try:
        if path.is_symlink():
            path.unlink(missing_ok=True)
        elif path.exists():
            require_no_mount(path)
            while not _emptied(path):
                pass
    except OSError as error:
        raise disk_error(error) from None


def require_no_mount(path: Path) -> None:
    """`Blocked` when something is mounted on a folder or below it: what lies there is somebody else's."""
    top = os.fsencode(os.path.realpath(path))
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        place = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split(b" ")[4])
        if place == top or place.startswith(top + b"/"):
            mount = os.fsdecode(place)
            raise Blocked(
                f"something is mounted at {mount}: removing {path} would remove what is mounted there",
                detail={"mount": mount},
                expected="nothing mounted there",
                found=f"a mount at {mount}",
                remedy=f"umount {shlex.quote(mount)}, then run the command again",
            )


def _emptied(path: Path) -> bool:
    """Remove a folder; False when another process that removes it, too, has just moved a folder up in it."""
    with suppress(FileNotFoundError):
        top = _open_folder(str(path), None)
        try:
            while folders := _unlink_files(top):
                for name in folders:
                    with suppress(FileNotFoundError):
                        _lift(top, name)
        finally:
            os.close(top)
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
    return True


def _lift(top: int, name: str) -> None:
    """Remove a folder of `top` whose own folders become folders of `top`."""
    folder = _open_folder(name, top)
    try:
        for child in _unlink_files(folder):
            with suppress(FileNotFoundError):
                os.close(_open_folder(child, folder))  # its `..` changes: it must be writable
                os.rename(child, f"{private.TEMP_PREFIX}{os.urandom(8).hex()}", src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _open_folder(name: str, parent: int | None) -> int:
    """A descriptor of a real folder that is readable, writable and searchable from now on."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        here = f"/proc/self/fd/{handle}"
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o700 != 0o700:
            os.chmod(here, 0o700)
        return os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _unlink_files(folder: int) -> list[str]:
    """Unlink everything in a folder that is none itself; the names of its folders."""
    with os.scandir(folder) as found:
        entries = list(found)
    folders = []
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=folder)
    return folders


def read_source(path: Path, what: str, limit: int = PACKET_MAX) -> bytes:
    """The bytes of a file that a host names: opened without following a link, regular, bounded (`REFUSED`)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        link = path.is_symlink()
        raise Refused(
            f"cannot open {what} {path}: {os.strerror(error.errno or 0)}",
            expected="a regular file, no link",
            found="a symbolic link" if link else os.strerror(error.errno or 0),
        ) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # asked before fdopen, which takes no folder
        os.close(fd)
        raise Refused(f"{what} {path} is not a regular file", expected="a regular file", found="something else")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        size = os.stat(path).st_size
        raise Refused(
            f"{what} {path} is larger than {limit} bytes",
            expected=f"at most {limit} bytes",
            found=f"{size} bytes",
            remedy="narrow it; a packet holds one unit, not the whole plan",
        )
    return data


def read_plan(top: str, plan: str) -> tuple[str, bytes]:
    """The plan's path relative to the top level, and its bytes; `REFUSED` for a link, a folder or a path outside."""
    path = Path(plan) if os.path.isabs(plan) else Path(top) / plan
    real = os.path.realpath(path)
    if real == top or not real.startswith(top.rstrip("/") + "/") or os.path.relpath(real, top).split("/")[0] == ".git":
        raise Refused("the plan lies outside the repository", expected=f"a file inside {top}", found=real)
    content = read_source(path, "plan", 64 * 1024 * 1024)
    return os.path.relpath(real, top), content
