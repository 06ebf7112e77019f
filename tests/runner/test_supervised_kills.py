"""Whoever is killed or interrupted, nothing of a supervised run stays behind, and no lock stays held."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from runner.process import ProcessIdentity, marked
from tests.runner.support import PYTHONPATH, SLEEP, STUBBORN, running, until

# A child, one in a session of its own, and one that forked twice and dropped its parent.
TREE = f"setsid sh -c '{SLEEP}' & (setsid sh -c 'sleep 60; :' &) ; : > up; {SLEEP}"


@pytest.fixture
def driver(tmp_path: Path, mark: str) -> Driver:
    return Driver(tmp_path, mark)


class Driver:
    """Runs `driver.py`, which calls `run_supervised`."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.mark = mark
        self.lock = folder / "lock"

    @contextmanager
    def running(self, script: str, grace: float = 0.3, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        program = Path(__file__).with_name("driver.py")
        argv = [sys.executable, str(program), str(self.folder), str(self.lock), script, str(grace)]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "RUNNER_TEST_MARK": self.mark, **env}
        with running(argv, env=environment) as process:
            yield process

    def identities(self) -> list[ProcessIdentity]:
        return msgspec.json.decode(until(lambda: _read(self.folder / "started"), "started"), type=list[ProcessIdentity])

    def until_up(self) -> None:
        until((self.folder / "up").exists, "tree is up")

    def until_nothing_is_left(self) -> None:
        until(lambda: not marked("RUNNER_TEST_MARK", self.mark), "nothing left of the run")


def test_a_killed_caller_leaves_no_process(driver: Driver) -> None:
    with driver.running(TREE) as caller:
        driver.until_up()
        caller.kill()
        caller.wait()
        driver.until_nothing_is_left()


def test_a_killed_supervisor_leaves_no_process(driver: Driver) -> None:
    with driver.running(TREE) as caller:
        driver.until_up()
        os.kill(driver.identities()[0].pid, signal.SIGKILL)
        assert caller.wait() == 0
        assert b"supervisor died" in (driver.folder / "outcome").read_bytes()
        driver.until_nothing_is_left()


def test_a_caller_killed_before_it_recorded_the_start_executes_nothing(driver: Driver) -> None:
    with driver.running(": > up", DIE_BEFORE_EXEC="1") as caller:
        assert caller.wait() == -signal.SIGKILL
        driver.until_nothing_is_left()
    assert not (driver.folder / "up").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_caller_ends_the_tree_and_gets_its_handlers_back(driver: Driver, signum: signal.Signals) -> None:
    with driver.running(TREE) as caller:
        driver.until_up()
        caller.send_signal(signum)
        assert caller.wait() == 128 + signum
        assert (driver.folder / "outcome").read_text() == f"interrupted {int(signum)}"
        driver.until_nothing_is_left()


def test_the_lock_of_a_killed_caller_is_free_at_once(driver: Driver) -> None:
    with driver.running(f": > up; {STUBBORN}", grace=3) as caller:
        driver.until_up()
        caller.kill()
        caller.wait()
        # The supervisor and the child are still there, within their grace; they must not hold the lock.
        assert marked("RUNNER_TEST_MARK", driver.mark)
        with open(driver.lock) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert marked("RUNNER_TEST_MARK", driver.mark)
        for identity in driver.identities():
            os.kill(identity.pid, signal.SIGKILL)
        driver.until_nothing_is_left()


def test_the_end_of_the_session_above_does_not_reach_the_tree_behind_the_callers_back(driver: Driver) -> None:
    """The child is in no process group of ours: a terminal's Ctrl-C meets only the caller."""
    with driver.running(TREE) as caller:
        driver.until_up()
        groups = {os.getsid(identity.pid) for identity in driver.identities()}
        assert os.getsid(caller.pid) not in groups
        assert len(groups) == 2
        caller.terminate()
        caller.wait()
        driver.until_nothing_is_left()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
