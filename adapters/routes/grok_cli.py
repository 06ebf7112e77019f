"""grok-cli: `grok --prompt-file`, events on stdout, the last one `end`.

Facts: `spec/agents.md`, section grok. Piped stdin is not read; it is connected as for every route. Its `workspace`
sandbox leaves `/tmp` writable and is given up with a warning where the kernel lacks it, so it is no confinement that
could be promised. `acceptEdits` without anybody to ask can end a turn as cancelled: that is a rejected permission.
"""

from __future__ import annotations

from msgspec.structs import replace

from adapters.contract import Usage
from adapters.events import ErrorInfo, Event, Observed, count_at, number_at, text_at, uuid_at, value_at
from adapters.failures import rule
from adapters.models import displayable
from adapters.routes import Adapter, Call, Context

_STOPPED = {
    "cancelled": "permission_rejected",
    "refusal": "refusal",
    "maxtokens": "max_output_tokens",
    "maxturnrequests": "max_turns",
}


def adapter(context: Context) -> Adapter:
    """How grok is called for `context.model`; `auto` leaves the model to grok."""
    model = () if context.model == "auto" else ("--model", context.model)

    def argv(call: Call) -> tuple[str, ...]:
        return (
            *("grok", "--prompt-file", call.prompt, "--cwd", call.workspace, "--effort", context.effort),
            *("--permission-mode", "acceptEdits", "--tools", "Read,Write,Edit", "--disable-web-search", "--no-memory"),
            *("--no-subagents", "--no-plan", "--max-turns", "50", "--output-format", "streaming-json", "--verbatim"),
            *("--no-auto-update", "--sandbox", "workspace"),
            *model,
        )

    return Adapter(
        executable="grok",
        argv=argv,
        answer_in="words",
        environment=("GROK_CONFIG_HOME",),
        words=words,
        observe=observe,
        failure_rules=(
            rule("auth", r"please sign in", r"xai_api_key is not set", r"run [`'\"]?grok login"),
            rule("out_of_credits", r"(?:team|account) has no credits", r"spending[- ]limit(?: reached)?"),
        ),
        version=("--version",),
        help=("--help",),
        resume=("-r",),
    )


def words(event: Event) -> str | None:
    """What the worker said: `text` events are pieces of one text."""
    return text_at(event, "data") if event.get("type") == "text" else None


def observe(seen: Observed, event: Event) -> Observed:
    """Fold one event of `grok --output-format streaming-json`. The usage in `end` is that of the whole prompt."""
    match event.get("type"):
        case "max_turns_reached":
            return seen.with_error(ErrorInfo("the turn limit was reached", "max_turns"))
        case "error":
            failed = seen.failed(ErrorInfo(text_at(event, "message") or "error"))
            return replace(failed, usage=_usage(event) or seen.usage)
        case "end":
            return _ended(seen, event)
        case _:
            return seen


def _ended(seen: Observed, event: Event) -> Observed:
    seen = replace(
        seen,
        session_id=uuid_at(event, "sessionId") or seen.session_id,
        model=_model(event) or seen.model,
        usage=_usage(event) or seen.usage,
    )
    # `EndTurn` in older releases, `end_turn` in later ones.
    reason = text_at(event, "stopReason") or "end_turn"
    plain = reason.replace("_", "").lower()
    if plain == "endturn":
        return replace(seen, verdict="completed", ended=True)
    return seen.failed(ErrorInfo(f"the turn was stopped: {reason}", _STOPPED.get(plain)), ended=True)


def _model(event: Event) -> str | None:
    """The model that was charged, when it was one."""
    charged = value_at(event, "modelUsage")
    return displayable(str(*charged)) if isinstance(charged, dict) and len(charged) == 1 else None


def _usage(event: Event) -> Usage | None:
    # An incomplete count is a lower bound, no measurement. A missing cost does not mean free.
    if not isinstance(value_at(event, "usage"), dict) or event.get("usage_is_incomplete") is True:
        return None
    return Usage(
        input_tokens=count_at(event, "usage", "input_tokens"),
        cached_input_tokens=count_at(event, "usage", "cache_read_input_tokens"),
        cache_write_input_tokens=count_at(event, "usage", "cache_creation_input_tokens"),
        output_tokens=count_at(event, "usage", "output_tokens"),
        reasoning_output_tokens=count_at(event, "usage", "reasoning_tokens"),
        cost_usd=None if event.get("cost_is_partial") is True else number_at(event, "total_cost_usd"),
    )
