"""`doctor` finds what is wrong, says what it means and the one command that mends it, and touches nothing of others."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from controller import git_lock
from controller.survivors import MARKER
from controller.transport import ref_name
from runner.job import JOB_ID_VARIABLE
from tests.controller.quick import QuickHost
from tests.host import Reply
from tests.lane import Lane

RUNNER_ID = "20260101T000000Z-"


@pytest.fixture
def host(tmp_path: Path, lane: Lane) -> QuickHost:
    """A host with run `r1`."""
    made = QuickHost(tmp_path, lane)
    made.make_repo()
    made.init().expect("READY")
    return made


def doctor(host: QuickHost, *, fix: bool = False) -> Reply:
    """What doctor says; every finding has a meaning and a command."""
    reply = host.call("doctor", *(["--fix"] if fix else []))
    assert reply.word in ("HEALTHY", "BLOCKED"), repr(reply)
    for finding in (*reply.body["findings"], *reply.body["notes"]):
        assert len(finding["meaning"]) > 10 and finding["command"] and finding["where"], finding
    open_ones = [finding for finding in reply.body["findings"] if not finding["fixed"]]
    assert (reply.word == "BLOCKED") == bool(open_ones)
    assert not open_ones or reply.body["remedy"] == open_ones[0]["command"]
    return reply


def one(host: QuickHost, check: str) -> dict[str, Any]:
    """The only finding, of this check; looking has changed nothing."""
    before = trace(host)
    findings: list[dict[str, Any]] = doctor(host).expect("BLOCKED").body["findings"]
    assert [finding["check"] for finding in findings] == [check], findings
    assert trace(host) == before
    return findings[0]


def mended_by_its_command(host: QuickHost, finding: dict[str, Any]) -> None:
    """The command of a finding, given as it stands, mends it."""
    argv = shlex.split(finding["command"])
    if argv[0].endswith("unit-workspace"):
        host.call(*argv[1:])
    else:
        subprocess.run(finding["command"], shell=True, check=True, env=host.env, cwd=host.base, capture_output=True)
    doctor(host).expect("HEALTHY")


def mended_by_fix(host: QuickHost, finding: dict[str, Any]) -> None:
    """`--fix` mends it, and says so; then all is well."""
    assert finding["fixable"]
    assert finding["command"].endswith("doctor --fix")
    assert doctor(host, fix=True).expect("HEALTHY").body["findings"][0]["fixed"]
    doctor(host).expect("HEALTHY")


def left_alone_by_fix(host: QuickHost, finding: dict[str, Any]) -> None:
    """`--fix` changes nothing."""
    assert not finding["fixable"]
    before = trace(host)
    doctor(host, fix=True).expect("BLOCKED")
    assert trace(host) == before


def trace(host: QuickHost) -> dict[str, Any]:
    """Everything that doctor could change: private state with its modes, refs, registrations, Git's locks."""
    private = {
        str(path): (stat.S_IMODE(path.lstat().st_mode), path.read_bytes() if path.is_file() else None)
        for path in sorted(host.runs.rglob("*"))
        if path.suffix != ".lock" and not path.is_symlink()
    }
    git_dir = host.repo / ".git"
    return {
        "private": private,
        "refs": host.git("for-each-ref"),
        "worktrees": sorted(str(path) for path in (git_dir / "worktrees").rglob("*")),
        "locks": sorted(str(path) for path in git_dir.rglob("*.lock")),
        "checkout": host.fingerprint(),
    }


def truncate_last(host: QuickHost, count: int) -> None:
    """Take the last records away, as if the controller had been killed before it wrote them."""
    path = host.run_dir() / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    with open(path, "r+b") as file:
        file.truncate(sum(map(len, lines[:-count])))


def test_nothing_is_wrong_with_a_run_in_work_or_a_finished_one(host: QuickHost) -> None:
    host.prepare("U2").expect("PREPARED")
    host.pending("U1")
    doctor(host).expect("HEALTHY")
    host.integrate("U1").expect("UNIT_COMMITTED")
    host.call("cleanup", "--run-id", "r1", "--unit-id", "U2", "--abandon").expect("CLEANED")
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert doctor(host).expect("HEALTHY").body["notes"] == []


def test_an_empty_machine_is_healthy_and_stays_empty(tmp_path: Path, lane: Lane) -> None:
    host = QuickHost(tmp_path, lane)
    host.call("doctor").expect("HEALTHY")
    host.call("doctor", "--fix").expect("HEALTHY")
    assert not host.runs.exists()


# --- private state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [".", ".locks", "r1", "r1/units", "r1/journal.jsonl", "r1/manifest.json", "r1/manifest.lock"]
)
def test_an_open_mode_is_named_with_the_chmod_that_closes_it(host: QuickHost, name: str) -> None:
    path = host.runs / name
    path.chmod(0o755 if path.is_dir() else 0o644)
    finding = one(host, "private state")
    assert finding["command"].startswith("chmod ")
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)


def test_a_folder_that_the_controller_did_not_make_is_named_and_left(host: QuickHost) -> None:
    (host.runs / "mine").mkdir(mode=0o700)
    (host.runs / "mine" / "notes").write_text("keep me\n")
    left_alone_by_fix(host, one(host, "run"))
    assert (host.runs / "mine" / "notes").read_text() == "keep me\n"


def test_a_damaged_journal_is_named_with_where_it_is_damaged(host: QuickHost) -> None:
    host.prepare("U1").expect("PREPARED")
    path = host.run_dir() / "journal.jsonl"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    finding = one(host, "journal")
    assert "journal verify --run-id r1" in finding["command"]
    left_alone_by_fix(host, finding)
    assert host.git("worktree", "list").count("\n") == 1, "the workspace of a run that cannot be read was taken away"


def test_a_torn_tail_is_a_finding_that_resume_mends(host: QuickHost) -> None:
    with open(host.run_dir() / "journal.jsonl", "ab") as file:
        file.write(b'{"v":1,"seq":')
    mended_by_its_command(host, one(host, "journal"))


@pytest.mark.parametrize("harm", ["missing", "old"])
def test_a_manifest_that_is_missing_or_old_is_written_again(host: QuickHost, harm: str) -> None:
    path = host.run_dir() / "manifest.json"
    old = path.read_bytes()
    host.prepare("U1").expect("PREPARED")
    path.unlink()
    if harm == "old":
        host.private(path, old.decode())
    mended_by_its_command(host, one(host, "manifest"))


def test_what_killed_commands_left_in_the_runs_root_is_removed(host: QuickHost) -> None:
    left = host.runs / ".tmp-init-0123456789ab"
    left.mkdir(mode=0o700)
    (left / "source").mkdir()
    mended_by_fix(host, one(host, "leftover"))
    assert not left.exists()
    host.private(host.runs / ".locks" / ".tmp-1-ab", "")
    mended_by_fix(host, one(host, "leftover"))


# --- locks -----------------------------------------------------------------------------------------------------------


def test_a_lock_that_a_killed_host_holds_is_a_finding_that_resume_mends(host: QuickHost) -> None:
    host.pending("U1")
    host.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED")
    finding = one(host, "integration lock")
    assert "U1" in finding["meaning"]
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)


def test_a_lock_file_that_its_run_does_not_know_of_is_adopted_by_resume(host: QuickHost) -> None:
    host.pending("U1")
    host.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED")
    truncate_last(host, 2)
    findings = doctor(host).expect("BLOCKED").body["findings"]
    assert {finding["check"] for finding in findings} == {"integration lock", "manifest"}
    mended_by_its_command(host, findings[-1])


def test_the_lock_of_a_deleted_run_is_removed_only_when_nothing_is_left_of_the_run(host: QuickHost) -> None:
    host.init("r2").expect("READY")
    host.pending("U1", run="r2")
    host.call("integration-acquire", "--run-id", "r2", "--unit-id", "U1").expect("ACQUIRED")
    host.run_dir("r2").rename(host.base / "aside")
    host.run_dir("r2").mkdir(mode=0o700)
    assert doctor(host, fix=True).word == "BLOCKED"
    assert list((host.runs / ".locks").glob("integration-*.json"))
    host.run_dir("r2").rmdir()
    reply = doctor(host, fix=True).expect("HEALTHY")
    assert [finding["check"] for finding in reply.body["findings"]] == ["integration lock"]
    assert not list((host.runs / ".locks").glob("integration-*.json"))
    notes = {note["check"] for note in reply.body["notes"]}
    assert notes == {"worktree", "transport ref"}, "whose they are, and whether the run comes back, nobody knows"


def test_a_lock_file_that_is_no_lock_record_is_shown_not_removed(host: QuickHost) -> None:
    host.private(host.runs / ".locks" / f"integration-{'0' * 64}.json", "{}\n")
    left_alone_by_fix(host, one(host, "integration lock"))


def test_locks_of_git_that_somebody_else_holds_are_named_with_their_age_and_left(host: QuickHost) -> None:
    lock = host.repo / ".git" / "index.lock"
    lock.write_text("")
    os.utime(lock, (time.time() - 90, time.time() - 90))
    finding = one(host, "git lock")
    assert "90 s ago" in finding["meaning"] or "91 s ago" in finding["meaning"]
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)


def test_a_git_that_is_just_finishing_is_no_finding(host: QuickHost) -> None:
    lock = host.repo / ".git" / "HEAD.lock"
    lock.write_text("")
    letting_go = subprocess.Popen(["sh", "-c", 'sleep 0.3; rm "$1"', "-", str(lock)])
    doctor(host).expect("HEALTHY")
    assert letting_go.wait(timeout=10) == 0


def test_the_index_lock_of_our_own_killed_command_is_taken_by_resume(host: QuickHost) -> None:
    git_dir = host.repo / ".git"
    own = git_lock.marker(git_dir, host.run_dir(), "index")
    own.write_text("")
    own.chmod(0o600)
    os.link(own, git_dir / "index.lock")
    finding = one(host, "git lock")
    mended_by_its_command(host, finding)
    assert not (git_dir / "index.lock").exists()


# --- interrupted commands --------------------------------------------------------------------------------------------


def test_a_killed_verification_is_a_finding_that_resume_mends(host: QuickHost) -> None:
    host.pending("U1")
    before = host.fingerprint()
    running = host.lane.start(
        host, "integrate", "--run-id", "r1", "--unit-id", "U1", "--commit-message", "m", "--", "sleep", "600"
    )
    path = host.run_dir() / "journal.jsonl"
    deadline = time.monotonic() + 20
    while b"canonical-verification-started" not in path.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill(tree=True)
    running.wait()
    reply = doctor(host, fix=True).expect("BLOCKED")
    assert {finding["check"] for finding in reply.body["findings"]} >= {"verification", "integration lock"}
    assert all(finding["command"].endswith("resume --run-id r1") for finding in reply.body["findings"])
    assert host.fingerprint() != before, "doctor has restored the checkout, which is not its business"
    mended_by_its_command(host, reply.body["findings"][0])
    assert host.fingerprint() == before


def test_a_run_that_another_command_works_on_is_not_called_broken(host: QuickHost, tmp_path: Path) -> None:
    host.pending("U1")
    go = tmp_path / "go"
    other = Lane(tmp_path)
    try:
        script = f"while [ ! -e {go} ]; do sleep 0.02; done"
        running = other.start(
            host, "integrate", "--run-id", "r1", "--unit-id", "U1", "--commit-message", "m", "--", "sh", "-c", script
        )
        path = host.run_dir() / "journal.jsonl"
        deadline = time.monotonic() + 20
        while b"canonical-verification-started" not in path.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        reply = doctor(host, fix=True).expect("HEALTHY")
        assert reply.body["busy"] == ["r1"]
        go.write_text("")
        running.reply().expect("UNIT_COMMITTED")
    finally:
        go.write_text("")
        other.close()


def test_a_failed_plan_wide_verification_is_open_until_one_passes(host: QuickHost) -> None:
    host.pending("U1")
    host.integrate("U1").expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r1", "--", "false").expect("BLOCKED")
    finding = one(host, "blocker")
    assert "verify-run --run-id r1" in finding["command"]
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    doctor(host).expect("HEALTHY")


# --- the repository --------------------------------------------------------------------------------------------------


def test_a_workspace_that_no_unit_needs_is_removed_and_no_other(host: QuickHost) -> None:
    prepared = host.prepare("U1").expect("PREPARED").body
    host.git("worktree", "add", "-q", "--detach", str(host.base / "users"))
    host.git("worktree", "add", "-q", "--detach", str(host.run_dir() / "scratch"))
    truncate_last(host, 2)
    (host.run_dir() / "manifest.json").unlink()
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    mended_by_fix(host, one(host, "worktree"))
    assert not Path(prepared["workspace"]).exists()
    listed = host.git("worktree", "list", "--porcelain")
    assert f"worktree {host.base / 'users'}\n" in listed
    assert f"worktree {host.run_dir() / 'scratch'}\n" in listed, "not where a unit has its workspace"


def test_a_workspace_that_no_unit_needs_stays_when_somebody_locked_it(host: QuickHost) -> None:
    workspace = host.prepare("U1").expect("PREPARED").body["workspace"]
    truncate_last(host, 2)
    (host.run_dir() / "manifest.json").unlink()
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    host.git("worktree", "unlock", workspace)
    host.git("worktree", "lock", "--reason", "mine", workspace)
    (finding,) = doctor(host, fix=True).expect("BLOCKED").body["findings"]
    assert "locked" in finding["problem"] and Path(workspace, "f").exists()


def test_a_run_that_was_only_moved_aside_goes_on_when_it_comes_back(host: QuickHost) -> None:
    host.init("r2").expect("READY")
    workspace = host.author("U1", run="r2")["workspace"]
    host.run_dir("r2").rename(host.base / "aside")
    (note,) = doctor(host, fix=True).expect("HEALTHY").body["notes"]
    assert note["where"] == workspace
    (host.base / "aside").rename(host.run_dir("r2"))
    host.call("terminalize", "--run-id", "r2", "--unit-id", "U1").expect("INTEGRATION_PENDING")


def test_the_registration_of_a_run_that_was_deleted_for_good_goes_by_the_commands_of_its_note(host: QuickHost) -> None:
    host.init("r2").expect("READY")
    host.prepare("U1", run="r2").expect("PREPARED")
    shutil.rmtree(host.run_dir("r2"))
    (note,) = doctor(host, fix=True).expect("HEALTHY").body["notes"]
    by_hand = note["command"].partition("# deleted for good: ")[2]
    subprocess.run(by_hand, shell=True, check=True, env=host.env, cwd=host.base)
    assert doctor(host).expect("HEALTHY").body["notes"] == []


@pytest.mark.parametrize("left", ["an empty folder", "only gitdir", "half an add"])
def test_what_a_kill_leaves_of_a_registration_is_removed(host: QuickHost, left: str) -> None:
    host.init("r2").expect("READY")
    host.prepare("U1", run="r2").expect("PREPARED")
    shutil.rmtree(host.run_dir("r2"))
    (admin,) = (host.repo / ".git/worktrees").iterdir()
    draft = host.run_dir("r2") / "units/U1" / admin.name / ".git"
    shutil.rmtree(admin)
    admin.mkdir()
    if left != "an empty folder":
        (admin / "gitdir").write_text(f"{draft if left == 'half an add' else draft.parents[1] / 'workspace/.git'}\n")
    foreign = admin.with_name("ce-work-users-own")
    foreign.mkdir()
    mended_by_fix(host, one(host, "worktree"))
    assert list((host.repo / ".git/worktrees").iterdir()) == [foreign]
    foreign.rmdir()
    assert doctor(host).word == "HEALTHY"


def test_a_removed_workspace_is_a_lost_attempt_that_can_be_abandoned(host: QuickHost) -> None:
    prepared = host.prepare("U1").expect("PREPARED").body
    shutil.rmtree(prepared["workspace"])
    finding = one(host, "workspace")
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)


def test_a_transport_ref_that_somebody_deleted_is_pinned_again(host: QuickHost) -> None:
    transport = host.pending("U1")
    host.git("update-ref", "-d", transport["ref"])
    mended_by_fix(host, one(host, "transport ref"))
    assert host.git("rev-parse", transport["ref"]) == transport["commit"]


def test_a_transport_ref_that_somebody_moved_is_named_and_left(host: QuickHost) -> None:
    transport = host.pending("U1")
    host.git("update-ref", transport["ref"], host.head)
    finding = one(host, "transport ref")
    left_alone_by_fix(host, finding)
    mended_by_its_command(host, finding)
    assert host.git("rev-parse", transport["ref"]) == transport["commit"]


def test_the_ref_of_a_cleaned_unit_is_removed_only_at_its_own_transport(host: QuickHost) -> None:
    transport = host.pending("U1")
    host.integrate("U1").expect("UNIT_COMMITTED")
    host.git("update-ref", transport["ref"], host.head)
    left_alone_by_fix(host, one(host, "transport ref"))
    host.git("update-ref", transport["ref"], transport["commit"])
    mended_by_fix(host, one(host, "transport ref"))
    assert host.git("for-each-ref", "refs/ce-work/") == ""


def test_refs_of_runs_elsewhere_are_noted_and_never_touched(host: QuickHost) -> None:
    foreign = ref_name("a run under another root", "U1")
    host.git("update-ref", foreign, host.head)
    reply = doctor(host, fix=True).expect("HEALTHY")
    assert [note["where"] for note in reply.body["notes"]] == [foreign]
    assert host.git("rev-parse", foreign) == host.head


def test_a_repository_that_is_gone_is_a_finding_while_work_is_open(host: QuickHost) -> None:
    host.prepare("U1").expect("PREPARED")
    host.repo.rename(host.base / "moved")
    findings = doctor(host, fix=True).expect("BLOCKED").body["findings"]
    assert [finding["check"] for finding in findings] == ["repository"]
    (host.base / "moved").rename(host.repo)
    doctor(host).expect("HEALTHY")


# --- processes -------------------------------------------------------------------------------------------------------


def _marker(host: QuickHost) -> str:
    """The mark of a verification that has ended."""
    host.pending("U1")
    host.integrate("U1", ("false",)).expect("BLOCKED")
    for line in (host.run_dir() / "journal.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        if record["kind"] == "canonical-verification-started":
            return str(record["data"]["marker"])
    raise AssertionError("no verification was started")


def test_survivors_of_a_verification_are_ended_and_nobody_else(host: QuickHost) -> None:
    marker = _marker(host)
    survivor = subprocess.Popen(["sleep", "600"], env={**host.env, MARKER: marker}, start_new_session=True)
    bystander = subprocess.Popen(["sleep", "600"], env={**host.env, MARKER: secrets.token_hex(16)})
    try:
        finding = one(host, "process")
        assert finding["where"] == str(survivor.pid)
        mended_by_fix(host, finding)
        assert survivor.wait(timeout=10) == -signal.SIGTERM
        assert bystander.poll() is None
    finally:
        for process in (survivor, bystander):
            process.kill()
            process.wait()


@pytest.mark.parametrize("unique", [True, False], ids=["runner-made id", "id of another program"])
def test_survivors_of_a_job_are_ended_only_when_its_id_proves_whose_they_are(host: QuickHost, unique: bool) -> None:
    prepared = host.prepare("U1").expect("PREPARED").body
    job = f"{RUNNER_ID}{secrets.token_hex(4)}" if unique else f"job-{secrets.token_hex(8)}"
    host.write_job(prepared, job=job)
    host.call(
        "record-job", "--run-id", "r1", "--unit-id", "U1", "--attempt-id", "attempt-1", "--job-id", job
    ).expect("AUTHORING")  # fmt: skip
    host.end_job(job, "failed")
    survivor = subprocess.Popen(["sleep", "600"], env={**host.env, JOB_ID_VARIABLE: job})
    try:
        finding = one(host, "process")
        if unique:
            mended_by_fix(host, finding)
            assert survivor.wait(timeout=10) == -signal.SIGTERM
        else:
            left_alone_by_fix(host, finding)
            assert survivor.poll() is None
    finally:
        survivor.kill()
        survivor.wait()


def test_files_that_a_deleted_run_had_moved_aside_are_named_and_left(host: QuickHost) -> None:
    kept = host.repo / ".git" / f"unit-workspace-{'0' * 20}.kept"
    kept.mkdir()
    (kept / "f").write_text("precious\n")
    left_alone_by_fix(host, one(host, "kept files"))
    assert (kept / "f").read_text() == "precious\n"
