"""What `doctor` looks at in the repositories of the runs: worktree registrations, transport refs, Git's lock files."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from controller import guidance, index_file, lock, run_root, transport, worktree
from controller.errors import ControllerError
from controller.examination import Examined, Finding, fix, out_of_root, say
from controller.git import Git
from controller.kept import Shelf
from controller.ref_file import NAMESPACE
from controller.run import OpenRun, read_directory
from controller.state import Run, Unit

_LOCK_WAIT = 5.0
_SHELVES = ("kept", "taken")
_SETTLE_SECONDS = 1.0


def _workspace_of(root: Path, gitdir: str) -> tuple[str, str, Path] | None:
    """(run id, unit id, workspace) of a registration that lies where this root's runs have theirs, else None."""
    workspace = Path(os.path.realpath(os.path.dirname(gitdir)))
    try:
        run_id, units, unit_id, last = workspace.relative_to(os.path.realpath(root)).parts
    except ValueError:
        return None
    if units != "units" or not (last == "workspace" or worktree.is_draft(last)) or run_id.startswith("."):
        return None
    return run_id, unit_id, root / run_id / units / unit_id / "workspace"


def _is_needed(state: Run, unit_id: str) -> bool:
    unit = state.units.get(unit_id)
    return unit is not None and unit.cleanup is None


def registrations(examined: Examined, notes: list[Finding]) -> Iterator[Finding]:
    """Worktree registrations in this root that no unit needs any more; those of anybody else are not looked at.

    One whose whole run is gone goes to `notes`: a run that was only moved aside looks the same, and without the
    registration its work could not be taken over when it comes back. One that was never made to the end holds no work.
    """
    runs = {run.state.run_id: run for run in examined.runs}
    for common in sorted({run.state.repository.common_dir for run in examined.runs}):
        try:
            entries = worktree.registrations(common)
        except ControllerError as error:
            yield Finding("worktree", common, error.message, f"git -C {shlex.quote(common)} worktree list")
            continue
        for path in worktree.emptied(common):
            yield Finding(
                "worktree",
                str(path),
                "an empty folder that a killed command left of a registration of ours",
                fix(),
                lambda common=common, path=path: _remove_emptied(examined.root, common, path),  # type: ignore[misc]
            )
        for entry in entries:
            place = _workspace_of(examined.root, entry.gitdir)
            if place is None:
                continue
            run_id, unit_id, workspace = place
            run = runs.get(run_id)
            if run is not None and not _is_needed(run.state, unit_id):
                meaning = f"unit {unit_id} of run {run_id} does not need it any more"
            elif os.path.lexists(examined.root / run_id):
                continue
            elif entry.head:
                notes.append(_of_no_run(common, workspace, run_id))
                continue
            else:
                meaning = f"it was not made to the end, and the run {run_id} is gone"
            yield Finding(
                "worktree",
                str(workspace),
                f"registered in {common}, but {meaning}",
                fix(),
                lambda common=common, place=place: _remove_workspace(examined.root, common, place),  # type: ignore[misc]
            )


def _of_no_run(common: str, workspace: Path, run_id: str) -> Finding:
    git, place = f"git -C {shlex.quote(common)} worktree", shlex.quote(str(workspace))
    meaning = f"registered in {common}, but the run {run_id} is gone: if it was moved, put it back to go on with it"
    command = f"{git} list --verbose  # deleted for good: {git} unlock {place}; {git} remove {place}"
    return Finding("worktree", str(workspace), meaning, command)


def _remove_emptied(root: Path, common: str, path: Path) -> None:
    registry = lock.worktree_lock_path(root, common)
    with lock.held(registry, wait=_LOCK_WAIT, what="the repository's worktree registry"):
        worktree.remove_emptied(path)


def _remove_workspace(root: Path, common: str, place: tuple[str, str, Path]) -> None:
    run_id, unit_id, workspace = place
    registry = lock.worktree_lock_path(root, common)
    git = Git(Path(common))
    if not os.path.lexists(root / run_id):
        with (
            lock.held(root / run_root.LOCKS / "runs.lock", wait=_LOCK_WAIT, what="the runs root"),
            lock.held(registry, wait=_LOCK_WAIT, what="the repository's worktree registry"),
        ):
            if not os.path.lexists(root / run_id):
                worktree.remove(git, common, workspace)
        return
    with (
        lock.held(root / run_id / "manifest.lock", wait=_LOCK_WAIT, what=f"run {run_id}"),
        lock.held(registry, wait=_LOCK_WAIT, what="the repository's worktree registry"),
    ):
        if not _is_needed(read_directory(root / run_id).state, unit_id):
            worktree.remove(git, common, workspace)


def refs(examined: Examined, notes: list[Finding]) -> Iterator[Finding]:
    """Transport refs that are left, missing or moved; `notes` gets those of nobody known here."""
    for top in sorted({run.state.repository.toplevel for run in examined.runs}):
        runs = [run for run in examined.runs if run.state.repository.toplevel == top]
        try:
            out = Git(Path(top)).run("for-each-ref", "--format=%(refname) %(objectname)", f"{NAMESPACE}/")
        except ControllerError as error:
            unfinished = [run for run in runs if any(_is_needed(run.state, name) for name in run.state.units)]
            gone = [run.directory for run in unfinished if not os.path.lexists(run.state.repository.git_dir)]
            if gone:
                yield _repository_gone(top, gone)
            elif unfinished:
                yield Finding("repository", top, error.message, f"git -C {shlex.quote(top)} status")
            continue
        found = dict(os.fsdecode(line).split(" ") for line in out.splitlines())
        for run in runs:
            for unit in run.state.units.values():
                ref = transport.ref_name(run.state.run_id, unit.unit_id)
                yield from _ref(run, unit, ref, found.pop(ref, None))
        others = (*examined.busy, *examined.unread)
        unknown = {transport.ref_name(run_id, "").rpartition("/")[0] for run_id in others}
        for ref, commit in found.items():
            if ref.rpartition("/")[0] not in unknown:
                where = f"git -C {shlex.quote(top)}"
                delete = f"{where} update-ref -d {shlex.quote(ref)} {commit}"
                command = f"{where} show --stat {commit}  # not needed: {delete}"
                notes.append(Finding("transport ref", ref, "belongs to no run of this runs root", command))


def _repository_gone(top: str, runs: list[Path]) -> Finding:
    meaning = (
        "the repository is gone: if it was moved, put it back; if it was deleted for good, what its workers made is in "
        "units/*/workspace of its runs: take what you need, then remove their folders by hand, as nothing else can"
    )
    return Finding("repository", top, meaning, f"{out_of_root(*runs)}  # only when it is gone for good")


def _ref(run: OpenRun, unit: Unit, ref: str, found: str | None) -> Iterator[Finding]:
    expected = unit.transport.commit
    where = f"git -C {shlex.quote(run.state.repository.toplevel)}"
    if unit.cleanup is not None:
        if found is None:
            return
        if found == expected:
            meaning = f"unit {unit.unit_id} is cleaned and left it"
            yield Finding("transport ref", ref, meaning, fix(), lambda: _delete(run, unit.unit_id, ref, found))
        else:
            meaning = f"unit {unit.unit_id} is cleaned, but this is not the transport that it had"
            yield Finding("transport ref", ref, meaning, f"{where} show --stat {found}")
    elif expected is not None and found is None and _is_pruned(run, expected):
        meaning = (
            f"it is gone, and Git has thrown the transport of unit {unit.unit_id} away: it cannot be integrated; what "
            f"the worker made is still in {unit.workspace.path}: take what you need before you give the unit up"
        )
        if unit.state in ("integration-pending", "preserved", "native-completed") and not _holds(run, unit):
            yield Finding("transport ref", ref, meaning, shlex.join(guidance.abandon(run, unit)))
    elif expected is not None and found is None:
        meaning = f"somebody deleted it: Git may throw the transport of unit {unit.unit_id} away"
        yield Finding("transport ref", ref, meaning, fix(), lambda: _pin(run, unit.unit_id, ref, expected))
    elif expected is not None and found != expected:
        meaning = f"somebody moved it: it no longer holds the transport of unit {unit.unit_id}"
        yield Finding("transport ref", ref, meaning, f"{where} update-ref {ref} {expected} {found}")


def _holds(run: OpenRun, unit: Unit) -> bool:
    return run.state.lock is not None and run.state.lock.unit_id == unit.unit_id


def _is_pruned(run: OpenRun, commit: str) -> bool:
    """Whether Git says that it has no such object; any other trouble is not that."""
    said = run.git.call("cat-file", "--batch-check", stdin=f"{commit}\n".encode()).stdout
    return said == f"{commit} missing\n".encode()


def _delete(run: OpenRun, unit_id: str, ref: str, commit: str) -> None:
    with lock.held(run.directory / "manifest.lock", wait=_LOCK_WAIT, what=f"run {run.state.run_id}"):
        unit = read_directory(run.directory).state.units[unit_id]
        if unit.cleanup is not None and unit.transport.commit == commit:
            run.refs.delete(ref, commit)


def _pin(run: OpenRun, unit_id: str, ref: str, commit: str) -> None:
    with lock.held(run.directory / "manifest.lock", wait=_LOCK_WAIT, what=f"run {run.state.run_id}"):
        unit = read_directory(run.directory).state.units[unit_id]
        if unit.cleanup is None and unit.transport.commit == commit:
            run.git.run("cat-file", "-e", f"{commit}^{{commit}}")
            run.refs.create(ref, commit, None)


def git_locks(examined: Examined) -> Iterator[Finding]:
    """Lock files of Git. Only those that a killed command of a run provably left are ours, and `resume` takes them."""
    seen: set[str] = set()
    for run in examined.runs:
        git_dir = run.state.repository.git_dir
        if index_file.is_left(Path(git_dir), run.directory) or run.refs.is_left():
            yield Finding(
                "git lock",
                git_dir,
                "a killed command of this run held the index or a reference",
                say("resume", "--run-id", run.state.run_id),
            )
            seen.add(git_dir)
    for run in examined.runs:
        git_dir, common = run.state.repository.git_dir, run.state.repository.common_dir
        if git_dir in seen:
            continue
        seen.add(git_dir)
        names = [f"{git_dir}/index.lock", f"{git_dir}/HEAD.lock", f"{common}/{run.state.branch.ref}.lock"]
        names += [f"{common}/{name}.lock" for name in ("config", "packed-refs", "shallow")]
        yield from _foreign_locks(names)


def _foreign_locks(names: Iterable[str]) -> Iterator[Finding]:
    """Lock files that stay: a live Git holds its locks for moments only."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    left = [Path(name) for name in names if os.path.lexists(name)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [path for path in left if os.path.lexists(path)]
    for path in left:
        try:
            age = int(time.time() - path.lstat().st_mtime)
        except FileNotFoundError:
            continue
        meaning = (
            f"some Git process made it {age} s ago and still runs, or was killed: its changes are refused until then"
        )
        yield Finding("git lock", str(path), meaning, f"rm {shlex.quote(str(path))}  # when no Git runs there")


def shelves(examined: Examined) -> Iterator[Finding]:
    """Files of the user that a run had moved aside for its apply, and that nobody will give back: the run is gone."""
    known = {
        Shelf(Path(r.state.repository.git_dir), r.directory, kind).folder for r in examined.runs for kind in _SHELVES
    }
    for git_dir in sorted({run.state.repository.git_dir for run in examined.runs}):
        for kind in _SHELVES:
            for folder in sorted(set(Path(git_dir).glob(f"unit-workspace-*.{kind}")) - known):
                yield Finding(
                    "kept files",
                    str(folder),
                    "the checkout's files of before a unit, moved aside by a run that is not here any more",
                    f"ls -lR {shlex.quote(str(folder))}  # put the run back and resume it, or move them back yourself",
                )
