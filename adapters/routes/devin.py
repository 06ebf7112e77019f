"""devin: `devin -p`, plain text on stdout, and a record of the session in a file (ATIF).

Facts: `spec/agents.md`, section devin. It prints no events, so exit code and final JSON object decide; an empty stdout
is a failure. In its sandboxed mode edits still wait for somebody to agree, so it runs with all permissions and without
sandbox. It takes no effort.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from adapters.contract import Usage
from adapters.events import Observed, count_at, decode_event, list_at, number_at, text_at, value_at
from adapters.failures import rule
from adapters.models import displayable
from adapters.routes import Adapter, Call, Context

_SESSION = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SESSION_MAX = 128


def adapter(context: Context) -> Adapter:
    """How devin is called for `context.model`; `auto` leaves the model to devin."""
    model = () if context.model == "auto" else ("--model", context.model)

    def argv(call: Call) -> tuple[str, ...]:
        return (
            *("devin", "-p", "--prompt-file", call.prompt, "--permission-mode", "dangerous"),
            # A fresh worktree is in nobody's list of trusted folders, and without a terminal nobody is asked.
            *("--respect-workspace-trust", "false", "--export", call.raw_result),
            *model,
        )

    return Adapter(
        executable="devin",
        argv=argv,
        answer_in="stdout",
        environment=("XDG_DATA_HOME",),
        prompt_on_stdin=False,
        read_record=read_record,
        failure_rules=(rule("other", r"(?:directory|workspace|folder) is not trusted", detail="permission_rejected"),),
        version=("--version",),
        help=("--help",),
        resume=("-r",),
    )


def read_record(seen: Observed, record: bytes) -> Observed:
    """What the exported trajectory tells: session, model and usage (its totals, else the sum of its steps)."""
    trajectory = decode_event(record)
    if trajectory is None:
        return seen
    session = text_at(trajectory, "session_id")
    model = text_at(trajectory, "agent", "model_name")
    valid = session is not None and len(session) <= _SESSION_MAX and _SESSION.fullmatch(session)
    return replace(
        seen,
        session_id=session if valid else seen.session_id,
        model=displayable(model) if model else seen.model,
        usage=_totals(trajectory) or _steps(list_at(trajectory, "steps")),
    )


def _totals(trajectory: object) -> Usage | None:
    if not isinstance(value_at(trajectory, "final_metrics"), dict):
        return None
    return Usage(
        input_tokens=count_at(trajectory, "final_metrics", "total_prompt_tokens"),
        cached_input_tokens=count_at(trajectory, "final_metrics", "total_cached_tokens"),
        output_tokens=count_at(trajectory, "final_metrics", "total_completion_tokens"),
        cost_usd=number_at(trajectory, "final_metrics", "total_cost_usd"),
    )


def _steps(steps: list[object]) -> Usage | None:
    measured = [step for step in steps if isinstance(value_at(step, "metrics"), dict)]
    if not measured:
        return None
    return Usage(
        input_tokens=_sum(measured, "prompt_tokens"),
        cached_input_tokens=_sum(measured, "cached_tokens"),
        output_tokens=_sum(measured, "completion_tokens"),
    )


def _sum(steps: list[object], name: str) -> int | None:
    counts = [count_at(step, "metrics", name) for step in steps]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
