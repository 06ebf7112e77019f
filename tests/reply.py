"""What a controller command answered."""

from __future__ import annotations

import json
import subprocess
from typing import Any


class Reply:
    """What a command answered."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        lines = done.stdout.decode("ascii").splitlines()
        self.code = done.returncode
        self.word = lines[0] if lines else ""
        self.body: dict[str, Any] = json.loads(lines[1]) if len(lines) > 1 else {}
        self.lines = lines
        self.stderr = done.stderr.decode("utf-8", "replace")
        assert "Traceback" not in self.stderr, self.stderr
        assert len(lines) <= 2, lines

    def __repr__(self) -> str:
        return f"{self.word} ({self.code}) {json.dumps(self.body)[:1500]} {self.stderr}"

    def expect(self, word: str) -> Reply:
        """This reply, if it has the word."""
        assert self.word == word, repr(self)
        return self
