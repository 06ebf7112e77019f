"""What `doctor` looks at on the private side: runs roots, runs, lock files, processes. `examination_git` has the rest.

Each check yields findings. One that is provably ours carries its own repair, which proves it again under the locks
that a live command would hold; nothing else is ever touched. A run that another command works on right now is left
out: what it shows may be half done and well.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from controller import encoding, guidance, journal, lock, programs, projection, run_root
from controller import records as r
from controller.errors import ControllerError
from controller.journal import JournalBytes
from controller.run import OpenRun, read_directory
from controller.state import DONE, NEVER_STARTED, RUNNING, Unit
from controller.survivors import MARKER
from runner import private
from runner.errors import Untrusted
from runner.job import JOB_ID_VARIABLE, read_job
from runner.process import ProcessIdentity, identify, is_alive, kill_all
from runner.verdict import TERMINAL, State

_PRIVATE_DIRS = ("units", "jobs", "source", "packets", "evidence", "recovered")
_PRIVATE_FILES = (run_root.JOURNAL, run_root.MANIFEST, "manifest.lock")
# As `peer-job-runner start` makes them: the random part says that no other job of anybody has this id.
_RUNNER_MADE = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\Z")
_LOCK_WAIT = 5.0


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be: what it means, the one command that mends it, and the repair if ours."""

    check: str
    where: str
    meaning: str
    command: str
    repair: Callable[[], None] | None = None


class Examined(msgspec.Struct, frozen=True):
    """The runs of one root: those that can be read, the ids of those that another command works on, and the rest."""

    root: Path
    runs: tuple[OpenRun, ...]
    busy: tuple[str, ...]
    unread: tuple[str, ...]


def say(*arguments: str) -> str:
    """A controller command as one pastes it into a shell."""
    return shlex.join([*programs.controller(), *arguments])


def fix() -> str:
    """The command that carries out every repair."""
    return say("doctor", "--fix")


def no_runs_root(root: Path) -> Finding | None:
    """Why nothing in a folder is looked at, or None: what is not private, or was never used, is not ours to judge."""
    locks = root / run_root.LOCKS
    used = os.path.lexists(locks) or any(root.glob(f"*/{run_root.JOURNAL}"))
    if not used and any(root.glob("*")):
        meaning = "no controller has worked in this folder: see whether CE_WORK_RUNS_ROOT names the right one"
        return Finding("private state", str(root), meaning, f"ls -la {shlex.quote(str(root))}")
    wrong = (list(_privacy(path, folder=True)) for path in (root, locks) if os.path.lexists(path))
    return next((findings[0] for findings in wrong if findings), None)


def leftovers(root: Path) -> Iterator[Finding]:
    """What killed commands left in a runs root."""
    for name in sorted(os.listdir(root)):
        if run_root.is_draft(root / name):
            yield Finding(
                "leftover",
                str(root / name),
                "a killed init or gc left it; no run has this name",
                fix(),
                lambda path=root / name: _remove_leftover(root, path),  # type: ignore[misc]
            )
    locks = root / run_root.LOCKS
    if any(name.startswith(private.TEMP_PREFIX) for name in (os.listdir(locks) if locks.is_dir() else ())):
        yield Finding(
            "leftover",
            str(locks),
            "a killed command left a half-written lock file; it locks nothing",
            fix(),
            lambda: _sweep_locks(root),
        )


def _remove_leftover(root: Path, path: Path) -> None:
    with lock.held(root / run_root.LOCKS / "runs.lock", wait=_LOCK_WAIT, what="the runs root"):
        run_root.remove_tree(path)  # no init or gc is at work now: under this lock it is nobody's


def _sweep_locks(root: Path) -> None:
    path = root / run_root.LOCKS / "integration.lock"
    with lock.held(path, wait=_LOCK_WAIT, what="the integration locks"), run_root.trusted():
        private.sweep_temps(root / run_root.LOCKS)


def _privacy(path: Path, *, folder: bool) -> Iterator[Finding]:
    """Whether a path may be trusted (protocol.md section 4); `doctor` never changes an owner or a mode."""
    try:
        if folder:
            private.check_private_dir(path)
        else:
            private.read_private(path, None)
    except (Untrusted, OSError) as error:
        mends = isinstance(error, Untrusted) and "mode" in str(error.found)
        command = f"chmod {'700' if folder else '600'} {shlex.quote(str(path))}" if mends else _show(path)
        yield Finding("private state", str(path), f"not to be trusted: {error}; see who changed it", command)


def _show(path: Path) -> str:
    return f"ls -ld {shlex.quote(str(path))}"


def look(root: Path, findings: list[Finding]) -> Examined:
    """Every run of a root; what is wrong with one is added to `findings`."""
    runs: list[OpenRun] = []
    busy: list[str] = []
    unread: list[str] = []
    for name in sorted(os.listdir(root)):
        if name == run_root.LOCKS or name.startswith(run_root.INIT_PREFIX):
            continue
        directory = root / name
        held = directory / "manifest.lock"
        if not lock.is_held(held):
            run, here = _examine(directory)
            if not lock.is_held(held) and os.path.lexists(directory):
                findings += here
                runs += [run] if run is not None else []
                unread += [name] if run is None else []
                continue
        busy.append(name)
    return Examined(root, tuple(runs), tuple(busy), tuple(unread))


def _examine(directory: Path) -> tuple[OpenRun | None, list[Finding]]:
    """The run of a directory, None when nothing may be mended by what its journal says; and what is wrong with it."""
    wrong = list(_files(directory))
    if wrong:
        return None, wrong
    try:
        run = read_directory(directory)
        found = journal.read(directory / run_root.JOURNAL)
    except (ControllerError, OSError) as error:
        message = error.message if isinstance(error, ControllerError) else f"cannot be read: {error}"
        verify = say("journal", "verify", "--run-id", directory.name)
        return None, [Finding("journal", str(directory), message, verify)]
    moved = _elsewhere(run)
    return (run, list(_run(run, found))) if moved is None else (None, [moved])


def _elsewhere(run: OpenRun) -> Finding | None:
    """A run that was moved or copied speaks of workspaces and refs at its old place: nothing else is said of it."""
    for unit in run.state.units.values():
        home = Path(unit.workspace.path).parents[2]
        if os.path.realpath(home) != os.path.realpath(run.directory):
            meaning = (
                f"the run was moved or copied from {home}, where its work is recorded; put it back, nothing is lost"
            )
            return Finding("run", str(run.directory), meaning, _put_back(run.directory, home))
    return None


def _put_back(found: Path, place: Path) -> str:
    """The command that moves a run to where its journal says it was, with its whole runs root if that moved."""
    if not os.path.lexists(place.parent):
        found, place = found.parent, place.parent
    if os.path.lexists(place):
        return shlex.join(["ls", "-ld", str(found), str(place)]) + "  # one is a copy: go on with the other"
    return shlex.join(["mv", "-n", "-T", "--", str(found), str(place)])


def _files(directory: Path) -> Iterator[Finding]:
    if not os.path.lexists(directory / run_root.JOURNAL):
        meaning = "no journal in it: the controller did not make it, and `resume` cannot look past it"
        yield Finding("run", str(directory), meaning, out_of_root(directory))
        return
    yield from _privacy(directory, folder=True)
    if directory.is_symlink() or not directory.is_dir():
        return
    for name in _PRIVATE_DIRS:
        if os.path.lexists(directory / name):
            yield from _privacy(directory / name, folder=True)
    for name in _PRIVATE_FILES:
        if os.path.lexists(directory / name):
            yield from _privacy(directory / name, folder=False)


def out_of_root(*directories: Path) -> str:
    """The command that moves something beside its runs root, from wherever it is given, and over nothing."""
    return shlex.join(["mv", "-n", "--", *map(str, directories), f"{directories[0].parents[1]}/"])


def _run(run: OpenRun, found: JournalBytes) -> Iterator[Finding]:
    """What a killed command left for `resume`, and what waits for a person."""
    name, state = run.state.run_id, run.state
    resume = say("resume", "--run-id", name)
    if found.torn:
        yield Finding("journal", name, f"an unfinished append of {len(found.torn)} bytes is at its end", resume)
    if not _is_projected(run):
        yield Finding("manifest", name, "manifest.json is missing or older than the journal", resume)
    if state.verification_process is not None:
        yield Finding("verification", name, "its controller was killed; resume ends what is left of it", resume)
    if state.lock is not None:
        meaning = f"{state.lock.phase} for {state.lock.unit_id} and no command runs: go on with that unit, or resume"
        yield Finding("integration lock", name, meaning, resume)
    elif state.pending_verification is not None:
        yield Finding("verification", name, "a plan-wide verification has no outcome", resume)
    for unit in state.units.values():
        interruption = _interruption(unit)
        if interruption is not None:
            yield Finding("unit", f"{name}/{unit.unit_id}", interruption, resume)
        problem = _job_problem(run, unit)
        if problem is not None:
            reap = say("reap", "--run-id", name, "--unit-id", unit.unit_id)
            yield Finding("job", f"{name}/{unit.unit_id}", problem, reap)
    for blocker in state.open_blockers():
        again = say("verify-run", "--run-id", name, "--", "<verification-command>")
        command = again if blocker.kind == r.RunVerificationBlocked.kind else resume
        yield Finding("blocker", f"{name}/{blocker.unit_id or ''}", blocker.reason, command)


def _is_projected(run: OpenRun) -> bool:
    value = projection.manifest(run.state, run.directory, run.entries)
    try:
        found = run_root.read(run.directory / run_root.MANIFEST, None)
    except ControllerError:
        return False
    return found == encoding.dumps(value).encode("ascii") + b"\n"


def _interruption(unit: Unit) -> str | None:
    if unit.cleanup_intent is not None:
        return "its cleanup was interrupted"
    if unit.cleanup is not None and not unit.cleanup["artifact_cleanup"]["complete"]:
        return "its files were not pruned to the end"
    if unit.state == "queued" and not unit.workspace.registered:
        return "its workspace was not made to the end"
    if unit.state in ("restoring", "committed"):
        return f"interrupted in state {unit.state}"
    if unit.integration.driver == "integrate" and unit.state in ("integrated", "verified"):
        return f"an `integrate` was interrupted in state {unit.state}"
    return None


def _job_problem(run: OpenRun, unit: Unit) -> str | None:
    """What keeps the job of an unfinished unit from telling how it ended: its folder is gone or not to be trusted."""
    job = unit.attempt.job_id
    if job is None or unit.cleanup is not None or unit.attempt.process_state not in (RUNNING, NEVER_STARTED):
        return None
    found = read_job(run.job_dir(job), strict=True)
    if found.state is not State.UNREADABLE and found.meta is not None:
        return None
    return f"the files of job {job} cannot be read: {found.problem or 'no meta.json'}; `reap` settles it"


def lock_files(examined: Examined) -> Iterator[Finding]:
    """Integration lock files whose holder is gone, or does not know that it holds them."""
    held = {run.state.run_id: run.state.lock for run in examined.runs}
    for path in sorted((examined.root / run_root.LOCKS).glob("integration-*.json")):
        wrong = list(_privacy(path, folder=False))
        try:
            holder = None if wrong else lock.read(path)
        except ControllerError as error:
            meaning = f"{error.message}; it blocks every integrate of its branch"
            wrong = [Finding("integration lock", str(path), meaning, f"cat {shlex.quote(str(path))}")]
            holder = None
        yield from wrong
        if holder is None or holder["run_id"] in examined.busy:
            continue
        owner = f"{holder['run_id']}/{holder['unit_id']}"
        if _run_is_gone(examined.root, holder):
            yield Finding(
                "integration lock",
                str(path),
                f"the run of its holder {owner} was deleted; the next integrate takes it over",
                fix(),
                lambda path=path: _remove_lock(examined.root, path),  # type: ignore[misc]
            )
        elif holder["run_id"] in held:
            known = held[holder["run_id"]]
            if known is None or known.nonce != holder["nonce"]:
                meaning = f"{owner} does not know that it holds this: a killed command"
                yield Finding("integration lock", str(path), meaning, say("resume", "--run-id", holder["run_id"]))


def _run_is_gone(root: Path, holder: dict[str, Any]) -> bool:
    """Whether the holder was a run of this very root and nothing of it is left."""
    directory = root / holder["run_id"]
    same = holder.get("journal") == str(directory / run_root.JOURNAL)
    return same and lock.holder_is_gone(holder) and not os.path.lexists(directory)


def _remove_lock(root: Path, path: Path) -> None:
    with lock.held(root / run_root.LOCKS / "integration.lock", wait=_LOCK_WAIT, what="the integration locks"):
        holder = lock.read(path)
        if holder is not None and _run_is_gone(root, holder):
            with run_root.trusted():
                os.unlink(path)
                private.fsync_dir(path.parent)


def missing_workspaces(examined: Examined) -> Iterator[Finding]:
    """Units whose worker's output lies in a workspace that is not there any more."""
    for seen in examined.runs:
        if not any(map(_misses_workspace, seen.state.units.values())):
            continue
        try:  # again under the run's lock: a cleanup may have begun since
            with lock.held(seen.directory / "manifest.lock", wait=0.0, what=f"run {seen.state.run_id}"):
                run = read_directory(seen.directory)
        except ControllerError:
            continue
        for unit in filter(_misses_workspace, run.state.units.values()):
            ended = unit.attempt.process_state not in (RUNNING, DONE)
            command = guidance.abandon(run, unit) if ended else guidance.next_commands(run, unit.unit_id)[-1]
            meaning = (
                f"{unit.workspace.path} was removed or moved by somebody: unless it is put back, the attempt is lost"
            )
            yield Finding("workspace", f"{run.state.run_id}/{unit.unit_id}", meaning, shlex.join(command))


def _misses_workspace(unit: Unit) -> bool:
    waits = unit.state in ("queued", "authoring", "authored") and unit.workspace.registered
    return waits and unit.cleanup_intent is None and not os.path.lexists(unit.workspace.path)


def survivors(examined: Examined) -> Iterator[Finding]:
    """Processes of verifications and jobs that have ended."""
    carriers = _carriers()
    for run in examined.runs:
        name = run.state.run_id
        pending = run.state.verification_process
        for entry in run.entries:
            if isinstance(entry.data, r.VerificationStarted) and (
                pending is None or pending.marker != entry.data.marker
            ):
                found = carriers[(MARKER, entry.data.marker)]
                if found:
                    yield _ended(f"a verification of {name}", found, proven=True)
        for path in sorted((run.directory / "jobs").glob("*/status")):
            job = path.parent.name
            found = carriers[(JOB_ID_VARIABLE, job)]
            if found and read_job(path.parent).state in TERMINAL:
                yield _ended(f"job {job} of {name}", found, proven=_RUNNER_MADE.match(job) is not None)


def _carriers() -> dict[tuple[str, str], list[ProcessIdentity]]:
    """The live processes of this user by the mark that they carry in their environment: one look at each."""
    names = (MARKER, JOB_ID_VARIABLE)
    prefixes = tuple(f"{name}=".encode() for name in names)
    found: dict[tuple[str, str], list[ProcessIdentity]] = defaultdict(list)
    owner = os.geteuid()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        before = identify(pid)
        try:
            if before is None or os.stat(f"/proc/{pid}").st_uid != owner:
                continue
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        for item in environment.split(b"\0"):
            if item.startswith(prefixes) and identify(pid) == before:
                name, _, value = item.partition(b"=")
                found[(os.fsdecode(name), os.fsdecode(value))].append(before)
    return found


def _ended(what: str, found: list[ProcessIdentity], *, proven: bool) -> Finding:
    pids = " ".join(str(identity.pid) for identity in found)
    meaning = f"{what} has ended, but {len(found)} process(es) carry its mark"
    if not proven:
        return Finding("process", pids, f"{meaning}; its id is not unique, so see what they are", f"ps -fp '{pids}'")
    return Finding("process", pids, meaning, fix(), lambda: _end(found))


def _end(found: list[ProcessIdentity]) -> None:
    kill_all(lambda: [identity for identity in found if is_alive(identity)], 2.0)
