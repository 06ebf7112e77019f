"""What is done to a command at one of its effects: killed, signalled, refused by the kernel, written short."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection

from tests.crash import syscalls
from tests.crash.syscalls import Call
from tests.crash.watch import Effect, Watch

WHOM = ("alone", "tree", "actor", "rest")


class Counting:
    """Lets everything pass and counts the effects."""

    reads = False

    def __init__(self) -> None:
        self.count = 0
        self.hit: Effect | None = None

    def decide(self, watch: Watch, call: Call) -> None:
        """Count, ask `at` what to do, and let the call pass if it is not the one."""
        if not self.matches(watch, call):
            watch.go_on(call)
            return
        self.count += 1
        watch.count = self.count
        if not self.at(watch, call):
            watch.go_on(call)

    def matches(self, watch: Watch, call: Call) -> bool:
        """Whether the call is counted."""
        return watch.is_effect(call)

    def at(self, watch: Watch, call: Call) -> bool:
        """Do something at this effect; True when the call has been answered."""
        del watch, call
        return False


class Listing(Counting):
    """Keeps every effect in words."""

    def __init__(self) -> None:
        super().__init__()
        self.effects: list[Effect] = []

    def at(self, watch: Watch, call: Call) -> bool:
        """Note it."""
        self.effects.append(watch.effect(call))
        return False


class Kill(Counting):
    """SIGKILL just before effect `number`.

    `alone`: only the command's own process; what it started goes on. `tree`: everything of it at once. `actor`: the
    process that is about to do the effect (a git child, a supervisor). `rest`: everything but that process, which goes
    on. Nothing happens in the last two when that process is the command itself, which `alone` covers.
    """

    def __init__(self, number: int, whom: str) -> None:
        super().__init__()
        self.number = number
        self.whom = whom

    def at(self, watch: Watch, call: Call) -> bool:
        """Kill when it is this one."""
        if self.count != self.number or (self.whom in ("actor", "rest") and call.pid == watch.root):
            return False
        self.hit = watch.effect(call)
        if self.whom == "tree":
            watch.keeper.kill_everything()
            return True
        if self.whom == "rest":
            watch.keeper.kill_everything(but=call.pid)
            return False
        victim = watch.root if self.whom == "alone" else call.pid
        watch.keeper.kill(victim)
        return victim == call.pid


class Interrupt(Counting):
    """A signal to the command just before effect `number`."""

    def __init__(self, number: int, signum: signal.Signals) -> None:
        super().__init__()
        self.number = number
        self.signum = signum

    def at(self, watch: Watch, call: Call) -> bool:
        """Send it when it is this one."""
        if self.count == self.number:
            self.hit = watch.effect(call)
            try:
                os.kill(watch.root, self.signum)
            except ProcessLookupError:
                pass
        return False


class Fail(Counting):
    """The kernel refuses the `number`-th call of some names with an errno; all later ones too if `lasting`."""

    def __init__(self, names: Collection[str], number: int, code: int, *, lasting: bool) -> None:
        super().__init__()
        self.names = frozenset(names)
        self.reads = bool(self.names & syscalls.OPENS)
        self.number = number
        self.code = code
        self.lasting = lasting

    def matches(self, watch: Watch, call: Call) -> bool:
        """Calls of these names on files."""
        if call.name not in self.names:
            return False
        return call.name not in syscalls.WRITES or (watch.is_file(call) and watch.is_effect(call))

    def at(self, watch: Watch, call: Call) -> bool:
        """Refuse."""
        if self.count != self.number and not (self.lasting and self.count > self.number):
            return False
        self.hit = self.hit or watch.effect(call)
        watch.refuse(call, self.code)
        return True


class Short(Counting):
    """The `number`-th write to a file takes only its first half, as a write into a nearly full file system does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def matches(self, watch: Watch, call: Call) -> bool:
        """Plain writes of more than one byte to files."""
        return call.name == "write" and call.args[2] > 1 and watch.is_file(call)

    def at(self, watch: Watch, call: Call) -> bool:
        """Write half of it in the caller's place."""
        if self.count != self.number:
            return False
        self.hit = watch.effect(call)
        data = syscalls.memory(call.pid, call.args[1], call.args[2] // 2)
        handle = os.pidfd_open(call.pid)
        try:
            fd = syscalls.borrow(handle, int(call.args[0]))
            try:
                watch.pretend(call, os.write(fd, data))
            finally:
                os.close(fd)
        finally:
            os.close(handle)
        return True


class Cut(Counting):
    """A power cut at the `number`-th fsync of the journal: everything ends, and the bytes not synced yet are lost.

    `what` is left of them: `none`, `half`, or `zeros` (the file has its new size, its new blocks were never written).
    """

    def __init__(self, what: str, number: int) -> None:
        super().__init__()
        self.what = what
        self.number = number
        self.torn = 0
        self._synced: int | None = None

    def matches(self, watch: Watch, call: Call) -> bool:
        """Syncs of the journal."""
        return call.name == "fsync" and syscalls.target(call).endswith("/journal.jsonl")

    def at(self, watch: Watch, call: Call) -> bool:
        """End everything and take the bytes away."""
        path = syscalls.target(call)
        size = os.stat(path).st_size
        synced = size if self._synced is None else self._synced
        self._synced = size
        if self.count != self.number:
            return False
        self.hit = watch.effect(call)
        watch.keeper.kill_everything()
        kept = synced + ((size - synced) // 2 if self.what == "half" else 0)
        os.truncate(path, kept)
        if self.what == "zeros":
            os.truncate(path, size)
        self.torn = os.stat(path).st_size - synced
        return True


def parse(text: str) -> Counting:
    """A plan from its short form: `kill:tree:17`, `signal:SIGTERM:3`, `short:2`, `fail:ENOSPC:write:4[:lasting]`, `cut:half:5`."""
    kind, *words = text.split(":")
    if kind == "kill":
        return Kill(int(words[1]), words[0])
    if kind == "signal":
        return Interrupt(int(words[1]), signal.Signals[words[0]])
    if kind == "short":
        return Short(int(words[0]))
    if kind == "cut":
        return Cut(words[0], int(words[1]))
    code = int(getattr(errno, words[0]))
    return Fail(FAILING[words[1]], int(words[2]), code, lasting=words[3:] == ["lasting"])


FAILING = {
    "write": syscalls.WRITES,
    "fsync": syscalls.SYNCS,
    "open": syscalls.OPENS,
    "create": {"mkdir", "mkdirat", "link", "linkat", "rename", "renameat", "renameat2", "symlink", "symlinkat"},
    "start": syscalls.STARTS,
}

KILLS = tuple(f"kill:{whom}" for whom in WHOM)
SIGNALS = ("signal:SIGTERM", "signal:SIGINT")
FAULTS = (
    "fail:ENOSPC:write", "fail:ENOSPC:write:lasting", "fail:EIO:write", "fail:EIO:fsync", "fail:EIO:fsync:lasting",
    "fail:EMFILE:open", "fail:EROFS:create", "fail:EAGAIN:start", "short",
)  # fmt: skip
CUTS = ("cut:none", "cut:half", "cut:zeros")
SERIES = (*KILLS, *SIGNALS, *FAULTS, *CUTS)


def at(series: str, number: int) -> str:
    """The plan of a series that strikes at `number`."""
    if series.endswith(":lasting"):
        return f"{series.removesuffix(':lasting')}:{number}:lasting"
    return f"{series}:{number}"
