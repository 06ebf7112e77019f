"""Rows 4, 11, 12, 46: what a person or a verification does meanwhile is kept; restoring never leaves the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hazards.support import (
    alive,
    case,
    finish,
    kill,
    records,
    recovered,
    resume,
    script,
    start,
    start_integrate,
    until,
)
from tests.host import Host


def test_edits_that_a_user_makes_during_a_verification_are_never_lost(run: Host) -> None:
    """Row 12: restoring puts back what was, and keeps a copy of every byte that it takes away."""
    run.pending("U1", {"f": "unit\n", "new/x": "unit\n"})
    before = run.fingerprint()
    user = (
        "echo 'user in unit file' > f; rm dir/g; mkdir dir/g; echo mine > dir/g/mine; echo log > dir/g/a.log; echo 'user in added file' > new/x; "
        "echo 'user note' > note; mkdir -p deep/er; echo 'user deep' > deep/er/file; ln -s target link; "
        "echo staged > staged; git add staged; echo 'user after staging' > staged; chmod 755 .gitignore; exit 1"
    )
    reply = run.integrate("U1", ["sh", "-c", user]).expect("BLOCKED")
    assert run.fingerprint() == before
    assert recovered(reply) == {
        "f": b"user in unit file\n",
        "dir/g/mine": b"mine\n",
        "dir/g/a.log": b"log\n",
        "new/x": b"user in added file\n",
        "note": b"user note\n",
        "deep/er/file": b"user deep\n",
        "link": b"target",
        "staged": b"user after staging\n",
        "staged.staged": b"staged\n",
    }
    assert run.unit()["state"] == "preserved"
    assert run.manifest()["integration_lock"] is None


OBSTACLES = {
    "a visible link": ("new", "rm -rf new; ln -s {outside} new", {}),
    "an ignored link": ("build", "rm -rf build; ln -s {outside} build", {}),
    "an ignored file": ("build", "rm -rf build; echo precious > build", {"build": b"precious\n"}),
    "a link above an empty folder elsewhere": ("new", "rm -rf new; ln -s {outside}/empty new", {}),
}


def test_restoring_never_follows_what_stands_in_place_of_a_folder(bare_host: Host) -> None:
    """A `build` that became a link to another disk: restoring `build/x` must not delete `x` over there."""
    host = bare_host
    host.make_repo({"f": "one\n", ".gitignore": "build\n"})
    (host.repo / "build").mkdir()
    (host.repo / "build/x").write_text("tracked although ignored\n")
    host.git("add", "-f", "build/x")
    host.git("commit", "-qm", "build")
    outside = host.base / "outside"
    (outside / "empty/x").mkdir(parents=True)
    (outside / "empty/deep/x").mkdir(parents=True)
    (outside / "x").write_text("elsewhere\n")
    (outside / "x").chmod(0o644)
    status = os.stat(outside / "x")
    host.init().expect("READY")
    host.pending("U1", {"new/x": "unit\n", "new/deep/x/y": "unit\n", "build/x": "unit\n"})
    before = host.fingerprint()
    for way, (where, what, kept) in OBSTACLES.items():
        with case(way):
            verify = what.format(outside=outside) + "; exit 1"
            reply = host.integrate("U1", ["sh", "-c", verify]).expect("BLOCKED")
            assert host.fingerprint() == before
            after = os.stat(outside / "x")
            assert (outside / "x").read_text() == "elsewhere\n"
            unchanged = ("st_ino", "st_mode", "st_mtime_ns", "st_ctime_ns")
            assert [getattr(after, name) for name in unchanged] == [getattr(status, name) for name in unchanged]
            assert (outside / "empty/x").is_dir()
            assert (outside / "empty/deep/x").is_dir()
            assert sorted(os.listdir(outside)) == ["empty", "x"]
            found = recovered(reply)
            assert where in found
            assert {path: found[path] for path in kept} == kept


def test_edits_that_arrive_between_preflight_and_restore_are_never_touched(run: Host) -> None:
    """A host that drives the steps itself: what is not the unit's own is neither applied over nor restored over."""
    run.pending("U1", {"f": "unit\n", "new": "unit\n"})
    names = ("--run-id", "r1", "--unit-id", "U1")
    token = run.call("integration-acquire", *names).expect("ACQUIRED").body["lock_token"]
    run.call("preflight", *names, "--lock-token", token).expect("PREFLIGHT_OK")
    (run.repo / "dir/g").write_text("user\n")
    (run.repo / "note").write_text("user\n")
    run.git("cherry-pick", "--no-commit", run.unit()["transport"]["commit"])
    reply = run.call("mark-applied", *names, "--lock-token", token).expect("BLOCKED")
    assert {"dir/g", "note"} & set(reply.body["unexpected_paths"])
    before = run.fingerprint()
    for command in ("restore", "resume"):
        reply = resume(run) if command == "resume" else run.call(command, *names, "--lock-token", token)
        reply.expect("BLOCKED")
        assert run.fingerprint() == before
    (run.repo / "note").unlink()
    run.git("checkout", "-q", "--", "dir/g")
    run.call("restore", *names, "--lock-token", token).expect("PRESERVED")
    assert run.git("status", "--porcelain") == ""
    assert (run.repo / "f").read_text() == "one\n"
    run.call("integration-release", *names, "--lock-token", token).expect("RELEASED")


def test_a_commit_that_a_user_makes_during_a_verification_is_never_undone(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    head = run.head
    user = "echo mine > mine; git add mine; git commit -qm 'user commit'"
    reply = run.integrate("U1", ["sh", "-c", user]).expect("BLOCKED")
    assert reply.body["retain_integration_lock"] is True
    assert "restored exactly" not in reply.body["original_failure"]
    mine = run.head
    assert run.git("log", "-1", "--format=%s %P") == f"user commit {head}"
    assert (run.repo / "mine").read_text() == "mine\n"
    # Nothing else may use the branch meanwhile, and resuming does not undo the commit either.
    resume(run).expect("BLOCKED")
    assert run.head == mine
    assert run.manifest()["integration_lock"] is not None
    run.git("reset", "-q", "--soft", head)
    resume(run).expect("RESUMED")
    assert run.git("status", "--porcelain") == ""
    assert run.unit()["state"] == "preserved"
    assert run.git("show", f"{mine}:mine") == "mine"
    run.integrate().expect("UNIT_COMMITTED")


def test_another_branch_that_a_user_checks_out_meanwhile_is_never_reset(run: Host) -> None:
    run.git("branch", "other")
    run.pending("U1", {"f": "unit\n"})
    reply = run.integrate("U1", ["git", "checkout", "-q", "other"]).expect("BLOCKED")
    assert "refs/heads/other" in reply.body["found"]
    assert run.git("symbolic-ref", "HEAD") == "refs/heads/other"
    assert (run.repo / "f").read_text() == "unit\n"
    run.git("checkout", "-q", "main")
    resume(run).expect("RESUMED")
    assert (run.repo / "f").read_text() == "one\n"
    assert run.git("status", "--porcelain") == ""


def test_a_verification_that_hangs_is_ended_with_all_that_it_started(run: Host) -> None:
    """Row 4; a timeout is not the same as a command that does not exist, nor as the command's own exit 124."""
    run.pending()
    before = run.fingerprint()
    hang = "setsid sh -c 'trap \"\" TERM; sleep 1e6' & sleep 1e6 & sleep 1e6"
    reply = run.integrate("U1", ["sh", "-c", hang], "--verification-timeout", "1").expect("BLOCKED")
    assert reply.body["verification_timed_out"] is True
    assert alive(run) == []
    assert run.fingerprint() == before
    reply = run.integrate("U1", ["no-such-command"]).expect("BLOCKED")
    assert (reply.body["verification_exit"], reply.body["verification_timed_out"]) == (127, False)
    reply = run.integrate("U1", ["sh", "-c", "exit 124"]).expect("BLOCKED")
    assert (reply.body["verification_exit"], reply.body["verification_timed_out"]) == (124, False)


def test_a_daemon_that_a_passing_verification_leaves_never_writes_into_the_checkout(run: Host) -> None:
    run.pending()
    run.integrate("U1", ["sh", "-c", "setsid sh -c 'sleep 0.5; echo late > late' >/dev/null 2>&1 & true"]).expect(
        "UNIT_COMMITTED"
    )
    assert alive(run) == []
    assert not (run.repo / "late").exists()


# Writes all the time, cannot be told to leave, and has left its session and its parents.
DAEMON = "setsid sh -c 'trap \"\" TERM HUP; n=0; while :; do n=$((n+1)); echo $n >> late; sleep 0.02; done' & "


@pytest.mark.parametrize("next_command", ["resume", "reap"])
def test_a_daemon_of_a_killed_controller_and_supervisor_is_ended_before_anything_else(
    run: Host, next_command: str
) -> None:
    """Section 18 row 5: the orphan once wrote into the checkout after the restoration."""
    run.pending()
    before = run.fingerprint()
    process = start_integrate(run, "sh", "-c", DAEMON + "sleep 1e6")
    until(lambda: (run.repo / "late").exists(), "the daemon writes")
    (started,) = records(run, "canonical-verification-started")
    os.kill(started["data"]["supervisor"]["pid"], 19)  # it would end the tree when the controller dies
    kill(process)
    os.kill(started["data"]["supervisor"]["pid"], 9)
    until(lambda: len(alive(run)) >= 2, "daemon and command are orphans")
    if next_command == "resume":
        reply = resume(run).expect("RESUMED")
    else:
        run.call("reap", "--run-id", "r1", "--unit-id", "U1").expect("REAPED")
        assert alive(run) == []
        reply = resume(run).expect("RESUMED")
    assert alive(run) == []
    assert not (run.repo / "late").exists()
    assert run.fingerprint() == before
    kept = run.run_dir() / "recovered/1/late"
    assert kept.read_text().split()[0] == "1"
    if next_command == "resume":
        (action,) = reply.body["actions"]
        assert action["recovered"] == [str(kept)]
    assert run.manifest()["integration_lock"] is None


def test_a_daemon_of_a_killed_controller_is_ended_at_once(run: Host) -> None:
    run.pending()
    before = run.fingerprint()
    process = start_integrate(run, "sh", "-c", DAEMON + "sleep 1e6")
    until(lambda: (run.repo / "late").exists(), "the daemon writes")
    kill(process)
    until(lambda: not alive(run), "the supervisor ended the tree by itself")
    resume(run).expect("RESUMED")
    assert run.fingerprint() == before
    assert (run.run_dir() / "recovered/1/late").exists()


def _slow_filter(host: Host, folder: Path) -> Path:
    """A filter of the user's own that waits, in the canonical checkout only, until a file says go on."""
    slow = script(
        folder / "slow",
        f"cat\ncase $(pwd) in */workspace) exit;; esac\n[ -e {folder}/armed ] || exit 0\n"
        f"touch {folder}/reached\nwhile [ ! -e {folder}/go ]; do sleep 0.02; done",
    )
    host.git("config", "filter.slow.smudge", str(slow))
    host.git("config", "filter.slow.clean", "cat")
    return slow


def test_a_git_killed_in_the_middle_of_the_apply_leaves_nothing_staged(bare_host: Host) -> None:
    """Rows 15 and 46: equality of the index decides, and the lock that our own dead process left is removed."""
    host = bare_host
    host.make_repo({"f": "one\n", "g": "two\n", ".gitattributes": "* filter=slow\n"})
    _slow_filter(host, host.base)
    host.init().expect("READY")
    host.pending("U1", {"a": "unit\n", "f": "unit\n"})
    before = host.fingerprint()
    (host.base / "armed").touch()
    process = start_integrate(host, "true")
    until(lambda: (host.base / "reached").exists(), "git waits in the filter")
    assert (host.repo / ".git/index.lock").exists()
    kill(process)
    # Git goes on without its controller, and holds the run's lock: nobody races it.
    busy = host.call("resume", "--run-id", "r1", "--wait-lock", "0").expect("REFUSED")
    assert "git" in str(busy.body["holder"])
    (host.base / "go").touch()
    resume(host).expect("RESUMED")
    assert not (host.repo / ".git/index.lock").exists()
    assert host.fingerprint() == before
    assert not (host.repo / ".git/CHERRY_PICK_HEAD").exists()
    second = (host.run_dir() / "journal.jsonl").read_bytes()
    assert resume(host).expect("RESUMED").body["actions"] == []
    assert (host.run_dir() / "journal.jsonl").read_bytes() == second
    host.integrate().expect("UNIT_COMMITTED")


def test_a_stopped_controller_loses_nothing(run: Host) -> None:
    """SIGTERM in the middle of a verification: the answer says what to do, `resume` does it."""
    run.pending()
    before = run.fingerprint()
    process = start_integrate(run, "sh", "-c", "echo $$ > late; sleep 1e6")
    until(lambda: (run.repo / "late").exists() and (run.repo / "late").read_text(), "the verification runs")
    process.terminate()
    reply = finish(process)
    assert reply.code == 1
    assert reply.word in ("INTERRUPTED", "BLOCKED")
    assert alive(run) == []
    resume(run)
    assert run.fingerprint() == before


def test_a_process_that_dies_with_its_controller_never_blocks_the_next_command(run: Host) -> None:
    """Row 6: the kernel frees the lock of a killed command; nobody waits for a time to pass."""
    run.pending()
    process = start_integrate(run, "sh", "-c", "touch late; sleep 1e6")
    until(lambda: (run.repo / "late").exists(), "the verification runs")
    busy = run.call("terminalize", "--run-id", "r1", "--unit-id", "U1", "--wait-lock", "0").expect("REFUSED")
    assert str(process.pid) in busy.body["holder"]
    kill(process)
    until(lambda: not alive(run), "the tree is gone")
    finish(start(run, "resume", "--run-id", "r1", "--wait-lock", "0")).expect("RESUMED")
