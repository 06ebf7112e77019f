"""How the bench measures: wall time bare, git processes by a PATH shim, fsyncs by strace; never at once."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _protocol import Answer, call

SYNC_CALLS = re.compile(r"^\s*\S+\s+\S+\s+\S+\s+(\d+)\s.*\b(?:fsync|fdatasync)$", re.MULTILINE)


class BenchError(Exception):
    """A measured command did not answer as it must; figures of a failing command would mean nothing."""


@dataclass
class Figures:
    """One row: seconds of each timed call, git processes and fsyncs of one call (None: not counted)."""

    seconds: list[float] = field(default_factory=list)
    git: int | None = None
    fsyncs: int | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


class Meter:
    """Runs commands and files what they cost under a row's name. One mode a pass: time, git or fsync."""

    def __init__(self, env: Mapping[str, str], work: Path) -> None:
        self.rows: dict[str, Figures] = {}
        self.mode = "time"
        self._env = dict(env)
        self._counter = work / "git-count"
        self._shims = work / "shims"
        self._trace = work / "strace.out"
        self._strace = shutil.which("strace")
        self._shims.mkdir(exist_ok=True)
        git = shutil.which("git")
        shim = self._shims / "git"
        shim.write_text(f'#!/bin/sh\nprintf . >>"{self._counter}"\nexec {git} "$@"\n')
        shim.chmod(0o755)

    @property
    def modes(self) -> list[str]:
        return ["git", *(["fsync"] if self._strace else [])]

    @property
    def env(self) -> dict[str, str]:
        if self.mode != "git":
            return self._env
        return {**self._env, "PATH": f"{self._shims}:{self._env['PATH']}"}

    def run(self, row: str, argv: Sequence[str], *, expect: str | None, cwd: Path) -> Answer:
        """Run `argv`, file its cost under `row`; its first line must be `expect` where one is given."""
        self._counter.write_bytes(b"")
        traced = [self._strace, "-f", "-qq", "-c", "-e", "trace=fsync,fdatasync", "-o", str(self._trace)]
        prefix = [word for word in traced if word is not None] if self.mode == "fsync" else []
        answer = call([*prefix, *argv], env=self.env, cwd=cwd)
        if answer.code != 0 or (expect is not None and answer.word != expect):
            raise BenchError(f"expected {expect or 'exit 0'}; {answer}")
        self.add(row, answer.seconds)
        return answer

    def add(self, row: str, seconds: float) -> None:
        """File `seconds` (time mode) or what was counted since the last `run` began."""
        figures = self.rows.setdefault(row, Figures())
        if self.mode == "time":
            figures.seconds.append(seconds)
        elif self.mode == "git":
            figures.git = self._counter.stat().st_size
        else:
            figures.fsyncs = sum(int(count) for count in SYNC_CALLS.findall(self._trace.read_text()))
