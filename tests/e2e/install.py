"""Installs the pinned agent CLIs with npm: `python -m tests.e2e.install [route ...]`; says by name what it cannot.

Exit 0: at least one of them is there. Exit 3: none is, with the reason on stderr; then there is nothing to test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.clis import CLIS, Cli, cache_folder, missing, unsuitable

NOTHING_THERE = 3
NPM_SECONDS = 200.0
_PLAIN = {"PATH": os.environ.get("PATH", os.defpath)}


class Impossible(Exception):
    """A CLI cannot be installed; the message says why."""


def main(routes: list[str]) -> int:
    """Install what is missing of `routes` (all by default)."""
    unknown = [route for route in routes if route not in CLIS]
    if unknown:
        print(f"unknown route {unknown[0]!r}; known: {', '.join(CLIS)}", file=sys.stderr)
        return 2
    there = 0
    for cli in (CLIS[route] for route in routes or CLIS):
        try:
            _install(cli)
            there += 1
        except Impossible as error:
            print(f"skipped: {cli.spec}: {error}", file=sys.stderr, flush=True)
    return 0 if there else NOTHING_THERE


def _install(cli: Cli) -> None:
    """Into a folder of its own, which gets its name only when it is complete: a run that was killed leaves no half."""
    if missing(cli) is None:
        return
    cache = cache_folder()
    reason = unsuitable(cache)
    if reason is not None:
        raise Impossible(reason)
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise Impossible(f"needs npm and node; on PATH is no {'npm' if npm is None else 'node'}")
    cache.mkdir(parents=True, exist_ok=True)
    print(f"npm install {cli.spec}", flush=True)
    with tempfile.TemporaryDirectory(prefix=".install-", dir=cache) as temporary:
        made = Path(temporary, "made")
        _call(
            [npm, "install", "--no-fund", "--no-audit", "--loglevel", "error", "--ignore-scripts", "--no-save"],
            ["--fetch-retries", "1", "--fetch-timeout", "20000", "--cache", str(Path(temporary, "cache"))],
            ["--prefix", str(made), cli.spec],
        )
        if cli.after is not None:
            # It starts the CLI, which makes its folders at home.
            _call([node, cli.after], cwd=made / "node_modules" / cli.package, env={**_PLAIN, "HOME": temporary})
        if not cli.program(cache).parent.exists():
            shutil.rmtree(cli.folder(cache), ignore_errors=True)
            os.rename(made, cli.folder(cache))
    reason = missing(cli)
    if reason is not None:
        raise Impossible(reason)


def _call(*parts: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    argv = [word for part in parts for word in part]
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=NPM_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Impossible(
            f"{Path(argv[0]).name} took longer than {NPM_SECONDS:.0f} s (is the registry reachable?)"
        ) from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())[:400]
        raise Impossible(f"{Path(argv[0]).name} failed with exit {done.returncode}: {said}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
