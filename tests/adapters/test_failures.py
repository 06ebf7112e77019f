"""A failure is classed by what the CLI said about it, never by words that merely occur in its output."""

from __future__ import annotations

from datetime import datetime

import pytest

from adapters.events import ErrorInfo
from adapters.failures import classify, refused_flag, rule
from adapters.waits import MAX_RETRY_AFTER_SECONDS, retry_after

NOW = datetime(2026, 3, 1, 12, 0)


def by_event(message: str, kind: str | None = None, status: int | None = None) -> tuple[str, str | None, int | None]:
    failure = classify([ErrorInfo(message, kind, status)], [], NOW)
    return failure.failure_class, failure.detail, failure.retry_after_seconds


def by_line(*lines: str) -> str:
    return classify([], lines, NOW).failure_class


# What a public launcher took for network, auth, rate limit and overload (launcher section 15 W20).
HARMLESS = [
    "cannot read src/dns/resolver.ts",
    "src/dns/resolver.ts failed to compile",
    "test for authentication is red",
    "syntax error at line 1401",
    "used 14290 tokens",
    "port 5020 in use",
    "503 of 600 tests failed",
    "no such file src/rate_limit.py",
    "tests/test_authentication_error.py::test_401 FAILED",
    "assertion overloaded_method",
    "docs/connection-refused.md not found",
]


@pytest.mark.parametrize("message", HARMLESS)
def test_words_in_paths_and_numbers_are_no_failure_class(message: str) -> None:
    assert by_event(message)[0] == "other"
    assert by_line(f"error: {message}") == "other"


@pytest.mark.parametrize(
    "line",
    [
        "rate limit exceeded",
        "src/client.py:14: error: connection refused",
        "  401 Unauthorized",
        '+    raise Error("too many requests")',
        "the tests print: Error: overloaded",
    ],
)
def test_text_that_is_no_error_line_of_the_cli_says_nothing(line: str) -> None:
    assert by_line(line) == "other"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("You've hit your usage limit. Upgrade to Pro or try again in 2 hours 5 minutes.", "out_of_credits"),
        ("You've hit your limit · resets 9:20pm", "out_of_credits"),
        ("Quota exceeded. Check your plan and billing details.", "out_of_credits"),
        ('unexpected status 429: {"error":{"type":"usage_limit_reached"}}', "out_of_credits"),
        ("exceeded retry limit, last status: 401 Unauthorized", "auth"),
        ("exceeded retry limit, last status: 429 Too Many Requests", "rate_limited"),
        ("unexpected status 503 Service Unavailable: try later", "overloaded"),
        ("Not logged in. Please run `codex login`", "auth"),
        ("Your access token could not be refreshed because it was revoked.", "auth"),
        ("Codex ran out of room in the model's context window.", "context_length"),
        ("Your input exceeds the context window of this model.", "context_length"),
        ("stream disconnected before completion: Rate limit reached for gpt-5", "rate_limited"),
        ("stream disconnected before completion: error sending request", "network"),
        ("dns error: failed to lookup address information", "network"),
        ("Selected model is at capacity. Please try a different model.", "overloaded"),
    ],
)
def test_what_clis_really_say_is_understood(message: str, expected: str) -> None:
    assert by_event(message)[0] == expected
    assert by_line(f"2026-03-01T10:00:00.123Z ERROR codex_core::client: {message}") == expected


def test_a_spent_balance_reported_as_an_invalid_request_is_out_of_credits() -> None:
    # launcher section 15 W22: the type was looked at before the sentence.
    assert by_event("Your credit balance is too low", "invalid_request_error", 400)[0] == "out_of_credits"
    assert by_event("prompt is too long: 210000 tokens", "invalid_request_error", 400)[0] == "context_length"


def test_a_type_or_status_decides_when_the_sentence_says_nothing() -> None:
    assert by_event("Something went wrong", "overloaded_error")[0] == "overloaded"
    assert by_event("Something went wrong", None, 429)[0] == "rate_limited"
    assert by_event("Something went wrong", None, 200)[0] == "other"


def test_events_are_believed_before_text() -> None:
    failure = classify([ErrorInfo("429 too many requests")], ["error: not logged in"], NOW)
    assert failure.failure_class == "rate_limited"
    assert failure.evidence == "429 too many requests"


def test_an_earlier_telling_error_is_found_behind_a_mute_last_one() -> None:
    failure = classify([ErrorInfo("usage limit reached"), ErrorInfo("turn failed")], [], NOW)
    assert failure.failure_class == "out_of_credits"


def test_a_spent_plan_can_be_told_from_an_empty_balance() -> None:
    assert by_event("You've hit your usage limit.")[1] == "usage_cap"
    assert by_event("insufficient_quota")[1] is None


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Please try again in 1.898s.", 2),
        ("Please try again in 20ms", 1),
        ("try again in 2 hours 5 minutes", 7500),
        ("try again in 3 days 4 hours", MAX_RETRY_AFTER_SECONDS),
        ("retry-after: 30", 30),
        ('{"retry_after": 30}', 30),
        ("resets 9:20pm", 9 * 3600 + 20 * 60),
        ("resets 11am", 23 * 3600),
        ("try again at Mar 1st, 2026 1:00 PM", 3600),
        ("try again at Feb 30th, 2026 1:00 PM", None),
        ("retry-after: 999999999", MAX_RETRY_AFTER_SECONDS),
        ("try again in a while", None),
        ("took 30s", None),
    ],
)
def test_when_to_come_back_is_read_and_capped(message: str, seconds: int | None) -> None:
    # Uncapped, one CLI's 432,000 s stopped a run for five days (launcher section 15 W23).
    assert retry_after(message, NOW) == seconds


def test_a_dropped_flag_is_recognised_only_as_the_parsers_own_line() -> None:
    assert refused_flag(["error: unexpected argument '--full-auto' found"]) is not None
    assert refused_flag(["codex: unrecognized option '--json'"]) is not None
    assert refused_flag(["error: test expects: unexpected argument"]) is None


def test_a_routes_own_rules_come_first() -> None:
    own = [rule("rate_limited", "quota metric")]
    message = "quota exceeded for quota metric requests"
    assert classify([ErrorInfo(message)], [], NOW, own).failure_class == "rate_limited"
    assert classify([ErrorInfo(message)], [], NOW).failure_class == "out_of_credits"


def test_evidence_is_one_short_line() -> None:
    failure = classify([ErrorInfo("429 too\nmany  requests " + "x" * 5000)], [], NOW)
    assert failure.evidence is not None
    assert failure.evidence.startswith("429 too many requests x")
    assert len(failure.evidence) <= 300
