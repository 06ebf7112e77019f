from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.support import Room, end_leftovers, scratch_folders


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """A prepared attempt; whatever a test does to it, no process and no scratch folder may be left."""
    room = Room(tmp_path)
    yield room
    assert end_leftovers(room) == [], "a process outlived its call"
    assert scratch_folders(room) == [], "a scratch folder with the prompt was left"
