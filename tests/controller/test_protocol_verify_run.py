"""`verify-run`: a receipt for the finished branch; whatever the command did, the checkout is as before."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controller.situations import Desk, alive, begin_run, wait_for
from tests.host import Reply

MOVED = "plan-wide verification changed canonical branch or HEAD"
FAILED = "plan-wide verification failed"
RUN = ["verify-run", "--run-id", "r1"]
RECEIPT = {
    "attempt_id", "at", "argv", "summary", "verification_exit", "log_sha256", "canonical_head", "accepted_units",
    "canonical_state_changed", "cleaned_paths", "ignored_state", "verification_log", "verification_log_retained",
    "evidence_digest",
}  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run whose one unit is integrated; verified again and again."""
    made = begin_run(tmp_path_factory.mktemp("verify"))
    made.done()
    return made


@pytest.fixture
def fresh(tmp_path: Path) -> Desk:
    """A run of its own, for what is not taken back."""
    return begin_run(tmp_path)


def _verify(desk: Desk, script: str, *more: str) -> Reply:
    before = desk.fingerprint()
    reply = desk.call(*RUN, *more, "--", "sh", "-c", script)
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    assert desk.manifest()["verification_attempts"][-1]["status"] == "receipt-recorded"
    return reply


def test_a_passing_command_leaves_a_receipt_that_can_be_recomputed(desk: Desk) -> None:
    body = _verify(desk, "echo fine").expect("RUN_VERIFIED").body
    assert set(body) == {
        "verification_exit", "evidence_digest", "canonical_head", "cleaned_paths", "ignored_state",
        "verification_log_retained", "next",
    }  # fmt: skip
    assert (body["verification_exit"], body["canonical_head"], body["cleaned_paths"]) == (0, desk.head, [])
    assert body["verification_log_retained"] is False
    receipt = desk.manifest()["verifications"][-1]
    assert set(receipt) >= RECEIPT
    assert receipt["accepted_units"] == {"U1": desk.head}
    assert receipt["argv"] == ["sh", "-c", "echo fine"]
    assert receipt["summary"] == "plan-wide authoritative verification passed"
    assert receipt["log_sha256"] == hashlib.sha256(b"fine\n").hexdigest()
    rest = {key: value for key, value in receipt.items() if key != "evidence_digest"}
    text = json.dumps(rest, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    assert receipt["evidence_digest"] == hashlib.sha256(text.encode()).hexdigest() == body["evidence_digest"]
    attempt = desk.manifest()["verification_attempts"][-1]
    assert set(attempt) >= {
        "attempt_id", "started_at", "status", "integration_lock_nonce", "lock_unit_id", "argv", "summary",
        "canonical_snapshot", "verification_log", "completed_at", "evidence_digest",
    }  # fmt: skip
    assert (attempt["lock_unit_id"], attempt["attempt_id"]) == ("U1", receipt["attempt_id"])
    assert not Path(attempt["verification_log"]).exists()


def test_it_can_be_repeated_and_every_receipt_stays(desk: Desk) -> None:
    count = len(desk.manifest()["verifications"])
    _verify(desk, "true", "--verification-summary", "once more").expect("RUN_VERIFIED")
    verifications = desk.manifest()["verifications"]
    assert len(verifications) == count + 1
    assert verifications[-1]["summary"] == "once more"


@pytest.mark.parametrize(
    ("script", "code"),
    [("echo no; exit 3", 3), ("touch extra; echo edit >> f; exit 1", 1), ("exec no-such-command-here", 127)],
    ids=["exit", "exit and dirt", "not found"],
)
def test_a_failing_command_is_recorded_and_blocks_nothing_else(desk: Desk, script: str, code: int) -> None:
    reply = _verify(desk, script).expect("BLOCKED")
    assert set(reply.body) >= {
        "verification_exit", "verification_log", "evidence_digest", "cleaned_paths", "ignored_state",
    }  # fmt: skip
    assert (reply.body["verification_exit"], reply.body["reason"]) == (code, FAILED)
    assert reply.body["cleaned_paths"] == (["extra", "f"] if "extra" in script else [])
    assert Path(reply.body["verification_log"]).exists()
    blocker = desk.manifest()["blockers"][-1]
    assert (blocker["reason"], blocker["unit_id"]) == (FAILED, None)
    assert desk.manifest()["verifications"][-1]["verification_exit"] == code
    _verify(desk, "true").expect("RUN_VERIFIED")


@pytest.mark.parametrize(
    ("script", "cleaned"),
    [
        ("echo mine > extra", ["extra"]),
        ("echo edit >> f", ["f"]),
        ("rm -r dir; git add -A", ["dir/g"]),
        ("git rm -q --cached f", ["f"]),
    ],
)
def test_what_a_passing_command_left_is_taken_back_named_and_kept(desk: Desk, script: str, cleaned: list[str]) -> None:
    body = _verify(desk, script).expect("RUN_VERIFIED").body
    assert body["cleaned_paths"] == cleaned
    receipt = desk.manifest()["verifications"][-1]
    assert (receipt["canonical_state_changed"], receipt["cleaned_paths"]) == (True, cleaned)
    if script.startswith("echo mine"):
        assert Path(body["recovered"][0]["copy"]).read_text() == "mine\n"


def test_a_command_that_hangs_is_ended_whole(desk: Desk) -> None:
    marker = f"plan-{os.getpid()}-{time.monotonic_ns()}"
    script = f"(setsid sh -c 'sleep 600; : {marker}' &); sleep 600; : {marker}"
    reply = _verify(desk, script, "--verification-timeout", "1").expect("BLOCKED")
    assert reply.body["verification_timed_out"] is True
    assert alive(marker) == []


@pytest.mark.parametrize("argv", [(), ("--",), ("--", "true", "")], ids=["nothing", "dashes", "empty argument"])
def test_without_a_command_nothing_is_verified(desk: Desk, argv: tuple[str, ...]) -> None:
    desk.refuse("REFUSED", "--", args=[*RUN, *argv])


def test_dirt_of_the_person_is_refused_by_name_and_kept(desk: Desk) -> None:
    (desk.repo / "mine").write_text("x")
    try:
        before = desk.fingerprint()
        reply = desk.call(*RUN, "--", "true").expect("BLOCKED")
        assert reply.body["dirty_paths"] == ["mine"]
        assert desk.fingerprint() == before
        assert desk.locks() == {}
    finally:
        (desk.repo / "mine").unlink()


def test_a_head_that_is_none_of_the_run_s_is_not_verified(desk: Desk) -> None:
    accepted = desk.head
    desk.git("commit", "-q", "--allow-empty", "-m", "by somebody")
    try:
        for _ in range(2):
            reply = desk.call(*RUN, "--", "true").expect("BLOCKED")
            assert (reply.body["accepted_heads"], reply.body["actual_head"]) == ([accepted], desk.head)
            assert desk.locks() == {}
            desk.git("reset", "-q", "--hard", f"{accepted}~1")
    finally:
        desk.git("reset", "-q", "--hard", accepted)


def test_a_run_with_work_left_is_not_verified(fresh: Desk) -> None:
    fresh.refuse("REFUSED", "accepted canonical commit", args=[*RUN, "--", "true"])
    fresh.done()
    transport = fresh.pending("U2", {"two": "2\n"})
    reply = fresh.refuse("REFUSED", "accepted canonical commit", args=[*RUN, "--", "true"])
    assert reply.body["units"] == ["U2"]
    # An abandoned unit has no accepted commit either.
    fresh.do("CLEANED", "cleanup", "--abandon", "--expect-transport", transport["commit"], unit="U2")
    fresh.refuse("REFUSED", "accepted canonical commit", args=[*RUN, "--", "true"])


def test_a_held_lock_comes_first(fresh: Desk) -> None:
    fresh.done()
    token = fresh.held()
    fresh.refuse("BLOCKED", "lock", args=[*RUN, "--", "true"])
    fresh.do("RELEASED", "integration-release", "--lock-token", token)
    fresh.call(*RUN, "--", "true").expect("RUN_VERIFIED")


@pytest.mark.parametrize(
    ("script", "undo"),
    [
        ("git commit -q --allow-empty -m evil", lambda desk, head: desk.git("reset", "-q", "--hard", head)),
        ("git checkout -q -b evil", lambda desk, head: desk.git("checkout", "-q", "main")),
        ("git checkout -q --detach; false", lambda desk, head: desk.git("checkout", "-q", "main")),
    ],
    ids=["commit", "branch", "detached"],
)
def test_a_command_that_moves_branch_or_head_keeps_the_lock_until_both_are_back(
    fresh: Desk, script: str, undo: Callable[[Desk, str], object]
) -> None:
    head = fresh.done()
    reply = fresh.call(*RUN, "--", "sh", "-c", script).expect("BLOCKED")
    assert set(reply.body) >= {"verification_exit", "verification_log", "cleaned_paths", "ignored_state"}
    assert (reply.body["reason"], reply.body["retain_integration_lock"]) == (MOVED, True)
    assert fresh.locks() != {}
    assert fresh.manifest()["verification_attempts"][-1]["status"] == "pending"
    reply = fresh.call("resume", "--run-id", "r1").expect("BLOCKED")
    assert fresh.locks() != {}
    undo(fresh, head)
    fresh.call("resume", "--run-id", "r1").expect("RESUMED")
    assert fresh.locks() == {}
    fresh.call(*RUN, "--", "true").expect("RUN_VERIFIED")


def test_a_killed_verification_is_taken_back_by_one_resume(fresh: Desk) -> None:
    fresh.done()
    before = fresh.fingerprint()
    marker = f"killed-{os.getpid()}-{time.monotonic_ns()}"
    fresh.kill_during_verification(RUN, f"echo mine > extra; echo edit >> f; (setsid sh -c 'sleep 600; : {marker}' &)")
    body = fresh.call("resume", "--run-id", "r1").expect("RESUMED").body
    assert alive(marker) == []
    wait_for(lambda: alive(str(fresh.base)) == [], "the killed verification's processes to end")
    assert fresh.fingerprint() == before
    assert fresh.locks() == {}
    assert [action["action"] for action in body["actions"]] == ["run-verification-restored"]
    with fresh.unchanged():
        fresh.call("resume", "--run-id", "r1").expect("RESUMED")
    fresh.call(*RUN, "--", "true").expect("RUN_VERIFIED")
    kept = {path.name: path.read_text() for path in (fresh.run_dir() / "recovered").rglob("*") if path.is_file()}
    assert kept == {"extra": "mine\n", "f": "one\nedit\n"}
