"""The fixtures of the hazard tests, and a trap that no call of the controller may fall into."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hazards.conftest import bare_host, host
from tests.hazards.support import Trap
from tests.host import Host

__all__ = ["bare_host", "host", "trap"]


@pytest.fixture(autouse=True)
def no_abyss(tmp_path: Path) -> Iterator[None]:
    """Folders too deep for Python's own removal would break the clean-up of every later pytest of this user."""
    yield
    for folder in tmp_path.glob("runs/*/units/*/*/d"):
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def trap(host: Host) -> Trap:
    """A program of the worker's choosing: whoever runs it leaves a trace."""
    return Trap(host.base / "trap")
