"""What the three routes through the Cursor CLI share: `cursor-agent -p`, events on stdout, the last one `result`.

Facts: `spec/agents.md`, section cursor-agent; protocol section 13. Without `--trust` and `--force` it refuses or only
proposes. The opening event reports a model's display name, which `--list-models` ties to its id. When it fails there
may be no event at all, only a line on stderr. The program is also installed as `agent`, which is the name of xAI's CLI
as well: only the name that no other recipient has is started.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from adapters.contract import Usage
from adapters.events import ErrorInfo, Event, Observed, count_at, message_text, text_at, uuid_at, value_at
from adapters.failures import rule
from adapters.routes import Adapter, Call, Context

# For example `ActionRequiredError: …`, `ConnectError: [unavailable] …`, `S: [unauthenticated] Error`, and the refusal
# of an untrusted folder.
_STATING = re.compile(
    r"(?:\s*(?:Error:\s+)?(?:[A-Z]\w*Error|[A-Za-z]{1,2}):\s+|\W*(?=Workspace Trust Required))(?P<message>\S.*)"
)
_RULES = (
    rule("other", r"workspace trust required", detail="permission_rejected"),
    rule("other", r"named models unavailable", r"model blocked", r"review data policy", detail="model_unavailable"),
    rule(
        "out_of_credits",
        r"(?:monthly|plan) limit(?: (?:has been )?(?:reached|exceeded))",
        r"free requests limit",
        detail="usage_cap",
    ),
    rule("auth", r"\[unauthenticated\]", r"\[permission_denied\]", r"(?:cursor-agent|agent) login"),
    rule("rate_limited", r"\[resource_exhausted\]", r"slow down"),
    rule("overloaded", r"\[unavailable\]", r"\[internal\]"),
    rule("network", r"\[deadline_exceeded\]", r"connection failed"),
)


def cursor_adapter(context: Context) -> Adapter:
    """How cursor-agent is called for `context.model`; `auto` leaves the model to Cursor."""
    explicit = context.model != "auto"
    model = ("--model", context.model) if explicit else ()

    def argv(call: Call) -> tuple[str, ...]:
        return (
            *("cursor-agent", "-p", "--output-format", "stream-json", "--stream-partial-output", "--force"),
            *("--sandbox", "enabled", "--trust", "--workspace", call.workspace),
            *model,
        )

    return Adapter(
        executable="cursor-agent",
        argv=argv,
        answer_in="words",
        environment=("CURSOR_CONFIG_DIR",),
        words=words,
        observe=observe,
        failure_rules=_RULES,
        stating=_STATING,
        confinement="cli-sandbox",
        version=("--version",),
        help=("--help",),
        models=("--list-models",) if explicit else None,
        resume=("--resume",),
    )


def words(event: Event) -> str | None:
    """What the worker said: with partial output, messages come in pieces; the final result has the whole text."""
    if event.get("type") == "assistant":
        return message_text(event)
    text = text_at(event, "result") if event.get("type") == "result" else None
    return f"\n{text}" if text else None


def observe(seen: Observed, event: Event) -> Observed:
    """Fold one event of `cursor-agent --output-format stream-json`. The usage in `result` is that of the call."""
    match event.get("type"):
        case "system" if event.get("subtype") == "init":
            return replace(seen, session_id=uuid_at(event, "session_id") or seen.session_id)
        case "result":
            seen = replace(
                seen,
                session_id=uuid_at(event, "session_id") or seen.session_id,
                usage=_usage(event) or seen.usage,
            )
            subtype = text_at(event, "subtype") or "success"
            if event.get("is_error") is not True and subtype == "success":
                return replace(seen, verdict="completed", ended=True)
            return seen.failed(ErrorInfo(text_at(event, "result") or subtype), ended=True)
        case _:
            return seen


def _usage(event: Event) -> Usage | None:
    if not isinstance(value_at(event, "usage"), dict):
        return None
    return Usage(
        input_tokens=count_at(event, "usage", "inputTokens"),
        cached_input_tokens=count_at(event, "usage", "cacheReadTokens"),
        cache_write_input_tokens=count_at(event, "usage", "cacheWriteTokens"),
        output_tokens=count_at(event, "usage", "outputTokens"),
    )
