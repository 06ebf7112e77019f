"""The `## Fleet` table of GOAL.md: which model and effort each worker has in this mission (seed 003). Pure.

    ## Fleet

    | Worker | Model         | Effort | Best at                 |
    |--------|---------------|--------|-------------------------|
    | codex  | gpt-5.6-terra | medium | tight, verifiable tasks |

A row may instead hold the CLI's command line (`CLI` or `Invocation`). Columns that say nothing of the worker are
notes. Text in code blocks and comments is no table.
"""

from __future__ import annotations

import re

import msgspec

from adapters.invocation import FIELDS, Pins, from_command, from_fields, is_command, route_of
from adapters.refusal import Refusal, nearest, quoted

_COLUMNS = {
    "worker": "worker",
    "backend": "worker",
    "route": "worker",
    "cli": "command",
    "invocation": "command",
    "pinned invocation": "command",
    "command": "command",
    "model": "model",
    "tier": "tier",
    "effort": "effort",
    "stance": "stance",
    "agent": "label",
}
_NOTES = frozenset({"best at", "notes", "note", "use for", "why", "cost", "strengths", "when", "comment", "price"})
_LABELS = {
    "codex": "codex",
    "claude": "claude",
    "claude haiku": "claude",
    "claude code": "claude",
    "cursor": "cursor",
    "cursor composer": "composer",
    "composer": "composer",
    "antigravity": "antigravity",
    "devin": "devin",
    "opencode": "opencode",
}
_UNSAID = frozenset({"", "-", "–", "—", "n/a", "none", "default"})
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")


class FleetTable(msgspec.Struct, frozen=True):
    """The rows by route, in order; `line` is the heading's."""

    rows: dict[str, Pins]
    line: int
    name: str


def parse_fleet(text: str, name: str = "GOAL.md") -> FleetTable | None:
    """The Fleet table, or None without such a heading.

    `Refusal` for two headings or tables, a heading of another level, two rows for one worker, a row that does not
    fit its header, and names that are unknown.
    """
    lines = _visible(text)
    headings = [(number, found) for number, line in lines if (found := _HEADING.fullmatch(line)) is not None]
    fleets = [(number, found[1]) for number, found in headings if found[2].strip().casefold() == "fleet"]
    if not fleets:
        return None
    start, level = fleets[0]
    if len(fleets) > 1:
        numbers = ", ".join(str(number) for number, _ in fleets)
        raise _refuse(name, start, "the heading `## Fleet` is there twice", found=f"lines {numbers}", remedy="keep one")
    if level != "##":
        raise _refuse(
            name,
            start,
            "the Fleet heading has another level",
            expected="## Fleet",
            found=f"{level} Fleet",
            remedy="use ##",
        )
    end = min((number for number, found in headings if number > start and len(found[1]) <= 2), default=None)
    section = [(number, line) for number, line in lines if number > start and (end is None or number < end)]
    tables = _tables(section)
    if len(tables) != 1:
        raise _refuse(
            name,
            start,
            "the section `## Fleet` needs one table",
            expected="a header row, a row of dashes, and a row for each worker",
            found=f"{len(tables)} tables",
            remedy="write | Worker | Model | Effort | and a row a worker, or remove the heading",
        )
    return FleetTable(_rows(tables[0], name), start, name)


def _visible(text: str) -> list[tuple[int, str]]:
    """The numbered lines outside of code blocks and comments."""
    visible: list[tuple[int, str]] = []
    fence = ""
    comment = False
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        found = _FENCE.match(line)
        if not comment and found is not None and (not fence or found[1].startswith(fence)):
            fence = "" if fence else found[1]
        elif not fence:
            shown, comment = _uncommented(line, comment)
            visible.append((number, shown))
    return visible


def _uncommented(line: str, comment: bool) -> tuple[str, bool]:
    shown: list[str] = []
    rest = line
    while rest:
        before, mark, after = rest.partition("-->" if comment else "<!--")
        if not comment:
            shown.append(before)
        if not mark:
            break
        comment = not comment
        rest = after
    return "".join(shown), comment


def _tables(section: list[tuple[int, str]]) -> list[list[tuple[int, list[str]]]]:
    """Each table as numbered rows of cells, the header first."""
    tables: list[list[tuple[int, list[str]]]] = []
    at = 0
    while at < len(section):
        number, line = section[at]
        delimiter = at + 1 < len(section) and "|" in line and _DELIMITER.fullmatch(section[at + 1][1]) is not None
        at += 1
        if not delimiter:
            continue
        table = [(number, _split(line))]
        at += 1
        while at < len(section) and "|" in section[at][1]:
            table.append((section[at][0], _split(section[at][1])))
            at += 1
        tables.append(table)
    return tables


def _split(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", inner)]


def _rows(table: list[tuple[int, list[str]]], name: str) -> dict[str, Pins]:
    number, header = table[0]
    columns = [_column(cell, name, number) for cell in header]
    single = [column for column in columns if column in FIELDS]
    twice = next((column for column in single if single.count(column) > 1), None)
    if twice is not None:
        raise _refuse(name, number, f"two columns are the {twice}", found=quoted(" | ".join(header)), remedy="keep one")
    rows: dict[str, Pins] = {}
    where: dict[str, int] = {}
    for line, cells in table[1:]:
        if len(cells) != len(header):
            raise _refuse(
                name,
                line,
                "the row does not fit the header",
                expected=f"{len(header)} cells",
                found=f"{len(cells)} cells",
                remedy=r"fill the row; write a | inside a cell as \|",
            )
        pins = _row(list(zip(columns, cells, strict=True)), name, line)
        assert pins.worker is not None
        if pins.worker in rows:
            raise _refuse(
                name,
                line,
                f"two rows for the worker {pins.worker!r}",
                expected="one row a worker",
                found=f"lines {where[pins.worker]} and {line}",
                remedy="keep the one that the mission uses",
            )
        rows[pins.worker] = pins
        where[pins.worker] = line
    return rows


def _column(cell: str, name: str, line: int) -> str:
    title = re.sub(r"[*`_]", "", cell).strip().casefold()
    if title in _COLUMNS or title in _NOTES or not title:
        return _COLUMNS.get(title, "note")
    near = nearest(title, _COLUMNS) if len(title) > 3 else None
    if near is not None:
        raise _refuse(
            name,
            line,
            f"unknown column {quoted(cell)} of the Fleet table",
            expected=f"{', '.join(_COLUMNS)}, or a note",
            found=quoted(cell),
            remedy=f"did you mean {near!r}?",
        )
    return "note"


def _row(cells: list[tuple[str, str]], name: str, line: int) -> Pins:
    place = f"{name} line {line}"
    said = {column: text for column, cell in cells if column in FIELDS and (text := _plain(cell)) not in _UNSAID}
    commands: list[Pins] = []
    notes: list[str] = []
    for column, cell in cells:
        text = _plain(cell)
        if column == "command" and is_command(text):
            commands.append(from_command(text, place, line=line))
        elif column == "command" and text not in _UNSAID:
            notes.append(f"{place}: not a command line of a known CLI, read as a note: {quoted(text)}")
    workers = {"worker": said.pop("worker", None)}
    fields = from_fields(said, place, line=line)
    merged: dict[str, str] = {field: value for field in FIELDS[1:] if (value := getattr(fields, field)) is not None}
    for command in commands:
        notes += command.notes
        for field in FIELDS[1:]:
            value = getattr(command, field)
            if value is not None and merged.setdefault(field, value) != value:
                raise _refuse(
                    name,
                    line,
                    f"the row says two things of the {field}",
                    expected=f"one {field}",
                    found=f"{merged[field]} and {value}",
                    remedy="make the columns agree",
                )
    model = merged.get("model")
    labels = {_LABELS.get(_plain(cell).casefold()) for column, cell in cells if column == "label"} - {None}
    worker = workers["worker"]
    if worker is not None:
        route = route_of(worker, model, place, line=line)
    elif commands:
        route = commands[0].worker or ""
        if route == "cursor":
            route = route_of("agent", model, place, line=line)
    elif labels:
        route = str(labels.pop())
    else:
        text = next((_plain(cell) for column, cell in cells if column in ("worker", "command", "label")), "")
        route = route_of(text, model, place, line=line)
    return Pins(
        worker=route,
        model=model,
        tier=merged.get("tier"),
        effort=merged.get("effort"),
        stance=merged.get("stance"),
        place=place,
        notes=tuple(notes),
    )


def _plain(cell: str) -> str:
    """A cell without code marks and emphasis around it."""
    text = cell.replace("`", "").strip()
    for mark in ("**", "__"):
        if len(text) > 4 and text.startswith(mark) and text.endswith(mark):
            text = text[2:-2].strip()
    return text


def _refuse(name: str, line: int, what: str, *, expected: str = "", found: str = "", remedy: str = "") -> Refusal:
    return Refusal(f"{name} line {line}: {what}", expected=expected, found=found, remedy=remedy, line=line)
