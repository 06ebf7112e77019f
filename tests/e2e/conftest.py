"""Skips by name what is not installed, and prints what the real runs came to."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clis import CLIS, OPENCODE, Cli, missing
from tests.e2e.table import table

_PROPERTY = "e2e"


class Note:
    """Where a test says what its run came to, for the table."""

    def __init__(self, route: str, record: Callable[[str, object], None]) -> None:
        self._route = route
        self._record = record
        self._outcome = ""

    def begin(self, outcome: str) -> None:
        """This test is about `outcome`, a row of the table; until told otherwise it has failed."""
        self._outcome = outcome
        self.end("FAILED")

    def end(self, word: str) -> None:
        """What it came to."""
        self._record(_PROPERTY, [self._route, self._outcome, word])


_SOCKETS = Path(f"/tmp/codex-daemon-{os.geteuid()}")
"""An empty folder that codex makes whatever TMPDIR says."""
_WAS_THERE = _SOCKETS.exists()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: drives a real agent CLI; scripts/e2e installs what it needs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = {item for item in items if item.get_closest_marker("e2e")}
    absent = {route: reason for route, cli in CLIS.items() if (reason := missing(cli)) is not None}
    for item in ours:
        if _route(item) in absent:
            item.add_marker(pytest.mark.skip(reason=absent[_route(item)]))
    # Those that wait longest first, or they would be what everything waits for at the end.
    ordered = iter(sorted((item for item in items if item in ours), key=_haste))
    items[:] = [next(ordered) if item in ours else item for item in items]


def _haste(item: pytest.Item) -> int:
    waits = any(word in item.name for word in ("hangs", "disconnect"))
    return (0 if waits else 2) + (0 if _route(item) == OPENCODE.route else 1)


def _route(item: pytest.Item) -> str:
    """The route of the CLI that a test is about."""
    assert isinstance(item, pytest.Function)
    for value in item.callspec.params.values():
        cli = value if isinstance(value, Cli) else getattr(value, "cli", None)
        if isinstance(cli, Cli):
            return cli.route
    raise AssertionError(f"{item.nodeid} is about no CLI")


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker is not the last one to need it.
    if not _WAS_THERE and not hasattr(session.config, "workerinput"):
        with suppress(OSError):
            _SOCKETS.rmdir()


@pytest.fixture
def note(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Note:
    """The table's line of this test."""
    return Note(_route(request.node), record_property)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call"
    ]
    notes = [tuple(value) for report in reports for name, value in report.user_properties if name == _PROPERTY]
    if notes:
        terminalreporter.section("what the real runs came to")
        for line in table(notes):
            terminalreporter.write_line(line)
