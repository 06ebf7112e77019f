"""Hosts at once on one run (`test_races_between_runs` has the others).

One wins; every other gets a word that says why, at once or in turn. Which answers are right is what the model says of
the same commands in some order: whoever raced, it must look as if one had come after the other.

In the default tests every pair of commands of every situation races once (five at a time). For more rounds:

    RACE_ROUNDS=20 .venv/bin/pytest -m sweep tests/controller/test_races.py -s
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.controller.model_units import Command, Model
from tests.controller.model_ways import (
    applied,
    claimed,
    committed,
    finished,
    locked,
    preserved,
    three_units,
    verified,
)
from tests.controller.model_world import RUN, World
from tests.host import Reply
from tests.lane import Lane

AT_ONCE = 5


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Lane]]:
    """As many commands at once."""
    made = [Lane(tmp_path_factory.mktemp(f"lane-{number}")) for number in range(AT_ONCE)]
    yield made
    for lane in made:
        lane.close()


SITUATIONS: dict[str, tuple[Callable[[World], None], tuple[Command, ...]]] = {
    "three units": (
        three_units,
        (
            Command("integrate", "U1"),
            Command("integrate", "U1", check="false"),
            Command("integration-acquire", "U1"),
            Command("cleanup --abandon", "U1"),
            Command("terminalize", "U2"),
            Command("cleanup --abandon", "U2"),
            Command("claim-fallback", "U3"),
            Command("cleanup --abandon", "U3"),
            Command("reap", "U3"),
            Command("sync-job", "U2"),
            Command("verify-run"),
            Command("resume"),
        ),
    ),
    "locked": (
        locked,
        (
            Command("preflight", "U1"),
            Command("integration-release", "U1"),
            Command("integrate", "U1"),
            Command("integration-acquire", "U1", resume=True),
            Command("resume"),
        ),
    ),
    "applied": (
        applied,
        (
            Command("mark-verified", "U1"),
            Command("mark-applied", "U1"),
            Command("restore", "U1"),
            Command("integrate", "U1"),
            Command("resume"),
        ),
    ),
    "verified": (
        verified,
        (
            Command("mark-committed", "U1"),
            Command("restore", "U1"),
            Command("integration-release", "U1"),
            Command("resume"),
        ),
    ),
    "committed": (
        committed,
        (
            Command("cleanup", "U1"),
            Command("integration-release", "U1"),
            Command("mark-committed", "U1"),
            Command("prepare", "U2"),
            Command("resume"),
        ),
    ),
    "preserved": (
        preserved,
        (
            Command("integrate", "U1"),
            Command("integration-acquire", "U1"),
            Command("claim-fallback", "U1"),
            Command("cleanup --abandon", "U1"),
            Command("resume"),
        ),
    ),
    "claimed": (
        claimed,
        (
            Command("complete-fallback", "U1"),
            Command("cleanup --abandon", "U1"),
            Command("terminalize", "U1"),
            Command("claim-fallback", "U1"),
            Command("resume"),
        ),
    ),
    "finished": (
        finished,
        (
            Command("verify-run"),
            Command("verify-run", check="false"),
            Command("integration-acquire", "U1"),
            Command("prepare", "U2"),
            Command("cleanup", "U1"),
        ),
    ),
}


def groups(count: int) -> list[tuple[int, ...]]:
    """Groups of five of `count` commands so that each two of them, and each with itself, meet in one."""
    open_pairs = set(itertools.combinations_with_replacement(range(count), 2))
    found = []
    while open_pairs:
        group = list(min(open_pairs))
        while len(group) < AT_ONCE:
            gain = [len({(min(a, b), max(a, b)) for a in group} & open_pairs) for b in range(count)]
            group.append(max(range(count), key=lambda b: (gain[b], -group.count(b))))
        open_pairs -= {(min(a, b), max(a, b)) for a, b in itertools.combinations(group, 2)}
        found.append(tuple(group))
    return found


ROUNDS = [
    pytest.param(name, group, id=f"{name}-{'-'.join(map(str, group))}")
    for name, (_, commands) in SITUATIONS.items()
    for group in groups(len(commands))
]


def race(world: World, lanes: Sequence[Lane], commands: Sequence[Command]) -> list[Reply]:
    """All at once; their answers."""
    lines = [
        world._authorization(command.unit) if command.name == "authorize-dispatch" else world.argv(command)
        for command in commands
    ]
    running = [lane.start(world, *argv) for lane, argv in zip(lanes, lines, strict=False)]
    replies = [one.reply() for one in running]
    for command, reply in zip(commands, replies, strict=True):
        world.tell(command, reply)
        world._form(reply)
    return replies


def _serial(model: Model, racers: Sequence[tuple[Command, Reply]]) -> Iterator[Model]:
    """The model after each order of the commands that explains the answers."""
    if not racers:
        yield model
    for place, (command, reply) in enumerate(racers):
        rest = [*racers[:place], *racers[place + 1 :]]
        after = copy.deepcopy(model)
        if reply.body.get("reason") != "busy" and (after.apply(copy.copy(command)) is None) != (reply.code == 0):
            continue
        if after.committed:
            after.facts.chain.append(reply.body["canonical_commit"]["commit"])
            after.units[command.unit].canonical = after.facts.head
        yield from _serial(after, rest)


def check_round(base: Path, lanes: Sequence[Lane], name: str, group: Sequence[int]) -> None:
    """One round: what the racers answered can be explained by some order, and the run is well."""
    world = World(base, lanes[0])
    prepare, commands = SITUATIONS[name]
    prepare(world)
    chosen = [copy.copy(commands[place]) for place in group]
    replies = race(world, lanes, chosen)
    with world.explained():
        possible = list(itertools.islice(_serial(world.model, list(zip(chosen, replies, strict=True))), 500))
        assert possible, f"no order of {[str(c) for c in chosen]} explains {replies}"
        assert any(_agrees(world, model) for model in possible), "the run is in no state that an order leads to"
        for unit in world.model.units.values():
            unit.picked = False
        world.check()
        world.call("journal", "verify", "--run-id", RUN).expect("JOURNAL_OK")
        assert world.git("status", "--porcelain", "-uall") == "" or world.model.lock is not None


def _agrees(world: World, model: Model) -> bool:
    world.model = model
    try:
        world._compare()
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(("name", "group"), ROUNDS)
def test_two_hosts_on_one_run_get_answers_as_if_one_had_come_after_the_other(
    tmp_path: Path, lanes: list[Lane], name: str, group: tuple[int, ...]
) -> None:
    """No half state, no second commit, no traceback, whoever was first."""
    check_round(tmp_path, lanes, name, group)


@pytest.mark.sweep
def test_many_rounds(tmp_path: Path, lanes: list[Lane], request: pytest.FixtureRequest) -> None:
    """As above, again and again."""
    if "sweep" not in request.config.option.markexpr:
        pytest.skip("a sweep: pytest -m sweep")
    count = 0
    for _ in range(int(os.environ.get("RACE_ROUNDS", "5"))):
        for name, (_, commands) in SITUATIONS.items():
            for group in groups(len(commands)):
                base = tmp_path / str(count)
                base.mkdir()
                check_round(base, lanes, name, group)
                shutil.rmtree(base)
                count += 1
    print(f"{count} races of {AT_ONCE} commands")
