"""Every record type of the journal: one frozen struct a kind; the struct's docstring is the kind's meaning.

The `data` object of a journal line (journal_format.md) is one of these structs without its `kind`. Nothing here has
an effect. Times are UTC ISO 8601, digests lowercase hex SHA-256, sizes bytes, commits and trees Git object ids.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

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
    Recovered,
    Repository,
    Restore,
    ResultDirIdentity,
    Snapshot,
    Source,
    Transport,
    Verification,
    Wave,
)


class Data(msgspec.Struct, frozen=True):
    """Base of every record's data."""

    kind: ClassVar[str]


KINDS: dict[str, type[Data]] = {}


def _kind(name: str) -> Any:
    def register(cls: type[Data]) -> type[Data]:
        cls.kind = name
        KINDS[name] = cls
        return cls

    return register


@_kind("run-created")
class RunCreated(Data, frozen=True):
    """A run begins: repository, branch, source, binding and egress, each with its digest."""

    run_id: str
    repository: Repository
    branch: Branch
    source: Source
    binding: JsonObject
    egress: JsonObject
    digests: dict[str, str]
    config: JsonObject


@_kind("journal-torn-tail-moved")
class TornTailMoved(Data, frozen=True):
    """An unfinished append was moved aside before the journal was written again."""

    file: str
    bytes: int
    sha256: str


@_kind("plan-checkpoint-intent")
class CheckpointIntent(Data, frozen=True):
    """The plan-only commit is about to be created on the branch."""

    prior_head: str
    commit: str
    tree: str
    path: str
    digest: str


@_kind("plan-checkpoint")
class PlanCheckpoint(Data, frozen=True):
    """The plan-only commit is HEAD."""

    checkpoint: Checkpoint


class UnitPacket(Data, frozen=True):
    """What `prepare` fixes for one attempt."""

    dependencies: tuple[str, ...]
    wave: Wave
    packet: Packet
    workspace: str
    base: str
    result_dir_identity: ResultDirIdentity
    authorization: JsonObject
    authorization_path: str
    authorization_digest: str
    adapter: str
    activity_posture: str


@_kind("worktree-add-intent")
class WorktreeAddIntent(UnitPacket, frozen=True):
    """A new unit is queued and its workspace is about to be created."""


@_kind("unit-retry-prepared")
class UnitRetryPrepared(UnitPacket, frozen=True):
    """A cleaned, abandoned unit is queued again under a new attempt id."""


@_kind("worktree-prepared")
class WorktreePrepared(Data, frozen=True):
    """The workspace is registered, private, detached at the base and clean."""

    manifest_sha256: str
    entries: int
    git_config_sha256: str


@_kind("job-bound")
class JobBound(Data, frozen=True):
    """A runner job is bound to the attempt; with a receipt when dispatch was authorized."""

    job_id: str
    receipt: DispatchReceipt | None = None


@_kind("job-adopted")
class JobAdopted(Data, frozen=True):
    """`resume` bound the one matching job that nobody had recorded."""

    job_id: str


@_kind("job-synced")
class JobSynced(Data, frozen=True):
    """What the runner's files say of a live job."""

    process_state: str
    activity: JsonObject
    limits: JsonObject


@_kind("job-terminal")
class JobTerminal(Data, frozen=True):
    """The runner's files say that the job has ended, or they are lost and no process of it lives."""

    process_state: str
    activity: JsonObject
    limits: JsonObject
    failure_reason: str | None


@_kind("route-unavailable")
class RouteUnavailable(Data, frozen=True):
    """The adapter's receipt says that the fixed route was not available."""

    terminal_receipt: JsonObject


@_kind("route-failed")
class RouteFailed(Data, frozen=True):
    """The adapter's receipt says that the fixed route was started and failed."""

    terminal_receipt: JsonObject


@_kind("worker-output-authored")
class WorkerOutputAuthored(Data, frozen=True):
    """The worker's result is valid and matches the authorization."""

    terminal_receipt: JsonObject


@_kind("terminal-validation-failed")
class TerminalValidationFailed(Data, frozen=True):
    """The worker's result or workspace did not pass; the worker may be abandoned or replaced."""

    word: str
    reason: str
    detail: JsonObject
    job_id: str | None
    result_sha256: str | None


@_kind("transport-pin-intent")
class TransportPinIntent(Data, frozen=True):
    """The transport's objects are written; its ref is about to be created."""

    base: str
    commit: str
    ref: str


@_kind("transport-pinned")
class TransportPinned(Data, frozen=True):
    """The transport commit is reachable from its ref."""

    transport: Transport


@_kind("integration-lock-intent")
class LockIntent(Data, frozen=True):
    """The integration lock file is about to be created with this nonce."""

    nonce: str
    path: str


@_kind("integration-lock-acquired")
class LockAcquired(Data, frozen=True):
    """This run holds the integration lock of the branch in the unit's name."""

    nonce: str
    path: str


@_kind("integration-lock-adopted")
class LockAdopted(Data, frozen=True):
    """`resume` took up the lock file that an interrupted call of this run had created."""

    nonce: str
    path: str


@_kind("integration-lock-taken-over")
class LockTakenOver(Data, frozen=True):
    """A lock file was removed whose run no longer exists (section 18 row 16)."""

    path: str
    previous: JsonObject


@_kind("integration-lock-release-intent")
class LockReleaseIntent(Data, frozen=True):
    """The lock file is about to be removed."""

    nonce: str


@_kind("integration-lock-released")
class LockReleased(Data, frozen=True):
    """The lock file is gone, or belongs to a newer owner."""

    nonce: str


@_kind("canonical-apply-intent")
class ApplyIntent(Data, frozen=True):
    """Preflight passed: the checkout's snapshot, and what the apply must produce. `driver`: who goes on from here;
    `folders`: those that exist above the changed paths.
    """

    driver: str
    pre_fold: Snapshot
    expected_apply: ExpectedApply
    index_copy: str
    index_sha256: str
    folders: tuple[Folder, ...] = ()


@_kind("transport-applied")
class TransportApplied(Data, frozen=True):
    """The transport is applied exactly."""

    applied: Applied


@_kind("transport-apply-reconciled")
class ApplyReconciled(Data, frozen=True):
    """`resume` found the transport applied exactly."""

    applied: Applied


@_kind("canonical-verification-started")
class VerificationStarted(Data, frozen=True):
    """A verification process exists and waits for its go (section 18 row 5); `marker` is in its environment."""

    supervisor: Identity
    child: Identity
    marker: str
    argv: tuple[str, ...]
    log: str
    timeout_seconds: int


@_kind("canonical-verification-ended")
class VerificationEnded(Data, frozen=True):
    """No process of the verification is left; `survivors` outlived its leader and were ended."""

    marker: str
    exit_code: int | None
    timed_out: bool
    survivors: int


@_kind("canonical-verification-passed")
class VerificationPassed(Data, frozen=True):
    """The unit's authoritative verification passed on the exact application."""

    verification: Verification


@_kind("canonical-verification-failed")
class VerificationFailed(Data, frozen=True):
    """The unit's verification failed or changed canonical state; the unit is restored next."""

    exit_code: int
    timed_out: bool
    canonical_state_changed: bool
    log: str


@_kind("canonical-commit-intent")
class CommitIntent(Data, frozen=True):
    """The canonical commit object exists; the branch is about to move to it."""

    commit: str
    parent: str
    tree: str


@_kind("canonical-commit-confirmed")
class CommitConfirmed(Data, frozen=True):
    """The canonical commit is HEAD."""

    canonical_commit: CanonicalCommit


@_kind("canonical-commit-reconciled")
class CommitReconciled(Data, frozen=True):
    """`resume` found the canonical commit at HEAD."""

    canonical_commit: CanonicalCommit


@_kind("wave-advanced")
class WaveAdvanced(Data, frozen=True):
    """A committed member's commit became an allowed head of its later siblings."""

    canonical_commit: str
    siblings: tuple[str, ...]


@_kind("restore-intent")
class RestoreIntent(Data, frozen=True):
    """The checkout is about to be put back to the pre-fold snapshot."""

    cause: str
    paths: tuple[str, ...]


@_kind("bytes-recovered")
class BytesRecovered(Data, frozen=True):
    """Bytes that are not in Git were copied before a restore touches them (section 18 row 6)."""

    recovered: tuple[Recovered, ...]


@_kind("canonical-restored")
class CanonicalRestored(Data, frozen=True):
    """The checkout equals the pre-fold snapshot, proven."""

    restore: Restore


@_kind("stale-git-lock-removed")
class StaleGitLockRemoved(Data, frozen=True):
    """A Git lock file was removed that a dead process of this run had left."""

    path: str
    cause: str


@_kind("survivors-ended")
class SurvivorsEnded(Data, frozen=True):
    """Processes of an interrupted verification were ended."""

    marker: str
    pids: tuple[int, ...]


class BlockerData(Data, frozen=True):
    """A blocker: reason, detail, whether the integration lock is kept."""

    reason: str
    detail: JsonObject
    retain_integration_lock: bool
    integration_lock_nonce: str | None


@_kind("restore-blocked")
class RestoreBlocked(BlockerData, frozen=True):
    """Exact restoration could not be proven."""


@_kind("integration-restore-blocked")
class IntegrationRestoreBlocked(BlockerData, frozen=True):
    """`integrate` failed and exact restoration could not be proven."""


@_kind("integration-release-blocked")
class IntegrationReleaseBlocked(BlockerData, frozen=True):
    """`integrate` failed and, after exact restoration, its lock could not be released."""


@_kind("post-commit-finalization-blocked")
class PostCommitBlocked(BlockerData, frozen=True):
    """The canonical commit stands; what follows it is not finished."""


@_kind("run-verification-restore-blocked")
class RunVerificationRestoreBlocked(BlockerData, frozen=True):
    """The plan-wide verification changed the branch, HEAD or state that could not be put back."""


@_kind("run-verification-blocked")
class RunVerificationBlocked(BlockerData, frozen=True):
    """The plan-wide verification failed; its receipt says how."""


@_kind("recovery-blockers-resolved")
class BlockersResolved(Data, frozen=True):
    """`resume` repaired what these blockers (by their record's seq) had reported."""

    seqs: tuple[int, ...]


@_kind("cleanup-intent")
class CleanupIntent(Data, frozen=True):
    """The workspace and the transport ref are about to be removed."""

    abandoned: bool
    abandonment_receipt: JsonObject | None


@_kind("unit-cleaned")
class UnitCleaned(Data, frozen=True):
    """Workspace and transport ref are gone."""

    abandoned: bool
    abandonment_receipt: JsonObject | None


@_kind("finalized-artifacts-pruned")
class ArtifactsPruned(Data, frozen=True):
    """Packet, result, receipts and log moved to `evidence/`; bulky files are gone (section 18 row 7)."""

    evidence: str


@_kind("native-fallback-authorized")
class FallbackAuthorized(Data, frozen=True):
    """The one native fallback of the unit is claimed."""

    reason: str
    caller_mode: str
    mode: str
    canonical_head: str


@_kind("native-fallback-completed")
class FallbackCompleted(Data, frozen=True):
    """The claimed native implementation is committed and accepted."""

    completion: JsonObject


@_kind("run-verification-started")
class RunVerificationStarted(Data, frozen=True):
    """A plan-wide verification is pending under the integration lock."""

    attempt_id: str
    integration_lock_nonce: str
    argv: tuple[str, ...]
    summary: str
    canonical_snapshot: Snapshot
    verification_log: str
    index_copy: str
    index_sha256: str


@_kind("run-verification-passed")
class RunVerificationPassed(Data, frozen=True):
    """The plan-wide verification passed."""

    receipt: JsonObject


@_kind("run-verification-failed")
class RunVerificationFailed(Data, frozen=True):
    """The plan-wide verification failed."""

    receipt: JsonObject


@_kind("run-verification-abandoned")
class RunVerificationAbandoned(Data, frozen=True):
    """`resume` put the checkout back after a plan-wide verification that was killed (section 18 row 10)."""

    attempt_id: str
    recovered: tuple[Recovered, ...]
