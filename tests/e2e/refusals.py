"""How models fail, as their providers tell it, and what the receipt has to say then: one row a failure and CLI.

The bodies are those of the vendors' public API references; the sentences in `evidence` are what the real CLIs made of
them, release by release, so that a changed one is seen here first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.e2e.clis import CLAUDE, CODEX, OPENCODE, Cli, subscribed_claude
from tests.e2e.model_server import Cut, Refuse, Step, Stream
from tests.e2e.wires import Body

RESET_SECONDS = 1800
"""After which the plans in this file are said to be renewed."""


@dataclass(frozen=True)
class Failure:
    """What the model answers once the worker has run a command, and what must be in the receipt.

    `evidence` is a pattern that the deciding line holds; `retry_after` the range in seconds, None where the CLI does
    not tell; `measured`: the CLI tells the usage of a failed call.
    """

    cli: Cli
    name: str
    step: Callable[[], Step]
    failure_class: str
    evidence: str
    detail: str | None = None
    retry_after: tuple[int, int] | None = None
    measured: bool = True

    def __str__(self) -> str:
        return f"{self.cli.route}-{self.name.replace(' ', '-')}"


def _anthropic(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> Step:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Refuse(status, body, headers or {})


def _openai(status: int, code: str | None, message: str, headers: dict[str, str] | None = None, **more: object) -> Step:
    error: Body = {"message": message, "type": "invalid_request_error", "param": None, "code": code, **more}
    # Its client would otherwise wait for a minute between its attempts.
    return Refuse(status, {"error": error}, headers or {"retry-after-ms": "200"})


def _in_stream(code: str, message: str) -> Step:
    failed = {"id": "resp_1", "error": {"code": code, "message": message}}
    created = {"type": "response.created", "response": {"id": "resp_1"}}
    return Stream((created, {"type": "response.failed", "response": failed}))


_WRONG_KEY = "Incorrect API key provided: none."
_THROTTLED = "Rate limit reached for requests."
_BROKEN = "The server had an error while processing your request. Sorry about that!"
_QUOTA = "You exceeded your current quota, please check your plan and billing details."
_TOO_LONG = (
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 213462 tokens. "
    "Please reduce the length of the messages."
)
_ANTHROPIC_THROTTLED = "This request would exceed your account's rate limit. Please try again later."


def _codex_usage_limit() -> Step:
    resets_at = int(time.time()) + RESET_SECONDS
    error = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "plus"}
    return Refuse(429, {"error": {**error, "resets_at": resets_at, "resets_in_seconds": RESET_SECONDS}})


def _claude_session_limit() -> Step:
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(int(time.time()) + RESET_SECONDS),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
        "retry-after": str(RESET_SECONDS),
    }
    return _anthropic(429, "rate_limit_error", _ANTHROPIC_THROTTLED, headers)


# A CLI that tells only the time of day is exact to the minute.
_UNTIL_RESET = (RESET_SECONDS - 120, RESET_SECONDS + 60)

_CODEX = (
    Failure(CODEX, "401", lambda: _openai(401, "invalid_api_key", _WRONG_KEY), "auth", "401 Unauthorized"),
    Failure(
        *(CODEX, "429", lambda: _openai(429, "rate_limit_exceeded", _THROTTLED, {"retry-after": "3"})),
        *("rate_limited", "429 Too Many Requests"),
    ),
    Failure(
        *(CODEX, "429 in stream", lambda: _in_stream("rate_limit_exceeded", f"{_THROTTLED} Please try again in 3.4s.")),
        *("rate_limited", "Rate limit reached"),
        retry_after=(4, 4),
    ),
    Failure(CODEX, "500", lambda: _openai(500, None, _BROKEN), "overloaded", "experiencing high demand"),
    Failure(
        *(CODEX, "usage limit", _codex_usage_limit, "out_of_credits", "hit your usage limit", "usage_cap"),
        retry_after=_UNTIL_RESET,
    ),
    Failure(
        *(CODEX, "context overflow", lambda: _in_stream("context_length_exceeded", _TOO_LONG)),
        *("context_length", "ran out of room in the model's context window"),
    ),
    Failure(CODEX, "disconnect", Cut, "network", "stream disconnected before completion"),
)
_CLAUDE = (
    Failure(
        *(CLAUDE, "401", lambda: _anthropic(401, "authentication_error", "invalid x-api-key")),
        *("auth", "Invalid API key"),
    ),
    Failure(
        *(CLAUDE, "429", lambda: _anthropic(429, "rate_limit_error", _ANTHROPIC_THROTTLED, {"retry-after": "3"})),
        *("rate_limited", "exceed your account's rate limit"),
    ),
    Failure(
        *(CLAUDE, "500", lambda: _anthropic(500, "api_error", "Internal server error")),
        *("overloaded", "500 Internal server error"),
    ),
    Failure(
        *(subscribed_claude(), "usage limit", _claude_session_limit),
        *("out_of_credits", "hit your session limit", "usage_cap"),
        retry_after=_UNTIL_RESET,
    ),
    Failure(
        CLAUDE,
        "no credits",
        lambda: _anthropic(400, "invalid_request_error", "Your credit balance is too low to access the API."),
        "out_of_credits",
        "[Cc]redit balance is too low",
    ),
    Failure(
        CLAUDE,
        "context overflow",
        lambda: _anthropic(400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
        "context_length",
        "Prompt is too long",
    ),
    Failure(CLAUDE, "disconnect", Cut, "network", "ECONNRESET"),
)
_OPENCODE = (
    Failure(OPENCODE, "401", lambda: _openai(401, "invalid_api_key", _WRONG_KEY), "auth", "Incorrect API key"),
    Failure(
        *(OPENCODE, "429", lambda: _openai(429, "rate_limit_exceeded", _THROTTLED, {"retry-after": "1"})),
        *("rate_limited", "Rate limit reached"),
        retry_after=(1, 1),
    ),
    Failure(OPENCODE, "500", lambda: _openai(500, None, _BROKEN), "overloaded", "server had an error"),
    Failure(
        *(OPENCODE, "usage limit", lambda: _openai(429, "insufficient_quota", _QUOTA)),
        *("out_of_credits", "exceeded your current quota"),
    ),
    Failure(
        *(OPENCODE, "context overflow", lambda: _openai(400, "context_length_exceeded", _TOO_LONG)),
        *("context_length", "maximum context length"),
    ),
    # Its runtime tells the same reset in two ways, as it happens to notice it.
    Failure(OPENCODE, "disconnect", Cut, "network", "socket connection was closed|Connection reset by server"),
)
FAILURES = (*(replace(failure, measured=False) for failure in _CODEX), *_CLAUDE, *_OPENCODE)
