"""`manifest.json`: the fold in the shape that other programs read (protocol.md section 6). Written, never read back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from controller.encoding import plain, seconds
from controller.state import Attempt, Blocker, IntegrationLock, Run, Unit
from controller.steps import Entry


def lock_view(lock: IntegrationLock | None) -> dict[str, Any] | None:
    """The manifest's `integration_lock`; a lock whose file is not known to exist yet is not shown."""
    if lock is None or lock.phase == "intent":
        return None
    view = {"unit_id": lock.unit_id, "nonce": lock.nonce, "path": lock.path, "phase": lock.phase}
    if lock.release_started_at is not None:
        view["release_started_at"] = seconds(lock.release_started_at)
    return view


def attempt_view(attempt: Attempt) -> dict[str, Any]:
    """One attempt in the manifest's shape."""
    fallback: dict[str, Any] = {
        "eligible": attempt.fallback.eligible,
        "reason": attempt.fallback.reason,
        "claimed": attempt.fallback.claimed,
    }
    if attempt.fallback.completed is not None:
        fallback["completed"] = attempt.fallback.completed
    view: dict[str, Any] = {
        "attempt_id": attempt.attempt_id,
        "job_id": attempt.job_id,
        "dispatch_authorization_receipt": plain(attempt.dispatch_authorization_receipt),
        "process_state": attempt.process_state,
        "activity": attempt.activity,
        "fallback": fallback,
        "authorization": attempt.authorization,
        "authorization_path": attempt.authorization_path,
        "authorization_digest": attempt.authorization_digest,
        "authorization_retained": attempt.authorization_retained,
        "adapter": attempt.adapter,
        "terminal_receipt": attempt.terminal_receipt,
        "started_at": seconds(attempt.started_at),
    }
    for name in ("terminal_validation_failure", "cleanup_receipt", "evidence"):
        value = getattr(attempt, name)
        if value is not None:
            view[name] = value
    if attempt.restore_receipt is not None:
        view["restore_receipt"] = plain(attempt.restore_receipt)
    if not attempt.bulky_artifacts_retained:
        view["bulky_artifacts_retained"] = False
    return view


def unit_view(unit: Unit, directory: Path) -> dict[str, Any]:
    """One unit in the manifest's shape."""
    integration = unit.integration
    transport = plain(unit.transport)
    if unit.transport.commit is None:
        del transport["inventory_b64"]
    return {
        "unit_id": unit.unit_id,
        "state": unit.state,
        "dependencies": list(unit.dependencies),
        "wave": plain(unit.wave),
        "packet_digest": unit.packet_digest,
        "packet": plain(unit.packet),
        "workspace": {
            "path": unit.workspace.path,
            "base": unit.workspace.base,
            "registered": unit.workspace.registered,
        },
        "result_dir_identity": plain(unit.result_dir_identity),
        "attempts": [attempt_view(attempt) for attempt in unit.attempts],
        "transport": transport,
        "integration": {
            name: plain(getattr(integration, name))
            for name in (
                "intent_revision",
                "driver",
                "pre_fold",
                "expected_apply",
                "applied",
                "verification",
                "canonical_commit",
                "restore",
            )
        },
        "cleanup": unit.cleanup,
        "recovery_path": str(directory / "units" / unit.unit_id),
    }


def blocker_view(blocker: Blocker) -> dict[str, Any]:
    """One blocker in the manifest's shape."""
    view: dict[str, Any] = {
        **blocker.detail,
        "at": seconds(blocker.at),
        "unit_id": blocker.unit_id,
        "reason": blocker.reason,
    }
    if blocker.retain_integration_lock:
        view["retain_integration_lock"] = True
    if blocker.integration_lock_nonce is not None:
        view["integration_lock_nonce"] = blocker.integration_lock_nonce
    if blocker.resolved_at is not None:
        view |= {"resolved_at": seconds(blocker.resolved_at), "resolved_by": "resume"}
    return view


def plan_view(run: Run) -> dict[str, Any]:
    """The manifest's `plan`."""
    return {
        "kind": run.source.kind,
        "path": run.source.path if run.source.kind == "plan" else None,
        "digest": run.source.digest,
        "checkpoint": plain(run.checkpoint),
    }


def manifest(run: Run, directory: Path, entries: Iterable[Entry]) -> dict[str, Any]:
    """The whole manifest."""
    attempts = []
    for attempt in run.verification_attempts:
        value = {name: plain(item) for name, item in asdict(attempt).items() if item is not None}
        del value["index_copy"], value["index_sha256"]
        attempts.append(value)
    events = []
    for entry in entries:
        event: dict[str, Any] = {"at": seconds(entry.at), "kind": entry.data.kind}
        if entry.unit is not None:
            event["unit_id"] = entry.unit
        events.append(event)
    return {
        "schema_version": 1,
        "revision": run.revision,
        "run_id": run.run_id,
        "created_at": seconds(run.created_at),
        "updated_at": seconds(run.updated_at),
        "repository": plain(run.repository),
        "branch": plain(run.branch),
        "source": plain(run.source),
        "plan": plan_view(run),
        "binding": run.binding,
        "egress": run.egress,
        "integration_lock": lock_view(run.lock),
        "units": {unit_id: unit_view(unit, directory) for unit_id, unit in sorted(run.units.items())},
        "verification_attempts": attempts,
        "verifications": list(run.verifications),
        "blockers": [blocker_view(blocker) for blocker in run.blockers],
        "events": events,
    }
