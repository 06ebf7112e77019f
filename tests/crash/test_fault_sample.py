"""A seeded sample of faults: the disk full or broken, no descriptor or process left, short writes, signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import plans, syscalls
from tests.crash.test_crash_sample import COMMANDS, drawn, tried

MISSING = syscalls.why_not() or ""
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_fault_becomes_a_word_and_one_resume_mends_it(command: str, tmp_path: Path) -> None:
    """ENOSPC, EIO, EMFILE, EROFS and EAGAIN at one call or from one on; a write that takes half."""
    assert tried(drawn(command), plans.FAULTS, 2, tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_becomes_interrupted_or_comes_too_late(command: str, tmp_path: Path) -> None:
    """SIGTERM as a host's timeout sends it, SIGINT as a person does."""
    assert tried(drawn(command), plans.SIGNALS, 1, tmp_path)
