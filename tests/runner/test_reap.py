"""`reap` ends exactly the job, whatever was killed before, and always leaves a terminal word."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

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
        job = write_job(tmp_path / f"job-{mark}", meta={"job_id": f"job-{mark}"}, pid=pid)
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


def change(job: Path, **keys: Any) -> dict[str, Any]:
    """Change keys of the job's `pid` record; what it was."""
    before = json.loads((job / "pid").read_bytes())
    assert isinstance(before, dict)
    (job / "pid").write_text(json.dumps(before | keys))
    return before


def test_a_job_that_cannot_be_seen_from_here_is_not_taken_for_dead(cli: Cli) -> None:
    job = cli.shell(SLEEP)
    supervisor, worker = job.processes()
    unknown = {"pid": supervisor.pid, "start_time": supervisor.start_time, "boot_id": "unknown"}
    for keys in ({"pid_namespace": 1}, {"boot_id": "unknown"}, {"boot_id": None, "supervisor": unknown}):
        before = change(job.path, **keys)
        assert before["pid_namespace"] == os.stat("/proc/self/ns/pid").st_ino
        assert job.report()["contact"] is None
        done = cli.call("reap", job.id)
        assert (done.returncode, b"cannot see the job's processes from here" in done.stderr) == (1, True)
        assert (job.word, gone(worker)) == ("running", False)
        change(job.path, **before)
    cli.text("reap", job.id)
    assert job.word == "timeout"


def test_a_job_of_a_container_that_is_no_more_does_not_run_for_ever(cli: Cli, tmp_path: Path) -> None:
    lost = write_job(tmp_path / "lost", pid={"supervisor_pid": 7, "boot_id": boot_id(), "pid_namespace": 1})
    assert cli.call("reap", str(lost)).returncode == 1
    assert cli.text("status", str(lost)) == "running\n"
    cli.text("reap", "--gone", str(lost))
    assert cli.text("status", str(lost)) == "died-without-result\n"
    # No container outlives its kernel.
    old = write_job(tmp_path / "old", pid={"supervisor_pid": 7, "boot_id": "another", "pid_namespace": 1})
    cli.text("reap", str(old))
    assert cli.text("status", str(old)) == "died-without-result\n"


def test_that_its_place_is_gone_is_not_believed_of_a_job_that_can_be_seen(cli: Cli) -> None:
    job = cli.shell(SLEEP)
    cli.text("reap", "--gone", job.id)
    assert job.word == "timeout"
    until(lambda: not cli.live(), "nothing left")


def test_reaping_a_backup_does_not_end_the_job_that_it_is_a_copy_of(cli: Cli, tmp_path: Path) -> None:
    job = cli.shell(SLEEP)
    copy = tmp_path / "backup" / job.id
    shutil.copytree(job.path, copy)
    done = cli.call("reap", str(copy))
    assert (done.returncode, b"is a copy" in done.stderr) == (1, True)
    worker = job.kill_supervisor()
    assert cli.call("reap", str(copy)).returncode == 1
    assert not gone(worker)
    cli.text("reap", job.id)
    # Nothing runs any more that a copy could end.
    cli.text("reap", str(copy))
    assert cli.text("status", str(copy)) == "died-without-result\n"


def test_a_job_that_calls_itself_by_the_name_of_another_does_not_end_that(cli: Cli) -> None:
    victim, job = cli.shell(SLEEP), cli.shell(SLEEP)
    meta = json.loads((job.path / "meta.json").read_bytes())
    (job.path / "meta.json").write_text(json.dumps(meta | {"job_id": victim.id}))
    worker = job.kill_supervisor()
    cli.text("reap", job.id)
    assert gone(worker)
    assert victim.report()["contact"] == "live"
    assert not any(gone(identity) for identity in victim.processes())
    cli.text("reap", victim.id)


def test_a_pid_that_no_kernel_gives_is_a_dead_process(cli: Cli, tmp_path: Path) -> None:
    absurd = {"pid": 2**40, "start_time": 1, "boot_id": boot_id()}
    for name, proof in (("identity", {"supervisor": absurd, "worker": absurd}), ("number", {})):
        job = write_job(tmp_path / name, pid={"supervisor_pid": 10**4200, **proof})
        assert cli.text("wait", "--max-secs", "0.1", str(job)) == "running\n"
        assert json.loads(cli.text("status", "--json", str(job)))[0]["contact"] == "lost"
        cli.text("reap", str(job))
        assert (job / "status").read_text() == "died-without-result\n"
