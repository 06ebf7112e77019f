"""`scripts/test` where something is missing: it must name the package to install, not fail in the middle."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("sh", "dirname", "basename", "cat", "sha256sum")

OLD = 'case "$*" in *--version*) echo Python 3.9.2; exit 0 ;; esac\nexit 1\n'
WITHOUT_VENV = 'case "$*" in *ensurepip*) exit 1 ;; esac\nexit 0\n'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout without .venv and a PATH with the base system only; tests put a `python3` into `bin`."""
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    (tmp_path / "scripts").mkdir()
    for name in ("test", "_setup.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def with_python(machine: Path, name: str, body: str) -> None:
    program = machine / "bin" / name
    program.write_text(f"#!/bin/sh\n{body}")
    program.chmod(0o755)


def started(machine: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [machine / "scripts" / "test"],
        env={"PATH": str(machine / "bin")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert not (machine / ".venv").exists()
    return done


def test_no_python_is_named_with_the_packages_to_install(machine: Path) -> None:
    assert "found: no python3 on PATH" in started(machine).stderr
    assert "apt-get install python3 python3-venv" in started(machine).stderr


def test_an_old_python_is_named_with_its_version(machine: Path) -> None:
    with_python(machine, "python3", OLD)
    assert "expected Python 3.11 or newer; found: Python 3.9.2" in started(machine).stderr


def test_a_python_without_venv_is_told_before_a_half_environment_is_made(machine: Path) -> None:
    with_python(machine, "python3", OLD)
    with_python(machine, "python3.12", WITHOUT_VENV)
    assert "apt-get install python3.12-venv" in started(machine).stderr
