"""codex: `codex exec`, JSONL events on stdout, its last message in a file, its own kernel sandbox.

Facts: `spec/agents.md`, section codex. `workspace-write` would also allow `/tmp` and `$TMPDIR`, where the run
root lies, hence the two exclusions. `--ask-for-approval` is not accepted by `exec`.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from adapters.contract import Usage
from adapters.events import ErrorInfo, Event, Observed, count_at, text_at, uuid_at
from adapters.routes import Adapter, Call, Context

_PINNED = (
    "--skip-git-repo-check",
    "-c",
    "approval_policy=never",
    "-c",
    "sandbox_workspace_write.network_access=false",
    "-c",
    "sandbox_workspace_write.exclude_slash_tmp=true",
    "-c",
    "sandbox_workspace_write.exclude_tmpdir_env_var=true",
)
_APPLICATIONS = ("ChatGPT.app/Contents/Resources", "Codex.app/Contents/Resources")

_NOTE = """\
Your commands run in a sandbox: writes outside the workspace and network access fail with EPERM or "Operation not
permitted". Checks that bind sockets or probe permissions belong to the host; when such a check fails here for that
reason, say so in evidence and go on. It is no defect of your change, and no reason to report blocked."""


def adapter(context: Context) -> Adapter:
    """How codex is called for `context.model`; `auto` leaves the model to codex."""
    model = () if context.model == "auto" else ("-m", context.model)

    def argv(call: Call) -> tuple[str, ...]:
        return (
            *("codex", "exec", "--ignore-user-config", "--ignore-rules", "--ephemeral"),
            *("-s", "workspace-write", "-C", call.workspace, "--json", "-o", call.raw_result),
            *("-c", f"model_reasoning_effort={context.effort}"),
            *_PINNED,
            *model,
            "-",
        )

    return Adapter(
        executable="codex",
        argv=argv,
        answer_in="raw-result",
        environment=("CODEX_HOME",),
        extra_path=_application_directories(context),
        prompt_note=_NOTE,
        observe=observe,
        confinement="cli-sandbox",
        version=("--version",),
        help=("exec", "--help"),
    )


def observe(seen: Observed, event: Event) -> Observed:
    """Fold one event of `codex exec --json`.

    `turn.completed` gives the usage of the whole thread so far: it replaces, it is never added up
    (openai/codex#17539). An `error` decides until a later turn completes: reconnects are reported as errors,
    too.
    """
    match event.get("type"):
        case "thread.started":
            return replace(seen, session_id=uuid_at(event, "thread_id") or seen.session_id)
        case "turn.started":
            return replace(seen, ended=False)
        case "item.completed":
            text = text_at(event, "item", "text")
            is_message = text_at(event, "item", "type") == "agent_message"
            return replace(seen, message=text) if is_message and text else seen
        case "turn.completed":
            return replace(seen, verdict="completed", ended=True, usage=_usage(event))
        case "turn.failed":
            return seen.failed(ErrorInfo(text_at(event, "error", "message") or "turn failed"), ended=True)
        case "error":
            return seen.failed(ErrorInfo(text_at(event, "message") or "error"))
        case _:
            return seen


def _usage(event: Event) -> Usage:
    return Usage(
        input_tokens=count_at(event, "usage", "input_tokens"),
        cached_input_tokens=count_at(event, "usage", "cached_input_tokens"),
        cache_write_input_tokens=count_at(event, "usage", "cache_write_input_tokens"),
        output_tokens=count_at(event, "usage", "output_tokens"),
        reasoning_output_tokens=count_at(event, "usage", "reasoning_output_tokens"),
    )


def _application_directories(context: Context) -> tuple[str, ...]:
    configured = context.environ.get("CROSS_MODEL_CODEX_APP_DIRS")
    if configured is not None:
        return tuple(entry for entry in configured.split(":") if os.path.isabs(entry))
    roots = ("/Applications", os.path.join(context.environ.get("HOME", "/"), "Applications"))
    return tuple(os.path.join(root, name) for root in reversed(roots) for name in _APPLICATIONS)
