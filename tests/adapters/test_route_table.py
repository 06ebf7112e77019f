"""What the controller may sanction, and that an authorization says exactly one thing."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from adapters.route_table import (
    AUTHORIZATION_KEYS,
    ROUTES,
    SIX,
    Authorization,
    effort_problem,
    known_routes,
    model_allowed,
)
from tests.adapters.support import REPOSITORY

GOOD = Authorization(
    schema_version=1,
    run_id="run-1",
    unit_id="unit-1",
    attempt_id="attempt-1",
    route="composer",
    target="composer",
    harness="cursor-agent",
    intermediaries=("cursor",),
    model_requested="composer-2.5-fast",
    restriction_posture="adapter-enforced",
    restrictions=("no network",),
    activity_posture="hard-only",
    packet_digest="a" * 64,
)


def test_the_six_routes_that_programs_match_on_are_listed_first_and_in_order() -> None:
    assert known_routes().startswith("codex, claude, grok-cli, cursor, composer, grok-cursor, ")
    assert tuple(ROUTES)[: len(SIX)] == SIX


@pytest.mark.parametrize(
    ("route", "allowed", "refused"),
    [
        ("codex", ["auto", "gpt-5.6-sol", "o3", "o4-mini"], ["opus", "gpt-", "o", "GPT-5", "gpt-5 x", "gpt-5\n", ""]),
        ("claude", ["auto", "opus", "fable", "claude-opus-5"], ["gpt-5", "claude-", "Opus"]),
        ("grok-cli", ["auto", "grok-4.6"], ["grok", "cursor-grok-4.6-high"]),
        (
            "cursor",
            ["auto", "gpt-5", "sonnet-4.5"],
            ["composer", "Composer-2", "grok", "GROK-4", "cursor-grok-4", "-x"],
        ),
        ("composer", ["composer-2.5-fast"], ["auto", "composer", "gpt-5"]),
        ("grok-cursor", ["cursor-grok-4.6-high"], ["auto", "grok-4.6"]),
        ("opencode", ["auto", "openai/gpt-5.6", "a/b/c:free"], ["gpt-5", "/x", "openai/"]),
        ("antigravity", ["auto", "gemini-3.5-flash-high"], ["--x", ""]),
        ("devin", ["auto", "claude-opus-4.6"], ["a b"]),
        ("command", ["auto", "mine"], ["a/b", "--mine"]),
        ("gemini", [], ["auto", "gemini-3"]),
    ],
)
def test_a_route_serves_its_own_model_families_only(route: str, allowed: list[str], refused: list[str]) -> None:
    assert [model for model in allowed if not model_allowed(route, model)] == []
    assert [model for model in refused if model_allowed(route, model)] == []


def test_no_model_means_the_routes_default_which_is_always_allowed() -> None:
    assert all(model_allowed(route, None) for route in ROUTES)
    assert not model_allowed("gemini", None)


def test_the_authorization_has_its_thirteen_keys_and_survives_writing() -> None:
    data = GOOD.to_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert sorted(json.loads(data)) == sorted(AUTHORIZATION_KEYS)
    assert len(AUTHORIZATION_KEYS) == 13
    assert Authorization.parse(data) == GOOD
    assert GOOD.disagreement_with_table() is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
        ({"schema_version": 1.0}, "schema_version"),
        ({"run_id": ".."}, "run_id"),
        ({"unit_id": "a/b"}, "unit_id"),
        ({"attempt_id": "a\n"}, "attempt_id"),
        ({"packet_digest": "A" * 64}, "packet_digest"),
        ({"activity_posture": "sometimes"}, "activity_posture"),
        ({"restrictions": "no network"}, "restrictions"),
        ({"restrictions": [1]}, "restrictions"),
        ({"model_requested": None}, "model_requested"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_malformed_authorization_is_refused_naming_the_key(changes: dict[str, object], named: str) -> None:
    document = {**json.loads(GOOD.to_bytes()), **changes}
    with pytest.raises(ValueError, match=named):
        Authorization.parse(json.dumps(document).encode())


@pytest.mark.parametrize("key", AUTHORIZATION_KEYS)
def test_an_authorization_without_one_of_its_keys_is_refused(key: str) -> None:
    document = json.loads(GOOD.to_bytes())
    del document[key]
    with pytest.raises(ValueError, match=key):
        Authorization.parse(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b'{"run_id":"a","run_id":"b"}', b"[" * 100_000])
def test_what_is_no_such_object_is_refused_without_a_traceback(data: bytes) -> None:
    with pytest.raises(ValueError):
        Authorization.parse(data)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"route": "gemini"}, "codex, claude"),
        ({"target": "grok"}, "target"),
        ({"harness": "cursor"}, "harness"),
        ({"intermediaries": []}, "intermediaries"),
        ({"restriction_posture": "cooperative"}, "restriction_posture"),
        ({"model_requested": "gpt-5"}, "not compatible"),
    ],
)
def test_an_authorization_that_the_table_contradicts_says_where(changes: dict[str, object], named: str) -> None:
    document = {**json.loads(GOOD.to_bytes()), **changes}
    disagreement = Authorization.parse(json.dumps(document).encode()).disagreement_with_table()
    assert disagreement is not None
    assert named in disagreement


def test_the_controller_does_not_load_the_adapters_machinery_with_the_table() -> None:
    code = "import sys, adapters.route_table, adapters.contract; print([m for m in sys.modules if 'adapters' in m])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert sorted(eval(done.stdout)) == ["adapters", "adapters.contract", "adapters.route_table"]


def test_a_pinned_effort_is_lost_or_reaches_a_route_that_has_none() -> None:
    pinned = msgspec.structs.replace(GOOD, effort="low")
    assert Authorization.parse(pinned.to_bytes()) == pinned
    assert pinned.disagreement_with_table() is None
    assert effort_problem("codex", "xhigh") is None
    assert "codex" in str(effort_problem("claude", "xhigh"))
    assert "none" in str(effort_problem("codex", "none"))
