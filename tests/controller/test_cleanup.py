"""`cleanup`: nothing goes before it is in the branch, or before the host names exactly what it gives up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.controller.situations import DIGEST, Desk, begin_run


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _kept(desk: Desk, word: str, *more: str, phrase: str = "", unit: str = "U1") -> None:
    """A cleanup that must be refused with the workspace and everything else kept."""
    files = {path: path.read_bytes() for path in desk.run_dir().rglob("*") if path.is_file() and path.stem != "journal"}
    desk.refuse(word, phrase, args=desk.of("cleanup", *more, unit=unit))
    for path, data in files.items():
        if path.name not in ("manifest.json", "manifest.lock"):
            assert path.read_bytes() == data, path


def _abandon(desk: Desk, *more: str, unit: str = "U1") -> dict[str, object]:
    """Give a unit up; the receipt."""
    desk.do("CLEANED", "cleanup", "--abandon", *more, unit=unit)
    with desk.unchanged():
        assert desk.do("CLEANED", "cleanup", "--abandon", *more, unit=unit).body["resumed"] is True
    made = desk.unit(unit)
    assert made["state"] == "cleaned"
    assert made["cleanup"]["abandoned"] is True
    assert not Path(made["recovery_path"]).exists()
    assert desk.git("for-each-ref", "refs/ce-work") == ""
    assert desk.git("worktree", "list", "--porcelain").count("worktree ") == 1
    receipt: dict[str, object] = made["cleanup"]["abandonment_receipt"]
    return receipt


def test_a_unit_in_work_is_never_cleaned_without_its_exact_name(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    _kept(desk, "REFUSED")
    _kept(desk, "REFUSED", "--abandon", "--expect-job", "none")
    _kept(desk, "REFUSED", "--abandon", "--expect-transport", desk.head)
    job = desk.write_job(prepared)
    _kept(desk, "REFUSED", "--abandon", phrase=job)  # a job was started and not recorded yet
    desk.authorize(prepared, job).expect("AUTHORIZED")
    desk.private(desk.run_dir() / "jobs" / job / "pid", '{"worker_pid":1}')
    desk.do("SYNCED", "sync-job")
    _kept(desk, "REFUSED", "--abandon", "--expect-job", job, phrase="running")
    desk.write_result(prepared)
    Path(prepared["workspace"], "new.txt").write_text("new\n")
    desk.end_job(job, "done")
    desk.do("SYNCED", "sync-job")
    phrase = "successful worker output must be reconciled rather than bypassed"
    _kept(desk, "REFUSED", "--abandon", "--expect-job", job, phrase=phrase)
    transport = desk.do("INTEGRATION_PENDING", "terminalize").body["transport"]["commit"]
    for wrong in ((), ("--expect-job", job), ("--expect-transport", desk.head), ("--expect-transport", transport[:10])):
        _kept(desk, "REFUSED", "--abandon", *wrong, phrase=transport)
    _kept(desk, "REFUSED")
    _kept(desk, "REFUSED", "--expect-transport", transport, phrase="--abandon")
    assert _abandon(desk, "--expect-transport", transport) == {"kind": "transport", "value": transport}


def test_a_unit_that_was_never_dispatched_can_be_given_up_and_tried_again(desk: Desk) -> None:
    desk.prepare().expect("PREPARED")
    receipt = _abandon(desk)
    assert receipt["kind"] == "never-dispatched"
    desk.prepare("U1", "--attempt-id", "attempt-2").expect("PREPARED")


@pytest.mark.parametrize("word", ["failed", "timeout", "died-without-result"])
def test_a_failed_job_is_given_up_by_its_name_while_its_record_is_unchanged(desk: Desk, word: str) -> None:
    job = desk.failed("U1", word)["job_id"]
    _kept(desk, "REFUSED", "--abandon", phrase=job)
    _kept(desk, "REFUSED", "--abandon", "--expect-job", "other", phrase=job)
    other = "failed" if word != "failed" else "timeout"
    desk.end_job(job, other)
    _kept(desk, "BLOCKED", "--abandon", "--expect-job", job)
    desk.end_job(job, word)
    assert _abandon(desk, "--expect-job", job) == {"kind": "terminal-job", "value": job, "process_state": word}
    assert not (desk.run_dir() / "jobs" / job).exists()


def test_output_that_did_not_pass_is_given_up_only_as_it_was_judged(desk: Desk) -> None:
    prepared = desk.author()
    job = prepared["job_id"]
    desk.write_result(prepared, target="claude")
    desk.do("BLOCKED", "terminalize")
    desk.write_result(prepared, target="claude", summary="changed since")
    _kept(desk, "BLOCKED", "--abandon", "--expect-job", job)
    desk.do("BLOCKED", "terminalize")
    receipt = _abandon(desk, "--expect-job", job)
    assert receipt == {"kind": "terminal-validation-failure", "value": job, "process_state": "done"}


def test_a_blocked_worker_s_receipt_is_named_when_it_is_given_up(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, terminal_status="blocked", summary="no key")
    desk.do("BLOCKED", "terminalize")
    recorded = desk.unit()["attempts"][0]["terminal_receipt"]
    receipt = _abandon(desk, "--expect-job", prepared["job_id"])
    assert receipt == {
        "kind": "retained-worker-blocker", "value": prepared["job_id"], "process_state": "done",
        "terminal_status": "blocked", "result_sha256": recorded["result_sha256"],
        "raw_log_sha256": recorded["raw_log_sha256"],
    }  # fmt: skip


@pytest.mark.parametrize("state", ["held", "preflighted", "applied", "verified"])
def test_a_unit_whose_transport_may_be_applied_is_not_given_up(desk: Desk, state: str) -> None:
    if state == "held":
        desk.pending()
        token = desk.held()
    else:
        token = {"preflighted": desk.preflighted, "applied": desk.applied, "verified": desk.verified}[state]()
    transport = desk.unit()["transport"]["commit"]
    _kept(desk, "REFUSED", "--abandon", "--expect-transport", transport)
    if state == "held":
        return
    desk.do("PRESERVED", "restore", "--lock-token", token)
    _kept(desk, "REFUSED", "--abandon", "--expect-transport", transport, phrase="lock")
    desk.do("RELEASED", "integration-release", "--lock-token", token)
    _abandon(desk, "--expect-transport", transport)


def test_a_committed_unit_is_cleaned_not_abandoned(desk: Desk) -> None:
    token = desk.committed()
    transport = desk.unit()["transport"]["commit"]
    _kept(desk, "REFUSED", "--abandon", "--expect-transport", transport)
    body = desk.do("CLEANED", "cleanup").body
    assert {key: body[key] for key in ("unit_id", "resumed")} == {"unit_id": "U1", "resumed": False}
    with desk.unchanged():
        assert desk.do("CLEANED", "cleanup").body["resumed"] is True
    assert desk.unit()["cleanup"]["abandoned"] is False
    desk.do("RELEASED", "integration-release", "--lock-token", token)


def test_a_native_completion_stays_one_when_its_leftovers_go(desk: Desk) -> None:
    job = desk.failed()["job_id"]
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless")
    (desk.repo / "native").write_text("x\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", "native")
    more = ("--accepted-head", desk.head, "--evidence-digest", DIGEST, "--summary", "s")
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *more)
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-job", job)
    unit = desk.unit()
    assert unit["state"] == "native-completed"
    assert unit["cleanup"]["artifact_cleanup"]["complete"] is True
    assert desk.git("worktree", "list", "--porcelain").count("worktree ") == 1
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")


def test_a_ref_that_somebody_moved_is_not_deleted(desk: Desk) -> None:
    transport = desk.pending()
    desk.git("update-ref", transport["ref"], desk.head)
    desk.do("BLOCKED", "cleanup", "--abandon", "--expect-transport", transport["commit"])
    assert desk.git("rev-parse", transport["ref"]) == desk.head
    desk.git("update-ref", transport["ref"], transport["commit"])
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-transport", transport["commit"])


def test_a_worktree_that_somebody_locked_is_kept_until_it_is_unlocked(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    workspace = Path(prepared["workspace"])
    desk.git("worktree", "unlock", str(workspace), check=False)
    desk.git("worktree", "lock", "--reason", "mine", str(workspace))
    reply = desk.do("BLOCKED", "cleanup", "--abandon")
    assert "mine" in reply.stderr
    assert (workspace / "f").exists()
    desk.git("worktree", "unlock", str(workspace))
    desk.do("CLEANED", "cleanup", "--abandon")
    assert not workspace.exists()


def test_what_a_worker_did_to_its_folder_does_not_keep_it_from_going(desk: Desk) -> None:
    prepared = desk.failed()
    workspace = Path(prepared["workspace"])
    (workspace / "sealed" / "deep").mkdir(parents=True)
    (workspace / "sealed" / "deep" / "x").write_text("x")
    (workspace / "sealed" / "deep").chmod(0o000)
    (workspace / "sealed").chmod(0o500)
    (workspace / "away").symlink_to(desk.base / "outside")
    (desk.base / "outside").mkdir()
    (desk.base / "outside" / "precious").write_text("x")
    os.mkfifo(workspace / "pipe")
    subprocess.run(["git", "init", "-q", str(workspace / "nested")], check=True, stdin=subprocess.DEVNULL)
    _abandon(desk, "--expect-job", prepared["job_id"])
    assert (desk.base / "outside" / "precious").exists()


def test_a_workspace_that_somebody_deleted_is_still_cleaned_up_after(desk: Desk) -> None:
    prepared = desk.failed()
    subprocess.run(["rm", "-rf", prepared["workspace"]], check=True)
    _abandon(desk, "--expect-job", prepared["job_id"])


def test_the_evidence_of_every_attempt_stays_and_a_long_log_is_bounded(desk: Desk) -> None:
    first = desk.failed()
    log = desk.run_dir() / "jobs" / first["job_id"] / "out.log"
    log.write_bytes(b"x" * 3_000_000 + b"the end\n")
    desk.private(Path(first["result_dir"]) / "adapter.log", "what the worker said\n")
    desk.do("SYNCED", "sync-job")
    _abandon(desk, "--expect-job", first["job_id"])
    evidence = desk.run_dir() / "evidence" / "U1" / "attempt-1"
    assert (evidence / "packet.md").read_bytes() == b"do it\n"
    assert (evidence / "adapter.log").read_text() == "what the worker said\n"
    assert (evidence / "job-status").read_text() == "failed\n"
    kept = (evidence / "job-out.log").read_bytes()
    assert kept.endswith(b"the end\n")
    assert len(kept) <= 1024 * 1024 + 4096
    desk.prepare("U1", "--attempt-id", "second", packet=b"better\n").expect("PREPARED")
    desk.do("CLEANED", "cleanup", "--abandon")
    assert (evidence.parent / "second" / "packet.md").read_bytes() == b"better\n"
    assert (evidence / "packet.md").read_bytes() == b"do it\n"
    assert os.stat(evidence / "packet.md").st_mode & 0o777 == 0o600
    attempts = desk.unit()["attempts"]
    assert [attempt["authorization_retained"] for attempt in attempts] == [False, False]
    assert attempts[0]["bulky_artifacts_retained"] is False


def test_another_branch_keeps_an_unfinished_unit_but_not_a_finished_one_s_answer(desk: Desk) -> None:
    desk.done("U2", {"two": "2\n"})
    desk.prepare().expect("PREPARED")
    desk.git("checkout", "-qb", "other")
    _kept(desk, "BLOCKED", "--abandon", phrase="branch")
    desk.do("CLEANED", "cleanup", unit="U2")
