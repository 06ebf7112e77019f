"""Every scenario by its name."""

from __future__ import annotations

from tests.crash import scenarios, scenarios_jobs

SCENARIOS = {**scenarios.SCENARIOS, **scenarios_jobs.SCENARIOS}
