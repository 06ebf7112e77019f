"""Each job ends with the word that is true of it, and nothing of it runs on."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from pathlib import Path

import msgspec
import pytest

from runner.limits import from_environment
from tests.runner.support import SLEEP, STUBBORN, Cli, gone, until, write_job


def reason(cli: Cli, word: str, script: str, *options: str, **env: str) -> str:
    """Run a job to its end, demand its word, and give the reason."""
    job = cli.shell(script, options=options, **env)
    report = job.wait()
    assert report["state"] == word, report
    return str(report["reason"])


def test_a_job_runs_detached_and_tells_about_itself(cli: Cli, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo out; echo err >&2; while [ ! -e {go} ]; do sleep 0.01; done"
    job = cli.shell(script, options=["--label", "u-1", "--input-digest", "abc"])
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{8}", job.id)
    supervisor, worker = job.processes()
    pids = json.loads((job.path / "pid").read_bytes())
    assert (pids["supervisor_pid"], pids["worker_pid"]) == (supervisor.pid, worker.pid)
    assert pids["supervisor_pgid"] == os.getpgid(supervisor.pid)
    meta = json.loads((job.path / "meta.json").read_bytes())
    assert (meta["job_id"], meta["skill"], meta["run_id"]) == (job.id, "peer", "r1")
    assert (meta["label"], meta["input_digest"], meta["result_path"]) == ("u-1", "abc", None)
    assert meta["worker_argv"] == [meta["worker_argv"][0], "-c", script]
    assert Path(meta["worker_argv"][0]).is_absolute()
    assert set(meta["supervision"]) == {"idle", "hard", "log_max", "result_max", "poll", "grace"}
    report = job.report()
    assert (report["state"], report["contact"], report["reason"]) == ("running", "live", None)
    assert 0 < report["idle_seconds_left"] <= 240
    assert 1200 < report["hard_seconds_left"] <= 1230
    # Neither session, group nor terminal of the caller reach it.
    assert len({os.getsid(0), os.getsid(supervisor.pid), os.getsid(worker.pid)}) == 3
    go.touch()
    assert job.wait()["state"] == "done"
    assert job.word == "done"
    assert (job.path / "status").read_bytes() == b"done\n"
    assert (job.path / "out.log").read_bytes() == b"out\nerr\n"
    for path in job.path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for path in (job.path, *job.path.parents[:3]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_the_worker_gets_the_callers_directory_and_environment_and_no_stdin(cli: Cli) -> None:
    job = cli.shell('pwd; cat; echo "$CE_PEER_JOB_ID $GREETING"; "$CE_PEER_PYTHON" -c "print(1)"; umask', GREETING="hi")
    assert job.wait()["state"] == "done"
    mask = os.umask(0)
    os.umask(mask)
    expected = f"{os.getcwd()}\n{job.id} hi\n1\n{mask:04o}\n"
    assert (job.path / "out.log").read_text() == expected


def test_start_does_not_hold_the_callers_pipes(cli: Cli) -> None:
    # `call` reads stdout and stderr to their end: a supervisor that held them would block it.
    job = cli.shell(SLEEP)
    assert job.word == "running"
    cli.text("reap", job.id)


@pytest.mark.parametrize(
    ("script", "word", "text"),
    [
        ("exit 0", "done", "worker exited 0"),
        ("exit 3", "failed", "worker exited 3"),
        ("kill -9 $$", "died-without-result", "signal 9"),
    ],
)
def test_without_a_declared_result_the_exit_decides(cli: Cli, script: str, word: str, text: str) -> None:
    assert text in reason(cli, word, script)


@pytest.mark.parametrize(
    ("script", "word", "text"),
    [
        ("echo r > RESULT", "done", "worker exited 0"),
        ("exit 0", "failed", "result"),
        (": > RESULT", "failed", "result"),
        ("mkdir RESULT", "failed", "result"),
        ("echo r > RESULT; exit 3", "failed", "worker exited 3"),
        ("echo r > RESULT; kill -9 $$", "done", "signal 9"),
        ("kill -9 $$", "died-without-result", "signal 9"),
    ],
)
def test_a_declared_result_must_be_there(cli: Cli, tmp_path: Path, script: str, word: str, text: str) -> None:
    path = str(tmp_path / "result")
    assert text in reason(cli, word, script.replace("RESULT", path), "--result-path", path)


def test_a_silent_worker_is_ended_by_the_idle_limit(cli: Cli) -> None:
    assert "idle window" in reason(cli, "timeout", f"echo x; {SLEEP}", CE_PEER_IDLE_SECS="0.3")


def test_output_keeps_a_worker_alive_until_the_hard_limit(cli: Cli) -> None:
    script = "while :; do echo x; sleep 0.05; done"
    text = reason(cli, "timeout", script, CE_PEER_IDLE_SECS="0.6", CE_PEER_HARD_SECS="1.2")
    assert "hard cap" in text


def test_a_silent_ce_work_worker_may_run_without_an_idle_limit(cli: Cli) -> None:
    for skill, idle in (("ce-work", None), ("peer", 240)):
        job = cli.shell("exit 0", skill=skill, CE_PEER_IDLE_SECS="0")
        assert json.loads((job.path / "meta.json").read_bytes())["supervision"]["idle"] == idle
        cli.text("wait", "--skill", skill, job.id)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"idle": 240, "hard": 1230, "log_max": 10485760, "result_max": 5242880, "poll": 2}),
        ({"CROSS_MODEL_HARD_SECS": "2000"}, {"hard": 2030}),
        ({"CROSS_MODEL_HARD_SECS": "2000", "CE_PEER_HARD_SECS": "7"}, {"hard": 7}),
        ({"CE_PEER_HARD_SECS": "0", "CE_PEER_IDLE_SECS": "-1"}, {"hard": 1230, "idle": 240}),
        ({"CE_PEER_HARD_SECS": "x", "CE_PEER_LOG_MAX_BYTES": "nan"}, {"hard": 1230, "log_max": 10485760}),
    ],
)
def test_limits_come_from_the_environment_and_nonsense_is_the_default(
    env: dict[str, str], expected: dict[str, float]
) -> None:
    limits = msgspec.structs.asdict(from_environment(env, "peer"))
    assert {name: limits[name] for name in expected} == expected


def test_a_limit_of_centuries_is_a_limit_like_any_other(cli: Cli) -> None:
    assert cli.shell("exit 0", CE_PEER_HARD_SECS="99999999999").wait()["state"] == "done"


def test_a_worker_that_fills_the_log_is_ended_and_the_log_stops_at_its_cap(cli: Cli) -> None:
    job = cli.shell("yes", CE_PEER_LOG_MAX_BYTES="5000")
    report = job.wait()
    assert (report["state"], "byte cap" in report["reason"]) == ("failed", True)
    assert (job.path / "out.log").stat().st_size == 5000


def test_a_log_that_just_fits_is_no_failure(cli: Cli) -> None:
    job = cli.shell("head -c 5000 /dev/zero", CE_PEER_LOG_MAX_BYTES="5000")
    assert job.wait()["state"] == "done"
    assert "byte cap" in reason(cli, "failed", "head -c 5001 /dev/zero", CE_PEER_LOG_MAX_BYTES="5000")


def test_a_result_over_its_cap_is_ended_while_it_grows(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "result")
    script = f"while :; do echo 0123456789 >> {path}; sleep 0.01; done"
    text = reason(cli, "failed", script, "--result-path", path, CE_PEER_RESULT_MAX_BYTES="20")
    assert re.search(r"result exceeded byte cap \(\d+ > 20 bytes\)", text)
    script = f"head -c 21 /dev/zero > {path}"
    text = reason(cli, "failed", script, "--result-path", path, CE_PEER_RESULT_MAX_BYTES="20")
    assert text == "result exceeded byte cap (21 > 20 bytes)"


def test_background_children_do_not_outlive_a_worker_that_exits_0(cli: Cli, tmp_path: Path) -> None:
    late = tmp_path / "late"
    job = cli.shell(f"setsid sh -c 'sleep 60; : > {late}' & (env -i setsid sleep 60 &) ; sleep 0.2; exit 0")
    report = job.wait()
    assert report["state"] == "done"
    assert report["survivors"] == 3
    record = json.loads((job.path / "survivors").read_bytes())
    assert len(record["survivors"]) == 3
    assert cli.live() == []


def test_a_timeout_ends_a_tree_that_will_not_leave(cli: Cli) -> None:
    script = f'setsid sh -c "{STUBBORN}" & {STUBBORN}'
    assert "hard cap" in reason(cli, "timeout", script, CE_PEER_HARD_SECS="0.4", CE_PEER_GRACE_SECS="0.2")
    assert cli.live() == []


def test_a_worker_that_closes_its_output_is_waited_for(cli: Cli) -> None:
    assert "exited 5" in reason(cli, "failed", "exec >&- 2>&-; sleep 0.2; exit 5")


def test_a_supervisor_that_is_told_to_end_ends_its_job_and_records_it(cli: Cli) -> None:
    job = cli.shell(f"trap 'exit 0' TERM; setsid sh -c '{SLEEP}' & wait")
    supervisor, _ = job.processes()
    os.kill(supervisor.pid, signal.SIGTERM)
    report = job.wait()
    # What was asked decides, also when the worker then exits 0.
    assert (report["state"], report["reason"].startswith("reaped on request")) == ("timeout", True)


def test_a_hangup_does_not_end_a_job(cli: Cli) -> None:
    job = cli.shell("sleep 0.5")
    supervisor, _ = job.processes()
    os.kill(supervisor.pid, signal.SIGHUP)
    assert job.wait()["state"] == "done"


def test_a_worker_whose_supervisor_was_killed_can_still_write_and_save_its_work(cli: Cli, tmp_path: Path) -> None:
    path, go = tmp_path / "result", tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.01; done; echo progress && echo saved > {path}"
    job = cli.shell(script, options=["--result-path", str(path)])
    worker = job.kill_supervisor()
    report = job.report()
    assert (report["state"], report["contact"]) == ("running", "lost")
    go.touch()
    until(lambda: gone(worker), "worker ended by itself")
    cli.text("reap", job.id)
    assert job.word == "done"
    assert cli.text("result", job.id) == "saved\n"


def test_a_worker_that_cannot_be_executed_fails_with_the_cause(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    report = cli.start(str(script)).wait()
    assert report["state"] == "failed"
    assert "interpreter is missing" in report["reason"]


def test_arguments_that_are_no_utf8_arrive_and_are_recorded(cli: Cli) -> None:
    odd = os.fsdecode(b"\xff\xc3\n")
    job = cli.start("printf", "%s", odd)
    assert job.wait()["state"] == "done"
    assert (job.path / "out.log").read_bytes() == b"\xff\xc3\n"
    assert json.loads((job.path / "meta.json").read_bytes())["worker_argv"][2] == odd


def test_a_job_that_another_program_records_is_read_from_its_files_alone(cli: Cli, tmp_path: Path) -> None:
    pid = {"supervisor_pid": os.getpid(), "worker_pid": os.getpid(), "supervisor_pgid": os.getpgrp()}
    cases: dict[str, dict[str, object]] = {
        "never-started": {"meta": {"job_id": "x"}},
        "running": {"meta": {"job_id": "x"}, "pid": pid},
        "done": {"pid": pid, "status": "done"},
        "unreadable": {"pid": pid, "status": "finished"},
    }
    for word, records in cases.items():
        path = write_job(tmp_path / word, **records)  # type: ignore[arg-type]
        assert cli.text("status", str(path)).strip() == word
    huge = write_job(tmp_path / "huge", status="done" + " " * 300)
    (tmp_path / "link").symlink_to(tmp_path / "done")
    for path in (huge, tmp_path / "link"):
        assert cli.text("status", str(path)).strip() == "unreadable"
    (report,) = json.loads(cli.text("status", "--json", str(tmp_path / "running")))
    assert report["contact"] == "live"


def test_a_bare_pid_that_was_recycled_does_not_read_as_contact(cli: Cli, tmp_path: Path) -> None:
    pid = {"supervisor_pid": os.getpid(), "worker_pid": 1, "supervisor_pgid": 1}
    path = write_job(tmp_path / "job", pid=pid)
    # The number was written down before the process that bears it now was born.
    os.utime(path / "pid", (1, 1))
    (report,) = json.loads(cli.text("status", "--json", str(path)))
    assert (report["state"], report["contact"]) == ("running", "lost")


def test_several_jobs_are_told_apart(cli: Cli, tmp_path: Path) -> None:
    one = write_job(tmp_path / "one", status="done")
    two = write_job(tmp_path / "two", status="failed", reason="why\n")
    assert cli.text("status", str(one), str(two)) == f"{one}\tdone\n{two}\tfailed\n"
    reports = json.loads(cli.text("status", "--json", str(one), str(two)))
    assert [(report["ref"], report["state"], report["reason"]) for report in reports] == [
        (str(one), "done", None),
        (str(two), "failed", "why"),
    ]
