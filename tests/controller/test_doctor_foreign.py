"""`doctor` beside what is not ours, not in its place or not there any more: it destroys nothing and names a way out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.controller.quick import QuickHost
from tests.controller.test_doctor import doctor, left_alone_by_fix, mended_by_its_command, one
from tests.lane import Lane


@pytest.fixture
def host(tmp_path: Path, lane: Lane) -> QuickHost:
    """A host with run `r1`."""
    made = QuickHost(tmp_path, lane)
    made.make_repo()
    made.init().expect("READY")
    return made


@pytest.mark.parametrize("mode", [0o755, 0o700])
@pytest.mark.parametrize("name", [".tmp-thesis", ".tmp-init-0123456789ab"])
def test_a_folder_named_as_runs_root_by_mistake_loses_nothing(host: QuickHost, mode: int, name: str) -> None:
    home = host.base / "home"
    for folder in (home, home / name, home / "projects"):
        folder.mkdir(mode=mode)
    (home / name / "only-copy").write_text("x\n")
    host.runs = home
    host.env["CE_WORK_RUNS_ROOT"] = str(home)
    left_alone_by_fix(host, one(host, "private state"))
    assert sorted(os.listdir(home)) == sorted([name, "projects"])
    assert (home / name / "only-copy").exists()


def test_a_runs_root_that_is_open_to_others_is_not_looked_into(host: QuickHost) -> None:
    (host.runs / ".tmp-init-0123456789ab").mkdir(mode=0o700)
    host.run_dir().chmod(0o755)
    host.runs.chmod(0o755)
    finding = one(host, "private state")
    assert finding["where"] == str(host.runs)
    left_alone_by_fix(host, finding)


@pytest.mark.parametrize("name", [".tmp-x", ".tmp-init-abc"])
def test_a_temporary_folder_of_another_program_in_a_runs_root_is_never_removed(host: QuickHost, name: str) -> None:
    (host.runs / name).mkdir(mode=0o700)
    doctor(host, fix=True)
    host.init("r2").expect("READY")
    assert (host.runs / name).is_dir()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_nobody_of_ours_made_is_moved_out_of_the_root_wherever_the_command_is_given(
    host: QuickHost, kind: str
) -> None:
    strange = host.runs / (".tmp-x" if kind == "file" else "mine")
    strange.write_text("x\n") if kind == "file" else strange.mkdir(mode=0o700)
    finding = one(host, "run")
    left_alone_by_fix(host, finding)
    subprocess.run(finding["command"], shell=True, check=True, cwd=host.repo / "dir")
    doctor(host).expect("HEALTHY")
    assert (host.base / strange.name).exists()


@pytest.mark.parametrize("whole", [True, False], ids=["the runs root", "one run"])
def test_a_moved_run_is_put_back_and_its_only_copy_not_given_up(host: QuickHost, whole: bool) -> None:
    host.author("U1")
    recorded = host.runs
    aside = host.base / "aside"
    if whole:
        host.runs.rename(aside)
    else:
        aside.mkdir(mode=0o700)
        host.run_dir().rename(aside / "r1")
    host.runs, host.env["CE_WORK_RUNS_ROOT"] = aside, str(aside)
    finding = one(host, "run")
    assert "put it back" in finding["meaning"]
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)
    host.runs, host.env["CE_WORK_RUNS_ROOT"] = recorded, str(recorded)
    host.call("terminalize", "--run-id", "r1", "--unit-id", "U1").expect("INTEGRATION_PENDING")


def test_a_copy_of_a_run_repairs_nothing_of_the_original(host: QuickHost) -> None:
    transport = host.pending("U1")
    copy = host.base / "copy"
    shutil.copytree(host.runs, copy, symlinks=True)
    host.git("update-ref", "-d", transport["ref"])
    host.runs, host.env["CE_WORK_RUNS_ROOT"] = copy, str(copy)
    finding = one(host, "run")
    assert "--abandon" not in finding["command"]
    left_alone_by_fix(host, finding)


def test_a_run_that_is_a_link_is_not_believed_when_it_asks_for_a_repair(host: QuickHost) -> None:
    transport = host.pending("U1")
    host.run_dir().rename(host.base / "outside")
    host.run_dir().symlink_to(host.base / "outside")
    host.git("update-ref", "-d", transport["ref"])
    left_alone_by_fix(host, one(host, "private state"))
    assert host.git("for-each-ref", "refs/ce-work/") == ""


def test_a_reference_that_is_not_utf8_is_noted(host: QuickHost) -> None:
    name = b"refs/ce-work/\xff\xfe"
    subprocess.run([b"git", b"update-ref", name, b"HEAD"], cwd=host.repo, env=host.env, check=True)
    (note,) = doctor(host, fix=True).expect("HEALTHY").body["notes"]
    assert os.fsencode(note["where"]) == name


@pytest.mark.parametrize("harm", ["removed", "spoiled"])
def test_a_job_whose_files_cannot_be_read_is_a_finding_that_reap_settles(host: QuickHost, harm: str) -> None:
    prepared = host.prepare("U1").expect("PREPARED").body
    job = host.write_job(prepared)
    host.authorize(prepared, job).expect("AUTHORIZED")
    folder = host.run_dir() / "jobs" / job
    shutil.rmtree(folder) if harm == "removed" else host.private(folder / "meta.json", "{")
    finding = one(host, "job")
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)


def test_a_transport_that_git_threw_away_has_a_way_out_and_says_where_the_work_is(host: QuickHost) -> None:
    transport = host.pending("U1")
    host.git("update-ref", "-d", transport["ref"])
    host.git("reflog", "expire", "--expire=now", "--all")
    host.git("gc", "-q", "--prune=now")
    finding = one(host, "transport ref")
    assert host.unit()["workspace"]["path"] in finding["meaning"]
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)


def test_a_run_whose_repository_was_deleted_for_good_can_be_put_away(host: QuickHost) -> None:
    work = Path(host.author("U1")["workspace"], "new.txt").relative_to(host.runs)
    shutil.rmtree(host.repo)
    (finding,) = doctor(host, fix=True).expect("BLOCKED").body["findings"]
    assert "by hand" in finding["meaning"]
    subprocess.run(shlex.split(finding["command"], comments=True), check=True, cwd=host.base)
    doctor(host).expect("HEALTHY")
    assert (host.base / work).exists()


def test_a_cleanup_that_begins_while_doctor_looks_is_no_lost_workspace(host: QuickHost) -> None:
    """What doctor read before is read again under the run's lock; here a slow cleanup comes between."""
    from controller import examination, lock, run_root
    from controller.run import read_directory

    host.prepare("U1").expect("PREPARED")
    before = examination.Examined(host.runs, (read_directory(host.run_dir()),), (), ())
    host.call("cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon").expect("CLEANED")
    assert list(examination.missing_workspaces(before)) == []
    host.prepare("U1", "--attempt-id", "attempt-2").expect("PREPARED")
    now = examination.Examined(host.runs, (read_directory(host.run_dir()),), (), ())
    run_root.remove_tree(Path(host.unit()["workspace"]["path"]))
    with lock.held(host.run_dir() / "manifest.lock", wait=5, what="test"):
        assert list(examination.missing_workspaces(now)) == []
    assert len(list(examination.missing_workspaces(now))) == 1
