"""One point of a scenario: the start state, the command under a plan, `resume` twice, the invariants, the end."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.crash import drive, invariants
from tests.crash.catalogue import SCENARIOS
from tests.crash.plans import Counting, Cut, Interrupt
from tests.crash.room import Room
from tests.crash.scenarios import Scenario
from tests.crash.scene import Scene
from tests.crash.watch import Keeper
from tests.host import Reply

WORDS = re.compile(r"[A-Z_]+\Z")


class Result(msgspec.Struct, frozen=True):
    """What became of a point. `reached`: the plan struck; `finished`: the end was driven to (not known before)."""

    scenario: str
    plan: str
    reached: bool
    struck: str
    problems: tuple[str, ...]
    finished: bool
    answer: str


class Bench:
    """One scenario, built once, its points tried one after another at the same path."""

    def __init__(self, name: str, base: Path, keeper: Keeper) -> None:
        self.scenario: Scenario = SCENARIOS[name]
        self.room = Room(base)
        self.scene = Scene(self.room, keeper)
        self.argv = self.scenario.build(self.scene)
        assert keeper.settle(5.0), keeper.survivors()
        self._kept = (self._copied(), self.scene.env.copy())
        self.room.save()
        self._word = ""
        self._ends: dict[str, tuple[str, ...]] = {}
        self.reference = invariants.Reference()
        self.effects = self._undisturbed()

    def _copied(self) -> dict[str, Any]:
        scene = self.scene
        return {"notes": copy.deepcopy(scene.notes), "work": dict(scene.work), "dirty": dict(scene.dirty)}

    def reset(self) -> None:
        """Back to the start state."""
        self.room.restore()
        kept = copy.deepcopy(self._kept[0]["notes"])
        self.scene.notes, self.scene.work = kept, dict(self._kept[0]["work"])
        self.scene.dirty = dict(self._kept[0]["dirty"])

    def _undisturbed(self) -> int:
        """The story without a kill; says what is allowed, and how many effects the command has."""
        scene, reference = self.scene, self.reference
        reference.base = scene.notes.get("mark_trees") or scene.trees()
        if "mark" in scene.notes:
            reference.settled.append(scene.notes["mark"])
            reference.pass_by(scene)
        else:
            reference.settle(scene)
        self._guard()
        count = Counting()
        done = self._run(count)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        self._word = done.stdout.decode("ascii", "replace").split("\n")[0]
        reference.pass_by(scene)
        for _ in range(2):
            self._reap()
            scene.call("resume", "--run-id", "r1").expect("RESUMED")
        reference.settle(scene)
        self.room.unshield()
        watched_steps(scene, lambda: reference.settle(scene))
        reference.trees = scene.trees()
        problems = invariants.leftovers(scene)
        assert not problems, problems
        self.reset()
        return count.count

    def _run(self, plan: Counting) -> subprocess.CompletedProcess[bytes]:
        """The command, and what it started that outlives it."""
        done = self.scene.watched(self.argv, plan)
        if self.scenario.detached:
            # What a killed supervisor leaves behind may go on for as long as it likes: that is what `reap` is for.
            self.scene.keeper.settle(20.0 if plan.hit is None else 8.0)
            self._end_played_job(done.returncode)
        return done

    def _end_played_job(self, code: int) -> None:
        """Where a directory plays the job of a command: the runner's last word on it (section 12)."""
        job = self.scene.notes.get("job")
        if job is None:
            return
        result = next(iter(self.scene.run_dir().glob("units/U1/result/implementation-result.json")), None)
        if result is None or result.stat().st_size == 0:
            word = "died-without-result" if code < 0 else "failed"
        else:
            word = "done" if code <= 0 else "failed"
        self.scene.end_job(job, word)

    def _reap(self) -> None:
        """What a host does about a job that lost its supervisor."""
        if not self.scenario.detached:
            return
        status = self.scene.call("status", "--run-id", "r1").expect("STATUS").body
        for name, unit in status["units"].items():
            if unit["attempts"][-1]["process_state"] == "running":
                self.scene.call("reap", "--run-id", "r1", "--unit-id", name).expect("REAPED")

    def point(self, plan: Counting, label: str) -> Result:
        """Try one."""
        scene = self.scene
        self.reset()
        self._guard()
        problems: list[str] = []
        answer = ""
        finished = False
        try:
            done = self._run(plan)
            answer = done.stdout.decode("ascii", "replace").split("\n")[0]
            problems += self._answered(plan, done.returncode, answer, done.stderr)
            if plan.hit is not None:
                problems += self._verified(plan)
                problems += self._recovered()
                finished = self._end(problems)
        except AssertionError as fault:
            problems.append(f"{type(fault).__name__}: {str(fault)[:1500]}")
            scene.keeper.kill_everything()
        struck = "" if plan.hit is None else str(plan.hit).replace(str(self.room.live), "")
        return Result(self.scenario.name, label, plan.hit is not None, struck, tuple(problems), finished, answer)

    def _guard(self) -> None:
        """The command may delete folders whose identity the next point needs, and does not look at it itself."""
        needs_identity = ("resume-unadopted-job", "resume-half-prepared")
        deletes = ("cleanup --abandon", "cleanup", "integrate", "resume")
        if self.scenario.command in deletes and self.scenario.name not in needs_identity:
            self.scene.shield()

    def _answered(self, plan: Counting, code: int, word: str, stderr: bytes) -> list[str]:
        """A killed command says nothing; every other one a word, an interrupted one the right word."""
        problems = []
        if self.argv[3] != "controller":
            return ["traceback: " + stderr.decode("utf-8", "replace")[-1200:]] if b"Traceback" in stderr else []
        if b"Traceback" in stderr:
            problems.append("traceback: " + stderr.decode("utf-8", "replace")[-1200:])
        if code in (0, 1, 4) and not WORDS.match(word):
            problems.append(f"no word: exit {code}, {word!r}, {stderr!r}"[:500])
        if code not in (0, 1, 4, -9):
            problems.append(f"exit {code}: {stderr!r}"[:500])
        if isinstance(plan, Interrupt) and plan.hit is not None and word not in (self._word, "INTERRUPTED"):
            problems.append(f"answer to {plan.signum.name}: {word}, neither INTERRUPTED nor {self._word}")
        return problems

    def _verified(self, plan: Counting) -> list[str]:
        """After a power cut: the journal opens, and what is torn is said."""
        if not isinstance(plan, Cut):
            return []
        reply = self.scene.call("journal", "verify", "--run-id", "r1")
        if reply.word == "JOURNAL_OK" and reply.body["torn_bytes"] == plan.torn:
            return []
        return [f"journal verify: {plan.torn} torn bytes, answer {reply!r}"[:600]]

    def _resume(self) -> Reply:
        return self.scene.call("resume", "--run-id", "r1")

    def _recovered(self) -> list[str]:
        """`resume` twice, and everything that must hold then."""
        scene, reference = self.scene, self.reference
        # Where something still runs, it may yet finish what it is writing.
        stood = invariants.contents(scene) if scene.keeper.settle(0.0) else {}
        first = self._resume()
        allowed = ("RESUMED",) if scene.run_dir().exists() else ("NOT_FOUND",)
        problems = [] if first.word in allowed else [f"first resume: {first!r}"[:1500]]
        if self.scenario.detached:
            self._reap()
            self._resume()
        problems += invariants.processes(scene)
        problems += invariants.user_bytes(scene, reference, rests=not self.scenario.manual)
        problems += invariants.locks(scene)
        before = invariants.journal_bytes(scene)
        second = self._resume()
        if second.word not in allowed:
            problems.append(f"second resume: {second!r}"[:1500])
        reconciled = any(action.get("action") == "apply-reconciled" for action in first.body.get("actions", []))
        if invariants.journal_bytes(scene) != before and not reconciled:
            grown = invariants.journal_bytes(scene)[len(before) :].decode("utf-8", "replace")
            problems.append(f"I6 second resume: journal grew by {grown[:800]}")
        problems += invariants.processes(scene)
        problems += invariants.user_bytes(scene, reference, rests=True)
        problems += invariants.kept(scene, stood)
        problems += invariants.commits(scene, reference)
        problems += invariants.locks(scene)
        problems += invariants.transports(scene)
        problems += invariants.private_modes(scene)
        return problems

    def _end(self, problems: list[str]) -> bool:
        """Drive to the end, unless the same state has been driven there before."""
        key = self._state_key()
        known = self._ends.get(key)
        if known is not None:
            problems += known
            return False
        self.room.unshield()
        found: list[str] = []
        try:
            drive.finish(self.scene)
            state, wanted = self.scene.user_state(), self.reference.settled[-1]
            if state != wanted:
                found.append("end: " + "; ".join(invariants._difference(state, wanted)))
            found += invariants.locks(self.scene)
            found += invariants.transports(self.scene)
            found += invariants.leftovers(self.scene)
            if self.scene.trees() != self.reference.trees:
                found.append(f"end: trees {self.scene.trees()} not {self.reference.trees}")
        except AssertionError as fault:
            found.append(f"{type(fault).__name__}: {str(fault)[:1500]}")
        self._ends[key] = tuple(found)
        problems += found
        return True

    def _state_key(self) -> str:
        """What the rest of the story depends on: the journal's kinds, the names on disk, the checkout."""
        kinds = [json.loads(line)["kind"] for line in invariants.journal_bytes(self.scene).splitlines()]
        names = sorted(
            re.sub(r"[0-9a-f]{12,}|\d{4,}", "*", str(path.relative_to(self.room.live)))
            for path in self.room.live.rglob("*")
            if "/objects/" not in str(path)
        )
        state = self.scene.user_state()
        return hashlib.sha256(repr((kinds, names, state)).encode("utf-8", "surrogateescape")).hexdigest()


def watched_steps(scene: Scene, after: Callable[[], None]) -> None:
    """Drive to the end and look after each step."""
    for _ in range(40):
        step = drive.step(scene)
        after()
        if step == "verify-run":
            return
    raise drive.DeadEnd("the undisturbed story does not end")
