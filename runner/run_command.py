"""`run`: one command in the foreground with a timeout (launcher section 6)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from runner.errors import Usage
from runner.foreground import Outcome, run_supervised
from runner.private import write_all

MARKER = "PEER_JOB_RUN"
TIMED_OUT = 124

_SIGNALLED = 128


class Request(msgspec.Struct, frozen=True):
    """What `run` is asked for: `timeout` and `grace` in seconds, `max_output` bytes for each output file."""

    argv: Sequence[str]
    timeout: float
    grace: float
    cwd: Path | None = None
    stdout: Path | None = None
    stderr: Path | None = None
    max_output: int | None = None


def run(request: Request, environ: Mapping[str, str]) -> Outcome:
    """Run the command and end all of it. Its output goes to the given files, else to our own streams.

    Raises `Usage` for a directory or file that cannot be used, `Interrupted` when we were told to stop, and
    `BrokenPipeError` when the reader of our own streams is gone.
    """
    cwd = Path.cwd() if request.cwd is None else request.cwd
    if not cwd.is_dir():
        raise Usage(f"cannot use --cwd {cwd}", expected="an existing directory")
    with ExitStack() as stack:
        return run_supervised(
            request.argv,
            cwd=cwd,
            env=environ,
            timeout=request.timeout,
            grace=request.grace,
            marker=(MARKER, os.urandom(16).hex()),
            on_stdout=_sink(stack, "--stdout", request.stdout, request.max_output, 1),
            on_stderr=_sink(stack, "--stderr", request.stderr, request.max_output, 2),
        )


def exit_code(outcome: Outcome) -> int:
    """The exit code of `run`: 124 after our timeout, 128 + n for a signal, else the command's own."""
    if outcome.timed_out:
        return TIMED_OUT
    if outcome.signal is not None:
        return _SIGNALLED + outcome.signal
    return 1 if outcome.exit_code is None else outcome.exit_code


def _sink(stack: ExitStack, option: str, path: Path | None, limit: int | None, own: int) -> Callable[[bytes], None]:
    if path is None:
        return lambda data: write_all(own, data)
    try:
        # A FIFO without a reader would block the open for ever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666)
    except OSError as fault:
        raise Usage(f"cannot write {option} {path}: {fault.strerror}") from fault
    stack.callback(os.close, fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.set_blocking(fd, True)
    left = limit

    def write(data: bytes) -> None:
        nonlocal left
        if left is not None:
            # The rest is drained and thrown away, so that the command never blocks on it.
            data = data[:left]
            left -= len(data)
        write_all(fd, data)

    return write
