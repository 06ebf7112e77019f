"""A job is over when nothing of it runs, not when a file says so; and a job whose files are lost has a way out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.jobs import _whole, iso
from tests.controller.situations import DIGEST, Desk, begin_run

CLAIM = ("--caller-mode", "headless")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


class Live:
    """A dispatched unit, and a process that carries its job's mark as a worker does."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        prepared = desk.prepare().expect("PREPARED").body
        self.job = desk.write_job(prepared, job=f"20260101T000000Z-{os.urandom(4).hex()}")
        self.folder = desk.run_dir() / "jobs" / self.job
        desk.authorize(prepared, self.job).expect("AUTHORIZED")
        self.worker = subprocess.Popen(["sleep", "1000"], env={**desk.env, "CE_PEER_JOB_ID": self.job})

    def abandon(self) -> list[str]:
        """The call that gives the attempt up."""
        return self.desk.of("cleanup", "--abandon", "--expect-job", self.job)


@pytest.fixture
def live(desk: Desk) -> Iterator[Live]:
    """A job whose worker lives."""
    made = Live(desk)
    yield made
    made.worker.kill()
    made.worker.wait()


@pytest.mark.parametrize("harm", ["the worker wrote its own end", "its pid file vanished"])
def test_a_second_worker_is_never_paid_for_while_the_first_one_lives(live: Live, harm: str) -> None:
    desk = live.desk
    if harm == "the worker wrote its own end":
        desk.end_job(live.job, "failed", "bogus")
    desk.do("SYNCED", "sync-job")
    reply = desk.refuse("BLOCKED", "reap", args=live.abandon())
    assert reply.body["pids"] == [live.worker.pid]
    assert [argv[1] for argv in reply.body["next"] if "reap" in argv], reply.body["next"]
    desk.refuse("BLOCKED", "reap", args=desk.of("claim-fallback", *CLAIM))
    assert live.worker.poll() is None
    desk.do("REAPED", "reap")
    assert live.worker.wait(timeout=10) < 0
    desk.call(*live.abandon()).expect("CLEANED")
    desk.prepare("U1", "--attempt-id", "attempt-2").expect("PREPARED")


def test_what_survives_an_attempt_that_was_cleaned_can_still_be_reaped(live: Live) -> None:
    desk = live.desk
    desk.end_job(live.job, "failed")
    desk.do("SYNCED", "sync-job")
    live.worker.kill()
    live.worker.wait()
    desk.call(*live.abandon()).expect("CLEANED")
    live.worker = subprocess.Popen(["sleep", "1000"], env={**desk.env, "CE_PEER_JOB_ID": live.job})
    desk.refuse("BLOCKED", "reap", args=desk.of("claim-fallback", *CLAIM))
    desk.do("REAPED", "reap")
    assert live.worker.wait(timeout=10) < 0
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", *CLAIM)


def test_a_job_that_has_ended_gets_no_consent_to_begin(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    job = desk.write_job(prepared)
    desk.do("AUTHORING", "record-job", "--attempt-id", "attempt-1", "--job-id", job)
    desk.end_job(job, "timeout")
    with desk.unchanged():
        assert "has ended" in desk.authorize(prepared, job).expect("REFUSED").stderr
    desk.do("SYNCED", "sync-job")
    (desk.run_dir() / "jobs" / job / "status").unlink()
    with desk.unchanged():
        desk.authorize(prepared, job).expect("REFUSED")


def _spoil(desk: Desk, folder: Path, harm: str) -> None:
    if harm == "folder removed":
        shutil.rmtree(folder)
    elif harm == "status of no runner":
        desk.private(folder / "status", "exploded\n")
    elif harm == "reason too long":
        desk.private(folder / "reason", "x" * 5000)
        desk.private(folder / "status", "failed\n")
    else:
        desk.private(folder / "meta.json", "{")


@pytest.mark.parametrize("harm", ["folder removed", "status of no runner", "reason too long", "meta cut"])
def test_a_unit_whose_job_records_are_lost_is_no_dead_end(desk: Desk, harm: str) -> None:
    job = desk.dispatched()["job_id"]
    folder = desk.run_dir() / "jobs" / job
    desk.private(folder / "pid", '{"worker_pid":1}')
    desk.do("SYNCED", "sync-job")
    _spoil(desk, folder, harm)
    desk.refuse("UNREADABLE", "reap", args=desk.of("sync-job"))
    body = desk.do("REAPED", "reap").body
    assert body["process_state"] == "died-without-result"
    assert body["failure_reason"].startswith("records lost: ")
    with desk.unchanged():
        desk.do("SYNCED", "sync-job")
    claim = desk.do("FALLBACK_AUTHORIZED", "claim-fallback", *CLAIM).body
    assert claim["reason"].startswith("records lost: ")
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-job", job)
    assert desk.call("resume", "--run-id", "r1").word == "RESUMED"


def test_lost_records_of_a_job_that_lives_are_recorded_only_once_it_is_ended(live: Live) -> None:
    shutil.rmtree(live.folder)
    assert live.desk.do("REAPED", "reap").body["process_state"] == "died-without-result"
    assert live.worker.wait(timeout=10) < 0
    live.desk.call(*live.abandon()).expect("CLEANED")


def test_the_end_that_was_recorded_stands_when_the_job_s_folder_is_removed_later(desk: Desk) -> None:
    desk.pending("U2", {"b": "x"})
    prepared = desk.author("U1")
    desk.do("SYNCED", "sync-job")
    shutil.rmtree(desk.run_dir() / "jobs")
    assert desk.do("REAPED", "reap").body["process_state"] == "done"
    desk.do("INTEGRATION_PENDING", "terminalize")
    desk.integrate("U1").expect("UNIT_COMMITTED")
    assert (desk.repo / "new.txt").read_text() == "new\n", prepared


def test_times_and_limits_that_no_calendar_has_are_null_and_no_crash() -> None:
    """In-process: not every file system that a test may run on holds such a time."""
    assert [_whole(value) for value in (1.5, float("inf"), float("nan"), None)] == [1, None, None, None]
    assert [iso(10.0**n) is None for n in (9, 12, 30)] == [False, True, True]
    assert iso(float("nan")) is None


def test_a_native_implementation_that_was_authorized_is_never_dropped_by_a_retry(desk: Desk) -> None:
    job = desk.failed()["job_id"]
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", *CLAIM)
    reply = desk.do("CLEANED", "cleanup", "--abandon", "--expect-job", job)
    assert [argv[1] for argv in reply.body["next"]] == ["complete-fallback"]
    with desk.unchanged():
        assert "complete-fallback" in desk.prepare("U1", "--attempt-id", "attempt-2").expect("REFUSED").stderr
    (desk.repo / "native").write_text("native\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", "native")
    done = ("--accepted-head", desk.head, "--evidence-digest", DIGEST, "--summary", "s")
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *done)


def test_no_lock_is_granted_to_a_unit_that_is_implemented_natively(desk: Desk) -> None:
    desk.preserved()
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", *CLAIM)
    desk.refuse("REFUSED", "complete-fallback", args=desk.of("integration-acquire"))
    assert desk.locks() == {}


def test_a_job_that_an_earlier_attempt_left_is_never_taken_for_the_next_one_s(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    desk.write_job(prepared, job="left-over")  # as `start` leaves it after a failed preflight
    job = desk.write_job(prepared)
    desk.authorize(prepared, job).expect("AUTHORIZED")
    desk.end_job(job, "failed")
    desk.do("SYNCED", "sync-job")
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-job", job)
    evidence = Path(desk.unit()["attempts"][0]["evidence"]) if "evidence" in desk.unit()["attempts"][0] else None
    again: dict[str, Any] = desk.prepare("U1", "--attempt-id", "attempt-2").expect("PREPARED").body
    desk.call("resume", "--run-id", "r1").expect("RESUMED")
    assert desk.state() == "queued"
    desk.authorize(again, desk.write_job(again)).expect("AUTHORIZED")
    kept = evidence or desk.run_dir() / "evidence" / "U1" / "attempt-1"
    assert json.loads((kept / "left-over-meta.json").read_text())["job_id"] == "left-over"
