"""The detached supervisor of one job (section 12, with rows 17 and 18 of section 18).

A grandchild of `start` in a session of its own. It takes the worker's output off a pipe into `out.log`, so
that the cap holds as bytes arrive, watches the limits, ends the whole tree and records how the job ended. It
waits for events; nothing is found out by a slow poll.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from runner import launch, verdict
from runner.descriptors import close_all_but, null_standard_streams, pipe
from runner.errors import RunnerError, printable
from runner.job import LOG, Meta, publish, result_of, write_processes
from runner.private import write_all
from runner.process import ProcessIdentity, become_subreaper, poll_milliseconds, self_identity
from runner.signals import Signals
from runner.tree import Ended, Tree
from runner.verdict import State, Verdict

_RESULT_TICK_SECONDS = 0.02
_CHUNK = 1 << 16
_PIPE_BYTES = 1 << 20
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 5.0
_RETRY_SECONDS = 24 * 3600.0
_READY = b"ready\n"


def detach(job_dir: Path, meta: Meta, env: Mapping[str, str]) -> None:
    """Start the supervisor of `job_dir` and return once its `pid` record is durable.

    Raises `RunnerError` when nothing was started.
    """
    ready_read, ready_write = pipe()
    try:
        middle = os.fork()
    except OSError as fault:
        raise _not_detached(fault.strerror or "fork failed") from fault
    if middle == 0:
        # The supervisor's parent ends at once: init, or a subreaper above us, adopts it.
        try:
            if os.fork() == 0:
                _Supervisor(job_dir, meta, env, ready_write).serve()
        finally:
            os._exit(0)
    os.close(ready_write)
    os.waitpid(middle, 0)
    with open(ready_read, "rb") as file:
        answer = file.readline()
    if answer != _READY:
        raise _not_detached(answer.decode("utf-8", "replace").strip() or "the supervisor did not start")


def _not_detached(found: str) -> RunnerError:
    return RunnerError("detach failed, nothing was started", found=found, remedy="mend that and start again")


class _Supervisor:
    """The supervisor process; `serve` is its whole life."""

    def __init__(self, job_dir: Path, meta: Meta, env: Mapping[str, str], ready_fd: int) -> None:
        self._job_dir = job_dir
        self._meta = meta
        self._limits = meta.supervision
        self._env = env
        self._ready_fd = ready_fd
        self._poller = select.poll()
        self._logged = 0
        # Decided while output was taken: the log is full.
        self._log_verdict: Verdict | None = None
        self._log_lost = 0
        self._log_problem = ""

    def serve(self) -> NoReturn:
        """Start the worker, watch it, end its tree, record how it ended, exit."""
        try:
            # Nothing of the command that forked us may be finalized here: descriptor numbers are reused.
            gc.freeze()
            os.setsid()
            close_all_but({self._ready_fd})
            null_standard_streams()
            become_subreaper()
            caught = (signal.SIGCHLD, signal.SIGTERM)
            ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE)
            with Signals(caught, ignored, force=True) as self._signals:
                self._start()
                self._finish(self._watched())
        except Exception as fault:
            # `start` still listens if the worker was not let go; its gate closes when we exit.
            self._answer(printable(f"{type(fault).__name__}: {fault}").encode())
        finally:
            os._exit(0)

    def _start(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._log_fd = os.open(self._job_dir / LOG, flags)
        self._output, output_write = pipe()
        _widen(self._output)
        os.set_blocking(self._output, False)
        command = launch.Command(
            argv=self._meta.worker_argv,
            env=self._env,
            stdout=output_write,
            stderr=output_write,
            # The worker holds a reading end, too: should we be killed, SIGPIPE does not kill it with its work
            # unsaved. It goes on until it ends or is reaped.
            keep=(self._output,),
        )
        self._gate = launch.fork_gated(command)
        os.close(output_write)
        self._tree = Tree(self._gate.pid)
        worker = self._gate.identity()
        if worker is None:
            raise RunnerError("the worker was killed before it started")
        os.chdir("/")
        write_processes(self._job_dir, self_identity(), worker, os.getpgrp())
        self._answer(_READY)
        self._began = self._last_output = time.monotonic()

    def _answer(self, line: bytes) -> None:
        if self._ready_fd < 0:
            return
        try:
            write_all(self._ready_fd, line)
        except BrokenPipeError:
            # `start` was killed meanwhile; the job goes on.
            pass
        os.close(self._ready_fd)
        self._ready_fd = -1

    def _watched(self) -> Verdict | None:
        """As `_watch`; a fault of ours, too, is a reason to end the worker, never to leave it to itself."""
        try:
            return self._watch()
        except Exception as fault:
            return verdict.supervision_failed(fault)

    def _watch(self) -> Verdict | None:
        """Let the worker go; until it ends by itself (None) or must be ended (why)."""
        self._gate.open()
        self._poller.register(self._output, select.POLLIN)
        self._poller.register(self._signals.fd, select.POLLIN)
        while True:
            self._pass_time(self._seconds_to_next_limit())
            if self._tree.exited():
                return None
            due = self._due(time.monotonic())
            if due is not None:
                return due

    def _due(self, now: float) -> Verdict | None:
        if signal.SIGTERM in self._signals.received:
            return verdict.REAPED
        if self._log_verdict is not None:
            return self._log_verdict
        result = result_of(self._meta)
        if result.oversize:
            return verdict.result_over(result)
        idle = self._limits.idle
        if idle is not None and now - self._last_output >= idle:
            return verdict.idle_expired(idle)
        if now - self._began >= self._limits.hard:
            return verdict.hard_expired(self._limits.hard)
        return None

    def _seconds_to_next_limit(self) -> float:
        now = time.monotonic()
        limits = [self._began + self._limits.hard - now]
        if self._limits.idle is not None:
            limits.append(self._last_output + self._limits.idle - now)
        if self._meta.result_path is not None:
            # Only the size of the result is found out by looking; all else is an event.
            limits.append(_RESULT_TICK_SECONDS)
        return min(limits)

    def _pass_time(self, seconds: float) -> None:
        """Wait for output, a signal, or `seconds`; take what output is there."""
        ready = {fd for fd, _ in self._poller.poll(poll_milliseconds(seconds))}
        if self._output in ready and self._pump() == 0:
            self._poller.unregister(self._output)
        self._signals.drain()

    def _pump(self) -> int:
        """Move one chunk from the worker into the log; its size, 0 at the end, -1 when there is none now."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return -1
        if data:
            self._last_output = time.monotonic()
            self._log(data)
        return len(data)

    def _log(self, data: bytes) -> None:
        if self._log_verdict is not None:
            return
        room = memoryview(data)[: self._limits.log_max - self._logged]
        if len(room) < len(data):
            self._log_verdict = verdict.log_over(self._limits.log_max)
        try:
            while room:
                size = os.write(self._log_fd, room)
                self._logged += size
                room = room[size:]
        except OSError as fault:
            # Work that is paid for does not end for want of room for its messages.
            self._log_lost += len(room)
            self._log_problem = fault.strerror or "unknown error"

    def _finish(self, cause: Verdict | None) -> None:
        try:
            ended = self._tree.end(self._limits.grace, self._pass_time)
            taken = 0
            while taken < _PIPE_BYTES and (size := self._pump()) > 0:
                taken += size
        except Exception as fault:
            cause = cause or verdict.supervision_failed(fault)
            ended = self._end_at_once()
        # A full log is a failure also when the worker ended before we came to end it: one rule, no race.
        cause = cause or self._log_verdict
        if cause is None:
            problem = None if ended.status is None else self._gate.failure()
            cause = verdict.of_exit(ended.status, problem, result_of(self._meta))
            if cause.state is not State.DONE and signal.SIGTERM in self._signals.received:
                cause = verdict.REAPED
        if self._log_lost:
            lost = f"{self._log_lost} bytes of output could not be logged: {self._log_problem}"
            cause = Verdict(cause.state, f"{cause.reason}; {lost}")
        self._publish(cause, ended.survivors)

    def _end_at_once(self) -> Ended:
        try:
            return self._tree.end(0, self._signals.wait)
        except Exception:
            return self._tree.kill()

    def _publish(self, cause: Verdict, survivors: tuple[ProcessIdentity, ...]) -> None:
        """Record the end, when that becomes possible: on a full disk nobody but us knows the reason."""
        pause = _FIRST_RETRY_SECONDS
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                publish(self._job_dir, cause, survivors)
                return
            except OSError:
                if time.monotonic() > deadline or not os.path.isdir(self._job_dir):
                    return
            # A `reap` wakes us.
            self._signals.wait(pause)
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS)


def _widen(fd: int) -> None:
    """Let the pipe hold more, so that a worker that outlives us does not soon block on it."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        # The user's allowance for pipes is spent; the default size does.
        pass
