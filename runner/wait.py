"""`wait`: until no job is running, woken by the exit of its supervisor."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from runner.job import read_job, read_state
from runner.process import open_pidfd
from runner.verdict import State

_TICK_SECONDS = 0.05


def wait(job_dirs: Sequence[Path], seconds: float) -> None:
    """Return when none of the jobs is `running`, or after `seconds`.

    A supervisor with a recorded identity wakes us by its exit, right after it has recorded the outcome. A job
    that another program records, or whose supervisor was killed, is looked at every 50 ms.
    """
    deadline = time.monotonic() + seconds
    poller = select.poll()
    watched: list[int] = []
    try:
        for job_dir in job_dirs:
            view = read_job(job_dir)
            # What cannot be told from here has no contact; such a job is looked at, too.
            if view.state is State.RUNNING and view.supervisor is not None and view.contact == "live":
                fd = open_pidfd(view.supervisor)
                if fd is not None:
                    watched.append(fd)
                    poller.register(fd, select.POLLIN)
        pending = list(job_dirs)
        while True:
            pending = [job_dir for job_dir in pending if read_state(job_dir) is State.RUNNING]
            left = deadline - time.monotonic()
            if not pending or left <= 0:
                return
            for fd, _ in poller.poll(min(left, _TICK_SECONDS) * 1000):
                poller.unregister(fd)
    finally:
        for fd in watched:
            os.close(fd)
