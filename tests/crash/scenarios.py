"""Every command that changes something, from every start state of it that matters.

A scenario's builder brings a scene to the start state and returns the command line that is then killed or hindered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.plans import Kill
from tests.crash.scene import Scene, small_work
from tests.host import BINDING, EGRESS

Build = Callable[[Scene], list[str]]


class Scenario(msgspec.Struct, frozen=True):
    """`command` is the row of the table that it counts for.

    `manual`: the first resume may keep an applied state. `detached`: the command starts what outlives it, and a host
    reaps a job that lost its supervisor before it goes on.
    """

    name: str
    command: str
    build: Build
    manual: bool = False
    detached: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(command: str, *, manual: bool = False, detached: bool = False) -> Callable[[Build], Build]:
    """Register a builder under its own name."""

    def register(build: Build) -> Build:
        name = build.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name, command, build, manual, detached)
        return build

    return register


# --- beginning ------------------------------------------------------------------------------------------------------


def begin(scene: Scene) -> Scene:
    scene.notes["init"] = lambda again: again.init()
    scene.init().expect("READY")
    return scene


def _init_arguments(scene: Scene) -> list[str]:
    brief = "# Request\nx\n# Goal\nx\n# Scope\nx\n# Acceptance\nx\n"
    path = scene.base / "brief-r1.md"
    path.write_text(brief)
    digest = hashlib.sha256(brief.encode()).hexdigest()
    sanction = ["--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS)]
    return [
        "--run-id",
        "r1",
        "--repo",
        str(scene.repo),
        "--prompt-brief",
        str(path),
        "--prompt-digest",
        digest,
        *sanction,
    ]


def _plan_arguments(scene: Scene) -> list[str]:
    digest = hashlib.sha256((scene.repo / "plan.md").read_bytes()).hexdigest()
    sanction = ["--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS)]
    return ["--run-id", "r1", "--repo", str(scene.repo), "--plan", "plan.md", "--plan-digest", digest, *sanction]


@scenario("init")
def init_prompt(scene: Scene) -> list[str]:
    """A new run from a prompt brief, over the user's dirty checkout."""
    arguments = _init_arguments(scene)
    scene.notes["init"] = lambda again: again.call("init", *arguments)
    scene.scribble()
    return scene.controller("init", *arguments)


@scenario("init")
def init_plan(scene: Scene) -> list[str]:
    """A new run from a plan that is not committed yet."""
    (scene.repo / "plan.md").write_bytes(b"# Plan\nnew words\n")
    arguments = _plan_arguments(scene)
    scene.notes |= {"init": lambda again: again.call("init", *arguments), "plan": True}
    return scene.controller("init", *arguments)


@scenario("checkpoint-plan")
def checkpoint_dirty_plan(scene: Scene) -> list[str]:
    """The plan is modified."""
    init_plan(scene)
    scene.notes["init"](scene).expect("READY")
    return scene.controller("checkpoint-plan", "--run-id", "r1")


@scenario("checkpoint-plan")
def checkpoint_staged_plan(scene: Scene) -> list[str]:
    """The plan is modified and staged."""
    init_plan(scene)
    scene.notes["init"](scene).expect("READY")
    scene.git("add", "plan.md")
    return scene.controller("checkpoint-plan", "--run-id", "r1")


# --- preparing and dispatching --------------------------------------------------------------------------------------


def _prepare_arguments(scene: Scene, unit: str = "U1", attempt: str = "attempt-1") -> list[str]:
    packet = scene.base / f"packet-{unit}.md"
    packet.write_bytes(b"do it\n")
    return ["--run-id", "r1", "--unit-id", unit, "--base", scene.head, "--packet", str(packet), "--attempt-id", attempt]


@scenario("prepare")
def prepare_new(scene: Scene) -> list[str]:
    """The first attempt of a unit."""
    begin(scene)
    return scene.controller("prepare", *_prepare_arguments(scene))


@scenario("prepare")
def prepare_retry(scene: Scene) -> list[str]:
    """The second attempt of a unit whose first one failed and was abandoned."""
    abandon_failed_job(scene)
    job = scene.unit()["attempts"][-1]["job_id"]
    scene.call("cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon", "--expect-job", job).expect("CLEANED")
    scene.tidy()
    return scene.controller("prepare", *_prepare_arguments(scene, attempt="attempt-2"))


@scenario("prepare")
def prepare_again(scene: Scene) -> list[str]:
    """The same attempt after a prepare that was killed while Git made the worktree."""
    interrupt(scene, prepare_new, "git", "mkdir", 2)
    return scene.controller("prepare", *_prepare_arguments(scene))


def _prepared(scene: Scene) -> dict[str, Any]:
    begin(scene)
    prepared = scene.prepare().expect("PREPARED").body
    scene.scribble()
    return prepared


@scenario("authorize-dispatch")
def authorize_dispatch(scene: Scene) -> list[str]:
    """The adapter's handshake, first time."""
    prepared = _prepared(scene)
    job = scene.write_job(prepared)
    names = {"authorization": "authorization_path", "packet": "packet_path"}
    more = [
        part
        for flag in ("authorization", "authorization-digest", "workspace", "packet", "packet-digest", "result-dir")
        for part in (f"--{flag}", prepared[names.get(flag, flag.replace("-", "_"))])
    ]
    unit = ["--run-id", "r1", "--unit-id", "U1", "--attempt-id", "attempt-1", "--job-id", job]
    return scene.controller("authorize-dispatch", *unit, *more)


@scenario("record-job")
def record_job(scene: Scene) -> list[str]:
    """The host binds a job that was started."""
    job = scene.write_job(_prepared(scene))
    return scene.controller(
        "record-job", "--run-id", "r1", "--unit-id", "U1", "--attempt-id", "attempt-1", "--job-id", job
    )


def _ended(scene: Scene, word: str, unit: str = "U1") -> dict[str, Any]:
    """An attempt whose job has ended; with a result if the word is `done`."""
    prepared = scene.prepare(unit, *scene.notes.get("prepare", {}).get(unit, [])).expect("PREPARED").body
    job = scene.write_job(prepared)
    scene.authorize(prepared, job).expect("AUTHORIZED")
    scene.unit_work(unit)(Path(prepared["workspace"]))
    if word == "done":
        scene.write_result(prepared)
    scene.end_job(job, word)
    return {**prepared, "job_id": job}


@scenario("sync-job")
def sync_done_job(scene: Scene) -> list[str]:
    """The runner says done."""
    _ended(begin(scene), "done")
    scene.scribble()
    return scene.controller("sync-job", "--run-id", "r1", "--unit-id", "U1")


@scenario("sync-job")
def sync_failed_job(scene: Scene) -> list[str]:
    """The runner says failed."""
    _ended(begin(scene), "failed")
    return scene.controller("sync-job", "--run-id", "r1", "--unit-id", "U1")


@scenario("terminalize")
def terminalize_done(scene: Scene) -> list[str]:
    """A broad change becomes the transport, while the user edits the checkout."""
    _ended(begin(scene), "done")
    scene.scribble()
    return scene.controller("terminalize", "--run-id", "r1", "--unit-id", "U1")


@scenario("terminalize")
def terminalize_refused(scene: Scene) -> list[str]:
    """The worker left ignored output: a validation failure is recorded."""

    def work(workspace: Path) -> None:
        small_work(workspace)
        (workspace / "left.log").write_bytes(b"ignored output\n")

    begin(scene)
    scene.work["U1"] = work
    _ended(scene, "done")
    scene.work["U1"] = small_work
    return scene.controller("terminalize", "--run-id", "r1", "--unit-id", "U1")


@scenario("reap")
def reap_ended_job(scene: Scene) -> list[str]:
    """Through the runner, of a job that ended by itself."""
    _ended(begin(scene), "timeout")
    return scene.controller("reap", "--run-id", "r1", "--unit-id", "U1")


# --- giving up ------------------------------------------------------------------------------------------------------


@scenario("cleanup --abandon")
def abandon_failed_job(scene: Scene) -> list[str]:
    """The attempt's job failed."""
    job = _ended(begin(scene), "failed")["job_id"]
    scene.call("sync-job", "--run-id", "r1", "--unit-id", "U1").expect("SYNCED")
    scene.scribble()
    return scene.controller("cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon", "--expect-job", job)


@scenario("cleanup --abandon")
def abandon_transport(scene: Scene) -> list[str]:
    """The attempt has a transport."""
    commit = pending(begin(scene))["commit"]
    return scene.controller("cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon", "--expect-transport", commit)


@scenario("cleanup --abandon")
def abandon_packed_transport(scene: Scene) -> list[str]:
    """The user's `git gc` has packed the transport's reference."""
    argv = abandon_transport(scene)
    scene.git("pack-refs", "--all", "--prune")
    return argv


@scenario("cleanup --abandon")
def abandon_undispatched(scene: Scene) -> list[str]:
    """The unit was prepared and never dispatched."""
    _prepared(scene)
    return scene.controller("cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon")


@scenario("claim-fallback")
def claim_fallback(scene: Scene) -> list[str]:
    """Native work after a failed job."""
    _ended(begin(scene), "failed")
    return scene.controller("claim-fallback", "--run-id", "r1", "--unit-id", "U1", "--caller-mode", "headless")


@scenario("complete-fallback")
def complete_fallback(scene: Scene) -> list[str]:
    """The native work is committed."""
    scene.watched(claim_fallback(scene))
    base = scene.head
    scene.unit_work("U1")(scene.repo)
    scene.git("add", "-A")
    scene.git("commit", "-qm", "feat: native")
    scene.notes["native"] = base
    evidence = ["--evidence-digest", "a" * 64, "--summary", "done natively"]
    unit = ["--run-id", "r1", "--unit-id", "U1", "--accepted-head", scene.head]
    return scene.controller("complete-fallback", *unit, *evidence)


# --- the canonical transaction by hand ------------------------------------------------------------------------------


def pending(scene: Scene, unit: str = "U1") -> dict[str, Any]:
    _ended(scene, "done", unit)
    reply = scene.call("terminalize", "--run-id", "r1", "--unit-id", unit).expect("INTEGRATION_PENDING")
    transport: dict[str, Any] = reply.body["transport"]
    scene.mark()
    return transport


def _token(scene: Scene) -> list[str]:
    token = scene.manifest()["integration_lock"]["nonce"]
    return ["--run-id", "r1", "--unit-id", "U1", "--lock-token", token]


def _locked(scene: Scene) -> Scene:
    pending(begin(scene))
    scene.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED")
    return scene


@scenario("integration-acquire")
def integration_acquire(scene: Scene) -> list[str]:
    """The lock is free."""
    pending(begin(scene))
    return scene.controller("integration-acquire", "--run-id", "r1", "--unit-id", "U1")


@scenario("integration-release")
def integration_release(scene: Scene) -> list[str]:
    """The lock is held before preflight."""
    return scene.controller("integration-release", *_token(_locked(scene)))


@scenario("preflight", manual=True)
def preflight(scene: Scene) -> list[str]:
    """The lock is held."""
    return scene.controller("preflight", *_token(_locked(scene)))


def _applied(scene: Scene) -> Scene:
    scene.watched(preflight(scene))
    scene.git("cherry-pick", "--no-commit", scene.unit()["transport"]["commit"])
    return scene


@scenario("mark-applied", manual=True)
def mark_applied(scene: Scene) -> list[str]:
    """The host has cherry-picked the transport."""
    return scene.controller("mark-applied", *_token(_applied(scene)))


@scenario("restore", manual=True)
def restore_applied(scene: Scene) -> list[str]:
    """The host gives the applied transport up."""
    scene.call("mark-applied", *_token(_applied(scene))).expect("APPLIED")
    return scene.controller("restore", *_token(scene))


@scenario("mark-verified", manual=True)
def mark_verified(scene: Scene) -> list[str]:
    """The host has verified."""
    scene.call("mark-applied", *_token(_applied(scene))).expect("APPLIED")
    return scene.controller("mark-verified", *_token(scene), "--evidence-digest", "a" * 64)


def _committed_by_host(scene: Scene) -> Scene:
    scene.watched(mark_verified(scene))
    scene.git("commit", "-qm", "feat: U1")
    return scene


@scenario("mark-committed")
def mark_committed(scene: Scene) -> list[str]:
    """The host has committed."""
    return scene.controller("mark-committed", *_token(_committed_by_host(scene)))


@scenario("cleanup")
def cleanup_committed(scene: Scene) -> list[str]:
    """The unit is committed, the lock still held."""
    scene.watched(mark_committed(scene))
    return scene.controller("cleanup", "--run-id", "r1", "--unit-id", "U1")


# --- the canonical transaction in one call --------------------------------------------------------------------------


def _integrate(scene: Scene, *argv: str, unit: str = "U1") -> list[str]:
    return scene.controller("integrate", "--run-id", "r1", "--unit-id", unit, "--commit-message", "feat", "--", *argv)


@scenario("integrate")
def integrate_success(scene: Scene) -> list[str]:
    """Verification passes."""
    pending(begin(scene))
    return _integrate(scene, "true")


@scenario("integrate")
def integrate_failing(scene: Scene) -> list[str]:
    """Verification fails after it wrote into the checkout and left a process behind."""
    pending(begin(scene))
    script = "echo dirt >> f; echo x > left; mkdir d; echo y > d/z; rm run.sh; (setsid sleep 30 &) ; exit 3"
    return _integrate(scene, "sh", "-c", script)


@scenario("integrate")
def integrate_merged(scene: Scene) -> list[str]:
    """The second of two units: HEAD has moved on from its base, the expected tree comes from a merge."""
    begin(scene)
    scene.notes["units"] = ["U1", "U2"]
    scene.work["U2"] = small_work
    pending(scene)
    pending(scene, "U2")
    scene.watched(_integrate(scene, "true"))
    scene.mark()
    return _integrate(scene, "true", unit="U2")


@scenario("integrate")
def integrate_applied(scene: Scene) -> list[str]:
    """The host applied by hand and lets `integrate` go on from there."""
    scene.call("mark-applied", *_token(_applied(scene))).expect("APPLIED")
    return _integrate(scene, "true")


@scenario("integrate")
def integrate_preserved(scene: Scene) -> list[str]:
    """The second try after a restored one."""
    scene.watched(integrate_failing(scene))
    return _integrate(scene, "true")


# --- the plan-wide verification -------------------------------------------------------------------------------------


def _accepted(scene: Scene) -> Scene:
    scene.watched(integrate_success(scene))
    scene.mark()
    return scene


@scenario("verify-run")
def verify_run_success(scene: Scene) -> list[str]:
    """It passes."""
    return _accepted(scene).controller("verify-run", "--run-id", "r1", "--", "true")


@scenario("verify-run")
def verify_run_failing(scene: Scene) -> list[str]:
    """It fails."""
    return _accepted(scene).controller("verify-run", "--run-id", "r1", "--", "false")


@scenario("verify-run")
def verify_run_dirtying(scene: Scene) -> list[str]:
    """It passes and leaves changes and a process."""
    script = "echo dirt >> f; echo x > left; rm run.sh; (setsid sleep 30 &) ; exit 0"
    return _accepted(scene).controller("verify-run", "--run-id", "r1", "--", "sh", "-c", script)


# --- resume itself --------------------------------------------------------------------------------------------------


class _KillLike(Kill):
    """Kill everything at the `nth` call of a program to a name (the start state of a killed resume)."""

    def __init__(self, program: str, name: str, nth: int, target: str = "") -> None:
        super().__init__(0, "tree")
        self._like = (program, name, target)
        self._left = nth

    def at(self, watch: Any, call: Any) -> bool:
        """Kill when it is that one."""
        program, name, target = self._like
        if watch.program(call).startswith(program) and call.name == name and target in watch.effect(call).target:
            self._left -= 1
            if self._left == 0:
                self.number = self.count
        return super().at(watch, call)


def interrupt(scene: Scene, build: Build, program: str, name: str, nth: int, target: str = "") -> None:
    """Run a scenario's command and kill all of it at a chosen effect."""
    plan = _KillLike(program, name, nth, target)
    scene.watched(build(scene), plan)
    assert scene.keeper.settle(15.0)
    assert plan.hit is not None, f"{build.__name__} has no {nth}. {name} of {program}"


def _resume(scene: Scene) -> list[str]:
    return scene.controller("resume", "--run-id", "r1")


@scenario("resume")
def resume_half_prepared(scene: Scene) -> list[str]:
    """Killed while Git checked the workspace out."""
    interrupt(scene, prepare_new, "git", "openat", 3)
    return _resume(scene)


@scenario("resume")
def resume_unadopted_job(scene: Scene) -> list[str]:
    """A job was started and its host died; it has ended since: adopt, sync, terminalize."""
    prepared = _prepared(scene)
    job = scene.write_job(prepared)
    broad_result(scene, prepared)
    scene.end_job(job, "done")
    return _resume(scene)


def broad_result(scene: Scene, prepared: dict[str, Any]) -> None:
    """The unit's work and its result."""
    scene.unit_work("U1")(Path(prepared["workspace"]))
    scene.write_result(prepared)


@scenario("resume")
def resume_half_applied(scene: Scene) -> list[str]:
    """Killed while Git changed the working tree."""
    interrupt(scene, integrate_success, "git", "unlink", 2)
    return _resume(scene)


@scenario("resume")
def resume_verifying(scene: Scene) -> list[str]:
    """Killed while the verification ran and had made dirt."""
    interrupt(scene, integrate_failing, "sh", "openat", 3)
    return _resume(scene)


@scenario("resume")
def resume_half_committed(scene: Scene) -> list[str]:
    """Killed while the branch moved."""
    interrupt(scene, integrate_success, "python", "rename", 1, "refs/heads/main")
    return _resume(scene)


@scenario("resume")
def resume_half_cleaned(scene: Scene) -> list[str]:
    """Killed while the workspace was removed."""
    interrupt(scene, integrate_success, "python", "unlinkat", 4)
    return _resume(scene)


@scenario("resume")
def resume_half_restored(scene: Scene) -> list[str]:
    """Killed while files were put back."""
    interrupt(scene, integrate_failing, "git", "openat", 2, "f")
    return _resume(scene)


@scenario("resume", manual=True)
def resume_applied_by_hand(scene: Scene) -> list[str]:
    """The host applied by hand and died before it said so."""
    _applied(scene)
    return _resume(scene)


@scenario("resume")
def resume_run_verification(scene: Scene) -> list[str]:
    """A plan-wide verification was killed half-way."""
    interrupt(scene, verify_run_dirtying, "sh", "openat", 1)
    return _resume(scene)
