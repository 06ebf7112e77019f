"""The records of a job directory: their shapes, how they are written and how they are read (section 12).

`meta.json`, `pid`, `out.log`, `reason`, `status`, and of ours `survivors`. Everything is written 0600, whole
and fsynced. Other programs write job directories, too, with the documented keys only and with their own
modes: reading accepts those.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runner import private
from runner.errors import Unseen, Untrusted, printable
from runner.limits import Supervision
from runner.process import ProcessIdentity, is_alive, pid_namespace, require_seen
from runner.verdict import TERMINAL, Result, State, Verdict

META, PID, LOG, REASON, STATUS, SURVIVORS = "meta.json", "pid", "out.log", "reason", "status", "survivors"

META_MAX_BYTES = 64 * 1024
STATUS_MAX_BYTES = 256
REASON_MAX_BYTES = 4096
JOB_ID_VARIABLE = "CE_PEER_JOB_ID"

_LOCK_SECONDS = 2.0
_YEAR_10000 = 253402300800
_T = TypeVar("_T")


class Meta(msgspec.Struct, frozen=True):
    """`meta.json`: what was asked for. `result_path` is absolute; `started_at` is UTC to the second."""

    job_id: str = ""
    skill: str = ""
    run_id: str = ""
    label: str | None = None
    input_digest: str | None = None
    started_at: str = ""
    worker_argv: list[str] = []
    result_path: str | None = None
    sweep_enabled: bool = True
    supervision: Supervision = Supervision()


class Processes(msgspec.Struct, frozen=True):
    """`pid`: the documented numbers, and of ours the identities that make them proof.

    `pid_namespace`: the inode of the namespace that they were taken in. `job_dir_device`, `job_dir_inode`: the
    directory itself, which a copy of it is not.
    """

    supervisor_pid: int | None = None
    worker_pid: int | None = None
    supervisor_pgid: int | None = None
    boot_id: str | None = None
    supervisor: ProcessIdentity | None = None
    worker: ProcessIdentity | None = None
    pid_namespace: int | None = None
    job_dir_device: int | None = None
    job_dir_inode: int | None = None


class Survivors(msgspec.Struct, frozen=True):
    """`survivors`: the processes that outlived the worker and were ended (claude-code#52917)."""

    survivors: tuple[ProcessIdentity, ...] = ()


class JobView(msgspec.Struct, frozen=True):
    """One look at a job.

    - `reason` and `ended_at` only once it has ended; times are seconds since the epoch.
    - `supervisor`, `worker`: identities, None where only bare numbers (or nothing) were recorded.
    - `processes`: the whole record that they are of, None where there is none or it is not readable.
    - `contact`: for a running job `live`, `lost` (its supervisor is gone and `reap` is needed) or None when that
      cannot be seen from here; else None.
    - `log_bytes`, `last_activity`: size and time of the last growth of `out.log`.
    - `problem`: what about the directory is not trusted or not readable, None when all is well.
    """

    job_dir: str
    state: State
    reason: str | None = None
    meta: Meta | None = None
    supervisor: ProcessIdentity | None = None
    worker: ProcessIdentity | None = None
    processes: Processes | None = None
    contact: str | None = None
    log_bytes: int | None = None
    last_activity: float | None = None
    started: float | None = None
    ended_at: float | None = None
    survivors: tuple[ProcessIdentity, ...] = ()
    problem: str | None = None

    def elapsed_seconds(self, now: float | None = None) -> float | None:
        """Seconds from the start to the end, or to `now`."""
        if self.started is None:
            return None
        until = self.ended_at if self.ended_at is not None else _now(now)
        return max(0.0, until - self.started)

    def idle_seconds_left(self, now: float | None = None) -> float | None:
        """Seconds until the idle limit ends a running job; None without one."""
        if self.state is not State.RUNNING or self.meta is None or self.last_activity is None:
            return None
        idle = self.meta.supervision.idle
        return None if idle is None else max(0.0, idle - (_now(now) - self.last_activity))

    def hard_seconds_left(self, now: float | None = None) -> float | None:
        """Seconds until the hard limit ends a running job."""
        elapsed = self.elapsed_seconds(now)
        if self.state is not State.RUNNING or self.meta is None or elapsed is None:
            return None
        return max(0.0, self.meta.supervision.hard - elapsed)


def read_job(job_dir: Path, *, strict: bool = False) -> JobView:
    """The job in `job_dir`, from its files alone; never raises for what it finds there.

    `strict` also demands mode 0600 of every record and 0700 of the directory (section 4): what breaks that
    makes the state `unreadable` and is named in `problem`.
    """
    job_dir = Path(job_dir)
    try:
        state = _state(job_dir, strict)
    except (Untrusted, OSError) as fault:
        return JobView(str(job_dir), State.UNREADABLE, problem=printable(str(fault)))
    reason, reason_problem = _reason(job_dir, strict) if state in TERMINAL else (None, None)
    meta, meta_problem = _record(job_dir / META, Meta, strict)
    processes, pid_problem = _record(job_dir / PID, Processes, strict)
    left, _ = _record(job_dir / SURVIVORS, Survivors, strict)
    log = _status(job_dir / LOG)
    pid_status = _status(job_dir / PID)
    status = _status(job_dir / STATUS) if state in TERMINAL else None
    problem = meta_problem or pid_problem or reason_problem
    started = _changed(pid_status)
    return JobView(
        job_dir=str(job_dir),
        state=State.UNREADABLE if strict and problem else state,
        reason=reason,
        meta=meta,
        supervisor=processes.supervisor if processes else None,
        worker=processes.worker if processes else None,
        processes=processes,
        contact=_contact(processes, started) if state is State.RUNNING else None,
        log_bytes=log.st_size if log else None,
        last_activity=_changed(log),
        started=started,
        ended_at=_changed(status),
        survivors=left.survivors if left else (),
        problem=problem,
    )


def read_state(job_dir: Path) -> State:
    """Only the state word of the job; cheap enough to ask many times a second."""
    try:
        return _state(Path(job_dir), strict=False)
    except (Untrusted, OSError):
        return State.UNREADABLE


def write_meta(job_dir: Path, meta: Meta) -> None:
    """Write `meta.json`, indented."""
    text = json.dumps(msgspec.to_builtins(meta), indent=2, sort_keys=True)
    private.create_exclusive(job_dir / META, text.encode() + b"\n")


def write_processes(job_dir: Path, supervisor: ProcessIdentity, worker: ProcessIdentity, group: int) -> None:
    """Write `pid`; from here on the job reads `running`."""
    folder = os.lstat(job_dir)
    boot, namespace = supervisor.boot_id, pid_namespace()
    place = (namespace, folder.st_dev, folder.st_ino)
    record = Processes(supervisor.pid, worker.pid, group, boot, supervisor, worker, *place)
    private.write_atomic(job_dir / PID, msgspec.json.encode(record) + b"\n")


def publish(job_dir: Path, verdict: Verdict, survivors: tuple[ProcessIdentity, ...] = ()) -> bool:
    """Record how the job ended, `status` last; False when that had been done: the first word stays."""
    with _recording(job_dir):
        if _status(job_dir / STATUS) is not None:
            return False
        if survivors:
            private.write_atomic(job_dir / SURVIVORS, msgspec.json.encode(Survivors(survivors)) + b"\n")
        reason = printable(verdict.reason).encode()[: REASON_MAX_BYTES - 1]
        private.write_atomic(job_dir / REASON, reason + b"\n")
        try:
            private.create_exclusive(job_dir / STATUS, verdict.state.value.encode() + b"\n")
        except FileExistsError:
            return False
    return True


def result_of(meta: Meta | None) -> Result:
    """The declared result of a job as it is on disk now; one that cannot be looked at is none.

    The path is whatever the worker makes of it while we look: a name too long, a loop of links, and more.
    """
    if meta is None or meta.result_path is None:
        return Result(False, None, Supervision().result_max)
    try:
        status = os.lstat(meta.result_path)
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):
        size = None
    return Result(True, size, meta.supervision.result_max)


@contextmanager
def _recording(job_dir: Path) -> Iterator[None]:
    """Hold the job against another recorder, so that `reason` and `status` are of one mind."""
    fd = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A recorder that was stopped must not stop everybody: `status` is exclusive in any case.
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _state(job_dir: Path, strict: bool) -> State:
    if strict:
        private.check_private_dir(job_dir)
    else:
        _check_owned_dir(job_dir)
    reader = private.read_private if strict else private.read_owned
    word = _text(reader, job_dir / STATUS, STATUS_MAX_BYTES)
    if word is None:
        return State.NEVER_STARTED if _status(job_dir / PID) is None else State.RUNNING
    if word not in TERMINAL:
        raise Untrusted(job_dir / STATUS, " or ".join(sorted(TERMINAL)), repr(word))
    return State(word)


def _check_owned_dir(path: Path) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise Untrusted(path, "a real directory", "something else")
    if status.st_uid != os.geteuid():
        raise Untrusted(path, f"owner uid {os.geteuid()}", f"owner uid {status.st_uid}")


def _text(reader: Any, path: Path, limit: int) -> str | None:
    try:
        data: bytes = reader(path, limit)
    except FileNotFoundError:
        return None
    return data.decode("utf-8", "replace").strip()


def _reason(job_dir: Path, strict: bool) -> tuple[str | None, str | None]:
    """The recorded reason, and what is wrong with it: that alone does not undo how the job ended."""
    reader = private.read_private if strict else private.read_owned
    try:
        return _text(reader, job_dir / REASON, REASON_MAX_BYTES), None
    except (Untrusted, OSError) as fault:
        return None, printable(str(fault))


def _record(path: Path, shape: type[_T], strict: bool) -> tuple[_T | None, str | None]:
    """A JSON record, and what is wrong with it; (None, None) when there is none."""
    try:
        data = (private.read_private if strict else private.read_owned)(path, META_MAX_BYTES)
    except FileNotFoundError:
        return None, None
    except (Untrusted, OSError) as fault:
        return None, printable(str(fault))
    try:
        # The standard parser keeps lone surrogates, which stand for the bytes of names that are not UTF-8.
        return msgspec.convert(json.loads(data), shape), None
    except (ValueError, RecursionError) as fault:
        return None, printable(f"not trusted: {path}; expected {shape.__name__} as JSON; found {fault}")


def _contact(processes: Processes | None, recorded: float | None) -> str | None:
    if processes is None:
        return "lost"
    try:
        require_seen(processes.boot_id, processes.pid_namespace)
        if processes.supervisor is not None:
            return "live" if is_alive(processes.supervisor) else "lost"
        # Only a number: it is the supervisor's if its process existed when the number was written down.
        born = _born(processes.supervisor_pid)
    except Unseen:
        return None
    return "live" if born is not None and recorded is not None and born <= recorded + 1 else "lost"


def _born(pid: int | None) -> float | None:
    """When the live process `pid` started, in seconds since the epoch."""
    from runner.process import identify

    identity = identify(pid) if pid is not None else None
    if identity is None:
        return None
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + identity.start_time / os.sysconf("SC_CLK_TCK")


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _changed(status: os.stat_result | None) -> float | None:
    """When the file was last written; None also for a time that no calendar holds."""
    return status.st_mtime if status is not None and 0 <= status.st_mtime < _YEAR_10000 else None


def _now(now: float | None) -> float:
    return time.time() if now is None else now
