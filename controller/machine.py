"""The unit state machine: one `transitions` table; legality lives nowhere else (design.md section 4).

A trigger is a command. A row says that the command may take a unit from a source state to a destination state; the
commands add the evidence that each move needs, and the fold refuses a record that no row allows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from controller.errors import Refused

STATES = (
    "queued",
    "authoring",
    "authored",
    "integration-pending",
    "integrated",
    "verified",
    "committed",
    "restoring",
    "preserved",
    "cleaned",
    "native-completed",
)
TERMINAL = frozenset({"cleaned", "native-completed"})
LOCKABLE = ["integration-pending", "integrated", "verified", "preserved", "committed", "cleaned"]
BEFORE_COMMIT = ["integration-pending", "integrated", "verified", "restoring", "preserved"]

# (trigger, sources, destination); a destination of None means that the state stays what it is.
ROWS: tuple[tuple[str, list[str], str | None], ...] = (
    ("prepare", ["cleaned"], "queued"),
    ("prepare", [s for s in STATES if s not in TERMINAL], None),
    ("authorize-dispatch", ["queued", "authoring"], "authoring"),
    ("record-job", ["queued"], "authoring"),
    ("sync-job", list(STATES), None),
    ("reap", list(STATES), None),
    ("terminalize", ["authoring"], "authored"),
    ("terminalize", ["authored", "integration-pending"], "integration-pending"),
    ("integration-acquire", LOCKABLE, None),
    ("preflight", ["integration-pending", "preserved"], "integration-pending"),
    ("mark-applied", ["integration-pending", "integrated"], "integrated"),
    ("mark-verified", ["integrated", "verified"], "verified"),
    ("mark-committed", ["verified", "committed"], "committed"),
    ("wave-advance", ["committed"], None),
    ("integrate", ["integration-pending", "preserved"], "integration-pending"),
    ("integrate", ["integration-pending", "integrated"], "integrated"),
    ("integrate", ["integrated", "verified"], "verified"),
    ("integrate", ["verified"], "committed"),
    ("integrate", ["committed"], "cleaned"),
    ("integrate", BEFORE_COMMIT[:-1], "restoring"),
    ("integrate", ["restoring"], "preserved"),
    ("restore", BEFORE_COMMIT, "restoring"),
    ("restore", ["restoring"], "preserved"),
    (
        "integration-release",
        ["integration-pending", "preserved", "committed", "cleaned", "native-completed"],
        None,
    ),
    ("cleanup", ["committed"], "cleaned"),
    ("cleanup", ["cleaned", "native-completed"], None),
    ("cleanup --abandon", ["queued", "authoring", "authored", "integration-pending", "preserved"], "cleaned"),
    ("cleanup --abandon", ["cleaned", "native-completed"], None),
    (
        "claim-fallback",
        ["queued", "authoring", "authored", "integration-pending", "preserved", "cleaned"],
        None,
    ),
    (
        "complete-fallback",
        ["queued", "authoring", "authored", "integration-pending", "preserved", "cleaned"],
        "native-completed",
    ),
    ("resume", ["queued"], "authoring"),
    ("resume", ["authoring"], "authored"),
    ("resume", ["authored"], "integration-pending"),
    ("resume", ["integration-pending"], "integrated"),
    ("resume", ["integrated"], "verified"),
    ("resume", ["verified"], "committed"),
    ("resume", ["integration-pending", "integrated", "verified", "restoring"], "restoring"),
    ("resume", ["restoring"], "preserved"),
    ("resume", ["committed"], "cleaned"),
    ("resume", ["preserved", "cleaned", "native-completed"], None),
)


@lru_cache(maxsize=1)
def _machine() -> Any:
    from transitions import Machine

    rows = [
        {"trigger": trigger, "source": source, "dest": source if dest is None else dest}
        for trigger, sources, dest in ROWS
        for source in sources
    ]
    return Machine(
        model=None,
        states=list(STATES),
        transitions=rows,
        initial="queued",
        auto_transitions=False,
        send_event=True,
    )


def triggers(state: str) -> tuple[str, ...]:
    """The commands that a unit in this state may be given."""
    return tuple(sorted(set(_machine().get_triggers(state))))


def destinations(trigger: str, state: str) -> tuple[str, ...]:
    """The states to which this command may take a unit in this state."""
    return tuple(row.dest for row in _machine().get_transitions(trigger, source=state))


def permits(source: str, dest: str) -> bool:
    """Whether any command may take a unit from source to dest."""
    return source == dest or bool(_machine().get_transitions(source=source, dest=dest))


def require(trigger: str, unit_id: str, state: str) -> None:
    """Refuse (`REFUSED`) a command that the table does not allow in this state."""
    if destinations(trigger, state):
        return
    allowed = sorted({source for name, sources, _ in ROWS if name == trigger for source in sources})
    raise Refused(
        f"{trigger} is not legal for unit {unit_id} in state {state}",
        detail={"unit_id": unit_id, "state": state},
        expected=f"state {' or '.join(allowed)}",
        found=f"state {state}",
        remedy=f"use one of: {', '.join(triggers(state))}",
    )


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> queued: prepare"]
    seen: dict[tuple[str, str], list[str]] = {}
    for trigger, sources, dest in ROWS:
        for source in sources:
            if dest is not None and source != dest:
                names = seen.setdefault((source, dest), [])
                if trigger not in names:
                    names.append(trigger)
    lines += [
        f"    {a.replace('-', '_')} --> {b.replace('-', '_')}: {', '.join(names)}" for (a, b), names in seen.items()
    ]
    return "\n".join([*lines, "    cleaned --> [*]", "    native_completed --> [*]"]) + "\n"
