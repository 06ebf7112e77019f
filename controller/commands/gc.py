"""`gc`: finished runs that are old enough go, evidence and all; it says first what would go."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from controller import lock, run_root
from controller.answer import Answer
from controller.encoding import seconds
from controller.errors import ControllerError
from controller.run import read_directory
from controller.state import Run, is_finished


def gc(*, older_than_days: float, yes: bool) -> Answer:
    """Name (or with `yes` remove) the finished runs that nothing was recorded in for so many days."""
    limit = datetime.now(UTC) - timedelta(days=older_than_days)
    going: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for root in run_root.lookup_roots():
        if not root.is_dir():
            continue
        for name in sorted(os.listdir(root)):
            if name.startswith("."):
                continue
            reason = _keep_reason(root / name, limit)
            if reason is not None:
                kept.append({"run_id": name, "reason": reason})
                continue
            going.append({"run_id": name, "path": str(root / name), "bytes": _size(root / name)})
            if yes:
                _remove(root, name)
    body = {"runs": going, "kept": kept, "bytes": sum(item["bytes"] for item in going), "removed": yes}
    return Answer("COLLECTED" if yes else "WOULD_COLLECT", body)


def _keep_reason(directory: Path, limit: datetime) -> str | None:
    """Why a run stays, or None."""
    try:
        state = read_directory(run_root.find_run(directory.name)).state
    except ControllerError as error:
        return f"cannot be read: {error.message}"
    reason = unfinished_reason(state)
    if reason is not None:
        return reason
    if datetime.fromisoformat(seconds(state.updated_at)) > limit:
        return "not old enough"
    return None


def unfinished_reason(state: Run) -> str | None:
    """What of a run is not finished, or None. Pure."""
    if state.lock is not None:
        return "holds the integration lock"
    if state.pending_verification is not None:
        return "a plan-wide verification has no outcome"
    for unit in state.units.values():
        if unit.cleanup is None and unit.state != "native-completed":
            return f"unit {unit.unit_id} is {unit.state}"
        if unit.cleanup is not None and not unit.cleanup["artifact_cleanup"]["complete"]:
            return f"unit {unit.unit_id} is not cleaned up completely"
        if unit.cleanup is None and unit.workspace.registered:
            return f"the workspace of unit {unit.unit_id} is still registered"
    if not is_finished(state, None):
        return "no plan-wide verification has passed for its accepted units"
    return None


def _size(directory: Path) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(directory) for name in names
    )


def _remove(root: Path, name: str) -> None:
    """Take the run's name away in one step, under its lock, then its bytes."""
    with (
        lock.held(root / run_root.LOCKS / "runs.lock", wait=10.0, what="the runs root"),
        lock.held(root / name / "manifest.lock", wait=10.0, what=f"run {name}"),
    ):
        doomed = root / f"{run_root.INIT_PREFIX}{secrets.token_hex(6)}"
        with run_root.trusted():
            os.rename(root / name, doomed)
    run_root.remove_tree(doomed)
