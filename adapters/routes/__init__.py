"""One small module per backend. Each has `adapter(context)`, which says as data how its CLI is called and
read.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from adapters.events import Event, Observed
from adapters.failures import Rule
from adapters.route_table import DEFAULT_EFFORT


class Context(msgspec.Struct, frozen=True):
    """What a route may look at to describe itself. `workspace` is None when nothing will be run."""

    model: str
    environ: Mapping[str, str]
    workspace: Path | None = None
    effort: str = DEFAULT_EFFORT


class Call(msgspec.Struct, frozen=True):
    """The paths of one call, as they appear in its command line."""

    workspace: str
    prompt: str
    raw_result: str


class Planted(msgspec.Struct, frozen=True):
    """A private file for the CLI: `name` in the scratch folder of the call, its path in the environment `variable`.

    Never in the workspace: there it would be the worker's to change, and a part of its change (launcher section 15
    W27).
    """

    variable: str
    name: str
    content: bytes


def no_events(seen: Observed, event: Event) -> Observed:
    """The fold of a CLI whose lines are not known to mean anything."""
    del event
    return seen


def no_words(event: Event) -> str | None:
    """The words of a CLI whose events do not tell what the worker said."""
    del event
    return None


class Adapter(msgspec.Struct, frozen=True):
    """How one CLI is called and read.

    Called:
    - `argv` builds the command line, `executable` first. `environment` names variables that are passed on beside the
      common ones, `variables` are set to fixed values (`variables_when_confined`: while the kernel holds its writes),
      `planted` are files of ours that it is given.
    - `extra_path` lists directories that are appended to PATH when the executable is not on it.
    - The prompt is in the file `Call.prompt` and, unless `prompt_on_stdin` is false, on stdin: as it is, or as
      `wrap_prompt` makes it (`Unavailable` when it cannot carry the bytes). `prompt_note` is told to the worker.

    Read:
    - `answer_in` is where the final answer is looked for: `raw-result`, the file that the CLI writes; `stdout`, all of
      it; `words`, what `words` takes out of the events (deltas as they are, whole messages after a newline), then the
      lines of stdout that are no events. With `words` an answer counts only when a final event confirmed it.
    - `observe` folds an event, `read_record` the file at `Call.raw_result` after the CLI has ended.
    - `failure_rules` come before the common ones. `stating` (group `message`) matches lines that state an error in a
      form of this CLI's own; a line that `fatal` matches means failure whatever exit code and events say.

    Known of it:
    - `confinement` is what holds the worker inside its workspace while nothing of ours does. `state` are folders that
      it may write beside those of `adapters.installation`; `confined`: whether we confine it (`adapters.confine`).
    - Arguments, None when it has none: `version` prints its version, `help` its flags, `models` a list of lines
      `<model> - <label>` that is asked for before the call. `resume` are those before the session id that would go on
      with a session; empty when none is kept.
    """

    executable: str
    argv: Callable[[Call], tuple[str, ...]]
    answer_in: Literal["raw-result", "stdout", "words"]
    environment: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    variables_when_confined: tuple[tuple[str, str], ...] = ()
    planted: tuple[Planted, ...] = ()
    extra_path: tuple[str, ...] = ()
    prompt_on_stdin: bool = True
    wrap_prompt: Callable[[bytes], bytes] | None = None
    prompt_note: str = ""
    words: Callable[[Event], str | None] = no_words
    observe: Callable[[Observed, Event], Observed] = no_events
    read_record: Callable[[Observed, bytes], Observed] | None = None
    failure_rules: tuple[Rule, ...] = ()
    stating: re.Pattern[str] | None = None
    fatal: re.Pattern[str] | None = None
    confinement: str = "cooperative"
    state: tuple[str, ...] = ()
    confined: Literal["on", "off", "require"] = "on"
    version: tuple[str, ...] | None = None
    help: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    resume: tuple[str, ...] = ()


def load(name: str, context: Context) -> Adapter:
    """The adapter of route `name`; raises `Unavailable` when it is not configured here."""
    module = importlib.import_module(f"adapters.routes.{name.replace('-', '_')}")
    adapter = module.adapter(context)
    if not isinstance(adapter, Adapter):
        raise TypeError(f"adapters.routes.{name} gives no Adapter")
    return adapter
