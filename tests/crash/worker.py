"""A process that tries points: tasks in as JSON lines, results out as JSON lines. Everything it starts is below it."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import msgspec

from tests.crash import plans
from tests.crash.points import Bench, Result
from tests.crash.watch import Keeper, preload


class Task(msgspec.Struct, frozen=True):
    """One scenario: every point of each of `series`; or of `samples`, so many points of so many series, drawn with
    `seed`; or the points `only`."""

    scenario: str
    series: tuple[str, ...] = ()
    samples: tuple[tuple[tuple[str, ...], int], ...] = ()
    seed: int = 0
    only: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """The end of a task; `error` when the scenario's own undisturbed story failed."""

    scenario: str
    effects: int
    error: str = ""


def serve(base: Path) -> None:
    """Do tasks until standard input ends."""
    preload()
    keeper = Keeper()
    try:
        _serve(base, keeper)
    finally:
        keeper.kill_everything()


def _serve(base: Path, keeper: Keeper) -> None:
    out = sys.stdout.buffer
    for number, line in enumerate(sys.stdin.buffer):
        task = msgspec.json.decode(line, type=Task)
        room = base / str(number)
        try:
            bench = Bench(task.scenario, room, keeper)
            for result in _points(bench, task):
                out.write(msgspec.json.encode({"result": result}) + b"\n")
                out.flush()
            done = Done(task.scenario, bench.effects)
        except (AssertionError, OSError) as fault:
            done = Done(task.scenario, 0, f"{type(fault).__name__}: {fault}"[:4000])
        keeper.kill_everything()
        shutil.rmtree(room, ignore_errors=True)
        out.write(msgspec.json.encode({"done": done}) + b"\n")
        out.flush()


def _points(bench: Bench, task: Task) -> Iterator[Result]:
    for text in task.only:
        yield bench.point(plans.parse(text), text)
    for choice, size in task.samples:
        yield from _sample(bench, task.seed, choice, size)
    for series in task.series:
        number = 1
        while True:
            plan = plans.parse(plans.at(series, number))
            result = bench.point(plan, plans.at(series, number))
            if plan.count < number:
                break
            if result.reached:
                yield result
            number += 1


def _sample(bench: Bench, seed: int, choice: tuple[str, ...], size: int) -> Iterator[Result]:
    """Points drawn evenly over the series, then over the effects; one that its plan never reaches is drawn again."""
    draw = random.Random(f"{seed} {bench.scenario.name} {choice}")
    most = dict.fromkeys(choice, bench.effects)
    left = size
    for _ in range(50 * size):
        if left == 0:
            return
        series = draw.choice(choice)
        number = draw.randint(1, max(1, most[series]))
        plan = plans.parse(plans.at(series, number))
        result = bench.point(plan, plans.at(series, number))
        if result.reached:
            left -= 1
            yield result
        elif plan.count < number:
            most[series] = plan.count


def _end(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    home = Path(tempfile.mkdtemp(prefix="crash-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        serve(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
