"""`status` and `runs` answer always: whoever lost something needs to see where it is (section 18 row 13)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controller.situations import Desk, begin_run

STATUS = ["status", "--run-id", "r1"]
COMMON = {"run_id", "revision", "source", "integration_lock", "verifications", "blockers"}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A run with one pending unit."""
    made = begin_run(tmp_path)
    made.pending()
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The same, for calls that only read."""
    made = begin_run(tmp_path_factory.mktemp("status"))
    made.pending()
    return made


def test_the_shapes_are_those_that_hosts_read(shared: Desk) -> None:
    with shared.unchanged():
        whole = shared.call(*STATUS).expect("STATUS").body
        one = shared.call(*STATUS, "--unit-id", "U1").expect("STATUS").body
    assert set(whole) >= COMMON | {"units", "recovery_path"}
    assert set(one) >= COMMON | {"unit"}
    assert "events" not in whole
    assert "binding" not in whole
    assert whole["revision"] == shared.manifest()["revision"]
    assert whole["recovery_path"] == str(shared.run_dir())
    assert whole["units"]["U1"] == one["unit"] == shared.unit()
    assert whole["source"] == shared.manifest()["source"]
    assert whole["repository"]["problem"] is None
    assert set(whole["progress"]["U1"]) >= {"route", "elapsed_seconds", "latest_activity", "process_state", "limits"}
    shared.refuse("REFUSED", "unknown unit", args=[*STATUS, "--unit-id", "U9"])


def _move(desk: Desk) -> None:
    desk.repo.rename(desk.base / "moved")


def _delete(desk: Desk) -> None:
    shutil.rmtree(desk.repo)


def _no_git(desk: Desk) -> None:
    shutil.rmtree(desk.repo / ".git")


def _other_branch(desk: Desk) -> None:
    desk.git("checkout", "-qb", "other")


def _detached(desk: Desk) -> None:
    desk.git("checkout", "-q", "--detach")


def _replaced(desk: Desk) -> None:
    _move(desk)  # kept, because a file system may give a new folder the inode of a deleted one
    desk.make_repo()


def _merging(desk: Desk) -> None:
    (desk.repo / ".git" / "MERGE_HEAD").write_text(desk.head + "\n")


@pytest.mark.parametrize("harm", [_move, _delete, _no_git, _other_branch, _detached, _replaced, _merging])
def test_no_state_of_the_repository_hides_the_run(desk: Desk, harm: Callable[[Desk], None]) -> None:
    harm(desk)
    body = desk.call(*STATUS).expect("STATUS").body
    if harm is not _merging:
        problem = body["repository"]["problem"]
        assert problem["word"] in ("BLOCKED", "REFUSED")
        assert problem["reason"]
    assert body["units"]["U1"]["transport"]["commit"]
    assert desk.call("runs").expect("RUNS").body["runs"][0]["run_id"] == "r1"


def test_a_lost_or_damaged_projection_hides_nothing(desk: Desk) -> None:
    (desk.run_dir() / "manifest.json").write_text("{}")
    assert desk.call(*STATUS).expect("STATUS").body["units"]["U1"]["state"] == "integration-pending"
    (desk.run_dir() / "manifest.json").unlink()
    assert desk.call(*STATUS).expect("STATUS").body["units"]["U1"]["state"] == "integration-pending"
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-transport", desk.git("for-each-ref", "--format=%(objectname)"
            , "refs/ce-work"))  # fmt: skip
    assert desk.unit()["state"] == "cleaned"


def test_a_job_folder_that_went_away_does_not_hide_the_unit(desk: Desk) -> None:
    desk.dispatched("U2")
    shutil.rmtree(desk.run_dir() / "jobs")
    body = desk.call(*STATUS).expect("STATUS").body
    assert body["units"]["U2"]["state"] == "authoring"


def test_the_journal_tells_the_whole_story_to_programs_and_to_people(shared: Desk) -> None:
    reply = shared.call("journal", "verify", "--run-id", "r1")
    assert reply.code == 0
    records = shared.records()
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert shared.manifest()["revision"] == len(records) - 1
    assert [event["kind"] for event in shared.manifest()["events"]] == [record["kind"] for record in records]


def test_one_run_that_cannot_be_read_hides_no_other(desk: Desk) -> None:
    desk.init("r2").expect("READY")
    (desk.run_dir() / "journal.jsonl").write_text("garbage\n")
    runs = {run["run_id"]: run for run in desk.call("runs").expect("RUNS").body["runs"]}
    assert runs["r1"]["problem"]["word"] == "UNREADABLE"
    assert "problem" not in runs["r2"]
    assert json.dumps(runs)
    assert os.path.isdir(runs["r1"]["recovery_path"])
