"""Which worker a task gets, and why: seed 003's routing questions and its order of precedence. Pure.

The task's `invocation`, then the Fleet table of GOAL.md, then the user's configuration, then the economy default of
the worker. Every worker that comes out has a model and an effort; while a Fleet table is in force, a place that
names only one of them is refused instead of completed. Source: seed 003; launcher.md section 14; design.md section 7.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters.fleet_table import FleetTable
from adapters.invocation import FIELDS, Pins, from_fields
from adapters.refusal import Refusal, quoted, unknown
from adapters.resolution import (
    DEFAULT_STANCE,
    EFFORTS,
    NO_MODELS,
    TIERS,
    ModelMap,
    Resolution,
    effort_in_name,
    resolve,
)
from adapters.route_table import ROUTES
from adapters.task_file import QUESTIONS, TaskFile

Source = Literal["task invocation", "fleet table", "configuration", "economy default"]

_ECONOMY_TIER = "light"
_ECONOMY_EFFORT = "medium"
_ECONOMY: dict[str, Pins] = {
    "codex": Pins(tier=_ECONOMY_TIER, effort=_ECONOMY_EFFORT, place=""),
    "claude": Pins(model="claude-haiku-4-5", effort=_ECONOMY_EFFORT, place=""),
    "composer": Pins(model=ROUTES["composer"].default_model, effort=_ECONOMY_EFFORT, place=""),
    "grok-cursor": Pins(model=ROUTES["grok-cursor"].default_model, effort="high", place=""),
    "cursor": Pins(tier=_ECONOMY_TIER, effort=_ECONOMY_EFFORT, place=""),
    "antigravity": Pins(tier=_ECONOMY_TIER, effort="low", place=""),
    "opencode": Pins(tier=_ECONOMY_TIER, effort=_ECONOMY_EFFORT, place=""),
    "devin": Pins(tier=_ECONOMY_TIER, effort=_ECONOMY_EFFORT, place=""),
    "command": Pins(model="auto", effort=_ECONOMY_EFFORT, place=""),
}
"""Seed 003's economy: a cheap model named explicitly, medium effort (Antigravity's and Grok's is part of the name).

There is none for `grok-cli`: the sources name no cheap model of it.
"""

# These CLIs take no effort beside the model; naming the model is the whole pin (seed 003: "already pinned").
_EFFORT_IS_THE_MODEL_S = frozenset({"cursor", "composer", "grok-cursor", "antigravity", "devin", "command"})

_ROUTING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("many_files", ("composer", "cursor")),
    ("mechanically_verifiable", ("codex",)),
    ("high_volume", ("antigravity", "claude")),
)
_REQUIRED_QUESTIONS = QUESTIONS[:3]


class FleetConfig(msgspec.Struct, frozen=True):
    """The user's `[fleet]`: a stance for all workers, and pins by worker."""

    stance: str | None = None
    workers: dict[str, Pins] = {}


class Step(msgspec.Struct, frozen=True):
    """One step of the precedence: what it says, and whether it decided."""

    source: Source
    outcome: Literal["taken", "overridden", "names the worker only", "absent"]
    place: str | None
    says: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The worker of a task. `effort` is never empty; `routing` says how the worker itself was chosen."""

    route: str
    resolution: Resolution
    effort: str
    source: Source
    routing: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...]


def parse_fleet_config(document: object, where: str = "config.toml") -> FleetConfig:
    """Check the `fleet` table of the user's configuration: `stance`, and `[fleet.<worker>]` with the pin fields."""
    if not isinstance(document, dict):
        raise Refusal(f"{where}: fleet must be a table", expected="[fleet.codex]", found=type(document).__name__)
    workers: dict[str, Pins] = {}
    for key, value in document.items():
        place = f"{where} [fleet.{key}]"
        if key == "stance" and isinstance(value, str):
            continue
        if key != "stance" and key not in ROUTES:
            raise unknown(f"key in [fleet] of {where}:", key, ("stance", *ROUTES))
        if not isinstance(value, dict) or not all(isinstance(text, str) and text.strip() for text in value.values()):
            raise Refusal(
                f"{place} must hold texts",
                expected=f"{', '.join(FIELDS[1:])}, each a text",
                found=quoted(str(value)),
                remedy=f'write [fleet.{key}] and below it for example tier = "light"',
            )
        pins = from_fields({**value, "worker": key}, place)
        assert pins.worker is not None
        workers[pins.worker] = pins
    return FleetConfig(document.get("stance"), workers)


def decide(
    task: TaskFile,
    table: FleetTable | None = None,
    config: FleetConfig | None = None,
    models: ModelMap = NO_MODELS,
) -> Decision:
    """The task's worker; `Refusal` when none may be dispatched or a pin is missing under a Fleet table."""
    config = config or FleetConfig()
    route, routing = _worker(task, table)
    levels = _levels(task, route, table, config, models)
    taken = next((level for level in levels if _decides(*level)), None)
    if taken is None:
        raise Refusal(
            f"{route} has no economy default",
            expected="a model and an effort, or a tier",
            found="none in the task, the Fleet table or the configuration",
            remedy="pin them in the task's invocation or in a row of the Fleet table",
        )
    source, pins = taken
    assert pins is not None
    strict = table is not None and source != "economy default"
    resolution, effort, notes = _settle(pins, route, config, models, strict=strict)
    lower = [said for level, said in levels[levels.index(taken) + 1 :] if said is not None and said.pins_anything]
    steps = tuple(_step(level, said, level == source) for level, said in levels)
    notes = [*pins.notes, *notes]
    if table is not None and route not in table.rows:
        notes.append(
            f"the Fleet table of {table.name} has no row for {route} (rows: {', '.join(table.rows) or 'none'})"
        )
    if source == "task invocation" and lower:
        try:
            notes += _escalation(task, resolution, effort, _settle(lower[0], route, config, models, strict=False))
        except Refusal as error:
            notes.append(f"{lower[0].place} is overridden, and is wrong: {error.message}")
    if task.network and route != "codex":
        notes.append(f"network is a switch of codex only; {route} ignores it")
    return Decision(
        route=route,
        resolution=resolution,
        effort=effort,
        source=source,
        routing=routing,
        steps=steps,
        notes=tuple(dict.fromkeys(notes)),
    )


def _worker(task: TaskFile, table: FleetTable | None) -> tuple[str, str]:
    answers = task.answers
    if answers.get("needs_judgment"):
        raise Refusal(
            "the task needs judgment beyond what is written in it",
            expected="a task that a worker can do from its text alone (needs_judgment: no)",
            found="needs_judgment: yes",
            remedy="do it yourself, or split it further and write down what was left to judgment",
        )
    if task.invocation is not None and task.invocation.worker is not None:
        return task.invocation.worker, f"named by the task's {task.invocation.place}"
    missing = [question for question in _REQUIRED_QUESTIONS if question not in answers]
    if missing:
        raise Refusal(
            "nothing says which worker the task is for",
            expected=f"an answer to each of {', '.join(_REQUIRED_QUESTIONS)}, or an invocation that names the worker",
            found=f"no answer to {', '.join(missing)}",
            remedy="add them as yes or no below `routing:`",
        )
    for question, candidates in _ROUTING:
        if answers.get(question):
            rows = table.rows if table is not None else {}
            chosen = next((name for name in candidates if name in rows), candidates[0])
            return chosen, f"{question}: yes means {' or '.join(candidates)}"
    raise Refusal(
        "the routing questions leave no worker",
        expected=f"yes to one of {', '.join(question for question, _ in _ROUTING)}",
        found=", ".join(f"{question}: no" for question in answers),
        remedy="split the task further, or name the worker in its invocation",
    )


_Level = tuple[Source, Pins | None]


def _levels(
    task: TaskFile, route: str, table: FleetTable | None, config: FleetConfig, models: ModelMap
) -> list[_Level]:
    configured = config.workers.get(route)
    if configured is None or not configured.pins_anything:
        cell = models.cell(config.stance or DEFAULT_STANCE, route, _ECONOMY_TIER)
        if cell is not None:
            effort = _ECONOMY[route].effort if route in _ECONOMY else _ECONOMY_EFFORT
            configured = Pins(worker=route, tier=_ECONOMY_TIER, effort=effort, place=cell[1])
    economy = _ECONOMY.get(route)
    return [
        ("task invocation", task.invocation),
        ("fleet table", table.rows.get(route) if table is not None else None),
        ("configuration", configured),
        ("economy default", msgspec.structs.replace(economy, place="seed 003") if economy is not None else None),
    ]


def _decides(source: Source, pins: Pins | None) -> bool:
    """Whether this level is the one that counts: it pins something, or it is the row that the mission has for it."""
    return pins is not None and (pins.pins_anything or source == "fleet table")


def _step(source: Source, pins: Pins | None, taken: bool) -> Step:
    if pins is None:
        return Step(source, "absent", None, "nothing")
    if taken:
        return Step(source, "taken", pins.place, pins.described())
    outcome: Literal["names the worker only", "overridden"]
    outcome = "overridden" if pins.pins_anything else "names the worker only"
    return Step(source, outcome, pins.place, pins.described())


def _settle(
    pins: Pins, route: str, config: FleetConfig, models: ModelMap, *, strict: bool
) -> tuple[Resolution, str, list[str]]:
    """Resolve what one place pins for `route`; `strict`: refuse what it leaves open instead of completing it."""
    model_open = pins.model is None and pins.tier is None
    haiku = route == "claude" and pins.model is not None and "haiku" in pins.model
    no_switch = pins.model is not None and (route in _EFFORT_IS_THE_MODEL_S or haiku)
    effort_open = pins.effort is None and pins.tier is None and not no_switch
    if strict and (model_open or effort_open):
        what = " and ".join(name for name, missing in (("model", model_open), ("effort", effort_open)) if missing)
        raise Refusal(
            f"{pins.place} does not pin the {what} of {route}",
            expected="a model and an effort, or a tier: the Fleet table is in force",
            found=pins.described(),
            remedy=f"name the {what} there; an account's or a profile's default is never used",
        )
    notes: list[str] = []
    tier = pins.tier
    if model_open:
        tier = _ECONOMY_TIER
        notes.append(f"{pins.place} names no model: tier {tier} is taken")
    resolution = resolve(
        route,
        tier=tier,
        effort=pins.effort,
        stance=pins.stance or config.stance,
        explicit=pins.model,
        models=models,
    )
    effort = resolution.effort
    if effort is None:
        effort = effort_in_name(resolution.model) or _ECONOMY_EFFORT
        kind = "the CLI has no effort beside the model" if no_switch else f"{pins.place} names no effort"
        notes.append(f"{kind}: recorded as {effort}")
    return resolution, effort, notes


def _escalation(
    task: TaskFile, resolution: Resolution, effort: str, below: tuple[Resolution, str, list[str]]
) -> list[str]:
    """What seed 003's escalation rule has to say when the task raises tier or effort over what lies below it."""
    steps = {"effort": EFFORTS.index(effort) - EFFORTS.index(below[1])}
    if resolution.tier is not None and below[0].tier is not None:
        steps["tier"] = TIERS.index(below[0].tier) - TIERS.index(resolution.tier)
    notes = []
    for what, raised in steps.items():
        if raised > 0 and not task.escalated:
            notes.append(
                f"the task raises the {what}: allowed only in a rewrite after a capability failure, "
                "noted as `escalated: true`"
            )
        if raised > 1:
            notes.append(f"the task raises the {what} by {raised} steps; the rule is one at a time")
    return notes
