"""`task show`: who would author a task file and why, its scope, and the command lines that begin it.

Nothing is started but the adapter's own look-up, in a process of its own (design.md section 2); nothing is written.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any

from controller import encoding, programs, run_root
from controller.answer import Answer
from controller.errors import Blocked, Refused

_SECONDS = 60
_ID_MAX = 128
_REFUSED = "refused"


def show(*, file: str, run_id: str | None, repo: str | None) -> Answer:
    """Describe the task file; without `run_id` one is made of the task's id and digest, so that a rewrite gets anew."""
    if run_id is not None:
        run_root.safe_run_id(run_id)
    found = _look_up(file, repo)
    task = found["task"]
    if run_id is None:
        tail = f"-{task['sha256'][:8]}"
        run_id = run_root.safe_run_id(task["id"][: _ID_MAX - len(tail)] + tail)
    return Answer("TASK", {**found, "run_id": run_id, "commands": _commands(found, run_id)})


def _look_up(file: str, repo: str | None) -> dict[str, Any]:
    argv = [programs.adapter(), "task", "--json"]
    if repo is not None:
        argv += ["--repo", os.path.abspath(repo)]
    argv += ["--", os.path.abspath(file)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Blocked(
            f"the adapter could not be asked: {error}",
            expected=f"an answer of {argv[0]}",
            found=type(error).__name__,
            remedy="see that the three programs are installed together",
        ) from None
    try:
        answer = json.loads(done.stdout)
        refusal = answer.get(_REFUSED)
    except (ValueError, AttributeError):
        said = done.stderr.decode("utf-8", "replace").strip()
        raise Blocked(
            f"the adapter gave no answer: {said or 'it said nothing'}",
            expected="one JSON object",
            found=f"exit {done.returncode}",
            remedy="see that the three programs are of one release",
        ) from None
    if refusal is not None:
        line = refusal.get("line")
        raise Refused(
            refusal["message"],
            detail={"file": os.path.abspath(file), **({"line": line} if line else {})},
            expected=refusal.get("expected"),
            found=refusal.get("found"),
            remedy=refusal.get("remedy"),
        )
    assert isinstance(answer, dict)
    return answer


def _commands(found: dict[str, Any], run_id: str) -> dict[str, Any]:
    """What begins the task, in order, each as an argv list and as one line for a shell."""
    task = found["task"]
    controller = programs.controller()
    source = ["--prompt-brief", task["path"], "--prompt-digest", task["sha256"]]
    if task["path_in_repository"] is not None:
        source = ["--plan", task["path_in_repository"], "--plan-digest", task["sha256"]]
    init = [
        *controller,
        "init",
        *("--run-id", run_id),
        *("--repo", found["repository"]),
        *source,
        *("--binding-json", encoding.dumps(found["binding"])),
        *("--egress-json", encoding.dumps(found["egress"])),
    ]
    prepare = [
        *controller,
        "prepare",
        *("--run-id", run_id),
        *("--unit-id", task["id"]),
        *("--attempt-id", f"attempt-{task['attempt']}"),
        *("--base", "HEAD"),
        *("--packet", task["path"]),
        *(word for unit in task["depends_on"] for word in ("--dependency", unit)),
    ]
    steps = {"init": init}
    if task["path_in_repository"] is not None:
        # The task file is the plan: `prepare` wants a clean checkout, so it has to be committed first.
        steps["checkpoint-plan"] = [*controller, "checkpoint-plan", "--run-id", run_id]
    steps["prepare"] = prepare
    return {name: {"argv": argv, "shell": shlex.join(argv)} for name, argv in steps.items()}
