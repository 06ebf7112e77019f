"""The runner's job of an attempt: the contract that makes it ours, and what its files say (sections 8 and 12)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from controller import attempt_files, receipts
from controller import records as r
from controller.errors import Ambiguous, Blocked, Unreadable
from controller.run import OpenRun
from controller.state import DONE, FAILED_WORDS, NEVER_STARTED, Unit
from runner.job import JOB_ID_VARIABLE, JobView, Meta, read_job
from runner.process import ProcessIdentity
from runner.verdict import State

SKILL = "ce-work"
ENDED = (DONE, *FAILED_WORDS)
LOST = "died-without-result"
_RUNNERS_OWN = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
_GRACE_SECONDS = 1.0
_RECORD_SECONDS = 2.0


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
            remedy="put it back as it was; or `reap` the unit: that ends the job and records that its records are lost",
        )
    return found


def recorded_view(run: OpenRun, unit: Unit) -> JobView | None:
    """The bound job's files; None when they are lost or spoiled after its end was recorded: the record stands."""
    assert unit.attempt.job_id is not None
    try:
        return view(run, unit.attempt.job_id)
    except Unreadable:
        if unit.attempt.process_state in ENDED:
            return None
        raise


def processes(unit: Unit) -> list[ProcessIdentity]:
    """Every live process that carries the id of the attempt's job in its environment.

    Only an id of the runner's making is one of a kind: one that another program chose may be that of another job, too.
    What such a process started and stripped of the mark ends with it: the job's supervisor sees to that.
    """
    from runner.process import marked

    job_id = unit.attempt.job_id or ""
    return marked(JOB_ID_VARIABLE, job_id) if _RUNNERS_OWN.fullmatch(job_id) else []


def require_no_process(unit: Unit) -> None:
    """`BLOCKED` while a process of the job lives, whatever word its files hold: a worker can write those itself.

    It could change what is being pinned (stablyai/orca#10004), and go on at the user's cost beside its successor.
    """
    pids = [identity.pid for identity in processes(unit)]
    if pids:
        raise Blocked(
            f"{len(pids)} process(es) of job {unit.attempt.job_id} still run",
            detail={"unit_id": unit.unit_id, "job_id": unit.attempt.job_id, "pids": pids},
            expected="no process of the job",
            found=", ".join(f"pid {pid}" for pid in pids[:20]),
            remedy=f"reap --unit-id {unit.unit_id} ends them; then run the command again",
        )


def end_processes(run: OpenRun, unit: Unit) -> None:
    """End what runs with the job's mark, and wait for its supervisor to end the rest and to record how it ended.

    `BLOCKED` when something of it is still there then. Nothing is signalled on the word of a file alone.
    """
    import time

    from runner.process import kill_all, wait_gone, with_descendants

    job_id = unit.attempt.job_id
    if job_id is None:
        return
    before = read_job(run.job_dir(job_id))
    if kill_all(lambda: with_descendants(processes(unit)), _GRACE_SECONDS):
        if before.supervisor is not None:
            wait_gone(before.supervisor, _RECORD_SECONDS)
        deadline = time.monotonic() + _RECORD_SECONDS
        while before.state is State.NEVER_STARTED and time.monotonic() < deadline:
            before = read_job(run.job_dir(job_id))  # its `pid` was removed; its supervisor records the end all the same
            time.sleep(0.02)
    require_no_process(unit)


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


def unbound(run: OpenRun, unit: Unit) -> Iterator[JobView]:
    """The jobs that satisfy the contract of this attempt and that no attempt is bound to."""
    bound = {attempt.job_id for other in run.state.units.values() for attempt in other.attempts}
    try:
        names = sorted(os.listdir(run.directory / "jobs"))
    except FileNotFoundError:  # removed by somebody; the runner makes it again
        return
    for name in names:
        path = run.directory / "jobs" / name
        if name in bound or not path.is_dir() or path.is_symlink():
            continue
        found = read_job(path, strict=True)
        if found.meta is not None and contract_problem(run, unit, found.meta, name) is None:
            yield found


def matching(run: OpenRun, unit: Unit) -> str | None:
    """The one unbound job that satisfies the contract of this attempt; `AMBIGUOUS` when there are several."""
    found = [os.path.basename(job.job_dir) for job in unbound(run, unit)]
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
    """Seconds since the epoch as the protocol's time stamp; None for a time that no calendar has."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


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
    return None if seconds is None or not math.isfinite(seconds) else int(seconds)


def sync(run: OpenRun, unit_id: str) -> JobView | None:
    """Record what the runner's files newly say of the last attempt; nothing when they say nothing new."""
    unit = run.unit(unit_id)
    attempt = unit.attempt
    if attempt.job_id is None or not attempt.bulky_artifacts_retained:
        return None
    found = recorded_view(run, unit)
    if found is None:
        return None
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
    if word in ENDED or (word == NEVER_STARTED and attempt.fallback.reason is None):
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


def record_lost(run: OpenRun, unit_id: str) -> bool:
    """Record that a job without readable files is over; False when they can be read, or its end was recorded.

    The caller has ended its processes. Without this a unit whose job folder a cleaner of /tmp removed had no way out.
    """
    unit = run.unit(unit_id)
    assert unit.attempt.job_id is not None
    if unit.attempt.process_state in ENDED:
        return False
    try:
        view(run, unit.attempt.job_id)
    except Unreadable as error:
        run.record(
            r.JobTerminal(
                process_state=LOST,
                activity=unit.attempt.activity,
                limits=unit.attempt.limits,
                failure_reason=f"records lost: {error.found}"[:1000],
            ),
            unit=unit_id,
        )
        return True
    return False
