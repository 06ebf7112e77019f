"""The canonical checkout's index and the shelves beside it: what apply and restore work with (design.md section 6)."""

from __future__ import annotations

import os
from pathlib import Path

from controller import checkout, index_file, recovery, run_root
from controller import records as r
from controller.git import Git
from controller.hazards import parse_entries
from controller.kept import Shelf
from controller.run import OpenRun
from controller.shapes import Recovered

SUBMODULE = "160000"


def git_dir(run: OpenRun) -> Path:
    return Path(run.state.repository.git_dir)


def index_path(run: OpenRun) -> Path:
    return git_dir(run) / "index"


def shelf(run: OpenRun, kind: str) -> Shelf:
    return Shelf(git_dir(run), run.directory, kind)


def save_index(run: OpenRun) -> tuple[str, str]:
    """Copy the canonical index into the run; (path, SHA-256 of the original). A restore puts the copy back.

    A split index is made whole: its other half may expire before it is needed.
    """
    path = run.private_path("index")
    sha256 = index_file.copy(index_path(run), path)
    if any(git_dir(run).glob("sharedindex.*")):
        git = with_index(run, path)
        git.run("update-index", "--no-split-index", timeout=3600.0)
        with run_root.trusted():
            os.chmod(path, 0o600)
    return str(path), sha256


def with_index(run: OpenRun, index: Path) -> Git:
    """A git that uses a private index instead of the canonical one."""
    return run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": str(index)}, options=("core.splitIndex=false",))


def working_index(run: OpenRun, source: Path) -> tuple[Path, Git]:
    """A private copy of an index to work on, and a git that uses it."""
    work = run.directory / "index.work"
    Path(f"{work}.lock").unlink(missing_ok=True)  # ours: nobody else works under the run's lock
    index_file.copy(source, work)
    if work.stat().st_size == 0:
        work.unlink()
    return work, with_index(run, work)


def saved_entries(run: OpenRun, index_copy: Path) -> dict[str, tuple[str, str]]:
    """Path to (mode, object id) of the saved index."""
    if index_copy.stat().st_size == 0:
        return {}
    out = checkout.index_entries(with_index(run, index_copy))
    return {path: (mode, oid) for _, mode, oid, path in parse_entries(out)}


def give_up_kept(run: OpenRun, unit_id: str) -> tuple[Recovered, ...]:
    """After the commit: the user's old files go; what Git cannot give back of them is copied and recorded first."""
    kept = shelf(run, "kept")
    names = kept.paths()
    recovered: tuple[Recovered, ...] = ()
    integration = run.unit(unit_id).integration
    if names:
        assert integration.index_copy is not None
        index = Path(integration.index_copy)
        entries = saved_entries(run, index)
        files = {name: kept.place(name) for name in names}
        wanted = {name: (entries[name][1],) for name in names if name in entries}
        lost = recovery.irreproducible(run, files, wanted, [index])
        recovery.clear_scratch(run)
        if lost:
            recovered = recovery.copy(run, {name: files[name] for name in lost})
            run.record(r.BytesRecovered(recovered=recovered), unit=unit_id)
    kept.clear()
    shelf(run, "staged").clear()
    return recovered
