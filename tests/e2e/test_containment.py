"""A worker that reaches out of its workspace, or leaves something running: neither gets anywhere."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.clis import CLIS, Cli
from tests.e2e.conftest import Note
from tests.e2e.model_server import Run, Say
from tests.e2e.stage import Ended, Stage, staged
from tests.e2e.table import BACKGROUND, OUTSIDE
from tests.e2e.test_whole_unit import ANSWER, WRITES

pytestmark = pytest.mark.e2e

EVERY_CLI = pytest.mark.parametrize("cli", CLIS.values(), ids=CLIS)


def assert_lands_alone(stage: Stage, ended: Ended, before: dict[str, object]) -> None:
    """The unit's own file is all that becomes a commit; the checkout is as it was until then."""
    assert ended.word == "done", ended
    assert stage.fingerprint() == before
    assert stage.step("terminalize").expect("INTEGRATION_PENDING").body["transport"]["changed_paths"] == ["new.txt"]


@EVERY_CLI
def test_a_write_outside_the_workspace_neither_happens_nor_lands(cli: Cli, tmp_path: Path, note: Note) -> None:
    def script(stage: Stage) -> list[Run | Say]:
        targets = [stage.repo / "f", stage.repo / ".git" / "config", stage.outside / "planted", stage.home / "planted"]
        tries = "; ".join(f"echo evil >> '{target}'" for target in targets)
        linked = f"ln '{stage.repo}/f' linked && echo evil >> linked"
        return [Run(f"({tries}; {linked}) 2>&1; {WRITES}; echo tried-$((20 + 2))"), Say(json.dumps(ANSWER))]

    note.begin(OUTSIDE)
    with staged(tmp_path, cli, script) as stage:
        before, config = stage.fingerprint(), (stage.repo / ".git" / "config").read_bytes()
        ended = stage.dispatch()
        assert "tried-22" in ended.log
        assert list(stage.outside.iterdir()) == []
        assert not (stage.home / "planted").exists()
        assert (stage.repo / ".git" / "config").read_bytes() == config
        assert_lands_alone(stage, ended, before)
        note.end(f"refused ({ended.receipt['confinement']})")


@EVERY_CLI
def test_a_background_process_is_ended_with_the_call_and_changes_nothing_later(
    cli: Cli, tmp_path: Path, note: Note
) -> None:
    naps = f"600.{time.monotonic_ns()}"
    later = f"sleep 8; echo late >> new.txt; echo late > later.txt; exec sleep {naps}"
    leaves = f"{WRITES}; setsid nohup sh -c '{later}' >/dev/null 2>&1 </dev/null & sleep 0.5; {WRITES}"
    note.begin(BACKGROUND)
    with staged(tmp_path, cli, lambda stage: [Run(leaves), Say(json.dumps(ANSWER))]) as stage:
        before = stage.fingerprint()
        ended = stage.dispatch()
        # Not by its environment: a sandbox of the CLI's own may have changed that.
        assert not running_with(naps)
        assert_lands_alone(stage, ended, before)
        content = stage.git("show", f"{stage.unit()['transport']['commit']}:new.txt")
        assert content == "written"
        by = "the adapter" if ended.receipt["survivors"] else "the CLI"
        note.end(f"ended by {by}")


def running_with(word: str) -> bool:
    """Whether any process has `word` in its command line."""
    return any(word.encode() in line for line in _command_lines())


def _command_lines() -> list[bytes]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            # It has ended since the listing.
            continue
    return lines
