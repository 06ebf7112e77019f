"""What an installed CLI says of itself: its version and the flags that its help page lists.

CLIs update themselves and lose flags between two calls (slikk66/dangeresque#112, PolyArch/humanize#237), so both are
asked for before anything is sent, once for each installed binary, and kept under `$XDG_CACHE_HOME/unit-workspace`.
The CLI is asked with an empty home of its own, without terminal, input or credentials, and, where the machine allows
it, without network and without being able to write anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from adapters.errors import Unavailable
from adapters.installation import installation
from runner.errors import Untrusted

VERSION_SECONDS = 5.0
HELP_SECONDS = 10.0
CACHE_SECONDS = 86_400
"""A launcher script stays the same when the program behind it is updated, so that an answer is not kept for ever."""

INCOMPATIBLE = "cli_incompatible"

_MAX_BYTES = 256 * 1024
_MAX_RECORD_BYTES = 64 * 1024
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][A-Za-z0-9-]*")
_MARKER = "CE_PEER_JOB_ID"


class Told(msgspec.Struct, frozen=True):
    """What a CLI said. `version` None: it did not tell; `flags` None: it printed no help page."""

    version: str | None = None
    flags: frozenset[str] | None = None


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """One remembered answer: for which binary and questions, when (epoch seconds), and what was said."""

    v: int = 1
    path: str
    identity: tuple[int, int, int, int]
    questions: tuple[tuple[str, ...] | None, tuple[str, ...] | None]
    at: float
    version: str | None
    flags: tuple[str, ...] | None


class Incompatible(Unavailable):
    """The installed CLI does not know flags that the route needs."""

    detail = INCOMPATIBLE


def probe(
    executable: str,
    version: tuple[str, ...] | None,
    help_page: tuple[str, ...] | None,
    environ: Mapping[str, str],
    path: str,
    *,
    scratch: Path,
    job: str,
    wanted: Iterable[str] = (),
) -> Told:
    """Ask `executable` (an absolute path) with the arguments `version` and `help_page`, or remember its answers.

    `path` becomes its PATH, `scratch` is a private folder to work in, `job` marks its processes. An answer that lacks
    one of the `wanted` flags is never taken from memory: the CLI may have been mended since. Never raises for what the
    CLI does; raises `runner.errors.Interrupted` on a signal.
    """
    if version is None and help_page is None:
        return Told()
    status = os.stat(executable)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    cache = _cache_file(environ, executable)
    record = None if cache is None else _remembered(cache)
    questions = (version, help_page)
    fits = record is not None and (record.path, record.identity, record.questions) == (executable, identity, questions)
    if record is not None and fits and 0 <= time.time() - record.at < CACHE_SECONDS:
        told = Told(record.version, None if record.flags is None else frozenset(record.flags))
        if not missing_flags(told, wanted):
            return told
    told = _ask(executable, version, help_page, path, scratch, job)
    if cache is not None and (told.version is not None or told.flags is not None):
        _remember(
            cache,
            _Record(
                path=executable,
                identity=identity,
                questions=questions,
                at=time.time(),
                version=told.version,
                flags=None if told.flags is None else tuple(sorted(told.flags)),
            ),
        )
    return told


def wanted_flags(harness: str, argv: Iterable[str]) -> tuple[str, ...]:
    """The flags of the command line `argv` that the help page of `harness` is known to list."""
    listed = installation(harness).listed
    return tuple(dict.fromkeys(flag for word in argv if (flag := word.partition("=")[0]) in listed))


def missing_flags(told: Told, wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of `wanted` that the help page lacks; none when there is no page, or it shows none of them at all."""
    flags = told.flags
    if flags is None:
        return ()
    names = tuple(wanted)
    missing = tuple(name for name in names if name not in flags)
    # A page without a single one is some other page: of a wrapper, of an older layout, or an error.
    return missing if len(missing) < len(names) else ()


def require_flags(told: Told, wanted: Iterable[str], executable: str) -> None:
    """Raise `Incompatible` naming the flags of `wanted` that the CLI no longer lists."""
    missing = missing_flags(told, wanted)
    if missing:
        version = f" ({told.version})" if told.version else ""
        raise Incompatible(
            f"fixed route executable '{executable}'{version} does not know our flags: {', '.join(missing)}; "
            "install a version that does"
        )


def first_line(printed: bytes) -> str | None:
    """The first line of what a CLI printed, fit to be shown; None when there is nothing."""
    first = printed.decode("utf-8", "replace").lstrip().split("\n")[0]
    return "".join(char for char in first if char.isprintable()).strip()[:128] or None


def _ask(
    executable: str,
    version: tuple[str, ...] | None,
    help_page: tuple[str, ...] | None,
    path: str,
    scratch: Path,
    job: str,
) -> Told:
    home = scratch / "probe"
    os.makedirs(home, 0o700, exist_ok=True)
    environment = {
        "PATH": path,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def printed(arguments: tuple[str, ...] | None, seconds: float) -> bytes | None:
        if arguments is None:
            return None
        # Some print their help on stderr.
        return _printed((executable, *arguments), environment, home, job, seconds, arguments is help_page)

    try:
        said = printed(version, VERSION_SECONDS)
        page = printed(help_page, HELP_SECONDS)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    flags = None if page is None else frozenset(_FLAG.findall(page.decode("utf-8", "replace")))
    return Told(None if said is None else first_line(said), flags or None)


def _printed(
    argv: tuple[str, ...], environment: dict[str, str], home: Path, job: str, seconds: float, both: bool
) -> bytes | None:
    from runner.foreground import run_supervised

    printed = bytearray()

    def collect(chunk: bytes) -> None:
        printed.extend(chunk[: _MAX_BYTES - len(printed)])

    outcome = run_supervised(
        argv,
        cwd=home,
        env=environment,
        timeout=seconds,
        grace=0.2,
        marker=(_MARKER, job),
        on_stdout=collect,
        on_stderr=None,
        merge_stderr=both,
        before_exec=_isolation(home),
    )
    return bytes(printed) if outcome.exit_code == 0 else None


def _isolation(home: Path) -> Callable[[], None]:
    from adapters import landlock

    rules = landlock.Rules(landlock.supported_abi(), (os.fsencode(home),), network=False)

    def isolate() -> None:
        try:
            landlock.leave_network()
        except OSError:
            # Not for this user; the rules below still keep TCP out on kernels that can.
            pass
        if rules.abi:
            landlock.restrict(rules)

    return isolate


def _cache_file(environ: Mapping[str, str], executable: str) -> Path | None:
    """Where the answer of `executable` is kept; None when there is no place that only this user can write."""
    from runner.private import ensure_private_dir

    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    folder = Path(base, "unit-workspace")
    try:
        os.makedirs(base, 0o700, exist_ok=True)
        ensure_private_dir(folder)
    except (OSError, Untrusted):
        return None
    return folder / f"cli-{hashlib.sha256(os.fsencode(executable)).hexdigest()[:32]}.json"


def _remembered(cache: Path) -> _Record | None:
    from runner.private import read_private

    try:
        return msgspec.convert(json.loads(read_private(cache, _MAX_RECORD_BYTES)), _Record)
    except (OSError, Untrusted, ValueError, RecursionError):
        # Missing, not ours, or damaged: it is only a memory, and the CLI can be asked again.
        return None


def _remember(cache: Path, record: _Record) -> None:
    from runner.private import write_atomic

    text = json.dumps(msgspec.to_builtins(record), ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    try:
        write_atomic(cache, text.encode() + b"\n")
    except OSError:
        # A full or read-only cache costs time at the next call, nothing else.
        pass
