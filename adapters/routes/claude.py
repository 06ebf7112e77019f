"""claude: `claude -p`, events on stdout, the last one `result`.

Facts: `spec/agents.md`, section claude. `--safe-mode` keeps the login and drops hooks, plugins and CLAUDE.md of the
worker's tree. `is_error` comes with exit 0 and even with subtype `success`, so the event decides, not the exit code.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from adapters.contract import Usage
from adapters.events import (
    ErrorInfo,
    Event,
    Observed,
    count_at,
    list_at,
    message_text,
    number_at,
    text_at,
    uuid_at,
    value_at,
)
from adapters.routes import Adapter, Call, Context

_KINDS = {"error_max_turns": "max_turns"}


def adapter(context: Context) -> Adapter:
    """How claude is called for `context.model`; `auto` leaves the model to claude."""
    model = () if context.model == "auto" else ("--model", context.model)

    def argv(call: Call) -> tuple[str, ...]:
        del call
        return (
            *("claude", "-p", "--safe-mode", "--no-session-persistence", "--permission-mode", "bypassPermissions"),
            *("--tools", "Read,Write,Edit,Bash", "--allowed-tools", "Bash(*)", "--effort", context.effort),
            *("--output-format", "stream-json", "--verbose"),
            *model,
        )

    return Adapter(
        executable="claude",
        argv=argv,
        answer_in="words",
        environment=("CLAUDE_CONFIG_DIR",),
        # As root it works without asking only in what it is told to be a sandbox, which is then true.
        variables_when_confined=(("IS_SANDBOX", "1"),) if os.geteuid() == 0 else (),
        words=words,
        observe=observe,
        version=("--version",),
        help=("--help",),
    )


def words(event: Event) -> str | None:
    """What the worker said: its messages (not those of its subagents) and the final result."""
    text = None
    if event.get("type") == "assistant" and event.get("parent_tool_use_id") is None:
        text = message_text(event)
    elif event.get("type") == "result":
        text = text_at(event, "result")
    return f"\n{text}" if text else None


def observe(seen: Observed, event: Event) -> Observed:
    """Fold one event of `claude -p --output-format stream-json`.

    The usage in `result` is that of the whole call.
    """
    match event.get("type"):
        case "system" if event.get("subtype") == "init":
            return replace(seen, session_id=uuid_at(event, "session_id") or seen.session_id)
        case "system" if event.get("subtype") == "api_retry":
            return seen.with_error(_reported(event, text_at(event, "error") or "request failed"))
        case "assistant":
            if text_at(event, "error"):
                return seen.with_error(_reported(event, message_text(event) or "request failed"))
            # What came through means that the requests retried before are no reason for whatever comes later.
            answered = text_at(event, "message", "model") not in (None, "<synthetic>")
            return replace(seen, errors=()) if answered else seen
        case "rate_limit_event":
            return _limited(seen, event)
        case "result":
            return _ended(seen, event)
        case _:
            return seen


def _limited(seen: Observed, event: Event) -> Observed:
    # It also comes as a mere notice (`allowed`, `allowed_warning`).
    if text_at(event, "rate_limit_info", "status") != "rejected":
        return seen
    window = text_at(event, "rate_limit_info", "rateLimitType") or "of the plan"
    resets_at = count_at(event, "rate_limit_info", "resetsAt")
    return seen.with_error(ErrorInfo(f"usage limit reached ({window})", "usage_limit_reached", resets_at=resets_at))


def _ended(seen: Observed, event: Event) -> Observed:
    denied = [name for entry in list_at(event, "permission_denials") if (name := text_at(entry, "tool_name"))]
    seen = replace(
        seen.with_denied(denied),
        session_id=uuid_at(event, "session_id") or seen.session_id,
        usage=_usage(event) or seen.usage,
    )
    subtype = text_at(event, "subtype") or "success"
    if event.get("is_error") is not True and subtype == "success":
        return replace(seen, verdict="completed", ended=True)
    listed = [text for text in list_at(event, "errors") if isinstance(text, str)]
    message = text_at(event, "result") or "; ".join(listed) or subtype
    kind = _KINDS.get(subtype) or text_at(event, "error")
    return seen.failed(ErrorInfo(message, kind, count_at(event, "api_error_status")), ended=True)


def _reported(event: Event, message: str) -> ErrorInfo:
    return ErrorInfo(message, text_at(event, "error"), count_at(event, "error_status"))


def _usage(event: Event) -> Usage | None:
    if not isinstance(value_at(event, "usage"), dict):
        return None
    return Usage(
        input_tokens=count_at(event, "usage", "input_tokens"),
        cached_input_tokens=count_at(event, "usage", "cache_read_input_tokens"),
        cache_write_input_tokens=count_at(event, "usage", "cache_creation_input_tokens"),
        output_tokens=count_at(event, "usage", "output_tokens"),
        cost_usd=number_at(event, "total_cost_usd"),
    )
