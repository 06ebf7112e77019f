"""The runner's one error hierarchy.

Every error says what was expected, what was found and what to do now, and carries the exit code of the
command that ends with it (protocol section 12: 1 operational, 2 usage, 3 no result, 4 ownership or sanity).
"""

from __future__ import annotations

import os
from pathlib import Path


class RunnerError(Exception):
    """A command of `peer-job-runner` cannot do what it was asked; `str()` is one line for a person."""

    exit_code = 1

    def __init__(self, message: str, *, expected: str = "", found: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        text = self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.found:
            text += f"; found {self.found}"
        if self.remedy:
            text += f"; {self.remedy}"
        return printable(text)


class Usage(RunnerError):
    """The command line itself is wrong: nothing was looked at or started."""

    exit_code = 2


class Preflight(RunnerError):
    """The worker cannot be executed: nothing was started, the job reads `never-started`."""


class StillRunning(RunnerError):
    """`result` was asked of a job that has not settled."""

    exit_code = 2


class NoResult(RunnerError):
    """The job settled without being `done`, or its result file is missing."""

    exit_code = 3


class Untrusted(RunnerError):
    """A private path breaks the private rule (protocol section 4): its content is never used.

    `path` is the offending path, `expected` and `found` the property that differs.
    """

    exit_code = 4

    def __init__(self, path: str | os.PathLike[str], expected: str, found: str, remedy: str = "") -> None:
        self.path = Path(path)
        super().__init__(
            f"not trusted: {self.path}",
            expected=expected,
            found=found,
            remedy=remedy or "inspect the path, then repair or remove it by hand",
        )


class Unseen(RunnerError):
    """The processes in question cannot be seen from here: neither alive nor dead may be said of them.

    Taking unknown for gone would have the same work done, and paid for, twice.
    """

    def __init__(self, expected: str, found: str, remedy: str = "") -> None:
        super().__init__(
            "cannot see the job's processes from here",
            expected=expected,
            found=found,
            remedy=remedy or "run this where the job was started; `reap --gone` if that container is no more",
        )


class Interrupted(RunnerError):
    """A signal asked the calling program to stop; the supervised tree has already been ended.

    `signum` is the signal; the exit code is 128 + signum, as a shell would report it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
        self.exit_code = 128 + signum


def printable(text: str) -> str:
    """`text` on one line and encodable everywhere: control characters and lone surrogates become escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
