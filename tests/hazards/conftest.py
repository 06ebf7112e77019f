"""The host of the hazard tests: nothing that it starts may outlive its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hazards.support import Agents, watched
from tests.host import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with a one-commit repository and no run yet."""
    made = Host(tmp_path)
    made.make_repo()
    with watched(made, str(tmp_path)):
        yield made


@pytest.fixture
def bare_host(tmp_path: Path) -> Iterator[Host]:
    """A host without a repository: the test makes its own."""
    with watched(Host(tmp_path), str(tmp_path)) as made:
        yield made


@pytest.fixture
def agents(host: Host) -> Agents:
    """A run whose author is a real job."""
    return Agents(host)
