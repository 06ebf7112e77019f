"""The frame around every command: one answer on standard output, one line on standard error, one exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from controller import interrupts
from controller.answer import Answer
from controller.encoding import dumps
from controller.errors import ControllerError, Unreadable


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
        _print(result.word, {**result.body, "next": _next(unit_id)})
        code = 0
    except ControllerError as error:
        code = refuse(error, unit_id)
    except BrokenPipeError:
        code = 1
    except OSError as error:
        from controller.run_root import disk_error

        code = refuse(disk_error(error), unit_id)
    sys.stdout.flush()
    sys.exit(code)


def refuse(error: ControllerError, unit_id: str | None = None) -> int:
    """Print a refusal; its exit code."""
    if isinstance(error, Unreadable):
        print(error.word)  # never a body: what cannot be trusted is not quoted as JSON (section 2)
    else:
        _print(error.word, {**error.body(), "next": _next(unit_id)})
    hints = [f"{name} {value}" for name, value in (("expected", error.expected), ("found", error.found)) if value]
    text = "; ".join([error.message, *hints, f"to do: {error.remedy}"])
    line = " ".join(text.split())[:4000]
    sys.stderr.write(f"unit-workspace: {line}\n".encode("utf-8", "backslashreplace").decode())
    return error.exit_code


def _next(unit_id: str | None) -> list[list[str]]:
    context = click.get_current_context(silent=True)
    if context is None or "run_id" not in context.params:
        return []  # a command that is not about one run
    from controller import guidance
    from controller.run import reading, recent

    run = recent()
    if run is not None:
        return guidance.next_commands(run, unit_id)
    try:  # refused before the run was opened, as when another command works on it
        with reading(str(context.params["run_id"])) as found:
            return guidance.next_commands(found, unit_id)
    except (ControllerError, OSError):
        return []


def _print(word: str, body: dict[str, Any]) -> None:
    sys.stdout.write(f"{word}\n{dumps(body)}\n")


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
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # do not complain again at exit
        code = 1
    sys.exit(code)
