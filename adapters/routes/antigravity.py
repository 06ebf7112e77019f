"""antigravity: `agy`, one JSON line on stdin, events on stdout, the last one `result`.

Facts: `spec/agents.md`, section agy (releases since 1.1.8). `-p` swallows the word after it and would put the prompt on
the command line, so the prompt goes in as a `user` event. Its exit code says little: a print timeout, a spent quota and
a denied tool have all been exit 0 with status SUCCESS (google-antigravity/antigravity-cli#1012, #1018, #1044). The
effort is a part of a model's name.
"""

from __future__ import annotations

import json
import re

from msgspec.structs import replace

from adapters.contract import Usage
from adapters.errors import Unavailable
from adapters.events import ErrorInfo, Event, Observed, count_at, list_at, text_at, uuid_at
from adapters.failures import rule
from adapters.models import displayable
from adapters.routes import Adapter, Call, Context

_STATING = re.compile(r"(?:AGY_ERROR:\s*|\[agy\] (?=print timeout\b))(?P<message>\S.*)")
_RULES = (
    rule("timeout", r"print timeout", r"timeout waiting for response", detail="print_timeout"),
    rule(
        "out_of_credits",
        r"(?:individual|daily|weekly|monthly) quota (?:has been )?(?:reached|exceeded|exhausted)",
        r"exhausted your quota",
        r"ai credits balance is too low",
        detail="usage_cap",
    ),
    rule("out_of_credits", r"purchase a plan", r"insufficient (?:credit|funds)"),
    # Gemini also says quota when it merely throttles.
    rule("rate_limited", r"quota metric", r"resource_exhausted", r"requests? per (?:minute|day)"),
    rule("auth", r"unauthenticated", r"permission_denied", r"please sign in", r"not (?:signed|logged) in(?:to \w+)?"),
    rule("context_length", r"exceeds the maximum", r"input token count"),
    rule("overloaded", r"unavailable \(code 503\)", r"model is overloaded", r"internal \(code 500\)"),
)


def adapter(context: Context) -> Adapter:
    """How agy is called for `context.model`; `auto` leaves the model to agy."""
    model = () if context.model == "auto" else ("--model", context.model)

    def argv(call: Call) -> tuple[str, ...]:
        return (
            *("agy", "--add-dir", call.workspace, "--print-timeout", "0", "--dangerously-skip-permissions"),
            *("--input-format", "stream-json", "--output-format", "stream-json", "--disable-slash-commands"),
            *model,
        )

    return Adapter(
        executable="agy",
        argv=argv,
        answer_in="words",
        wrap_prompt=user_event,
        words=words,
        observe=observe,
        failure_rules=_RULES,
        stating=_STATING,
        fatal=_STATING,
        version=("--version",),
        help=("--help",),
        resume=("--conversation",),
    )


def user_event(prompt: bytes) -> bytes:
    """The prompt as the one line that agy reads; `Unavailable` for bytes that JSON cannot carry unchanged."""
    try:
        text = prompt.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unavailable(
            f"the packet must be UTF-8 for this route, which sends it as JSON; found byte "
            f"0x{prompt[error.start]:02x} at {error.start} of the prompt"
        ) from None
    event = {"event": "user", "message": {"role": "user", "content": text}}
    return json.dumps(event).encode() + b"\n"


def words(event: Event) -> str | None:
    """What the worker said: pieces of its answers as they come, and the final response."""
    body = _body(event)
    if event.get("event") == "step_update" and text_at(body, "step_type") == "agent_response":
        return text_at(body, "text_delta")
    text = text_at(body, "response") if event.get("event") == "result" else None
    return f"\n{text}" if text else None


def observe(seen: Observed, event: Event) -> Observed:
    """Fold one event of `agy --output-format stream-json`. The usage in `result` is that of the whole conversation."""
    body = _body(event)
    conversation = uuid_at(event, "conversation_id") or uuid_at(body, "conversation_id")
    if seen.session_id is None and conversation is not None:
        seen = replace(seen, session_id=conversation)
    match event.get("event"):
        case "init":
            model = text_at(body, "model")
            return replace(seen, model=displayable(model)) if model else seen
        case "step_update":
            failed = text_at(body, "step_type") == "agent_response" and text_at(body, "state") == "ERROR"
            return seen.with_error(ErrorInfo(_message(body) or "a response failed")) if failed else seen
        case "result":
            return _ended(seen, body)
        case _:
            return seen


def _ended(seen: Observed, result: object) -> Observed:
    actions = list_at(result, "denied_actions")
    denied = [name for entry in actions if (name := text_at(entry, "display_name") or text_at(entry, "action"))]
    seen = replace(seen.with_denied(denied), usage=_usage(result) or seen.usage)
    status = text_at(result, "status")
    if status == "SUCCESS":
        return replace(seen, verdict="completed", ended=True)
    return seen.failed(ErrorInfo(_message(result) or f"status {status or 'missing'}"), ended=True)


def _body(event: Event) -> object:
    """What the event tells: nested under its own name, in some releases flat."""
    nested = event.get(str(event.get("event")))
    return nested if isinstance(nested, dict) else event


def _message(body: object) -> str | None:
    return text_at(body, "error") or text_at(body, "error", "message")


def _usage(result: object) -> Usage | None:
    counts = {
        "input_tokens": count_at(result, "usage", "input_tokens"),
        "cached_input_tokens": count_at(result, "usage", "cache_read_tokens"),
        "output_tokens": count_at(result, "usage", "output_tokens"),
        "reasoning_output_tokens": count_at(result, "usage", "thinking_tokens"),
    }
    # Zeros are printed also for a turn that was cut or never reached the model.
    return Usage(**counts) if any(counts.values()) else None
