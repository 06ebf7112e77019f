"""The demo's host: runs one command, shows it and its answer, and stops where it is not the expected one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _protocol import Answer, call

LONGEST_SHOWN = 96
_BOLD, _DIM, _GREEN, _RED, _OFF = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"


class Stop(Exception):
    """The demo cannot go on; the message says what was expected and what was found."""


class Host:
    """Runs commands with one environment in the canonical checkout; `answer`: the controller's last one."""

    def __init__(self, env: Mapping[str, str], checkout: Path) -> None:
        self.env = dict(env)
        self.checkout = checkout
        self.answer: Answer | None = None
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def title(self, text: str) -> None:
        self._print(f"\n{text}\n{'-' * len(text)}", _BOLD)

    def note(self, text: str) -> None:
        self._print(f"\n# {text}", _DIM)

    def controller(self, command: str, *arguments: str, expect: str, then: Sequence[str] = ()) -> Answer:
        """One transition. It must be one that the last answer named in `next`, and must answer `expect`.

        `then` is what follows `--`, the verification command.
        """
        self._must_be_offered(command)
        argv = ["unit-workspace", command, *arguments, *(["--", *then] if then else [])]
        self._show_command(argv)
        answer = call(argv, env=self.env, cwd=self.checkout)
        self._show(answer)
        if answer.word != expect:
            raise Stop(f"expected {expect}; {answer}")
        self.answer = answer
        return answer

    def _must_be_offered(self, command: str) -> None:
        if self.answer is None:
            return
        offered = self.answer.body.get("next", [])
        if not any(command in argv[:2] for argv in offered):
            names = ", ".join(shlex.join(argv[:2]) for argv in offered) or "nothing"
            raise Stop(f"wanted to go on with `{command}`, but {self.answer.word} offers as next: {names}")

    def runner(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """A runner command; its one line of output (the runner answers no JSON)."""
        extra = dict(environment or {})
        argv = ["peer-job-runner", *arguments]
        self._show_command(argv, extra)
        answer = call(argv, env={**self.env, **extra}, cwd=self.checkout)
        if answer.code != 0:
            raise Stop(f"expected exit 0; {answer}")
        said = answer.stdout.strip()
        self._print(said, _GREEN)
        return said

    def shell(self, *argv: str, quiet: bool = False) -> str:
        """Any other command in the canonical checkout, its output as it is."""
        if not quiet:
            self._show_command(argv)
        done = subprocess.run(
            argv, env=self.env, cwd=self.checkout, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        output = (done.stdout + done.stderr).decode("utf-8", "replace").rstrip()
        if output and not quiet:
            print(output, flush=True)
        if done.returncode != 0:
            raise Stop(f"`{shlex.join(argv)}` ended with exit {done.returncode}: {output}")
        return output

    def _show_command(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        before = "".join(f"{name}={value} " for name, value in (environment or {}).items())
        self._print(f"\n$ {before}{shlex.join(argv)}", _BOLD)

    def _show(self, answer: Answer) -> None:
        good = answer.code == 0
        self._print(answer.word or "(no word)", _GREEN if good else _RED)
        body = {key: value for key, value in answer.body.items() if key != "next"}
        print(json.dumps(_shortened(body), indent=2, ensure_ascii=False), flush=True)
        for argv in answer.body.get("next", []):
            self._print(f"next: {shlex.join(argv)}", _DIM)
        if answer.stderr.strip():
            self._print(answer.stderr.rstrip(), _RED)

    def _print(self, text: str, colour: str) -> None:
        print(f"{colour}{text}{_OFF}" if self._colour else text, flush=True)


def _shortened(value: Any) -> Any:
    """The same JSON with long texts cut, for reading; the cut is marked with its full length."""
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        return f"{value[:LONGEST_SHOWN]}… ({len(value)} characters)"
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return value
