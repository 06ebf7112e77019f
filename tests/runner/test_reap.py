"""`reap` ends exactly the job, whatever was killed before, and always leaves a terminal word."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from runner.process import boot_id, identify, kill_all
from tests.runner.support import SLEEP, STUBBORN, Cli, gone, running, until, write_job

TREE = f"setsid sh -c '{SLEEP}' & (setsid sh -c 'sleep 60; :' &) ; {SLEEP}"


def test_reap_of_a_running_job_ends_its_tree(cli: Cli) -> None:
    job = cli.shell(TREE)
    assert cli.call("reap", job.id).stdout == b""
    report = job.report()
    assert (report["state"], report["reason"].startswith("reaped on request")) == ("timeout", True)
    until(lambda: not cli.live(), "nothing left")
    # Once more changes nothing.
    written = [(job.path / name).stat().st_ino for name in ("status", "reason")]
    cli.text("reap", job.id)
    assert [(job.path / name).stat().st_ino for name in ("status", "reason")] == written


def test_reap_of_a_worker_that_will_not_leave_does_not_wait_out_a_long_grace(cli: Cli) -> None:
    job = cli.shell(STUBBORN, CE_PEER_GRACE_SECS="300")
    cli.text("reap", job.id)
    assert job.word == "timeout"
    until(lambda: not cli.live(), "nothing left")


def test_reap_of_a_job_whose_supervisor_was_killed_ends_its_tree(cli: Cli) -> None:
    job = cli.shell(TREE)
    until(lambda: len(cli.live()) >= 5, "tree is up")
    job.kill_supervisor()
    assert job.word == "running"
    cli.text("reap", job.id)
    assert job.word == "timeout"
    assert cli.live() == []


def test_descendants_in_sessions_of_their_own_are_found_when_all_their_parents_are_gone(cli: Cli) -> None:
    job = cli.shell("setsid sleep 60 & sleep 60")
    until(lambda: len(cli.live()) == 4, "tree is up")
    worker = job.kill_supervisor()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: gone(worker), "worker gone")
    assert cli.live()
    cli.text("reap", job.id)
    assert job.word == "died-without-result"
    assert cli.live() == []


@pytest.mark.parametrize(
    "script",
    [
        "env -i setsid sh STRAY & wait",  # below the worker, in a session of its own
        "(env -i sh STRAY &) ; exec sleep 60",  # in the worker's session, below nobody
    ],
)
def test_a_process_without_the_mark_is_found_through_the_living_worker(cli: Cli, tmp_path: Path, script: str) -> None:
    stray, up = tmp_path / "stray", tmp_path / "up"
    # It will not leave when told to, while the worker, which leads to it, goes at once.
    stray.write_text(f"trap '' TERM; echo $$ > {up}.new; mv {up}.new {up}; while :; do sleep 0.05; done")
    job = cli.shell(script.replace("STRAY", str(stray)))
    until(up.exists, "stray is up")
    identity = identify(int(up.read_text()))
    assert identity not in (None, *job.processes())
    worker = job.kill_supervisor()
    try:
        cli.text("reap", job.id)
        assert identify(int(up.read_text())) is None
        assert gone(worker)
    finally:
        kill_all(lambda: [] if identity is None else [identity], 0)


def test_a_result_that_was_left_is_not_thrown_away(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "result"
    job = cli.shell(f"echo saved > {path}; {SLEEP}", options=["--result-path", str(path)])
    until(lambda: path.exists() and path.read_text(), "result")
    job.kill_supervisor()
    cli.text("reap", job.id)
    assert (job.word, cli.text("result", job.id)) == ("done", "saved\n")


def test_a_result_over_the_cap_is_no_result(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"x" * 11)
    meta = {"job_id": "j", "result_path": str(path), "supervision": {"result_max": 10, "grace": 1}}
    job = write_job(tmp_path / "job", meta=meta, pid={"supervisor_pid": None, "worker_pid": None})
    cli.text("reap", str(job))
    assert (job / "reason").read_text() == "result exceeded byte cap (11 > 10 bytes)\n"


def test_a_recycled_pid_is_never_signalled(cli: Cli, tmp_path: Path) -> None:
    with running(["sleep", "60"], start_new_session=True) as innocent:
        identity = identify(innocent.pid)
        assert identity is not None
        former = {"pid": innocent.pid, "start_time": identity.start_time - 1, "boot_id": boot_id()}
        other_boot = {"pid": innocent.pid, "start_time": identity.start_time, "boot_id": "another"}
        numbers = dict.fromkeys(("supervisor_pid", "worker_pid", "supervisor_pgid"), innocent.pid)
        for name, proof in (
            ("numbers", {}),
            ("start", {"supervisor": former, "worker": former}),
            ("boot", {"supervisor": other_boot, "worker": other_boot}),
        ):
            job = write_job(tmp_path / name, meta={"job_id": name}, pid={**numbers, **proof})
            cli.text("reap", str(job))
            assert (job / "status").read_text() == "died-without-result\n"
        assert innocent.poll() is None


def test_a_worker_of_another_runner_is_ended_by_its_mark(cli: Cli, tmp_path: Path, mark: str) -> None:
    env = {"CE_PEER_JOB_ID": f"job-{mark}", "RUNNER_TEST_MARK": mark, "PATH": os.environ["PATH"]}
    with running(["sleep", "60"], env=env, start_new_session=True) as worker:
        pid = {"supervisor_pid": 2**22 + 1, "worker_pid": worker.pid, "supervisor_pgid": 2**22 + 1}
        job = write_job(tmp_path / "job", meta={"job_id": f"job-{mark}"}, pid=pid)
        cli.text("reap", str(job))
        assert worker.wait(timeout=20) == -signal.SIGTERM
    assert (job / "status").read_text() == "timeout\n"


def test_a_stopped_supervisor_does_not_keep_its_job_running(cli: Cli) -> None:
    job = cli.shell(TREE)
    supervisor, _ = job.processes()
    os.kill(supervisor.pid, signal.SIGSTOP)
    cli.text("reap", job.id)
    assert job.word == "timeout"
    until(lambda: not cli.live(), "nothing left")


def test_what_never_ran_or_has_ended_is_left_as_it_is(cli: Cli, tmp_path: Path) -> None:
    never = write_job(tmp_path / "never", meta={"job_id": "never"})
    ended = write_job(tmp_path / "ended", status="failed", pid={"supervisor_pid": 1})
    for job in (never, ended):
        before = sorted(path.name for path in job.iterdir())
        assert cli.call("reap", str(job)).returncode == 0
        assert sorted(path.name for path in job.iterdir()) == before
    strange = write_job(tmp_path / "strange", status="strange")
    assert cli.call("reap", str(strange)).returncode == 4


def test_a_torn_record_does_not_make_a_job_immortal(cli: Cli, tmp_path: Path) -> None:
    for name, text in (("torn", '{"supervisor_pid": 12'), ("list", "[]"), ("empty", "")):
        job = write_job(tmp_path / name, meta="{", pid=text)
        (report,) = json.loads(cli.text("status", "--json", str(job)))
        assert (report["state"], report["contact"]) == ("running", "lost")
        cli.text("reap", str(job))
        assert (job / "status").read_text() == "died-without-result\n"
