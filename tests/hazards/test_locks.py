"""Rows 6, 7, 15 and 16: locks of others are named, waited for or refused, and never stolen or removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from controller.transport import ref_name
from tests.hazards.support import abandon, case, resume, terminalize, worktrees
from tests.host import Host

LONG_AGO = (0.0, time.time() - 7 * 24 * 3600)


def _foreign(host: Host, name: str) -> Path:
    """A lock file that some other program left long ago."""
    path = host.repo / ".git" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not yours")
    os.utime(path, LONG_AGO)
    return path


def test_a_stale_git_lock_of_another_program_is_never_removed(run: Host) -> None:
    """Age proves nothing (a public tool deletes any lock older than five minutes)."""
    run.pending("U1", {"f": "unit\n", "new": "unit\n"})
    before = run.fingerprint()
    for name in ("index.lock", "HEAD.lock", "refs/heads/main.lock"):
        with case(name):
            path = _foreign(run, name)
            reply = run.integrate().expect("BLOCKED")
            assert str(path) in reply.stderr, "the answer names the file that is in the way"
            assert run.fingerprint() == before
            assert run.manifest()["integration_lock"] is None
            resume(run).expect("RESUMED")
            assert path.read_text() == "not yours"
            assert os.stat(path).st_mtime == LONG_AGO[1]
            path.unlink()
    run.integrate().expect("UNIT_COMMITTED")


def test_a_lock_of_packed_refs_after_the_commit_never_makes_a_second_one(run: Host) -> None:
    run.pending()
    path = _foreign(run, "packed-refs.lock")
    first = run.head
    reply = run.integrate().expect("BLOCKED")
    assert "packed-refs.lock" in reply.body["original_failure"]
    assert reply.body["canonical_commit"]["commit"] == run.head != first
    assert path.read_text() == "not yours"
    path.unlink()
    resume(run).expect("RESUMED")
    assert run.git("rev-list", "--count", f"{first}..HEAD") == "1"
    assert run.unit()["state"] == "cleaned"
    assert run.manifest()["integration_lock"] is None
    assert run.git("for-each-ref", "refs/ce-work") == ""


def test_a_contended_config_lock_never_leaves_a_branch_or_half_a_worktree(run: Host) -> None:
    """Row 16: a workspace is detached, so that nothing is written to the configuration. Row 7: others' stay."""
    theirs = run.base / "theirs"
    run.git("worktree", "add", "-q", "--detach", str(theirs))
    run.git("worktree", "lock", str(theirs))
    shutil.rmtree(theirs)
    path = _foreign(run, "config.lock")
    run.pending()
    run.integrate().expect("UNIT_COMMITTED")
    assert run.git("for-each-ref", "--format=%(refname)", "refs/heads") == "refs/heads/main"
    assert path.read_text() == "not yours"
    assert worktrees(run) == [str(theirs)]


def test_a_lock_on_the_transports_ref_is_named_and_waited_out(run: Host) -> None:
    run.author()
    path = _foreign(run, ref_name("r1", "U1") + ".lock")
    assert str(path) in terminalize(run).expect("BLOCKED").stderr
    path.unlink()
    terminalize(run).expect("INTEGRATION_PENDING")


def test_a_live_owner_never_loses_the_run_however_old_its_lock_looks(run: Host) -> None:
    """Row 6: the kernel's lock is the authority; time stamps explain nothing."""
    path = run.run_dir() / "manifest.lock"
    path.touch(mode=0o600)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(path, LONG_AGO)
        reply = run.call("sync-job", "--run-id", "r1", "--unit-id", "U1", "--wait-lock", "0").expect("REFUSED")
        assert reply.body["reason"] == "busy"
        assert f"pid {os.getpid()}" in reply.body["holder"]
        assert run.call("status", "--run-id", "r1").word == "STATUS", "looking needs no lock"
    run.prepare().expect("PREPARED")


def test_the_branch_of_a_live_integration_is_never_taken_by_age(run: Host) -> None:
    run.pending()
    token = run.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED").body["path"]
    os.utime(token, LONG_AGO)
    run.init("r2").expect("READY")
    run.pending("U1", {"other": "other\n"}, run="r2")
    reply = run.integrate(run="r2").expect("BLOCKED")
    assert (reply.body["owner_run"], reply.body["owner_unit"]) == ("r1", "U1")
    assert os.stat(token).st_mtime == LONG_AGO[1]


def test_a_worktree_that_somebody_locked_is_never_cleaned_away(run: Host) -> None:
    """Row 7: cleanup takes off only the lock that we put on."""
    made = run.author()
    workspace = Path(made["workspace"])
    reason = next((run.repo / ".git/worktrees").iterdir()).joinpath("locked").read_text()
    assert "r1" in reason
    assert "U1" in reason
    terminalize(run).expect("INTEGRATION_PENDING")
    run.git("worktree", "unlock", str(workspace))
    run.git("worktree", "lock", "--reason", "mine: looking at it", str(workspace))
    reply = abandon(run).expect("BLOCKED")
    assert reply.body["found"] == "mine: looking at it"
    assert (workspace / "new.txt").read_text() == "new\n"
    run.git("worktree", "unlock", str(workspace))
    abandon(run).expect("CLEANED")
    assert worktrees(run) == []


def test_a_worktree_in_work_is_never_pruned_or_removed_by_a_tidy_user(run: Host) -> None:
    made = run.author()
    workspace = Path(made["workspace"])
    hidden = workspace.with_name("hidden")
    workspace.rename(hidden)  # as when the disk of the runs root is not mounted
    run.git("worktree", "prune", "--expire", "now")
    hidden.rename(workspace)
    run.git("worktree", "remove", "--force", str(workspace), check=False)
    terminalize(run).expect("INTEGRATION_PENDING")
    run.integrate().expect("UNIT_COMMITTED")


def test_a_workspace_that_was_deleted_blocks_and_can_be_given_up(run: Host) -> None:
    made = run.author()
    shutil.rmtree(made["workspace"])
    terminalize(run)
    abandon(run).expect("CLEANED")
    assert worktrees(run) == []
    run.pending("U1", {"again": "again\n"}, "--attempt-id", "attempt-2")
    run.integrate().expect("UNIT_COMMITTED")
