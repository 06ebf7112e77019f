"""`terminalize`: a worker's complete output becomes one transport commit on its base."""

from __future__ import annotations

from controller import encoding, terminal
from controller.answer import Answer
from controller.run import changing


def terminalize(*, run_id: str, unit_id: str, wait: float) -> Answer:
    """Pin the output of a `done` job, or answer for the transport that is pinned already."""
    with changing(run_id, wait=wait) as run:
        unit = terminal.terminalize(run, unit_id)
        return Answer("INTEGRATION_PENDING", {"unit_id": unit_id, "transport": encoding.plain(unit.transport)})
