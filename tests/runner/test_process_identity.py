"""A pid is not a process: nothing but the proven one is ever taken for alive, or signalled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner.errors import Unseen
from runner.process import (
    ProcessIdentity,
    descendants,
    identify,
    is_alive,
    kill_all,
    marked,
    open_pidfd,
    self_identity,
    signal_identity,
    wait_gone,
)
from tests.runner.support import running, until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with running(["sleep", "60"]) as process:
        yield process


def known(pid: int) -> ProcessIdentity:
    identity = identify(pid)
    assert identity is not None
    return identity


def test_a_recycled_pid_is_neither_alive_nor_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    now = known(sleeper.pid)
    former = msgspec.structs.replace(now, start_time=now.start_time - 1)
    assert not is_alive(former)
    assert not signal_identity(former, signal.SIGKILL)
    assert kill_all(lambda: [former] if is_alive(former) else [], 0) == []
    assert wait_gone(former, 0)
    assert is_alive(now)
    assert sleeper.poll() is None


def test_a_record_of_an_earlier_boot_never_matches(sleeper: subprocess.Popen[bytes]) -> None:
    before = msgspec.structs.replace(known(sleeper.pid), boot_id="00000000-0000-0000-0000-000000000000")
    assert not is_alive(before)
    assert not signal_identity(before, signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_process_list_that_is_not_ours_is_no_proof_of_death(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = known(sleeper.pid)
    hidden = msgspec.structs.replace(identity, boot_id="unknown")
    for ask in (is_alive, open_pidfd, lambda identity: signal_identity(identity, signal.SIGKILL)):
        with pytest.raises(Unseen):
            ask(hidden)
    monkeypatch.setattr(os, "readlink", lambda path: "1000000000")
    former = msgspec.structs.replace(identity, start_time=identity.start_time - 1)
    for look in (
        lambda: is_alive(former),
        lambda: identify(2**22 + 1),
        lambda: marked("NOBODY", "HAS"),
        lambda: signal_identity(identity, signal.SIGKILL),
    ):
        with pytest.raises(Unseen):
            look()
    assert sleeper.poll() is None


def test_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    identity = known(sleeper.pid)
    sleeper.kill()
    until(lambda: identify(sleeper.pid) is None, "zombie read as dead")
    assert not is_alive(identity)
    assert wait_gone(identity, 5)
    assert identity not in descendants(os.getpid())


def test_a_process_whose_first_thread_ended_is_alive_while_others_run() -> None:
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with running([sys.executable, "-c", script]) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "leading thread ended")
        identity = known(process.pid)
        assert is_alive(identity)
        assert signal_identity(identity, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_a_command_name_made_of_parentheses_and_blanks_cannot_forge_an_identity(tmp_path: Path) -> None:
    forged = tmp_path / "x) Z 1 (y"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", forged)
    with running([forged, "60"]) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text().startswith("x)"), "executed")
        assert known(process.pid) in descendants(os.getpid())


def test_no_process_is_identified_from_a_number_that_is_none() -> None:
    assert [identify(pid) for pid in (0, -1, 2**22 + 1)] == [None, None, None]
    assert self_identity() == identify(os.getpid())


def test_a_mark_is_matched_whole() -> None:
    name = f"MARK_{os.getpid()}"
    with (
        running(["sleep", "60"], env={name: "value"}) as one,
        running(["sleep", "60"], env={name: "value2"}),
        running(["sleep", "60"], env={f"X{name}": "value", "OTHER": f"{name}=value"}),
    ):
        until(lambda: len(marked(name, "value") + marked(name, "value2")) == 2, "both executed")
        assert [identity.pid for identity in marked(name, "value")] == [one.pid]


def test_a_tree_that_grows_while_it_is_ended_is_ended_whole(mark: str) -> None:
    # It ends by itself, should we fail to end it.
    script = "for n in $(seq 200); do sleep 20 & sleep 0.01; done"
    env = {**os.environ, "RUNNER_TEST_MARK": mark}
    with running(["sh", "-c", f"trap '({script}) & exit' TERM; {script}"], env=env) as process:
        until(lambda: len(marked("RUNNER_TEST_MARK", mark)) > 5, "a growing tree")
        ended = kill_all(lambda: marked("RUNNER_TEST_MARK", mark), 0.3)
        assert process.pid in [identity.pid for identity in ended]
        assert len(ended) > 5
    assert marked("RUNNER_TEST_MARK", mark) == []


def test_a_process_that_ignores_sigterm_gets_its_grace_then_ends(mark: str) -> None:
    env = {**os.environ, "RUNNER_TEST_MARK": mark}
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    with running(["sh", "-c", script], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = time.monotonic()
        kill_all(lambda: marked("RUNNER_TEST_MARK", mark), 0.3)
        assert time.monotonic() - before >= 0.3
        assert process.wait() == -signal.SIGKILL


def test_ending_a_tree_that_holds_the_caller_spares_the_caller() -> None:
    me = self_identity()
    before = time.monotonic()
    assert kill_all(lambda: [me], 0) == []
    assert time.monotonic() - before < 3
