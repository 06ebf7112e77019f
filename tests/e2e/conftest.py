"""Skips by name what is not installed, and prints what the real runs came to: route by outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest

from tests.e2e.clis import CLIS, Cli, missing

Note: TypeAlias = Callable[[str, str], None]
_PROPERTY = "e2e"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: drives a real agent CLI; scripts/e2e installs what it needs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = {route: missing(cli) for route, cli in CLIS.items()}
    for item in items:
        if item.path.parent.name != "e2e":
            continue
        item.add_marker(pytest.mark.e2e)
        route = _route(item)
        reason = absent[route] if route is not None else None
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _route(item: pytest.Item) -> str | None:
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    for value in parameters:
        cli = value if isinstance(value, Cli) else getattr(value, "cli", None)
        if isinstance(cli, Cli):
            return cli.route
    return None


@pytest.fixture
def note(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Note:
    """Says what this test's run came to, for the table: the column and the word."""
    route = _route(request.node)

    def take(column: str, word: str) -> None:
        record_property(_PROPERTY, [route, column, word])

    return take


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = [
        value for report in _reports(terminalreporter) for name, value in report.user_properties if name == _PROPERTY
    ]
    failed = [report.nodeid for report in terminalreporter.stats.get("failed", []) if "tests/e2e" in report.nodeid]
    if not rows:
        return
    terminalreporter.section("what the real runs came to")
    for line in table(rows):
        terminalreporter.write_line(line)
    for name in failed:
        terminalreporter.write_line(f"failed: {name}")


def _reports(terminalreporter: Any) -> Iterable[Any]:
    return [report for report in terminalreporter.stats.get("passed", []) if report.when == "call"]


def table(rows: list[list[str]]) -> list[str]:
    """Lines of a table: one row an outcome, one column a route."""
    routes = [route for route in CLIS if any(row[0] == route for row in rows)]
    outcomes = dict.fromkeys(column for _, column, _ in rows)
    found = {(route, column): word for route, column, word in rows}
    cells = [["", *routes], *([name, *(found.get((route, name), "-") for route in routes)] for name in outcomes)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
