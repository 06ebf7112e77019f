"""The verdict on a job is a pure function of the evidence."""

from __future__ import annotations

import signal

import pytest

from runner.launch import Failure
from runner.verdict import Result, State, of_exit, of_reap

NONE = Result(False, None, 10)
MISSING = Result(True, None, 10)
EMPTY = Result(True, 0, 10)
PRESENT = Result(True, 10, 10)
OVER = Result(True, 11, 10)


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("status", "result", "state"),
    [
        (exited(0), NONE, State.DONE),
        (exited(0), PRESENT, State.DONE),
        (exited(0), MISSING, State.FAILED),
        (exited(0), EMPTY, State.FAILED),
        (exited(0), OVER, State.FAILED),
        (exited(1), NONE, State.FAILED),
        (exited(1), PRESENT, State.FAILED),
        (int(signal.SIGSEGV), PRESENT, State.DONE),
        (int(signal.SIGSEGV), OVER, State.FAILED),
        (int(signal.SIGSEGV), EMPTY, State.DIED),
        (int(signal.SIGSEGV), NONE, State.DIED),
        (None, NONE, State.DIED),
    ],
)
def test_a_failure_never_reads_as_done(status: int | None, result: Result, state: State) -> None:
    assert of_exit(status, None, result).state is state


def test_a_worker_that_was_never_executed_is_not_done() -> None:
    verdict = of_exit(exited(127), Failure(127, "command not found: x"), PRESENT)
    assert (verdict.state, "command not found: x" in verdict.reason) == (State.FAILED, True)


@pytest.mark.parametrize(
    ("result", "alive", "state"),
    [
        (OVER, True, State.FAILED),
        (PRESENT, True, State.DONE),
        (PRESENT, False, State.DONE),
        (EMPTY, True, State.TIMEOUT),
        (EMPTY, False, State.DIED),
        (NONE, True, State.TIMEOUT),
        (MISSING, False, State.DIED),
    ],
)
def test_reap_judges_by_the_result_first_then_by_the_worker(result: Result, alive: bool, state: State) -> None:
    assert of_reap(result, worker_was_alive=alive).state is state
