"""`next`: the legal next commands of a run as argv lists, known arguments filled in, others in angle brackets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from controller import integration_lock, jobs, programs
from controller.run import OpenRun
from controller.state import DONE, FAILED_WORDS, RUNNING, Unit, accepted_commits, has_open_claim, unaccepted

Argv = list[str]
_VERIFY = ["--", "<verification-command>", "<argument ...>"]


def next_commands(run: OpenRun, unit_id: str | None = None) -> list[Argv]:
    """What may be done next for the unit, or for the whole run when the unit is finished or none is named."""
    unit = run.state.units.get(unit_id) if unit_id is not None else None
    if unit is not None:
        found = _unit(run, unit)
        if found:
            return found
    for other in run.state.units.values():
        found = _unit(run, other)
        if found:
            return found
    return _run(run)


def _do(run: OpenRun, command: str, *arguments: str) -> Argv:
    return [*programs.controller(), command, "--run-id", run.state.run_id, *arguments]


def _run(run: OpenRun) -> list[Argv]:
    state = run.state
    prepare = _do(run, "prepare", "--unit-id", "<unit-id>", "--base", "<head>", "--packet", "<packet-file>")
    if state.lock is not None or state.pending_verification is not None:
        return [_do(run, "resume")]
    if not state.units:
        first = [_do(run, "checkpoint-plan")] if state.source.kind == "plan" and state.checkpoint is None else []
        return [*first, prepare]
    accepted = accepted_commits(state)
    passed = [v for v in state.verifications if v["verification_exit"] == 0 and v["accepted_units"] == accepted]
    if accepted and not unaccepted(state):
        return [prepare] if passed else [prepare, _do(run, "verify-run", *_VERIFY)]
    return [_do(run, "status")]


def start_command(run: OpenRun, unit: Unit) -> Argv:
    """The runner call that dispatches the prepared attempt (seed 004, step 4)."""
    idle = "600" if unit.attempt.activity_posture == "incremental" else "0"
    argv = jobs.expected_argv(run, unit)
    return [
        "env",
        "CE_PEER_HARD_SECS=7200",
        f"CE_PEER_IDLE_SECS={idle}",
        *programs.runner(),
        "start",
        "--skill",
        "ce-work",
        "--run-id",
        run.state.run_id,
        "--label",
        unit.unit_id,
        "--input-digest",
        unit.packet_digest,
        "--result-path",
        f"{argv[-1]}/implementation-result.json",
        "--no-sweep",
        "--",
        *argv,
    ]


def _unit(run: OpenRun, unit: Unit) -> list[Argv]:
    if unit.cleanup_intent is not None:
        return [_do(run, "resume")]
    if has_open_claim(unit):
        lock = run.state.lock
        if lock is not None and lock.unit_id == unit.unit_id:
            return [_marked(run, unit, "integration-release"), _do(run, "resume")]
        return [
            _do(
                run,
                "complete-fallback",
                "--unit-id",
                unit.unit_id,
                "--accepted-head",
                "<commit>",
                "--evidence-digest",
                "<sha256>",
                "--summary",
                "<summary>",
            )
        ]
    steps: dict[str, Callable[[OpenRun, Unit], list[Argv]]] = {
        "queued": _queued,
        "authoring": _authoring,
        "authored": _authored,
        "integration-pending": _pending,
        "integrated": _integrated,
        "verified": _verified,
        "committed": _committed,
        "restoring": _restoring,
        "preserved": _preserved,
        "cleaned": _cleaned,
        "native-completed": _native,
    }
    step = steps.get(unit.state)
    return [] if step is None else step(run, unit)


def _restoring(run: OpenRun, unit: Unit) -> list[Argv]:
    return [_do(run, "resume")]


def abandon(run: OpenRun, unit: Unit) -> Argv:
    """The call that gives the attempt up, naming exactly what is given up."""
    argv = _do(run, "cleanup", "--unit-id", unit.unit_id, "--abandon")
    if unit.transport.commit is not None:
        return [*argv, "--expect-transport", unit.transport.commit]
    if unit.attempt.job_id is not None:
        return [*argv, "--expect-job", unit.attempt.job_id]
    return argv


def _claim(run: OpenRun, unit: Unit) -> Argv:
    return _do(run, "claim-fallback", "--unit-id", unit.unit_id, "--caller-mode", "<interactive|headless>")


def _first(run: OpenRun, unit: Unit) -> Argv | None:
    """What must be brought to its end before this unit can be integrated or implemented natively."""
    accepted = accepted_commits(run.state)
    waits = [name for name in unit.dependencies if name not in accepted] + integration_lock.earlier(run, unit)
    held = run.state.lock
    if held is not None and held.unit_id != unit.unit_id:
        waits.insert(0, held.unit_id)
    if not waits:
        return None
    known = waits[0] in run.state.units
    more = () if known else ("--base", "<head>", "--packet", "<packet-file>")
    return _do(run, "status" if known else "prepare", "--unit-id", waits[0], *more)


def _failed(run: OpenRun, unit: Unit) -> list[Argv]:
    """The two ways on from an attempt that ended badly, once nothing of it runs any more."""
    if jobs.processes(unit):
        return [_do(run, "reap", "--unit-id", unit.unit_id)]
    return [_first(run, unit) or _claim(run, unit), abandon(run, unit)]


def _queued(run: OpenRun, unit: Unit) -> list[Argv]:
    if not unit.workspace.registered:
        return [_do(run, "resume"), abandon(run, unit)]
    record = _do(
        run,
        "record-job",
        "--unit-id",
        unit.unit_id,
        "--attempt-id",
        unit.attempt.attempt_id,
        "--job-id",
        "<job-id>",
    )
    return [start_command(run, unit), record, abandon(run, unit)]


def _authoring(run: OpenRun, unit: Unit) -> list[Argv]:
    attempt = unit.attempt
    job = attempt.job_id or "<job-id>"
    sync = _do(run, "sync-job", "--unit-id", unit.unit_id)
    if attempt.terminal_validation_failure is not None or attempt.process_state in FAILED_WORDS:
        return _failed(run, unit)
    if attempt.process_state == DONE:
        return [_do(run, "terminalize", "--unit-id", unit.unit_id)]
    wait = [*programs.runner(), "wait", "--skill", "ce-work", "--max-secs", "60", job]
    reap = _do(run, "reap", "--unit-id", unit.unit_id)
    # Before `sync-job` has looked it is only not known to have started: its adapter has just asked for its consent.
    if attempt.process_state == RUNNING or attempt.fallback.reason is None:
        return [wait, sync, reap]
    return [sync, *_failed(run, unit)]


def _authored(run: OpenRun, unit: Unit) -> list[Argv]:
    receipt = unit.attempt.terminal_receipt or {}
    if receipt.get("terminal_status") == "blocked":
        return [abandon(run, unit)]
    if unit.attempt.terminal_validation_failure is not None:
        return _failed(run, unit)
    return [_do(run, "terminalize", "--unit-id", unit.unit_id)]


def _integrate(run: OpenRun, unit: Unit) -> Argv:
    return _do(run, "integrate", "--unit-id", unit.unit_id, "--commit-message", "<message>", *_VERIFY)


def _token(run: OpenRun) -> str:
    return run.state.lock.nonce if run.state.lock is not None else "<lock-token>"


def _marked(run: OpenRun, unit: Unit, command: str, *arguments: str) -> Argv:
    return _do(run, command, "--unit-id", unit.unit_id, "--lock-token", _token(run), *arguments)


def _pending(run: OpenRun, unit: Unit) -> list[Argv]:
    lock = run.state.lock
    if lock is not None and lock.unit_id == unit.unit_id:
        if unit.integration.pre_fold is None:
            return [_marked(run, unit, "preflight"), _marked(run, unit, "integration-release")]
        if unit.integration.driver == "integrate":
            return [_do(run, "resume")]
        pick = [
            "git",
            "-C",
            run.state.repository.toplevel,
            "cherry-pick",
            "--no-commit",
            str(unit.transport.commit),
        ]
        return [pick, _marked(run, unit, "mark-applied"), _marked(run, unit, "restore")]
    inspect = [
        "git",
        "-C",
        run.state.repository.toplevel,
        "diff",
        str(unit.transport.base),
        str(unit.transport.commit),
    ]
    receipt = unit.attempt.terminal_receipt or {}
    if receipt.get("terminal_status") == "scope_expansion":
        return [inspect, abandon(run, unit)]
    return [inspect, _first(run, unit) or _integrate(run, unit), abandon(run, unit)]


def _integrated(run: OpenRun, unit: Unit) -> list[Argv]:
    if unit.integration.driver == "integrate":
        return [_do(run, "resume"), _integrate(run, unit)]
    return [
        _marked(run, unit, "mark-verified", "--evidence-digest", "<sha256>"),
        _integrate(run, unit),
        _marked(run, unit, "restore"),
    ]


def _verified(run: OpenRun, unit: Unit) -> list[Argv]:
    if unit.integration.driver == "integrate":
        return [_do(run, "resume")]
    commit = ["git", "-C", run.state.repository.toplevel, "commit", "-m", "<message>"]
    return [commit, _marked(run, unit, "mark-committed"), _marked(run, unit, "restore")]


def _committed(run: OpenRun, unit: Unit) -> list[Argv]:
    held = run.state.lock is not None
    release = [_marked(run, unit, "integration-release")] if held else []
    return [_do(run, "cleanup", "--unit-id", unit.unit_id), *release, _do(run, "resume")]


def _preserved(run: OpenRun, unit: Unit) -> list[Argv]:
    lock = run.state.lock
    if lock is not None and lock.unit_id == unit.unit_id:
        return [
            _marked(run, unit, "integration-release"),
            _marked(run, unit, "preflight"),
            _do(run, "resume"),
        ]
    first = _first(run, unit)
    ways = [_integrate(run, unit), _claim(run, unit)] if first is None else [first]
    return [ways[0], abandon(run, unit), *ways[1:]]


def _native(run: OpenRun, unit: Unit) -> list[Argv]:
    """The worker's workspace, transport and job are still there: nothing else ever takes them away."""
    lock = run.state.lock
    if lock is not None and lock.unit_id == unit.unit_id:
        return [_marked(run, unit, "integration-release"), _do(run, "resume")]
    if unit.cleanup is None:
        running = unit.attempt.process_state == RUNNING
        return [_do(run, "reap", "--unit-id", unit.unit_id)] if running else [abandon(run, unit), *_run(run)]
    return [] if unit.cleanup["artifact_cleanup"]["complete"] else [_do(run, "resume")]


def _cleaned(run: OpenRun, unit: Unit) -> list[Argv]:
    lock = run.state.lock
    if lock is not None and lock.unit_id == unit.unit_id:
        return [_marked(run, unit, "integration-release"), _do(run, "resume")]
    if unit.cleanup is not None and not unit.cleanup["artifact_cleanup"]["complete"]:
        return [_do(run, "resume")]
    if unit.integration.canonical_commit is not None or lock is not None:
        return []  # finished, or another unit has to let the lock go first
    used = {attempt.attempt_id for attempt in unit.attempts}
    number = next(n for n in count(len(used) + 1) if f"attempt-{n}" not in used)
    wave = ("--wave-id", unit.wave.id, "--wave-position", str(unit.wave.position)) if unit.wave.id is not None else ()
    return [
        _do(
            run,
            "prepare",
            "--unit-id",
            unit.unit_id,
            "--base",
            "<head>",
            "--packet",
            "<packet-file>",
            "--attempt-id",
            f"attempt-{number}",
            *(part for name in unit.dependencies for part in ("--dependency", name)),
            *wave,
        )
    ]
