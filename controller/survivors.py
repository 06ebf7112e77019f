"""Processes that a verification left when its controller was killed: found by proof, ended, never guessed at."""

from __future__ import annotations

from collections.abc import Iterator

from controller.state import VerificationProcess
from runner.process import ProcessIdentity

MARKER = "UNIT_WORKSPACE_VERIFICATION"
"""The environment variable that every process of a verification carries, with a value of its own."""


def end_survivors(process: VerificationProcess) -> list[int]:
    """End every process of a verification whose controller is gone; the pids that were ended.

    Its own supervisor does this at once when the controller dies; this covers a killed supervisor too. Only processes
    with the recorded identity, or with the verification's marker in their environment, are signalled.
    """
    from runner.process import descendants, is_alive, kill_all, marked, self_identity, wait_gone

    leaders = [
        ProcessIdentity(pid=i.pid, start_time=i.start_time, boot_id=i.boot_id)
        for i in (process.supervisor, process.child)
    ]
    me = self_identity()

    def find() -> Iterator[ProcessIdentity]:
        for leader in leaders:
            if is_alive(leader):
                yield from descendants(leader.pid)
                yield leader
        yield from (identity for identity in marked(MARKER, process.marker) if identity != me)

    wait_gone(leaders[0], 5.0)
    return sorted({identity.pid for identity in kill_all(find, 2.0)})
