"""What the routes' CLIs say in their own forms is understood, and nothing else is taken for it."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import available_timezones

import pytest

from adapters.events import ErrorInfo, Observed
from adapters.failures import Failure, classify, refused_flag
from adapters.models import listed_label
from adapters.routes import Adapter, Context, load
from adapters.waits import MAX_RETRY_AFTER_SECONDS, retry_after
from tests.adapters.fakes.program import MODELS
from tests.adapters.test_failures import HARMLESS
from tests.adapters.test_route_failures import CLIS

NOW = datetime(2026, 3, 1, 12, 0)


def adapter(route: str) -> Adapter:
    return load(route, Context("auto", {}))


def by_event(route: str, message: str) -> Failure:
    return classify([ErrorInfo(message)], [], NOW, adapter(route).failure_rules)


def by_line(route: str, line: str) -> Failure:
    known = adapter(route)
    return classify([], [line], NOW, known.failure_rules, known.stating)


@pytest.mark.parametrize("message", HARMLESS)
@pytest.mark.parametrize("route", CLIS)
def test_a_routes_own_rules_find_nothing_in_paths_and_numbers(route: str, message: str) -> None:
    # launcher section 15 W20.
    assert by_event(route, message).failure_class == "other"
    assert by_line(route, f"Error: {message}").failure_class == "other"
    assert by_line(route, message).failure_class == "other"


@pytest.mark.parametrize(
    ("route", "line", "expected"),
    [
        ("cursor", "ConnectError: [resource_exhausted] Error", "rate_limited"),
        ("cursor", "Error: T: [unauthenticated] Error", "auth"),
        ("cursor", "Error: RetriableError: [unavailable] Error", "overloaded"),
        ("cursor", "Error: You've hit your usage limit", "out_of_credits"),
        ("antigravity", 'AGY_ERROR: {"short_error":"RESOURCE_EXHAUSTED (code 429): slow"}', "rate_limited"),
        ("antigravity", "error: You have exhausted your quota on this model.", "out_of_credits"),
        ("antigravity", "error: Quota exceeded for quota metric 'GenerateContent requests'", "rate_limited"),
        ("antigravity", "error: authentication failed or timed out", "auth"),
        ("grok-cli", "Error: You are not logged in. Please run `grok login`", "auth"),
        ("devin", "Error: Not logged in. Run `devin auth login` to authenticate.", "auth"),
    ],
)
def test_a_line_in_a_form_of_the_clis_own(route: str, line: str, expected: str) -> None:
    assert by_line(route, line).failure_class == expected


@pytest.mark.parametrize(
    ("route", "line"),
    [
        ("antigravity", "the tool said: AGY_ERROR: unauthenticated"),
        ("antigravity", "2026 [agy] print timeout in the tests"),
        ("opencode", "the README says permission requested: x; auto-rejecting"),
    ],
)
def test_such_a_line_counts_from_its_beginning_only(route: str, line: str) -> None:
    fatal = adapter(route).fatal
    assert fatal is not None
    assert fatal.match(line) is None
    assert by_line(route, line) == Failure("other")


@pytest.mark.parametrize(
    "line",
    [
        "error: unknown option '--safe-mode'",
        "error: unexpected argument '--no-memory' found",
        "flag provided but not defined: -print-timeout",
        "flags provided but not defined: -output-format",
        "Unknown argument: variant",
        "error: option '--permission-mode <mode>' argument 'x' is invalid. Allowed choices are default, plan.",
        "error: invalid value 'workspace' for '--sandbox <PROFILE>'",
    ],
)
def test_each_parsers_refusal_of_a_flag_is_recognised(line: str) -> None:
    assert refused_flag([line]) == line


def test_a_clock_time_is_read_in_the_zone_that_it_names() -> None:
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).astimezone().replace(tzinfo=None)
    assert retry_after("resets 1pm (UTC)", now) == 3600
    assert retry_after("resets 1pm (Nowhere/Land)", now) is None
    denver = retry_after("You've hit your session limit · resets 9:20pm (America/Denver)", now)
    # 12:00 in UTC is 05:00 in Denver; a machine without the table of zones cannot tell.
    assert denver == (16 * 3600 + 20 * 60 if "America/Denver" in available_timezones() else None)


def test_a_reset_told_as_unix_time_counts_before_any_clock_time() -> None:
    told = int(NOW.timestamp())
    errors = [ErrorInfo("usage limit reached", resets_at=told + 90), ErrorInfo("You've hit your limit · resets 9:20pm")]
    assert classify(errors, [], NOW).retry_after_seconds == 90
    assert retry_after(f"Claude AI usage limit reached|{told + 120}", NOW) == 120
    assert retry_after(f"Claude AI usage limit reached|{told + 10**7}", NOW) == MAX_RETRY_AFTER_SECONDS
    assert classify([ErrorInfo("x", resets_at=told - 5), ErrorInfo("rate limit")], [], NOW).retry_after_seconds == 0


def test_when_to_come_back_belongs_to_no_failure_that_does_not_pass_by_waiting() -> None:
    errors = [ErrorInfo("usage limit reached", resets_at=int(NOW.timestamp()) + 90), ErrorInfo("not logged in")]
    assert classify(errors, [], NOW).retry_after_seconds is None


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("composer-2.5-fast", "Composer 2.5 Fast"),
        ("composer-2.5", "Composer 2.5"),
        ("cursor-grok-4.6-high", "Cursor Grok 4.6"),
        ("claude-fable-5-thinking-high", "Claude Fable 5 1M Thinking"),
        ("composer", None),
        ("Tip: use --model <id>", None),
    ],
)
def test_a_label_is_that_of_exactly_this_model(model: str, label: str | None) -> None:
    assert listed_label(MODELS, model) == label


def test_requests_that_were_retried_with_success_explain_no_later_failure() -> None:
    observe = adapter("claude").observe
    seen = Observed()
    events: list[dict[str, object]] = [
        {"type": "system", "subtype": "api_retry", "error": "overloaded", "error_status": 529},
        {"type": "assistant", "message": {"model": "claude-opus-5", "content": [{"type": "text", "text": "x"}]}},
        {"type": "result", "subtype": "error_during_execution", "is_error": True, "result": "it broke"},
    ]
    for event in events:
        seen = observe(seen, event)
    assert classify(seen.errors, [], NOW).failure_class == "other"


@pytest.mark.parametrize("route", CLIS)
def test_events_of_any_shape_are_data(route: str) -> None:
    known = adapter(route)
    shapes: list[object] = [None, 5, "x", [], [1], {}, {"type": 5}, True, -1, 1e999, "\ud800"]
    names = ("init", "system", "assistant", "result", "end", "error", "done", "step_finish", "step_update", "usage")
    keys = ("message", "usage", "modelUsage", "part", "error", "result", "init", "rejected", "rate_limit_info", "data")
    seen = Observed()
    for name in names:
        for shape in shapes:
            for kind in ("type", "event"):
                event: dict[str, object] = {kind: name, "subtype": "init", **dict.fromkeys(keys, shape), name: shape}
                seen = known.observe(seen, event)
                said = known.words(event)
                assert said is None or isinstance(said, str)
    if known.read_record is not None:
        for record in (b"", b"{", b"[]", b'{"steps": [1, {"metrics": 5}], "final_metrics": 7, "agent": []}'):
            assert known.read_record(Observed(), record).session_id is None
