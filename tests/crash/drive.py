"""Finishes a run as a plain host would, from whatever state it is in: to RUN_VERIFIED, with public commands alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.crash.scene import Scene

_MOST_STEPS = 40


class DeadEnd(AssertionError):
    """The run cannot be finished."""


def finish(scene: Scene) -> list[str]:
    """Drive run `r1` to its end; the steps that it took. `DeadEnd` where no step is left or one is refused."""
    steps: list[str] = []
    while len(steps) < _MOST_STEPS:
        steps.append(step(scene))
        if steps[-1] == "verify-run":
            return steps
    raise DeadEnd(f"no end after {steps}")


def _call(scene: Scene, word: str, command: str, *args: str) -> dict[str, Any]:
    reply = scene.call(command, "--run-id", "r1", *args)
    if reply.word != word:
        raise DeadEnd(f"{command} {' '.join(args)[:200]}: expected {word}, got {reply!r}"[:2500])
    return reply.body


def step(scene: Scene) -> str:
    """One step."""
    if not scene.run_dir().exists():
        reply = scene.notes["init"](scene)
        if reply.word != "READY":
            raise DeadEnd(f"init: {reply!r}")
        return "init"
    if scene.notes.get("again"):
        argv, words = scene.notes["again"].pop(0)
        reply = scene.call(*argv)
        if reply.word not in words:
            raise DeadEnd(f"{' '.join(argv)}: {reply!r}")
        return " ".join(argv)
    status = _call(scene, "STATUS", "status")
    if status["integration_lock"] is not None:
        raise DeadEnd(f"lock held after resume: {status['integration_lock']}")
    if scene.notes.get("plan") and not scene.notes.get("checkpointed"):
        scene.notes["checkpointed"] = True
        reply = scene.call("checkpoint-plan", "--run-id", "r1")
        if reply.word not in ("CHECKPOINTED", "NOOP"):
            raise DeadEnd(f"checkpoint-plan: {reply!r}")
        return "checkpoint-plan"
    units: dict[str, Any] = status["units"]
    for name in scene.notes.get("units", ["U1"]):
        unit = units.get(name)
        done = _prepare(scene, name, 1) if unit is None else _unit(scene, name, unit)
        if done is not None:
            return f"{name}: {done}"
    scene.tidy()
    body = _call(scene, "RUN_VERIFIED", "verify-run", "--", "true")
    if body["verification_exit"] != 0:
        raise DeadEnd(f"verify-run: {body}")
    return "verify-run"


def _prepare(scene: Scene, name: str, number: int) -> str:
    scene.tidy()
    packet = scene.base / f"packet-{name}.md"
    packet.write_bytes(b"do it\n")
    more = scene.notes.get("prepare", {}).get(name, [])
    args = ["--unit-id", name, "--base", scene.head, "--packet", str(packet), "--attempt-id", f"attempt-{number}"]
    _call(scene, "PREPARED", "prepare", *args, *more)
    return "prepare"


def _unit(scene: Scene, name: str, unit: dict[str, Any]) -> str | None:
    attempt = unit["attempts"][-1]
    state = unit["state"]
    if attempt["fallback"]["claimed"] and not attempt["fallback"].get("completed"):
        return _native(scene, name)
    if state == "queued":
        return _dispatch(scene, name, unit)
    if state == "authoring":
        return _authoring(scene, name, unit)
    if state == "authored":
        failed = attempt.get("terminal_validation_failure")
        return _abandon(scene, name, unit) if failed else _terminalize(scene, name)
    if state in ("integration-pending", "preserved"):
        scene.tidy()
        scene.shield()
        message = ("--commit-message", f"feat: {name}")
        _call(scene, "UNIT_COMMITTED", "integrate", "--unit-id", name, *message, "--", "true")
        return "integrate"
    if state == "cleaned":
        if unit["integration"]["canonical_commit"]:
            return None
        return _prepare(scene, name, len(unit["attempts"]) + 1)
    if state == "native-completed":
        if unit["cleanup"] is None:
            scene.shield()
            _call(scene, "CLEANED", "cleanup", "--unit-id", name, "--abandon", *_expectation(unit))
            return "cleanup"
        return None
    raise DeadEnd(f"unit {name} is {state} after two resumes")


def _request(unit: dict[str, Any]) -> dict[str, Any]:
    """What `prepare` answered, from the manifest."""
    attempt = unit["attempts"][-1]
    return {
        "unit_id": unit["unit_id"],
        "attempt_id": attempt["attempt_id"],
        "workspace": unit["workspace"]["path"],
        "result_dir": str(Path(unit["packet"]["path"]).parent / "result"),
        "packet_path": unit["packet"]["path"],
        "packet_digest": unit["packet_digest"],
        "authorization_path": attempt["authorization_path"],
        "authorization_digest": attempt["authorization_digest"],
        "adapter": attempt["adapter"],
    }


def _dispatch(scene: Scene, name: str, unit: dict[str, Any]) -> str:
    if not unit["workspace"]["registered"]:
        return _prepare(scene, name, len(unit["attempts"]))
    request = _request(unit)
    job = scene.job_name(name, request["attempt_id"])
    if not (scene.run_dir() / "jobs" / job).exists():
        scene.write_job(request)
    reply = scene.authorize(request, job)
    if reply.word != "AUTHORIZED":
        raise DeadEnd(f"authorize-dispatch: {reply!r}")
    return "authorize-dispatch"


def _authoring(scene: Scene, name: str, unit: dict[str, Any]) -> str:
    attempt = unit["attempts"][-1]
    job = scene.run_dir() / "jobs" / attempt["job_id"]
    if attempt["process_state"] in ("failed", "timeout", "died-without-result") or attempt["fallback"]["reason"]:
        return _abandon(scene, name, unit)
    if attempt.get("terminal_validation_failure"):
        return _abandon(scene, name, unit)
    if not (job / "status").exists():
        request = _request(unit)
        if attempt["dispatch_authorization_receipt"] is None:
            reply = scene.authorize(request, attempt["job_id"])
            if reply.word != "AUTHORIZED":
                raise DeadEnd(f"authorize-dispatch: {reply!r}")
        scene.shield("workspace")
        scene.unit_work(name)(Path(request["workspace"]))
        scene.write_result(request)
        scene.end_job(attempt["job_id"], "done")
        return "work"
    _call(scene, "SYNCED", "sync-job", "--unit-id", name)
    if attempt["process_state"] != "done":
        return "sync-job"
    return _terminalize(scene, name)


def _terminalize(scene: Scene, name: str) -> str:
    reply = scene.call("terminalize", "--run-id", "r1", "--unit-id", name)
    if reply.word == "INTEGRATION_PENDING":
        return "terminalize"
    after = scene.call("status", "--run-id", "r1").body["units"][name]["attempts"][-1]
    if reply.word == "BLOCKED" and after.get("terminal_validation_failure"):
        scene.work.pop(name, None)
        return "terminalize: validation failed"
    raise DeadEnd(f"terminalize: {reply!r}")


def _expectation(unit: dict[str, Any]) -> list[str]:
    if unit["transport"]["commit"]:
        return ["--expect-transport", unit["transport"]["commit"]]
    job = unit["attempts"][-1]["job_id"]
    return ["--expect-job", job] if job else []


def _abandon(scene: Scene, name: str, unit: dict[str, Any]) -> str:
    scene.shield()
    _call(scene, "CLEANED", "cleanup", "--unit-id", name, "--abandon", *_expectation(unit))
    return "cleanup --abandon"


def _native(scene: Scene, name: str) -> str:
    scene.tidy()
    base = scene.head
    if not scene.notes.get("native"):
        scene.unit_work(name)(scene.repo)
        scene.git("add", "-A")
        scene.git("commit", "-qm", f"feat: {name}")
        scene.notes["native"] = base
    args = ["--unit-id", name, "--accepted-head", scene.head, "--evidence-digest", hashlib.sha256(b"").hexdigest()]
    _call(scene, "FALLBACK_COMPLETED", "complete-fallback", *args, "--summary", "done natively")
    return "complete-fallback"
