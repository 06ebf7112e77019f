"""Runs a verification command in the canonical checkout so that no process of it outlives the transaction."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from controller import checkout, encoding, interrupts, run_root
from controller import records as r
from controller.errors import Interrupted, Refused
from controller.git import scrubbed
from controller.run import OpenRun
from controller.shapes import Identity, Snapshot
from controller.survivors import MARKER
from runner import private
from runner.errors import Interrupted as RunnerInterrupted
from runner.foreground import Outcome, run_supervised
from runner.process import ProcessIdentity

DEFAULT_TIMEOUT = 3600
LOG_MAX = 64 * 1024 * 1024
SAMPLE = 20


class Verdict(msgspec.Struct, frozen=True):
    """What a verification did: exit code (127 not found, 126 not executable, 124 timed out), log, both snapshots."""

    exit_code: int
    timed_out: bool
    log: str
    log_sha256: str
    before: Snapshot
    after: checkout.Look
    ignored_state: dict[str, Any]
    launch_error: str | None = None

    @property
    def changed(self) -> bool:
        """Whether tracked or visible state differs from before."""
        return self.before != self.after.snapshot


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """The command after one leading `--`; `REFUSED` when empty or when an argument is empty or holds a NUL."""
    words = tuple(argv[1:] if argv and argv[0] == "--" else argv)
    if not words or any(not word or "\0" in word for word in words):
        raise Refused(
            "a verification command is required after --",
            expected="-- <command> [argument ...], no empty argument",
            found="nothing" if not words else "an empty argument or one with a NUL",
            remedy="for shell syntax pass: -- bash -o pipefail -c '<command>'",
        )
    return words


class _Log:
    """The private log of one verification: hashed whole, kept up to `LOG_MAX` bytes."""

    def __init__(self, path: Path) -> None:
        self._digest = hashlib.sha256()
        self._room = LOG_MAX
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with run_root.trusted():
            self._fd = os.open(path, flags, 0o600)

    def write(self, chunk: bytes) -> None:
        """Take output as it comes."""
        self._digest.update(chunk)
        kept = chunk[: self._room]
        self._room -= len(kept)
        private.write_all(self._fd, kept)

    def close(self) -> str:
        """Make it durable; the SHA-256 of everything that was written."""
        with run_root.trusted():
            try:
                os.fsync(self._fd)
            finally:
                os.close(self._fd)
        return self._digest.hexdigest()


def run_command(
    run: OpenRun, unit_id: str | None, argv: Sequence[str], log: Path, before: Snapshot, timeout: int
) -> Verdict:
    """Run argv in the top level, supervised; its process is journaled before it may execute anything."""
    ignored = _ignored(run)
    output = _Log(log)
    try:
        outcome = _supervise(run, unit_id, argv, output, log, timeout)
        if outcome.launch_error:
            output.write(f"{outcome.launch_error}\n".encode("utf-8", "surrogateescape"))
    finally:
        log_sha256 = output.close()
    if outcome.stopped:
        interrupts.check()
    if outcome.timed_out:
        code = 124
    elif outcome.exit_code is not None:
        code = outcome.exit_code
    else:
        code = 128 + (outcome.signal or 0)
    after = run.look()
    return Verdict(
        exit_code=code,
        timed_out=outcome.timed_out,
        log=str(log),
        log_sha256=log_sha256,
        before=before,
        after=after,
        ignored_state=compare_ignored(ignored, _ignored(run)),
        launch_error=outcome.launch_error,
    )


def _supervise(
    run: OpenRun, unit_id: str | None, argv: Sequence[str], output: _Log, log: Path, timeout: int
) -> Outcome:
    """Run to the end of the last process; both ends are in the journal."""
    marker = secrets.token_hex(16)

    def started(supervisor: ProcessIdentity, child: ProcessIdentity) -> None:
        started_record = r.VerificationStarted(
            supervisor=_identity(supervisor),
            child=_identity(child),
            marker=marker,
            argv=tuple(argv),
            log=str(log),
            timeout_seconds=timeout,
        )
        run.record(started_record, unit=unit_id)

    def ended(exit_code: int | None, timed_out: bool, survivors: int) -> None:
        if run.state.verification_process is not None:
            record = r.VerificationEnded(marker=marker, exit_code=exit_code, timed_out=timed_out, survivors=survivors)
            run.record(record, unit=unit_id)

    try:
        with run_root.trusted():
            outcome = run_supervised(
                list(argv),
                cwd=run.git.cwd,
                env={**scrubbed(), "PYTHONDONTWRITEBYTECODE": "1"},
                timeout=float(timeout),
                marker=(MARKER, marker),
                on_stdout=output.write,
                on_stderr=None,
                merge_stderr=True,
                on_started=started,
                should_stop=interrupts.pending,
            )
    except RunnerInterrupted as error:
        ended(None, False, 0)
        name = signal.Signals(error.signum).name
        raise Interrupted(f"interrupted by {name}", found=name) from None
    ended(outcome.exit_code, outcome.timed_out, len(outcome.survivors))
    return outcome


def _identity(identity: ProcessIdentity) -> Identity:
    return Identity(pid=identity.pid, start_time=identity.start_time, boot_id=identity.boot_id)


def _ignored(run: OpenRun) -> dict[str, tuple[int, ...] | None]:
    """Ignored entry to what lstat says of it, None when it cannot be inspected (section 6, `ignored_state`)."""
    out = run.git.run("ls-files", "--others", "--ignored", "--exclude-standard", "-z")
    found: dict[str, tuple[int, ...] | None] = {}
    top = os.fsencode(run.git.cwd)
    for name in out.split(b"\0")[:-1]:
        try:
            info = os.lstat(os.path.join(top, name))
        except OSError:
            found[os.fsdecode(name)] = None
            continue
        found[os.fsdecode(name)] = (
            stat.S_IFMT(info.st_mode),
            info.st_size,
            info.st_mtime_ns,
            info.st_ino,
            info.st_dev,
            info.st_nlink,
            info.st_mode,
            info.st_ctime_ns,
        )
    return found


def compare_ignored(
    before: dict[str, tuple[int, ...] | None], after: dict[str, tuple[int, ...] | None]
) -> dict[str, Any]:
    """The `ignored_state` of section 6: counts, and samples of at most 20 paths each. Pure."""
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    removed = sorted(before.keys() - after.keys())
    created = sorted(after.keys() - before.keys())
    return {
        "before": len(before),
        "after": len(after),
        "changed": len(changed),
        "removed": len(removed),
        "created": len(created),
        "uninspectable": sum(1 for value in (*before.values(), *after.values()) if value is None),
        "sample": {"changed": changed[:SAMPLE], "removed": removed[:SAMPLE], "created": created[:SAMPLE]},
        "sample_limit": SAMPLE,
        "restored": False,
    }


def evidence_digest(value: dict[str, Any]) -> str:
    """SHA-256 of the compact sorted JSON of a receipt."""
    return hashlib.sha256(encoding.dumps(value).encode("ascii")).hexdigest()
