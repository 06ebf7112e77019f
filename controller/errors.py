"""The controller's one error hierarchy: a status word, an exit code, what was expected, what was found, what to do.

Each class's docstring is the meaning of its word (protocol.md section 2). Commands raise these; `cli` alone prints
them: the word, the detail object, and one line on standard error.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ControllerError(Exception):
    """A refusal that a host can act on: word, exit code, message, detail, expected, found, remedy."""

    word: ClassVar[str] = "BLOCKED"
    exit_code: ClassVar[int] = 1
    usual_remedy: ClassVar[str] = "resolve what was found, then run the command again"

    def __init__(
        self,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = dict(detail or {})
        self.expected = expected
        self.found = found
        self.remedy = remedy or self.usual_remedy

    def body(self) -> dict[str, Any]:
        """The response's JSON object; keys that are not known are absent."""
        extra = {"expected": self.expected, "found": self.found, "remedy": self.remedy}
        return {**self.detail, **{key: value for key, value in extra.items() if value is not None}}


class Refused(ControllerError):
    """The request is not legal now: bad argument, wrong state, missing proof."""

    word = "REFUSED"
    usual_remedy = "repeat the command with what is expected"


class Blocked(ControllerError):
    """Evidence or repository state contradicts the request; also every failed git command."""

    word = "BLOCKED"


class Ambiguous(ControllerError):
    """More than one (or no exact) candidate: attempts, jobs, runs."""

    word = "AMBIGUOUS"
    usual_remedy = "name exactly one of them"


class NotFound(ControllerError):
    """Discovery found nothing."""

    word = "NOT_FOUND"
    usual_remedy = "check the name and CE_WORK_RUNS_ROOT"


class Interrupted(ControllerError):
    """The call was interrupted by a signal; `resume` continues."""

    word = "INTERRUPTED"
    usual_remedy = "run `resume --run-id` to go on from the journal"


class Unreadable(ControllerError):
    """Ownership, mode, type, size, JSON or schema check of private state failed."""

    word = "UNREADABLE"
    exit_code = 4
    usual_remedy = "see who changed it and put it back as it was"
