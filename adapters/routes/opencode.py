"""opencode: `opencode run --format json`, events on stdout.

Facts: `spec/agents.md`, section opencode. Words with spaces on its command line arrive in quotes, so the prompt goes on
stdin only. A permission to be asked for hangs or is rejected with exit 0 (anomalyco/opencode#36762, #44267), so all
permissions are pinned in a private configuration. A repository's own `opencode.json` overrides the file named by
`OPENCODE_CONFIG`, but not `OPENCODE_CONFIG_CONTENT`: both are given.
"""

from __future__ import annotations

import json
import re

import msgspec
from msgspec.structs import replace

from adapters.contract import Usage
from adapters.events import ErrorInfo, Event, Observed, count_at, list_at, number_at, text_at
from adapters.failures import rule
from adapters.routes import Adapter, Call, Context, Planted

# The last matching rule wins, so the order counts. What is not denied is allowed: nobody is there to be asked.
_PERMISSION = {
    "*": "allow",
    "external_directory": "deny",
    "webfetch": "deny",
    "websearch": "deny",
    "task": "deny",
    "question": "deny",
    "doom_loop": "deny",
}
CONFIG = json.dumps({"autoupdate": False, "share": "disabled", "snapshot": False, "permission": _PERMISSION})
"""The configuration that is put above the user's own."""

_SESSION = re.compile(r"ses_[A-Za-z0-9_-]{1,128}")
_KINDS = {
    "ProviderAuthError": "authentication_error",
    "ContextOverflowError": "context_length_exceeded",
    "MessageOutputLengthError": "max_output_tokens",
}
# Older releases say that they rejected a permission only by this line.
_REJECTED = re.compile(r"\W*(?P<message>permission requested: .*auto-rejecting)")


def adapter(context: Context) -> Adapter:
    """How opencode is called for `context.model` (`provider/model`); `auto` leaves the model to opencode."""
    model = () if context.model == "auto" else ("-m", context.model)

    def argv(call: Call) -> tuple[str, ...]:
        return (
            *("opencode", "run", "--dir", call.workspace, "--format", "json", "--auto", "--variant", context.effort),
            # Without a title one more model is asked for one.
            *("--title", "unit"),
            *model,
        )

    return Adapter(
        executable="opencode",
        argv=argv,
        answer_in="words",
        environment=("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
        variables=(
            ("OPENCODE_CONFIG_CONTENT", CONFIG),
            ("OPENCODE_DISABLE_PROJECT_CONFIG", "1"),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ),
        planted=(Planted("OPENCODE_CONFIG", "opencode.json", CONFIG.encode()),),
        words=words,
        observe=observe,
        failure_rules=(rule("other", r"auto-rejecting", detail="permission_rejected"),),
        stating=_REJECTED,
        fatal=_REJECTED,
        version=("--version",),
        help=("run", "--help"),
        resume=("-s",),
    )


def words(event: Event) -> str | None:
    """What the worker said: a `text` event is a whole part of a message."""
    text = text_at(event, "part", "text") if event.get("type") == "text" else None
    return f"\n{text}" if text else None


def observe(seen: Observed, event: Event) -> Observed:
    """Fold one event of `opencode run --format json`.

    Usage is told step by step and is added up. Not every release ends with `done`; a step that ends with `stop` is the
    last one, too, unless another begins.
    """
    session = text_at(event, "sessionID")
    if seen.session_id is None and session is not None and _SESSION.fullmatch(session):
        seen = replace(seen, session_id=session)
    match event.get("type"):
        case "step_start":
            return replace(seen, ended=False)
        case "step_finish":
            return _stepped(seen, event)
        case "error":
            return seen.failed(_error(event))
        case "done":
            return _done(seen, event)
        case _:
            return seen


def _stepped(seen: Observed, event: Event) -> Observed:
    step = _usage(event)
    seen = replace(seen, usage=step if seen.usage is None else _sum(seen.usage, step))
    match text_at(event, "part", "reason"):
        case "stop":
            return replace(seen, verdict="completed", ended=True)
        case "length":
            return seen.failed(ErrorInfo("the answer was cut at the output limit", "max_output_tokens"))
        case _:
            return seen


def _done(seen: Observed, event: Event) -> Observed:
    rejected = [name for name in list_at(event, "rejected") if isinstance(name, str)]
    if rejected:
        error = ErrorInfo(f"permission rejected: {', '.join(rejected)}", "permission_rejected")
        return seen.with_denied(rejected).failed(error, ended=True)
    return replace(seen, verdict=seen.verdict or "completed", ended=True)


def _error(event: Event) -> ErrorInfo:
    name = text_at(event, "error", "name") or "error"
    after = text_at(event, "error", "data", "responseHeaders", "retry-after")
    return ErrorInfo(
        text_at(event, "error", "data", "message") or name,
        _KINDS.get(name),
        count_at(event, "error", "data", "statusCode"),
        retry_after_seconds=int(after) if after and after.isascii() and after.isdecimal() and len(after) < 10 else None,
    )


def _usage(event: Event) -> Usage:
    return Usage(
        input_tokens=count_at(event, "part", "tokens", "input"),
        cached_input_tokens=count_at(event, "part", "tokens", "cache", "read"),
        cache_write_input_tokens=count_at(event, "part", "tokens", "cache", "write"),
        output_tokens=count_at(event, "part", "tokens", "output"),
        reasoning_output_tokens=count_at(event, "part", "tokens", "reasoning"),
        cost_usd=number_at(event, "part", "cost"),
    )


def _sum(total: Usage, step: Usage) -> Usage:
    """Both together; a sum with an unknown part is unknown."""
    added = {}
    for name in Usage.__struct_fields__:
        one, other = getattr(total, name), getattr(step, name)
        added[name] = None if one is None or other is None else one + other
    return msgspec.convert(added, Usage)
