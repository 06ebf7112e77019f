"""What each of our programs does first: undo what its caller may have left it in.

Closed standard streams, an ignored SIGCHLD and a signal mask are all inherited through exec.
"""

from __future__ import annotations

import os
import signal
import sys

_NEEDED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start_up() -> None:
    """Make descriptors, `sys` streams and signals of this process fit to work with; for the top of `main`.

    - A closed descriptor 0, 1 or 2 becomes /dev/null: else the next file opened, as a lock, gets its number
      and is lost to each child whose streams are redirected.
    - SIGCHLD gets its default: where it is ignored, the kernel forgets how a child ended and `subprocess` then
      reads every exit as 0.
    - The signals that we wait for are let through.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is exactly this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has None for a stream that was closed when it started.
    sys.stdin = sys.stdin or os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NEEDED)


def complain(line: str) -> None:
    """Write one line to stderr, past the interpreter's buffer; one that nobody takes is no reason to fail."""
    try:
        os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def forget_stdout() -> None:
    """Send to /dev/null what could not be written: the interpreter would try again, and complain, at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
