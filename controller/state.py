"""The run's state: immutable structs, and the pure fold that builds them from journal records (design.md section 3).

Shapes follow the manifest of protocol.md section 6, so that `projection` only renames. Nothing here has an effect.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from controller.shapes import (
    Applied,
    Branch,
    CanonicalCommit,
    Checkpoint,
    DispatchReceipt,
    ExpectedApply,
    Folder,
    Identity,
    JsonObject,
    Packet,
    Repository,
    Restore,
    ResultDirIdentity,
    Snapshot,
    Source,
    Transport,
    Verification,
    Wave,
)

NEVER_STARTED = "never-started"
RUNNING = "running"
DONE = "done"
FAILED_WORDS = ("failed", "timeout", "died-without-result")


class Fallback(msgspec.Struct, frozen=True):
    """Whether a native implementation may replace the worker, and what was claimed."""

    eligible: bool = False
    reason: str | None = None
    claimed: JsonObject | None = None
    completed: JsonObject | None = None


class Attempt(msgspec.Struct, frozen=True):
    """One dispatch of a unit to its fixed recipient."""

    attempt_id: str
    authorization: JsonObject
    authorization_path: str
    authorization_digest: str
    adapter: str
    activity_posture: str
    started_at: str
    job_id: str | None = None
    dispatch_authorization_receipt: DispatchReceipt | None = None
    process_state: str = NEVER_STARTED
    activity: JsonObject = {}
    limits: JsonObject = {}
    fallback: Fallback = Fallback()
    terminal_receipt: JsonObject | None = None
    terminal_validation_failure: JsonObject | None = None
    authorization_retained: bool = True
    bulky_artifacts_retained: bool = True
    evidence: str | None = None
    cleanup_receipt: JsonObject | None = None
    restore_receipt: Restore | None = None
    packet_digest: str = ""


class Workspace(msgspec.Struct, frozen=True):
    """The unit's private detached worktree."""

    path: str
    base: str
    registered: bool = False
    manifest_sha256: str | None = None
    git_config_sha256: str | None = None


class VerificationProcess(msgspec.Struct, frozen=True):
    """A verification that was started and whose end is not recorded."""

    supervisor: Identity
    child: Identity
    marker: str
    log: str


class Integration(msgspec.Struct, frozen=True):
    """How far the canonical transaction of a unit has come; `driver` is `integrate` or `manual`."""

    intent_revision: int | None = None
    driver: str | None = None
    pre_fold: Snapshot | None = None
    expected_apply: ExpectedApply | None = None
    index_copy: str | None = None
    index_sha256: str | None = None
    folders: tuple[Folder, ...] = ()
    applied: Applied | None = None
    verification: Verification | None = None
    verification_failed: bool = False
    commit_intent: str | None = None
    canonical_commit: CanonicalCommit | None = None
    restore: Restore | None = None


class Unit(msgspec.Struct, frozen=True):
    """One bounded piece of work."""

    unit_id: str
    state: str
    dependencies: tuple[str, ...]
    wave: Wave
    packet_digest: str
    packet: Packet
    workspace: Workspace
    result_dir_identity: ResultDirIdentity
    attempts: tuple[Attempt, ...]
    transport: Transport = Transport()
    transport_intent: str | None = None
    integration: Integration = Integration()
    cleanup_intent: JsonObject | None = None
    cleanup: JsonObject | None = None

    @property
    def attempt(self) -> Attempt:
        """The attempt in force."""
        return self.attempts[-1]


class IntegrationLock(msgspec.Struct, frozen=True):
    """The integration lock as the journal knows it; `phase` is `intent`, `held` or `releasing`."""

    unit_id: str
    nonce: str
    path: str
    phase: str
    release_started_at: str | None = None


class Blocker(msgspec.Struct, frozen=True):
    """Something that a person or `resume` has to resolve."""

    seq: int
    at: str
    kind: str
    unit_id: str | None
    reason: str
    detail: JsonObject
    retain_integration_lock: bool
    integration_lock_nonce: str | None
    resolved_at: str | None = None


class RunVerification(msgspec.Struct, frozen=True):
    """A plan-wide verification attempt; `status` is `pending`, `receipt-recorded` or `abandoned`."""

    attempt_id: str
    started_at: str
    status: str
    integration_lock_nonce: str
    lock_unit_id: str
    argv: tuple[str, ...]
    summary: str
    canonical_snapshot: Snapshot
    verification_log: str
    index_copy: str
    index_sha256: str
    completed_at: str | None = None
    evidence_digest: str | None = None


class Event(msgspec.Struct, frozen=True):
    """One journal record in the manifest's short form."""

    at: str
    kind: str
    unit_id: str | None


class Run(msgspec.Struct, frozen=True):
    """Everything that the journal says of a run."""

    run_id: str
    created_at: str
    updated_at: str
    revision: int
    repository: Repository
    branch: Branch
    source: Source
    binding: JsonObject
    egress: JsonObject
    config: JsonObject
    checkpoint_intent: str | None = None
    checkpoint: Checkpoint | None = None
    lock: IntegrationLock | None = None
    units: dict[str, Unit] = {}
    verification_process: VerificationProcess | None = None
    verification_process_unit: str | None = None
    verification_attempts: tuple[RunVerification, ...] = ()
    verifications: tuple[JsonObject, ...] = ()
    blockers: tuple[Blocker, ...] = ()

    def open_blockers(self, *, unit_id: str | None = None) -> tuple[Blocker, ...]:
        """Blockers that nothing has resolved yet, of one unit or of all."""
        return tuple(
            blocker
            for blocker in self.blockers
            if blocker.resolved_at is None and (unit_id is None or blocker.unit_id == unit_id)
        )

    @property
    def pending_verification(self) -> RunVerification | None:
        """The plan-wide verification whose outcome is not recorded."""
        if self.verification_attempts and self.verification_attempts[-1].status == "pending":
            return self.verification_attempts[-1]
        return None


def accepted_commit(unit: Unit) -> str | None:
    """The commit by which the canonical branch holds this unit's work (section 5), or None."""
    if unit.state == "cleaned" and unit.integration.canonical_commit is not None:
        return unit.integration.canonical_commit.commit
    if unit.state == "native-completed":
        completed = unit.attempt.fallback.completed
        return None if completed is None else str(completed["accepted_head"])
    return None


def accepted_commits(run: Run) -> dict[str, str]:
    """Unit id to accepted commit, for the units that have one."""
    found = {unit_id: accepted_commit(unit) for unit_id, unit in run.units.items()}
    return {unit_id: commit for unit_id, commit in found.items() if commit is not None}


def has_open_claim(unit: Unit) -> bool:
    """Whether a native implementation was authorized and is not completed: it owns the unit (section 8)."""
    fallback = unit.attempt.fallback
    return fallback.claimed is not None and fallback.completed is None


def is_withdrawn(unit: Unit) -> bool:
    """Whether the unit was given up before any dispatch: the run does not wait for it (section 18 row 11)."""
    receipt = (unit.cleanup or {}).get("abandonment_receipt") or {}
    return unit.state == "cleaned" and receipt.get("kind") == "never-dispatched"


def unaccepted(run: Run) -> list[str]:
    """The units that still need an accepted commit, sorted."""
    accepted = accepted_commits(run)
    return sorted(name for name, unit in run.units.items() if name not in accepted and not is_withdrawn(unit))


def is_finished(run: Run, head: str | None) -> bool:
    """Whether nothing of the run is left to do (section 8 `resume`); `head` is the canonical HEAD if known."""
    accepted = accepted_commits(run)
    if not accepted or unaccepted(run) or run.lock is not None:
        return False
    passed = [v for v in run.verifications if v["verification_exit"] == 0 and v["accepted_units"] == accepted]
    if head is None:
        return bool(passed)
    return head in accepted.values() and any(v["canonical_head"] == head for v in passed)


def with_unit(run: Run, unit: Unit, **changes: Any) -> Run:
    """The run with one unit changed."""
    return replace(run, units={**run.units, unit.unit_id: replace(unit, **changes)})


def with_attempt(run: Run, unit: Unit, unit_changes: dict[str, Any] | None = None, **changes: Any) -> Run:
    """The run with the unit's last attempt changed, and the unit itself if asked."""
    attempts = (*unit.attempts[:-1], replace(unit.attempt, **changes))
    return with_unit(run, unit, attempts=attempts, **(unit_changes or {}))
