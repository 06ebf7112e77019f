"""A runs root that cannot be written, and file systems that are full: each step says so, and goes on afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.mounts import tell

STORIES = ["read-only", "small:runs:0", "small:runs:8192", "small:runs:40960", "small:repo:0", "small:repo:12288"]


@pytest.mark.parametrize("story", STORIES)
def test_a_full_or_read_only_disk_loses_nothing(story: str, tmp_path: Path) -> None:
    """A word instead of a traceback; the user's checkout as it was; after room is made, one `resume` and the same step."""
    answer = tell(story, tmp_path)
    if isinstance(answer, str):
        pytest.skip(answer)
    assert answer == []
