"""A journal that was flipped, cut, doubled or reordered is refused or has a torn tail: never misread."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import Unreadable
from controller.journal import Damage, JournalBytes, Writer, parse, read
from tests.controller.journal_samples import overwrite, write_journal


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_journal(tmp_path_factory.mktemp("run") / "journal.jsonl")


def damage_or_journal(data: bytes) -> Damage | JournalBytes:
    try:
        return parse(data)
    except Damage as damage:
        return damage


def outcome(data: bytes, sound: bytes) -> JournalBytes | None:
    """What a reader makes of `data` (None: UNREADABLE); fails when it reads what was never written."""
    found = damage_or_journal(data)
    if isinstance(found, Damage):
        assert 1 <= found.line <= data.count(b"\n") + 1
        assert 0 <= found.offset <= len(data)
        return None
    assert found.records == parse(sound).records[: len(found.records)]
    assert data[: found.size] == sound[: found.size]
    assert data[found.size :] == found.torn
    assert b"\n" not in found.torn
    return found


def assert_never_misread(data: bytes, sound: bytes) -> None:
    """Refused, or the last record lost its newline and is an unfinished append."""
    found = outcome(data, sound)
    if found is not None:
        assert found.size == sound.rindex(b"\n", 0, -1) + 1
        assert found.torn


def test_no_flipped_byte_is_ever_read(sound: bytes) -> None:
    for at, byte in enumerate(sound):
        flipped = {byte ^ (1 << bit) for bit in range(8)}
        for other in (flipped | {0x00, 0x0A, 0x0D, 0x20, 0x30, 0x61, 0xFF}) - {byte}:
            assert_never_misread(sound[:at] + bytes([other]) + sound[at + 1 :], sound)


def test_no_missing_or_inserted_byte_is_ever_read(sound: bytes) -> None:
    for at in range(len(sound)):
        assert_never_misread(sound[:at] + sound[at + 1 :], sound)
        for extra in (b"\n", b"\x00", sound[at : at + 1]):
            data = sound[:at] + extra + sound[at:]
            if data != sound + extra:
                assert outcome(data, sound) is None


def test_a_cut_at_every_byte_leaves_whole_records_and_a_torn_tail(sound: bytes) -> None:
    first = sound.index(b"\n") + 1
    for cut in range(len(sound)):
        found = outcome(sound[:cut], sound)
        if cut < first:
            assert found is None
        else:
            assert found is not None
            assert found.size == sound.rindex(b"\n", 0, cut) + 1
            assert len(found.records) == sound.count(b"\n", 0, cut)


def test_records_doubled_swapped_deleted_or_moved_are_refused(sound: bytes) -> None:
    lines = sound.splitlines(keepends=True)
    for i in range(len(lines)):
        assert outcome(b"".join([*lines[: i + 1], *lines[i:]]), sound) is None, "doubled"
        assert outcome(b"".join([*lines, lines[i]]), sound) is None, "doubled at the end"
        if i + 1 < len(lines):
            swapped = [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
            assert outcome(b"".join(swapped), sound) is None, "swapped"
            assert outcome(b"".join([*lines[:i], *lines[i + 1 :]]), sound) is None, "deleted"
            assert outcome(b"".join([*lines[:i], *lines[i + 1 :], lines[i]]), sound) is None, "moved"


def test_only_the_loss_of_whole_last_records_is_not_seen_as_the_page_says(sound: bytes) -> None:
    lines = sound.splitlines(keepends=True)
    found = outcome(b"".join(lines[:-1]), sound)
    assert found is not None
    assert (len(found.records), found.torn) == (len(lines) - 1, b"")


def test_a_record_altered_and_sealed_again_breaks_the_chain_at_the_next(sound: bytes) -> None:
    lines = sound.splitlines(keepends=True)
    for i, line in enumerate(lines[:-1]):
        body = line[:-78].replace(b'"at":"2', b'"at":"3')
        forged = body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
        with pytest.raises(Damage, match="chain") as caught:
            parse(b"".join([*lines[:i], forged, *lines[i + 1 :]]))
        assert caught.value.line == i + 2


def test_the_records_of_another_run_are_refused(sound: bytes, tmp_path: Path) -> None:
    mine = sound.splitlines(keepends=True)
    other = write_journal(tmp_path / "journal.jsonl").splitlines(keepends=True)
    assert mine != other
    for i in range(1, len(mine)):
        with pytest.raises(Damage, match="chain"):
            parse(b"".join([*mine[:i], *other[i:]]))


@given(st.data())
def test_no_splice_of_a_journal_is_ever_misread(sound: bytes, data: st.DataObject) -> None:
    spots = st.integers(0, len(sound))
    a, b, c, d = (data.draw(spots) for _ in range(4))
    spliced = sound[:a] + data.draw(st.binary(max_size=8)) + sound[b:c] + sound[d:]
    outcome(spliced, sound)


def test_a_damaged_journal_is_refused_with_line_and_byte_and_left_as_it_is(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    for at in range(3, len(sound) - 2, 53):
        broken = sound[:at] + bytes([sound[at] ^ 0x04]) + sound[at + 1 :]
        overwrite(path, broken)
        for attempt in (read, Writer.open):
            with pytest.raises(Unreadable) as caught:
                attempt(path)
            line = sound.count(b"\n", 0, at) + 1
            assert f"line {line}, byte " in caught.value.message
            assert ", found " in caught.value.message
        assert path.read_bytes() == broken
        assert [entry.name for entry in tmp_path.iterdir()] == ["journal.jsonl"]


def test_a_journal_cut_anywhere_is_repaired_once_and_goes_on(sound: bytes, tmp_path: Path) -> None:
    first = sound.index(b"\n") + 1
    borders = {at + near for at, byte in enumerate(sound) if byte == 0x0A for near in (0, 1, 2)}
    for cut in sorted((borders | set(range(first, len(sound), 61))) - set(range(first))):
        directory = tmp_path / str(cut)
        directory.mkdir()
        path = directory / "journal.jsonl"
        write_journal(path)
        overwrite(path, sound[:cut])
        size = sound.rindex(b"\n", 0, cut) + 1
        writer, found = Writer.open(path)
        assert found.torn == sound[size:cut]
        if found.torn:
            assert writer.moved is not None
            tail = writer.moved
            assert (directory / tail.file).read_bytes() == sound[size:cut]
            writer.append("journal-torn-tail-moved", None, None, {"file": tail.file, "sha256": tail.sha256})
        assert writer.moved is None
        writer.append("unit-cleaned", "u1", "a1", {})
        writer.close()
        again, found = Writer.open(path)
        again.close()
        assert (again.moved, found.torn) == (None, b"")
        assert found.records[: sound.count(b"\n", 0, cut)] == parse(sound[:size]).records
        assert found.records[-1].kind == "unit-cleaned"
