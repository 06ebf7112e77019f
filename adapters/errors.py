"""What ends a call early. Each error is one line on stderr and an exit code; none is ever a traceback."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 143


class AdapterError(Exception):
    """Refused before any model CLI ran, or evidence could not be published: exit 2, no result file."""

    exit_code = EXIT_REFUSED


class UsageError(AdapterError):
    """The command line is not one that this program understands."""


class ConfigError(AdapterError):
    """The user's configuration file cannot be trusted or understood."""


class Unavailable(Exception):
    """The sanctioned route cannot be started here; a result file with this reason is published, exit 2."""

    detail: str | None = None
    """A word that refines the failure class `other` in the receipt."""
