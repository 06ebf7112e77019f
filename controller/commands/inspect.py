"""`status` and `runs`: what the journal says, without a lock and whatever state the checkout is in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from controller import checkout, encoding, jobs, projection, run_root
from controller.answer import Answer
from controller.errors import ControllerError
from controller.git import Git
from controller.run import OpenRun, read_directory, reading
from controller.state import Unit, is_finished


def status(*, run_id: str, unit_id: str | None) -> Answer:
    """The run, or one unit of it; a problem with the repository is part of the answer (section 18 row 13)."""
    with reading(run_id) as run:
        state = run.state
        body: dict[str, Any] = {
            "run_id": state.run_id,
            "revision": state.revision,
            "source": encoding.plain(state.source),
            "integration_lock": projection.lock_view(state.lock),
            "verifications": list(state.verifications),
            "blockers": [projection.blocker_view(blocker) for blocker in state.blockers],
            "repository": _repository(run),
        }
        if unit_id is not None:
            unit = run.unit(unit_id)
            body["unit"] = projection.unit_view(unit, run.directory)
            body["progress"] = {unit_id: _progress(run, unit)}
        else:
            body["units"] = {name: projection.unit_view(unit, run.directory) for name, unit in state.units.items()}
            body["recovery_path"] = str(run.directory)
            body["progress"] = {name: _progress(run, unit) for name, unit in state.units.items()}
        return Answer("STATUS", body)


def _repository(run: OpenRun) -> dict[str, Any]:
    state = run.state
    view: dict[str, Any] = {
        **encoding.plain(state.repository),
        "branch_ref": state.branch.ref,
        "problem": None,
    }
    try:
        seen = checkout.observe(Git(Path(state.repository.toplevel)))
        view["head"] = seen.head
        checkout.validate(seen, state.repository, state.branch.ref)
    except ControllerError as error:
        view["problem"] = {"word": error.word, "reason": error.message, **error.body()}
    return view


def _progress(run: OpenRun, unit: Unit) -> dict[str, Any]:
    attempt = unit.attempt
    if attempt.job_id is None or not attempt.bulky_artifacts_retained:
        return jobs.progress(unit, None)
    try:
        return jobs.progress(unit, jobs.view(run, attempt.job_id))
    except ControllerError as error:
        return {**jobs.progress(unit, None), "problem": error.message}


def runs() -> Answer:
    """Every run under the runs roots; one that cannot be read is listed with its problem."""
    found = []
    for root in run_root.lookup_roots():
        if not root.is_dir():
            continue
        for name in sorted(os.listdir(root)):
            if name.startswith("."):
                continue
            found.append(_summary(root / name))
    return Answer("RUNS", {"runs": found})


def _summary(directory: Path) -> dict[str, Any]:
    value: dict[str, Any] = {"run_id": directory.name, "recovery_path": str(directory)}
    try:
        run = read_directory(run_root.find_run(directory.name))
    except ControllerError as error:
        return {**value, "problem": {"word": error.word, "reason": error.message}}
    state = run.state
    return {
        **value,
        "toplevel": state.repository.toplevel,
        "branch_ref": state.branch.ref,
        "route": state.egress.get("route"),
        "updated_at": encoding.seconds(state.updated_at),
        "finished": is_finished(state, None),
        "integration_lock": None if state.lock is None else state.lock.unit_id,
        "units": {name: unit.state for name, unit in state.units.items()},
    }
