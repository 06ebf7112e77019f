"""One completed call of each route: what reached the CLI, by which way, and what the receipt says of it.

The CLIs are fakes that take exactly the documented flags, write down what reached them and replay a recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.contract import WORKER_KEYS
from adapters.environment import COMMON_NAMES
from adapters.prompt import WORKER_LOCK
from tests.adapters.fakes.installing import called, install, received
from tests.adapters.support import ANSWER, Ran, Room, end_leftovers, scratch_folders
from tests.adapters.test_route_failures import ALL, run

# Longer than one word of a command line may be (128 KiB), and it begins like a flag.
PACKET = b'--model evil --yolo\n-p pwned\nGoal: \xc3\xbcber `$(touch pwned)` \\ "quoted"\r\n\0\n' + b"x" * 150_000
MARK = "pwned"

_SECRET_NAMES = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "XAI_API_KEY", "CURSOR_API_KEY"),
    *("GEMINI_API_KEY", "COGNITION_API_KEY", "WINDSURF_API_KEY", "OPENROUTER_API_KEY", "GITHUB_TOKEN"),
    *("OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", "OPENCODE_PERMISSION", "DEVIN_MODEL", "SSH_AUTH_SOCK"),
    *("GIT_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)
SECRETS = dict.fromkeys(_SECRET_NAMES, "leaked-secret")
CONFIGURATION = ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "GROK_CONFIG_HOME", "CURSOR_CONFIG_DIR", "XDG_DATA_HOME")
OWN = {
    "claude": {"CLAUDE_CONFIG_DIR"},
    "grok": {"GROK_CONFIG_HOME"},
    "cursor-agent": {"CURSOR_CONFIG_DIR"},
    "opencode": {
        *("XDG_DATA_HOME", "OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT"),
        *("OPENCODE_DISABLE_PROJECT_CONFIG", "OPENCODE_DISABLE_AUTOUPDATE"),
    },
    "agy": set(),
    "devin": {"XDG_DATA_HOME"},
}
WHEN_CONFINED = {"CLAUDE_CODE_TMPDIR", "IS_SANDBOX"}
MODELS = {
    "claude": "opus",
    "grok-cli": "grok-4.6",
    "cursor": "claude-fable-5-thinking-high",
    "composer": "composer-2.5-fast",
    "grok-cursor": "cursor-grok-4.6-high",
    "opencode": "anthropic/claude-opus-4-6",
    "antigravity": "gemini-3.1-pro-high",
    "devin": "swe-2",
}
SERVED = {
    "claude": "claude-opus-5-20260101",
    "grok-cli": "grok-4.6-build",
    "cursor": "Claude Fable 5 300K Thinking",
    "composer": "Composer 2.5 Fast",
    "grok-cursor": "Cursor Grok 4.6",
    "antigravity": "Gemini 3.1 Pro (High)",
    "devin": "SWE-2 High",
}


class Done:
    """A completed call: the room that it ran in, and what reached the CLI."""

    def __init__(self, room: Room, route: str, ran: Ran) -> None:
        self.room = room
        self.route = route
        self.cli = ALL[route]
        self.ran = ran
        self.result = room.result
        self.called = called(room)

    def received(self, what: str) -> bytes:
        data = received(self.room, what)
        assert data is not None
        return data


@pytest.fixture(scope="module", params=list(ALL))
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """One call of each route with a model named, looked at by many tests."""
    route: str = request.param
    room = Room(tmp_path_factory.mktemp(route))
    room.write_packet(PACKET)
    room.authorize(route, MODELS[route])
    install(room, ALL[route], "completed", model=SERVED.get(route))
    configuration = {name: str(room.home / name.lower()) for name in CONFIGURATION}
    ran = room.run(LANG="C.UTF-8", **SECRETS, **configuration)
    assert ran.code == 0, (ran.stderr, room.result)
    yield Done(room, route, ran)
    assert end_leftovers(room) == [], "a process outlived its call"
    assert scratch_folders(room) == [], "a scratch folder with the prompt was left"


def test_the_answer_is_published(done: Done) -> None:
    assert {key: done.result[key] for key in WORKER_KEYS} == ANSWER
    assert done.result["actual_route"] == done.route
    assert done.result["failure_class"] is None
    assert b"terminal_status" in done.room.log


def test_the_prompt_is_in_no_command_line(done: Done) -> None:
    # Every user of the machine can read it there, and it has a size limit.
    assert MARK not in done.called["cmdline"]
    assert len(done.called["cmdline"]) < 4000
    assert not any(MARK in word for word in done.called["argv"])


def test_the_worker_lock_opens_the_prompt_and_the_packet_closes_it_unchanged(done: Done) -> None:
    prompt = done.received("prompt")
    assert prompt.startswith(WORKER_LOCK.encode())
    assert prompt.endswith(PACKET)
    assert prompt.count(PACKET) == 1
    assert len(prompt) > 128 * 1024


def test_the_prompt_is_on_stdin_or_stdin_is_empty(done: Done) -> None:
    stdin = done.received("stdin")
    if done.cli == "devin":
        assert stdin == b""
    elif done.cli == "agy":
        assert stdin.count(b"\n") == 1
        assert json.loads(stdin)["message"]["content"].encode() == done.received("prompt")
    else:
        assert stdin == done.received("prompt")


def test_nothing_of_the_hosts_environment_reaches_the_cli(done: Done) -> None:
    environment = done.called["environment"]
    assert "leaked-secret" not in json.dumps(environment)
    common = {*COMMON_NAMES} - {"USER", "LC_ALL", "XDG_CONFIG_HOME"}
    ours = {"PATH", "PYTHONDONTWRITEBYTECODE", "CE_PEER_JOB_ID"}
    assert set(environment) - WHEN_CONFINED == ours | common | OWN[done.cli]


def test_the_cli_runs_in_the_workspace_and_is_told_so(done: Done) -> None:
    workspace = str(done.room.workspace)
    assert done.called["cwd"] == workspace
    told = {"grok": "--cwd", "cursor-agent": "--workspace", "opencode": "--dir", "agy": "--add-dir"}.get(done.cli)
    if told is not None:
        argv = done.called["argv"]
        assert argv[argv.index(told) + 1] == workspace


def test_model_and_effort_are_pinned(done: Done) -> None:
    argv = done.called["argv"]
    flag = "-m" if done.cli == "opencode" else "--model"
    assert argv[argv.index(flag) + 1] == MODELS[done.route]
    effort = {"claude": "--effort", "grok": "--effort", "opencode": "--variant"}.get(done.cli)
    if effort is not None:
        assert argv[argv.index(effort) + 1] == "high"


def test_the_receipt_says_which_model_was_served(done: Done) -> None:
    served = SERVED.get(done.route, "unverified")
    assert done.result["model_actual"] == served
    assert done.result["model_receipt_status"] == ("unverified" if served == "unverified" else "verified")


USAGE = {
    "claude": (120, 100, 7, 45, None, 0.31),
    "grok": (7210, 41_000, None, 1893, 412, 0.0127),
    "cursor-agent": (120, 100, 0, 45, None, None),
    # Two steps, added up.
    "opencode": (120, 2 * 7424, 0, 45, 0, 0.02),
    "agy": (13_823, 8800, None, 91, 90, None),
    "devin": (34_409, 30_000, None, 357, None, 0.5),
}
USAGE_KEYS = (
    *("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens"),
    *("reasoning_output_tokens", "cost_usd"),
)
SESSIONS = {
    "claude": ("3f2a9c40-7b18-4c6d-9e51-8a2b1d4f0c73", None),
    "grok": ("019e89ac-d61e-70f2-be42-30dba3d2ff43", "-r"),
    "cursor-agent": ("c6b62c6f-7ead-4fd6-9922-e952131177ff", "--resume"),
    "opencode": ("ses_0196187cfffePSBET63aaVLiQX", "-s"),
    "agy": ("4eeb7dfd-37ca-4adc-98ca-253d648f6a72", "--conversation"),
    "devin": ("zinc-order", "-r"),
}


def test_usage_is_what_the_cli_measured(done: Done) -> None:
    assert tuple(done.result["usage"][key] for key in USAGE_KEYS) == USAGE[done.cli]


def test_the_session_and_how_to_go_on_with_it_are_recorded(done: Done) -> None:
    session, resume = SESSIONS[done.cli]
    assert done.result["session_id"] == session
    assert done.result["resume_arguments"] == ([] if resume is None else [resume, session])


def test_the_version_and_what_holds_the_worker_are_in_the_receipt(done: Done) -> None:
    from tests.adapters.fakes.program import VERSIONS

    assert done.result["cli_version"] == VERSIONS[done.cli]
    assert (done.result["confinement"] == "cli-sandbox") == (done.cli == "cursor-agent")


# What no JSON and no UTF-8 can carry; agy's prompt is JSON.
BYTES = b"Goal: caf\xe9 \xff\xfe\0 bytes\r\n"


@pytest.mark.parametrize("status", ["blocked", "scope_expansion"])
@pytest.mark.parametrize("route", ALL)
def test_a_worker_that_cannot_go_on_is_no_failure(room: Room, route: str, status: str) -> None:
    expansion = {"requested_paths": ["b.txt"], "reason": "it is there"} if status == "scope_expansion" else None
    packet = b"Goal\n" if route == "antigravity" else BYTES
    room.write_packet(packet)
    answer = {**ANSWER, "terminal_status": status, "scope_expansion": expansion}
    result = run(room, route, "completed", 0, answer=answer)
    assert result["terminal_status"] == status
    assert result["scope_expansion"] == expansion
    prompt = received(room, "prompt")
    assert prompt is not None and prompt.endswith(packet)
    # `auto` leaves the model to the CLI.
    named = {"-m", "--model"} & {*called(room)["argv"]}
    assert bool(named) == (route in ("composer", "grok-cursor"))


@pytest.mark.parametrize(
    ("route", "model", "served"),
    [
        ("claude", "opus", "claude-sonnet-5-20260101"),
        ("grok-cli", "grok-4.6", "grok-4.5"),
        ("cursor", "claude-fable-5-thinking-high", "Claude Fable 5"),
        ("composer", "composer-2.5-fast", "Composer 2.5"),
        ("grok-cursor", "cursor-grok-4.6-high", "Cursor Grok 4.5"),
        ("antigravity", "gemini-3.1-pro-high", "gemini-3.5-flash-low"),
        ("devin", "claude-opus-4.6", "SWE-2 High"),
    ],
)
def test_another_model_than_the_one_asked_for_is_told(room: Room, route: str, model: str, served: str) -> None:
    install(room, ALL[route], "completed", model=served)
    room.authorize(route, model)
    assert room.run().code == 0
    assert (room.result["model_actual"], room.result["model_receipt_status"]) == (served, "mismatch")


def test_opencode_cannot_be_talked_into_other_permissions_by_the_workspace(room: Room) -> None:
    # launcher section 15 W27: the configuration lay in the workspace, was the worker's to change, and `ask` with
    # automatic approval denied nothing.
    (room.workspace / "opencode.json").write_text('{"permission": "allow"}')
    run(room, "opencode", "completed", 0)
    seen = called(room)
    (planted,) = seen["planted"].values()
    assert Path(planted["path"]).parent.parent == room.tmp
    assert planted["mode"] == "0o600"
    permission = json.loads(planted["text"])["permission"]
    assert next(iter(permission)) == "*" and permission["external_directory"] == "deny"
    assert "ask" not in permission.values()
    # The repository's own file comes after OPENCODE_CONFIG and before the inline one.
    assert json.loads(seen["environment"]["OPENCODE_CONFIG_CONTENT"])["permission"] == permission
    assert (room.workspace / "opencode.json").read_text() == '{"permission": "allow"}'


def test_older_opencode_ends_without_saying_that_it_is_done(room: Room) -> None:
    assert run(room, "opencode", "completed_without_done", 0)["usage"]["input_tokens"] == 120


def test_agy_of_a_release_with_flat_events_is_understood(room: Room) -> None:
    result = run(room, "antigravity", "flat", 0)
    assert result["usage"]["input_tokens"] == 13_823
    assert result["session_id"] == SESSIONS["agy"][0]


def test_a_count_that_one_step_did_not_tell_is_unknown_in_the_sum(room: Room) -> None:
    usage = run(room, "opencode", "unpriced", 0)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (None, 45)


def test_devins_steps_are_added_up_when_it_gives_no_totals(room: Room) -> None:
    usage = run(room, "devin", "step_totals", 0)["usage"]
    assert (usage["input_tokens"], usage["cached_input_tokens"], usage["output_tokens"]) == (120, 7, 45)


def test_an_incomplete_count_is_no_measurement(room: Room) -> None:
    assert run(room, "grok-cli", "incomplete_usage", 0)["usage"] is None


def test_zeros_of_a_turn_that_was_cut_are_no_measurement(room: Room) -> None:
    assert run(room, "antigravity", "print_timeout", 1)["usage"] is None


def test_a_session_id_that_looks_like_a_flag_is_not_passed_on(room: Room) -> None:
    # launcher section 15 W28.
    result = run(room, "devin", "forged_session", 0)
    assert (result["session_id"], result["resume_arguments"]) == (None, [])


@pytest.mark.parametrize("route", ["claude", "grok-cli", "cursor", "opencode", "antigravity"])
def test_a_session_id_that_is_none_is_not_passed_on(room: Room, route: str) -> None:
    from adapters.events import Observed
    from adapters.routes import Context, load

    events: list[dict[str, Any]] = [
        {"type": "system", "subtype": "init", "session_id": "--force"},
        {"type": "result", "subtype": "success", "session_id": "../x"},
        {"type": "end", "sessionId": "--yolo", "stopReason": "end_turn"},
        {"type": "step_start", "sessionID": "--auto"},
        {"event": "result", "conversation_id": "-c", "result": {"conversation_id": "-c", "status": "SUCCESS"}},
    ]
    seen = Observed()
    for event in events:
        seen = load(route, Context("auto", {})).observe(seen, event)
    assert seen.session_id is None
