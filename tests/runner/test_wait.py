"""`wait` comes back when the job has ended, neither before nor long after."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.runner.support import SLEEP, Cli, running, until, write_job


def test_wait_gives_up_after_its_time_and_says_running(cli: Cli) -> None:
    job = cli.shell(SLEEP)
    before = time.monotonic()
    assert cli.text("wait", "--max-secs", "0.3", job.id).strip() == "running"
    assert 0.3 <= time.monotonic() - before < 10
    cli.text("reap", job.id)


def test_wait_is_woken_long_before_its_time(cli: Cli) -> None:
    jobs = [cli.shell("sleep 0.3"), cli.shell("exit 1")]
    before = time.monotonic()
    answer = cli.text("wait", *(job.id for job in jobs))
    assert answer == f"{jobs[0].id}\tdone\n{jobs[1].id}\tfailed\n"
    assert time.monotonic() - before < 15


def test_wait_sees_the_word_that_another_program_writes(cli: Cli, tmp_path: Path) -> None:
    path = write_job(tmp_path / "job", pid={"supervisor_pid": 1, "worker_pid": 1, "supervisor_pgid": 1})
    argv = [sys.executable, "-m", "runner.cli", "wait", str(path)]
    with running(argv, env=cli.env, stdout=subprocess.PIPE) as waiting:
        time.sleep(0.1)
        (path / "status").write_text("failed\n")
        assert waiting.communicate(timeout=20)[0] == b"failed\n"


def test_wait_is_woken_by_a_reap_when_the_supervisor_is_gone(cli: Cli) -> None:
    job = cli.shell(SLEEP)
    job.kill_supervisor()
    argv = [sys.executable, "-m", "runner.cli", "wait", job.id]
    with running(argv, env=cli.env, stdout=subprocess.PIPE) as waiting:
        until(lambda: job.report()["contact"] == "lost", "contact lost")
        cli.text("reap", job.id)
        assert waiting.communicate(timeout=20)[0] == b"timeout\n"


def test_settled_jobs_are_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    never = write_job(tmp_path / "never")
    unreadable = write_job(tmp_path / "unreadable", status="?")
    before = time.monotonic()
    cli.text("wait", str(never), str(unreadable))
    assert time.monotonic() - before < 15
