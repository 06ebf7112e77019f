"""The pure fold from journal records to the run's state: `steps` has one small function a record kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from controller import machine
from controller import records as r
from controller.errors import Unreadable
from controller.state import (
    Run,
)
from controller.steps import STEPS, Entry


def decode(kind: str, data: dict[str, Any]) -> r.Data:
    """The typed data of a record, `Unreadable` when the kind is unknown or the data has another shape."""
    cls = r.KINDS.get(kind)
    if cls is None:
        raise Unreadable(
            f"journal record kind {kind!r} is unknown to this version", expected="a known kind", found=kind
        )
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        raise Unreadable(f"journal record {kind} has data of another shape: {error}") from None


def created(entry: Entry) -> Run:
    """The state after the first record."""
    data = entry.data
    if not isinstance(data, r.RunCreated) or entry.seq != 0:
        raise Unreadable("the journal does not begin with run-created", expected="run-created", found=data.kind)
    return Run(
        run_id=data.run_id,
        created_at=entry.at,
        updated_at=entry.at,
        revision=0,
        repository=data.repository,
        branch=data.branch,
        source=data.source,
        binding=data.binding,
        egress=data.egress,
        config=data.config,
    )


def apply(run: Run, entry: Entry) -> Run:
    """The state after one more record; `Unreadable` when no row of the machine allows its state change."""
    step = STEPS.get(type(entry.data))
    after = run if step is None else step(run, entry, entry.data)
    if entry.unit is not None and entry.unit in run.units:
        source, dest = run.units[entry.unit].state, after.units[entry.unit].state
        if not machine.permits(source, dest):
            raise Unreadable(
                f"journal record {entry.seq} takes unit {entry.unit} from {source} to {dest}, which no command may do"
            )
    return replace(after, revision=entry.seq, updated_at=entry.at)


def fold(entries: Iterable[Entry]) -> Run:
    """The state after all records; there is at least one."""
    iterator = iter(entries)
    run = created(next(iterator))
    for entry in iterator:
        run = apply(run, entry)
    return run
