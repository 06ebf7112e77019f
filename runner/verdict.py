"""How a job ended: pure decisions from the evidence (protocol section 12)."""

from __future__ import annotations

import os
from enum import StrEnum

import msgspec

from runner.launch import Failure


class State(StrEnum):
    """The state words of a job."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DIED = "died-without-result"
    NEVER_STARTED = "never-started"
    UNREADABLE = "unreadable"


TERMINAL = frozenset({State.DONE, State.FAILED, State.TIMEOUT, State.DIED})


class Verdict(msgspec.Struct, frozen=True):
    """A terminal state and its one-line reason."""

    state: State
    reason: str


class Result(msgspec.Struct, frozen=True):
    """The declared result: whether one was declared, its size in bytes (None: no regular file), the cap."""

    declared: bool
    size: int | None
    limit: int

    @property
    def oversize(self) -> bool:
        """Whether the file is larger than the cap."""
        return self.size is not None and self.size > self.limit


REAPED = Verdict(State.TIMEOUT, "reaped on request while the worker was running")


def idle_expired(seconds: float) -> Verdict:
    """No output for the whole idle window."""
    return Verdict(State.TIMEOUT, f"no output within the idle window of {seconds:g} seconds")


def hard_expired(seconds: float) -> Verdict:
    """The worker ran for longer than it may."""
    return Verdict(State.TIMEOUT, f"exceeded the hard cap of {seconds:g} seconds")


def log_over(limit: int) -> Verdict:
    """More output than the log may hold."""
    return Verdict(State.FAILED, f"log exceeded byte cap (more than {limit} bytes)")


def result_over(result: Result) -> Verdict:
    """A result file larger than it may be."""
    return Verdict(State.FAILED, f"result exceeded byte cap ({result.size} > {result.limit} bytes)")


def supervision_failed(fault: Exception) -> Verdict:
    """The supervisor itself could not go on, and has ended the worker."""
    return Verdict(State.FAILED, f"supervision failed, the worker was ended: {type(fault).__name__}: {fault}")


def of_exit(status: int | None, failure: Failure | None, result: Result) -> Verdict:
    """The verdict on a worker that ended by itself; `status` is its raw wait status (None: unknown)."""
    if result.oversize:
        return result_over(result)
    if failure is not None:
        return Verdict(State.FAILED, f"worker could not be executed: {failure.message}")
    if status is None:
        return Verdict(State.DIED, "worker could not be ended or waited for")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if result.size:
            return Verdict(State.DONE, f"result present; worker was killed by signal {number}")
        return Verdict(State.DIED, f"worker was killed by signal {number} before it left a result")
    code = os.WEXITSTATUS(status)
    if code != 0:
        return Verdict(State.FAILED, f"worker exited {code}")
    if result.declared and not result.size:
        return Verdict(State.FAILED, "worker exited 0 without writing its declared result")
    return Verdict(State.DONE, "worker exited 0")


def of_reap(result: Result, *, worker_was_alive: bool) -> Verdict:
    """The verdict on a job whose supervisor cannot give one."""
    if result.oversize:
        return result_over(result)
    if result.size:
        return Verdict(State.DONE, "result present; recorded by reap, the supervisor was gone")
    if worker_was_alive:
        return Verdict(State.TIMEOUT, "reaped on request; the worker was still running")
    return Verdict(State.DIED, "supervisor and worker were gone before a result was recorded")
