from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.support import Cli, end_marked


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark for the environment of all that a test starts; nothing that carries it outlives the test."""
    value = uuid.uuid4().hex
    yield value
    assert end_marked(value) == [], "a process outlived its test"


@pytest.fixture
def cli(tmp_path: Path, mark: str) -> Cli:
    return Cli(tmp_path / "jobs-root", mark)
