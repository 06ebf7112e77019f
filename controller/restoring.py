"""Puts the canonical checkout back to what it was, and proves it; copies first what Git cannot give back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from controller import canonical, checkout, hazards, index_file, interrupts, recovery, run_root, standing
from controller import records as r
from controller.canonical import SUBMODULE
from controller.errors import Blocked
from controller.git import Git
from controller.hazards import parse_entries
from controller.kept import Mark, files_below, mark
from controller.run import OpenRun
from controller.shapes import Folder, Recovered, Snapshot

_ROUNDS = 3


class Restored(msgspec.Struct, frozen=True):
    """A proven restoration: the snapshot that holds again, what was copied first, the paths that were put back."""

    snapshot: Snapshot
    recovered: tuple[Recovered, ...]
    paths: tuple[str, ...]


@interrupts.put_off()
def restore(
    run: OpenRun,
    pre: Snapshot,
    index_copy: str,
    *,
    touched: Iterable[str],
    folders: Iterable[Folder] = (),
    anything: bool,
    unit: str | None,
    cause: str,
    own_pick: str | None = None,
) -> Restored:
    """Put the checkout back to the clean snapshot `pre`; what would be lost is copied to `recovered/` first.

    `touched`: paths that this run's own apply may have written. `folders`: those that stood above them. `anything`:
    other dirt may be put back too (a verification ran); otherwise it is `Blocked` and nothing is touched. `own_pick`: a
    transport whose `git cherry-pick` may be under way. Returns the proof.
    """
    _require_place(run, pre, own_pick)
    work = _Restoration(run, pre, Path(index_copy), set(touched), tuple(folders), unit, cause)
    work.require_only_own(anything)
    after = pre
    for round_ in range(_ROUNDS):
        work.put_back(anything, first=round_ == 0)
        seen = run.look()
        after = seen.snapshot
        # Other ignore rules are in force now: what they hid, or showed, is seen only here.
        if not seen.status.dirty or not anything:
            break
    work.finish()
    left = work.left()
    if after != pre or left:
        raise Blocked(
            "exact restoration could not be proven",
            detail={
                "differs": [f for f in Snapshot.__struct_fields__ if getattr(after, f) != getattr(pre, f)],
                "dirty_paths": list(checkout.status(run.git).dirty)[:100],
                "left": left,
            },
            expected="the pre-fold snapshot",
            found="another state",
            remedy="look at `git status`, put your own changes aside; the lock, the workspace and every copied byte "
            "are kept",
        )
    return Restored(after, tuple(work.recovered), tuple(sorted(work.paths)))


def _require_place(run: OpenRun, pre: Snapshot, own_pick: str | None) -> None:
    """`Blocked` unless this is the run's repository, on its branch and HEAD, with no merge or the like under way."""
    seen = checkout.observe(run.git)
    checkout.require_same(seen, run.state.repository)
    branch = pre.branch_ref.removeprefix("refs/heads/")
    if (seen.branch_ref or "HEAD") != pre.branch_ref:
        raise _moved(seen, pre, f"go back to it (git checkout {branch}), then `resume --run-id`")
    if seen.head != pre.head:
        raise _moved(
            seen,
            pre,
            f"keep what moved it (git branch <name>), go back (git reset --keep {pre.head}), then `resume --run-id`",
        )
    operation = checkout.operation_in_progress(run.state.repository.git_dir, but_pick=own_pick)
    if operation is not None:
        raise Blocked(
            f"{operation} says that a merge, cherry-pick or revert is under way; restoring would leave half of it",
            detail={"operation": operation},
            expected="no operation in progress",
            found=operation,
            remedy="abort or finish it without a commit (git merge --abort), then `resume --run-id`",
        )


def _moved(seen: checkout.Observation, pre: Snapshot, remedy: str) -> Blocked:
    return Blocked(
        "canonical branch or HEAD moved; restoring would not give it back",
        detail={"head": seen.head, "branch": seen.branch_ref},
        expected=f"{pre.branch_ref} at {pre.head}",
        found=f"{seen.branch_ref or 'detached'} at {seen.head}",
        remedy=remedy,
    )


class _Restoration:
    """One restoration under way."""

    def __init__(
        self,
        run: OpenRun,
        pre: Snapshot,
        index_copy: Path,
        touched: set[str],
        folders: tuple[Folder, ...],
        unit: str | None,
        cause: str,
    ) -> None:
        self.run = run
        self.top = run.git.cwd
        self.pre = pre
        self.index_copy = index_copy
        self.touched = touched
        self.folders = folders
        self.unit = unit
        self.cause = cause
        self.kept = canonical.shelf(run, "kept")
        self.taken = canonical.shelf(run, "taken")
        self.entries = canonical.saved_entries(run, index_copy)
        self.recovered: list[Recovered] = []
        self.paths: set[str] = set()
        # What the apply made and the restored checkout does not have; a folder that became a file has its place.
        self.new = touched - self.entries.keys() - standing.folders(self.entries)
        canonical.shelf(run, "staged").clear()
        recovery.clear_scratch(run)

    def require_only_own(self, anything: bool) -> None:
        """`Blocked` when the checkout holds changes that are not this run's to put back."""
        if anything:
            return
        found = checkout.status(self.run.git)
        foreign = set(found.dirty) - self.touched
        if any(path.rpartition("/")[2] == ".gitignore" for path in self.touched):
            foreign -= set(found.untracked)  # perhaps only the unit's rules show them; asked again afterwards
        if foreign:
            raise Blocked(
                "the checkout holds changes that this unit did not make; nothing was touched",
                detail={"dirty_paths": sorted(foreign), "reason": "unknown changes"},
                expected="only the unit's own paths changed",
                found=min(foreign),
                remedy="commit them elsewhere, stash or remove them yourself, then restore again",
            )

    def put_back(self, anything: bool, *, first: bool) -> None:
        """Look, copy what would be lost, put back; the canonical index is held meanwhile."""
        same = index_file.digest(canonical.index_path(self.run)) == index_file.digest(self.index_copy)
        paths = self._wanted(anything, first)
        if first and self.unit is not None:
            self.run.record(r.RestoreIntent(cause=self.cause, paths=tuple(sorted(paths))), unit=self.unit)
        if not paths and same and not self.taken.paths():
            return  # nothing to put back needs no lock of the index, which another program may hold
        with index_file.held(canonical.git_dir(self.run), self.run.directory) as held:
            paths = self._wanted(anything, first)
            self.paths |= paths
            self._recover_taken()
            self._recover_staged()
            marks = self._recover(paths)
            work, git = canonical.working_index(self.run, self.index_copy)
            for path in sorted(paths):
                self._take_away(path, marks)
            self._write(git, paths)
            if work.exists():
                held.install(work)
                work.unlink()

    def _wanted(self, anything: bool, first: bool) -> set[str]:
        """The paths that are to be put back in this round."""
        found = checkout.status(self.run.git)
        added = self._standing()
        known = self.entries.keys() | self.touched
        dirty = set(found.dirty)
        if first and self._rules_change(dirty):
            dirty &= known  # untracked files are seen when the user's own ignore rules are back
        if not anything:
            dirty &= self.touched
        # Also what stands in place of a folder above these paths, ignored by Git or not.
        obstacles = {name for path in (*dirty, *added) if (name := standing.obstacle(self.top, path)) is not None}
        return dirty | added | obstacles | set(self.kept.paths())

    def _rules_change(self, dirty: set[str]) -> bool:
        return any(path.rpartition("/")[2] == ".gitignore" for path in dirty & (self.entries.keys() | self.touched))

    def _recover(self, paths: set[str]) -> dict[str, Mark]:
        """Copy, durably, what stands on these paths and Git cannot give back; the marks of all that was looked at."""
        asked = [path for path in sorted(paths) if self.entries.get(path, ("",))[0] != SUBMODULE]
        files = {name: self.top / name for path in asked for name in standing.below(self.top, path)}
        marks = {name: seen for name, file in files.items() if (seen := mark(file)) is not None}
        unit_oids = self._unit_oids()
        wanted = {
            name: [oid for oid in (self.entries.get(name, ("", ""))[1], unit_oids.get(name, "")) if oid]
            for name in files
        }
        self._keep_copies(files, recovery.irreproducible(self.run, files, wanted, self._indexes()))
        recovery.clear_scratch(self.run)
        return marks

    def _keep_copies(self, files: Mapping[str, Path], names: Iterable[str]) -> None:
        copies = recovery.copy(self.run, {name: files[name] for name in names})
        self._note(copies)

    def _note(self, copies: tuple[Recovered, ...]) -> None:
        if copies:
            self.run.record(r.BytesRecovered(recovered=copies), unit=self.unit)
            self.recovered += [item for item in copies if item not in self.recovered]

    def _recover_taken(self) -> None:
        """What a killed restore had taken away and not judged."""
        names = self.taken.paths()
        if names:
            self._keep_copies({name: self.taken.place(name) for name in names}, names)
        self.taken.clear()

    def _recover_staged(self) -> None:
        """What somebody has staged and neither the old index, the unit nor the working tree holds."""
        if index_file.digest(canonical.index_path(self.run)) == index_file.digest(self.index_copy):
            return
        unit_oids = self._unit_oids()
        empty = hashlib.new(self.run.state.repository.object_format, b"blob 0\0", usedforsecurity=False).hexdigest()
        found: dict[str, str] = {}
        for _, mode, oid, path in parse_entries(checkout.index_entries(self.run.git)):
            if mode == SUBMODULE or oid in (self.entries.get(path, ("", ""))[1], unit_oids.get(path), empty):
                continue
            with run_root.trusted():
                is_file = standing.stands(self.top, path) and not (self.top / path).is_dir()
                if not is_file or recovery.file_blob_id(self.top / path, _format(self.run)) != oid:
                    found[path] = oid
        if found:
            self._note(recovery.staged(self.run, found))

    def _take_away(self, path: str, marks: Mapping[str, Mark]) -> None:
        """Remove what stands on a path; what was saved there since it was judged is copied as well."""
        if self.entries.get(path, ("",))[0] == SUBMODULE or standing.obstacle(self.top, path) is not None:
            return
        if not self.taken.take(self.top, path):
            return
        place = self.taken.place(path)
        inside = files_below(place) if place.is_dir() and not place.is_symlink() else [""]
        late = {}
        for name in inside:
            full = f"{path.rstrip('/')}/{name}" if name else path
            judged = marks.get(full)
            if judged is None or not judged.same_as(mark(place / name)):
                late[full] = place / name
        if late:
            self._keep_copies(late, late)
        run_root.remove_tree(place) if place.is_dir() and not place.is_symlink() else self.taken.drop(path)
        if path not in self.entries:
            standing.prune(self.top, path, {folder.path for folder in self.folders})

    def _write(self, git: Git, paths: set[str]) -> None:
        """Give back the user's own files; write those that are not kept from the saved index."""
        missing = []
        for path in sorted(paths):
            if standing.obstacle(self.top, path) is not None or path not in self.entries:
                continue
            if os.path.lexists(self.kept.place(path)):
                if not self.kept.give(self.top, path):
                    raise _appeared(path)
            elif self.entries[path][0] != SUBMODULE:
                missing.append(path)
        if missing:
            stdin = b"".join(os.fsencode(path) + b"\0" for path in missing)
            git.run("checkout-index", "-u", "-z", "--stdin", stdin=stdin, timeout=3600.0)
        if len(missing) < len(paths):
            git.call("update-index", "-q", "--refresh", timeout=3600.0)

    def finish(self) -> None:
        """The folders that stood there stand again, with their modes; the shelves are empty."""
        with run_root.trusted():
            for folder in self.folders:
                full = self.top / folder.path
                if standing.obstacle(self.top, f"{folder.path}/x") is not None:
                    continue
                os.makedirs(full, exist_ok=True)
                if os.stat(full).st_mode & 0o7777 != folder.mode:
                    os.chmod(full, folder.mode)
        if not self.kept.paths():
            self.kept.clear()
        self.taken.clear()

    def left(self) -> list[str]:
        """What stands on the unit's new paths still, and what could not be given back."""
        return sorted(self._standing() | set(self.kept.paths()))

    def _standing(self) -> set[str]:
        """What stands on the unit's new paths, but for folders that stood there before."""
        known = {folder.path for folder in self.folders}
        found = {path for path in self.new if standing.stands(self.top, path)}
        return {
            path
            for path in found
            if path not in known or (self.top / path).is_symlink() or not (self.top / path).is_dir()
        }

    def _unit_oids(self) -> dict[str, str]:
        """Path to the object id that the unit's apply writes there."""
        trees = self._unit_trees()
        if trees is None:
            return {}
        done = self.run.git.call("diff-tree", "-r", "-z", "--no-renames", "--raw", *trees)
        if done.returncode != 0:  # collected as garbage: then everything is copied
            return {}
        return {change.path: change.new_oid for change in hazards.parse_raw(done.stdout)}

    def _unit_trees(self) -> tuple[str, str] | None:
        if self.unit is None:
            return None
        expected = self.run.unit(self.unit).integration.expected_apply
        return None if expected is None else (self.pre.head_tree, expected.index_tree)

    def _indexes(self) -> Iterator[Path]:
        """What stood there before, then what the unit has written."""
        yield self.index_copy
        trees = self._unit_trees()
        if trees is not None:
            probe = recovery.scratch(self.run) / "index"
            if canonical.with_index(self.run, probe).call("read-tree", trees[1], timeout=3600.0).returncode == 0:
                yield probe


def _format(run: OpenRun) -> str:
    return run.state.repository.object_format


def _appeared(path: str) -> Blocked:
    return Blocked(
        "a file appeared where the checkout is being put back",
        detail={"paths": [path]},
        expected="nothing there",
        found=path,
        remedy="let the program that writes it end, then `resume --run-id`: it is copied first",
    )
