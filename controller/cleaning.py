"""Removes what a finished or abandoned attempt no longer needs, and keeps the evidence (section 8 `cleanup`).

Nothing is removed before the work is in the canonical branch, or before the host names exactly what it gives up
(gitbutlerapp/gitbutler#15201: cleanup with --force destroyed unmerged work).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from controller import canonical, jobs, lock, machine, receipts, run_root, transport, worktree
from controller import records as r
from controller.errors import Blocked, ControllerError, Refused
from controller.run import OpenRun
from controller.state import DONE, FAILED_WORDS, NEVER_STARTED, RUNNING, Unit
from runner import private
from runner.verdict import State

_LOG_KEPT = 1024 * 1024


def is_complete(unit: Unit) -> bool:
    """Whether the unit was cleaned and its artifacts are pruned."""
    return unit.cleanup is not None and bool(unit.cleanup["artifact_cleanup"]["complete"])


def cleanup(
    run: OpenRun,
    unit_id: str,
    *,
    abandon: bool = False,
    transport_sha: str | None = None,
    job_id: str | None = None,
) -> bool:
    """Clean the unit; True when that had been done before. `REFUSED` unless committed or abandoned with proof."""
    unit = run.unit(unit_id)
    if unit.cleanup is not None and unit.state in machine.TERMINAL:
        prune(run, unit_id)
        return True
    late = unit.attempt.process_state == RUNNING or unit.state == "native-completed"
    if unit.attempt.job_id is not None and late:
        jobs.sync(run, unit_id)
        unit = run.unit(unit_id)
    if unit.attempt.process_state == RUNNING:
        raise Refused(
            f"the worker of unit {unit_id} is running",
            detail={"unit_id": unit_id, "job_id": unit.attempt.job_id},
            expected="an ended job",
            found="running",
            remedy="wait for it, or reap it",
        )
    if abandon or unit.state == "native-completed":
        machine.require("cleanup --abandon", unit_id, unit.state)
        receipt: dict[str, Any] | None = _abandonment(run, unit, transport_sha, job_id)
        jobs.require_no_process(unit)
    else:
        machine.require("cleanup", unit_id, unit.state)
        receipt = None
        if unit.state == "committed":
            canonical.give_up_kept(run, unit_id)
    if unit.cleanup_intent is None:
        run.record(r.CleanupIntent(abandoned=abandon, abandonment_receipt=receipt), unit=unit_id)
    finish(run, unit_id)
    return False


def finish(run: OpenRun, unit_id: str) -> None:
    """Carry out a recorded cleanup intent; every step may have been done before."""
    unit = run.unit(unit_id)
    intent = unit.cleanup_intent or {}
    common = run.state.repository.common_dir
    _require_own(run, unit_id)
    with lock.held(lock.worktree_lock_path(run.root, common), wait=120.0, what="the repository's worktree registry"):
        worktree.remove(run.git, common, Path(unit.workspace.path))
    if unit.transport.commit is not None and unit.transport.ref is not None:
        run.refs.delete(unit.transport.ref, unit.transport.commit)
    elif unit.transport_intent is not None:
        run.refs.delete(transport.ref_name(run.state.run_id, unit_id), unit.transport_intent)
    run.record(
        r.UnitCleaned(abandoned=bool(intent.get("abandoned")), abandonment_receipt=intent.get("abandonment_receipt")),
        unit=unit_id,
    )
    prune(run, unit_id)


def _require_own(run: OpenRun, unit_id: str) -> None:
    """`UNREADABLE` when a folder that is to be emptied was replaced, as by a link to somebody else's folder."""
    directory = run.unit_dir(unit_id)
    for folder in (directory.parent, directory, run.directory / "jobs"):
        if os.path.lexists(folder):
            with run_root.trusted():
                private.check_private_dir(folder)


def prune(run: OpenRun, unit_id: str) -> None:
    """Move what documents the attempt to `evidence/<unit>/<attempt>/`, then remove the rest (section 18 row 7)."""
    unit = run.unit(unit_id)
    if is_complete(unit):
        return
    _require_own(run, unit_id)
    attempt = unit.attempt
    directory = run.unit_dir(unit_id)
    evidence = run.directory / "evidence"
    for part in ("", unit_id, attempt.attempt_id):
        evidence = evidence / part if part else evidence
        run_root.make_dir(evidence)
    with run_root.trusted():
        private.sweep_temps(evidence)
    for source in (
        "packet.md",
        "authorization.json",
        "result/implementation-result.json",
        "result/adapter.log",
    ):
        _keep(directory / source, evidence)
    if attempt.job_id is not None:
        job = run.job_dir(attempt.job_id)
        for name in ("meta.json", "reason", "status", "survivors", "out.log"):
            _keep(job / name, evidence, prefix="job-")
        run_root.remove_tree(job)
    for stray in jobs.unbound(run, unit):
        # Its next attempt can have the same packet, hence the same command line: it would be taken for that one's job.
        if stray.state is not State.RUNNING:
            name = os.path.basename(stray.job_dir)
            _keep(Path(stray.job_dir) / "meta.json", evidence, prefix=f"{name}-")
            run_root.remove_tree(Path(stray.job_dir))
    run_root.remove_tree(directory)
    if unit.integration.index_copy is not None:
        Path(unit.integration.index_copy).unlink(missing_ok=True)
    run.record(r.ArtifactsPruned(evidence=str(evidence)), unit=unit_id)


def _keep(source: Path, evidence: Path, prefix: str = "") -> None:
    """Copy a file (of a log longer than 1 MiB, its end); what is no plain file, or larger than a result, is none."""
    if source.parent.is_symlink() or source.is_symlink() or not source.is_file():
        return
    is_log = source.suffix == ".log"
    limit = _LOG_KEPT if is_log else run_root.RESULT_MAX
    with run_root.trusted(), open(source, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size > limit and not is_log:
            return
        file.seek(max(size - limit, 0))
        data = file.read(limit)
    run_root.write(evidence / f"{prefix}{source.name}", data)


def _abandonment(run: OpenRun, unit: Unit, transport_sha: str | None, job_id: str | None) -> dict[str, Any]:
    """The proof that the host gives up exactly what is there; `REFUSED` or `BLOCKED` without it."""
    if run.state.lock is not None and run.state.lock.unit_id == unit.unit_id and run.state.lock.phase != "intent":
        raise Refused(
            "the unit holds the integration lock; restore or release it first",
            detail={"unit_id": unit.unit_id},
            expected="no lock",
            found="held",
            remedy="restore and integration-release, or `resume --run-id`",
        )
    attempt = unit.attempt
    if unit.transport.commit is not None:
        if transport_sha != unit.transport.commit:
            raise _expect("--expect-transport", unit.transport.commit, transport_sha, unit)
        return {"kind": "transport", "value": unit.transport.commit}
    if attempt.job_id is None:
        return _never_dispatched(run, unit, transport_sha, job_id)
    if job_id != attempt.job_id:
        raise _expect("--expect-job", attempt.job_id, job_id, unit)
    return _terminal_job(run, unit, attempt.job_id)


def _expect(flag: str, expected: str, found: str | None, unit: Unit) -> Refused:
    return Refused(
        f"abandoning unit {unit.unit_id} needs {flag} {expected}",
        detail={"unit_id": unit.unit_id},
        expected=f"{flag} {expected}",
        found="nothing" if found is None else found[:140],
        remedy="look at what would be lost, then name it exactly",
    )


def _never_dispatched(run: OpenRun, unit: Unit, transport_sha: str | None, job_id: str | None) -> dict[str, Any]:
    given = transport_sha or job_id
    if given is not None:
        raise Refused(
            f"unit {unit.unit_id} has neither transport nor job",
            expected="no expectation",
            found=given[:140],
            remedy="cleanup --abandon without --expect-transport and --expect-job",
        )
    stray = jobs.matching(run, unit)
    if stray is not None:
        raise Refused(
            f"job {stray} was started for this unit and never recorded",
            detail={"unit_id": unit.unit_id, "job_id": stray},
            expected="no job",
            found=stray,
            remedy="record-job it (or `resume --run-id`), then abandon with --expect-job",
        )
    return {"kind": "never-dispatched", "value": unit.attempt.attempt_id}


def _terminal_job(run: OpenRun, unit: Unit, job_id: str) -> dict[str, Any]:
    attempt = unit.attempt
    found = jobs.recorded_view(run, unit)
    word = State(attempt.process_state) if found is None else found.state
    if word.value != attempt.process_state and word is not State.NEVER_STARTED:
        raise Blocked(
            "the job's files differ from what is recorded",
            detail={"unit_id": unit.unit_id},
            expected=attempt.process_state,
            found=word.value,
            remedy="sync-job, then try again",
        )
    # Once the native implementation is accepted there is nothing to reconcile, even if the worker finished after all.
    if attempt.process_state in (*FAILED_WORDS, NEVER_STARTED) or unit.state == "native-completed":
        return {"kind": "terminal-job", "value": job_id, "process_state": attempt.process_state}
    digest = _result_digest(run, unit)
    failure, receipt = attempt.terminal_validation_failure, attempt.terminal_receipt
    if attempt.process_state == DONE and failure is not None:
        if failure["result_sha256"] != digest:
            raise Blocked(
                "the result changed after its validation failed",
                expected=str(failure["result_sha256"]),
                found=str(digest),
                remedy="terminalize again",
            )
        return {"kind": "terminal-validation-failure", "value": job_id, "process_state": DONE}
    if attempt.process_state == DONE and receipt is not None and receipt["terminal_status"] == "blocked":
        if receipt["result_sha256"] != digest:
            raise Blocked(
                "done output is not an exactly retained worker blocker",
                expected=receipt["result_sha256"],
                found=str(digest),
            )
        return {
            "kind": "retained-worker-blocker",
            "value": job_id,
            "process_state": DONE,
            "terminal_status": "blocked",
            "result_sha256": receipt["result_sha256"],
            "raw_log_sha256": receipt["raw_log_sha256"],
        }
    raise Refused(
        "successful worker output must be reconciled rather than bypassed",
        detail={"unit_id": unit.unit_id, "process_state": attempt.process_state},
        expected="a failed job, a validation failure or a worker blocker",
        found=f"job {attempt.process_state}",
        remedy="terminalize it; then cleanup --abandon with --expect-transport",
    )


def _result_digest(run: OpenRun, unit: Unit) -> str | None:
    try:
        data = run_root.read(receipts.result_path(run.unit_dir(unit.unit_id)), run_root.RESULT_MAX)
    except ControllerError:
        return None
    return hashlib.sha256(data).hexdigest()
