"""Full disks, failed fsyncs, kills: a record is durable or it did not happen, and the next call goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from controller.journal import Writer, parse, read
from tests.controller.journal_faults import SUPPORTED
from tests.controller.journal_samples import write_journal

ROOT = Path(__file__).parents[2]
needs_seccomp = pytest.mark.skipif(not SUPPORTED, reason="system call numbers of this processor are not listed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run = tmp_path / "run-7"
    run.mkdir(mode=0o700)
    return run / "journal.jsonl"


def start(path: Path, *steps: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.controller.journal_child", str(path), *steps],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(path: Path, *steps: str, status: int = 0) -> list[dict[str, Any]]:
    """What the child said of each step; it must end with `status` and without a traceback."""
    out, err = (child := start(path, *steps)).communicate(timeout=30)
    assert (child.returncode, err) == (status, ""), err
    return [json.loads(line) for line in out.splitlines()]


def names(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path.parent) if not name.startswith(".tmp-"))


def assert_goes_on(path: Path) -> None:
    """The next call opens the journal, repairs it once, and appends to it."""
    writer, _ = Writer.open(path)
    while writer.moved is not None:
        tail = writer.moved
        writer.append(tail.kind, None, None, {"file": tail.file, "bytes": tail.bytes, "sha256": tail.sha256})
    writer.append("unit-cleaned", "u1", "a1", {})
    writer.close()
    writer, found = Writer.open(path)
    writer.close()
    assert (writer.moved, found.torn, found.records[-1].kind) == (None, b"", "unit-cleaned")


@needs_seccomp
@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "EDQUOT"])
def test_a_record_that_the_disk_did_not_take_is_not_there_and_no_other_follows(
    path: Path, call: str, fault: str
) -> None:
    before = write_journal(path)
    opened, _, failed, again = run(path, "open", f"fault:{call}:{fault}:writer", "append", "append")
    assert opened["records"] == 5
    assert failed["word"] == "BLOCKED"
    assert fault in failed["message"]
    assert "resume --run-id run-7" in failed["remedy"]
    assert again["word"] == "BLOCKED"
    assert "record 5 could not be written" in again["message"]
    assert path.read_bytes() == before
    assert_goes_on(path)


def test_a_disk_that_fills_within_a_record_leaves_no_half_of_it(path: Path) -> None:
    before = write_journal(path)
    _, _, failed, again = run(path, "open", "filelimit:100", "append", "append")
    assert (failed["word"], again["word"]) == ("BLOCKED", "BLOCKED")
    assert "EFBIG" in failed["message"]
    assert "ulimit -f" in failed["remedy"]
    assert path.read_bytes() == before
    assert_goes_on(path)


@needs_seccomp
def test_half_a_record_that_cannot_even_be_cut_off_is_moved_aside_by_the_next_call(path: Path) -> None:
    before = write_journal(path)
    failed = run(path, "open", "fault:ftruncate:EIO", "filelimit:100", "append")[-1]
    assert "EFBIG" in failed["message"], "the first fault is the cause, not the second"
    left = path.read_bytes()
    assert left[: len(before)] == before
    assert len(left) == len(before) + 100
    assert read(path).torn == left[len(before) :]
    assert_goes_on(path)
    assert (path.parent / "journal.torn.1").read_bytes() == left[len(before) :]


@needs_seccomp
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("fault:fsync:EIO", "check the disk"),
        ("fault:openat:EMFILE", "ulimit -n"),
        ("fault:openat:EROFS", "writable"),
        ("openlimit", "ulimit -n"),
    ],
)
def test_a_journal_that_cannot_be_opened_is_blocked_with_a_remedy_and_unchanged(
    path: Path, fault: str, says: str
) -> None:
    before = write_journal(path) + b'{"v":1,'
    with path.open("ab") as file:
        file.write(b'{"v":1,')
    refused = run(path, fault, "open")[-1]
    assert refused["word"] == "BLOCKED"
    assert says in refused["remedy"]
    assert "resume --run-id run-7" in refused["remedy"]
    assert path.read_bytes() == before


@needs_seccomp
@pytest.mark.parametrize("fault", ["write:ENOSPC:next", "fsync:EIO", "link:ENOSPC", "openat:EROFS"])
def test_a_run_that_cannot_begin_leaves_no_journal(path: Path, fault: str) -> None:
    refused = run(path, f"fault:{fault}", "create")[-1]
    assert refused["word"] == "BLOCKED"
    assert "run the same command again" in refused["remedy"]
    assert names(path) == []
    assert run(path, "create", "append")[-1]["seq"] == 1


@needs_seccomp
@pytest.mark.parametrize("call", ["write:kill:next", "fsync:kill", "link:kill", "unlink:kill"])
def test_a_kill_within_the_creation_leaves_no_journal_or_a_whole_first_record(path: Path, call: str) -> None:
    run(path, f"fault:{call}", "create", status=-signal.SIGSYS)
    if names(path) == []:
        assert run(path, "create")[-1]["seq"] == 0
    else:
        assert [record.kind for record in read(path).records] == ["run-created"]
    assert_goes_on(path)


@needs_seccomp
@pytest.mark.parametrize("torn", [b'{"v":1,"seq":5', b"\0" * 4096])
@pytest.mark.parametrize("call", ["fsync:kill", "write:kill:second", "link:kill", "unlink:kill", "ftruncate:kill"])
def test_a_kill_within_the_repair_of_a_torn_tail_loses_and_doubles_nothing(path: Path, call: str, torn: bytes) -> None:
    before = write_journal(path)
    with path.open("ab") as file:
        file.write(torn)
    run(path, f"fault:{call}", "open", status=-signal.SIGSYS)
    assert path.read_bytes() == before + torn
    assert_goes_on(path)
    assert names(path) == ["journal.jsonl", "journal.torn.1"]
    assert (path.parent / "journal.torn.1").read_bytes() == torn
    kinds = [record.kind for record in read(path).records[5:]]
    assert kinds == ["journal-torn-tail-moved", "unit-cleaned"]


@needs_seccomp
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_kill_between_the_repair_and_its_record_leaves_the_record_to_the_next_call(path: Path, call: str) -> None:
    write_journal(path)
    with path.open("ab") as file:
        file.write(b"{")
    run(path, "open", f"fault:{call}:kill:writer", "repair", status=-signal.SIGSYS)
    assert_goes_on(path)
    moved = [record.data["file"] for record in read(path).records if record.kind == "journal-torn-tail-moved"]
    assert moved == ["journal.torn.1"]


def test_one_of_several_hosts_that_begin_a_run_at_once_wins(path: Path) -> None:
    children = [start(path, "create") for _ in range(4)]
    answers = [json.loads(child.communicate(timeout=30)[0]) for child in children]
    assert sorted(answer.get("word", "READY") for answer in answers) == ["BLOCKED"] * 3 + ["READY"]
    assert len(read(path).records) == 1


def test_a_writer_killed_at_any_moment_loses_no_acknowledged_record(path: Path) -> None:
    chance = random.Random(20260801)
    run(path, "create")
    for _ in range(10):
        known = len(read(path).records)
        child = start(path, "open", "stream")
        assert child.stdout is not None
        acknowledged = [child.stdout.readline(), child.stdout.readline()]
        time.sleep(chance.random() * 0.03)
        child.send_signal(signal.SIGKILL)
        acknowledged += child.stdout.read().splitlines()  # not communicate: it loses what readline has buffered
        child.wait(timeout=30)
        durable = [json.loads(line)["seq"] for line in acknowledged[1:] if line.endswith(("}", "\n"))]
        found = parse(path.read_bytes())
        assert found.records[-1].seq >= durable[-1] >= known
        assert found.records[-1].seq <= durable[-1] + 1
        assert_goes_on(path)
