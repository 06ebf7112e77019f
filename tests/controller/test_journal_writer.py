"""The one writer of a journal: private files, one write and one fsync a record, nothing behind its back."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from freezegun import freeze_time

from controller.errors import Blocked, ControllerError, Refused, Unreadable
from controller.journal import Writer, parse, read
from runner.process import boot_id
from tests.controller.journal_samples import STEPS, write_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run = tmp_path / "run-7"
    run.mkdir(mode=0o700)
    return run / "journal.jsonl"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each write (with its size) and fsync that reaches the kernel, in order."""
    seen: list[tuple[str, int]] = []
    write, fsync = os.write, os.fsync

    def seen_write(fd: int, data: Any) -> int:
        done = write(fd, data)
        seen.append(("write", done))
        return done

    def seen_fsync(fd: int) -> None:
        fsync(fd)
        seen.append(("fsync dir" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fsync", 0))

    monkeypatch.setattr(os, "write", seen_write)
    monkeypatch.setattr(os, "fsync", seen_fsync)
    return seen


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest, path: Path) -> Iterator[None]:
    """Another umask, once the directory of `path` is there."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def refusal(path: Path, opener: Any) -> ControllerError:
    with pytest.raises(ControllerError) as caught:
        opener(path)
    return caught.value


@pytest.mark.usefixtures("umask")
def test_the_journal_and_its_torn_tails_are_private_whatever_the_umask(path: Path) -> None:
    write_journal(path)
    with path.open("ab") as file:
        file.write(b"{")
    Writer.open(path)[0].close()
    for name in ("journal.jsonl", "journal.torn.1"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600


def test_one_record_is_one_write_then_one_fsync(path: Path, calls: list[tuple[str, int]]) -> None:
    writer = Writer.create(path, *STEPS[0])
    first = path.stat().st_size
    assert calls == [("write", first), ("fsync", 0), ("fsync dir", 0)]
    calls.clear()
    writer.append(*STEPS[1])
    assert calls == [("write", path.stat().st_size - first), ("fsync", 0)]
    writer.close()


def test_what_a_killed_call_wrote_is_synced_before_the_next_call_believes_it(
    path: Path, calls: list[tuple[str, int]]
) -> None:
    Writer.create(path, *STEPS[0]).close()
    calls.clear()
    writer, _ = Writer.open(path)
    assert calls == [("fsync", 0), ("fsync dir", 0)]
    writer.append(*STEPS[1])
    writer.close()
    calls.clear()
    Writer.open(path)[0].close()
    assert calls == [("fsync", 0)]


def test_a_torn_tail_is_durable_elsewhere_before_it_is_cut_off(
    path: Path, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_journal(path)
    with path.open("ab") as file:
        file.write(b"{torn")
    calls.clear()
    truncate = os.ftruncate

    def seen_truncate(fd: int, size: int) -> None:
        calls.append(("truncate", size))
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", seen_truncate)
    size = path.stat().st_size - 5
    Writer.open(path)[0].close()
    assert calls == [
        ("fsync", 0),
        ("write", 5),
        ("fsync", 0),
        ("fsync dir", 0),
        ("truncate", size),
        ("fsync", 0),
    ]


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    assert len(parse(write_journal(path)).records) == len(STEPS)


def test_records_carry_the_time_and_the_boot_that_they_were_made_in(path: Path) -> None:
    with freeze_time("2026-08-01T09:30:00.123456+00:00") as clock:
        writer = Writer.create(path, *STEPS[0])
        clock.move_to("2026-07-31T00:00:00+00:00")
        record = writer.append(*STEPS[1])
    writer.append("unit-cleaned", "u1", "a1", {}, at="2026-08-02T00:00:00.000Z")
    writer.close()
    records = read(path).records
    assert [r.at[:23] for r in records] == [
        "2026-08-01T09:30:00.123",
        "2026-07-31T00:00:00.000",
        "2026-08-02T00:00:00.000",
    ]
    assert {r.boot for r in records} == {boot_id()}
    assert record == records[1]


def test_an_existing_journal_is_never_begun_again(path: Path) -> None:
    before = write_journal(path)
    refused = refusal(path, lambda p: Writer.create(p, *STEPS[0]))
    assert isinstance(refused, Blocked)
    assert "exists already" in refused.message
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["journal.jsonl"]


def test_a_missing_journal_is_missing_not_damaged(path: Path) -> None:
    for opener in (read, Writer.open):
        with pytest.raises(FileNotFoundError):
            opener(path)


def test_a_journal_that_others_may_write_or_that_is_a_link_is_unreadable(path: Path, tmp_path: Path) -> None:
    write_journal(path)
    real = tmp_path / "elsewhere.jsonl"
    for mode in (0o644, 0o660, 0o400, 0o4600):
        path.chmod(mode)
        for opener in (read, Writer.open):
            found = refusal(path, opener)
            assert isinstance(found, Unreadable)
            assert "mode 0600" in str(found.expected)
            assert f"{mode:04o}" in str(found.found)
    path.chmod(0o600)
    path.rename(real)
    path.symlink_to(real)
    for opener in (read, Writer.open):
        assert "symbolic link" in str(refusal(path, opener).found)
    path.unlink()
    path.mkdir()
    assert isinstance(refusal(path, read), Unreadable)
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert "FIFO" in str(refusal(path, read).found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_journal_of_another_user_is_unreadable(path: Path) -> None:
    write_journal(path)
    os.chown(path, 12345, -1)
    assert "owner" in str(refusal(path, read).expected)


def test_a_planted_torn_file_is_not_followed_or_overwritten(path: Path, tmp_path: Path) -> None:
    before = write_journal(path)
    with path.open("ab") as file:
        file.write(b"{")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (path.parent / "journal.torn.1").symlink_to(victim)
    assert isinstance(refusal(path, Writer.open), Unreadable)
    assert victim.read_bytes() == b"mine"
    assert path.read_bytes() == before + b"{"


def test_a_journal_whose_first_link_was_left_behind_by_a_kill_is_readable(path: Path) -> None:
    write_journal(path)
    os.link(path, path.parent / ".tmp-1-left")
    writer, found = Writer.open(path)
    writer.append("unit-cleaned", None, None, {})
    writer.close()
    assert len(read(path).records) == len(found.records) + 1


def test_a_second_writer_is_noticed_before_it_can_break_the_chain(path: Path) -> None:
    write_journal(path)
    mine, _ = Writer.open(path)
    theirs, _ = Writer.open(path)
    theirs.append("unit-cleaned", "u1", "a1", {"who": "theirs"})
    for _ in range(2):
        with pytest.raises(Blocked, match="changed by somebody else"):
            mine.append("unit-cleaned", "u1", "a1", {"who": "mine"})
    theirs.append("unit-cleaned", "u1", "a1", {"who": "theirs"})
    mine.close()
    theirs.close()
    assert [record.data.get("who") for record in read(path).records[5:]] == ["theirs", "theirs"]


def test_a_run_deleted_under_its_writer_is_noticed(path: Path) -> None:
    write_journal(path)
    writer, _ = Writer.open(path)
    path.unlink()
    with pytest.raises(Blocked) as caught:
        writer.append("unit-cleaned", "u1", "a1", {})
    assert caught.value.found == "a removed file"
    writer.close()


def test_data_that_cannot_be_recorded_is_refused_and_the_writer_goes_on(path: Path) -> None:
    writer = Writer.create(path, *STEPS[0])
    before = path.read_bytes()
    with pytest.raises(Refused, match="a job-synced record cannot be written"):
        writer.append("job-synced", "u1", "a1", {"seconds": 1.5})
    assert path.read_bytes() == before
    assert writer.append("job-synced", "u1", "a1", {"seconds": 1}).seq == 1
    writer.close()


def test_a_closed_writer_writes_into_no_other_file(path: Path) -> None:
    writer = Writer.create(path, *STEPS[0])
    writer.close()
    writer.close()
    other = os.open(path.parent / "other", os.O_CREAT | os.O_RDWR, 0o600)
    with pytest.raises(Blocked, match="closed"):
        writer.append("unit-cleaned", "u1", "a1", {})
    assert os.fstat(other).st_size == 0
    os.close(other)


def test_opening_leaves_no_descriptor_behind_also_when_it_fails(path: Path) -> None:
    write_journal(path)
    before = set(os.listdir("/proc/self/fd"))
    Writer.open(path)[0].close()
    with path.open("ab") as file:
        file.write(b"{")
    (path.parent / "journal.torn.1").mkdir()
    assert isinstance(refusal(path, Writer.open), Unreadable)
    assert set(os.listdir("/proc/self/fd")) == before


def test_several_torn_tails_of_killed_calls_are_each_recorded_once(path: Path) -> None:
    write_journal(path)
    for torn in (b"{1", b"{2", b"{1"):
        with path.open("ab") as file:
            file.write(torn)
        Writer.open(path)[0].close()  # killed before it could record the repair
    writer, _ = Writer.open(path)
    files = []
    while writer.moved is not None:
        tail = writer.moved
        files.append((tail.file, tail.bytes))
        writer.append(tail.kind, None, None, {"file": tail.file, "bytes": tail.bytes, "sha256": tail.sha256})
    writer.close()
    assert files == [("journal.torn.1", 2), ("journal.torn.2", 2)]
    with path.open("ab") as file:
        file.write(b"{1")
    writer, _ = Writer.open(path)
    assert writer.moved is not None
    assert writer.moved.file == "journal.torn.3"
    writer.close()
