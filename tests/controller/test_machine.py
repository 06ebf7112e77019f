"""The one table of states: no unit can be lost in a state that nothing leads out of (design.md section 4)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import controller.cli  # noqa: F401 - registers the commands
from controller import machine
from controller.errors import Refused
from controller.options import cli
from tests.host import ROOT

DOCUMENTED = [
    ("cleaned", "prepare", "queued"),
    ("queued", "authorize-dispatch", "authoring"),
    ("queued", "record-job", "authoring"),
    ("queued", "resume", "authoring"),
    ("authoring", "terminalize", "authored"),
    ("authoring", "resume", "authored"),
    ("authored", "terminalize", "integration-pending"),
    ("authored", "resume", "integration-pending"),
    ("integration-pending", "preflight", "integration-pending"),
    ("preserved", "preflight", "integration-pending"),
    ("integration-pending", "mark-applied", "integrated"),
    ("integration-pending", "resume", "integrated"),
    ("integrated", "mark-verified", "verified"),
    ("verified", "mark-verified", "verified"),
    ("verified", "mark-committed", "committed"),
    ("committed", "mark-committed", "committed"),
    ("verified", "resume", "committed"),
    ("integration-pending", "restore", "restoring"),
    ("integrated", "restore", "restoring"),
    ("verified", "restore", "restoring"),
    ("restoring", "restore", "preserved"),
    ("restoring", "integrate", "preserved"),
    ("restoring", "resume", "preserved"),
    ("committed", "cleanup", "cleaned"),
    ("committed", "integrate", "cleaned"),
    ("committed", "resume", "cleaned"),
    ("queued", "cleanup --abandon", "cleaned"),
    ("authoring", "cleanup --abandon", "cleaned"),
    ("authored", "cleanup --abandon", "cleaned"),
    ("integration-pending", "cleanup --abandon", "cleaned"),
    ("preserved", "cleanup --abandon", "cleaned"),
    ("native-completed", "cleanup --abandon", "native-completed"),
    ("authoring", "complete-fallback", "native-completed"),
    ("preserved", "complete-fallback", "native-completed"),
    ("cleaned", "complete-fallback", "native-completed"),
]
FORBIDDEN = [
    ("integrated", "cleanup --abandon"),
    ("verified", "cleanup --abandon"),
    ("committed", "cleanup --abandon"),
    ("restoring", "cleanup --abandon"),
    ("queued", "integrate"),
    ("authoring", "integrate"),
    ("authored", "integrate"),
    ("cleaned", "integrate"),
    ("native-completed", "integrate"),
    ("native-completed", "prepare"),
    ("integrated", "preflight"),
    ("committed", "restore"),
    ("cleaned", "restore"),
    ("queued", "integration-acquire"),
    ("committed", "claim-fallback"),
    ("integrated", "complete-fallback"),
    ("integrated", "integration-release"),
    ("verified", "integration-release"),
]


def test_the_public_names_of_the_states_are_the_protocol_s() -> None:
    names = (
        "queued authoring authored integration-pending integrated verified committed restoring preserved cleaned "
        "native-completed"
    )
    assert list(machine.STATES) == names.split()


@pytest.mark.parametrize(("source", "trigger", "dest"), DOCUMENTED, ids=lambda value: value)
def test_every_documented_way_is_open(source: str, trigger: str, dest: str) -> None:
    assert dest in machine.destinations(trigger, source)
    assert trigger in machine.triggers(source)
    assert machine.permits(source, dest)


@pytest.mark.parametrize(("source", "trigger"), FORBIDDEN, ids=lambda value: value)
def test_a_way_on_which_something_could_be_lost_is_closed(source: str, trigger: str) -> None:
    assert machine.destinations(trigger, source) == ()
    with pytest.raises(Refused) as refused:
        machine.require(trigger, "U1", source)
    assert source in refused.value.message
    assert refused.value.remedy is not None
    assert all(name in refused.value.remedy for name in machine.triggers(source))


@pytest.mark.parametrize("start", machine.STATES)
def test_from_every_state_an_end_can_be_reached_by_commands_alone(start: str) -> None:
    reached, pending = {start}, [start]
    while pending:
        state = pending.pop()
        for trigger in machine.triggers(state):
            for dest in machine.destinations(trigger, state):
                if dest not in reached:
                    reached.add(dest)
                    pending.append(dest)
    assert reached & machine.TERMINAL, f"{start} is a dead end"
    assert "native-completed" in reached or start in ("committed", "cleaned", "native-completed")


def test_every_trigger_is_a_command_that_a_host_can_call() -> None:
    later = {"wave-advance"}  # waves come with a later issue; the table keeps their place
    triggers = {trigger.partition(" ")[0] for state in machine.STATES for trigger in machine.triggers(state)}
    assert triggers - later <= set(cli.commands)


def test_no_record_may_jump_over_a_step() -> None:
    for source, dest in [
        ("queued", "authored"), ("queued", "committed"), ("authored", "integrated"), ("integrated", "committed"),
        ("integration-pending", "verified"), ("preserved", "committed"), ("cleaned", "authoring"),
        ("native-completed", "queued"), ("committed", "preserved"), ("verified", "cleaned"),
    ]:  # fmt: skip
        assert not machine.permits(source, dest), (source, dest)


def test_the_diagram_is_the_same_in_every_process_and_shows_every_state() -> None:
    texts = set()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", "from controller.machine import diagram; print(diagram(), end='')"],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        texts.add(done.stdout.decode())
    assert texts == {machine.diagram()}
    text = machine.diagram()
    assert text.startswith("stateDiagram-v2\n")
    assert all(state.replace("-", "_") in text for state in machine.STATES)
    arrows = [line for line in text.splitlines() if "-->" in line]
    assert len(arrows) == len(set(arrows))


def test_the_documented_diagram_is_the_table_s() -> None:
    pages = [page for page in Path(ROOT).rglob("*.md") if "stateDiagram-v2" in page.read_text("utf-8", "replace")]
    pages = [page for page in pages if not {".venv", ".git", "node_modules"} & set(page.parts)]
    assert pages
    for page in pages:
        assert machine.diagram() in page.read_text("utf-8"), f"{page} shows another table"
