"""From a `done` job to a pinned transport: shared by `terminalize` and `resume` (section 8)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from controller import attempt_files, jobs, machine, receipts, run_root, transport, worktree
from controller import records as r
from controller.errors import Blocked, ControllerError, Refused
from controller.run import OpenRun
from controller.shadow import Shadow
from controller.state import DONE, Unit


class WorkerBlocked(Blocked):
    """The worker's own answer is `blocked`: its workspace is kept for the host."""


def terminalize(run: OpenRun, unit_id: str) -> Unit:
    """Take the unit from its ended job to `integration-pending`; what does not pass is recorded, then raised."""
    jobs.sync(run, unit_id)
    unit = run.unit(unit_id)
    if unit.state == "integration-pending" and unit.transport.commit is not None:
        return unit
    _require_done(unit)
    if not machine.destinations("terminalize", unit.state):
        raise Blocked(
            f"unit {unit_id} is {unit.state}: its output was dealt with, or it has none yet",
            detail={"unit_id": unit_id, "state": unit.state},
            expected="state authoring or authored",
            found=f"state {unit.state}",
            remedy=f"use one of: {', '.join(machine.triggers(unit.state))}",
        )
    if unit.attempt.fallback.claimed is not None:
        raise Refused(
            "native fallback already owns implementation",
            detail={"unit_id": unit_id},
            expected="no fallback claim",
            found="a claim",
            remedy="complete-fallback",
        )
    jobs.require_no_process(unit)
    # Recorded also when it cannot be trusted (UNREADABLE): a worker that spoils its own result, log or workspace must
    # not leave its unit without a way out.
    try:
        _author(run, unit_id)
    except ControllerError as error:
        _record_failure(run, unit_id, error)
        raise
    unit = run.unit(unit_id)
    _require_not_blocked(run, unit)
    try:
        return _pin(run, unit)
    except ControllerError as error:
        _record_failure(run, unit_id, error)
        raise


def _require_done(unit: Unit) -> None:
    attempt = unit.attempt
    if attempt.process_state == DONE:
        return
    detail: dict[str, Any] = {"unit_id": unit.unit_id, "process_state": attempt.process_state}
    if attempt.terminal_receipt is not None:
        detail |= {"terminal_receipt": attempt.terminal_receipt, "failure_reason": attempt.fallback.reason}
    raise Blocked(
        f"the job of unit {unit.unit_id} is {attempt.process_state}, not done",
        detail=detail,
        expected="process state done",
        found=attempt.process_state,
        remedy="wait for it" if attempt.process_state == "running" else "cleanup --abandon or claim-fallback",
    )


def _author(run: OpenRun, unit_id: str) -> None:
    unit = run.unit(unit_id)
    attempt_files.require_result_dir(run, unit)
    path = receipts.result_path(run.unit_dir(unit_id))
    if not path.exists():
        raise Blocked("the job is done but published no result", expected=str(path), found="nothing")
    published = receipts.read(run.unit_dir(unit_id))
    receipts.require_match(published, unit.attempt)
    if published.result.terminal_status in ("failed", "unavailable"):
        raise Blocked(
            f"the job is done but its result says {published.result.terminal_status}",
            expected="completed, blocked or scope_expansion",
            found=published.result.terminal_status,
        )
    receipt = receipts.stored(published)
    if unit.state == "authoring":
        run.record(r.WorkerOutputAuthored(terminal_receipt=receipt), unit=unit_id)
    elif unit.attempt.terminal_receipt != receipt:
        raise Blocked(
            "the result changed after it was recorded",
            expected=str((unit.attempt.terminal_receipt or {}).get("result_sha256")),
            found=published.sha256,
        )


def _require_not_blocked(run: OpenRun, unit: Unit) -> None:
    receipt = unit.attempt.terminal_receipt or {}
    if receipt.get("terminal_status") == "blocked":
        raise WorkerBlocked(
            f"the worker reports that it is blocked: {receipt['summary']}",
            detail={
                "unit_id": unit.unit_id,
                "terminal_status": "blocked",
                "summary": receipt["summary"],
                "terminal_receipt": receipt,
                "recovery_path": str(run.unit_dir(unit.unit_id)),
            },
            expected="terminal status completed or scope_expansion",
            found="blocked",
            remedy="resolve what it says, cleanup --abandon with --expect-job, then prepare a fresh attempt",
        )


def _pin(run: OpenRun, unit: Unit) -> Unit:
    """Build the transport from the workspace and make it reachable."""
    common = run.state.repository.common_dir
    workspace = Path(unit.workspace.path)
    directory = run.unit_dir(unit.unit_id)
    entry = worktree.require_registered(common, workspace)
    operation = worktree.operation(common, entry)
    if operation is not None:
        raise Blocked(
            f"the workspace is in the middle of a {operation}",
            expected="no operation in progress",
            found=operation,
            remedy="abandon the attempt and prepare a fresh one",
        )
    manifest = worktree.read_manifest(directory, unit.workspace.manifest_sha256)
    shadow = Shadow(run.git, common, directory, workspace)
    base = unit.workspace.base
    try:
        builder = transport.Builder(shadow, base, manifest, run.state.repository.object_format)
        message = f"ce-work transport {run.state.run_id}/{unit.unit_id}"
        commit, tree = builder.commit(message, unit.attempt.started_at, directory / "transport.stream")
        ref = transport.ref_name(run.state.run_id, unit.unit_id)
        described = transport.describe(shadow.git, base, tree, commit, ref)
    finally:
        shadow.remove()
        (directory / "transport.stream").unlink(missing_ok=True)
    previous = unit.transport_intent
    run.record(r.TransportPinIntent(base=base, commit=commit, ref=ref), unit=unit.unit_id)
    run.refs.create(ref, commit, previous)
    run.record(r.TransportPinned(transport=described), unit=unit.unit_id)
    return run.unit(unit.unit_id)


def _record_failure(run: OpenRun, unit_id: str, error: ControllerError) -> None:
    """Keep why the output did not pass; the same failure of the same result is recorded once."""
    unit = run.unit(unit_id)
    path = receipts.result_path(run.unit_dir(unit_id))
    try:
        digest = hashlib.sha256(run_root.read(path, run_root.RESULT_MAX)).hexdigest()
    except ControllerError:
        digest = None
    known = unit.attempt.terminal_validation_failure
    if known is not None and (known["reason"], known["result_sha256"]) == (error.message, digest):
        return
    run.record(
        r.TerminalValidationFailed(
            word=error.word,
            reason=error.message,
            detail=error.body(),
            job_id=unit.attempt.job_id,
            result_sha256=digest,
        ),
        unit=unit_id,
    )
