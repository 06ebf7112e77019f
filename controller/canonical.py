"""Changes to the canonical checkout: apply a tree, or put every byte back and prove it (design.md section 6)."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from controller import checkout, index_file, run_root
from controller import records as r
from controller.errors import Blocked
from controller.git import Git, blob_id
from controller.hazards import parse_entries
from controller.run import OpenRun
from controller.shapes import Recovered, Snapshot
from runner import private


class Restored(msgspec.Struct, frozen=True):
    """A proven restoration: the snapshot that holds again, what was copied first, the paths that were put back."""

    snapshot: Snapshot
    recovered: tuple[Recovered, ...]
    paths: tuple[str, ...]


def _index_path(run: OpenRun) -> Path:
    return Path(run.state.repository.git_dir) / "index"


def save_index(run: OpenRun) -> tuple[str, str]:
    """Copy the canonical index into the run; (path, SHA-256). A restore puts these very bytes back."""
    path = run.private_path("index")
    return str(path), index_file.copy(_index_path(run), path)


def _working_index(run: OpenRun, source: Path) -> tuple[Path, Git]:
    """A private index to work on, and a git that uses it instead of the canonical one."""
    work = run.directory / "index.work"
    Path(f"{work}.lock").unlink(missing_ok=True)  # ours: nobody else works under the run's lock
    index_file.copy(source, work)
    if work.stat().st_size == 0:
        work.unlink()
    return work, run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": str(work)})


def apply_tree(run: OpenRun, pre_fold: Snapshot, index_copy: str, index_sha256: str, tree: str) -> None:
    """Bring index and working tree from the pre-fold snapshot to `tree`; `Blocked` when either is not as recorded."""
    with index_file.held(Path(run.state.repository.git_dir), run.directory) as held:
        if index_file.digest(held.index) != index_sha256:
            raise Blocked(
                "the index changed between preflight and apply",
                expected="the index that preflight saw",
                found="another",
                remedy="let other Git commands end, then run integrate again",
            )
        work, git = _working_index(run, Path(index_copy))
        args = ("read-tree", "-m", "-u", pre_fold.head_tree, tree)
        done = git.call(*args, timeout=3600.0)
        if done.returncode != 0:
            # It refuses a file that was touched and not changed since git last looked (an undone edit): let it look.
            git.call("update-index", "-q", "--refresh", timeout=3600.0)
            if git.call(*args, timeout=3600.0).returncode != 0:
                raise git.failure(args, done)  # the first one's reason: after a full disk the second finds its rubble
        if not work.exists():
            raise Blocked("git read-tree wrote no index")
        held.install(work)
        work.unlink()


def restore(
    run: OpenRun,
    pre: Snapshot,
    index_copy: str,
    *,
    touched: Iterable[str],
    anything: bool,
    unit: str | None,
    cause: str,
) -> Restored:
    """Put the checkout back to the clean snapshot `pre`; what would be lost is copied to `recovered/` first.

    `touched`: paths that this run's own apply may have written. `anything`: other dirt may be put back too (a
    verification ran); otherwise it is `Blocked` and nothing is touched. Returns the proof.
    """
    touched = set(touched)
    seen = checkout.observe(run.git)
    if seen.head != pre.head or (seen.branch_ref or "HEAD") != pre.branch_ref:
        raise Blocked(
            "canonical branch or HEAD moved; restoring would not give it back",
            detail={"head": seen.head, "branch": seen.branch_ref},
            expected=f"{pre.branch_ref} at {pre.head}",
            found=f"{seen.branch_ref or 'detached'} at {seen.head}",
            remedy=f"keep what moved it (git branch <name>), go back (git checkout "
            f"{pre.branch_ref.removeprefix('refs/heads/')}; git reset --keep {pre.head}), then `resume --run-id`",
        )
    found = checkout.status(run.git)
    foreign = sorted(set(found.dirty) - touched)
    if foreign and not anything:
        raise Blocked(
            "the checkout holds changes that this unit did not make; nothing was touched",
            detail={"dirty_paths": foreign, "reason": "unknown changes"},
            expected="only the unit's own paths changed",
            found=foreign[0],
            remedy="commit them elsewhere, stash or remove them yourself, then restore again",
        )
    entries = _saved_entries(run, index_copy)
    top = run.git.cwd
    # What the apply made and the restored checkout does not have; a folder that the unit made a file has its place.
    new = touched - entries.keys() - _folders(entries)
    added = {path for path in new if _stands(top, path)}
    # Also what stands in place of a folder above these paths, ignored by Git or not.
    obstacles = {name for path in (*found.dirty, *added) if (name := _obstacle(top, path)) is not None}
    paths = sorted({*found.dirty, *added, *obstacles})
    if unit is not None:
        run.record(r.RestoreIntent(cause=cause, paths=tuple(paths)), unit=unit)
    recovered = _recover(run, paths, entries, _expected_oids(run, unit)) if paths else ()
    if recovered:
        run.record(r.BytesRecovered(recovered=recovered), unit=unit)
    # Nothing to put back needs no lock of the index, which another program may hold.
    if paths or index_file.digest(_index_path(run)) != index_file.digest(Path(index_copy)):
        _put_back(run, paths, entries, index_copy)
    after = run.look().snapshot
    left = sorted(path for path in new if _stands(top, path))
    if after != pre or left:
        raise Blocked(
            "exact restoration could not be proven",
            detail={
                "differs": [f for f in Snapshot.__struct_fields__ if getattr(after, f) != getattr(pre, f)],
                "left": left,
            },
            expected="the pre-fold snapshot",
            found="another state",
            remedy="look at `git status`; the lock, the workspace and every copied byte are kept",
        )
    return Restored(after, recovered, tuple(paths))


def _folders(paths: Iterable[str]) -> set[str]:
    """Every folder that these paths lie in."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def _saved_entries(run: OpenRun, index_copy: str) -> dict[str, tuple[str, str]]:
    """Path to (mode, object id) of the saved index."""
    if Path(index_copy).stat().st_size == 0:
        return {}
    git = run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": index_copy})
    return {path: (mode, oid) for _, mode, oid, path in parse_entries(checkout.index_entries(git))}


def _expected_oids(run: OpenRun, unit_id: str | None) -> dict[str, set[str]]:
    """Path to the object ids that the unit's apply writes there."""
    if unit_id is None:
        return {}
    unit = run.state.units[unit_id]
    expected, pre = unit.integration.expected_apply, unit.integration.pre_fold
    if expected is None or pre is None:
        return {}
    from controller.hazards import parse_raw

    out = run.git.run("diff-tree", "-r", "-z", "--no-renames", "--raw", pre.head_tree, expected.index_tree)
    return {change.path: {change.new_oid} for change in parse_raw(out)}


def _recover(
    run: OpenRun, paths: list[str], entries: dict[str, tuple[str, str]], expected: dict[str, set[str]]
) -> tuple[Recovered, ...]:
    """Copy, durably, what stands on these paths and is in no Git object that belongs there."""
    top = run.git.cwd
    names = [name for path in paths for name in _below(top, path)]
    hashes = _object_ids(run, names)
    doomed = [
        name for name in names if hashes.get(name) not in {*expected.get(name, ()), entries.get(name, ("", ""))[1]}
    ]
    if not doomed:
        return ()
    base = run.directory / "recovered"
    run_root.make_dir(base)
    _sweep_unrecorded(run, base)
    number = 1 + max((int(name) for name in os.listdir(base) if name.isdigit()), default=0)
    target = base / str(number)
    run_root.make_dir(target)
    copies = []
    for name in doomed:
        place = target / name
        with run_root.trusted():
            for folder in reversed(Path(name).parents):
                private.ensure_private_dir(target / folder)
            source = top / name
            if source.is_symlink():
                os.symlink(os.readlink(source), place)
                data = os.fsencode(os.readlink(source))
            elif stat.S_ISREG(os.lstat(source).st_mode):
                data = source.read_bytes()
                private.write_atomic(place, data)
            else:
                continue  # a socket or FIFO holds no bytes
            private.fsync_dir(place.parent)
        copies.append(Recovered(path=name, copy=str(place), sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)))
    return tuple(copies)


def _sweep_unrecorded(run: OpenRun, base: Path) -> None:
    """Remove copies that a killed restore began: it had removed nothing yet, what they were made from still stands."""
    recorded = {
        Path(item.copy).relative_to(base).parts[0]
        for entry in run.entries
        if isinstance(entry.data, r.BytesRecovered)
        for item in entry.data.recovered
    }
    for name in os.listdir(base):
        if name not in recorded:
            run_root.remove_tree(base / name)


def _obstacle(top: Path, path: str) -> str | None:
    """The uppermost folder of a path that is none: a file, or a link, which is never followed out of the checkout."""
    for parent in reversed(Path(path).parents[:-1]):
        try:
            mode = os.lstat(top / parent).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISDIR(mode):
            return str(parent)
    return None


def _stands(top: Path, path: str) -> bool:
    """Whether something is at a path of the checkout, reached through real folders only."""
    return _obstacle(top, path) is None and os.path.lexists(top / path)


def _below(top: Path, path: str) -> list[str]:
    """The files at a path: itself, or everything in a folder that git shows as one entry."""
    if _obstacle(top, path) is not None:
        return []
    full = top / path
    try:
        info = os.lstat(full)
    except (FileNotFoundError, NotADirectoryError):
        return []
    if not stat.S_ISDIR(info.st_mode):
        return [path]
    names = []
    for base, folders, files in os.walk(full):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        names += [os.path.relpath(os.path.join(base, name), top) for name in files + links]
    return names


def _object_ids(run: OpenRun, names: list[str]) -> dict[str, str]:
    """The object id that each file would have, conversions of the user's configuration included."""
    algorithm = run.state.repository.object_format
    found: dict[str, str] = {}
    asked = []
    for name in names:
        full = run.git.cwd / name
        if full.is_symlink():
            found[name] = blob_id(os.fsencode(os.readlink(full)), algorithm)
        elif not stat.S_ISREG(os.lstat(full).st_mode):
            continue
        elif "\n" in name or name.startswith('"'):
            found[name] = blob_id(full.read_bytes(), algorithm)
        else:
            asked.append(name)
    if asked:
        stdin = b"".join(os.fsencode(name) + b"\n" for name in asked)
        done = run.git.call("hash-object", "--stdin-paths", stdin=stdin)
        ids = done.stdout.decode().split()
        if done.returncode == 0 and len(ids) == len(asked):
            found.update(zip(asked, ids, strict=True))
    return found


def _put_back(run: OpenRun, paths: list[str], entries: dict[str, tuple[str, str]], index_copy: str) -> None:
    top = run.git.cwd
    with index_file.held(Path(run.state.repository.git_dir), run.directory) as held:
        work, git = _working_index(run, Path(index_copy))
        with run_root.trusted():
            for path in paths:
                if path not in entries and _obstacle(top, path) is None:
                    _remove(top, path)
                    _prune(top, path)
            wanted = [path for path in paths if path in entries and entries[path][0] != "160000"]
            for path in wanted:
                if _obstacle(top, path) is None:
                    _remove(top, path)
        if wanted:
            stdin = b"".join(os.fsencode(path) + b"\0" for path in wanted)
            git.run("checkout-index", "-f", "-u", "-z", "--stdin", stdin=stdin, timeout=3600.0)
        if work.exists():
            held.install(work)
            work.unlink()


def _remove(top: Path, path: str) -> None:
    """Remove a file or folder."""
    full = top / path
    try:
        if full.is_dir() and not full.is_symlink():
            shutil.rmtree(full)
        else:
            os.unlink(full)
    except (FileNotFoundError, NotADirectoryError):
        pass


def _prune(top: Path, path: str) -> None:
    """Remove the folders above a removed path that are empty now."""
    parent = (top / path).parent
    while parent != top:
        try:
            os.rmdir(parent)
        except OSError:
            return
        parent = parent.parent
