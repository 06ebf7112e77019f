"""Why a call failed: one of eight classes that a failure policy can act on, with the line that decided.

The CLI's own error events come first, then its error lines. A class is never read from bare substrings: a
path `src/dns/…`, `line 1401`, `14290 tokens` or `port 5020` once meant network, auth, rate limit and overload
to a public launcher (launcher section 15 W20), and usage limits reported as events were not read at all (W21,
W22).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from adapters.contract import FailureClass
from adapters.events import ErrorInfo
from adapters.waits import capped, retry_after, seconds_until

MAX_EVIDENCE_CHARACTERS = 300
MAX_SCANNED_CHARACTERS = 4000


class Failure(msgspec.Struct, frozen=True):
    """A class, a finer word where there is one, the deciding line, and when the CLI said to come back."""

    failure_class: FailureClass
    detail: str | None = None
    evidence: str | None = None
    retry_after_seconds: int | None = None


class Rule(msgspec.Struct, frozen=True):
    """A class and the pattern of messages that mean it."""

    failure_class: FailureClass
    pattern: re.Pattern[str]
    detail: str | None = None


def rule(failure_class: FailureClass, *alternatives: str, detail: str | None = None) -> Rule:
    """A rule whose alternatives match only as whole words, never inside a path, an identifier or a number."""
    words = rf"(?<![\w/.\-])(?:{'|'.join(alternatives)})(?![\w/\-]|\.\w)"
    return Rule(failure_class, re.compile(words, re.IGNORECASE), detail)


def _status(codes: str) -> str:
    return rf"(?:(?:http(?:/[\d.]+)?|api error|status(?: code)?|error(?: code)?)[ :=]+(?:{codes}))"


RULES: tuple[Rule, ...] = (
    rule(
        "out_of_credits",
        r"(?:hit|reached|exceeded) your (?:\w+ ){0,2}limit",
        r"usage limit (?:has been )?(?:reached|exceeded)",
        r"(?:5-hour|session|daily|weekly|monthly)(?:/\w+)? limit (?:has been )?(?:reached|exceeded|exhausted)",
        r"usage_limit_(?:reached|exceeded)",
        detail="usage_cap",
    ),
    rule(
        "out_of_credits",
        r"insufficient[_ ]quota",
        r"exceeded your current quota",
        r"quota exceeded",
        r"billing[_ ]hard[_ ]limit(?:[_ ]reached)?",
        r"billing_error",
        r"usage_not_included",
        r"credit balance is too low",
        r"(?:out of|no|insufficient) credits?(?: left| remaining)?",
        r"requires more credits",
        r"402 payment required",
        _status("402"),
    ),
    rule(
        "auth",
        r"invalid_api_key",
        r"(?:incorrect|invalid|missing) api key",
        r"authentication_(?:failed|error)",
        r"oauth_org_not_allowed",
        r"authentication (?:failed|required|error)",
        r"failed to authenticate",
        r"\Aunauthorized",
        r"401 unauthorized",
        r"403 forbidden",
        _status("401|403"),
        r"not (?:logged in|authenticated)",
        r"please (?:run|use) [`'\"]?[\w -]{1,40}login[`'\"]?",
        r"(?:please )?log ?in again",
        r"(?:access|refresh|auth|oauth) token (?:\w+ ){0,4}(?:expired|revoked|invalid|refreshed)",
        r"missing environment variable",
    ),
    rule(
        "context_length",
        r"context_length_exceeded",
        r"maximum context length",
        r"context (?:length|window)(?: was| is)? exceeded",
        r"(?:exceed(?:s|ed)?|ran out of room in) (?:\w+(?:'s)? ){0,3}context (?:length|window)",
        r"(?:prompt|input) is too long",
        r"reduce the length of",
    ),
    rule(
        "rate_limited",
        r"rate[ _-]?limit(?:s|ed|ing)?(?:[ _](?:exceeded|reached|error))?",
        r"too[ _]many[ _]requests",
        _status("429"),
    ),
    rule(
        "overloaded",
        r"overloaded(?:_error)?",
        r"server_is_overloaded",
        r"server_error",
        r"at capacity",
        r"experiencing high demand",
        r"internal server error",
        r"bad gateway",
        r"service unavailable",
        r"gateway timeout",
        _status("5[0-9][0-9]"),
    ),
    rule(
        "network",
        r"connection (?:reset|refused|error|closed|timed out)",
        r"e(?:connreset|connrefused|timedout|notfound|ai_again)",
        r"(?:could not|cannot|unable to|failed to) connect",
        r"fetch failed",
        r"socket hang up",
        r"socket connection was closed",
        r"network is unreachable",
        r"dns (?:error|lookup|resolution)",
        r"failed to lookup address",
        r"getaddrinfo",
        r"name or service not known",
        r"temporary failure in name resolution",
        r"tls handshake",
        r"error sending request",
        r"(?:request|operation) timed out",
        r"stream (?:disconnected|closed) before",
    ),
    rule(
        "other",
        r"model_not_found",
        r"model is not supported",
        r"unknown model",
        r"invalid model selection",
        r"cannot use this model",
        r"issue with the selected model",
        detail="model_unavailable",
    ),
)
"""In order of precedence: a spent plan is also reported with status 429, a throttled stream as a disconnect.
"""

_KINDS: dict[str, FailureClass] = {
    "billing_error": "out_of_credits",
    "insufficient_quota": "out_of_credits",
    "usage_limit_reached": "out_of_credits",
    "authentication_error": "auth",
    "authentication_failed": "auth",
    "oauth_org_not_allowed": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "context_length_exceeded": "context_length",
    "max_output_tokens": "context_length",
    "rate_limit": "rate_limited",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "overloaded": "overloaded",
    "overloaded_error": "overloaded",
    "server_error": "overloaded",
    "api_error": "overloaded",
}
_KIND_DETAILS = {
    "usage_limit_reached": "usage_cap",
    "max_output_tokens": "max_output_tokens",
    "permission_rejected": "permission_rejected",
    "max_turns": "max_turns",
    "refusal": "refusal",
}
# Classes that end by waiting: what an event told about when to come back belongs to no other.
_WAITING: frozenset[FailureClass] = frozenset({"out_of_credits", "rate_limited", "overloaded"})

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# For example `Error: …`, `error[E1]: …`, `codex: error: …`, `API Error: …` and `2026-01-02T03:04:05Z ERROR a::b: …`.
_ERROR_LINE = re.compile(
    r"\s*(?:\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?\s+)?"
    r"(?:[\w.-]{1,40}:\s+)?(?:fatal |api )?\[?(?:error|fatal)\]?(?:\[\w+\])?"
    r"(?::|\s+[\w:.-]{1,80}:)\s+(?P<message>\S.*)",
    re.IGNORECASE,
)
# What CLIs print as a whole line without any prefix.
_BARE_LINE = re.compile(r"\s*(?:you(?:'|’)ve hit your |not logged in\b|please run )", re.IGNORECASE)
_REFUSED_FLAG = re.compile(
    r"\s*(?:[\w.-]{1,40}:\s+)?(?:error:\s+)?"
    r"(?:unexpected argument|unrecognized (?:option|argument|subcommand)|unknown (?:option|argument|flag)s?"
    r"|found argument|invalid value '|option '.*' argument '.*' is invalid|flags? provided but not defined)",
    re.IGNORECASE,
)


def classify(
    errors: Sequence[ErrorInfo],
    lines: Iterable[str],
    now: datetime,
    extra: Sequence[Rule] = (),
    stating: re.Pattern[str] | None = None,
) -> Failure:
    """The failure that the CLI's error events (latest last) or else its text lines (latest last) tell of.

    `extra` are the route's own rules, tried first; `stating` (with a group `message`) matches lines by which this
    CLI states an error, beside the common forms. `now` is local time, for "try again at 9:20 PM".
    """
    failure = _classify(errors, lines, now, (*extra, *RULES), stating)
    wait = _told_wait(errors, now)
    if wait is not None and failure.failure_class in _WAITING:
        return msgspec.structs.replace(failure, retry_after_seconds=wait)
    return failure


def _classify(
    errors: Sequence[ErrorInfo],
    lines: Iterable[str],
    now: datetime,
    rules: Sequence[Rule],
    stating: re.Pattern[str] | None,
) -> Failure:
    unclassified: Failure | None = None
    for error in reversed(errors):
        failure = _classify_error(error, rules, now)
        if failure.failure_class != "other" or failure.detail:
            return failure
        unclassified = unclassified or failure
    if unclassified is not None:
        return unclassified
    for line in reversed(list(lines)):
        message = _error_message(line, stating)
        if message is None:
            continue
        failure = _classify_message(message, rules, now) or Failure("other", None, _evidence(message))
        if failure.failure_class != "other" or failure.detail:
            return failure
        unclassified = unclassified or failure
    return unclassified or Failure("other")


def refused_flag(lines: Iterable[str]) -> str | None:
    """The line in which an argument parser refuses a flag that we pass, or None.

    CLIs update themselves and drop flags (slikk66/dangeresque#112): nothing was sent then.
    """
    return next((line.strip() for line in lines if _REFUSED_FLAG.match(_plain(line))), None)


def _classify_error(error: ErrorInfo, rules: Sequence[Rule], now: datetime) -> Failure:
    # The sentence before the type: APIs call a spent balance `invalid_request_error` (launcher section 15
    # W22).
    found = _classify_message(error.message, rules, now)
    if found is not None:
        return found
    by_type = _KINDS.get(error.kind or "") or _by_status(error.status)
    detail = _KIND_DETAILS.get(error.kind or "")
    return Failure(by_type or "other", detail, _evidence(error.message), retry_after(error.message, now))


def _classify_message(message: str, rules: Sequence[Rule], now: datetime) -> Failure | None:
    message = message[:MAX_SCANNED_CHARACTERS]
    for candidate in rules:
        if candidate.pattern.search(message):
            after = retry_after(message, now)
            return Failure(candidate.failure_class, candidate.detail, _evidence(message), after)
    return None


def _by_status(status: int | None) -> FailureClass | None:
    if status is None:
        return None
    if status in (401, 403):
        return "auth"
    if status == 402:
        return "out_of_credits"
    if status == 413:
        return "context_length"
    if status == 429:
        return "rate_limited"
    return "overloaded" if 500 <= status <= 599 else None


def stating_lines(lines: Iterable[str], stating: re.Pattern[str]) -> list[str]:
    """Those of `lines` that `stating` matches from their beginning, escape sequences aside."""
    return [line for line in lines if stating.match(_plain(line))]


def _told_wait(errors: Sequence[ErrorInfo], now: datetime) -> int | None:
    for error in reversed(errors):
        if error.retry_after_seconds is not None:
            return capped(error.retry_after_seconds)
        if error.resets_at is not None:
            return seconds_until(error.resets_at, now)
    return None


def _error_message(line: str, stating: re.Pattern[str] | None) -> str | None:
    plain = _plain(line)
    match = (stating.match(plain) if stating is not None else None) or _ERROR_LINE.match(plain)
    if match:
        return match["message"]
    return plain.strip() if _BARE_LINE.match(plain) else None


def _plain(line: str) -> str:
    return _ANSI.sub("", line[:MAX_SCANNED_CHARACTERS])


def _evidence(message: str) -> str:
    return " ".join(message.split())[:MAX_EVIDENCE_CHARACTERS]
