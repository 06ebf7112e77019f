"""Locks: the run's lock, the repository's worktree lock, and the integration lock file of a branch (section 9)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from controller import run_root
from controller.errors import Blocked, NotFound, Refused, Unreadable
from controller.state import Run
from runner import private

DEFAULT_WAIT = 10.0


@contextmanager
def held(path: Path, *, wait: float, what: str) -> Iterator[int]:
    """Hold an flock on a private lock file; yields its descriptor so that git children can hold it too.

    The kernel frees it when the last holder dies: a killed controller's git keeps it until git has ended. Nothing is
    ever stolen by age (ComposioHQ AO#1308). Raises `Refused` when another holder does not let go within `wait` seconds.
    """
    from filelock import FileLock, Timeout

    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Unreadable(f"lock file {path} is not a regular file", expected="a private file", found="a link or folder")
    if path.exists():
        with run_root.trusted():
            private.read_private(path, None)
    if not path.parent.is_dir():  # FileLock would make it: a run that `gc` has just taken away must not come back
        raise _removed(path, what)
    lock = FileLock(path, timeout=wait, mode=0o600, thread_local=False)
    try:
        lock.acquire(poll_interval=0.02)
        fd = lock._context.lock_file_fd
        if fd is None:  # pragma: no cover - filelock always has a descriptor while it holds the lock
            raise Unreadable(f"lock {path} has no descriptor")
        if not os.path.lexists(path) or not os.path.samestat(os.fstat(fd), os.lstat(path)):
            lock.release(force=True)
            raise _removed(path, what)
    except FileNotFoundError:
        raise _removed(path, what) from None
    except Timeout:
        holder = _holder(path)
        raise Refused(
            f"{what} is in use by another command",
            detail={"reason": "busy", "lock": str(path), "holder": holder},
            expected=f"the lock within {wait:g} s",
            found=holder or "another process holds it",
            remedy="wait for the other command to end, then try again (or pass --wait-lock)",
        ) from None
    except OSError as error:
        raise run_root.disk_error(error) from None
    try:
        if os.stat(path).st_mode & 0o777 != 0o600:
            os.chmod(path, 0o600)
        yield fd
    finally:
        lock.release(force=True)


def _removed(path: Path, what: str) -> NotFound:
    return NotFound(
        f"{what} was removed meanwhile",
        expected=str(path),
        found="nothing" if not path.exists() else "another one",
        remedy="`runs` lists what is there",
    )


def is_held(path: Path) -> bool:
    """Whether another process holds an flock on a lock file at this moment; never waits, never creates the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _holder(path: Path) -> str | None:
    """Who has a lock file open, from /proc; only to explain, never to decide.

    /proc/locks names only who took the lock, which a killed controller's git child goes on to hold.
    """
    mine = str(os.getpid())
    try:
        wanted = os.stat(path)
        for pid in sorted(name for name in os.listdir("/proc") if name.isdecimal() and name != mine):
            with suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), wanted):
                        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                        return f"pid {pid}: " + " ".join(os.fsdecode(word) for word in argv if word)[:200]
    except OSError:
        return None
    return None


def worktree_lock_path(root: Path, common_dir: str) -> Path:
    """The lock that serialises `git worktree add/remove` on one repository (claude-code#47266)."""
    return root / run_root.LOCKS / run_root.lock_name("worktree", os.path.realpath(common_dir))


def integration_lock_path(root: Path, run: Run) -> Path:
    """The lock file of the run's branch; one holder a branch and runs root."""
    key = f"{run.repository.identity_digest}\0{run.branch.ref}"
    return root / run_root.LOCKS / run_root.lock_name("integration", key)


def new_nonce() -> str:
    """A lock token: 48 hex digits."""
    return secrets.token_hex(24)


def content(run: Run, directory: Path, unit_id: str, nonce: str, created_at: str) -> bytes:
    """The bytes of an integration lock file; `journal` names the run that it belongs to (section 18 row 16)."""
    value = {
        "branch_ref": run.branch.ref,
        "created_at": created_at,
        "journal": str(directory / run_root.JOURNAL),
        "nonce": nonce,
        "repository": run.repository.identity_digest,
        "run_id": run.run_id,
        "unit_id": unit_id,
    }
    return json.dumps(value, sort_keys=True).encode("ascii") + b"\n"


def read(path: Path) -> dict[str, Any] | None:
    """The holder that an integration lock file names, None when there is no file; `UNREADABLE` when malformed."""
    try:
        with run_root.trusted():
            data = private.read_private(path, 64 * 1024)
    except Blocked as error:
        if error.detail.get("errno") == 2:
            return None
        raise
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    keys = ("branch_ref", "nonce", "repository", "run_id", "unit_id")
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in keys):
        raise Unreadable(f"integration lock {path} is not a lock record", expected="JSON with the holder", found="else")
    if not re.fullmatch(r"[0-9a-f]{48}", value["nonce"]):
        raise Unreadable(f"integration lock {path} has a malformed nonce", found=repr(value["nonce"])[:80])
    return value


def is_ours(holder: dict[str, Any], run: Run, unit_id: str, nonce: str) -> bool:
    """Whether a lock file names exactly this run, unit, branch and nonce."""
    return bool(
        holder["run_id"] == run.run_id
        and holder["unit_id"] == unit_id
        and holder["nonce"] == nonce
        and holder["branch_ref"] == run.branch.ref
        and holder["repository"] == run.repository.identity_digest
    )


def holder_is_gone(holder: dict[str, Any]) -> bool:
    """Whether the run that a foreign lock names has no journal any more, so that nothing can ever release it."""
    journal = holder.get("journal")
    return isinstance(journal, str) and os.path.isabs(journal) and not os.path.lexists(journal)


def require_token(run: Run, unit_id: str, token: str, root: Path) -> None:
    """The run holds the integration lock in this unit's name with this token, on disk too."""
    lock = run.lock
    if lock is None or lock.unit_id != unit_id or lock.nonce != token or lock.phase == "intent":
        raise Refused(
            "the lock token is not the one that this unit holds",
            detail={"unit_id": unit_id},
            expected="the lock_token that integration-acquire returned",
            found="no lock held" if lock is None else f"lock held for {lock.unit_id}",
            remedy="integration-acquire (with --resume if the run already holds it)",
        )
    if lock.phase != "held":
        raise Refused("the integration lock is being released", expected="phase held", found=lock.phase)
    path = integration_lock_path(root, run)
    holder = read(path)
    if holder is None or not is_ours(holder, run, unit_id, token):
        raise Blocked(
            "the integration lock file is missing or names another holder",
            detail={"lock": str(path)},
            expected=f"{run.run_id}/{unit_id}",
            found="missing" if holder is None else f"{holder['run_id']}/{holder['unit_id']}",
            remedy="run `resume --run-id`",
        )
