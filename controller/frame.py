"""The frame around every command: one answer on standard output, one line on standard error, one exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TextIO

import click

from controller import interrupts
from controller.answer import Answer
from controller.encoding import dumps
from controller.errors import Blocked, ControllerError, Unreadable
from runner.errors import RunnerError, Untrusted


class PrefixCommand(click.Command):
    """Long options may be shortened to a unique prefix, as hosts of the existing scripts do (section 2)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Complete shortened options before the first `--`."""
        options = [name for param in self.params for name in (*param.opts, *param.secondary_opts)]
        completed = []
        for position, word in enumerate(args):
            if word == "--":
                completed += args[position:]
                break
            completed.append(self._complete(word, options))
        try:
            return super().parse_args(ctx, completed)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # an option without its value would else be reported without the usage
            raise

    @staticmethod
    def _complete(word: str, options: list[str]) -> str:
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name in options or len(name) < 3:
            return word
        matches = [option for option in options if option.startswith(name)]
        return f"{matches[0]}{equals}{value}" if len(matches) == 1 else word


def answer(command: Callable[..., Answer], unit_id: str | None = None, **arguments: Any) -> None:
    """Run a command function and print what it answers; ends the process."""
    interrupts.install()
    try:
        result = command(**arguments)
    except ControllerError as error:
        code = refuse(error, unit_id)
    except (RunnerError, OSError) as error:
        code = refuse(_refusal(error), unit_id)
    else:
        code = _print(result.word, {**result.body, "next": _next(unit_id)}, 0)
    sys.exit(code)


def _refusal(error: RunnerError | OSError) -> ControllerError:
    """What went wrong below the controller, in its words."""
    if isinstance(error, RunnerError):
        kind = Unreadable if isinstance(error, Untrusted) else Blocked
        return kind(error.message, expected=error.expected, found=error.found, remedy=error.remedy)
    from controller.run_root import disk_error

    return disk_error(error)


def refuse(error: ControllerError, unit_id: str | None = None) -> int:
    """Print a refusal; its exit code."""
    # What cannot be trusted is not quoted as JSON (section 2).
    body = None if isinstance(error, Unreadable) else {**error.body(), "next": _next(unit_id)}
    code = _print(error.word, body, error.exit_code)
    hints = [f"{name} {value}" for name, value in (("expected", error.expected), ("found", error.found)) if value]
    _complain("; ".join([error.message, *hints, f"to do: {error.remedy}"]))
    return code


def _complain(text: str) -> None:
    """One line for people; who closed standard error does not want it."""
    line = " ".join(text.split())[:4000]
    try:
        sys.stderr.write(f"unit-workspace: {line}\n".encode("utf-8", "backslashreplace").decode())
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """Nobody can read this stream: what is left in it must not become another exit code at the end."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _next(unit_id: str | None) -> list[list[str]]:
    context = click.get_current_context(silent=True)
    if context is None or "run_id" not in context.params:
        return []  # a command that is not about one run
    from controller import guidance
    from controller.run import reading, recent

    run = recent()
    if run is not None:
        try:
            return guidance.next_commands(run, unit_id)
        except RunnerError:  # without /proc nothing can be said about the job's processes
            return []
    try:  # refused before the run was opened, as when another command works on it
        with reading(str(context.params["run_id"])) as found:
            return guidance.next_commands(found, unit_id)
    except (ControllerError, RunnerError, OSError):
        return []


def _print(word: str, body: dict[str, Any] | None, code: int) -> int:
    """Write the answer; `code`, or 1 in place of 0 when nobody can have read it."""
    try:
        sys.stdout.write(f"{word}\n" if body is None else f"{word}\n{dumps(body)}\n")
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError) as error:
        _unheard(error)
        return code or 1
    return code


def _unheard(error: Exception) -> None:
    """Standard output is closed or full: what the command did stands, and is told on standard error."""
    _give_up(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        _complain(
            f"the answer could not be written to standard output: {error}; what the command did is recorded; "
            "to do: run `status` for where the run stands, with an output that can be written"
        )


def stream(produce: Callable[[], Iterable[bytes]]) -> None:
    """Write bytes for people or programs instead of a word and a body; a refusal is printed as always."""
    try:
        for chunk in produce():
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        code = 0
    except ControllerError as error:
        code = refuse(error)
    except FileNotFoundError as error:
        code = refuse(Unreadable(f"{error.filename} is missing", expected="a journal", found="nothing"))
    except OSError as error:
        _unheard(error)
        code = 1
    sys.exit(code)
