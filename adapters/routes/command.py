"""command: a CLI of the user's own, described in the user's configuration (`adapters.config`).

Nothing is known of its events, so its exit code and its final JSON object decide.
"""

from __future__ import annotations

from adapters.config import config_path, load_config
from adapters.errors import ConfigError, Unavailable
from adapters.routes import Adapter, Call, Context


def adapter(context: Context) -> Adapter:
    """How the command that `context.model` names is called; raises `Unavailable` when there is none."""
    path = config_path(context.environ)
    try:
        found = load_config(path, outside=context.workspace).command(context.model)
    except ConfigError as error:
        raise Unavailable(f"configuration refused: {error}") from None
    if isinstance(found, str):
        raise Unavailable(f"{found}; add a table [commands.<name>] to {path}")
    _, command = found

    def argv(call: Call) -> tuple[str, ...]:
        values = {"workspace": call.workspace, "prompt_file": call.prompt, "result_file": call.raw_result}
        return command.filled(values)

    return Adapter(
        executable=command.argv[0],
        argv=argv,
        answer_in="raw-result" if command.uses("result_file") else "stdout",
        environment=command.env,
        prompt_on_stdin=command.prompt == "stdin",
        state=command.state,
        confined=command.confinement,
    )
