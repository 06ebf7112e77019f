"""What each record kind does to the run's state: one small pure function a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from controller import records as r
from controller.errors import Unreadable
from controller.state import (
    FAILED_WORDS,
    Attempt,
    Blocker,
    Fallback,
    Integration,
    IntegrationLock,
    Run,
    RunVerification,
    Unit,
    VerificationProcess,
    Workspace,
    with_attempt,
    with_unit,
)


class Entry(msgspec.Struct, frozen=True):
    """A journal record with its data decoded."""

    seq: int
    at: str
    unit: str | None
    attempt: str | None
    data: r.Data


Step = Callable[[Run, Entry, Any], Run]
STEPS: dict[type[r.Data], Step] = {}


def _on(*types: type[r.Data]) -> Callable[[Step], Step]:
    def register(step: Step) -> Step:
        for cls in types:
            STEPS[cls] = step
        return step

    return register


def _unit(run: Run, entry: Entry) -> Unit:
    unit = run.units.get(entry.unit or "")
    if unit is None:
        raise Unreadable(f"journal record {entry.seq} names unit {entry.unit!r}, which was never prepared")
    return unit


@_on(r.CheckpointIntent)
def _checkpoint_intent(run: Run, entry: Entry, data: r.CheckpointIntent) -> Run:
    return replace(run, checkpoint_intent=data.commit)


@_on(r.PlanCheckpoint)
def _checkpoint(run: Run, entry: Entry, data: r.PlanCheckpoint) -> Run:
    return replace(run, checkpoint=data.checkpoint, checkpoint_intent=None)


@_on(r.WorktreeAddIntent, r.UnitRetryPrepared)
def _prepare(run: Run, entry: Entry, data: r.UnitPacket) -> Run:
    attempt = Attempt(
        attempt_id=entry.attempt or "",
        authorization=data.authorization,
        authorization_path=data.authorization_path,
        authorization_digest=data.authorization_digest,
        adapter=data.adapter,
        activity_posture=data.activity_posture,
        started_at=entry.at,
        activity={"posture": data.activity_posture, "latest_at": None},
        packet_digest=data.packet.digest,
    )
    earlier: tuple[Attempt, ...] = ()
    if isinstance(data, r.UnitRetryPrepared):
        old = _unit(run, entry)
        receipts = {"cleanup_receipt": old.cleanup, "restore_receipt": old.integration.restore}
        earlier = (*old.attempts[:-1], replace(old.attempt, **receipts))
    unit = Unit(
        unit_id=entry.unit or "",
        state="queued",
        dependencies=data.dependencies,
        wave=data.wave,
        packet_digest=data.packet.digest,
        packet=data.packet,
        workspace=Workspace(path=data.workspace, base=data.base),
        result_dir_identity=data.result_dir_identity,
        attempts=(*earlier, attempt),
    )
    return replace(run, units={**run.units, unit.unit_id: unit})


@_on(r.WorktreePrepared)
def _worktree_prepared(run: Run, entry: Entry, data: r.WorktreePrepared) -> Run:
    unit = _unit(run, entry)
    workspace = replace(
        unit.workspace,
        registered=True,
        manifest_sha256=data.manifest_sha256,
        git_config_sha256=data.git_config_sha256,
    )
    return with_unit(run, unit, workspace=workspace)


@_on(r.JobBound)
def _job_bound(run: Run, entry: Entry, data: r.JobBound) -> Run:
    unit = _unit(run, entry)
    receipt = data.receipt or unit.attempt.dispatch_authorization_receipt
    return with_attempt(run, unit, {"state": "authoring"}, job_id=data.job_id, dispatch_authorization_receipt=receipt)


@_on(r.JobAdopted)
def _job_adopted(run: Run, entry: Entry, data: r.JobAdopted) -> Run:
    return with_attempt(run, _unit(run, entry), {"state": "authoring"}, job_id=data.job_id)


@_on(r.JobSynced)
def _job_synced(run: Run, entry: Entry, data: r.JobSynced) -> Run:
    unit = _unit(run, entry)
    return with_attempt(run, unit, process_state=data.process_state, activity=data.activity, limits=data.limits)


@_on(r.JobTerminal)
def _job_terminal(run: Run, entry: Entry, data: r.JobTerminal) -> Run:
    unit = _unit(run, entry)
    fallback = unit.attempt.fallback
    if data.process_state in (*FAILED_WORDS, "never-started"):
        reason = data.failure_reason or data.process_state
        fallback = replace(fallback, reason=reason, eligible=fallback.claimed is None)
    return with_attempt(
        run,
        unit,
        process_state=data.process_state,
        activity=data.activity,
        limits=data.limits,
        fallback=fallback,
    )


@_on(r.RouteUnavailable, r.RouteFailed)
def _route_receipt(run: Run, entry: Entry, data: r.RouteUnavailable | r.RouteFailed) -> Run:
    unit = _unit(run, entry)
    fallback = unit.attempt.fallback
    reason = str(data.terminal_receipt.get("failure_reason") or unit.attempt.process_state)
    return with_attempt(
        run,
        unit,
        terminal_receipt=data.terminal_receipt,
        fallback=replace(fallback, reason=reason, eligible=fallback.claimed is None),
    )


@_on(r.WorkerOutputAuthored)
def _authored(run: Run, entry: Entry, data: r.WorkerOutputAuthored) -> Run:
    unit = _unit(run, entry)
    return with_attempt(run, unit, {"state": "authored"}, terminal_receipt=data.terminal_receipt)


@_on(r.TerminalValidationFailed)
def _validation_failed(run: Run, entry: Entry, data: r.TerminalValidationFailed) -> Run:
    unit = _unit(run, entry)
    fallback = unit.attempt.fallback
    if fallback.claimed is None:
        fallback = replace(fallback, eligible=True, reason="terminal-validation-failure")
    failure = {"at": entry.at, **asdict(data)}
    return with_attempt(run, unit, terminal_validation_failure=failure, fallback=fallback)


@_on(r.TransportPinIntent)
def _pin_intent(run: Run, entry: Entry, data: r.TransportPinIntent) -> Run:
    return with_unit(run, _unit(run, entry), transport_intent=data.commit)


@_on(r.TransportPinned)
def _pinned(run: Run, entry: Entry, data: r.TransportPinned) -> Run:
    unit = _unit(run, entry)
    fallback = unit.attempt.fallback if unit.attempt.fallback.claimed is not None else Fallback()
    changes = {"state": "integration-pending", "transport": data.transport, "transport_intent": None}
    return with_attempt(run, unit, changes, terminal_validation_failure=None, fallback=fallback)


def _lock(run: Run, entry: Entry, nonce: str, path: str, phase: str) -> Run:
    return replace(run, lock=IntegrationLock(unit_id=entry.unit or "", nonce=nonce, path=path, phase=phase))


@_on(r.LockIntent)
def _lock_intent(run: Run, entry: Entry, data: r.LockIntent) -> Run:
    return _lock(run, entry, data.nonce, data.path, "intent")


@_on(r.LockAcquired, r.LockAdopted)
def _lock_held(run: Run, entry: Entry, data: r.LockAcquired | r.LockAdopted) -> Run:
    return _lock(run, entry, data.nonce, data.path, "held")


@_on(r.LockReleaseIntent)
def _lock_releasing(run: Run, entry: Entry, data: r.LockReleaseIntent) -> Run:
    if run.lock is None:
        return run
    return replace(run, lock=replace(run.lock, phase="releasing", release_started_at=entry.at))


@_on(r.LockReleased)
def _lock_released(run: Run, entry: Entry, data: r.LockReleased) -> Run:
    return replace(run, lock=None)


@_on(r.ApplyIntent)
def _apply_intent(run: Run, entry: Entry, data: r.ApplyIntent) -> Run:
    integration = Integration(
        intent_revision=entry.seq,
        driver=data.driver,
        pre_fold=data.pre_fold,
        expected_apply=data.expected_apply,
        index_copy=data.index_copy,
        index_sha256=data.index_sha256,
        folders=data.folders,
    )
    return with_unit(run, _unit(run, entry), state="integration-pending", integration=integration)


def _integration(run: Run, entry: Entry, state: str | None, **changes: Any) -> Run:
    unit = _unit(run, entry)
    integration = replace(unit.integration, **changes)
    return with_unit(run, unit, state=state or unit.state, integration=integration)


@_on(r.TransportApplied, r.ApplyReconciled)
def _applied(run: Run, entry: Entry, data: r.TransportApplied | r.ApplyReconciled) -> Run:
    return _integration(run, entry, "integrated", applied=data.applied)


@_on(r.VerificationStarted)
def _verification_started(run: Run, entry: Entry, data: r.VerificationStarted) -> Run:
    process = VerificationProcess(supervisor=data.supervisor, child=data.child, marker=data.marker, log=data.log)
    return replace(run, verification_process=process, verification_process_unit=entry.unit)


@_on(r.VerificationEnded, r.SurvivorsEnded)
def _verification_ended(run: Run, entry: Entry, data: r.VerificationEnded | r.SurvivorsEnded) -> Run:
    return replace(run, verification_process=None, verification_process_unit=None)


@_on(r.VerificationPassed)
def _verification_passed(run: Run, entry: Entry, data: r.VerificationPassed) -> Run:
    return _integration(run, entry, "verified", verification=data.verification)


@_on(r.VerificationFailed)
def _verification_failed(run: Run, entry: Entry, data: r.VerificationFailed) -> Run:
    return _integration(run, entry, None, verification_failed=True)


@_on(r.CommitIntent)
def _commit_intent(run: Run, entry: Entry, data: r.CommitIntent) -> Run:
    return _integration(run, entry, None, commit_intent=data.commit)


@_on(r.CommitConfirmed, r.CommitReconciled)
def _committed(run: Run, entry: Entry, data: r.CommitConfirmed | r.CommitReconciled) -> Run:
    return _integration(run, entry, "committed", canonical_commit=data.canonical_commit)


@_on(r.WaveAdvanced)
def _wave_advanced(run: Run, entry: Entry, data: r.WaveAdvanced) -> Run:
    for sibling in data.siblings:
        unit = run.units[sibling]
        heads = unit.wave.allowed_heads
        if data.canonical_commit not in heads:
            run = with_unit(run, unit, wave=replace(unit.wave, allowed_heads=(*heads, data.canonical_commit)))
    return run


@_on(r.RestoreIntent)
def _restore_intent(run: Run, entry: Entry, data: r.RestoreIntent) -> Run:
    return with_unit(run, _unit(run, entry), state="restoring")


@_on(r.CanonicalRestored)
def _restored(run: Run, entry: Entry, data: r.CanonicalRestored) -> Run:
    return _integration(run, entry, "preserved", restore=data.restore)


@_on(
    r.RestoreBlocked,
    r.IntegrationRestoreBlocked,
    r.IntegrationReleaseBlocked,
    r.PostCommitBlocked,
    r.RunVerificationRestoreBlocked,
    r.RunVerificationBlocked,
)
def _blocker(run: Run, entry: Entry, data: r.BlockerData) -> Run:
    blocker = Blocker(
        seq=entry.seq,
        at=entry.at,
        kind=data.kind,
        unit_id=entry.unit,
        reason=data.reason,
        detail=data.detail,
        retain_integration_lock=data.retain_integration_lock,
        integration_lock_nonce=data.integration_lock_nonce,
    )
    return replace(run, blockers=(*run.blockers, blocker))


@_on(r.BlockersResolved)
def _resolved(run: Run, entry: Entry, data: r.BlockersResolved) -> Run:
    blockers = tuple(
        replace(blocker, resolved_at=entry.at) if blocker.seq in data.seqs else blocker for blocker in run.blockers
    )
    return replace(run, blockers=blockers)


@_on(r.CleanupIntent)
def _cleanup_intent(run: Run, entry: Entry, data: r.CleanupIntent) -> Run:
    return with_unit(run, _unit(run, entry), cleanup_intent=asdict(data))


@_on(r.UnitCleaned)
def _cleaned(run: Run, entry: Entry, data: r.UnitCleaned) -> Run:
    unit = _unit(run, entry)
    cleanup = {
        "at": entry.at,
        "workspace_removed": True,
        "ref_removed": True,
        "abandoned": data.abandoned,
        "abandonment_receipt": data.abandonment_receipt,
        "artifact_cleanup": {"at": None, "complete": False},
    }
    state = unit.state if unit.state == "native-completed" else "cleaned"
    workspace = replace(unit.workspace, registered=False)
    return with_unit(run, unit, state=state, cleanup=cleanup, cleanup_intent=None, workspace=workspace)


@_on(r.ArtifactsPruned)
def _pruned(run: Run, entry: Entry, data: r.ArtifactsPruned) -> Run:
    unit = _unit(run, entry)
    cleanup = {**(unit.cleanup or {}), "artifact_cleanup": {"at": entry.at, "complete": True}}
    changes = {"cleanup": cleanup, "packet": replace(unit.packet, retained=False)}
    return with_attempt(
        run,
        unit,
        changes,
        authorization_retained=False,
        bulky_artifacts_retained=False,
        evidence=data.evidence,
    )


@_on(r.FallbackAuthorized)
def _claimed(run: Run, entry: Entry, data: r.FallbackAuthorized) -> Run:
    unit = _unit(run, entry)
    claim = {"at": entry.at, **asdict(data)}
    return with_attempt(run, unit, fallback=Fallback(eligible=False, reason=data.reason, claimed=claim))


@_on(r.FallbackCompleted)
def _completed(run: Run, entry: Entry, data: r.FallbackCompleted) -> Run:
    unit = _unit(run, entry)
    fallback = replace(unit.attempt.fallback, completed={"at": entry.at, **data.completion})
    return with_attempt(run, unit, {"state": "native-completed"}, fallback=fallback)


@_on(r.RunVerificationStarted)
def _run_verification_started(run: Run, entry: Entry, data: r.RunVerificationStarted) -> Run:
    attempt = RunVerification(started_at=entry.at, status="pending", lock_unit_id=entry.unit or "", **asdict(data))
    return replace(run, verification_attempts=(*run.verification_attempts, attempt))


def _close_attempt(run: Run, attempt_id: str, **changes: Any) -> Run:
    attempts = tuple(
        replace(attempt, **changes) if attempt.attempt_id == attempt_id else attempt
        for attempt in run.verification_attempts
    )
    return replace(run, verification_attempts=attempts)


@_on(r.RunVerificationPassed, r.RunVerificationFailed)
def _run_verified(run: Run, entry: Entry, data: r.RunVerificationPassed | r.RunVerificationFailed) -> Run:
    receipt = data.receipt
    run = _close_attempt(
        run,
        receipt["attempt_id"],
        status="receipt-recorded",
        completed_at=entry.at,
        evidence_digest=receipt["evidence_digest"],
    )
    return replace(run, verifications=(*run.verifications, receipt))


@_on(r.RunVerificationAbandoned)
def _run_verification_abandoned(run: Run, entry: Entry, data: r.RunVerificationAbandoned) -> Run:
    return _close_attempt(run, data.attempt_id, status="abandoned", completed_at=entry.at)
