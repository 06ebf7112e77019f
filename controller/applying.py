"""Applies a unit's tree to the canonical checkout without overwriting a byte that Git does not have."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from controller import canonical, checkout, hazards, index_file, recovery, run_root, standing
from controller.canonical import SUBMODULE
from controller.errors import Blocked, ControllerError
from controller.git import Git
from controller.hazards import Change, parse_entries
from controller.kept import Mark, Shelf, mark
from controller.run import OpenRun
from controller.shapes import Snapshot


class NotApplied(Blocked):
    """The apply ended before it changed anything, or has undone what it changed."""


class Plan(msgspec.Struct, frozen=True):
    """What preflight saw: the paths that change, and the index entries (`ls-files -v --stage -z`)."""

    changes: tuple[Change, ...]
    entries: bytes


def apply_tree(run: OpenRun, pre_fold: Snapshot, index_copy: str, index_sha256: str, tree: str, plan: Plan) -> None:
    """Bring index and working tree from the pre-fold snapshot to `tree`; `Blocked` when either is not as recorded.

    The user's files go onto the shelf `kept`, where `restore` finds them and `give_up_kept` ends them.
    """
    with index_file.held(canonical.git_dir(run), run.directory) as held:
        if index_file.digest(held.index) != index_sha256:
            raise NotApplied(
                "the index changed between preflight and apply",
                expected="the index that preflight saw",
                found="another",
                remedy="let other Git commands end, then run integrate again",
            )
        changes = plan.changes
        _require_still_safe(run, plan)
        work, git = canonical.working_index(run, Path(index_copy))
        hidden = _read_tree(run, git, work, pre_fold.head_tree, tree, changes)
        staged = _stage(run, git, [c for c in changes if not c.removed and c.path not in hidden])
        try:
            marks = _judge(run, Path(index_copy), [change for change in changes if not change.added])
            _exchange(run, changes, marks, staged, hidden)
        finally:
            staged.clear()
            recovery.clear_scratch(run)
        git.call("update-index", "-q", "--refresh", timeout=3600.0)
        held.install(work)
        work.unlink()


def _require_still_safe(run: OpenRun, plan: Plan) -> None:
    """What the user has put in the unit's way since preflight."""
    try:
        hazards.require_safe(str(run.git.cwd), plan.entries, plan.changes)
    except Blocked as error:
        raise NotApplied(
            error.message, detail=error.detail, expected=error.expected, found=error.found, remedy=error.remedy
        ) from None


def _read_tree(run: OpenRun, git: Git, work: Path, old: str, new: str, changes: tuple[Change, ...]) -> set[str]:
    """Bring the private index to the new tree; the added paths that a sparse checkout leaves out of the folder.

    Without `-u` git leaves the patterns alone, which it would apply to every other path as well.
    """
    hidden: set[str] = set()
    if (canonical.git_dir(run) / "info" / "sparse-checkout").exists():
        hidden = _outside_the_cone(run, work, old, new) & {change.path for change in changes if change.added}
    git.run("read-tree", "-i", "-m", old, new, timeout=3600.0)
    if hidden:
        stdin = b"".join(os.fsencode(path) + b"\0" for path in sorted(hidden))
        git.run("update-index", "--skip-worktree", "-z", "--stdin", stdin=stdin)
    if not work.exists():
        raise NotApplied("git read-tree wrote no index")
    return hidden


def _outside_the_cone(run: OpenRun, index: Path, old: str, new: str) -> set[str]:
    """The paths of the new tree that the user's sparse patterns leave out: git's own answer, in an empty folder."""
    folder = recovery.scratch(run) / "sparse"
    run_root.make_dir(folder)
    probe = recovery.scratch(run) / "index"
    index_file.copy(index, probe)
    places = {"GIT_DIR": str(canonical.git_dir(run)), "GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": str(probe)}
    git = run.git.at(run.git.cwd, env=places)
    git.run("read-tree", "-m", "-u", old, new, timeout=3600.0)
    found = parse_entries(checkout.index_entries(git))
    recovery.clear_scratch(run)
    return {path for tag, _, _, path in found if tag == "S"}


def _stage(run: OpenRun, git: Git, changes: list[Change]) -> Shelf:
    """Write the unit's files beside the checkout, with the user's conversions, modes and umask."""
    shelf = canonical.shelf(run, "staged")
    shelf.clear()
    paths = [change.path for change in changes if change.new_mode != SUBMODULE]
    if paths:
        stdin = b"".join(os.fsencode(path) + b"\0" for path in paths)
        try:
            git.run("checkout-index", f"--prefix={shelf.folder}/", "-z", "--stdin", stdin=stdin, timeout=3600.0)
        except ControllerError as error:
            shelf.clear()
            raise NotApplied(
                error.message, detail=error.detail, expected=error.expected, found=error.found, remedy=error.remedy
            ) from None
    return shelf


def _judge(run: OpenRun, index_copy: Path, changes: list[Change]) -> dict[str, Mark]:
    """The marks of the files that will be exchanged, each known to hold what Git has; `NotApplied` otherwise."""
    top = run.git.cwd
    marks: dict[str, Mark] = {}
    files: dict[str, Path] = {}
    for change in changes:
        seen = mark(top / change.path) if standing.obstacle(top, change.path) is None else None
        if seen is None or change.old_mode == SUBMODULE:
            continue
        marks[change.path], files[change.path] = seen, top / change.path
    wanted = {change.path: (change.old_oid,) for change in changes}
    changed = [
        path
        for path in recovery.irreproducible(run, files, wanted, [index_copy])
        if not _is_clean(run, path, wanted[path][0])  # a lossy filter: Git calls it unchanged, the shelf keeps it
    ]
    changed += [path for path, seen in marks.items() if mark(top / path) != seen]
    changed += [c.path for c in changes if c.path not in marks and c.old_mode != SUBMODULE]
    if changed:
        raise _saved_meanwhile(changed)
    return marks


def _is_clean(run: OpenRun, path: str, oid: str) -> bool:
    full = run.git.cwd / path
    if full.is_symlink():
        return False
    done = run.git.call("hash-object", f"--path={path}", "--", str(full))
    return done.returncode == 0 and done.stdout.decode().strip() == oid


def _saved_meanwhile(paths: Collection[str]) -> NotApplied:
    return NotApplied(
        "files that the unit changes were changed since preflight",
        detail={"dirty_paths": sorted(paths)[:100]},
        expected="the files that preflight saw",
        found=min(paths),
        remedy="commit, stash or remove your changes, then integrate again; nothing of them was touched",
    )


def _exchange(
    run: OpenRun, changes: tuple[Change, ...], marks: Mapping[str, Mark], staged: Shelf, hidden: set[str]
) -> None:
    """Put every old file on the shelf and every new one in its place, one rename and one link each."""
    top = run.git.cwd
    kept = canonical.shelf(run, "kept")
    placed: dict[str, Mark] = {}
    try:
        for change in sorted(changes, key=lambda change: (not change.removed, change.path)):
            if change.path in marks:
                kept.take(top, change.path)
                if not marks[change.path].same_as(mark(kept.place(change.path))):
                    raise _saved_meanwhile([change.path])
                if change.removed:
                    standing.prune(top, change.path, ())
            if change.removed or change.path in hidden:
                continue
            if change.new_mode == SUBMODULE:
                with run_root.trusted():
                    os.makedirs(top / change.path, exist_ok=True)
                continue
            standing.remove_empty(top, change.path)  # as git does; `restore` knows of it
            new = mark(staged.place(change.path))
            if new is None or not staged.give(top, change.path):
                raise NotApplied(
                    "a file appeared where the unit writes",
                    detail={"paths": [change.path]},
                    expected="nothing on the paths that the unit adds",
                    found=change.path,
                    remedy="move it away, then integrate again; it was not touched",
                )
            placed[change.path] = new
    except ControllerError:
        _undo(run, kept, placed)
        raise


def _undo(run: OpenRun, kept: Shelf, placed: Mapping[str, Mark]) -> None:
    """Take back what was placed and give back what was kept; what the user has changed since stays for `restore`."""
    top = run.git.cwd
    taken = canonical.shelf(run, "taken")
    for path, new in reversed(list(placed.items())):
        if not new.same_as(mark(top / path)):
            raise Blocked(
                "the apply stopped half-way, and a file of it was changed since",
                detail={"paths": [path]},
                expected="the unit's own file",
                found=path,
                remedy="see what is there; `restore` copies it first",
            )
        taken.take(top, path)
        if new.same_as(mark(taken.place(path))):
            taken.drop(path)
        standing.prune(top, path, ())
    left = [path for path in kept.paths() if not kept.give(top, path)]
    if left or taken.paths():
        raise Blocked(
            "the apply stopped half-way, and a file was saved where the old one is to be put back",
            detail={"paths": left or taken.paths()},
            expected="nothing there",
            found=(left or taken.paths())[0],
            remedy="run `resume --run-id`: it copies that file, then puts the old one back",
        )
    kept.clear()
    taken.clear()
