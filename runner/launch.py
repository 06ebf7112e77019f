"""Starting a child that is held at a gate before it executes anything.

The parent learns the child's identity and can record it durably while the child waits; only then it opens the
gate. A parent that dies first never lets an unrecorded process run.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping, Set
from typing import NoReturn

import msgspec

from runner import signals
from runner.descriptors import close_all_but, pipe
from runner.errors import printable
from runner.private import write_all
from runner.process import ProcessIdentity, identify

NOT_FOUND = 127
NOT_EXECUTABLE = 126

_GO = b"g"


class Command(msgspec.Struct, frozen=True):
    """What a child becomes.

    `cwd` None is the parent's; -1 as a stream is the parent's descriptor 0, 1 or 2; `keep` are further
    descriptors that the child inherits.
    """

    argv: list[str]
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None = None
    stdin: int = -1
    stdout: int = -1
    stderr: int = -1
    keep: tuple[int, ...] = ()
    before_exec: Callable[[], None] | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why nothing was executed: `exit_code` 127 (not found) or 126 (all else), and one line of text."""

    exit_code: int
    message: str


class Gate:
    """A forked child (leader of its own session) that waits before exec; its parent holds this."""

    def __init__(self, pid: int, gate_fd: int, error_fd: int) -> None:
        self.pid = pid
        self._gate_fd = gate_fd
        self._error_fd = error_fd

    def identity(self) -> ProcessIdentity | None:
        """The child's identity, the same before and after exec; None if it has been killed already."""
        return identify(self.pid)

    def open(self) -> None:
        """Let the child go on to exec."""
        try:
            os.write(self._gate_fd, _GO)
        except BrokenPipeError:
            # Somebody killed it at the gate; its exit status will tell.
            pass
        self.shut()

    def shut(self) -> None:
        """Close the gate: a child that was not let through ends without executing anything."""
        if self._gate_fd >= 0:
            os.close(self._gate_fd)
            self._gate_fd = -1

    def failure(self) -> Failure | None:
        """Why exec did not happen; None when it did. Only for a child that has exited; to be asked once."""
        try:
            data = _read_to_end(self._error_fd)
        finally:
            os.close(self._error_fd)
        if not data:
            return None
        code, _, message = data.decode("utf-8", "replace").partition(" ")
        return Failure(int(code), message)


def fork_gated(command: Command) -> Gate:
    """Fork a child for `command` and hold it at its gate. Raises `OSError` when no process can be made.

    The child inherits no descriptor but its three standard ones and `command.keep`, so that it holds neither
    locks nor pipes of its parent.
    """
    gate_read, gate_write = pipe()
    error_read, error_write = pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, gate_read, error_write, mask)
    except OSError:
        for fd in (gate_read, gate_write, error_read, error_write):
            os.close(fd)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(gate_read)
    os.close(error_write)
    return Gate(pid, gate_write, error_read)


def _become(command: Command, gate: int, errors: int, mask: Set[int]) -> NoReturn:
    code = NOT_EXECUTABLE
    try:
        signals.reset_all()
        os.setsid()
        streams = (command.stdin, command.stdout, command.stderr)
        close_all_but({0, 1, 2, gate, errors, *streams, *command.keep})
        if os.read(gate, 1) == _GO:
            os.close(gate)
            for target, fd in enumerate(streams):
                if fd >= 0:
                    os.dup2(fd, target)
            for fd in command.keep:
                os.set_inheritable(fd, True)
            failure = _execute(command, mask)
            code = failure.exit_code
            write_all(errors, f"{code} {printable(failure.message)}".encode())
    finally:
        # No finalizer, buffer or exit handler of the parent may run a second time here.
        os._exit(code)


def _execute(command: Command, mask: Set[int]) -> Failure:
    """Exec `command`; returns only when that failed."""
    if command.cwd is not None:
        try:
            os.chdir(command.cwd)
        except OSError as fault:
            where = os.fsdecode(command.cwd)
            return Failure(NOT_EXECUTABLE, f"cannot enter working directory {where}: {fault.strerror}")
    if command.before_exec is not None:
        try:
            command.before_exec()
        except Exception as fault:
            return Failure(NOT_EXECUTABLE, f"preparation before exec failed: {type(fault).__name__}: {fault}")
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(command.argv[0], command.argv, command.env)
    except (OSError, ValueError) as fault:
        return _explain(command.argv[0], fault)


def _explain(program: str, fault: OSError | ValueError) -> Failure:
    if not isinstance(fault, OSError):
        return Failure(NOT_EXECUTABLE, f"cannot execute {program}: {fault}")
    if fault.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.dirname(program) and os.path.exists(program):
            return Failure(NOT_EXECUTABLE, f"cannot execute {program}: its interpreter is missing")
        return Failure(NOT_FOUND, f"command not found: {program}")
    return Failure(NOT_EXECUTABLE, f"cannot execute {program}: {fault.strerror}")


def _read_to_end(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 4096):
        chunks.append(chunk)
    return b"".join(chunks)
