"""Private state that others could have written is not believed: exit 4, no body, nothing repaired behind one's back."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.controller.situations import Desk, begin, begin_run

STATUS = ["status", "--run-id", "r1"]
SYNC = ["sync-job", "--run-id", "r1", "--unit-id", "U1"]
RESUME = ["resume", "--run-id", "r1"]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run with a unit whose job is bound."""
    made = begin_run(tmp_path_factory.mktemp("root"))
    made.dispatched()
    return made


@contextmanager
def _mode(path: Path, mode: int) -> Iterator[None]:
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


@contextmanager
def _link(path: Path) -> Iterator[None]:
    real = path.with_name(path.name + ".real")
    path.rename(real)
    path.symlink_to(real)
    try:
        yield
    finally:
        path.unlink()
        real.rename(path)


@contextmanager
def _owner(path: Path) -> Iterator[None]:
    os.chown(path, 65534, 65534)
    try:
        yield
    finally:
        os.chown(path, 0, 0)


def _unreadable(desk: Desk, *commands: list[str]) -> None:
    for args in commands:
        reply = desk.call(*args)
        assert (reply.word, reply.code, reply.lines) == ("UNREADABLE", 4, ["UNREADABLE"]), (args, reply)


ROOTS = ["", ".locks", "r1"]
FILES = ["r1/manifest.json", "r1/journal.jsonl", "r1/manifest.lock"]


@pytest.mark.parametrize("name", ROOTS, ids=["runs root", ".locks", "run"])
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o500, 0o1700], ids=oct)
def test_a_folder_of_another_mode_is_not_believed(desk: Desk, name: str, mode: int) -> None:
    with _mode(desk.runs / name, mode):
        _unreadable(desk, SYNC)


@pytest.mark.parametrize("name", ROOTS, ids=["runs root", ".locks", "run"])
def test_a_folder_that_is_a_link_is_not_followed(desk: Desk, name: str) -> None:
    with _link(desk.runs / name):
        _unreadable(desk, STATUS, SYNC, RESUME)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")
@pytest.mark.parametrize("name", [*ROOTS, *FILES])
def test_what_belongs_to_another_user_is_not_believed(desk: Desk, name: str) -> None:
    with _owner(desk.runs / name):
        _unreadable(desk, STATUS, SYNC)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_mode_or_behind_a_link_is_not_believed(desk: Desk, name: str) -> None:
    path = desk.runs / name
    for mode in (0o644, 0o660, 0o400):
        with _mode(path, mode):
            _unreadable(desk, STATUS, SYNC)
    with _link(path):
        _unreadable(desk, STATUS, SYNC, RESUME)


def test_a_fifo_in_the_place_of_a_file_hangs_nobody(desk: Desk) -> None:
    for name in FILES:
        path = desk.runs / name
        path.rename(path.with_name("aside"))
        os.mkfifo(path, 0o600)
        try:
            _unreadable(desk, STATUS, SYNC)
        finally:
            path.unlink()
            path.with_name("aside").rename(path)
    desk.call(*SYNC).expect("SYNCED")


def test_a_runs_root_that_is_a_file_is_not_replaced(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    desk.runs.write_text("mine")
    desk.init().expect("UNREADABLE")
    assert desk.runs.read_text() == "mine"


@pytest.mark.parametrize("kind", ["open", "link"])
def test_no_run_begins_in_a_runs_root_that_others_can_write(tmp_path: Path, kind: str) -> None:
    desk = begin(tmp_path)
    if kind == "open":
        desk.runs.mkdir()
        desk.runs.chmod(0o777)
    else:
        (tmp_path / "real").mkdir(mode=0o700)
        desk.runs.symlink_to(tmp_path / "real")
    desk.init().expect("UNREADABLE")
    assert os.listdir(desk.runs) == []


def test_the_environment_names_the_runs_root_in_its_order(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    jobs = {"CE_WORK_RUNS_ROOT": "", "CE_PEER_JOBS_ROOT": str(tmp_path / "jobs")}
    desk.env |= jobs
    body = desk.init("one").expect("READY").body
    assert body["recovery_path"] == str(tmp_path / "jobs" / "ce-work" / "one")
    desk.env |= {"CE_WORK_RUNS_ROOT": "runs-relative"}
    body = desk.init("two").expect("READY").body
    assert body["recovery_path"] == str(desk.base / "runs-relative" / "two")
    desk.call("status", "--run-id", "one").expect("NOT_FOUND")
    desk.call("status", "--run-id", "one", env=jobs).expect("STATUS")


def test_a_run_that_is_not_there_is_not_found_and_nothing_is_made(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    for args in (STATUS, SYNC, RESUME, ["verify-run", "--run-id", "r1", "--", "true"]):
        reply = desk.call(*args).expect("NOT_FOUND")
        assert reply.body["candidates"] == []
    assert not desk.runs.exists()


# --- a journal that was cut or altered ----------------------------------------------------------------------------


@pytest.fixture
def story(tmp_path: Path) -> Desk:
    """A run with a pending unit."""
    made = begin_run(tmp_path)
    made.pending()
    return made


def _swap(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-2], lines[-1], lines[-2]]


def _flip(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"U1"', b'"U2"', 1), *lines[3:]]


@pytest.mark.parametrize(
    "change",
    [
        _flip,
        _swap,
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[1:],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: [],
        lambda lines: [*lines, b"{}\n"],
        lambda lines: [*lines, b"\n"],
        lambda lines: [lines[0].replace(b'"r1"', b'"r2"'), *lines[1:]],
    ],
    ids=["flipped", "reordered", "doubled", "no first", "a gap", "empty", "no record", "blank line", "another run"],
)
def test_an_altered_journal_is_refused_as_it_is_by_every_command(
    story: Desk, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    path = story.run_dir() / "journal.jsonl"
    data = b"".join(change(path.read_bytes().splitlines(keepends=True)))
    path.write_bytes(data)
    before = story.fingerprint()
    _unreadable(story, STATUS, SYNC, RESUME, [*story.of("integrate", "--commit-message", "m"), "--", "true"])
    assert path.read_bytes() == data
    assert story.fingerprint() == before


def test_an_unfinished_last_line_is_moved_aside_by_the_next_change_and_loses_nothing(story: Desk) -> None:
    path = story.run_dir() / "journal.jsonl"
    whole = path.read_bytes()
    torn = whole + b'{"v":1,"seq":99,"at":"20'
    path.write_bytes(torn)
    assert story.call(*STATUS).expect("STATUS").body["units"]["U1"]["state"] == "integration-pending"
    assert path.read_bytes() == torn
    story.integrate().expect("UNIT_COMMITTED")
    assert path.read_bytes().startswith(whole)
    assert (story.run_dir() / "journal.torn.1").read_bytes() == torn[len(whole) :]
    moved = [record for record in story.records() if "torn" in record["kind"]]
    assert len(moved) == 1
    assert moved[0]["data"]["file"] == "journal.torn.1"


def test_a_copied_run_directory_is_no_second_run(story: Desk) -> None:
    shutil.copytree(story.run_dir(), story.runs / "r2")
    (story.runs / "r2").chmod(0o700)
    _unreadable(story, ["status", "--run-id", "r2"], ["resume", "--run-id", "r2"])
