"""The manual steps of the canonical transaction: lock, preflight, marks, restore, release."""

from __future__ import annotations

from collections.abc import Sequence

from controller import encoding, integration_lock, lock, machine, sanction, transaction
from controller import records as r
from controller.answer import Answer
from controller.errors import Blocked, Refused
from controller.run import changing


def acquire(*, run_id: str, unit_id: str, resume: bool, wait: float) -> Answer:
    """`integration-acquire`."""
    with changing(run_id, wait=max(wait, lock.DEFAULT_WAIT)) as run:
        run.observe()
        token, resumed = integration_lock.acquire(run, unit_id, resume=resume, wait=wait)
        return Answer("ACQUIRED", {"lock_token": token, "resumed": resumed, "path": str(run.lock_path)})


def preflight(*, run_id: str, unit_id: str, lock_token: str, allowed_head: Sequence[str], wait: float) -> Answer:
    """`preflight`: nothing is touched; what the host's cherry-pick must produce is recorded."""
    with changing(run_id, wait=wait) as run:
        transaction.preflight(run, unit_id, lock_token, allowed_head, driver="manual")
        unit = run.unit(unit_id)
        return Answer(
            "PREFLIGHT_OK",
            {
                "unit_id": unit_id,
                "pre_fold": encoding.plain(unit.integration.pre_fold),
                "transport": encoding.plain(unit.transport),
            },
        )


def mark_applied(*, run_id: str, unit_id: str, lock_token: str, wait: float) -> Answer:
    """`mark-applied`."""
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        machine.require("mark-applied", unit_id, unit.state)
        lock.require_token(run.state, unit_id, lock_token, run.root)
        if unit.integration.pre_fold is None:
            raise Refused("preflight has not run", detail={"unit_id": unit_id}, expected="preflight", found="nothing")
        transaction.mark_applied(run, unit_id, run.look())
        applied = run.unit(unit_id).integration.applied
        assert applied is not None
        return Answer("APPLIED", {"unit_id": unit_id, "post_index_tree": applied.post_index_tree})


def mark_verified(
    *,
    run_id: str,
    unit_id: str,
    lock_token: str,
    evidence_digest: str,
    summary: str,
    ignored_state: str | None,
    wait: float,
) -> Answer:
    """`mark-verified`."""
    ignored = None if ignored_state is None else sanction.parse_object(ignored_state, "--ignored-state")
    with changing(run_id, wait=wait) as run:
        machine.require("mark-verified", unit_id, run.unit(unit_id).state)
        lock.require_token(run.state, unit_id, lock_token, run.root)
        seen = run.look()
        verification = transaction.mark_verified(run, unit_id, seen, evidence_digest, summary, ignored)
        return Answer("VERIFIED", {"unit_id": unit_id, "verification": encoding.plain(verification)})


def mark_committed(*, run_id: str, unit_id: str, lock_token: str, wait: float) -> Answer:
    """`mark-committed`."""
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        machine.require("mark-committed", unit_id, unit.state)
        lock.require_token(run.state, unit_id, lock_token, run.root)
        recorded = unit.integration.canonical_commit
        made = recorded if unit.state == "committed" and recorded else transaction.mark_committed(run, unit_id)
        return Answer("COMMITTED", {"unit_id": unit_id, "canonical_commit": encoding.plain(made)})


def restore(*, run_id: str, unit_id: str, lock_token: str, wait: float) -> Answer:
    """`restore`: the lock stays held; what would be lost is in the run's `recovered/`."""
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        machine.require("restore", unit_id, unit.state)
        lock.require_token(run.state, unit_id, lock_token, run.root)
        try:
            done = transaction.restore(
                run, unit_id, anything=transaction.verification_ran(run, unit_id), cause="restore"
            )
        except Blocked as error:
            transaction.record_blocker(run, r.RestoreBlocked, unit_id, error)
            raise
        body = {"unit_id": unit_id, "recovery_path": str(run.unit_dir(unit_id))}
        if done.recovered:
            body["recovered"] = encoding.plain(done.recovered)
        return Answer("PRESERVED", body)


def release(*, run_id: str, unit_id: str, lock_token: str, wait: float) -> Answer:
    """`integration-release`."""
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        held = run.state.lock
        if held is None or held.unit_id != unit_id or held.nonce != lock_token:
            raise Refused(
                "the lock token is not the one that this unit holds",
                detail={"unit_id": unit_id},
                expected="the lock_token that integration-acquire returned",
                found="no lock held" if held is None else f"lock held for {held.unit_id}",
                remedy="integration-acquire --resume returns it",
            )
        machine.require("integration-release", unit_id, unit.state)
        if unit.state == "integration-pending" and unit.integration.pre_fold is not None:
            raise Refused(
                "the transport may be applied; releasing would lose its protection",
                detail={"unit_id": unit_id},
                expected="restored, or before preflight",
                found="after preflight",
                remedy="restore first",
            )
        integration_lock.release(run)
        return Answer("RELEASED", {"unit_id": unit_id})
