"""Where the real CLIs cannot be had, that is said by name and is no failure. Needs neither npm nor network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.clis import CLIS
from tests.e2e.install import NOTHING_THERE
from tests.host import ROOT


def install(*routes: str, path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """`python -m tests.e2e.install`, with `path` as the whole PATH."""
    return subprocess.run(
        [sys.executable, "-m", "tests.e2e.install", *routes],
        cwd=ROOT,
        env={"PATH": str(path), "PYTHONPATH": str(ROOT), "TMPDIR": "/tmp", "XDG_CACHE_HOME": str(cache)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with node, and with an npm that no registry answers."""
    for name, body in (("node", "exit 0"), ("npm", "echo 'npm error code ECONNREFUSED' >&2; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_without_npm_each_cli_is_skipped_by_name(tmp_path: Path) -> None:
    done = install(path=tmp_path, cache=Path("/nonexistent"))
    assert done.returncode == NOTHING_THERE
    assert [line.split(": needs npm")[0] for line in done.stderr.splitlines()] == [
        f"skipped: {cli.spec}" for cli in CLIS.values()
    ]


def test_an_unreachable_registry_is_told_and_leaves_nothing_half_installed(machine: Path) -> None:
    cache = Path("/var/tmp", f"unit-workspace-e2e-test-{os.getpid()}")
    try:
        done = install("codex", path=machine, cache=cache)
        assert done.returncode == NOTHING_THERE
        assert "skipped: @openai/codex@" in done.stderr and "ECONNREFUSED" in done.stderr
        (folder,) = cache.iterdir()
        assert list(folder.iterdir()) == []
        folder.rmdir()
    finally:
        if cache.exists():
            cache.rmdir()


def test_a_cache_in_a_temporary_folder_is_refused_with_the_remedy(machine: Path) -> None:
    done = install("codex", path=machine, cache=Path("/tmp/never-made"))
    assert done.returncode == NOTHING_THERE
    assert "set XDG_CACHE_HOME" in done.stderr
    assert not Path("/tmp/never-made").exists()


def test_an_unknown_route_is_a_usage_error(machine: Path) -> None:
    done = install("nix", path=machine, cache=Path("/nonexistent"))
    assert done.returncode == 2
    assert "codex, claude, opencode" in done.stderr
