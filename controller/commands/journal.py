"""`journal verify | show | export`: what the journal says, for a checker, for people, for programs.

Each reads and validates the whole journal first and changes nothing: `FileNotFoundError` without a journal,
`Unreadable` with line, byte offset, expected and found for a damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from controller.journal import Record, read, spell
from runner.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

_MAX_DETAILS = 8
_MAX_LISTED = 3
_MAX_VALUE_CHARS = 160
_HEX_CHARS = 12
_MIN_DETAIL_CHARS = 30
_GAP = 2
# What a person looks for first; the rest follows in the journal's order.
_FIRST = (
    "reason",
    "cause",
    "process_state",
    "failure_reason",
    "terminal_receipt.terminal_status",
    "terminal_receipt.summary",
    "terminal_receipt.failure_reason",
    "exit_code",
    "timed_out",
    "argv",
    "commit",
    "transport.commit",
    "transport.changed_paths",
    "canonical_commit.commit",
    "restore.exact",
    "run_id",
    "source.path",
    "branch.ref",
    "repository.toplevel",
    "binding.target",
    "egress.route",
)


def verify(path: Path) -> dict[str, Any]:
    """What a sound journal holds: `records`, their `bytes`, `last_seq`, `last_sha256`; and `torn_bytes`."""
    journal = read(path)
    last = journal.records[-1]
    return {
        "records": len(journal.records),
        "bytes": journal.size,
        "last_seq": last.seq,
        "last_sha256": last.sha256,
        "torn_bytes": len(journal.torn),
    }


def export(path: Path) -> Iterator[bytes]:
    """The records as one JSON array, each on a line of its own, spelled as in the journal.

    The journal is validated before this returns, so that a damaged one gives no output at all.
    """
    return _array(read(path).records)


def _array(records: tuple[Record, ...]) -> Iterator[bytes]:
    before = b"[\n"
    for record in records:
        yield before + spell(record)
        before = b",\n"
    yield b"\n]\n"


def show(path: Path, console: Console) -> None:
    """The journal as a story: a table on a wide terminal, two lines a record on a narrow one, else one line.

    Nothing in it reaches the terminal raw: control, direction and undecodable characters are escaped.
    """
    from rich.text import Text

    journal = read(path)
    unicode = console.encoding.lower().replace("-", "") == "utf8"
    rows = [_row(record, journal.records[0], unicode) for record in journal.records]
    if not console.is_terminal:
        for row in rows:
            words = (row.seq, row.at, row.elapsed, row.who, row.kind, row.details)
            console.print(Text("  ".join(words)), soft_wrap=True)
    else:
        widths = _widths(rows)
        wide = console.width - sum(widths) - _GAP * len(widths) >= _MIN_DETAIL_CHARS
        _show_table(rows, widths, console) if wide else _show_stacked(rows, console)
    if journal.torn:
        note = f"behind the last record: {len(journal.torn)} bytes of an unfinished append, which does not count"
        console.print(Text(note), soft_wrap=not console.is_terminal)


class _Row(msgspec.Struct, frozen=True):
    """A record in words that any terminal can show."""

    seq: str
    at: str
    boot: str
    elapsed: str
    who: str
    kind: str
    details: str


def _row(record: Record, first: Record, unicode: bool) -> _Row:
    return _Row(
        seq=str(record.seq),
        at=record.at,
        boot=record.boot,
        elapsed=_elapsed(_seconds(record.at) - _seconds(first.at)),
        who="/".join(name for name in (record.unit, record.attempt) if name) or "run",
        kind=record.kind,
        details=_details(record.data, unicode),
    )


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _elapsed(seconds: float) -> str:
    """`+4.2s`, `+3:05`, `+1:03:05`; with a minus when the clock was set back."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    if seconds < 60:
        return f"{sign}{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}:{minutes:02}:{rest:02}" if hours else f"{sign}{minutes}:{rest:02}"


def _details(data: dict[str, Any], unicode: bool) -> str:
    flat = _flat("", data)
    values = {key: value for key, value in flat if value not in (None, "", [], {}) and not key.endswith("_b64")}
    order = [key for key in _FIRST if key in values] + [key for key in values if key not in _FIRST]
    shown = [f"{_safe(key, unicode)}={_short(_value(values[key], unicode))}" for key in order[:_MAX_DETAILS]]
    more = len(order) - len(shown)
    return " ".join([*shown, f"(+{more} more)"] if more else shown)


def _flat(prefix: str, data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


def _value(value: Any, unicode: bool) -> str:
    if isinstance(value, list):
        listed = [_value(item, unicode) for item in value[:_MAX_LISTED]]
        more = len(value) - len(listed)
        return f"[{', '.join(listed)}{f', +{more} more' if more else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_safe(key, unicode)}={_value(item, unicode)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if len(text) in (40, 48, 64) and not text.strip("0123456789abcdef"):
        return text[:_HEX_CHARS]
    text = _short(text)
    return _safe(text, unicode) if text and " " not in text else f'"{_safe(text, unicode)}"'


def _short(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "..."


def _safe(text: str, unicode: bool) -> str:
    """`text` with everything escaped that a terminal could obey, or could not show."""
    raw_bytes = "".join(f"\\x{ord(c) & 0xFF:02x}" if "\udc80" <= c <= "\udcff" else c for c in text)
    shown = printable(raw_bytes)
    return shown if unicode else shown.encode("ascii", "backslashreplace").decode("ascii")


def _widths(rows: list[_Row]) -> list[int]:
    """The columns before the details: number, time of day, elapsed, unit and attempt, kind; in characters."""
    return [
        max(len(row.seq) for row in rows),
        len("00:00:00"),
        max(len(row.elapsed) for row in rows),
        max(len(row.who) for row in rows),
        max(len(row.kind) for row in rows),
    ]


def _show_table(rows: list[_Row], widths: list[int], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    for heading, group in _by_day_and_boot(rows):
        console.print(Text(heading, "bold"))
        table = Table.grid(padding=(0, _GAP, 0, 0))
        for column, width in enumerate(widths):
            table.add_column(width=width, no_wrap=True, justify="right" if column in (0, 2) else "left")
        table.add_column(overflow="fold")
        for row in group:
            table.add_row(
                Text(row.seq, "dim"),
                Text(row.at[11:19]),
                Text(row.elapsed, "dim"),
                Text(row.who),
                Text(row.kind, _style(row.kind)),
                Text(row.details),
            )
        console.print(table)


def _show_stacked(rows: list[_Row], console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for heading, group in _by_day_and_boot(rows):
        console.print(Text(heading, "bold"))
        for row in group:
            first = Text.assemble(
                (row.seq, "dim"),
                " ",
                row.at[11:19],
                " ",
                (row.elapsed, "dim"),
                " ",
                row.who,
                " ",
                (row.kind, _style(row.kind)),
                overflow="fold",
            )
            console.print(first)
            if row.details:
                console.print(Padding(Text(row.details, overflow="fold"), (0, 0, 0, 2)))


def _by_day_and_boot(rows: list[_Row]) -> Iterator[tuple[str, list[_Row]]]:
    boot = rows[0].boot
    for (day, group_boot), group in groupby(rows, lambda row: (row.at[:10], row.boot)):
        yield f"{day} UTC" + (", after a restart of the machine" if group_boot != boot else ""), list(group)
        boot = group_boot


def _style(kind: str) -> str:
    if kind.endswith(("-blocked", "-failed", "-unavailable")):
        return "red"
    if kind.endswith("-intent"):
        return "dim"
    return "green" if kind.endswith(("-passed", "-confirmed", "-restored", "-cleaned")) else "bold"
