"""Fixtures of the controller's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lane import Lane


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lane]:
    """One command at a time."""
    made = Lane(tmp_path_factory.mktemp("lane"))
    yield made
    made.close()
