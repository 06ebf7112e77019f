"""The runner's job of an attempt: the contract that makes it ours, and what its files say (sections 8 and 12)."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from controller import attempt_files, receipts
from controller import records as r
from controller.errors import Ambiguous, Blocked, Unreadable
from controller.run import OpenRun
from controller.state import DONE, FAILED_WORDS, NEVER_STARTED, Unit
from runner.job import JobView, Meta, read_job
from runner.verdict import State

SKILL = "ce-work"


def expected_argv(run: OpenRun, unit: Unit) -> list[str]:
    """The one worker command line that dispatch may have started."""
    attempt = unit.attempt
    return [
        attempt.adapter,
        attempt.authorization_path,
        unit.workspace.path,
        unit.packet.path,
        unit.packet_digest,
        str(run.unit_dir(unit.unit_id) / "result"),
    ]


def view(run: OpenRun, job_id: str) -> JobView:
    """The job's files, `UNREADABLE` unless directory and records are private and well-formed."""
    path = run.job_dir(job_id)
    found = read_job(path, strict=True)
    if found.state is State.UNREADABLE or found.meta is None:
        raise Unreadable(
            f"job {job_id} cannot be trusted: {found.problem or 'no meta.json'}",
            expected=f"a private job directory {path} with meta.json",
            found=found.problem or "no meta.json",
        )
    return found


def require_contract(run: OpenRun, unit: Unit, job_id: str) -> JobView:
    """The job was started exactly as this attempt's authorization says (`BLOCKED` otherwise)."""
    found = view(run, job_id)
    meta = found.meta
    assert meta is not None
    problem = contract_problem(run, unit, meta, job_id)
    if problem is not None:
        raise problem
    attempt_files.require_files(run, unit)
    return found


def contract_problem(run: OpenRun, unit: Unit, meta: Meta, job_id: str) -> Blocked | None:
    """What of the runner contract a job's meta breaks, or None."""
    result = str(receipts.result_path(run.unit_dir(unit.unit_id)))
    checks: list[tuple[str, str, Any, Any]] = [
        ("runner job id must equal the job directory", "job_id", job_id, meta.job_id),
        ("runner skill must be ce-work", "skill", SKILL, meta.skill),
        ("runner run id must equal the controller run", "run_id", run.state.run_id, meta.run_id),
        (
            f"runner label must equal unit id exactly: expected {unit.unit_id!r}, got {meta.label!r}",
            "label",
            unit.unit_id,
            meta.label,
        ),
        (
            "runner input digest must equal the packet digest",
            "input_digest",
            unit.packet_digest,
            meta.input_digest,
        ),
        (
            f"runner result path must be the controller result file {result}",
            "result_path",
            result,
            meta.result_path,
        ),
    ]
    for message, field, expected, actual in checks:
        if expected != actual:
            return Blocked(
                message,
                detail={"job_id": job_id, "field": field},
                expected=str(expected),
                found=str(actual),
                remedy="reap that job and start the worker exactly as `next` says",
            )
    argv = expected_argv(run, unit)
    if meta.worker_argv != argv:
        return Blocked(
            "runner worker argv must be exactly the adapter call of this attempt",
            detail={"job_id": job_id, "expected_argv": argv, "actual_argv": list(meta.worker_argv)},
            expected=" ".join(argv),
            found=" ".join(meta.worker_argv)[:500],
            remedy="no shell prefix, no other adapter: reap that job and start the worker exactly as `next` says",
        )
    return None


def matching(run: OpenRun, unit: Unit) -> str | None:
    """The one unbound job that satisfies the contract of this attempt; `AMBIGUOUS` when there are several."""
    bound = {attempt.job_id for other in run.state.units.values() for attempt in other.attempts}
    found = []
    for name in sorted(os.listdir(run.directory / "jobs")):
        path = run.directory / "jobs" / name
        if name in bound or not path.is_dir() or path.is_symlink():
            continue
        meta = read_job(path, strict=True).meta
        if meta is not None and contract_problem(run, unit, meta, name) is None:
            found.append(name)
    if len(found) > 1:
        raise Ambiguous(
            f"several jobs match unit {unit.unit_id}",
            detail={"unit_id": unit.unit_id, "jobs": found},
            expected="exactly one matching job",
            found=", ".join(found),
            remedy="reap all but the one that is to count, then record-job it",
        )
    return found[0] if found else None


def iso(seconds: float | None) -> str | None:
    """Seconds since the epoch as the protocol's time stamp."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def progress(unit: Unit, found: JobView | None) -> dict[str, Any]:
    """What a host reports of a unit in work (section 18 row 26): whole seconds, measured now or null."""
    attempt = unit.attempt
    value: dict[str, Any] = {
        "route": attempt.authorization["route"],
        "activity_posture": attempt.activity_posture,
        "process_state": attempt.process_state,
        "elapsed_seconds": None,
        "latest_activity": None,
        "limits": None,
    }
    if found is None or found.meta is None:
        return value
    value["process_state"] = found.state.value
    value["elapsed_seconds"] = _whole(found.elapsed_seconds())
    if found.last_activity is not None:
        value["latest_activity"] = {
            "at": iso(found.last_activity),
            "what": f"out.log holds {found.log_bytes} bytes" if found.log_bytes else "no output yet",
        }
    value["limits"] = {
        "idle_seconds": _whole(found.meta.supervision.idle),
        "idle_seconds_left": _whole(found.idle_seconds_left()),
        "hard_seconds": _whole(found.meta.supervision.hard),
        "hard_seconds_left": _whole(found.hard_seconds_left()),
    }
    value["contact"] = found.contact
    return value


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


def sync(run: OpenRun, unit_id: str) -> JobView | None:
    """Record what the runner's files newly say of the last attempt; nothing when they say nothing new."""
    unit = run.unit(unit_id)
    attempt = unit.attempt
    if attempt.job_id is None or not attempt.bulky_artifacts_retained:
        return None
    found = view(run, attempt.job_id)
    activity = {
        "posture": attempt.activity_posture,
        "latest_at": iso(found.last_activity),
        "log_bytes": found.log_bytes,
    }
    limits = {
        "idle_seconds": _whole(found.meta.supervision.idle) if found.meta else None,
        "hard_seconds": _whole(found.meta.supervision.hard) if found.meta else None,
        "started_at": iso(found.started),
    }
    word = found.state.value
    news = (word, activity, limits) != (attempt.process_state, attempt.activity, attempt.limits)
    if word in (DONE, *FAILED_WORDS) or (word == NEVER_STARTED and attempt.fallback.reason is None):
        if news or word == NEVER_STARTED:
            reason = found.reason if "byte cap" in (found.reason or "") else None
            run.record(
                r.JobTerminal(process_state=word, activity=activity, limits=limits, failure_reason=reason),
                unit=unit_id,
            )
    elif news:
        run.record(r.JobSynced(process_state=word, activity=activity, limits=limits), unit=unit_id)
    if word == "failed" and run.unit(unit_id).attempt.terminal_receipt is None:
        receipt = receipts.route_receipt(run.unit(unit_id), run.unit_dir(unit_id))
        if receipt is not None:
            kind = r.RouteUnavailable if receipt[0] == "unavailable" else r.RouteFailed
            run.record(kind(terminal_receipt=receipt[1]), unit=unit_id)
    return found
