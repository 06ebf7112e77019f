"""The files of an attempt on disk are the ones that its record binds: packet, authorization, result, workspace."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from controller import run_root, worktree
from controller.errors import Blocked, Unreadable
from controller.run import OpenRun
from controller.state import Unit


def require_files(run: OpenRun, unit: Unit) -> None:
    """Packet, authorization and result directory on disk are the recorded ones."""
    attempt = unit.attempt
    for path, digest, what in (
        (unit.packet.path, unit.packet_digest, "packet"),
        (attempt.authorization_path, attempt.authorization_digest, "authorization"),
    ):
        found = hashlib.sha256(run_root.read(Path(path))).hexdigest()
        if found != digest:
            raise Blocked(f"the {what} file differs from the recorded digest", expected=digest, found=found)
    require_result_dir(run, unit)


def require_result_dir(run: OpenRun, unit: Unit) -> Path:
    """The result directory, `UNREADABLE` when it is another than the recorded one."""
    path = run.unit_dir(unit.unit_id) / "result"
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        info = None
    identity = unit.result_dir_identity
    if info is None or not stat.S_ISDIR(info.st_mode) or (info.st_dev, info.st_ino) != (identity.dev, identity.ino):
        raise Unreadable(
            "controller result directory identity changed",
            expected=f"device {identity.dev} inode {identity.ino}",
            found="nothing" if info is None else f"device {info.st_dev} inode {info.st_ino}",
        )
    return path


def require_pristine(run: OpenRun, unit: Unit, head: str) -> None:
    """The workspace is at its base and as `prepare` left it, by lstat of every file; no git runs in it."""
    if head != unit.workspace.base:
        raise Blocked("workspace HEAD no longer equals the recorded base", expected=unit.workspace.base, found=head)
    recorded = worktree.read_manifest(run.unit_dir(unit.unit_id), unit.workspace.manifest_sha256)
    present = {entry.path: entry for entry in worktree.walk(Path(unit.workspace.path))}
    dirty = sorted(path for path in recorded.keys() | present.keys() if recorded.get(path) != present.get(path))
    if dirty:
        raise Blocked(
            "workspace is dirty before dispatch authorization",
            detail={"dirty_paths": dirty[:100]},
            expected="the workspace as prepared",
            found=f"{len(dirty)} changed path(s)",
            remedy="abandon this attempt (cleanup --abandon) and prepare a fresh one",
        )
