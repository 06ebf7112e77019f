"""One small module per backend. Each has `adapter(context)`, which says as data how its CLI is called and
read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from adapters.errors import Unavailable
from adapters.events import Event, Observed
from adapters.failures import Rule
from adapters.route_table import ROUTES

NOT_BUILT = "adapter not built yet"


class Context(msgspec.Struct, frozen=True):
    """What a route may look at to describe itself. `workspace` is None when nothing will be run."""

    model: str
    environ: Mapping[str, str]
    workspace: Path | None = None


class Call(msgspec.Struct, frozen=True):
    """The paths of one call, as they appear in its command line."""

    workspace: str
    prompt: str
    raw_result: str


def no_events(seen: Observed, event: Event) -> Observed:
    """The fold of a CLI whose lines are not known to mean anything."""
    del event
    return seen


class Adapter(msgspec.Struct, frozen=True):
    """How one CLI is called and read.

    `argv` builds the command line, `executable` first. `environment` names variables that are passed on
    beside the common ones; `extra_path` lists directories that are appended to PATH when the executable is
    not on it. `answer_in` is where the final answer is: the file `raw_result` that the CLI writes, or its
    stdout. `observe` folds its events. `confinement` is what holds the worker inside its workspace. `version`
    are the arguments that print the CLI's version, None when it has none.
    """

    executable: str
    argv: Callable[[Call], tuple[str, ...]]
    answer_in: Literal["raw-result", "stdout"]
    environment: tuple[str, ...] = ()
    extra_path: tuple[str, ...] = ()
    prompt_on_stdin: bool = True
    prompt_note: str = ""
    observe: Callable[[Observed, Event], Observed] = no_events
    failure_rules: tuple[Rule, ...] = ()
    confinement: str = "cooperative"
    version: tuple[str, ...] | None = None


def load(name: str, context: Context) -> Adapter:
    """The adapter of route `name`; raises `Unavailable` when it is not built or not configured here."""
    if not ROUTES[name].built:
        raise Unavailable(NOT_BUILT)
    module = importlib.import_module(f"adapters.routes.{name.replace('-', '_')}")
    adapter = module.adapter(context)
    if not isinstance(adapter, Adapter):
        raise TypeError(f"adapters.routes.{name} gives no Adapter")
    return adapter
