"""`authorize-dispatch`, `record-job`, `sync-job`, `reap`: one job is bound to one attempt, and watched."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from controller import jobs, machine, programs, run_root, shapes, worktree
from controller import records as r
from controller.answer import Answer
from controller.attempt_files import require_pristine, require_result_dir
from controller.errors import Ambiguous, Blocked, Refused
from controller.run import OpenRun, changing
from controller.state import Unit

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_REAP_SECONDS = 120


def _attempt(run: OpenRun, unit_id: str, attempt_id: str) -> Unit:
    """The unit whose attempt in force this is; `AMBIGUOUS` for any other attempt."""
    unit = run.unit(unit_id)
    if unit.attempt.attempt_id != attempt_id:
        raise Ambiguous(
            f"attempt {attempt_id[:140]!r} is not the one in force for unit {unit_id}",
            detail={"unit_id": unit_id, "attempt_id": unit.attempt.attempt_id},
            expected=unit.attempt.attempt_id,
            found=attempt_id[:140],
            remedy="use the attempt_id that prepare returned",
        )
    return unit


def _require_unbound(unit: Unit, job_id: str) -> None:
    bound = unit.attempt.job_id
    if bound is not None and bound != job_id:
        raise Ambiguous(
            f"the attempt is bound to job {bound}",
            detail={"unit_id": unit.unit_id, "job_id": bound},
            expected=bound,
            found=job_id,
            remedy="a second job is never dispatched for one attempt: reap it",
        )


def authorize_dispatch(
    *,
    run_id: str,
    unit_id: str,
    attempt_id: str,
    job_id: str,
    authorization: str,
    authorization_digest: str,
    workspace: str,
    packet: str,
    packet_digest: str,
    result_dir: str,
    wait: float,
) -> Answer:
    """Bind the job to the attempt and allow egress, if everything is exactly what `prepare` fixed."""
    for name, value in (("authorization", authorization_digest), ("packet", packet_digest)):
        if not _DIGEST.match(value):
            raise Refused(f"the {name} digest is not 64 lowercase hex digits", expected="SHA-256", found=value[:80])
    with changing(run_id, wait=wait) as run:
        for what, value in (("unit id", unit_id), ("attempt id", attempt_id), ("job id", job_id)):
            run_root.safe_id(value, what)
        unit = _attempt(run, unit_id, attempt_id)
        machine.require("authorize-dispatch", unit_id, unit.state)
        _require_unbound(unit, job_id)
        if unit.attempt.fallback.claimed is not None:
            raise Refused(
                "native fallback already owns implementation",
                detail={"unit_id": unit_id},
                expected="no fallback claim",
                found="a claim",
                remedy="complete-fallback; this job may not begin any more",
            )
        run.observe()
        found = jobs.require_contract(run, unit, job_id)
        ended = [word for word in (found.state.value, unit.attempt.process_state) if word in jobs.ENDED]
        if ended:
            raise Refused(
                f"job {job_id} has ended: it may not begin any more",
                detail={"unit_id": unit_id, "job_id": job_id},
                expected="a job that has not ended",
                found=ended[0],
                remedy="claim-fallback, or cleanup --abandon and prepare a fresh attempt",
            )
        _require_request(run, unit, authorization, authorization_digest, workspace, packet, packet_digest, result_dir)
        receipt = shapes.DispatchReceipt(
            attempt_id=attempt_id,
            job_id=job_id,
            authorization_path=unit.attempt.authorization_path,
            authorization_digest=authorization_digest,
            workspace=unit.workspace.path,
            packet_path=unit.packet.path,
            packet_digest=packet_digest,
            result_dir=str(run.unit_dir(unit_id) / "result"),
            result_dir_identity=unit.result_dir_identity,
        )
        recorded = unit.attempt.dispatch_authorization_receipt
        if recorded is None:
            entry = worktree.require_registered(run.state.repository.common_dir, Path(unit.workspace.path))
            require_pristine(run, unit, entry.head)
            run.record(r.JobBound(job_id=job_id, receipt=receipt), unit=unit_id)
        elif recorded != receipt:
            raise Blocked(
                "recorded dispatch authorization does not match the exact request",
                detail={"unit_id": unit_id},
            )
        return Answer(
            "AUTHORIZED",
            {
                "run_id": run_id,
                "unit_id": unit_id,
                "attempt_id": attempt_id,
                "job_id": job_id,
                "resumed": recorded is not None,
                "authorization_digest": authorization_digest,
                "packet_digest": packet_digest,
            },
        )


def _require_request(
    run: OpenRun,
    unit: Unit,
    authorization: str,
    authorization_digest: str,
    workspace: str,
    packet: str,
    packet_digest: str,
    result_dir: str,
) -> None:
    attempt = unit.attempt
    data = run_root.read(Path(attempt.authorization_path), 64 * 1024)
    value = json.loads(data)
    for what, expected, found in (
        ("authorization path", attempt.authorization_path, os.path.abspath(authorization)),
        ("authorization digest", attempt.authorization_digest, authorization_digest),
        ("authorization bytes", attempt.authorization_digest, hashlib.sha256(data).hexdigest()),
        ("authorization", attempt.authorization, value),
        ("workspace path", unit.workspace.path, os.path.abspath(workspace)),
        ("packet path", unit.packet.path, os.path.abspath(packet)),
        ("packet digest", unit.packet_digest, packet_digest),
        (
            "packet bytes",
            unit.packet_digest,
            hashlib.sha256(run_root.read(Path(unit.packet.path))).hexdigest(),
        ),
        ("result directory", str(run.unit_dir(unit.unit_id) / "result"), os.path.abspath(result_dir)),
    ):
        if expected != found:
            raise Blocked(
                f"the {what} differs from the prepared attempt",
                detail={"unit_id": unit.unit_id},
                expected=str(expected)[:500],
                found=str(found)[:500],
                remedy="dispatch exactly what prepare returned",
            )
    require_result_dir(run, unit)


def record_job(*, run_id: str, unit_id: str, attempt_id: str, job_id: str, wait: float) -> Answer:
    """Confirm, or make, the binding of a job to the attempt."""
    with changing(run_id, wait=wait) as run:
        unit = _attempt(run, unit_id, attempt_id)
        if unit.attempt.job_id == job_id:
            return Answer(
                "AUTHORING", {"unit_id": unit_id, "job_id": job_id, "resumed": True, "unit_state": unit.state}
            )
        _require_unbound(unit, job_id)
        jobs.require_contract(run, unit, job_id)
        machine.require("record-job", unit_id, unit.state)
        run.record(r.JobBound(job_id=job_id), unit=unit_id)
        return Answer("AUTHORING", {"unit_id": unit_id, "job_id": job_id, "resumed": False})


def sync_job(*, run_id: str, unit_id: str, wait: float) -> Answer:
    """Take over what the runner's files say of the attempt's job."""
    with changing(run_id, wait=wait) as run:
        found = jobs.sync(run, unit_id)
        unit = run.unit(unit_id)
        body = _synced(unit)
        if unit.attempt.job_id is not None:
            body["failure_reason"] = unit.attempt.fallback.reason
        return Answer("SYNCED", {**body, "progress": jobs.progress(unit, found)})


def _synced(unit: Unit) -> dict[str, Any]:
    return {
        "unit_id": unit.unit_id,
        "process_state": unit.attempt.process_state,
        "activity": unit.attempt.activity,
    }


def reap(*, run_id: str, unit_id: str, wait: float) -> Answer:
    """End the attempt's job through the runner, and take over how it ended."""
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        if unit.attempt.job_id is None:
            return Answer("REAPED", {"unit_id": unit_id, "process_state": "never-started"})
        _reap(run, unit, unit.attempt.job_id)
        unit = run.unit(unit_id)
        return Answer(
            "REAPED",
            {
                **_synced(unit),
                "failure_reason": unit.attempt.fallback.reason,
                "recovery_path": str(run.unit_dir(unit_id)),
            },
        )


def _reap(run: OpenRun, unit: Unit, job_id: str) -> None:
    """End the job and record its end; also a job whose files say that it is over, and one whose files are lost."""
    code, message = _runner_reap(run.job_dir(job_id)) if unit.attempt.bulky_artifacts_retained else (0, "")
    jobs.end_processes(run, unit)
    if not unit.attempt.bulky_artifacts_retained or jobs.record_lost(run, unit.unit_id):
        return
    if code != 0 and jobs.recorded_view(run, unit) is not None:
        raise Blocked(
            f"the runner could not reap job {job_id}: {message}",
            detail={"unit_id": unit.unit_id, "runner_exit": code},
            expected="exit 0",
            found=message,
        )
    jobs.sync(run, unit.unit_id)


def _runner_reap(job: Path) -> tuple[int | None, str]:
    """The runner's exit code (None: it did not end) and what it said."""
    try:
        done = subprocess.run(
            [*programs.runner(), "reap", str(job)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(os.environ),
            timeout=_REAP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"it did not end within {_REAP_SECONDS} s"
    return done.returncode, done.stderr.decode("utf-8", "replace").strip() or f"exit {done.returncode}"
