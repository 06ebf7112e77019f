"""`reap`: end a job and leave it with a terminal word, whether its supervisor lives or not (section 12).

Only processes whose identity is proven are signalled: by the recorded identity (pid, start time, boot id), by
being below such a process or in its session, or by the job's own mark in their environment. A bare number in
a `pid` file of another program proves nothing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from runner import verdict
from runner.errors import RunnerError, Untrusted
from runner.job import JOB_ID_VARIABLE, JobView, publish, read_job, read_state, result_of
from runner.limits import Supervision
from runner.process import (
    ProcessIdentity,
    is_alive,
    kill_all,
    marked,
    require_seen,
    session_members,
    signal_identity,
    wait_gone,
    with_descendants,
)
from runner.verdict import State

_LONGEST_GRACE = 1.0
_RECORD_SECONDS = 0.5
_PAUSE_SECONDS = 0.01


def reap(job_dir: Path, *, gone: bool = False) -> State:
    """End the job in `job_dir`; its state afterwards. Nothing happens to one that has ended or never started.

    `gone`: a person says that the place it ran in (a container, say) is no more; where we would refuse because
    of that, its end is recorded instead and nothing signalled.

    Raises `Untrusted` (exit 4) for a directory whose state cannot be read, `Unseen` (exit 1) when the job's
    processes cannot be told from here, `RunnerError` for a copy of a live job's directory.
    """
    view = read_job(job_dir)
    if view.state is State.UNREADABLE:
        raise Untrusted(job_dir, "a readable job directory", view.problem or "an unreadable state")
    if view.state is not State.RUNNING:
        return view.state
    try:
        _require_ours_to_end(view)
    except RunnerError:
        if not gone:
            raise
        publish(job_dir, verdict.of_reap(result_of(view.meta), worker_was_alive=False))
        return read_state(job_dir)
    limits = view.meta.supervision if view.meta is not None else Supervision()
    grace = min(limits.grace, _LONGEST_GRACE)
    supervisor = view.supervisor
    # What is classified is how the worker was found, not how our signals left it.
    worker_was_alive = _worker_alive(view)
    asked = supervisor is not None and signal_identity(supervisor, signal.SIGTERM)
    if supervisor is not None and asked and _recorded(job_dir, supervisor, grace):
        return read_state(job_dir)
    ended = kill_all(lambda: _tree(view), grace)
    if supervisor is not None and asked:
        _recorded(job_dir, supervisor, _RECORD_SECONDS)
    survivors = tuple(identity for identity in ended if identity != view.worker)
    publish(job_dir, verdict.of_reap(result_of(view.meta), worker_was_alive=worker_was_alive), survivors)
    if supervisor is not None and not wait_gone(supervisor, _RECORD_SECONDS):
        # Stopped or stuck; its job is over and recorded.
        signal_identity(supervisor, signal.SIGKILL)
    return read_state(job_dir)


def _require_ours_to_end(view: JobView) -> None:
    """Refuse what cannot be seen from here, and to end a job that lives by way of a copy of its directory."""
    if view.processes is None:
        return
    require_seen(view.processes.boot_id, view.processes.pid_namespace)
    if view.processes.job_dir_inode is None:
        return
    here = os.lstat(view.job_dir)
    found = (here.st_dev, here.st_ino)
    recorded = (view.processes.job_dir_device, view.processes.job_dir_inode)
    if found == recorded:
        return
    if _tree(view) or (view.supervisor is not None and is_alive(view.supervisor)):
        raise RunnerError(
            f"{view.job_dir} is a copy, and the job that it is a copy of still runs",
            expected=f"device and inode {recorded}",
            found=f"{found}",
            remedy="reap that job in the directory that it was started in, or wait for its end",
        )


def _recorded(job_dir: Path, supervisor: ProcessIdentity, seconds: float) -> bool:
    """Wait for the supervisor to record the outcome; whether it did."""
    deadline = time.monotonic() + seconds
    while read_state(job_dir) is State.RUNNING:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if wait_gone(supervisor, min(left, _PAUSE_SECONDS)):
            return read_state(job_dir) is not State.RUNNING
    return True


def _worker_alive(view: JobView) -> bool:
    if view.worker is not None:
        return is_alive(view.worker)
    return bool(_marked(view))


def _tree(view: JobView) -> list[ProcessIdentity]:
    """Every live process of the job but its supervisor."""
    roots = _marked(view)
    if view.worker is not None and is_alive(view.worker):
        # While its leader lives, the session is the one that the worker made.
        roots += [view.worker, *session_members(view.worker.pid)]
    return [identity for identity in with_descendants(roots) if identity != view.supervisor]


def _marked(view: JobView) -> list[ProcessIdentity]:
    # The directory's name, not what `meta.json` says: that may be anybody's id.
    found = marked(JOB_ID_VARIABLE, Path(view.job_dir).name)
    return [identity for identity in found if identity != view.supervisor]
