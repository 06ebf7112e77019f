"""`journal verify | show | export`: the truth, a story that cannot harm a terminal, an array for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from controller.commands import journal as command
from controller.errors import Unreadable
from controller.journal import Writer, parse, read
from tests.controller.journal_samples import overwrite, write_journal

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\r\u202egnp\u2028\x9b31m"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    writer = Writer.create(
        path,
        "run-created",
        None,
        None,
        {"run_id": "r1", "digests": {"plan": "ab" * 32}},
        at="2026-08-01T09:30:00.000Z",
    )
    writer.append(
        "restore-intent",
        "u1",
        "a1",
        {"cause": HOSTILE, HOSTILE: HOSTILE, "paths": ["caf\udce9", HOSTILE, "na\u00efve", "four"]},
        at="2026-08-01T09:31:05.500Z",
    )
    writer.append("canonical-restored", "u1", "a1", {"restore": {"exact": True}}, at="2026-08-02T09:31:05.500Z")
    writer.close()
    return path


def shown(path: Path, width: int | None = None, encoding: str = "utf-8") -> str:
    """What a terminal of `width` columns gets; None: a pipe."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    command.show(path, Console(file=file, force_terminal=width is not None, width=width, no_color=True))
    file.flush()
    return raw.getvalue().decode(encoding)


def plain(text: str) -> str:
    """Without the two styles that the product itself uses."""
    return text.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")


def test_verify_says_what_a_sound_journal_holds(path: Path) -> None:
    data = path.read_bytes()
    overwrite(path, data + b'{"v":1,"se')
    assert command.verify(path) == {
        "records": 3,
        "bytes": len(data),
        "last_seq": 2,
        "last_sha256": parse(data).records[-1].sha256,
        "torn_bytes": 10,
    }
    assert path.read_bytes() == data + b'{"v":1,"se'


def test_verify_says_where_and_why_a_journal_is_damaged(path: Path) -> None:
    data = path.read_bytes()
    second = data.index(b"\n") + 1
    overwrite(path, data.replace(b'"cause"', b'"pause"'))
    with pytest.raises(Unreadable) as caught:
        command.verify(path)
    sound = parse(data).records[1].sha256
    assert f"line 2, byte {second}: the line was altered" in caught.value.message
    assert f"expected {sound}, found " in caught.value.message
    assert (caught.value.expected, caught.value.detail["line"]) == (sound, 2)
    assert caught.value.word == "UNREADABLE"
    assert caught.value.exit_code == 4


def test_a_damaged_journal_exports_nothing_rather_than_a_part(path: Path) -> None:
    overwrite(path, path.read_bytes().replace(b'"u1"', b'"u2"', 1))
    with pytest.raises(Unreadable):
        command.export(path)


def test_export_is_an_array_of_the_very_records(path: Path) -> None:
    exported = b"".join(command.export(path))
    assert exported.splitlines()[1:-1] == [
        line + (b"," if line != path.read_bytes().splitlines()[-1] else b"") for line in path.read_bytes().splitlines()
    ]
    assert [record["sha256"] for record in json.loads(exported)] == [r.sha256 for r in read(path).records]


@pytest.mark.parametrize("width", [None, 20, 40, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_name_in_a_journal_can_command_a_terminal(path: Path, width: int | None, encoding: str) -> None:
    text = plain(shown(path, width, encoding))
    assert all(char.isprintable() or char == "\n" for char in text)
    squeezed = "".join(text.split())
    for word in (
        "restore-intent",
        "u1/a1",
        "cause=",
        "\\x1b]0;owned\\x07",
        "[red]x[/red]",
        "\\u202e",
        "caf\\xe9",
    ):
        assert word in squeezed, word


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(path: Path, width: int) -> None:
    assert max(len(line) for line in plain(shown(path, width)).splitlines()) <= width


def test_a_pipe_gets_one_line_a_record_for_grep(path: Path) -> None:
    lines = shown(path).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("1  2026-08-01T09:31:05.500Z  +1:05  u1/a1  restore-intent  cause=")
    assert "na\u00efve" in lines[1]
    assert "+1 more" in lines[1]


def test_a_terminal_gets_the_story_by_day(path: Path) -> None:
    text = plain(shown(path, 140))
    assert text.index("2026-08-01 UTC") < text.index("restore-intent") < text.index("2026-08-02 UTC")
    assert "+24:01:05" in text
    assert "digests.plan=abababababab" in text
    assert "ab" * 7 not in text
    assert "restore.exact=yes" in text


def test_the_story_names_a_restart_and_an_unfinished_append(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.journal.boot_id", lambda: "another-boot")
    writer, _ = Writer.open(path)
    writer.append("unit-cleaned", "u1", "a1", {}, at="2026-08-02T09:00:00.000Z")
    writer.close()
    with path.open("ab") as file:
        file.write(b"{12345")
    text = plain(shown(path, 140))
    assert "2026-08-02 UTC, after a restart of the machine" in text
    assert "6 bytes of an unfinished append" in text
    assert "6 bytes of an unfinished append" in shown(path)


def test_a_record_of_huge_data_is_told_in_a_few_lines(tmp_path: Path) -> None:
    huge = {f"key{i:04}": ["x" * 1000] * 20 for i in range(50)}
    path = tmp_path / "journal.jsonl"
    write_journal(path, (("run-created", None, None, huge), ("job-synced", "u", "a", {"list": [huge]})))
    assert len(shown(path)) < 6000


def test_a_long_run_is_shown_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    step = ("job-synced", "u1", "a1", {"process_state": "running", "log": "x" * 60})
    write_journal(path, (("run-created", None, None, {}), *[step] * 500))
    assert shown(path, 120).count("job-synced") == 500
