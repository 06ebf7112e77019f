"""The end of a story: the user tidies up, then only commands from `next` are given until every unit is finished."""

from __future__ import annotations

from typing import Any

from tests.controller.model_units import TERMINAL, Unit
from tests.controller.model_world import RUN, World

_ROUNDS = 60


def finish(world: World) -> None:
    """Bring the run to an end; AssertionError where no command of `next` leads on."""
    world.log.append("--- the end")
    if not world.model.facts.on_branch:
        world.switch()
    world.tidy()
    world.rewind()
    if world.fog is not None:
        world.recover()
    assert world.fog is None, "after a crash and a tidy checkout, resume does not say RESUMED"
    tried: set[tuple[str, ...]] = set()
    for _ in range(_ROUNDS):
        status = world.call("status", "--run-id", RUN).expect("STATUS").body
        open_ones = [
            name for name, unit in status["units"].items() if unit["state"] not in TERMINAL or unit["cleanup"] is None
        ]
        held = status["integration_lock"]
        if not open_ones and held is None:
            break
        name = held["unit_id"] if held is not None else open_ones[0]
        _one_step(world, name, status["units"][name]["state"], tried)
    else:
        raise AssertionError("the end is never reached")
    _at_rest(world)


def _one_step(world: World, name: str, state: str, tried: set[tuple[str, ...]]) -> None:
    """Give the commands that `next` names until one leads on."""
    revision = world.manifest(RUN)["revision"]
    choices = world.call("status", "--run-id", RUN, "--unit-id", name).body["next"]
    answers = []
    # What was tried in this very state comes last, so that the way is not the same circle for ever.
    for argv in sorted(choices, key=lambda argv: (state, *argv) in tried):
        tried.add((state, *argv))
        answer = _carry_out(world, world.model.units.get(name), argv)
        world.log.append(f"next {' '.join(argv)[:90]} -> {answer}")
        answers.append(answer)
        if answer == "looked":
            continue
        if world.manifest(RUN)["revision"] != revision or answer == "done":
            return
    raise AssertionError(f"dead end: unit {name} in state {state}: {answers}")


def _carry_out(world: World, unit: Unit | None, argv: list[str]) -> str:
    """Give one command, placeholders filled in as its host would."""
    program = argv[0].rsplit("/", 1)[-1]
    if program == "git":
        return _git(world, argv)
    if program == "env":
        assert unit is not None
        if unit.job_dir is None:
            world.start_job(unit)
            return "done"
        return "looked"
    if program == "peer-job-runner":
        return _wait(world, unit)
    assert program == "unit-workspace", argv
    values = {
        "<head>": world.head,
        "<job-id>": (unit and unit.job_dir) or "none",
        "<sha256>": "a" * 64,
        "<message>": f"feat: {unit.name} {unit.attempt}" if unit else "",
        "<verification-command>": "true",
        "<summary>": "native",
        "<interactive|headless>": "interactive",
        "<commit>": _native(world) if "<commit>" in argv else "",
    }
    filled = [values.get(word, word) for word in argv[1:] if word != "<argument ...>"]
    if any("<" in word for word in filled):
        return "looked"
    reply = world.call(*filled)
    world.tell(argv[1], reply)
    return f"{reply.word} {reply.stderr.strip()[:200]}"


def _git(world: World, argv: list[str]) -> str:
    if argv[3] == "diff":
        world.git(*argv[3:])
        return "looked"
    if argv[3] == "commit":
        argv = [*argv[:-1], f"feat: by hand {world.steps}"]
    world.git("-C", str(world.repo), *argv[3:], check=False)
    return "looked"


def _wait(world: World, unit: Unit | None) -> str:
    """The job that is waited for ends, if it can."""
    if unit is None or unit.ended != "never-started":
        return "looked"
    if not unit.authorized:
        reply = world.call(*world._authorization(unit.name))
        if reply.code != 0:
            world.end_work(unit, "failed", "none")
            return "done"
    world.work(unit)
    world.end_work(unit, "done", "good")
    return "done"


def _native(world: World) -> str:
    world.write("native.txt")
    world.commit()
    return world.head


def _at_rest(world: World) -> None:
    """Nothing is left over, and nothing more happens."""
    world.check()
    world.call("resume", "--run-id", RUN).expect("RESUMED")  # closes blockers that are behind the run
    journal = world.journal_bytes()
    world.call("resume", "--run-id", RUN).expect("RESUMED")
    assert world.journal_bytes() == journal, "resume finds work in a finished run"
    manifest: dict[str, Any] = world.manifest(RUN)
    assert manifest["integration_lock"] is None
    assert world.git("status", "--porcelain", "-uall") == ""
    assert world.git("worktree", "list").count("\n") == 0, "a workspace is left registered"
    world.check()
    world.call("journal", "verify", "--run-id", RUN).expect("JOURNAL_OK")
    # What a kill leaves of a file that was being written locks nothing, and goes with `doctor --fix`.
    found = [finding for finding in world.call("doctor", "--fix").body["findings"] if not finding["fixed"]]
    # A plan-wide verification that failed stays open until one passes; not every story ends ready for one.
    left = [finding for finding in found if finding["meaning"] != "plan-wide verification failed"]
    assert not left, left
