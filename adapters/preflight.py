"""`cross-model-work preflight`: whether a route could take a unit here, found out without sending anything.

    cross-model-work preflight --route ROUTE [--model MODEL] [--restriction TEXT ...]

One JSON object on stdout. Exit 0: the route is available. 2: it is not, and `reason` says why; or the command line
is wrong. The CLI is only asked for its version and its help page, with an empty home and without network where the
machine can (`adapters.probe`). Sources: `spec/agents.md`, seed 004 ("Resolve one requested route").
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from adapters import confine
from adapters.config import home_folder
from adapters.environment import DEFAULT_PATH, Settings, child_environment, locate, search_path
from adapters.errors import EXIT_DONE, EXIT_REFUSED, AdapterError, Unavailable
from adapters.installation import installation, located
from adapters.probe import Told, missing_flags, probe, require_flags, wanted_flags
from adapters.refusal import unknown
from adapters.route_table import ROUTES, Route, model_allowed
from adapters.routes import Adapter, Call, Context, load

_SHAPE = Call(workspace="/workspace", prompt="/prompt", raw_result="/raw-result")


class Flags(msgspec.Struct, frozen=True):
    """Whether the CLI knows the flags that we pass; `unknown` when its help page does not tell."""

    status: Literal["ok", "missing", "unknown"]
    missing: tuple[str, ...] = ()


class Login(msgspec.Struct, frozen=True):
    """`yes` when the CLI's credential file exists. Its absence proves nothing: there are keyrings and keys."""

    state: Literal["yes", "unknown"]
    evidence: str | None = None


class Restrictions(msgspec.Struct, frozen=True, kw_only=True):
    """What would hold the worker: `confinement` as in a receipt, `enforced` when the kernel does it.

    `git_file`: whether the workspace's `.git` would be read-only (null: that is up to the CLI's own sandbox).
    """

    confinement: confine.Kind
    enforced: bool
    abi: int | None
    git_file: Literal["read-only", "writable"] | None
    note: str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one route. Fields are null when the search ended before them."""

    route: str
    target: str
    harness: str
    intermediaries: tuple[str, ...]
    model_requested: str
    restriction_posture: str
    available: bool = False
    reason: str | None = None
    detail: str | None = None
    installed: bool | None = None
    executable: str | None = None
    version: str | None = None
    flags: Flags | None = None
    authenticated: Login | None = None
    restrictions: Restrictions | None = None


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """The command line; the exit code."""
    import argparse

    parser = argparse.ArgumentParser(prog="cross-model-work preflight", allow_abbrev=False)
    parser.add_argument("--route", required=True)
    parser.add_argument("--model")
    parser.add_argument("--restriction", action="append", default=[], dest="restrictions", metavar="TEXT")
    options = parser.parse_args(arguments)
    if options.route not in ROUTES:
        raise unknown("route", options.route, ROUTES)
    report = examine(ROUTES[options.route], options.model, environ, options.restrictions)
    print_json(msgspec.to_builtins(report))
    return EXIT_DONE if report.available else EXIT_REFUSED


def print_json(document: object) -> None:
    """One JSON object on stdout, as one line."""
    text = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def examine(route: Route, model: str | None, environ: Mapping[str, str], restrictions: Sequence[str] = ()) -> Report:
    """Find out about `route` as far as it goes; the report says where it ended and why. Sends nothing."""
    report = Report(
        route=route.name,
        target=route.target,
        harness=route.harness,
        intermediaries=route.intermediaries,
        model_requested=model or route.default_model,
        restriction_posture=route.restriction_posture,
    )
    try:
        for facts in _found_out(route, report.model_requested, environ, restrictions):
            report = msgspec.structs.replace(report, **facts)
    except Unavailable as error:
        return msgspec.structs.replace(report, reason=str(error), detail=error.detail)
    return msgspec.structs.replace(report, available=True)


def _found_out(
    route: Route, model: str, environ: Mapping[str, str], restrictions: Sequence[str]
) -> Iterator[dict[str, object]]:
    """One fact after the other; `Unavailable` ends it."""
    if not model_allowed(route.name, model):
        raise Unavailable(f"model {model!r} is not compatible with route {route.name!r}")
    adapter = load(route.name, Context(model, environ))
    assessed = confine.assess(adapter, environ, search_path(environ))
    yield {"restrictions": _restrictions(assessed.posture)}
    try:
        executable, path = locate(adapter.executable, adapter.extra_path, environ)
    except Unavailable:
        yield {"installed": False}
        raise
    told, wanted = _told(route, adapter, executable, path, environ)
    yield {
        "installed": True,
        "executable": executable,
        "version": told.version,
        "flags": _flags(told, wanted),
        "authenticated": _login(route, adapter, environ),
    }
    settings = Settings.from_environment(environ)
    demand = confine.demanded(settings.require_enforced_confinement, assessed.mode, restrictions)
    confine.check(route, assessed.posture, demand)
    require_flags(told, wanted, adapter.executable)


def _told(
    route: Route, adapter: Adapter, executable: str, path: str, environ: Mapping[str, str]
) -> tuple[Told, tuple[str, ...]]:
    wanted = wanted_flags(route.harness, adapter.argv(_SHAPE))
    with _scratch(environ) as scratch:
        job = f"preflight-{os.urandom(8).hex()}"
        told = probe(executable, adapter.version, adapter.help, environ, path, scratch=scratch, job=job, wanted=wanted)
    return told, wanted


def _flags(told: Told, wanted: Sequence[str]) -> Flags:
    missing = missing_flags(told, wanted)
    if missing:
        return Flags("missing", missing)
    known = told.flags is not None and any(flag in told.flags for flag in wanted)
    return Flags("ok" if known else "unknown")


def _login(route: Route, adapter: Adapter, environ: Mapping[str, str]) -> Login:
    own = child_environment(environ, adapter.environment, DEFAULT_PATH)
    files = located(installation(route.harness).credentials, own, home_folder(environ))
    found = next((path for path in files if _holds_something(path)), None)
    return Login("unknown") if found is None else Login("yes", found)


def _holds_something(path: str) -> bool:
    try:
        return os.path.isfile(path) and os.stat(path).st_size > 0
    except OSError:
        return False


def _restrictions(posture: confine.Posture) -> Restrictions:
    git_file: Literal["read-only", "writable"] | None = None
    if posture.kind == "landlock":
        from adapters import landlock

        git_file = "read-only" if landlock.can_shield((b"/usr",)) else "writable"
    elif posture.kind != "cli-sandbox":
        git_file = "read-only" if posture.kind == "bubblewrap" else "writable"
    return Restrictions(
        confinement=posture.kind,
        enforced=posture.enforced,
        abi=posture.abi,
        git_file=git_file,
        note=posture.note,
    )


@contextmanager
def _scratch(environ: Mapping[str, str]) -> Iterator[Path]:
    base = environ.get("TMPDIR", "")
    folder = Path(base if os.path.isabs(base) else "/tmp", f"ce-work-preflight-{os.urandom(6).hex()}")
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise AdapterError(f"cannot create a private scratch directory {folder}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
