"""`gc`: finished runs that are old enough go, evidence and all; it says first what would go."""

from __future__ import annotations

import math
import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller import lock, run_root, worktree
from controller.answer import Answer
from controller.encoding import seconds
from controller.errors import ControllerError, Refused
from controller.run import OpenRun, read_directory
from controller.state import Run, is_finished
from controller.transport import ref_name
from runner import private
from runner.job import read_job
from runner.verdict import State

_DAY_SECONDS = 86400
# What commands make in a run's folder, also half made by a killed one.
_OURS = re.compile(
    r"(journal\.jsonl|journal\.torn\.\d+|manifest\.json|manifest\.lock|source|packets|units|jobs|evidence|recovered"
    r"|scratch|index-[0-9a-f]{12}(\.lock)?|index\.\w+(\.lock)?|\.tmp-\d+-[0-9a-f]+)\Z"
)


def gc(*, older_than_days: float, yes: bool) -> Answer:
    """Name (or with `yes` remove) the finished runs that nothing was recorded in for so many days."""
    if not math.isfinite(older_than_days):
        raise Refused(
            "--older-than-days is not a number of days",
            expected="a number, 0 or more",
            found=str(older_than_days),
            remedy="pass a number of days",
        )
    going: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for root in run_root.lookup_roots():
        for name in sorted(os.listdir(root)) if root.is_dir() else ():
            if name.startswith("."):
                continue
            size = _size(root / name)
            reason = _take(root, name, older_than_days) if yes else _keep_reason(root / name, older_than_days)
            if reason is None:
                going.append({"run_id": name, "path": str(root / name), "bytes": size})
            else:
                kept.append({"run_id": name, "reason": reason})
    body = {"runs": going, "kept": kept, "bytes": sum(item["bytes"] for item in going), "removed": yes}
    return Answer("COLLECTED" if yes else "WOULD_COLLECT", body)


def _keep_reason(directory: Path, days: float) -> str | None:
    """Why a run stays, or None."""
    if lock.is_held(directory / "manifest.lock"):
        return "another command works on it"
    return _reason(directory, days)


def _reason(directory: Path, days: float) -> str | None:
    try:
        with run_root.trusted():
            private.check_private_dir(directory)
        run = read_directory(directory)
    except ControllerError as error:
        return f"cannot be read: {error.message}"
    try:
        with run_root.trusted():
            reason = unfinished_reason(run.state) or _still_needed(run) or _foreign(run)
    except ControllerError as error:
        reason = f"cannot be judged: {error.message}"
    if reason is not None:
        return reason
    age = datetime.now(UTC) - datetime.fromisoformat(seconds(run.state.updated_at))
    return None if age.total_seconds() >= days * _DAY_SECONDS else "not old enough"


def unfinished_reason(state: Run) -> str | None:
    """What of a run is not finished, or None. Pure."""
    if state.lock is not None:
        return f"holds the integration lock for {state.lock.unit_id}"
    if state.pending_verification is not None or state.verification_process is not None:
        return "a verification has no outcome"
    for unit in state.units.values():
        if unit.cleanup is None:
            return f"unit {unit.unit_id} is {unit.state} and not cleaned up"
        if not unit.cleanup["artifact_cleanup"]["complete"]:
            return f"unit {unit.unit_id} is not cleaned up completely"
    if not is_finished(state, None):
        return "no plan-wide verification has passed for its accepted units"
    return None


def _still_needed(run: OpenRun) -> str | None:
    """What outside the journal speaks for keeping a finished run."""
    jobs = run.directory / "jobs"
    for name in sorted(os.listdir(jobs)) if jobs.is_dir() else ():
        if (jobs / name).is_dir() and read_job(jobs / name).state is State.RUNNING:
            return f"job {name} has no outcome"
    recovered = _recovered(run.directory / "recovered")
    if recovered:
        return f"{recovered} file(s) of yours are in {run.directory / 'recovered'}: move or remove them first"
    holder = lock.read(run.lock_path)
    if holder is not None and holder["run_id"] == run.state.run_id:
        return "an integration lock file names it; `resume --run-id` it"
    for unit_id in run.state.units:
        if run.refs.current(ref_name(run.state.run_id, unit_id)) is not None:
            return f"a transport of unit {unit_id} is pinned; `doctor` says what it is"
    return None


def _recovered(folder: Path) -> int:
    """How many files of the user lie there: a link to a folder is one, and a folder that cannot be read holds some."""
    faults: list[OSError] = []
    found = 0
    for at, folders, files in os.walk(folder, onerror=faults.append):
        found += len(files) + sum(os.path.islink(os.path.join(at, name)) for name in folders)
    return found + sum(not isinstance(fault, FileNotFoundError) for fault in faults)


def _foreign(run: OpenRun) -> str | None:
    """What lies in a finished run that no command of ours put there, or None."""
    top = run.directory
    strange = [top / name for name in os.listdir(top) if not _OURS.match(name)]
    strange += [
        place for folder in ("units", "packets") if (top / folder).is_dir() for place in (top / folder).iterdir()
    ]
    if strange:
        return f"{min(strange)} is not of the run: move or remove it first"
    inside = os.path.realpath(top) + "/"
    for entry in worktree.registrations(run.state.repository.common_dir):
        place = os.path.dirname(entry.gitdir)
        if os.path.realpath(place).startswith(inside):
            return f"{place} is a registered worktree: `git worktree remove` it first; one of a unit is `doctor`'s"
    run_root.require_no_mount(top)
    return None


def _size(directory: Path) -> int:
    """Bytes of the files below a run."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _take(root: Path, name: str, days: float) -> str | None:
    """Take the run's name away in one step, under its lock, then its bytes; or why it stays."""
    reason = _keep_reason(root / name, days)
    if reason is not None:
        return reason
    try:
        with (
            lock.held(root / run_root.LOCKS / "runs.lock", wait=10.0, what="the runs root"),
            lock.held(root / name / "manifest.lock", wait=0.0, what=f"run {name}"),
        ):
            reason = _reason(root / name, days)
            if reason is not None:
                return reason
            doomed = root / f"{run_root.INIT_PREFIX}{secrets.token_hex(6)}"
            with run_root.trusted():
                os.rename(root / name, doomed)
                private.fsync_dir(root)
        run_root.remove_tree(doomed)
    except Refused as error:
        return error.message
    except ControllerError as error:
        return f"cannot be removed: {error.message}"
    return None
