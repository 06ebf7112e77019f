"""The demo's host: runs one command, shows it and its answer, and stops where it is not the expected one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
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

    def begin(self, *arguments: str, expect: str) -> Answer:
        """The one controller command that no answer offers: `init`."""
        return self._controller(["unit-workspace", "init", *arguments], expect)

    def follow(
        self,
        command: str,
        fill: Mapping[str, str] | None = None,
        *,
        extra: Sequence[str] = (),
        then: Sequence[str] = (),
        expect: str,
    ) -> Answer:
        """The transition `command` as the last answer's `next` spells it; it must answer with the word `expect`.

        `fill` gives the values for the placeholders by flag, `extra` are further flags, `then` is the verification
        command.
        """
        return self._controller(self._offered(command, fill or {}, extra, then), expect)

    def follow_runner(self, command: str, fill: Mapping[str, str] | None = None) -> str:
        """A runner command as `next` spells it; its one line of output (the runner answers no JSON)."""
        argv = self._offered(command, fill or {}, (), ())
        self._show_command(argv)
        answer = call(argv, env=self.env, cwd=self.checkout)
        if answer.code != 0:
            raise Stop(f"expected exit 0; {answer}")
        said = answer.stdout.strip()
        self._print(said, _GREEN)
        return said

    def _controller(self, argv: list[str], expect: str) -> Answer:
        self._show_command(argv)
        answer = call(argv, env=self.env, cwd=self.checkout)
        self._show(answer)
        if answer.word != expect:
            raise Stop(f"expected {expect}; {answer}{_log_tail(answer)}")
        self.answer = answer
        return answer

    def _offered(self, command: str, fill: Mapping[str, str], extra: Sequence[str], then: Sequence[str]) -> list[str]:
        """The command's argv in the last answer's `next`, its placeholders filled in."""
        if self.answer is None:
            raise Stop(f"{command}: no answer has offered anything yet")
        for argv in self.answer.body.get("next", []):
            head, dashes, tail = _parted(argv)
            if command in head:
                break
        else:
            raise Stop(f"expected that `{command}` is offered as a next command; {self.answer}")
        words = [self._short(head[0])]
        for flag, word in pairwise(head):
            words.append(self._short(fill.get(flag, word) if _is_placeholder(word) else word))
        words += [*extra, *dashes, *(then or tail)]
        unknown = [word for word in words if _is_placeholder(word)]
        if unknown:
            raise Stop(f"`{shlex.join(words)}` still needs {', '.join(unknown)}")
        return words

    def _short(self, word: str) -> str:
        """A program by its name, where PATH leads to that very program: what a person would type."""
        name = os.path.basename(word)
        found = os.path.isabs(word) and shutil.which(name, path=self.env["PATH"]) == word
        return name if found else word

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

    def show(self, *argv: str) -> None:
        """A command made for people, with the terminal (and its width) to itself."""
        self._show_command(argv)
        done = subprocess.run(argv, env=self.env, cwd=self.checkout, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise Stop(f"`{shlex.join(argv)}` ended with exit {done.returncode}")

    def _show_command(self, argv: Sequence[str]) -> None:
        self._print(f"\n$ {shlex.join(argv)}", _BOLD)

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


def _log_tail(answer: Answer) -> str:
    """The end of the verification's private log, which goes with the demo's folder."""
    log = Path(answer.body.get("verification_log") or os.devnull)
    lines = log.read_text("utf-8", "replace").splitlines()[-20:] if log.exists() else []
    return "".join(f"\n    {line}" for line in lines)


def _parted(argv: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """What stands before the first `--`, it, and what stands after."""
    at = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at : at + 1]), list(argv[at + 1 :])


def _is_placeholder(word: str) -> bool:
    return word.startswith("<") and word.endswith(">")


def _shortened(value: Any) -> Any:
    """The same JSON with long texts cut, for reading; the cut is marked with its full length."""
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        return f"{value[:LONGEST_SHOWN]}… ({len(value)} characters)"
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return value
