"""`cleanup`: what a committed or abandoned unit no longer needs goes; the evidence stays."""

from __future__ import annotations

from controller import cleaning
from controller.answer import Answer
from controller.errors import Refused
from controller.run import changing


def cleanup(
    *,
    run_id: str,
    unit_id: str,
    abandon: bool,
    expect_transport: str | None,
    expect_job: str | None,
    wait: float,
) -> Answer:
    """Clean a committed unit, or give up an attempt whose transport or job the host names exactly."""
    if not abandon and (expect_transport or expect_job):
        raise Refused("--expect-transport and --expect-job belong to --abandon", expected="--abandon", found="without")
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        if unit.state not in ("cleaned", "native-completed"):
            run.observe()
        resumed = cleaning.cleanup(run, unit_id, abandon=abandon, transport_sha=expect_transport, job_id=expect_job)
        return Answer("CLEANED", {"unit_id": unit_id, "resumed": resumed})
