"""A seeded sample of the crash laboratory (`scripts/crash-sweep` runs all of it): each command, killed somewhere.

`CRASH_SEED=<n>` draws another sample. A failing point is repeated by `scripts/crash-sweep --command <scenario> --plan
<point>`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash import plans, syscalls
from tests.crash.points import Result
from tests.crash.pool import run
from tests.crash.scenarios import SCENARIOS
from tests.crash.worker import Done, Task

SEED = int(os.environ.get("CRASH_SEED", "0"))
COMMANDS = sorted({scenario.command for scenario in SCENARIOS.values()})


def _missing() -> str:
    return syscalls.why_not() or ""


def drawn(command: str) -> str:
    """One scenario of a command."""
    names = sorted(scenario.name for scenario in SCENARIOS.values() if scenario.command == command)
    return random.Random(f"{SEED} {command}").choice(names)


def tried(scenario: str, series: tuple[str, ...], sample: int, base: Path) -> list[Result]:
    """Try a sample of points in a process of its own; every failure in words."""
    results: list[Result] = []
    ends: list[Done] = []
    run([Task(scenario, series, sample, SEED)], 1, base, results.append, ends.append)
    assert [end.error for end in ends] == [""], f"the undisturbed story of {scenario} fails: {ends}"
    failed = [f"{r.plan} [{r.struck}] {r.answer}: {'; '.join(r.problems)}" for r in results if r.problems]
    assert not failed, f"CRASH_SEED={SEED} {scenario}:\n" + "\n".join(failed)
    return results


@pytest.mark.skipif(bool(_missing()), reason=_missing())
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_lost_or_done_twice_when_a_command_is_killed(command: str, tmp_path: Path) -> None:
    """SIGKILL before one of its effects, to it alone, to all that it started, or to the child at work."""
    assert len(tried(drawn(command), plans.KILLS, 3, tmp_path)) == 3
