"""One command of the protocol, called as a host calls it: two lines of answer, an exit code, the time.

Used by the demo and the bench. Knows the answer's shape (design.md section 4), nothing of the programs.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one command said: status word, JSON body ({} for none), exit code; `seconds` of wall time."""

    argv: tuple[str, ...]
    code: int
    word: str
    body: dict[str, Any]
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        said = self.stderr.strip() or json.dumps(self.body)
        return f"`{shlex.join(self.argv)}` answered {self.word or 'nothing'} (exit {self.code}): {said}"


def call(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> Answer:
    """Run `argv` with a closed stdin and read its answer; nothing here judges it."""
    began = time.monotonic()
    done = subprocess.run(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    seconds = time.monotonic() - began
    stdout = done.stdout.decode("utf-8", "replace")
    word, _, rest = stdout.partition("\n")
    try:
        body = json.loads(rest)
    except ValueError:
        body = None
    return Answer(
        tuple(argv),
        done.returncode,
        word,
        body if isinstance(body, dict) else {},
        stdout,
        done.stderr.decode("utf-8", "replace"),
        seconds,
    )
