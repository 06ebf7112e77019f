"""`claim-fallback`, `complete-fallback`: native work begins once, after an authoritative end, and is proven at HEAD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.controller.situations import DIGEST, Desk, begin_run

CLAIM = ("--caller-mode", "headless")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _claim(desk: Desk, unit: str = "U1") -> dict[str, Any]:
    return desk.do("FALLBACK_AUTHORIZED", "claim-fallback", *CLAIM, unit=unit).body


def _no_claim(desk: Desk, word: str, *phrases: str, unit: str = "U1") -> dict[str, Any]:
    reply = desk.refuse(word, *phrases, args=desk.of("claim-fallback", *CLAIM, unit=unit))
    return reply.body


def _native(desk: Desk, name: str = "native") -> str:
    (desk.repo / name).write_text("by the host\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", f"feat: {name}")
    return desk.head


def _complete(head: str, **changes: str) -> list[str]:
    values = {"accepted-head": head, "evidence-digest": DIGEST, "summary": "built and tested"} | changes
    return [word for name, value in values.items() for word in (f"--{name}", value)]


# --- claim --------------------------------------------------------------------------------------------------------


def test_every_bad_end_of_a_worker_allows_exactly_one_claim_with_its_reason(desk: Desk) -> None:
    ends = {"U1": "failed", "U2": "timeout", "U3": "died-without-result"}
    for unit, word in ends.items():
        job = desk.dispatched(unit)["job_id"]
        desk.end_job(job, word)
    prepared = desk.prepare("U4").expect("PREPARED").body
    record = desk.of("record-job", "--attempt-id", "attempt-1", "--job-id", desk.write_job(prepared), unit="U4")
    desk.call(*record).expect("AUTHORING")
    for unit, reason in {**ends, "U4": "never-started"}.items():
        body = _claim(desk, unit)  # `claim-fallback` takes over the runner's word by itself
        assert set(body) == {"unit_id", "start_native", "reason", "claim", "next"}
        assert (body["unit_id"], body["start_native"], body["reason"]) == (unit, True, reason)
        assert body["claim"] == {
            "at": body["claim"]["at"], "reason": reason, "caller_mode": "headless", "mode": "prefer",
            "canonical_head": desk.head,
        }  # fmt: skip
        with desk.unchanged():
            again = desk.do("FALLBACK_ALREADY_AUTHORIZED", "claim-fallback", "--caller-mode", "interactive", unit=unit)
        assert (again.body["start_native"], again.body["claim"]) == (False, body["claim"])
        fallback = desk.unit(unit)["attempts"][0]["fallback"]
        assert (fallback["eligible"], fallback["claimed"]) == (False, body["claim"])


def test_a_worker_that_may_still_deliver_or_has_delivered_is_not_bypassed(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    _no_claim(desk, "REFUSED", "never dispatched")
    job = desk.write_job(prepared)
    desk.authorize(prepared, job).expect("AUTHORIZED")
    desk.private(desk.run_dir() / "jobs" / job / "pid", '{"worker_pid":1}')
    desk.do("SYNCED", "sync-job")
    _no_claim(desk, "REFUSED", "running")
    desk.write_result(prepared)
    desk.end_job(job, "done")
    desk.do("SYNCED", "sync-job")
    _no_claim(desk, "REFUSED", "successful worker output must be reconciled rather than bypassed")
    desk.do("INTEGRATION_PENDING", "terminalize")
    _no_claim(desk, "REFUSED", "pinned worker transport must be reconciled")
    desk.integrate().expect("UNIT_COMMITTED")
    _no_claim(desk, "REFUSED")


def test_a_claim_waits_for_the_dependencies_and_a_clean_checkout_on_the_right_head(desk: Desk) -> None:
    desk.failed("U2", "failed", "--dependency", "U1", "--dependency", "U0")
    body = _no_claim(desk, "BLOCKED", "dependencies must have controller-accepted canonical commits", unit="U2")
    assert (set(body["missing_dependencies"]), body["unaccepted_dependencies"]) == ({"U0", "U1"}, [])
    desk.failed("U3")
    (desk.repo / "mine").write_text("x")
    body = _no_claim(desk, "BLOCKED", "requires a clean canonical checkout", unit="U3")
    assert body["dirty_paths"] == ["mine"]
    (desk.repo / "mine").unlink()
    head = desk.head
    desk.git("commit", "-q", "--allow-empty", "-m", "by somebody")
    _no_claim(desk, "BLOCKED", "canonical HEAD advanced outside the recorded wave", unit="U3")
    desk.git("reset", "-q", "--hard", head)
    desk.git("checkout", "-qb", "other")
    _no_claim(desk, "BLOCKED", "branch", unit="U3")
    desk.git("checkout", "-q", "main")
    desk.done("U4", {"four": "4\n"})  # the branch may advance by what the run itself accepted
    assert _claim(desk, "U3")["claim"]["canonical_head"] == desk.head


def test_a_receipt_that_changed_after_it_was_recorded_allows_no_claim(desk: Desk) -> None:
    prepared = desk.dispatched()
    neutral = {"terminal_status": "failed", "changed_files": [], "evidence": [], "failure_reason": "quota"}
    desk.write_result(prepared, **neutral)
    desk.end_job(prepared["job_id"], "failed")
    desk.do("SYNCED", "sync-job")
    result = Path(prepared["result_dir"]) / "implementation-result.json"
    text = result.read_text()
    result.write_text(text.replace("quota", "other"))
    _no_claim(desk, "BLOCKED", "does not re-read identically")
    result.write_text(text)
    assert _claim(desk)["reason"] == "quota"


def test_a_validation_failure_allows_a_claim_only_while_the_output_is_the_same(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, target="claude")
    desk.do("BLOCKED", "terminalize")
    desk.write_result(prepared, target="claude", summary="changed since")
    _no_claim(desk, "BLOCKED", "changed")
    desk.do("BLOCKED", "terminalize")
    assert _claim(desk)["reason"] == "terminal-validation-failure"


def test_a_restored_integration_allows_a_claim_when_checkout_and_lock_are_as_before(desk: Desk) -> None:
    token = desk.applied()
    desk.do("PRESERVED", "restore", "--lock-token", token)
    _no_claim(desk, "REFUSED", "lock")
    desk.do("RELEASED", "integration-release", "--lock-token", token)
    (desk.repo / "mine").write_text("x")
    _no_claim(desk, "BLOCKED", "pre-fold snapshot")
    (desk.repo / "mine").unlink()
    assert _claim(desk)["reason"] == "canonical-attempt-preserved"
    before = desk.fingerprint()
    reply = desk.integrate().expect("REFUSED")  # else the unit would be done twice
    assert "native fallback already owns implementation" in reply.stderr
    assert (desk.fingerprint(), desk.locks()) == (before, {})
    head = _native(desk)
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *_complete(head))


# --- complete -----------------------------------------------------------------------------------------------------


def test_a_native_implementation_is_accepted_once_and_counts_for_the_run(desk: Desk) -> None:
    base = desk.head
    desk.failed()
    claim = _claim(desk)["claim"]
    head = _native(desk)
    body = desk.do("FALLBACK_COMPLETED", "complete-fallback", *_complete(head)).body
    assert set(body) == {"unit_id", "completion", "eligible_siblings", "next"}
    completion = body["completion"]
    assert {key: value for key, value in completion.items() if key not in ("at", "snapshot")} == {
        "base": base, "accepted_head": head, "evidence_digest": DIGEST, "summary": "built and tested",
        "claim": claim, "changed_paths": ["native"],
    }  # fmt: skip
    assert (completion["snapshot"]["head"], body["eligible_siblings"]) == (head, [])
    unit = desk.unit()
    assert unit["state"] == "native-completed"
    assert unit["attempts"][0]["fallback"]["completed"] == completion
    desk.refuse("REFUSED", args=desk.of("complete-fallback", *_complete(head)))
    with desk.unchanged():
        desk.do("FALLBACK_ALREADY_AUTHORIZED", "claim-fallback", *CLAIM)
    desk.done("U2", {"two": "2\n"}, "--dependency", "U1")
    reply = desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert reply.body["canonical_head"] == desk.head
    assert desk.manifest()["verifications"][-1]["accepted_units"]["U1"] == head


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A claimed unit, and a native commit on the branch."""
    made = begin_run(tmp_path_factory.mktemp("fallback"))
    made.failed()
    made.prepare("U2").expect("PREPARED")
    _claim(made)
    _native(made)
    return made


@pytest.mark.parametrize(
    ("changes", "unit", "word"),
    [
        ({"accepted-head": "HEAD"}, "U1", "REFUSED"),
        ({"accepted-head": "a" * 39}, "U1", "REFUSED"),
        ({"accepted-head": "A" * 40}, "U1", "REFUSED"),
        ({"accepted-head": "b" * 40}, "U1", "BLOCKED"),
        ({"evidence-digest": "x"}, "U1", "REFUSED"),
        ({"evidence-digest": "a" * 63}, "U1", "REFUSED"),
        ({"summary": ""}, "U1", "REFUSED"),
        ({"summary": "x" * 1025}, "U1", "REFUSED"),
        ({}, "U2", "REFUSED"),
        ({}, "U9", "REFUSED"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else value,
)
def test_a_completion_without_exact_evidence_is_not_recorded(
    claimed: Desk, changes: dict[str, str], unit: str, word: str
) -> None:
    claimed.refuse(word, args=claimed.of("complete-fallback", *_complete(claimed.head, **changes), unit=unit))


def test_a_completion_needs_the_commit_at_head_clean_and_on_the_branch(desk: Desk) -> None:
    base = desk.head
    desk.failed()
    _claim(desk)
    desk.refuse("BLOCKED", args=desk.of("complete-fallback", *_complete(base)))
    head = _native(desk)
    args = desk.of("complete-fallback", *_complete(head))
    desk.refuse("BLOCKED", args=desk.of("complete-fallback", *_complete(base)))
    (desk.repo / "mine").write_text("x")
    desk.refuse("BLOCKED", "requires a clean canonical checkout", args=args)
    (desk.repo / "mine").unlink()
    desk.git("checkout", "-qb", "other")
    desk.refuse("BLOCKED", "branch", args=args)
    desk.git("checkout", "-q", "main")
    desk.git("checkout", "-q", "--orphan", "unrelated")
    desk.git("commit", "-qm", "no history")
    orphan = desk.head
    desk.git("checkout", "-q", "main")
    desk.git("reset", "-q", "--hard", orphan)
    reply = desk.refuse("BLOCKED", args=desk.of("complete-fallback", *_complete(orphan)))
    assert {"kind": "wave-head", "commit": base} in reply.body["missing_ancestry"]
    desk.git("reset", "-q", "--hard", head)
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *_complete(head))


def test_native_work_that_lost_accepted_work_is_not_accepted(desk: Desk) -> None:
    base = desk.head
    desk.failed("U3", "failed", "--dependency", "U1")
    one = desk.done("U1", {"one": "1\n"})
    two = desk.done("U2", {"two": "2\n"})
    _claim(desk, "U3")
    desk.git("reset", "-q", "--hard", base)
    head = _native(desk)
    reply = desk.refuse("BLOCKED", args=desk.of("complete-fallback", *_complete(head), unit="U3"))
    assert reply.body["accepted_head"] == head
    assert sorted(reply.body["missing_ancestry"], key=lambda item: str(item["unit_id"])) == [
        {"kind": "dependency", "unit_id": "U1", "commit": one},
        {"kind": "accepted-unit", "unit_id": "U2", "commit": two},
    ]


def test_no_completion_while_another_unit_is_being_integrated(desk: Desk) -> None:
    desk.failed()
    _claim(desk)
    desk.pending("U2", {"two": "2\n"})
    token = desk.held("U2")
    head = _native(desk)
    desk.refuse("REFUSED", "lock", args=desk.of("complete-fallback", *_complete(head)))
    desk.do("RELEASED", "integration-release", "--lock-token", token, unit="U2")
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *_complete(head))
