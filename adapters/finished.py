"""What one run of a CLI left behind, as its reader saw it."""

from __future__ import annotations

import msgspec

from adapters.events import Observed
from runner.foreground import Outcome

OVER_CAP = "output over cap"
HUNG = "still running after its final event"
"""Reasons for which a run is ended by the adapter itself (`Outcome.stopped`)."""


class Finished(msgspec.Struct, frozen=True):
    """A run that was not interrupted.

    `stdout` is kept only where the answer is looked for in it; where the events tell what the worker said
    (`words`), it holds the lines that are no events. `text_lines` are the latest lines of both streams that are no
    events. `over_cap`: more output came than is allowed.
    """

    outcome: Outcome
    seen: Observed
    stdout: bytes
    raw_result: bytes
    text_lines: tuple[str, ...]
    over_cap: bool
    words: str = ""

    @property
    def exit_code(self) -> int:
        """The CLI's exit code as a shell would report it."""
        if self.outcome.exit_code is not None:
            return self.outcome.exit_code
        # Neither: the kernel took the process away from us, as in uninterruptible sleep.
        return 128 + (self.outcome.signal or 0)


class Measured(msgspec.Struct, frozen=True):
    """What goes into every receipt as far as it is known: measured or null.

    `model_label` is the display name that the CLI lists for the requested model, `resume` what its command line
    has before a session id.
    """

    seen: Observed = Observed()
    model_label: str | None = None
    resume: tuple[str, ...] = ()
    confinement: str | None = None
    confinement_abi: int | None = None
    confinement_note: str | None = None
    cli_version: str | None = None
    survivors: int | None = None
