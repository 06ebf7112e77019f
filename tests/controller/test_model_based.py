"""Random stories of one run, held against a small model: no illegal step is accepted, no byte of the user is lost,
no unit is committed twice, and from wherever a story ends the commands in `next` lead to an end.

The commands are the real ones, each in a process of its own; runner and worker are played by the test, which other
programs may do (protocol.md section 15). Stories mix every command with crashes (SIGKILL after some milliseconds or
some bytes of journal), with what users do meanwhile, and with hostile results.

The default run is short and always the same. A long one, with other stories every time:

    MODEL_STORIES=500 MODEL_STEPS=60 .venv/bin/pytest -m sweep tests/controller/test_model_based.py -s

It prints how many stories and steps it tried; a failure prints the whole story.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.controller.model_finish import finish
from tests.controller.model_units import Command, Unit
from tests.controller.model_ways import WAYS
from tests.controller.model_world import CHECKS, IGNORED, WORK, Crash, World
from tests.lane import Lane

COMMANDS = (
    "checkpoint-plan",
    "prepare",
    "authorize-dispatch",
    "record-job",
    "sync-job",
    "reap",
    "terminalize",
    "integration-acquire",
    "preflight",
    "mark-applied",
    "mark-verified",
    "mark-committed",
    "integration-release",
    "restore",
    "integrate",
    "cleanup",
    "cleanup --abandon",
    "claim-fallback",
    "complete-fallback",
    "verify-run",
)
OF_THE_RUN = ("checkpoint-plan", "verify-run")
RESULTS = (*["good"] * 14, "bad-json", "wrong-route", "blocked", "scope", "oversize", "none", "ignored-output")
ENDS = (*["done"] * 8, "running", "failed", "timeout", "died-without-result")
TRACKED = ("f", "dir/g", "keep.txt")
UNITS = sorted(WORK)
UNTRACKED = ("mine.txt", "u1.txt", "u2/x.txt")


class Stories(RuleBasedStateMachine):
    """One story."""

    lane: Lane
    folder: Path
    seen: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.base = self.folder / f"story-{self.seen['stories']}"
        self.base.mkdir()
        self.seen["stories"] += 1
        self.world = World(self.base, self.lane)
        self.turns = 0
        self.actors: list[tuple[int, Callable[[Random], None]]] = [
            (50, self.sensible_command),
            (16, self.any_command),
            (30, self.runner_and_worker),
            (20, self.by_hand),
            (3, self.resume),
            (6, self.user_edits),
            (9, self.user_tidies_up),
            (3, self.user_commits),
            (3, self.user_switches_branches),
        ]

    @rule(seed=st.integers(0, 2**32))
    def turn(self, seed: int) -> None:
        """A few of them do something. Hypothesis likes to repeat numbers, so that of the turn counts too."""
        self.turns += 1
        if self.turns == 1:
            self.begin(Random(f"{seed} {self.base.name}"))
        dice = Random(f"{seed} {self.turns} {self.base.name}")
        for _ in range(6):
            if self.world.fog is not None and dice.random() < 0.4:
                self.resume(dice)
            else:
                weights = [weight for weight, _ in self.actors]
                dice.choices([actor for _, actor in self.actors], weights)[0](dice)

    def begin(self, dice: Random) -> None:
        """Stories begin early or late."""
        way = dice.choice(WAYS)
        self.world.log.append(f"--- {way.__name__}")
        with self.world.explained():
            way(self.world)
        self.seen[f"beginning: {way.__name__}"] += 1

    # --- commands ---------------------------------------------------------------------------------------------------

    def give(self, command: Command, crash: Crash | None = None) -> None:
        """Give a command, if it can be written down at all."""
        world, unit = self.world, self.world.model.units.get(command.unit)
        if command.name == "prepare" and unit is not None:
            retry = unit.state == "cleaned" or (world.fog is not None and not unit.cleaned and bool(command.resume))
            command.name = "prepare-retry" if retry else "prepare-again"
        elif unit is None and command.name not in ("prepare", *OF_THE_RUN, "resume"):
            return
        if command.name == "authorize-dispatch" and command.unit not in world.prepared:
            return
        if command.check == "moves-head" and (command.name != "integrate" or crash or world.fog is not None):
            command.check = "true"
        reply = world.do(command, crash)
        self.seen["killed" if reply is None else "commands"] += 1
        if reply is not None and world.fog is None:
            self.seen[f"{command.name} {'accepted' if reply.code == 0 else 'refused'}"] += 1

    def _crash(self, dice: Random, chance: float) -> Crash | None:
        if dice.random() >= chance:
            return None
        if dice.random() < 0.5:
            return Crash("ms", dice.randrange(120), dice.random() < 0.5)
        return Crash("journal bytes", dice.choice([1, 1, 500, 1500, 3000]), dice.random() < 0.5)

    def any_command(self, dice: Random) -> None:
        """Whatever a confused host may say."""
        name = dice.choice(COMMANDS)
        command = Command(
            name,
            "" if name in OF_THE_RUN else dice.choice(UNITS),
            token_ok=dice.random() < 0.85,
            resume=dice.random() < 0.5,
            expectation="right" if dice.random() < 0.75 else "wrong",
            check=dice.choice(sorted(CHECKS)),
            head_ok=dice.random() < 0.8,
        )
        self.give(command, self._crash(dice, 0.1))

    def sensible_command(self, dice: Random) -> None:
        """What a host would say next, most of the time."""
        if self.world.fog is not None:
            return
        name = self.world.model.lock or dice.choice(UNITS)
        unit, choice = self.world.model.units.get(name), dice.randrange(12)
        said = "prepare" if unit is None else self._next(unit, choice)
        if said:
            check = dice.choice(sorted(CHECKS)) if dice.random() < 0.4 else "true"
            command = Command(said, "" if said in OF_THE_RUN else name, check=check)
            if unit is not None and dice.random() < 0.8 and not self._promising(command):
                command = Command("integration-release", name)
                if not self._promising(command):
                    return
            self.give(command, self._crash(dice, 0.15))

    def _promising(self, command: Command) -> bool:
        """Whether the model would accept a command, or a verification would decide."""
        model = copy.deepcopy(self.world.model)
        return model.apply(replace(command, check="true")) is None

    def _next(self, unit: Unit, choice: int) -> str:
        """The next command for a unit; a low choice (of 12) is a less likely one."""
        if unit.claimed and unit.state != "native-completed":
            return "complete-fallback" if unit.claim_head != self.world.model.facts.head or not choice else ""
        if unit.state == "queued":
            return "authorize-dispatch" if unit.job_dir and choice else ("" if choice else "record-job")
        if unit.state in ("authoring", "authored"):
            return self._of_a_job(unit, choice)
        if unit.state in ("integration-pending", "preserved"):
            if self.world.model.lock != unit.name:
                return {0: "cleanup --abandon", 1: "claim-fallback"}.get(
                    choice, "integrate" if choice < 6 else "integration-acquire"
                )
            if unit.state == "integration-pending" and unit.pre is not None:
                return "mark-applied" if unit.picked and choice else ("restore" if choice < 2 else "")
            return "preflight" if choice > 1 else "integration-release"
        manual = {"integrated": "mark-verified", "verified": "mark-committed", "committed": "cleanup"}
        if unit.state in manual:
            return manual[unit.state] if choice > 2 else ("restore" if choice > 1 else "integrate")
        if self.world.model.lock == unit.name:
            return "integration-release"
        if unit.state == "native-completed" and not unit.cleaned:
            return "cleanup --abandon"
        return "prepare" if unit.abandoned and choice < 6 else "verify-run"

    def _of_a_job(self, unit: Unit, choice: int) -> str:
        if unit.ended == "never-started":
            return {0: "claim-fallback", 1: "reap", 2: "sync-job", 3: "terminalize"}.get(choice, "")
        if unit.ended == "running":
            return "reap" if choice > 4 else "sync-job"
        if unit.failure or unit.blocked_result or unit.process in ("failed", "timeout", "died-without-result"):
            return "claim-fallback" if choice > 6 else "cleanup --abandon"
        return {0: "cleanup --abandon", 1: "claim-fallback", 2: "sync-job"}.get(choice, "terminalize")

    def resume(self, dice: Random) -> None:
        """`resume` as the host calls it after a break; the second call changes nothing. It may die itself."""
        world = self.world
        if dice.random() < 0.2:
            self.give(Command("resume"), self._crash(dice, 1.0))
            return
        if world.fog is not None:
            world.recover()
            self.seen["recoveries"] += 1
            return
        self.give(Command("resume"))
        manual = [unit.name for unit in world.model.units.values() if unit.state == "integrated"]
        journal = world.journal_bytes()
        self.give(Command("resume"))
        with world.explained():
            assert manual or world.journal_bytes() == journal, "a second resume changes something"

    # --- runner and worker ------------------------------------------------------------------------------------------

    def runner_and_worker(self, dice: Random) -> None:
        """The runner makes a job directory; a worker writes, publishes something, and its job ends."""
        name, world = dice.choice(UNITS), self.world
        unit = None if world.fog is not None else world.model.units.get(name)
        if unit is None:
            return
        if unit.state == "queued" and unit.job_dir is None:
            world.start_job(unit)
        elif unit.state == "queued" and dice.random() < 0.1:
            world.work(unit)  # too early: nothing is authorized
        elif unit.state == "authoring" and unit.ended == "never-started":
            world.work(unit)
            word = dice.choice(ENDS)
            world.end_work(unit, word, dice.choice(RESULTS) if word in ("done", "running") else "none")

    # --- the user ---------------------------------------------------------------------------------------------------

    def user_edits(self, dice: Random) -> None:
        """An edit at a bad moment."""
        if dice.random() < 0.2:
            self.world.delete(dice.choice(TRACKED))
        else:
            applied = [name for unit in self.world.model.units.values() if unit.pre for name in WORK[unit.name]]
            names = applied if applied and dice.random() < 0.5 else [*TRACKED, *UNTRACKED, *IGNORED]
            self.world.write(dice.choice(names), stage=dice.random() < 0.4)
            if names is applied and self.world.model.lock and dice.random() < 0.5:
                self.give(Command("restore", self.world.model.lock))

    def user_tidies_up(self, dice: Random) -> None:
        """The checkout is as the user found it."""
        self.world.tidy()

    def user_commits(self, dice: Random) -> None:
        """The user implements a claimed unit natively; now and then they commit when it is nobody's turn."""
        claimed = any(unit.claimed and unit.native is None for unit in self.world.model.units.values())
        if claimed or dice.random() < 0.1:
            self.world.write(dice.choice(TRACKED))
            self.world.commit()

    def user_switches_branches(self, dice: Random) -> None:
        """To another branch, or back."""
        on_branch = self.world.model.facts.on_branch
        if any(unit.made and unit.state == "verified" for unit in self.world.model.units.values()):
            return
        if dice.random() < (0.1 if on_branch else 0.7):
            self.world.switch()

    def by_hand(self, dice: Random) -> None:
        """The manual steps between the commands: apply, commit, or take away."""
        world = self.world
        facts, held = world.model.facts, world.model.lock
        unit = world.model.units.get(held or "")
        if world.fog is not None or unit is None or not facts.clean or not facts.on_branch or facts.head != unit.pre:
            return
        if not unit.picked and unit.state == "integration-pending":
            world.pick(unit)
        elif unit.picked and dice.random() < 0.1:
            world.unpick(unit)
        elif unit.picked and unit.state == "verified":
            world.commit_pick(unit)

    # --- the end ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Every story can be brought to an end."""
        world = self.world
        if world.failed:
            return
        with world.explained():
            finish(world)
        self.seen["steps"] += world.steps
        shutil.rmtree(self.base)


def tell(lane: Lane, folder: Path, stories: int, steps: int, *, always_the_same: bool) -> Counter[str]:
    """Run so many stories; what was seen."""
    seen: Counter[str] = Counter()
    made = type("Story", (Stories,), {"lane": lane, "folder": folder, "seen": seen})
    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=stories,
            stateful_step_count=steps,
            derandomize=always_the_same,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
    return seen


def test_no_story_loses_bytes_or_ends_in_a_dead_end(lane: Lane, tmp_path: Path) -> None:
    """Whatever host, user, worker and SIGKILL do in whatever order, the promises hold and there is a way out."""
    seen = tell(lane, tmp_path, 20, 5, always_the_same=True)
    assert seen["steps"] > 100 and seen["killed"] and seen["recoveries"]


@pytest.mark.sweep
def test_many_stories(lane: Lane, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As above, for as long as asked (see the module's docstring)."""
    if "sweep" not in request.config.option.markexpr:
        pytest.skip("a sweep: pytest -m sweep")
    stories, steps = int(os.environ.get("MODEL_STORIES", "200")), int(os.environ.get("MODEL_STEPS", "50"))
    seen = tell(lane, tmp_path, stories, steps, always_the_same=False)
    print("\n".join(f"{count:7} {what}" for what, count in sorted(seen.items())))
