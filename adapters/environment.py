"""The adapter's own settings, and the environment that a CLI is given: an allow-list, never what is around.

A CLI that inherits everything also inherits other tools' API keys and may quietly use them (launcher section
15 W28). Source: protocol sections 3 and 13.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

import msgspec

from adapters.errors import Unavailable

COMMON_NAMES = ("HOME", "USER", "TMPDIR", "LANG", "LC_ALL", "XDG_CONFIG_HOME")
DEFAULT_PATH = "/usr/bin:/bin"


class Settings(msgspec.Struct, frozen=True):
    """Limits in bytes and seconds; a value that is no positive number gives the default."""

    max_packet_bytes: int
    max_raw_bytes: int
    activity_seconds: float
    exit_grace_seconds: float
    require_enforced_confinement: bool

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read the `CE_WORK_…` variables of section 3.

        `CE_WORK_EXIT_GRACE_SECS` (10) is how long a CLI may live on after its final event before it is ended.
        """
        return cls(
            max_packet_bytes=_positive(environ, "CE_WORK_MAX_PACKET_BYTES", 200_000),
            max_raw_bytes=_positive(environ, "CE_WORK_MAX_RAW_BYTES", 10 * 1024 * 1024),
            activity_seconds=max(1, _positive(environ, "CE_WORK_ACTIVITY_POLL_SECS", 15)),
            exit_grace_seconds=_positive(environ, "CE_WORK_EXIT_GRACE_SECS", 10),
            require_enforced_confinement=environ.get("CE_WORK_REQUIRE_ENFORCED_CONFINEMENT") == "1",
        )


def child_environment(environ: Mapping[str, str], names: Iterable[str], path: str) -> dict[str, str]:
    """PATH, `PYTHONDONTWRITEBYTECODE=1`, and of `COMMON_NAMES` and `names` those that are set."""
    child = {name: environ[name] for name in (*COMMON_NAMES, *names) if name in environ}
    return {**child, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def search_path(environ: Mapping[str, str]) -> str:
    """The caller's PATH without relative entries.

    The CLI runs inside the worker's tree: an empty or relative entry would let that tree supply its programs.
    """
    entries = environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if os.path.isabs(entry)) or DEFAULT_PATH


def find_executable(name: str, path: str) -> str | None:
    """The absolute path of the executable file `name` on `path`; an absolute `name` is only checked."""
    candidates = [name] if os.path.isabs(name) else [os.path.join(d, name) for d in path.split(os.pathsep)]
    return next((candidate for candidate in candidates if _is_executable_file(candidate)), None)


def locate(name: str, extra_path: Iterable[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """The absolute path of the CLI `name`, and the PATH for it on which it was found.

    The directories of `extra_path` count when the caller's PATH has none. Raises `Unavailable`.
    """
    path = search_path(environ)
    found = find_executable(name, path)
    extra = tuple(extra_path)
    if found is None and extra:
        path = os.pathsep.join([path, *extra])
        found = find_executable(name, path)
    if found is None:
        raise Unavailable(f"fixed route executable '{name}' is unavailable")
    return found, path


def _is_executable_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
    return number or default
