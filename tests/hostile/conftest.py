"""The fixtures of the hazard tests, and a trap that no call of the controller may fall into."""

from __future__ import annotations

import pytest

from tests.hazards.conftest import bare_host, host
from tests.hazards.support import Trap
from tests.host import Host

__all__ = ["bare_host", "host", "trap"]


@pytest.fixture
def trap(host: Host) -> Trap:
    """A program of the worker's choosing: whoever runs it leaves a trace."""
    return Trap(host.base / "trap")
