"""Every way in which a route's CLI can fail, as the CLI itself reports it, becomes the class that a policy acts on.

The CLIs are fakes that take exactly the documented flags and replay recordings (`fakes/`); the program under test is
the real adapter. Each row of hazards.md 39 to 43 is a recording or a refused flag.
"""

from __future__ import annotations

from typing import Any

import pytest

from adapters.route_table import ROUTES
from tests.adapters.fakes.installing import install, received, recorded
from tests.adapters.support import ANSWER, Room

CLIS = {
    "claude": "claude",
    "grok-cli": "grok",
    "cursor": "cursor-agent",
    "opencode": "opencode",
    "antigravity": "agy",
    "devin": "devin",
}
# The two other routes through the Cursor CLI are the same adapter.
ALL = {**CLIS, "composer": "cursor-agent", "grok-cursor": "cursor-agent"}

# The class, the finer word, and how long to wait (None: unknown) of each recording.
Expected = tuple[str, str | None, int | None]
COMMON: dict[str, Expected] = {
    "auth": ("auth", None, None),
    "rate_limited": ("rate_limited", None, 30),
    "overloaded": ("overloaded", None, None),
    "usage_limit": ("out_of_credits", "usage_cap", None),
    "context_length": ("context_length", None, None),
    "network": ("network", None, None),
    "permission_rejected": ("other", "permission_rejected", None),
    "empty_output": ("other", "empty_output", None),
    "background": ("other", "background_killed", None),
    "cut": ("other", "no_final_event", None),
    "answered_then_failed": ("out_of_credits", "usage_cap", None),
}
# Of events that devin, which prints none, has nothing.
OF_EVENTS = {"cut", "answered_then_failed"}
SPECIAL: dict[str, dict[str, Expected]] = {
    "claude": {"usage_limit": ("out_of_credits", "usage_cap", 1800), "turn_limit": ("other", "max_turns", None)},
    "grok": {"usage_limit": ("out_of_credits", "usage_cap", 7500), "turn_limit": ("other", "max_turns", None)},
    "cursor-agent": {
        "usage_limit": ("out_of_credits", "usage_cap", 86_400),
        "plan": ("other", "model_unavailable", None),
    },
    "opencode": {
        "usage_limit": ("out_of_credits", "usage_cap", 10_800),
        "no_key": ("auth", None, None),
        "permission_rejected_silently": ("other", "permission_rejected", None),
        "output_limit": ("context_length", "max_output_tokens", None),
    },
    "agy": {
        "usage_limit": ("out_of_credits", "usage_cap", 2053),
        "print_timeout": ("timeout", "print_timeout", None),
        "print_timeout_silently": ("timeout", "print_timeout", None),
    },
    "devin": {"usage_limit": ("out_of_credits", "usage_cap", 39_600)},
}
FAILURES = [
    (route, recording, {**COMMON, **SPECIAL[cli]}[recording])
    for route, cli in CLIS.items()
    for recording in sorted({*COMMON, *SPECIAL[cli]} & recorded(cli))
]


def run(room: Room, route: str, recording: str, expected_code: int, **options: Any) -> dict[str, Any]:
    install(room, ALL[route], recording, **options)
    room.authorize(route)
    ran = room.run(CE_WORK_EXIT_GRACE_SECS="1")
    assert ran.code == expected_code, (ran.stderr, room.result)
    result = room.result
    assert result["requested_route"] == route
    assert (result["target"], result["harness"]) == (ROUTES[route].target, ROUTES[route].harness)
    return result


def test_every_route_but_the_users_own_has_its_recordings() -> None:
    assert set(ALL) == {name for name in ROUTES if name not in ("codex", "command")}
    for cli in CLIS.values():
        assert {*COMMON} - recorded(cli) == (OF_EVENTS if cli == "devin" else set())


@pytest.mark.parametrize(
    ("route", "recording", "expected"), FAILURES, ids=[f"{route}-{recording}" for route, recording, _ in FAILURES]
)
def test_a_failure_is_classed_with_its_evidence(room: Room, route: str, recording: str, expected: Expected) -> None:
    result = run(room, route, recording, 1)
    assert received(room, "prompt") is not None
    assert result["terminal_status"] == "failed"
    assert result["actual_route"] == route
    assert (result["failure_class"], result["failure_detail"]) == expected[:2], result
    wait = result["retry_after_seconds"]
    if expected[2] is None:
        # The clock time that a sentence named, if any.
        assert wait is None or "resets" in result["failure_evidence"]
    else:
        assert wait is not None and expected[2] - 20 <= wait <= expected[2]
    if recording not in ("empty_output", "background", "cut"):
        assert result["failure_evidence"], result
    assert (result["changed_files"], result["evidence"], result["scope_expansion"]) == ([], [], None)
    # What a tool printed looked like an answer, and was none of the worker's.
    assert "DECOY" not in result["summary"]


@pytest.mark.parametrize("route", CLIS)
def test_a_flag_that_an_update_removed_makes_the_route_unavailable(room: Room, route: str) -> None:
    # slikk66/dangeresque#112: exit 2 before any turn, counted as a failed attempt.
    gone = {"cursor-agent": "--trust", "agy": "--print-timeout", "devin": "--export"}.get(ALL[route], "--effort")
    result = run(room, route, "completed", 1, without="--variant" if route == "opencode" else gone)
    assert received(room, "prompt") is None
    assert result["terminal_status"] == "unavailable"
    assert (result["failure_class"], result["failure_detail"]) == ("other", "cli_incompatible")
    assert result["actual_route"] is None
    assert "does not know our flags" in result["failure_reason"]


@pytest.mark.parametrize("route", CLIS)
def test_a_child_left_behind_is_ended_and_counted_and_the_answer_kept(room: Room, route: str) -> None:
    # anthropics/claude-code#52917: work in the background is cut off when the turn ends.
    result = run(room, route, "answered_with_child", 0)
    assert result["terminal_status"] == "completed"
    assert result["survivors"] == 1
    assert room.processes == []


@pytest.mark.parametrize("route", [route for route, cli in CLIS.items() if "hang" in recorded(cli)])
def test_a_cli_that_hangs_after_its_final_event_has_done_its_work(room: Room, route: str) -> None:
    # anthropics/claude-code#25629: the final result was printed, the process never exited.
    result = run(room, route, "hang", 0)
    assert result["terminal_status"] == "completed"
    assert "still running after its final event" in result["notes"][0]


@pytest.mark.parametrize("route", [route for route, cli in CLIS.items() if "plain_line" in recorded(cli)])
def test_an_answer_on_a_line_of_its_own_needs_no_final_event(room: Room, route: str) -> None:
    assert run(room, route, "plain_line", 0)["terminal_status"] == "completed"


def test_an_answer_that_breaks_the_schema_is_no_success(room: Room) -> None:
    answer = {**ANSWER, "terminal_status": "success"}
    result = run(room, "claude", "completed", 1, answer=answer)
    assert result["failure_reason"] == "terminal output failed implementation result schema"
    assert (result["failure_class"], result["failure_detail"]) == ("other", "schema_invalid")


def test_a_packet_that_json_cannot_carry_is_refused_by_the_route_that_would_change_it(room: Room) -> None:
    room.write_packet(b"Goal: a file name \xff\n")
    install(room, "agy", "completed")
    room.authorize("antigravity")
    assert room.run().code == 2
    assert received(room, "prompt") is None
    assert room.result["terminal_status"] == "unavailable"
    assert "must be UTF-8" in room.result["failure_reason"]
    assert "0xff" in room.result["failure_reason"]
