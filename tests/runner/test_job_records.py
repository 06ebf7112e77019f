"""The records of a job: the first terminal word stays, and nothing untrusted passes for a record."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from runner.job import publish, read_job
from runner.process import self_identity
from runner.verdict import State, Verdict
from tests.runner.support import write_job

DONE = Verdict(State.DONE, "worker exited 0")
PID = {"supervisor_pid": 1, "worker_pid": 1, "supervisor_pgid": 1}


def test_the_first_word_and_its_reason_stay(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", pid=PID)
    assert publish(job, DONE)
    assert not publish(job, Verdict(State.TIMEOUT, "reaped on request"))
    view = read_job(job)
    assert (view.state, view.reason) == (State.DONE, "worker exited 0")


def test_a_reason_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", pid=PID)
    publish(job, Verdict(State.FAILED, "a\nb\udcff" + "x" * 10000), (self_identity(),))
    assert (job / "reason").stat().st_size == 4096
    view = read_job(job)
    assert str(view.reason).startswith("a\\nb\\udcffx")
    assert view.survivors == (self_identity(),)


def test_a_strict_reader_takes_private_records_only(tmp_path: Path) -> None:
    private = write_job(tmp_path / "private", mode=0o600, status="done", pid=PID, meta={"job_id": "j"})
    assert read_job(private, strict=True).state is State.DONE
    for name in ("status", "pid", "meta.json", "."):
        path = private / name
        mode = path.stat().st_mode & 0o777
        path.chmod(mode | 0o040)
        view = read_job(private, strict=True)
        assert (view.state, "not trusted" in str(view.problem)) == (State.UNREADABLE, True), name
        assert read_job(private).state is State.DONE
        path.chmod(mode)


def test_records_of_the_wrong_shape_or_size_are_named_and_not_used(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "shape": {"meta": {"worker_argv": "not a list"}},
        "list": {"meta": []},
        "huge": {"meta": json.dumps({"job_id": "x" * 70000})},
        "deep": {"meta": "[" * 60000},
    }
    for name, records in cases.items():
        view = read_job(write_job(tmp_path / name, status="done", **records))
        assert (view.state, view.meta, "meta.json" in str(view.problem)) == (State.DONE, None, True), name


def test_the_documented_keys_alone_make_a_job(tmp_path: Path) -> None:
    meta = {"job_id": "j", "skill": "ce-work", "run_id": "r", "worker_argv": ["a"], "windows_posix_shell": None}
    job = write_job(tmp_path / "job", meta=meta, pid=PID, log="12345", reason="early\n")
    os.utime(job / "out.log", (1000, 1000))
    os.utime(job / "pid", (900, 900))
    view = read_job(job)
    assert (view.state, view.reason, view.contact, view.log_bytes) == (State.RUNNING, None, "lost", 5)
    assert view.meta is not None
    assert (view.meta.skill, view.meta.label, view.meta.supervision.hard) == ("ce-work", None, 1230)
    assert view.last_activity == 1000
    assert view.elapsed_seconds(1100) == 200
    assert view.idle_seconds_left(1100) == 140
    assert view.hard_seconds_left(1100) == 1030
    assert view.hard_seconds_left(1e9) == 0


def test_a_time_that_no_calendar_holds_is_unknown() -> None:
    # Most file systems cannot hold it either, so there may be none here to write it to.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        job = write_job(Path(folder) / "job", log="", pid=PID)
        os.utime(job / "out.log", (10**12, 10**12))
        view = read_job(job)
        assert view.log_bytes == 0
        assert view.last_activity is None or view.last_activity < 10**12


def test_an_absurd_record_costs_its_own_value_and_nothing_else(tmp_path: Path) -> None:
    job = write_job(
        tmp_path / "job", status="done", reason="x" * 5000, log="", pid=PID, meta='{"supervision":{"log_max":1e999}}'
    )
    view = read_job(job)
    assert (view.state, view.reason, view.meta) == (State.DONE, None, None)
    assert "meta.json" in str(view.problem)
    for limit in ("1e999", "NaN", "-Infinity"):
        (job / "meta.json").write_text(f'{{"supervision":{{"hard":{limit}}}}}')
        assert read_job(job).meta is None
