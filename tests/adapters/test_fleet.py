"""Every task gets a worker whose model and effort somebody wrote down; nothing runs on an account's default."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fleet import Decision, FleetConfig, decide, parse_fleet_config
from adapters.fleet_table import FleetTable, parse_fleet
from adapters.invocation import from_command
from adapters.refusal import Refusal
from adapters.resolution import NO_MODELS, ModelMap, parse_models
from adapters.task_file import TaskFile, parse_task

VERIFIABLE = "routing:\n  needs_judgment: no\n  many_files: no\n  mechanically_verifiable: yes\n"
MANY = "routing:\n  needs_judgment: no\n  many_files: yes\n  mechanically_verifiable: yes\n"
BULK = "routing:\n  needs_judgment: no\n  many_files: no\n  mechanically_verifiable: no\n  high_volume: yes\n"
PINNED = "| Worker | Model | Effort |\n|---|---|---|\n| codex | gpt-5.6-terra | high |\n"


def task(keys: str = VERIFIABLE) -> TaskFile:
    return parse_task(f"---\nfeature: F-1\nwrite_allowed: [src/**]\n{keys}---\nDo it.\n".encode(), "T-1.md")


def fleet(table: str) -> FleetTable:
    found = parse_fleet(f"# Goal\n\n## Fleet\n\n{table}\n## Next\n")
    assert found is not None
    return found


def row(columns: str, cells: str) -> FleetTable:
    return fleet(f"{columns}\n{'|---' * (columns.count('|') - 1)}|\n{cells}\n")


def pinned(decision: Decision) -> tuple[str, str, str, str]:
    return decision.route, decision.resolution.token, decision.effort, decision.source


def refusal(run: Any, *arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        run(*arguments)
    return caught.value


# --- precedence -----------------------------------------------------------------------------------


def test_each_level_overrides_those_below_it_and_all_are_told() -> None:
    config = parse_fleet_config({"codex": {"tier": "standard", "effort": "low"}})
    invocation = VERIFIABLE + "invocation:\n  model: gpt-5.6-sol\n  effort: medium\n"
    everything = decide(task(invocation), fleet(PINNED), config)
    assert pinned(everything) == ("codex", "gpt-5.6-sol", "medium", "task invocation")
    assert [(step.source, step.outcome) for step in everything.steps] == [
        ("task invocation", "taken"),
        ("fleet table", "overridden"),
        ("configuration", "overridden"),
        ("economy default", "overridden"),
    ]
    assert pinned(decide(task(), fleet(PINNED), config)) == ("codex", "gpt-5.6-terra", "high", "fleet table")
    assert pinned(decide(task(), None, config)) == ("codex", "gpt-5.6-terra", "low", "configuration")
    assert pinned(decide(task())) == ("codex", "gpt-5.6-luna", "medium", "economy default")


def test_an_invocation_that_names_only_the_worker_takes_that_workers_row() -> None:
    found = decide(task("invocation:\n  worker: codex\n"), fleet(PINNED))
    assert pinned(found) == ("codex", "gpt-5.6-terra", "high", "fleet table")
    assert found.steps[0].outcome == "names the worker only"


def test_the_models_map_of_the_user_beats_the_economy_default() -> None:
    models = parse_models({"claude": {"light": "sonnet"}})
    bulk = decide(task(BULK), fleet("| Worker | Tier |\n|---|---|\n| claude | light |\n"), None, models)
    assert pinned(bulk) == ("claude", "sonnet", "low", "fleet table")
    named = decide(task("invocation: claude -p\n"), None, None, models)
    assert pinned(named) == ("claude", "sonnet", "medium", "configuration")
    assert named.steps[2].place == "models.claude.light"


def test_a_stance_of_the_configuration_reaches_the_table() -> None:
    config = parse_fleet_config({"stance": "cost-aware", "claude": {"tier": "standard"}})
    assert decide(task("invocation: claude -p\n"), None, config).resolution.model == "sonnet"


# --- unpinned -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "cells", "missing"),
    [
        ("| Worker | Model | Effort |", "| codex | gpt-5.6-terra | |", "effort"),
        ("| Worker | Model | Effort |", "| codex | default | medium |", "model"),
        ("| Worker | Model | Effort |", "| codex | - | - |", "model and effort"),
        ("| CLI | Agent | Best at |", "| codex exec --profile worker | Codex | tight tasks |", "model and effort"),
        ("| CLI | Best at |", "| codex exec -m gpt-5.6-luna | tight tasks |", "effort"),
    ],
)
def test_an_unpinned_row_of_the_fleet_in_force_is_refused(columns: str, cells: str, missing: str) -> None:
    error = refusal(decide, task(), row(columns, cells))
    assert f"does not pin the {missing} of codex" in error.message
    assert "GOAL.md line 7" in error.message


def test_an_unpinned_invocation_is_refused_while_a_fleet_is_in_force() -> None:
    keys = "invocation:\n  worker: codex\n  model: gpt-5.6-sol\n"
    assert "effort" in refusal(decide, task(keys), fleet(PINNED)).message
    without = decide(task(keys))
    assert pinned(without) == ("codex", "gpt-5.6-sol", "medium", "task invocation")
    assert any("names no effort" in note for note in without.notes)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('codex exec -m gpt-5.6-luna -c model_reasoning_effort="medium"', ("codex", "gpt-5.6-luna", "medium")),
        ("agent -p ... --model composer", ("composer", "composer-2.5-fast", "medium")),
        ("cursor-agent -p --model=cursor-grok-4.6-high", ("grok-cursor", "cursor-grok-4.6-high", "high")),
        ("agent -p --model gpt-5.6-sol", ("cursor", "gpt-5.6-sol", "medium")),
        ("agy -p ... -m gemini-3.5-flash-low", ("antigravity", "gemini-3.5-flash-low", "low")),
        ("claude -p ... --model claude-haiku-4-5", ("claude", "claude-haiku-4-5", "medium")),
        ("claude -p --model opus --effort high", ("claude", "opus", "high")),
        ("opencode run -m openai/gpt-5.6-terra --variant high", ("opencode", "openai/gpt-5.6-terra", "high")),
    ],
)
def test_the_pinned_command_lines_of_the_dispatch_document_are_read(
    command: str, expected: tuple[str, str, str]
) -> None:
    table = row("| CLI | Agent | Pinned invocation | Best at |", f"| `{command}` | Some agent | as it is | x |")
    found = decide(task(f"invocation: '{command.replace(chr(39), '')}'\n"), table)
    assert pinned(found)[:3] == expected
    (worker,) = table.rows
    by_row = decide(task(f"invocation:\n  worker: {worker}\n"), table)
    assert pinned(by_row) == (*expected, "fleet table")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("codex exec -m <mini-model>", "placeholder"),
        ("codex exec -m", "placeholder"),
        ("codex exec -m gpt-5 --model gpt-6", "2 times"),
        ("codx exec -m gpt-5", "codex"),
        ("rm -rf /", "unknown program"),
        ("codex 'exec", "cannot be read"),
        ("", "unknown program"),
    ],
)
def test_a_command_line_that_pins_nothing_certain_is_refused(command: str, word: str) -> None:
    assert word in str(refusal(from_command, command, "here"))


def test_flags_that_are_not_taken_over_are_told() -> None:
    pins = from_command("codex exec --profile worker -m gpt-5 --sandbox danger-full-access -c x=1", "here")
    assert "--profile" in pins.notes[0] and "--sandbox" in pins.notes[0] and "-c x" in pins.notes[0]


def test_a_worker_without_an_economy_default_must_be_pinned() -> None:
    assert "no economy default" in refusal(decide, task("invocation: grok\n")).message
    assert pinned(decide(task("invocation:\n  worker: grok-cli\n  model: grok-4\n  effort: low\n")))[1] == "grok-4"


def test_xhigh_of_a_row_is_refused_elsewhere_than_codex() -> None:
    table = row("| Worker | Model | Effort |", "| claude | opus | xhigh |")
    assert "codex only" in refusal(decide, task("invocation: claude\n"), table).message


# --- the routing questions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "route"), [(VERIFIABLE, "codex"), (MANY, "composer"), (BULK, "antigravity")], ids=["tight", "many", "bulk"]
)
def test_the_routing_questions_choose_the_worker(keys: str, route: str) -> None:
    assert decide(task(keys)).route == route


@pytest.mark.parametrize(
    ("keys", "worker", "pins"),
    [(MANY, "cursor", "| cursor | auto | low |"), (BULK, "claude", "| claude | claude-haiku-4-5 | low |")],
)
def test_a_second_worker_is_chosen_when_only_it_is_in_the_fleet(keys: str, worker: str, pins: str) -> None:
    assert decide(task(keys), row("| Worker | Model | Effort |", pins)).route == worker


def test_a_task_that_needs_judgment_is_not_dispatched_whoever_is_named() -> None:
    keys = VERIFIABLE.replace("needs_judgment: no", "needs_judgment: yes")
    assert "needs judgment" in refusal(decide, task(keys)).message
    assert "needs judgment" in refusal(decide, task(keys + "invocation: codex exec\n")).message


def test_unanswered_questions_are_named() -> None:
    error = refusal(decide, task("routing:\n  needs_judgment: no\n"))
    assert "many_files, mechanically_verifiable" in error.found
    assert "no worker" in refusal(decide, task(VERIFIABLE.replace("yes", "no"))).message


def test_a_worker_outside_the_fleet_is_pinned_and_told() -> None:
    found = decide(task(MANY), fleet(PINNED))
    assert pinned(found) == ("composer", "composer-2.5-fast", "medium", "economy default")
    assert any("no row for composer (rows: codex)" in note for note in found.notes)


# --- escalation -----------------------------------------------------------------------------------


def test_a_silent_escalation_is_told() -> None:
    raised = "invocation:\n  worker: codex\n  tier: deep\n"
    notes = decide(task(raised)).notes
    assert any("escalated: true" in note for note in notes)
    assert any("by 2 steps" in note for note in notes)
    once = "escalated: true\ninvocation:\n  worker: codex\n  tier: standard\n  effort: medium\n"
    assert not any("raises" in note for note in decide(task(once)).notes)


def test_a_wrong_row_below_an_override_is_a_note_and_no_obstacle() -> None:
    table = row("| Worker | Model | Effort |", "| codex | opus | medium |")
    found = decide(task("invocation:\n  worker: codex\n  tier: light\n"), table)
    assert found.resolution.token == "gpt-5.6-luna"
    assert any("overridden, and is wrong" in note for note in found.notes)


# --- the table ------------------------------------------------------------------------------------


def test_a_goal_without_the_heading_has_no_fleet() -> None:
    assert parse_fleet("# Goal\n\n| Worker | Model |\n|---|---|\n| codex | gpt-5 |\n") is None


@pytest.mark.parametrize(
    "hidden",
    ["```\n## Fleet\n```\n", "~~~~ md\n## Fleet\n~~~\n## Fleet\n~~~~\n", "<!-- ## Fleet\n## Fleet\n-->\n"],
    ids=["fence", "long fence", "comment"],
)
def test_an_example_in_the_goal_is_no_fleet(hidden: str) -> None:
    assert parse_fleet(f"# Goal\n{hidden}\ntext\n") is None
    assert parse_fleet(f"# Goal\n{hidden}\n## Fleet\n{PINNED}") is not None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"## Fleet\n{PINNED}\n## Fleet\n{PINNED}", "twice"),
        (f"### Fleet\n{PINNED}", "another level"),
        ("## Fleet\n\nTo be decided.\n", "0 tables"),
        (f"## Fleet\n{PINNED}\n\n{PINNED}", "2 tables"),
        (f"## Fleet\n{PINNED}| codex | gpt-6 | low |\n", "two rows for the worker 'codex'"),
        ("## Fleet\n| Worker | Model |\n|---|---|\n| codex |\n", "does not fit the header"),
        ("## Fleet\n| Worker | Modle | Effort |\n|---|---|---|\n| codex | x | low |\n", "did you mean 'model'"),
        ("## Fleet\n| Worker | Model | model |\n|---|---|---|\n| codex | x | y |\n", "two columns are the model"),
        ("## Fleet\n| Worker | Model |\n|---|---|\n| kodex | gpt-5 |\n", "did you mean 'codex'"),
        ("## Fleet\n| CLI | Model |\n|---|---|\n| codex -m gpt-5 | gpt-6 |\n", "says two things of the model"),
    ],
)
def test_a_fleet_that_can_be_read_in_two_ways_is_refused(text: str, word: str) -> None:
    assert word in str(refusal(parse_fleet, text))


def test_notes_emphasis_and_escaped_bars_are_no_obstacle() -> None:
    table = row(
        "| **Agent** | `Model` | Effort | Best at | Cost a day |",
        r"| **Codex** | `gpt-5.6-terra` | medium | a \| b | 2 |",
    )
    assert pinned(decide(task(), table)) == ("codex", "gpt-5.6-terra", "medium", "fleet table")


def test_windows_line_ends_change_nothing() -> None:
    found = parse_fleet(f"## Fleet\n{PINNED}".replace("\n", "\r\n"))
    assert found is not None and list(found.rows) == ["codex"]


@given(st.lists(st.sampled_from(["## Fleet", "# x", "|", "codex", "---", "\n", " ", "`", "```", "<!--", "-->", "\\|"])))
def test_no_text_breaks_the_reader_of_the_goal(words: list[str]) -> None:
    try:
        parse_fleet("".join(words))
    except Refusal:
        pass


# --- the user's configuration ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"codx": {"tier": "light"}}, "did you mean 'codex'"),
        ({"stanse": "balanced"}, "did you mean 'stance'"),
        ({"codex": {"teir": "light"}}, "did you mean 'tier'"),
        ({"codex": {"tier": 3}}, "must hold texts"),
        ({"codex": "light"}, "must hold texts"),
        ([], "must be a table"),
    ],
)
def test_a_mistake_in_the_users_fleet_is_named(document: object, word: str) -> None:
    assert word in str(refusal(parse_fleet_config, document))


def test_a_stance_that_is_unknown_is_named() -> None:
    config = FleetConfig(stance="balancd")
    assert "balanced" in str(refusal(decide, task(), None, config))


def test_a_route_without_a_switch_for_the_network_tells_so() -> None:
    found = decide(task(MANY + "network: yes\n"), None, None, NO_MODELS)
    assert any("network is a switch of codex only" in note for note in found.notes)
    assert not any("network" in note for note in decide(task(VERIFIABLE + "network: yes\n"), models=ModelMap()).notes)
