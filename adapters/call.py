"""One run of a CLI: its output into the log and the event fold as it comes, and when to stop waiting for it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from adapters.environment import Settings
from adapters.events import Event, Lines, Observed, decode_event, event_name, is_event
from adapters.files import read_regular
from adapters.finished import HUNG, OVER_CAP, Finished
from adapters.models import announced_model
from adapters.publish import AdapterLog
from adapters.routes import Adapter
from runner.foreground import Outcome, run_supervised

MARKER = "CE_PEER_JOB_ID"
GRACE_SECONDS = 2.0
MODELS_SECONDS = 15.0

_KEPT_LINES = 200
_KEPT_LINE_BYTES = 4000
_KEPT_PROBE_BYTES = 256 * 1024


class Launch(msgspec.Struct, frozen=True):
    """What to start: the resolved `argv` in `workspace`, with exactly `environment`; `stdin` None is
    /dev/null. `before_exec` is done in the child just before; when it raises, nothing is started.
    """

    argv: tuple[str, ...]
    workspace: Path
    environment: dict[str, str]
    stdin: Path | None
    job: str
    before_exec: Callable[[], None] | None = None


class Reader:
    """Takes the output of one run. `say` prints a line of progress, which the runner counts as activity."""

    def __init__(
        self,
        adapter: Adapter,
        settings: Settings,
        log: AdapterLog,
        raw_result: Path,
        say: Callable[[str], None],
    ) -> None:
        self.seen = Observed()
        self._adapter = adapter
        self._settings = settings
        self._log = log
        self._raw_result = raw_result
        self._say = say
        self._stdout = bytearray()
        self._words: list[str] = []
        self._stdout_lines = Lines()
        self._stderr_lines = Lines()
        self._text: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ended_at: float | None = None
        self._said_bytes = 0
        self._next_saying = time.monotonic() + settings.activity_seconds

    def on_stdout(self, chunk: bytes) -> None:
        """Take what the CLI printed; raises `AdapterError` when the log cannot take it."""
        self._log.write("stdout", chunk)
        if self._log.over_cap:
            return
        if self._adapter.answer_in == "stdout":
            self._stdout += chunk
        for line in self._stdout_lines.feed(chunk):
            self._take(line)

    def on_stderr(self, chunk: bytes) -> None:
        """The same for what it printed on stderr, which holds no events."""
        self._log.write("stderr", chunk)
        if self._log.over_cap:
            return
        for line in self._stderr_lines.feed(chunk):
            self._keep(line)

    def should_stop(self) -> str | None:
        """Why the CLI has to be ended now, or None; asked many times a second."""
        now = time.monotonic()
        size = self._log.raw_bytes + self._raw_result_bytes()
        if now >= self._next_saying:
            self._next_saying = now + self._settings.activity_seconds
            if size != self._said_bytes:
                self._said_bytes = size
                latest = f", latest event {self.seen.latest}" if self.seen.latest else ""
                self._say(f"output-updated: {size} bytes{latest}")
        if size > self._settings.max_raw_bytes:
            return OVER_CAP
        # A CLI whose helper holds its pipes never exits by itself (anthropics/claude-code#25629).
        if not self.seen.ended:
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = now
        elif now - self._ended_at > self._settings.exit_grace_seconds:
            return HUNG
        return None

    def finish(self, outcome: Outcome) -> Finished:
        """Everything that is known after the run; the raw result joins the log."""
        for line in self._stdout_lines.finish():
            self._take(line)
        for line in self._stderr_lines.finish():
            self._keep(line)
        raw = self._read_raw_result()
        self._log.write("raw-result", raw)
        if self._adapter.read_record is not None:
            self.seen = self._adapter.read_record(self.seen, raw)
        return Finished(
            outcome=outcome,
            seen=self.seen,
            stdout=bytes(self._stdout),
            raw_result=raw,
            text_lines=tuple(self._text),
            over_cap=self._log.over_cap or outcome.stopped == OVER_CAP,
            words="".join(self._words),
        )

    def _take(self, line: bytes) -> None:
        event = decode_event(line)
        if event is None:
            self._keep(line)
        else:
            self.seen = self._fold(event)
        if self._adapter.answer_in != "words":
            return
        said = None if event is None else self._adapter.words(event)
        if said is not None:
            self._words.append(said)
        elif event is None or not is_event(event):
            # A worker's answer on a line of its own is an object, too, but names no event.
            self._stdout += line + b"\n"

    def _fold(self, event: Event) -> Observed:
        latest = event_name(event) or self.seen.latest or "unnamed"
        seen = msgspec.structs.replace(self.seen, latest=latest)
        if seen.model is None:
            seen = msgspec.structs.replace(seen, model=announced_model(event))
        return self._adapter.observe(seen, event)

    def _keep(self, line: bytes) -> None:
        text = line[:_KEPT_LINE_BYTES].decode("utf-8", "replace")
        if text.strip():
            self._text.append(text)

    def _raw_result_bytes(self) -> int:
        try:
            return os.lstat(self._raw_result).st_size
        except OSError:
            return 0

    def _read_raw_result(self) -> bytes:
        try:
            # Never through a link: the worker could make this name point to any file of the user's.
            data, _ = read_regular(self._raw_result, self._settings.max_raw_bytes, follow=False)
        except OSError:
            return b""
        return data


def run_call(launch: Launch, reader: Reader) -> Finished:
    """Run the CLI to its end; no process of it is left afterwards.

    Raises `runner.errors.Interrupted` on SIGTERM or SIGINT after ending the tree, and `AdapterError` when the
    log cannot be written. There is no timeout here: the runner, which started this program, has one.
    """
    outcome = run_supervised(
        launch.argv,
        cwd=launch.workspace,
        env=launch.environment,
        stdin=launch.stdin,
        timeout=None,
        grace=GRACE_SECONDS,
        marker=(MARKER, launch.job),
        on_stdout=reader.on_stdout,
        on_stderr=reader.on_stderr,
        should_stop=reader.should_stop,
        before_exec=launch.before_exec,
    )
    return reader.finish(outcome)


def probe_output(argv: tuple[str, ...], environment: dict[str, str], cwd: Path, job: str, seconds: float) -> str | None:
    """What a command that only tells something prints on stdout, at most 256 KiB of it; None when it fails or takes
    longer than `seconds`. It gets no input.
    """
    printed = bytearray()

    def collect(chunk: bytes) -> None:
        if len(printed) < _KEPT_PROBE_BYTES:
            printed.extend(chunk)

    outcome = run_supervised(
        argv,
        cwd=cwd,
        env=environment,
        timeout=seconds,
        grace=0.2,
        marker=(MARKER, job),
        on_stdout=collect,
        on_stderr=None,
    )
    return bytes(printed).decode("utf-8", "replace") if outcome.exit_code == 0 else None
