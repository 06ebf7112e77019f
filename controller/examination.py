"""What `doctor` looks at: each check yields findings; a finding that is provably ours carries its own repair."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from controller import index_file, lock, run_root, transport, worktree
from controller.errors import ControllerError
from controller.git import Git
from controller.run import OpenRun, read_directory
from controller.survivors import MARKER
from runner import private
from runner.errors import Untrusted
from runner.job import read_job
from runner.process import ProcessIdentity, is_alive, kill_all, marked

_GIT_LOCKS = ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "shallow.lock")


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be: what it means, the one command that mends it, and the repair if ours."""

    check: str
    where: str
    meaning: str
    command: str
    repair: Callable[[], None] | None = None


def runs_root(root: Path) -> Iterator[Finding]:
    """Mode and owner of the runs root and its locks folder; what killed commands left there."""
    for path in (root, root / run_root.LOCKS):
        try:
            private.check_private_dir(path)
        except (Untrusted, OSError) as error:
            yield Finding("runs root", str(path), str(error), f"chmod 700 {path}  # if it is really yours")
    for name in sorted(os.listdir(root)):
        if name.startswith(private.TEMP_PREFIX):
            path = root / name
            yield Finding(
                "leftover",
                str(path),
                "a killed init or gc left it; no run has this name",
                "unit-workspace doctor --fix",
                lambda path=path: run_root.remove_tree(path),  # type: ignore[misc]
            )


def run_itself(directory: Path) -> Iterator[Finding]:
    """Journal, manifest, and whether something waits for `resume`."""
    name = directory.name
    try:
        run = read_directory(directory)
    except ControllerError as error:
        yield Finding("journal", str(directory), error.message, f"unit-workspace journal verify --run-id {name}")
        return
    resume = f"unit-workspace resume --run-id {name}"
    state = run.state
    if not (directory / run_root.MANIFEST).exists():
        yield Finding("manifest", str(directory), "the projection is missing; any command writes it again", resume)
    if state.verification_process is not None:
        yield Finding("verification", name, "a verification was interrupted; resume ends what is left of it", resume)
    if state.lock is not None or state.pending_verification is not None:
        holder = state.lock.unit_id if state.lock is not None else ""
        yield Finding("integration lock", name, f"held for {holder}: finish that unit, or resume", resume)
    for unit in state.units.values():
        if unit.state in ("restoring", "committed") or unit.cleanup_intent is not None:
            yield Finding("unit", f"{name}/{unit.unit_id}", f"interrupted in state {unit.state}", resume)
    for blocker in state.open_blockers():
        yield Finding("blocker", f"{name}/{blocker.unit_id or ''}", blocker.reason, resume)


def lock_files(root: Path) -> Iterator[Finding]:
    """Integration lock files whose holder is gone or does not know that it holds them."""
    for path in sorted((root / run_root.LOCKS).glob("integration-*.json")):
        try:
            holder = lock.read(path)
        except ControllerError as error:
            yield Finding("integration lock", str(path), error.message, f"inspect {path}")
            continue
        if holder is None:
            continue
        owner = f"{holder['run_id']}/{holder['unit_id']}"
        resume = f"unit-workspace resume --run-id {holder['run_id']}"
        if lock.holder_is_gone(holder):
            yield Finding(
                "integration lock", str(path), f"its run {owner} is gone; the next integrate takes it over", "integrate"
            )
        elif (root / holder["run_id"]).is_dir():
            try:
                held = read_directory(root / holder["run_id"]).state.lock
            except ControllerError:
                continue
            if held is None or held.nonce != holder["nonce"]:
                yield Finding("integration lock", str(path), f"{owner} does not know that it holds this", resume)


def registrations(root: Path, runs: list[OpenRun]) -> Iterator[Finding]:
    """Worktree registrations below the runs root that no unit needs any more."""
    needed = {
        os.path.realpath(unit.workspace.path)
        for run in runs
        for unit in run.state.units.values()
        if unit.workspace.registered or unit.state == "queued"
    }
    for common in sorted({run.state.repository.common_dir for run in runs}):
        for entry in worktree.registrations(common):
            workspace = os.path.realpath(os.path.dirname(entry.gitdir))
            if not workspace.startswith(f"{os.path.realpath(root)}/") or workspace in needed:
                continue
            git = Git(Path(common))
            yield Finding(
                "worktree",
                workspace,
                "registered in the repository, but no unit of any run has this workspace",
                "unit-workspace doctor --fix",
                lambda git=git, common=common, path=Path(workspace): worktree.remove(git, common, path),  # type: ignore[misc]
            )


def refs(runs: list[OpenRun]) -> Iterator[Finding]:
    """Transport refs: of cleaned units (ours to remove), or of nobody known here (yours to look at)."""
    for top in sorted({run.state.repository.toplevel for run in runs}):
        git = Git(Path(top))
        known = {
            transport.ref_name(run.state.run_id, unit.unit_id): (run, unit)
            for run in runs
            if run.state.repository.toplevel == top
            for unit in run.state.units.values()
        }
        try:
            out = git.run("for-each-ref", "--format=%(refname) %(objectname)", "refs/ce-work/").decode()
        except ControllerError as error:
            yield Finding("repository", top, error.message, f"git -C {top} status")
            continue
        for line in out.splitlines():
            ref, commit = line.split(" ")
            owner = known.get(ref)
            if owner is None:
                command = f"git -C {top} show --stat {commit}  # then: git -C {top} update-ref -d {ref} {commit}"
                yield Finding("transport ref", ref, "belongs to no run under this runs root", command)
                continue
            run, unit = owner
            if unit.cleanup is not None and unit.transport.commit == commit:
                yield Finding(
                    "transport ref",
                    ref,
                    f"unit {unit.unit_id} is cleaned",
                    "unit-workspace doctor --fix",
                    lambda run=run, ref=ref, commit=commit: _delete(run, ref, commit),  # type: ignore[misc]
                )


def _delete(run: OpenRun, ref: str, commit: str) -> None:
    with lock.held(run.directory / "manifest.lock", wait=lock.DEFAULT_WAIT, what=f"run {run.state.run_id}"):
        run.refs.delete(ref, commit)


def git_locks(runs: list[OpenRun]) -> Iterator[Finding]:
    """Lock files of Git in the repositories; only those that a killed command of a run provably left are ours."""
    for run in runs:
        git_dir = Path(run.state.repository.git_dir)
        if index_file.is_left(git_dir, run.directory) or run.refs.is_left():
            yield Finding(
                "git lock",
                str(git_dir),
                "a killed command of this run held the index or a reference",
                f"unit-workspace resume --run-id {run.state.run_id}",
            )
            continue
        for name in _GIT_LOCKS:
            path = git_dir / name
            if path.exists():
                age = int(time.time() - path.lstat().st_mtime)
                yield Finding(
                    "git lock", str(path), f"some Git process made it {age} s ago", f"rm {path}  # if no Git runs there"
                )


def survivors(runs: list[OpenRun]) -> Iterator[Finding]:
    """Processes of verifications and jobs that have ended."""
    for run in runs:
        for entry in run.entries:
            marker = getattr(entry.data, "marker", None)
            if entry.data.kind == "canonical-verification-started" and run.state.verification_process is None:
                yield from _ended(f"verification of {run.state.run_id}", list(marked(MARKER, str(marker))))
        for path in sorted((run.directory / "jobs").glob("*/status")):
            if read_job(path.parent).state.value not in ("running", "unreadable"):
                yield from _ended(f"job {path.parent.name}", list(marked("CE_PEER_JOB_ID", path.parent.name)))


def _ended(what: str, found: list[ProcessIdentity]) -> Iterator[Finding]:
    if found:
        pids = ", ".join(str(identity.pid) for identity in found)
        yield Finding(
            "process",
            pids,
            f"{what} has ended, but these processes carry its mark",
            "unit-workspace doctor --fix",
            lambda: _end(found),
        )


def _end(found: list[ProcessIdentity]) -> None:
    kill_all(lambda: [identity for identity in found if is_alive(identity)], 2.0)
