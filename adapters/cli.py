"""`cross-model-work`: one agent CLI call, authorized by the controller, published as one result.

    cross-model-work <authorization json> <workspace> <packet> <packet sha256> <result dir>
    cross-model-work --emit-adapter <route>
    cross-model-work preflight --route <route> …      (adapters.preflight)
    cross-model-work resolve --preference <json> …    (adapters.resolve)

Exit 0: the worker completed, is blocked, or asks for more scope. 1: it was started but failed. 2: refused or
unavailable. 143: ended by SIGTERM or SIGINT. Messages go to stderr with the prefix `[cross-model-work] `.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

from adapters.errors import EXIT_INTERRUPTED, EXIT_REFUSED, AdapterError, Unavailable, UsageError
from runner.errors import Interrupted, RunnerError, printable
from runner.start_up import complain, forget_stdout, start_up

_USAGE = (
    "usage: cross-model-work <authorization json> <workspace> <packet> <packet sha256> <result dir>"
    " | --emit-adapter <route> | preflight --help | resolve --help"
)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    start_up()
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _interrupt)
    sys.exit(run(sys.argv[1:], os.environ))


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what `arguments` say and return the exit code; never raises an error of ours."""
    try:
        code = _run(arguments, environ)
        sys.stdout.flush()
        return code
    except Interrupted:
        return EXIT_INTERRUPTED
    except AdapterError as error:
        say(str(error))
        return error.exit_code
    except Unavailable as error:
        say(f"unavailable: {error}")
        return EXIT_REFUSED
    except RunnerError as error:
        say(f"cannot go on: {error}")
        return EXIT_REFUSED
    except OSError as error:
        forget_stdout()
        say(f"cannot go on: {error}")
        return EXIT_REFUSED


def say(message: str) -> None:
    """One line on stderr, safe for any terminal; a closed stderr is no reason to fail."""
    complain(f"[cross-model-work] {printable(message)}")


def _run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    if arguments[:1] == ["--emit-adapter"]:
        if len(arguments) != 2:
            raise UsageError(_USAGE)
        from adapters.emit import emit_adapter

        sys.stdout.write(emit_adapter(arguments[1], environ) + "\n")
        return 0
    if arguments[:1] == ["task"]:
        from adapters.task_show import main as task

        return task(arguments[1:], environ)
    if arguments[:1] == ["preflight"]:
        from adapters.preflight import main as preflight

        return preflight(arguments[1:], environ)
    if arguments[:1] == ["resolve"]:
        from adapters.resolve import main as resolve

        return resolve(arguments[1:], environ)
    if arguments[:1] in (["--help"], ["-h"]):
        sys.stdout.write(_USAGE + "\n")
        return 0
    if len(arguments) != 5:
        raise UsageError(_USAGE)
    from adapters.dispatch import dispatch
    from adapters.inputs import Arguments

    return dispatch(Arguments(*arguments), environ, say)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del frame
    raise Interrupted(signum)
