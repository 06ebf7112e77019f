"""A power cut takes what was not synced: the journal opens on every remainder, and nothing was done before its record.

The cuts themselves, each followed by `journal verify`, two `resume` and the end of the run, are points of the sweep
(`scripts/crash-sweep --kind cuts`); a sample of them runs here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from controller import journal
from tests.crash import plans, syscalls
from tests.crash.points import Result
from tests.crash.pool import run
from tests.crash.power import remains
from tests.crash.recording import record
from tests.crash.worker import Done, Task

MISSING = syscalls.why_not() or ""
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An `integrate`, recorded: journal bytes, moments, effects on the repository that came too early."""
    return record("integrate-success", tmp_path_factory.mktemp("power"))


def test_nothing_is_done_to_the_repository_before_its_intent_is_on_the_disk(story: dict[str, Any]) -> None:
    assert len(story["moments"]) > 20, "the recorder saw writes and syncs"
    assert story["early"] == []


def test_no_remainder_of_the_journal_is_misread(story: dict[str, Any], tmp_path: Path) -> None:
    """Read are exactly the records that are whole; all else is a torn tail, also a tail of zeros (codex#24425)."""
    path = tmp_path / "journal.jsonl"
    path.touch(mode=0o600)
    count = 0
    for content in remains(bytes.fromhex(story["journal"]), story["moments"], 97):
        path.write_bytes(content)
        found = journal.read(path)
        lines = content.split(b"\n")
        assert (len(found.records), found.torn) == (len(lines) - 1, lines[-1])
        count += 1
    assert count > 100


def test_one_resume_mends_a_run_after_a_power_cut() -> None:
    results: list[Result] = []
    ends: list[Done] = []
    with tempfile.TemporaryDirectory(prefix="crash-") as base:
        run([Task("integrate-failing", samples=((plans.CUTS, 4),))], 1, Path(base), results.append, ends.append)
    assert [end.error for end in ends] == [""]
    assert [(r.plan, r.struck, r.problems) for r in results if r.problems] == []
    assert len(results) == 4
