"""Opens a run: lock, journal, fold, projection. The only way to record a transition.

`reading` never waits for a lock and never writes. `changing` holds the run's lock for the whole transition: validate,
act, record, with no second look-up after letting go (design.md section 3).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controller import (
    checkout,
    encoding,
    fold,
    index_file,
    interrupts,
    journal,
    lock,
    projection,
    ref_file,
    run_root,
    transport,
)
from controller import records as r
from controller.errors import Blocked, ControllerError, Refused, Unreadable
from controller.git import Git
from controller.state import Run, Unit
from controller.steps import Entry
from runner import private

_recent: list[OpenRun] = []


def recent() -> OpenRun | None:
    """The run that this process opened last: what the response's `next` speaks of."""
    return _recent[-1] if _recent else None


class OpenRun:
    """A run and its resources while one command works on it. `state` follows every recorded entry."""

    def __init__(
        self,
        directory: Path,
        state: Run,
        entries: list[Entry],
        writer: journal.Writer | None,
        hold: tuple[int, ...],
    ) -> None:
        self.directory = directory
        self.root = directory.parent
        self.state = state
        self.entries = entries
        self.hold = hold
        self._writer = writer
        self.git = Git(Path(state.repository.toplevel), hold=hold)
        _recent.append(self)

    def record(self, data: r.Data, *, unit: str | None = None, attempt: str | None = None) -> Entry:
        """Append one record, durably, then fold it; a record that no row of the machine allows is never written."""
        if self._writer is None:
            raise Refused("this command only reads")
        interrupts_after = data.kind.endswith("-intent")
        if interrupts_after:
            interrupts.check()
        if unit is not None and attempt is None and unit in self.state.units:
            attempt = self.state.units[unit].attempt.attempt_id
        draft = Entry(seq=len(self.entries), at=journal.utc_now_ms(), unit=unit, attempt=attempt, data=data)
        after = fold.apply(self.state, draft)
        written = self._writer.append(data.kind, unit, attempt, encoding.storable(data), at=draft.at)
        if written.seq != draft.seq:
            raise Unreadable(f"journal sequence is {written.seq}, expected {draft.seq}")
        self.entries.append(draft)
        self.state = after
        return draft

    def unit(self, unit_id: str) -> Unit:
        """A unit of this run, `REFUSED` when unknown."""
        unit = self.state.units.get(unit_id)
        if unit is None:
            known = ", ".join(sorted(self.state.units)) or "none prepared yet"
            raise Refused(
                f"unknown unit {unit_id[:140]!r}",
                detail={"unit_id": unit_id[:140]},
                expected=known,
                found=unit_id[:140],
                remedy="name a prepared unit, or prepare this one",
            )
        return unit

    def unit_dir(self, unit_id: str) -> Path:
        """The unit's directory: workspace, result, packet, authorization."""
        return self.directory / "units" / run_root.safe_id(unit_id, "unit id")

    def job_dir(self, job_id: str) -> Path:
        """The runner's directory of a job."""
        return self.directory / "jobs" / run_root.safe_id(job_id, "job id")

    @property
    def lock_path(self) -> Path:
        """The integration lock file of the run's branch."""
        return lock.integration_lock_path(self.root, self.state)

    def observe(self, *revisions: str) -> checkout.Observation:
        """The canonical checkout, validated against the recorded identity and branch; the prompt brief too."""
        self.require_source()
        seen = checkout.observe(self.git, *revisions)
        checkout.validate(seen, self.state.repository, self.state.branch.ref)
        return seen

    def require_source(self) -> None:
        """The run's own copy of a prompt brief is the recorded one (`UNREADABLE` otherwise)."""
        source = self.state.source
        if source.kind == "prompt":
            found = hashlib.sha256(run_root.read(self.directory / source.path, run_root.PACKET_MAX)).hexdigest()
            if found != source.digest:
                raise Unreadable("the run's prompt brief was altered", expected=source.digest, found=found)

    @property
    def refs(self) -> ref_file.Refs:
        """The references that this run may change."""
        repository = self.state.repository
        return ref_file.Refs(self.git, Path(repository.git_dir), Path(repository.common_dir), self.directory)

    def look(self) -> checkout.Look:
        """One full look at the canonical checkout."""
        return checkout.look(self.git, self.private_path("index"))

    def private_path(self, prefix: str) -> Path:
        """A fresh name in the run directory for an index copy or log."""
        return self.directory / f"{prefix}-{secrets.token_hex(6)}"

    def project(self) -> None:
        """Write `manifest.json` from the fold."""
        value = projection.manifest(self.state, self.directory, self.entries)
        run_root.write(self.directory / run_root.MANIFEST, encoding.dumps(value).encode("ascii") + b"\n")


def _entries(records: tuple[journal.Record, ...]) -> list[Entry]:
    return [
        Entry(seq=rec.seq, at=rec.at, unit=rec.unit, attempt=rec.attempt, data=fold.decode(rec.kind, rec.data))
        for rec in records
    ]


def _missing(directory: Path) -> Unreadable:
    return Unreadable(
        f"run directory {directory} exists without a controller journal",
        expected=run_root.JOURNAL,
        found="nothing",
        remedy="choose a new run id; this folder was not made by the controller",
    )


@contextmanager
def reading(run_id: str) -> Iterator[OpenRun]:
    """The run as its journal stands now; an unfinished append at the end is ignored."""
    yield read_directory(run_root.find_run(run_id))


def read_directory(directory: Path) -> OpenRun:
    """A run for reading, by its directory."""
    for name in (run_root.MANIFEST, "manifest.lock"):
        run_root.require_private(directory / name)
    try:
        found = journal.read(directory / run_root.JOURNAL)
    except FileNotFoundError:
        raise _missing(directory) from None
    entries = _entries(found.records)
    state = fold.fold(entries)
    if state.run_id != directory.name:
        raise Unreadable(f"the journal in {directory} is of another run", expected=directory.name, found=state.run_id)
    return OpenRun(directory, state, entries, None, ())


@contextmanager
def changing(run_id: str, *, wait: float = lock.DEFAULT_WAIT) -> Iterator[OpenRun]:
    """The run under its exclusive lock; what the command recorded is projected at the end, also when it fails."""
    directory = run_root.find_run(run_id)
    if not os.path.lexists(directory / run_root.JOURNAL):
        raise _missing(directory)
    run_root.require_private(directory / run_root.MANIFEST)
    with lock.held(directory / "manifest.lock", wait=wait, what=f"run {run_id}") as fd:
        try:
            writer, found = journal.Writer.open(directory / run_root.JOURNAL)
        except FileNotFoundError:
            raise _missing(directory) from None
        try:
            entries = _entries(found.records)
            state = fold.fold(entries)
            if state.run_id != directory.name:
                raise Unreadable(
                    f"the journal in {directory} is of another run",
                    expected=directory.name,
                    found=state.run_id,
                )
            _require_at_home(directory, state)
            run = OpenRun(directory, state, entries, writer, (fd,))
            while writer.moved is not None:
                moved = writer.moved
                run.record(r.TornTailMoved(file=moved.file, bytes=moved.bytes, sha256=moved.sha256))
            with run_root.trusted():
                private.sweep_temps(directory)
            _end_survivors(run)
            _clear_git_locks(run)
            _sweep_index_copies(run)
            try:
                yield run
            except BaseException:
                # The journal already holds what happened; a manifest that cannot be written must not hide the cause.
                with suppress(ControllerError):
                    run.project()
                raise
            # Also after a command that recorded nothing: an earlier one may have been killed before it projected.
            run.project()
        finally:
            writer.close()


def _require_at_home(directory: Path, state: Run) -> None:
    """`BLOCKED` in a copied or moved run: its records name the workspaces and references of the run at its old place.

    A command in a backup once removed the original's workspace. The same directory by another name is at home.
    """
    for unit in state.units.values():
        home = Path(unit.workspace.path).parents[2]
        try:
            same = home.samefile(directory)
        except OSError:
            same = False
        if not same:
            raise Blocked(
                f"run {state.run_id} is not where its records say: it was copied or moved",
                detail={"unit_id": unit.unit_id},
                expected=f"the run at {home}",
                found=str(directory),
                remedy=f"put the run back to {home}, or work on the run that is there",
            )


def _end_survivors(run: OpenRun) -> None:
    """End what a verification of a killed controller left running, before anything else is done (section 18 row 5)."""
    process = run.state.verification_process
    if process is None:
        return
    from controller.survivors import end_survivors

    pids = end_survivors(process)
    run.record(r.SurvivorsEnded(marker=process.marker, pids=tuple(pids)), unit=run.state.verification_process_unit)


def _clear_git_locks(run: OpenRun) -> None:
    """Remove lock files of Git that a killed command of this very run provably left (design.md section 6)."""
    git_dir = Path(run.state.repository.git_dir)
    transports = [transport.ref_name(run.state.run_id, unit_id) for unit_id in run.state.units]
    removed = [index_file.clear_stale(git_dir, run.directory), *run.refs.clear_stale(run.state.branch.ref, transports)]
    for path in removed:
        if path is not None:
            run.record(r.StaleGitLockRemoved(path=path, cause="a killed command of this run held it"))


def _sweep_index_copies(run: OpenRun) -> None:
    """Remove copies of the index that no record names: a killed command made them, or was done with them."""
    named = {unit.integration.index_copy for unit in run.state.units.values()}
    named |= {attempt.index_copy for attempt in run.state.verification_attempts if attempt.status == "pending"}
    with run_root.trusted():
        for name in os.listdir(run.directory):
            path = run.directory / name
            if name.startswith(("index-", "index.work")) and str(path) not in named:
                path.unlink(missing_ok=True)
