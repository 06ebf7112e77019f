"""Fixtures that every test folder shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with a one-commit repository and no run yet."""
    made = Host(tmp_path)
    made.make_repo()
    return made


@pytest.fixture
def run(host: Host) -> Host:
    """A host with run `r1`."""
    host.init().expect("READY")
    return host
