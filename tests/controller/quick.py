"""A host with a lane of its own: its commands can be started together with another's, and be killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.host import Host, Reply
from tests.lane import Lane


class QuickHost(Host):
    """A host whose controller commands run in a lane."""

    def __init__(self, base: Path, lane: Lane) -> None:
        super().__init__(base)
        self.lane = lane

    def call(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Reply:
        """One controller command as a process of its own."""
        return self.lane.start(self, *args, env=env, cwd=cwd).reply()

    def write_job(self, prepared: dict[str, Any], *, run: str = "r1", job: str = "", **meta: Any) -> str:
        """As `Host.write_job`, with an id that no other job on this machine has: processes are known by it."""
        name = job or f"{prepared['unit_id']}-{prepared['attempt_id']}-{os.urandom(4).hex()}"
        return super().write_job(prepared, run=run, job=name, **meta)
