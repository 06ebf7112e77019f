"""`result`: the declared result of a job, or any file of this user, byte for byte (section 12)."""

from __future__ import annotations

from pathlib import Path

from runner.errors import NoResult, StillRunning, Untrusted
from runner.job import read_job
from runner.private import read_owned
from runner.verdict import State


def of_path(path: str, limit: int) -> bytes:
    """The bytes of a regular file of this user, at most `limit`.

    Raises `NoResult` (exit 3) when it is missing and `Untrusted` (exit 4) when it is anything else.
    """
    try:
        return read_owned(Path(path), limit)
    except FileNotFoundError:
        raise NoResult(f"result file missing: {path}") from None


def of_job(job_dir: Path, limit: int) -> bytes:
    """The result of a done job; empty when none was declared.

    Raises `StillRunning` (exit 2), `NoResult` (exit 3: settled but not done, or file missing) or `Untrusted`
    (exit 4).
    """
    view = read_job(job_dir)
    if view.state is State.UNREADABLE:
        raise Untrusted(job_dir, "a readable job directory", view.problem or "an unreadable state")
    if view.state is State.RUNNING:
        raise StillRunning("job is still running", remedy="wait for it, or reap it")
    if view.state is not State.DONE:
        raise NoResult(f"job is not done but {view.state}", found=view.reason or "")
    if view.meta is None:
        raise Untrusted(job_dir, "a readable meta.json", view.problem or "none")
    return b"" if view.meta.result_path is None else of_path(view.meta.result_path, limit)
