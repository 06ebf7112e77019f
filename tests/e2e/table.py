"""Route by outcome: what the real runs came to, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tests.e2e.clis import CLIS
from tests.e2e.refusals import FAILURES

PREFLIGHT, UNIT, HANG, OUTSIDE, BACKGROUND = "preflight", "whole unit", "hang", "write outside", "background process"
OUTCOMES = (PREFLIGHT, UNIT, *dict.fromkeys(failure.name for failure in FAILURES), HANG, OUTSIDE, BACKGROUND)


def table(notes: Iterable[tuple[str, str, str]]) -> list[str]:
    """One line an outcome, one column a route, from (route, outcome, word); the last word counts."""
    found = {(route, outcome): word for route, outcome, word in notes}
    routes = [route for route in CLIS if any(route == of for of, _ in found)]
    rows = [outcome for outcome in OUTCOMES if any(outcome == of for _, of in found)]
    cells = [["", *routes], *([row, *(found.get((route, row), "-") for route in routes)] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
