"""Running one command in the foreground so that nothing of it outlives the call, whoever is killed.

Three processes: the *caller* (this one) pumps the output and decides; the *supervisor* (`runner.warden`) is
a fork of it, adopts every orphan and ends the tree; the *child* runs the command. Each of the first two ends
the tree when the other dies. Public reports of what happens otherwise: stablyai/orca#10004 (descendants
outlive a timeout), coalesce-labs/catalyst#331 (a hung verification), anthropics/claude-code#61416 (a held
pipe).
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from runner import launch, warden
from runner.descriptors import Descriptors
from runner.errors import Interrupted, Usage
from runner.process import (
    KILL_SECONDS,
    ProcessIdentity,
    become_subreaper,
    children,
    identify,
    is_alive,
    kill_all,
    marked,
    poll_milliseconds,
    signal_identity,
    with_descendants,
)
from runner.signals import Signals

Sink = Callable[[bytes], None]

SUPERVISOR_DIED = "supervisor died"

_TICK_SECONDS = 0.05
_PATIENCE_SECONDS = 1.0
_CHUNK = 1 << 16
_LAST_BYTES = 1 << 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Supervisors of this process, also of other threads: they are no orphans.
_wardens: set[int] = set()


class Outcome(msgspec.Struct, frozen=True):
    """How a supervised command ended.

    - `exit_code` or `signal` is the child's (both None when unknown).
    - `timed_out` is only ever our own timeout, never the child's own exit 124.
    - `stopped` is the reason given by `should_stop`, or says that the supervisor was made to end.
    - `launch_error`: why nothing was executed (`exit_code` 127 not found, 126 otherwise).
    - `survivors`: processes that still ran when the child ended by itself, or that had to be killed after
      the grace; all of them have been ended.
    - `duration_seconds` counts from the start of execution.
    """

    exit_code: int | None
    signal: int | None
    timed_out: bool
    stopped: str | None
    launch_error: str | None
    survivors: tuple[ProcessIdentity, ...]
    duration_seconds: float


def run_supervised(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: Path | None = None,
    timeout: float | None,
    grace: float = 3.0,
    marker: tuple[str, str],
    on_stdout: Sink | None,
    on_stderr: Sink | None,
    merge_stderr: bool = False,
    on_started: Callable[[ProcessIdentity, ProcessIdentity], None] | None = None,
    should_stop: Callable[[], str | None] | None = None,
    before_exec: Callable[[], None] | None = None,
) -> Outcome:
    """Run `argv` in `cwd` with exactly the environment `env`; return when no process of it is left.

    - `stdin` None is /dev/null, else a regular file. The child has a session of its own and inherits no
      other descriptor.
    - `timeout` (None: none) and `grace` (between SIGTERM and SIGKILL) are seconds.
    - `marker` (name, value) is added to the environment, so that `process.marked` finds the tree when both
      the caller and the supervisor were killed. The value must be unique to this run.
    - `on_stdout`, `on_stderr` get the output as it comes, in the caller; None sends it to /dev/null.
      `merge_stderr` sends both streams to `on_stdout` in the order written. A sink that raises ends the
      tree, then its exception propagates.
    - `on_started(supervisor, child)` is called before anything is executed; if it raises, nothing ever is.
    - `should_stop` is asked at least every 50 ms; a text ends the tree and becomes `Outcome.stopped`.
    - `before_exec` runs in the child just before exec; if it raises, nothing is executed.

    SIGTERM, SIGINT or SIGHUP to the caller ends the tree and raises `Interrupted` (in the main thread; other
    threads use `should_stop`). Raises `Usage` for an empty `argv` or an unusable `stdin`. The calling process
    stays a child subreaper.
    """
    if not argv:
        raise Usage("nothing to run", expected="a command", found="an empty argument list")
    become_subreaper()
    with Descriptors() as fds, Signals(_SIGNALS) as signals:
        stdin_fd = -1 if stdin is None else fds.add(_open_stdin(stdin))
        sinks: dict[int, Sink] = {}
        stdout_fd = stderr_fd = -1
        if on_stdout is not None:
            read_fd, stdout_fd = fds.pipe()
            sinks[read_fd] = on_stdout
        if merge_stderr:
            stderr_fd = stdout_fd
        elif on_stderr is not None:
            read_fd, stderr_fd = fds.pipe()
            sinks[read_fd] = on_stderr
        orders_read, orders_write = fds.pipe()
        report_read, report_write = fds.pipe()
        command = launch.Command(
            argv=list(argv),
            env={**env, marker[0]: marker[1]},
            cwd=cwd,
            stdin=stdin_fd,
            stdout=stdout_fd,
            stderr=stderr_fd,
            before_exec=before_exec,
        )
        orders = warden.Orders(command, timeout, grace, orders_read, report_write)
        try:
            supervisor = _fork_warden(orders)
        except OSError as fault:
            message = f"cannot start a process: {fault.strerror}"
            return Outcome(launch.NOT_EXECUTABLE, None, False, None, message, (), 0.0)
        fds.close(stdin_fd, stdout_fd, stderr_fd, orders_read, report_write)
        request = _Request(marker, timeout, grace, on_started, should_stop)
        caller = _Caller(request, supervisor, sinks, fds, orders_write, report_read, signals)
        outcome = caller.run()
    # Also a signal of the last moment counts: the handlers are the caller's again, it would be lost.
    if signals.received:
        raise Interrupted(signals.received[0])
    if caller.fault is not None:
        raise caller.fault
    return outcome


class _Request(msgspec.Struct, frozen=True):
    marker: tuple[str, str]
    timeout: float | None
    grace: float
    on_started: Callable[[ProcessIdentity, ProcessIdentity], None] | None
    should_stop: Callable[[], str | None] | None


class _Caller:
    """The caller's side of one run."""

    def __init__(
        self,
        request: _Request,
        supervisor: int,
        sinks: dict[int, Sink],
        fds: Descriptors,
        orders_fd: int,
        report_fd: int,
        signals: Signals,
    ) -> None:
        self._request = request
        self._supervisor = supervisor
        self._identity = identify(supervisor)
        self._sinks = sinks
        self._fds = fds
        self._orders_fd = orders_fd
        self._report_fd = report_fd
        self._reports = b""
        self._signals = signals
        self._child: ProcessIdentity | None = None
        self._started = time.monotonic()
        # When the supervisor must have answered, whatever was done to it.
        self._patience = float("inf")
        self._ending = False
        self._stopped: str | None = None
        self.fault: BaseException | None = None

    def run(self) -> Outcome:
        try:
            finished = self._until_finished()
            duration = time.monotonic() - self._started
            self._drain()
            return self._outcome(finished, duration)
        finally:
            # End of file on either pipe lets the supervisor go on to its end, whatever brought us here.
            self._fds.close(self._orders_fd, self._report_fd)
            _reap(self._supervisor)
            _wardens.discard(self._supervisor)

    def _until_finished(self) -> warden.Finished:
        poller = select.poll()
        for fd in (*self._sinks, self._report_fd, self._signals.fd):
            os.set_blocking(fd, False)
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(self._poll_milliseconds())}
            for fd in ready & self._sinks.keys():
                if self._pump(fd) == 0:
                    poller.unregister(fd)
            if self._signals.fd in ready and self._signals.drain():
                self._end()
            if self._report_fd in ready:
                for report in self._hear():
                    if isinstance(report, warden.Finished):
                        return report
                    self._release(report.child)
            self._ask_to_stop()
            if time.monotonic() > self._patience and self._identity is not None:
                # It was stopped, or is stuck: its orphans become ours.
                self._patience = float("inf")
                signal_identity(self._identity, signal.SIGKILL)

    def _poll_milliseconds(self) -> float | None:
        ticks = [] if self._request.should_stop is None or self._ending else [_TICK_SECONDS]
        if self._patience != float("inf"):
            ticks.append(self._patience - time.monotonic())
        return poll_milliseconds(min(ticks)) if ticks else None

    def _hear(self) -> list[warden.Held | warden.Finished]:
        data = os.read(self._report_fd, _CHUNK)
        if not data:
            return [self._rescue()]
        *lines, self._reports = (self._reports + data).split(b"\n")
        return [msgspec.json.decode(line, type=warden.Report) for line in lines]

    def _release(self, child: ProcessIdentity | None) -> None:
        self._child = child
        if child is None or self._identity is None or self._ending:
            self._end()
            return
        if self._request.on_started is not None:
            try:
                self._request.on_started(self._identity, child)
            except BaseException as fault:
                self._fail(fault)
                return
        self._started = time.monotonic()
        if self._request.timeout is not None:
            self._patience = self._started + self._request.timeout + self._slack()
        try:
            os.write(self._orders_fd, warden.GO)
        except BrokenPipeError:
            # The supervisor was killed; the next read of its reports says so.
            pass

    def _slack(self) -> float:
        return self._request.grace + KILL_SECONDS + _PATIENCE_SECONDS

    def _end(self) -> None:
        """Order the end of the tree."""
        if not self._ending:
            self._ending = True
            self._patience = min(self._patience, time.monotonic() + self._slack())
            self._fds.close(self._orders_fd)

    def _fail(self, fault: BaseException) -> None:
        if self.fault is None:
            self.fault = fault
        self._end()

    def _ask_to_stop(self) -> None:
        if self._request.should_stop is None or self._ending:
            return
        try:
            reason = self._request.should_stop()
        except BaseException as fault:
            self._fail(fault)
            return
        if reason is not None:
            self._stopped = reason
            self._end()

    def _pump(self, fd: int) -> int:
        """Hand what is there to the sink of `fd`; the number of bytes, 0 at the end of the stream."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return -1
        # After a fault the rest is only taken off the pipe, so that nobody blocks on it while being ended.
        if data and self.fault is None:
            try:
                self._sinks[fd](data)
            except BaseException as fault:
                self._fail(fault)
        return len(data)

    def _drain(self) -> None:
        # Every writer is gone, so this ends; bounded all the same for one that nobody could kill.
        for fd in self._sinks:
            taken = 0
            while taken < _LAST_BYTES and (size := self._pump(fd)) > 0:
                taken += size

    def _rescue(self) -> warden.Finished:
        """The supervisor was killed: end its tree from here."""
        ended = kill_all(self._orphans, self._request.grace)
        status: int | None = None
        for identity in {*ended, *([] if self._child is None else [self._child])}:
            raw = _reap(identity.pid, os.WNOHANG)
            if identity == self._child:
                status = raw
        timeout = self._request.timeout
        timed_out = timeout is not None and time.monotonic() - self._started >= timeout
        survivors = tuple(identity for identity in ended if identity != self._child)
        return warden.Finished(status, timed_out, SUPERVISOR_DIED, None, survivors)

    def _orphans(self) -> list[ProcessIdentity]:
        roots = marked(*self._request.marker)
        if self._child is not None and is_alive(self._child):
            roots.append(self._child)
        # Handed to us by the kernel. Our own children share our session or are supervisors.
        mine = os.getsid(0)
        roots += [i for i, session in children(os.getpid()) if session != mine and i.pid not in _wardens]
        # Nothing that is older than the run belongs to it.
        earliest = 0 if self._identity is None else self._identity.start_time
        return [identity for identity in with_descendants(roots) if identity.start_time >= earliest]

    def _outcome(self, finished: warden.Finished, duration: float) -> Outcome:
        code = death = None
        if finished.failure is not None:
            code = finished.failure.exit_code
        elif finished.status is not None and os.WIFSIGNALED(finished.status):
            death = os.WTERMSIG(finished.status)
        elif finished.status is not None:
            code = os.WEXITSTATUS(finished.status)
        return Outcome(
            exit_code=code,
            signal=death,
            timed_out=finished.timed_out,
            stopped=self._stopped or finished.stopped,
            launch_error=None if finished.failure is None else finished.failure.message,
            survivors=finished.survivors,
            duration_seconds=duration,
        )


def _fork_warden(orders: warden.Orders) -> int:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            warden.serve(orders, mask)
        _wardens.add(pid)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reap(pid: int, options: int = 0) -> int | None:
    """The raw wait status of our child `pid`; None when it is no child of ours or has not exited."""
    try:
        reaped, status = os.waitpid(pid, options)
    except ChildProcessError:
        return None
    return status if reaped == pid else None


def _open_stdin(path: Path) -> int:
    try:
        # A FIFO would block the open until somebody writes.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as fault:
        raise Usage(f"cannot open {path} as standard input: {fault.strerror}") from fault
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Usage(f"cannot use {path} as standard input", expected="a regular file")
    return fd
