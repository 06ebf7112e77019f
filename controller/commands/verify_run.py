"""`verify-run`: the plan-wide verification on the finished branch; the checkout is as before, whatever it did."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller import (
    ancestry,
    canonical,
    checkout,
    encoding,
    integration_lock,
    journal,
    restoring,
    transaction,
    verification,
)
from controller import records as r
from controller.answer import Answer
from controller.checkout import Look
from controller.errors import Blocked, ControllerError, Refused
from controller.run import OpenRun, changing
from controller.state import RunVerification, accepted_commits, unaccepted

MOVED = "plan-wide verification changed canonical branch or HEAD"
FAILED = "plan-wide verification failed"
UNRESTORED = "plan-wide verification left state that could not be restored exactly"


def verify_run(*, run_id: str, summary: str, timeout: int, wait_lock: float, argv: Sequence[str]) -> Answer:
    """Run argv at the accepted HEAD under the integration lock, restore tracked state, record a durable receipt."""
    words = verification.arguments(argv)
    with changing(run_id, wait=max(wait_lock, 2.0)) as run:
        accepted = _accepted(run)
        if run.state.lock is not None and run.state.lock.phase != "intent":
            raise Blocked(
                "the run holds the integration lock",
                detail={"unit_id": run.state.lock.unit_id},
                expected="no lock",
                found=f"held for {run.state.lock.unit_id}",
                remedy="finish that unit, or `resume --run-id`",
            )
        holder = max(run.state.units)
        token, _ = integration_lock.take(run, holder, resume=False, wait=wait_lock)
        try:
            seen = _require_accepted_head(run, accepted)
        except ControllerError:
            integration_lock.release(run)
            raise
        index_copy, index_sha256 = canonical.save_index(run)
        attempt = secrets.token_hex(16)
        log = run.directory / "jobs" / f"run-verification-{secrets.token_hex(6)}.log"
        run.record(
            r.RunVerificationStarted(
                attempt_id=attempt,
                integration_lock_nonce=token,
                argv=words,
                summary=summary,
                canonical_snapshot=seen.snapshot,
                verification_log=str(log),
                index_copy=index_copy,
                index_sha256=index_sha256,
            ),
            unit=holder,
        )
        try:
            verdict = verification.run_command(run, holder, words, log, seen.snapshot, timeout)
        except ControllerError as error:
            abandon_pending(run)
            integration_lock.release(run)
            raise error
        return _conclude(run, holder, attempt, summary, words, verdict, accepted)


def _accepted(run: OpenRun) -> dict[str, str]:
    accepted = accepted_commits(run.state)
    waiting = unaccepted(run.state)
    if not accepted or waiting:
        raise Refused(
            "every unit needs an accepted canonical commit before verify-run",
            detail={"units": waiting},
            expected="at least one unit, all cleaned after commit or native-completed",
            found=", ".join(waiting) or "no unit",
            remedy="finish these units, or (for a unit that is given up) complete it through claim-fallback",
        )
    return accepted


def _require_accepted_head(run: OpenRun, accepted: dict[str, str]) -> Look:
    seen = run.look()
    checkout.validate(seen.observation, run.state.repository, run.state.branch.ref)
    checkout.require_clean(seen.status, run.state.repository.git_dir)
    head = seen.observation.head
    bases = {unit.workspace.base for unit in run.state.units.values()}
    commits = list(accepted.values())
    ok = len(set(commits)) == len(commits) and head in commits
    if not ok or ancestry.missing(run.git, {*commits, *bases}, head):
        raise Blocked(
            "canonical HEAD is not the accepted head of this run",
            detail={"accepted_heads": sorted(commits), "actual_head": head},
            expected="HEAD is one of the accepted commits and contains all of them",
            found=head,
            remedy="put the branch back to the last accepted commit, or verify later work in a run of its own",
        )
    return seen


def _restore(run: OpenRun, attempt: RunVerification) -> restoring.Restored:
    return restoring.restore(
        run,
        attempt.canonical_snapshot,
        attempt.index_copy,
        touched=(),
        anything=True,
        unit=None,
        cause="plan-wide verification",
    )


def abandon_pending(run: OpenRun) -> restoring.Restored:
    """Put the checkout back after a plan-wide verification that has no outcome, and close its attempt."""
    attempt = run.state.pending_verification
    assert attempt is not None
    done = _restore(run, attempt)
    run.record(r.RunVerificationAbandoned(attempt_id=attempt.attempt_id, recovered=done.recovered))
    Path(attempt.index_copy).unlink(missing_ok=True)
    return done


def _conclude(
    run: OpenRun,
    holder: str,
    attempt_id: str,
    summary: str,
    argv: tuple[str, ...],
    verdict: verification.Verdict,
    accepted: dict[str, str],
) -> Answer:
    attempt = run.state.pending_verification
    assert attempt is not None
    body: dict[str, Any] = {
        "verification_exit": verdict.exit_code,
        "verification_timed_out": verdict.timed_out,
        "verification_log": verdict.log,
        "cleaned_paths": [],
        "ignored_state": verdict.ignored_state,
    }
    cleaned: list[str] = []
    if verdict.changed:
        try:
            restored = _restore(run, attempt)
        except ControllerError as error:
            before, after = verdict.before, verdict.after.snapshot
            moved = (before.head, before.branch_ref) != (after.head, after.branch_ref)
            raise _stuck(run, holder, MOVED if moved else UNRESTORED, body, error) from None
        cleaned = sorted(restored.paths)
        body["cleaned_paths"] = cleaned
        if restored.recovered:
            body["recovered"] = encoding.plain(restored.recovered)
    passed = verdict.exit_code == 0
    receipt: dict[str, Any] = {
        "attempt_id": attempt_id,
        "at": encoding.seconds(journal.utc_now_ms()),
        "argv": list(argv),
        "summary": summary,
        "verification_exit": verdict.exit_code,
        "verification_timed_out": verdict.timed_out,
        "log_sha256": verdict.log_sha256,
        "canonical_head": verdict.before.head,
        "accepted_units": accepted,
        "canonical_state_changed": verdict.changed,
        "cleaned_paths": cleaned,
        "ignored_state": verdict.ignored_state,
        "verification_log": None if passed else verdict.log,
        "verification_log_retained": not passed,
    }
    receipt["evidence_digest"] = verification.evidence_digest(receipt)
    run.record((r.RunVerificationPassed if passed else r.RunVerificationFailed)(receipt=receipt), unit=holder)
    Path(attempt.index_copy).unlink(missing_ok=True)
    if passed:
        Path(verdict.log).unlink(missing_ok=True)
        integration_lock.release(run)
        return Answer(
            "RUN_VERIFIED",
            {
                "verification_exit": 0,
                "evidence_digest": receipt["evidence_digest"],
                "canonical_head": verdict.before.head,
                "cleaned_paths": cleaned,
                "ignored_state": verdict.ignored_state,
                "verification_log_retained": False,
                **({"recovered": body["recovered"]} if "recovered" in body else {}),
            },
        )
    failure = Blocked(
        FAILED,
        detail={**body, "reason": FAILED, "evidence_digest": receipt["evidence_digest"]},
        expected="exit 0",
        found=f"exit {verdict.exit_code}" + (" (timeout)" if verdict.timed_out else ""),
        remedy=f"read {verdict.log}; mend it with another unit, then verify-run again",
    )
    integration_lock.release(run)
    transaction.record_blocker(run, r.RunVerificationBlocked, None, failure, FAILED)
    raise failure


def _stuck(run: OpenRun, holder: str, reason: str, body: dict[str, Any], failure: ControllerError) -> Blocked:
    stuck = Blocked(
        reason,
        detail={**body, "reason": reason, "retain_integration_lock": True},
        expected=failure.expected,
        found=failure.found,
        remedy=f"{failure.remedy}; then run `resume --run-id`",
    )
    transaction.record_blocker(run, r.RunVerificationRestoreBlocked, holder, stuck, reason)
    return stuck
