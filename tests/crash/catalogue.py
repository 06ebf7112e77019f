"""Every scenario by its name."""

from __future__ import annotations

from tests.crash import scenarios, scenarios_jobs, scenarios_keeping

SCENARIOS = {**scenarios.SCENARIOS, **scenarios_jobs.SCENARIOS, **scenarios_keeping.SCENARIOS}
