"""Ending everything below a supervisor, with certainty.

For a process that is a child subreaper and has exactly one child of its own making, the *leader*. Whatever
the leader starts, also through `setsid` and double forks, is below the supervisor or handed to it as an
orphan. So the supervisor knows from the kernel that nothing is left: `wait` says that it has no children.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import msgspec

from runner.process import KILL_SECONDS, ProcessIdentity, census, signal_identity

SETTLE_SECONDS = 0.05
"""How long helpers may take to end by themselves after the leader did, before they count as survivors."""

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


class Ended(msgspec.Struct, frozen=True):
    """What became of a tree.

    `status` is the leader's raw wait status (None: it cannot be ended, as in uninterruptible sleep).
    `survivors`: when the leader ended by itself, what still ran then; when it was made to end, what ran on
    through the grace period and had to be killed.
    """

    status: int | None
    survivors: tuple[ProcessIdentity, ...]


class Tree:
    """The processes below the calling supervisor; `leader` is the pid of its one own child."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._reaped = False
        self._status: int | None = None

    def exited(self) -> bool:
        """Whether the leader has exited; orphans that exited are reaped on the way.

        The leader itself stays unreaped until `end`: so long neither its pid nor its group is recycled.
        """
        while not self._reaped:
            peeked = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if peeked is None:
                return False
            if peeked.si_pid == self._leader:
                return True
            os.waitpid(peeked.si_pid, 0)
        return True

    def end(self, grace: float, wait: Callable[[float], None]) -> Ended:
        """End the whole tree: SIGTERM to each process, `grace` seconds for all of them, then SIGKILL.

        The grace holds for grandchildren too when the leader has exited already (launcher section 15 W30).
        `wait(seconds)` passes the time and may return early. Bounded by `grace` + `KILL_SECONDS`.
        """
        by_itself = self.exited()
        if by_itself:
            self._settle(wait)
        at_exit = self._live() if by_itself else []
        told: set[ProcessIdentity] = set()
        forced: dict[ProcessIdentity, None] = {}
        started = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            live = self._live()
            if not live and self._reap_all():
                break
            elapsed = time.monotonic() - started
            if elapsed > grace + KILL_SECONDS:
                forced.update(dict.fromkeys(live))
                break
            if elapsed < grace:
                for identity in live:
                    if identity not in told:
                        signal_identity(identity, signal.SIGTERM)
                told.update(live)
            else:
                forced.update(dict.fromkeys(live))
                self._kill(live)
            wait(min(pause, max(grace - elapsed, _FIRST_PAUSE)))
            pause = min(2 * pause, _LONGEST_PAUSE)
        survivors = at_exit if by_itself else [i for i in forced if i.pid != self._leader]
        return Ended(self._status, tuple(survivors))

    def kill(self) -> Ended:
        """SIGKILL to the leader's group: all that can be done where processes cannot be listed."""
        self._kill([])
        return Ended(None, ())

    def _settle(self, wait: Callable[[float], None]) -> None:
        # A `tee` or a pipe reader ends right after its writer and must not lose its last bytes to SIGTERM.
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._live() and time.monotonic() < deadline:
            wait(_FIRST_PAUSE)

    def _live(self) -> list[ProcessIdentity]:
        live, dead = census(os.getpid())
        for pid in dead:
            if pid != self._leader:
                # A zombie that somebody traces cannot be reaped yet: never block on one.
                os.waitpid(pid, os.WNOHANG)
        return live

    def _kill(self, live: list[ProcessIdentity]) -> None:
        if not self._reaped:
            # One signal to the group is atomic, so a chain of forks inside it cannot run ahead of us. The
            # leader is unreaped, hence the group id cannot mean anybody else.
            try:
                os.killpg(self._leader, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        for identity in live:
            signal_identity(identity, signal.SIGKILL)

    def _reap_all(self) -> bool:
        """Reap whatever has exited; True when the kernel says that no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._leader:
                self._reaped = True
                self._status = status
