"""Runs a command with every effect of it, and of all that it starts, counted; at one of them something is done.

The watching process is a child subreaper: whatever is started below it is its child or its descendant until it is
gone, also after `setsid` and double forks. So it can end everything at one instant (no effect, and no new process,
passes meanwhile), and it knows from the kernel whether anything is left.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from runner.process import become_subreaper, descendants
from tests.crash import syscalls
from tests.crash.syscalls import Call

LIMIT_SECONDS = 60.0
PROGRAMS = {"controller": "controller.cli", "runner": "runner.cli", "adapters": "adapters.cli"}
_PYTHON = [sys.executable, "-P", "-m"]


class Effect(msgspec.Struct, frozen=True):
    """One effect that is about to happen: its number from 1, who does it, to what."""

    number: int
    program: str
    root: bool
    name: str
    target: str

    def __str__(self) -> str:
        return f"#{self.number} {self.program}{'' if self.root else ' (child)'}: {self.name} {self.target}"


class Plan(Protocol):
    """What to do with the calls of a command."""

    reads: bool

    def decide(self, watch: Watch, call: Call) -> None:
        """Answer the call, or end whoever waits for it."""


class Outcome(msgspec.Struct, frozen=True):
    """How a watched command ended: exit code (negative: signal), what it printed, whether the limit was reached."""

    code: int
    stdout: bytes
    stderr: bytes
    stuck: bool


class Watch:
    """One watched command; its descendants may outlive it and are served until they are gone."""

    def __init__(self, keeper: Keeper, root: int, listener: int, plan: Plan) -> None:
        self.keeper = keeper
        self.root = root
        self.listener = listener
        self.plan = plan
        self.count = 0
        self._programs: dict[int, str] = {}

    def go_on(self, call: Call) -> None:
        """Let the call be done."""
        if call.name.startswith("exec"):
            self._programs.pop(call.pid, None)
        syscalls.go_on(self.listener, call)

    def refuse(self, call: Call, code: int) -> None:
        """Let the call fail."""
        syscalls.refuse(self.listener, call, code)

    def pretend(self, call: Call, value: int) -> None:
        """Answer for the kernel."""
        syscalls.pretend(self.listener, call, value)

    def program(self, call: Call) -> str:
        """The name of the program that calls, cheaply."""
        known = self._programs.get(call.pid)
        if known is None:
            try:
                known = Path(f"/proc/{call.pid}/comm").read_text().strip()
            except OSError:
                known = "?"
            self._programs[call.pid] = known
        return known

    def is_effect(self, call: Call) -> bool:
        """Whether the call counts: not what git says to its parent through a pipe, and no byte for /dev/null."""
        if call.name not in syscalls.WRITES:
            return True
        mode = self._mode(call)
        return stat.S_ISREG(mode) or (not stat.S_ISCHR(mode) and not self.program(call).startswith("git"))

    def is_file(self, call: Call) -> bool:
        """Whether the call works on a descriptor of a regular file."""
        return stat.S_ISREG(self._mode(call))

    @staticmethod
    def _mode(call: Call) -> int:
        try:
            return os.stat(f"/proc/{call.pid}/fd/{syscalls.descriptor(call)}").st_mode
        except OSError:
            return 0

    def effect(self, call: Call) -> Effect:
        """The call in words, with the present count."""
        name = syscalls.target(call)
        return Effect(self.count, self.program(call), call.pid == self.root, call.name, name)


class Keeper:
    """Everything that runs below this process: one at a time in the foreground, orphans of earlier ones besides."""

    def __init__(self) -> None:
        become_subreaper()
        self._watches: dict[int, Watch] = {}
        self._statuses: dict[int, int] = {}

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        plan: Plan | None = None,
        limit: float = LIMIT_SECONDS,
    ) -> Outcome:
        """Run a command to its own end (its orphans may go on), under `plan` if one is given."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        self._statuses.clear()  # a pid may have been used before
        ours, theirs = socket.socketpair()
        with ours, theirs:
            root = os.fork()
            if root == 0:
                _become(argv, env, cwd, out_write, err_write, theirs if plan is not None else None, plan)
            os.close(out_write)
            os.close(err_write)
            if plan is not None:
                _, fds, _, _ = socket.recv_fds(ours, 1, 1)
                watch = Watch(self, root, fds[0], plan)
                self._watches[fds[0]] = watch
        output: dict[int, bytearray] = {out_read: bytearray(), err_read: bytearray()}
        stuck = not self._until(lambda: root in self._statuses, output, limit, root)
        if stuck:
            self.kill_everything()
            self._until(lambda: root in self._statuses, output, 5.0, root)
        for fd, data in output.items():
            os.set_blocking(fd, False)
            try:
                while chunk := os.read(fd, 65536):
                    data += chunk
            except BlockingIOError:
                pass
            os.close(fd)
        status = self._statuses.pop(root, 0)
        return Outcome(os.waitstatus_to_exitcode(status), bytes(output[out_read]), bytes(output[err_read]), stuck)

    def settle(self, seconds: float) -> bool:
        """Serve what is left until nothing runs below us any more, at most so long; whether nothing does."""
        return self._until(lambda: not self._reap(), {}, seconds)

    def survivors(self) -> list[str]:
        """The command lines of what runs below us."""
        found = []
        for identity in descendants(os.getpid()):
            try:
                words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found.append(b" ".join(words).decode("utf-8", "replace")[:200])
        return found

    def kill_everything(self, but: int | None = None) -> None:
        """SIGKILL to every process below us, at once; `but`: one that is left."""
        me = os.getpid()
        while found := [identity for identity in descendants(me) if identity.pid != but]:
            for identity in found:
                self.kill(identity.pid)
            self._reap()

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait until it is dead."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            poller.poll(2000)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def _reap(self) -> bool:
        """Take every exit status there is; whether children are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._statuses[pid] = status

    def _until(
        self, done: Callable[[], bool], output: dict[int, bytearray], seconds: float, root: int | None = None
    ) -> bool:
        """Serve calls and take output until `done`, at most so long."""
        deadline = time.monotonic() + seconds
        poller = select.poll()
        for fd in (*output, *self._watches):
            poller.register(fd, select.POLLIN)
        handle = None if root is None else os.pidfd_open(root)  # not reaped yet, so it is no other process
        if handle is not None:
            poller.register(handle, select.POLLIN)
        pause = 1
        try:
            while True:
                ready = poller.poll(pause)
                pause = 1 if ready else min(2 * pause, 20)
                for fd, event in ready:
                    self._serve(fd, event, output, poller)
                if not ready or any(fd == handle for fd, _ in ready):
                    self._reap()
                    if done():
                        return True
                if time.monotonic() > deadline:
                    return False
        finally:
            if handle is not None:
                os.close(handle)

    def _serve(self, fd: int, event: int, output: dict[int, bytearray], poller: select.poll) -> None:
        if fd in output:
            chunk = os.read(fd, 65536) if event & select.POLLIN else b""
            output[fd] += chunk
            if not chunk:
                poller.unregister(fd)
        elif fd in self._watches and event & select.POLLIN:
            call = syscalls.receive(fd)
            if call is not None:
                watch = self._watches[fd]
                watch.plan.decide(watch, call)
        elif fd in self._watches:  # nobody is left under this filter
            poller.unregister(fd)
            del self._watches[fd]
            os.close(fd)


def preload() -> None:
    """Import what the programs import, so that no child of this process has to."""
    for package in ("controller", "controller.commands", "runner", "adapters"):
        for path in sorted((Path(__file__).resolve().parents[2] / package.replace(".", "/")).glob("*.py")):
            if not path.stem.startswith("__"):
                importlib.import_module(f"{package}.{path.stem}")
    gc.collect()
    gc.freeze()


def _run_in_process(module: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Be a program of this checkout without executing an interpreter first: the same code, a fifth of the time."""
    os.environ.clear()
    os.environ.update(env)
    os.closerange(3, 1024)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as an interpreter does when it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *argv]
    sys.stdin, sys.stdout, sys.stderr = (open(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    code: object = 1
    try:
        code = importlib.import_module(module).main() or 0
    except SystemExit as ending:
        code = ending.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1 if code else 0)


def _become(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    out: int,
    err: int,
    channel: socket.socket | None,
    plan: Plan | None,
) -> None:
    """In the forked child: become the command, under the filter if there is a plan."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((null, 0), (out, 1), (err, 2)):
            os.dup2(old, new)
        if channel is not None and plan is not None:
            listener = syscalls.install(reads=plan.reads)
            socket.send_fds(channel, [b"l"], [listener])
        if argv[: len(_PYTHON)] == _PYTHON and argv[len(_PYTHON)] in PROGRAMS:
            _run_in_process(PROGRAMS[argv[len(_PYTHON)]], argv[len(_PYTHON) + 1 :], env)
        # Every other descriptor closes on exec: Python opens none that is inherited.
        os.execvpe(argv[0], list(argv), dict(env))
    finally:
        os._exit(99)
