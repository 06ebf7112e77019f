"""A seeded sample of the crash laboratory (`scripts/crash-sweep` runs all of it): each command, killed or hindered.

`CRASH_SEED=<n>` draws another sample. A failing point is repeated by `scripts/crash-sweep --command <scenario> --plan
<point>`.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from tests.crash import plans, syscalls
from tests.crash.catalogue import SCENARIOS
from tests.crash.points import Result
from tests.crash.pool import run
from tests.crash.worker import Done, Task

SEED = int(os.environ.get("CRASH_SEED", "0"))
COMMANDS = sorted({scenario.command for scenario in SCENARIOS.values()})
MISSING = syscalls.why_not() or ""
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def drawn(command: str) -> str:
    """One scenario of a command."""
    names = sorted(scenario.name for scenario in SCENARIOS.values() if scenario.command == command)
    return random.Random(f"{SEED} {command}").choice(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_lost_or_done_twice_whatever_happens_to_a_command(command: str) -> None:
    """Two kills (of it alone, of all that it started, of the child at work), one fault or signal, somewhere in it.

    Then one `resume`, a second that changes nothing, and the run is finished with public commands.
    """
    scenario = drawn(command)
    results: list[Result] = []
    ends: list[Done] = []
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="crash-") as base:
        samples = ((plans.KILLS, 2), ((*plans.SIGNALS, *plans.FAULTS), 1))
        run([Task(scenario, samples=samples, seed=SEED)], 1, Path(base), results.append, ends.append)
    assert [end.error for end in ends] == [""], f"the undisturbed story of {scenario} fails: {ends}"
    failed = [f"{r.plan} [{r.struck}] {r.answer}: {'; '.join(r.problems)}" for r in results if r.problems]
    assert not failed, f"CRASH_SEED={SEED} {scenario}:\n" + "\n".join(failed)
    assert len(results) == 3
