"""Structures that records and state share. Nothing here has an effect.

Times are UTC ISO 8601, digests lowercase hex SHA-256, sizes bytes, commits and trees Git object ids.
"""

from __future__ import annotations

from typing import Any

import msgspec

JsonObject = dict[str, Any]


class Repository(msgspec.Struct, frozen=True):
    """Identity of the canonical checkout (protocol.md section 5; section 18 row 14)."""

    toplevel: str
    git_dir: str
    common_dir: str
    common_dev: int
    common_ino: int
    identity_digest: str
    object_format: str = "sha1"


class Branch(msgspec.Struct, frozen=True):
    """The branch that the run integrates into, and its commit at `init`."""

    ref: str
    initial_head: str


class Source(msgspec.Struct, frozen=True):
    """What the run implements: a plan in the repository or a private prompt brief."""

    kind: str
    storage: str
    path: str
    digest: str


class Checkpoint(msgspec.Struct, frozen=True):
    """The host commit that holds only the selected plan."""

    prior_head: str
    commit: str
    tree: str
    path: str
    digest: str
    at: str


class Wave(msgspec.Struct, frozen=True):
    """Place of a unit in a wave; a serial unit has `id` null."""

    id: str | None
    base: str
    position: int
    allowed_heads: tuple[str, ...]


class Packet(msgspec.Struct, frozen=True):
    """The controller's own copy of the unit packet; `retained` false once pruned to evidence."""

    path: str
    digest: str
    bytes: int
    retained: bool = True


class ResultDirIdentity(msgspec.Struct, frozen=True):
    """Device and inode of the result directory."""

    dev: int
    ino: int


class Snapshot(msgspec.Struct, frozen=True):
    """Semantic snapshot of a checkout (section 5); `index_sha256` covers entries and bits, by `ls-files -v --stage`."""

    head: str
    branch_ref: str
    head_tree: str
    index_tree: str
    status_sha256: str
    status_empty: bool
    worktree_index_empty: bool
    index_sha256: str = ""


class ExpectedApply(msgspec.Struct, frozen=True):
    """Index tree and dirty paths that an exact application of the transport must show."""

    index_tree: str
    changed_paths: tuple[str, ...]


class Applied(msgspec.Struct, frozen=True, omit_defaults=True):
    """Proof that the transport is applied exactly and nothing else is."""

    at: str
    post_index_tree: str
    status_sha256: str
    reconciled: bool = False


class Verification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A unit's authoritative verification."""

    at: str
    digest: str
    summary: str
    ignored_state: JsonObject | None = None


class CanonicalCommit(msgspec.Struct, frozen=True):
    """The one host-owned commit of a unit."""

    commit: str
    parent: str
    tree: str
    at: str


class Folder(msgspec.Struct, frozen=True):
    """A folder of the checkout with its permission bits."""

    path: str
    mode: int


class Recovered(msgspec.Struct, frozen=True):
    """A file that a restore would have destroyed, copied to the run's `recovered/` first."""

    path: str
    copy: str
    sha256: str
    bytes: int


class Restore(msgspec.Struct, frozen=True, omit_defaults=True):
    """Proof that the checkout equals its pre-fold snapshot again."""

    at: str
    exact: bool
    snapshot: Snapshot
    already_exact: bool = False
    recovered: tuple[Recovered, ...] = ()


class Transport(msgspec.Struct, frozen=True, omit_defaults=False):
    """The worker's complete output as one commit on the recorded base (section 6)."""

    base: str | None = None
    tree: str | None = None
    commit: str | None = None
    ref: str | None = None
    digest: str | None = None
    changed_paths: tuple[str, ...] = ()
    inventory_b64: str = ""


class Identity(msgspec.Struct, frozen=True):
    """A process: pid, start time in clock ticks since boot, boot id (section 18 row 17)."""

    pid: int
    start_time: int
    boot_id: str


class DispatchReceipt(msgspec.Struct, frozen=True):
    """The exact request that `authorize-dispatch` granted."""

    attempt_id: str
    job_id: str
    authorization_path: str
    authorization_digest: str
    workspace: str
    packet_path: str
    packet_digest: str
    result_dir: str
    result_dir_identity: ResultDirIdentity
