"""A unit's private detached worktree: made, checked without running git in it, removed.

Registration is read from the common directory (`worktrees/<id>/gitdir`, gitrepository-layout(5)): the `.git` file in
the workspace is the worker's to write, so nothing here follows it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from pathlib import Path

import msgspec

from controller import run_root
from controller.errors import Blocked, Unreadable
from controller.git import Git
from runner import private

_OURS = re.compile(r"ce-work-[0-9a-f]{20}")


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """What lstat says of one workspace file; unchanged in all of it means unchanged bytes (ctime cannot be set)."""

    path: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    dev: int
    nlink: int


class Registration(msgspec.Struct, frozen=True):
    """One entry below `<common dir>/worktrees`."""

    name: str
    gitdir: str
    head: str
    locked: bool


def registrations(common_dir: str) -> list[Registration]:
    """Every registered linked worktree."""
    base = Path(common_dir) / "worktrees"
    found = []
    try:
        names = sorted(os.listdir(base))
    except FileNotFoundError:
        return []
    for name in names:
        gitdir = _line(base / name / "gitdir")
        if gitdir is None:
            continue
        # A killed `git worktree add` leaves `locked` and `gitdir` before there is a HEAD: git knows it by then.
        head = _line(base / name / "HEAD") or ""
        found.append(Registration(name, gitdir, head, os.path.lexists(base / name / "locked")))
    return found


def _line(path: Path) -> str | None:
    """The one line of a registration's file, None when there is none; `Blocked` for a FIFO, which git waits on."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Blocked(
                f"a worktree registration of the repository holds a special file: {path}",
                detail={"path": str(path)},
                expected="a regular file",
                found="a FIFO, device or folder",
                remedy="see who made it, then remove that folder yourself",
            )
        return os.fsdecode(file.read(65536)).rstrip("\n")


def _same(a: str, b: Path) -> bool:
    return os.path.realpath(os.path.dirname(a)) == os.path.realpath(b.parent) and os.path.basename(a) == b.name


def registration(common_dir: str, workspace: Path) -> Registration | None:
    """The one registration of a workspace; `Blocked` when it is registered more than once."""
    found = [entry for entry in registrations(common_dir) if _same(entry.gitdir, workspace / ".git")]
    if len(found) > 1:
        raise Blocked("the workspace is registered more than once", expected="one registration", found=f"{len(found)}")
    return found[0] if found else None


def require_registered(common_dir: str, workspace: Path) -> Registration:
    """The workspace exists, is private, registered once, detached and points back at its registration."""
    entry = registration(common_dir, workspace)
    if entry is None:
        raise Blocked(
            "the workspace is not a registered worktree of the repository",
            detail={"workspace": str(workspace)},
            expected="one registration",
            found="none",
            remedy="abandon the attempt with cleanup --abandon, or restore the registration",
        )
    if entry.head.startswith("ref:"):
        raise Blocked("the workspace HEAD is not detached", expected="a detached HEAD", found=entry.head)
    with run_root.trusted():
        private.check_private_dir(workspace)
    pointer = workspace / ".git"
    try:
        info = os.lstat(pointer)
        text = pointer.read_bytes() if stat.S_ISREG(info.st_mode) and info.st_size < 65536 else b""
    except OSError:
        text = b""
    expected = Path(common_dir) / "worktrees" / entry.name
    named = os.fsdecode(text.removeprefix(b"gitdir: ").rstrip(b"\n"))
    if not text.startswith(b"gitdir: ") or os.path.realpath(named) != os.path.realpath(expected):
        raise Blocked(
            "the workspace's .git file no longer points at its own registration",
            detail={"workspace": str(workspace)},
            expected=str(expected),
            found=named[:200] or "no such file",
            remedy="the worker changed it: abandon the attempt",
        )
    return entry


def add(git: Git, common_dir: str, workspace: Path, base: str) -> None:
    """Create the workspace: detached (no config write, no branch; claude-code#47266), private, hooks off, LFS pointers.

    A half-made worktree of a killed call is ours and is removed first. Git names a registration after the folder, at
    its first moment empty; so the folder gets its own name only once it is registered under one that is provably ours.
    Under the repository's worktree lock.
    """
    remove(git, common_dir, workspace)
    admin = _admin(common_dir, workspace)
    draft = workspace.parent / admin.name
    run_root.make_dir(draft)
    options = ("checkout.workers=0", "worktree.useRelativePaths=false")
    at = git.at(git.cwd, env={"GIT_LFS_SKIP_SMUDGE": "1"}, options=options)
    lock = ("--lock", "--reason", _lock_reason(workspace))
    done = at.call("worktree", "add", "--detach", *lock, str(draft), base, timeout=3600.0)
    if done.returncode != 0:
        failure = git.failure(("worktree", "add"), done)
        remove(git, common_dir, workspace)
        raise failure
    with run_root.trusted():
        os.chmod(draft, 0o700)
        os.rename(draft, workspace)
        pointer = admin / "gitdir"
        text = pointer.read_bytes().removesuffix(b"\n")
        pointer.write_bytes(os.path.join(os.path.dirname(os.path.dirname(text)), b"workspace", b".git") + b"\n")


def _admin(common_dir: str, workspace: Path) -> Path:
    """Where the workspace is registered; the name belongs to this one workspace."""
    digest = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:20]
    return Path(common_dir) / "worktrees" / f"ce-work-{digest}"


def is_draft(name: str) -> bool:
    """Whether a folder beside a workspace is what `add` has begun."""
    return _OURS.fullmatch(name) is not None


def _lock_reason(workspace: Path) -> str:
    """Why `git worktree list` shows the workspace locked: nobody else may prune or remove it, also half-made."""
    return f"unit-workspace: run {workspace.parents[2].name}, unit {workspace.parent.name}"


def remove(git: Git, common_dir: str, workspace: Path) -> None:
    """Remove the workspace and its registration; nothing is an error that is already gone.

    `Blocked`, and nothing removed, under a lock that is not ours: somebody wants it kept (claude-code#57765).
    """
    entry = registration(common_dir, workspace)
    admins = {_admin(common_dir, workspace)}
    if entry is not None:
        found = Path(common_dir) / "worktrees" / entry.name
        if entry.locked and (reason := _line(found / "locked")) != _lock_reason(workspace):
            raise Blocked(
                "the worktree registration is locked",
                detail={"workspace": str(workspace)},
                expected="no lock but our own",
                found=reason or "locked without a reason",
                remedy=f"git worktree unlock {workspace}",
            )
        admins.add(found)
    for folder in (workspace, workspace.parent / _admin(common_dir, workspace).name):
        run_root.remove_tree(folder)
    for admin in admins:
        _unregister(admin)
    try:
        os.rmdir(Path(common_dir) / "worktrees")
    except OSError:
        pass


def _unregister(admin: Path) -> None:
    """`gitdir` goes last, so that a half-removed registration still says whose it is."""
    with run_root.trusted():
        if not admin.is_symlink() and admin.is_dir():
            for entry in sorted(os.scandir(admin), key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    run_root.remove_tree(admin / entry.name)
                elif entry.name != "gitdir":
                    os.unlink(entry.path)
    run_root.remove_tree(admin)


def emptied(common_dir: str) -> list[Path]:
    """What a kill leaves of a registration in its last moment: an empty folder under a name of ours."""
    try:
        names = sorted(os.listdir(Path(common_dir) / "worktrees"))
    except OSError:
        return []
    paths = [Path(common_dir) / "worktrees" / name for name in names if _OURS.fullmatch(name)]
    return [path for path in paths if not path.is_symlink() and path.is_dir() and not os.listdir(path)]


def remove_emptied(path: Path) -> None:
    """Remove one, if it is still empty. Under the worktree lock: `git worktree add` begins with such a folder."""
    for folder in (path, path.parent):
        try:
            os.rmdir(folder)
        except OSError:
            return


def walk(workspace: Path) -> list[FileEntry]:
    """Every file, link and special file of the workspace, its own `.git` left out; links are not followed.

    Entries named `.git` further down are reported as they are. `Unreadable` when a folder cannot be read.
    """
    found: list[FileEntry] = []
    pending: list[tuple[str, os.stat_result | None]] = [("", None)]
    while pending:
        folder, seen = pending.pop()
        try:
            fd = os.open(workspace / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if seen is not None and not os.path.samestat(os.fstat(fd), seen):
                    raise changing(folder)
                with os.scandir(fd) as entries:
                    for entry in entries:
                        name = os.path.join(folder, entry.name)
                        if name == ".git":
                            continue
                        info = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(info.st_mode):
                            pending.append((name, info))
                            if entry.name != ".git":
                                continue
                        found.append(file_entry(name, info))
            finally:
                os.close(fd)
        except OSError as error:
            if seen is not None and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise changing(folder) from None
            raise Unreadable(
                f"cannot read {folder or 'the workspace'} in the workspace: {os.strerror(error.errno or 0)}",
                expected="a readable folder",
                found=os.strerror(error.errno or 0),
            ) from None
    return sorted(found, key=lambda entry: entry.path)


def file_entry(path: str, info: os.stat_result) -> FileEntry:
    """What a status says of the file at `path`."""
    return FileEntry(
        path,
        info.st_mode,
        info.st_size,
        info.st_mtime_ns,
        info.st_ctime_ns,
        info.st_ino,
        info.st_dev,
        info.st_nlink,
    )


def changing(path: str) -> Blocked:
    """The refusal for a path that is another thing than a moment ago: what is pinned must have been there at once."""
    return Blocked(
        f"{path} changed while the workspace was read",
        detail={"path": path},
        expected="a workspace that nobody writes into",
        found="a path that changes",
        remedy="end the process that still writes there, then terminalize again",
    )


def encode_manifest(entries: list[FileEntry]) -> bytes:
    """The file manifest as JSON lines, one file a line."""
    lines = (json.dumps(msgspec.to_builtins(entry), separators=(",", ":")) for entry in entries)
    return "".join(line + "\n" for line in lines).encode("ascii")


def decode_manifest(data: bytes) -> dict[str, FileEntry]:
    """Path to entry, from `encode_manifest`."""
    entries = (msgspec.convert(json.loads(line), FileEntry) for line in data.splitlines())
    return {entry.path: entry for entry in entries}


def read_manifest(directory: Path, sha256: str | None) -> dict[str, FileEntry]:
    """The file manifest that `prepare` recorded, `UNREADABLE` when it is not the one of the journal."""
    data = run_root.read(directory / "workspace-manifest", None)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise Unreadable("the workspace manifest differs from the recorded digest", expected=str(sha256), found=found)
    return decode_manifest(data)


def operation(common_dir: str, entry: Registration) -> str | None:
    """A merge, rebase, cherry-pick or revert under way in a workspace, or None. No process."""
    from controller.checkout import operation_in_progress

    return operation_in_progress(os.path.join(common_dir, "worktrees", entry.name))
