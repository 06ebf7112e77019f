"""`authorize-dispatch`, `record-job`, `sync-job`, `reap`: one job for one attempt, and only exactly it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.controller.situations import Desk, begin_run
from tests.host import Reply

JOB = "job-U1-attempt-1-fixed"
Prepared = dict[str, Any]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run, whose first job is `JOB`."""
    made = begin_run(tmp_path)
    made.tag = "fixed"
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Prepared]:
    """A queued unit with an exact job directory, for calls that are refused."""
    made = begin_run(tmp_path_factory.mktemp("dispatch"))
    made.tag = "fixed"
    prepared = made.prepare().expect("PREPARED").body
    made.write_job(prepared)
    return made, prepared


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Prepared]:
    """A unit whose job has failed and whose receipt is not believed."""
    made = begin_run(tmp_path_factory.mktemp("failed"))
    return made, made.failed()


def _list(path: Path) -> bool:
    path.touch(mode=0o600)
    return bool(path.write_text("[]"))


def _authorize(prepared: Prepared, **changes: str) -> list[str]:
    values = {
        "run-id": "r1", "unit-id": "U1", "attempt-id": "attempt-1", "job-id": JOB,
        "authorization": prepared["authorization_path"], "authorization-digest": prepared["authorization_digest"],
        "workspace": prepared["workspace"], "packet": prepared["packet_path"],
        "packet-digest": prepared["packet_digest"], "result-dir": prepared["result_dir"],
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }  # fmt: skip
    return ["authorize-dispatch", *(f"--{name}={value}" for name, value in values.items())]


def _record(**changes: str) -> list[str]:
    values = {"run-id": "r1", "unit-id": "U1", "attempt-id": "attempt-1", "job-id": JOB}
    values |= {name.replace("_", "-"): value for name, value in changes.items()}
    return ["record-job", *(f"--{name}={value}" for name, value in values.items())]


# --- success ------------------------------------------------------------------------------------------------------


def test_the_handshake_binds_the_job_once_and_answers_the_same_again(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    job = desk.write_job(prepared)
    body = desk.authorize(prepared, job).expect("AUTHORIZED").body
    assert {key: value for key, value in body.items() if key != "next"} == {
        "run_id": "r1", "unit_id": "U1", "attempt_id": "attempt-1", "job_id": job, "resumed": False,
        "authorization_digest": prepared["authorization_digest"], "packet_digest": prepared["packet_digest"],
    }  # fmt: skip
    attempt = desk.unit()["attempts"][0]
    assert attempt["job_id"] == job
    assert set(attempt["dispatch_authorization_receipt"]) == {
        "attempt_id", "job_id", "authorization_path", "authorization_digest", "workspace", "packet_path",
        "packet_digest", "result_dir", "result_dir_identity",
    }  # fmt: skip
    assert (desk.state(), desk.kinds().count("job-bound")) == ("authoring", 1)
    Path(prepared["workspace"], "f").write_text("the worker is at work\n")
    with desk.unchanged():
        assert desk.authorize(prepared, job).expect("AUTHORIZED").body["resumed"] is True


@pytest.mark.parametrize("record_first", [False, True], ids=["handshake first", "record first"])
def test_host_and_adapter_may_come_in_either_order(desk: Desk, record_first: bool) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    job = desk.write_job(prepared)
    if record_first:
        body = desk.call(*_record()).expect("AUTHORING").body
        assert {key: body[key] for key in ("unit_id", "job_id", "resumed")} == {
            "unit_id": "U1", "job_id": job, "resumed": False,
        }  # fmt: skip
        assert desk.authorize(prepared, job).expect("AUTHORIZED").body["resumed"] is False
    else:
        desk.authorize(prepared, job).expect("AUTHORIZED")
    with desk.unchanged():
        body = desk.call(*_record()).expect("AUTHORING").body
    assert (body["resumed"], body["unit_state"]) == (True, "authoring")
    assert desk.unit()["attempts"][0]["dispatch_authorization_receipt"]["job_id"] == job


def test_a_job_that_was_only_recorded_may_not_begin_in_a_workspace_that_was_touched(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    job = desk.write_job(prepared)
    desk.call(*_record()).expect("AUTHORING")
    Path(prepared["workspace"], "f").write_text("dirt\n")
    with desk.unchanged():
        reply = desk.authorize(prepared, job).expect("BLOCKED")
    assert "workspace is dirty before dispatch authorization" in reply.stderr


def test_an_unclean_path_is_compared_as_a_path_not_as_text(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    desk.write_job(prepared)
    folder = str(Path(prepared["workspace"]).parent)
    desk.call(*_authorize(prepared, workspace=f"{folder}/./x/../workspace")).expect("AUTHORIZED")


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word", "phrase"),
    [
        ({"authorization_digest": "0" * 64}, "BLOCKED", "authorization digest"),
        ({"authorization_digest": "x"}, "REFUSED", "authorization digest"),
        ({"authorization_digest": "A" * 64}, "REFUSED", "authorization digest"),
        ({"packet_digest": "0" * 64}, "BLOCKED", "packet digest"),
        ({"packet_digest": ""}, "REFUSED", "packet digest"),
        ({"authorization": "/etc/hostname"}, "BLOCKED", "authorization path"),
        ({"workspace": "/tmp"}, "BLOCKED", "workspace"),
        ({"packet": "/etc/hostname"}, "BLOCKED", "packet path"),
        ({"result_dir": "/tmp"}, "BLOCKED", "result directory"),
        ({"attempt_id": "attempt-2"}, "AMBIGUOUS", "attempt"),
        ({"unit_id": "U2"}, "REFUSED", "unit"),
        ({"job_id": "other"}, "UNREADABLE", "job"),
        ({"job_id": "../jobs/" + JOB}, "REFUSED", "job id"),
        ({"job_id": ".."}, "REFUSED", "job id"),
        ({"run_id": "r2"}, "NOT_FOUND", "r2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_nothing_leaves_the_host_unless_it_is_exactly_what_was_prepared(
    shared: tuple[Desk, Prepared], changes: dict[str, str], word: str, phrase: str
) -> None:
    desk, prepared = shared
    desk.refuse(word, phrase, args=_authorize(prepared, **changes))


def _with_meta(desk: Desk, changes: dict[str, Any], then: Callable[[], Reply]) -> Reply:
    path = desk.run_dir() / "jobs" / JOB / "meta.json"
    before = path.read_text()
    value = {**json.loads(before), **changes}
    path.write_text(json.dumps({key: item for key, item in value.items() if item != "absent"}))
    try:
        return then()
    finally:
        path.write_text(before)


@pytest.mark.parametrize("command", ["authorize-dispatch", "record-job"])
@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"skill": "ce-other"}, "skill"),
        ({"run_id": "r2"}, "run"),
        ({"label": "U2"}, "runner label must equal unit id exactly: expected 'U1', got 'U2'"),
        ({"label": None}, "runner label must equal unit id exactly: expected 'U1', got None"),
        ({"input_digest": "0" * 64}, "packet digest"),
        ({"input_digest": None}, "packet digest"),
        ({"result_path": "/tmp/implementation-result.json"}, "runner result path must be the controller result file"),
        ({"result_path": None}, "implementation-result.json"),
        ({"job_id": "another"}, "job id"),
        ({"worker_argv": ["sh", "-c", "exec true"]}, "argv"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_job_of_another_unit_packet_or_result_is_never_taken_for_this_one(
    shared: tuple[Desk, Prepared], command: str, changes: dict[str, Any], phrase: str
) -> None:
    desk, prepared = shared
    args = _record() if command == "record-job" else _authorize(prepared)
    reply = _with_meta(desk, changes, lambda: desk.refuse("BLOCKED", phrase, args=args))
    if "worker_argv" in changes:
        assert reply.body["actual_argv"] == ["sh", "-c", "exec true"]
        assert reply.body["expected_argv"] == [
            prepared["adapter"], prepared["authorization_path"], prepared["workspace"], prepared["packet_path"],
            prepared["packet_digest"], prepared["result_dir"],
        ]  # fmt: skip


@pytest.mark.parametrize("position", range(7))
def test_a_worker_with_one_argument_changed_or_added_is_another_worker(
    shared: tuple[Desk, Prepared], position: int
) -> None:
    desk, _ = shared
    argv = json.loads((desk.run_dir() / "jobs" / JOB / "meta.json").read_text())["worker_argv"]
    argv = (
        [*argv, "--yolo"] if position == len(argv) else [*argv[:position], argv[position] + "x", *argv[position + 1 :]]
    )
    _with_meta(desk, {"worker_argv": argv}, lambda: desk.refuse("BLOCKED", args=_record()))


@pytest.mark.parametrize(
    ("harm", "heal"),
    [
        (lambda job: (job / "meta.json").chmod(0o644), lambda job: (job / "meta.json").chmod(0o600)),
        (lambda job: job.chmod(0o755), lambda job: job.chmod(0o700)),
        (
            lambda job: (job / "meta.json").rename(job / "m"),
            lambda job: (job / "m").rename(job / "meta.json"),
        ),
        (
            lambda job: ((job / "meta.json").rename(job / "m"), (job / "meta.json").symlink_to("m")),
            lambda job: (job / "m").rename(job / "meta.json"),
        ),
        (
            lambda job: ((job / "meta.json").rename(job / "m"), _list(job / "meta.json")),
            lambda job: (job / "m").rename(job / "meta.json"),
        ),
    ],
    ids=["open meta", "open folder", "no meta", "linked meta", "no object"],
)
@pytest.mark.parametrize("command", ["authorize-dispatch", "record-job"])
def test_a_job_folder_that_others_could_write_is_not_believed(
    shared: tuple[Desk, Prepared], command: str, harm: Callable[[Path], object], heal: Callable[[Path], object]
) -> None:
    desk, prepared = shared
    job = desk.run_dir() / "jobs" / JOB
    harm(job)
    try:
        desk.refuse("UNREADABLE", args=_record() if command == "record-job" else _authorize(prepared))
    finally:
        heal(job)


@pytest.mark.parametrize(
    ("harm", "word", "phrase"),
    [
        (lambda p: Path(p["workspace"], "f").write_text("x"), "BLOCKED", "workspace is dirty before dispatch"),
        (lambda p: Path(p["packet_path"]).write_text("x"), "BLOCKED", "packet"),
        (lambda p: Path(p["authorization_path"]).write_text("{}"), "BLOCKED", "authorization"),
        (
            lambda p: shutil.copytree(shutil.move(p["result_dir"], p["result_dir"] + "x"), p["result_dir"]),
            "UNREADABLE",
            "controller result directory identity changed",
        ),
    ],
    ids=["workspace", "packet", "authorization", "result folder"],
)
def test_prepared_files_that_changed_before_the_dispatch_stop_it(
    desk: Desk, harm: Callable[[Prepared], object], word: str, phrase: str
) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    desk.write_job(prepared)
    harm(prepared)
    desk.refuse(word, phrase, args=_authorize(prepared))


def test_a_workspace_whose_head_moved_stops_the_dispatch(desk: Desk) -> None:
    (desk.repo / "f").write_text("two\n")
    desk.git("commit", "-qam", "second")
    prepared = desk.prepare().expect("PREPARED").body
    desk.write_job(prepared)
    desk.git("checkout", "-q", "HEAD~1", cwd=Path(prepared["workspace"]))
    phrase = "workspace HEAD no longer equals the recorded base"
    desk.refuse("BLOCKED", phrase, args=_authorize(prepared))


def test_a_second_job_for_one_attempt_is_ambiguous_never_a_second_dispatch(desk: Desk) -> None:
    prepared = desk.dispatched()
    desk.write_job(prepared, job="second")
    desk.refuse("AMBIGUOUS", JOB, args=_record(job_id="second"))
    desk.refuse("AMBIGUOUS", JOB, args=_authorize(prepared, job_id="second"))
    desk.refuse("AMBIGUOUS", args=_record(attempt_id="attempt-2"))


def test_a_changed_checkout_or_branch_stops_the_handshake_but_not_the_host_s_record(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    desk.write_job(prepared)
    desk.git("checkout", "-qb", "other")
    desk.refuse("BLOCKED", "branch", args=_authorize(prepared))
    desk.call(*_record()).expect("AUTHORING")


def test_a_late_adapter_cannot_author_beside_the_native_fallback(desk: Desk) -> None:
    """The job was recorded, never started its worker, and the host went native: now the adapter wakes up."""
    prepared = desk.prepare().expect("PREPARED").body
    job = desk.write_job(prepared)
    desk.call(*_record()).expect("AUTHORING")
    desk.do("SYNCED", "sync-job")
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless")
    with desk.unchanged():
        reply = desk.authorize(prepared, job).expect("REFUSED")
    assert "native fallback already owns implementation" in reply.stderr


def test_a_unit_that_is_past_authoring_takes_no_handshake(desk: Desk) -> None:
    prepared = desk.author()
    desk.do("INTEGRATION_PENDING", "terminalize")
    desk.refuse("REFUSED", "integration-pending", args=_authorize(prepared))
    with desk.unchanged():
        body = desk.call(*_record()).expect("AUTHORING").body
    assert (body["resumed"], body["unit_state"]) == (True, "integration-pending")


# --- sync-job -----------------------------------------------------------------------------------------------------


def test_a_unit_without_a_job_has_never_started(desk: Desk) -> None:
    desk.prepare().expect("PREPARED")
    with desk.unchanged():
        body = desk.do("SYNCED", "sync-job").body
    assert (body["unit_id"], body["process_state"]) == ("U1", "never-started")
    assert "failure_reason" not in body
    assert body["activity"]["posture"] == "hard-only"


def _pid(desk: Desk, job: str, text: str = '{"supervisor_pid":1,"worker_pid":2,"supervisor_pgid":1}') -> None:
    desk.private(desk.run_dir() / "jobs" / job / "pid", text)


def test_every_word_of_the_runner_arrives_and_only_news_is_recorded(desk: Desk) -> None:
    job = desk.dispatched()["job_id"]
    folder = desk.run_dir() / "jobs" / job
    for word, reason in (
        ("never-started", "never-started"), ("running", "never-started"), ("failed", "failed"), ("timeout", "timeout"),
        ("died-without-result", "died-without-result"),
    ):  # fmt: skip
        if word == "running":
            _pid(desk, job)
        elif word != "never-started":
            desk.end_job(job, word)
        body = desk.do("SYNCED", "sync-job").body
        assert (body["process_state"], body["failure_reason"]) == (word, reason)
        assert set(body["activity"]) >= {"posture", "latest_at", "log_bytes"}
        assert set(body["progress"]) >= {"route", "elapsed_seconds", "latest_activity", "process_state", "limits"}
        fallback = desk.unit()["attempts"][0]["fallback"]
        assert (fallback["reason"], fallback["eligible"]) == (reason, True)
        with desk.unchanged():
            desk.do("SYNCED", "sync-job")
    assert (folder / "status").exists()


def test_a_job_that_is_done_makes_no_fallback_eligible(desk: Desk) -> None:
    desk.author()
    body = desk.do("SYNCED", "sync-job").body
    assert (body["process_state"], body["failure_reason"]) == ("done", None)
    assert desk.unit()["attempts"][0]["fallback"] == {"eligible": False, "reason": None, "claimed": None}


def test_growth_of_the_log_is_news(desk: Desk) -> None:
    job = desk.dispatched()["job_id"]
    _pid(desk, job)
    desk.do("SYNCED", "sync-job")
    (desk.run_dir() / "jobs" / job / "out.log").write_text("working\n")
    revision = desk.manifest()["revision"]
    body = desk.do("SYNCED", "sync-job").body
    assert body["activity"]["log_bytes"] == 8
    assert desk.manifest()["revision"] == revision + 1


def test_a_status_that_no_runner_writes_is_not_interpreted(desk: Desk) -> None:
    job = desk.dispatched()["job_id"]
    _pid(desk, job)
    for text in ("finished\n", "", "done\nfailed\n", "x" * 300):
        desk.private(desk.run_dir() / "jobs" / job / "status", text)
        desk.refuse("UNREADABLE", args=desk.of("sync-job"))


def _publish(desk: Desk, prepared: Prepared, status: str, **changes: Any) -> None:
    unavailable = status == "unavailable"
    neutral = {
        "terminal_status": status, "changed_files": [], "evidence": [], "failure_reason": "usage limit reached",
        "summary": "External route unavailable" if unavailable else "it broke",
        **({"actual_route": None} if unavailable else {}), **changes,
    }  # fmt: skip
    desk.write_result(prepared, **neutral)
    desk.end_job(prepared["job_id"], "failed")


@pytest.mark.parametrize("status", ["unavailable", "failed"])
def test_why_a_route_failed_is_told_and_kept(desk: Desk, status: str) -> None:
    prepared = desk.dispatched()
    _publish(desk, prepared, status)
    body = desk.do("SYNCED", "sync-job").body
    assert (body["process_state"], body["failure_reason"]) == ("failed", "usage limit reached")
    receipt = desk.unit()["attempts"][0]["terminal_receipt"]
    assert receipt["terminal_status"] == status
    assert set(receipt) >= {
        "requested_route", "actual_route", "target", "harness", "intermediaries", "model_requested", "model_actual",
        "model_receipt_status", "activity_posture", "restriction_posture", "failure_reason", "raw_log",
        "packet_digest", "summary", "changed_files", "changed_file_count", "evidence_count",
        "scope_expansion_requested", "result_sha256", "raw_log_sha256", "raw_log_bytes",
    }  # fmt: skip
    assert desk.kinds()[-1] == f"route-{status}"
    reply = desk.do("BLOCKED", "terminalize")
    assert reply.body["failure_reason"] == "usage limit reached"
    assert reply.body["terminal_receipt"] == receipt
    with desk.unchanged():
        desk.do("SYNCED", "sync-job")


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        ("unavailable", {"actual_route": "codex"}),
        ("unavailable", {"summary": "elsewhere"}),
        ("unavailable", {"model_receipt_status": "verified"}),
        ("unavailable", {"failure_reason": ""}),
        ("unavailable", {"failure_reason": "x" * 4097}),
        ("unavailable", {"changed_files": ["f"]}),
        ("failed", {"evidence": ["e"]}),
        ("failed", {"summary": ""}),
        ("failed", {"summary": "x" * 4097}),
        ("failed", {"failure_reason": None}),
        ("failed", {"activity_posture": "incremental"}),
        ("failed", {"target": "claude"}),
        ("failed", {"actual_route": None}),
        ("failed", {"packet_digest": "0" * 64}),
        ("failed", {"scope_expansion": {"requested_paths": ["x"], "reason": "r"}}),
        ("completed", {}),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else value,
)
def test_a_receipt_that_is_not_exactly_neutral_is_not_believed(
    failed: tuple[Desk, Prepared], status: str, changes: Any
) -> None:
    desk, prepared = failed
    _publish(desk, prepared, status, **changes)
    body = desk.do("SYNCED", "sync-job").body
    assert (body["process_state"], body["failure_reason"]) == ("failed", "failed")
    assert desk.unit()["attempts"][0]["terminal_receipt"] is None


def test_a_receipt_of_a_job_that_was_never_authorized_is_not_believed(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    prepared["job_id"] = desk.write_job(prepared)
    desk.call(*_record()).expect("AUTHORING")
    _publish(desk, prepared, "failed")
    assert desk.do("SYNCED", "sync-job").body["failure_reason"] == "failed"
    assert desk.unit()["attempts"][0]["terminal_receipt"] is None


def test_a_result_that_is_too_long_gives_the_runner_s_reason(desk: Desk) -> None:
    prepared = desk.dispatched()
    _publish(desk, prepared, "failed")
    with open(Path(prepared["result_dir"]) / "implementation-result.json", "r+b") as file:
        file.truncate(5 * 1024 * 1024 + 1)
    reason = "result exceeded byte cap (5242881 > 5242880 bytes)"
    desk.end_job(prepared["job_id"], "failed", reason)
    body = desk.do("SYNCED", "sync-job").body
    assert (body["process_state"], body["failure_reason"]) == ("failed", reason)


def test_reap_without_a_job_says_never_started(desk: Desk) -> None:
    desk.prepare().expect("PREPARED")
    with desk.unchanged():
        body = desk.do("REAPED", "reap").body
    assert (body["unit_id"], body["process_state"]) == ("U1", "never-started")


def test_reap_of_a_dead_job_takes_over_how_it_ended(desk: Desk) -> None:
    prepared = desk.dispatched()
    desk.end_job(prepared["job_id"], "timeout", "hard cap")
    body = desk.do("REAPED", "reap").body
    assert {key: body[key] for key in ("process_state", "failure_reason", "recovery_path")} == {
        "process_state": "timeout", "failure_reason": "timeout",
        "recovery_path": str(desk.run_dir() / "units" / "U1"),
    }  # fmt: skip
    assert "activity" in body


def test_progress_tells_how_long_is_left(desk: Desk) -> None:
    prepared = desk.prepare("U1", "--activity-posture", "incremental").expect("PREPARED").body
    limits = {"idle": 600, "hard": 7200, "log_max": 1, "result_max": 1, "poll": 2, "grace": 5}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    job = desk.write_job(prepared, supervision=limits, started_at=now)
    desk.authorize(prepared, job).expect("AUTHORIZED")
    _pid(desk, job)
    progress = desk.do("SYNCED", "sync-job").body["progress"]
    assert (progress["route"], progress["activity_posture"]) == ("codex", "incremental")
    assert progress["process_state"] == "running"
    assert 0 <= progress["elapsed_seconds"] < 60
    left = progress["limits"]
    assert (left["idle_seconds"], left["hard_seconds"]) == (600, 7200)
    assert 540 < left["idle_seconds_left"] <= 600
    assert 7140 < left["hard_seconds_left"] <= 7200
    assert progress["latest_activity"]["at"]
    shown = desk.call("status", "--run-id", "r1").expect("STATUS").body["progress"]["U1"]
    assert shown["route"] == "codex"


def _waiting(desk: Desk) -> list[str]:
    steps: list[list[str]] = desk.do("STATUS", "status").body["next"]
    return next(argv for argv in steps if argv[1] == "wait")


def test_every_program_works_with_the_smallest_path(desk: Desk) -> None:
    desk.env["PATH"] = "/usr/bin:/bin"
    desk.author()
    wait = [word for word in _waiting(desk) if word != "60"]
    wait.insert(wait.index("--max-secs") + 1, "0")
    done = subprocess.run(wait, env=desk.env, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert done.stdout.decode().strip() == "done", done
    desk.do("INTEGRATION_PENDING", "terminalize")
    desk.integrate(argv=("sh", "-c", "true")).expect("UNIT_COMMITTED")
    assert not os.path.exists(desk.run_dir() / "jobs" / JOB)
