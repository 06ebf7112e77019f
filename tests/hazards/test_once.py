"""Row 45: after any restart the evidence decides (parent, tree, job, attempt), so that nothing is done twice."""

from __future__ import annotations

import shutil

from tests.hazards.support import case, kill, records, resume, start_integrate, terminalize, until
from tests.host import Host


def _applied(host: Host, *, verified: bool) -> str:
    """Take unit U1 by hand to `integrated` or `verified`; the lock's token."""
    names = ("--run-id", "r1", "--unit-id", "U1")
    token: str = host.call("integration-acquire", *names).expect("ACQUIRED").body["lock_token"]
    transport = host.call("preflight", *names, "--lock-token", token).expect("PREFLIGHT_OK").body["transport"]
    host.git("cherry-pick", "--no-commit", transport["commit"])
    host.call("mark-applied", *names, "--lock-token", token).expect("APPLIED")
    if verified:
        host.call("mark-verified", *names, "--lock-token", token, "--evidence-digest", "0" * 64).expect("VERIFIED")
    return token


def test_a_commit_made_before_the_record_of_it_is_found_and_never_made_again(run: Host) -> None:
    """Killed between `update-ref` and the journal: HEAD's parent and tree prove that it is the unit's commit."""
    run.pending("U1", {"f": "unit\n"})
    first = run.head
    _applied(run, verified=True)
    run.git("commit", "-qm", "by hand")
    (run.repo / ".git/CHERRY_PICK_HEAD").unlink(missing_ok=True)
    made = run.head
    actions = [action["action"] for action in resume(run).expect("RESUMED").body["actions"]]
    assert actions == ["commit-reconciled", "committed-unit-finalized"]
    assert resume(run).expect("RESUMED").body["actions"] == []
    assert run.head == made
    assert run.git("rev-list", "--count", f"{first}..HEAD") == "1"
    assert run.unit()["integration"]["canonical_commit"]["commit"] == made


def test_a_commit_of_somebody_else_is_never_taken_for_the_units(run: Host) -> None:
    """Neither another tree on the same parent, nor the same tree as a merge."""
    run.pending("U1", {"f": "unit\n"})
    _applied(run, verified=True)
    base, tree = run.head, run.git("write-tree")
    side = run.git("commit-tree", f"{base}^{{tree}}", "-m", "side")
    other = run.git("hash-object", "-w", "-t", "tree", "--stdin")
    for commit in (
        run.git("commit-tree", tree, "-p", base, "-p", side, "-m", "a merge"),
        run.git("commit-tree", tree, "-m", "a root"),
        run.git("commit-tree", other, "-p", base, "-m", "another tree"),
    ):
        with case(run.git("log", "-1", "--format=%s", commit)):
            run.git("update-ref", "HEAD", commit)
            resume(run).expect("BLOCKED")
            assert run.head == commit
            assert run.unit()["state"] == "verified"
    run.git("update-ref", "HEAD", base)
    resume(run).expect("RESUMED")
    assert run.git("status", "--porcelain") == ""


def test_a_restart_in_the_middle_never_resets_what_was_done(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    attempts = run.unit()["attempts"]
    process = start_integrate(run, "sh", "-c", "touch late; exec sleep 1000")
    until(lambda: (run.repo / "late").exists(), "the verification runs")
    kill(process)
    for _ in range(2):
        resume(run).expect("RESUMED")
        assert [a["attempt_id"] for a in run.unit()["attempts"]] == [a["attempt_id"] for a in attempts]
        terminalize(run)
        assert len(records(run, "transport-pinned")) == 1
    run.integrate().expect("UNIT_COMMITTED")
    run.integrate().expect("REFUSED")
    assert run.git("log", "--format=%s") == "feat: U1\nfirst"


def test_an_attempt_is_never_paid_for_twice(run: Host) -> None:
    """A second job for the same attempt is refused before it can send anything anywhere."""
    prepared = run.prepare().expect("PREPARED").body
    first = run.write_job(prepared)
    run.authorize(prepared, first).expect("AUTHORIZED")
    second = run.write_job(prepared, job="second")
    reply = run.authorize(prepared, second).expect("AMBIGUOUS")
    assert reply.body["job_id"] == first
    resume(run).expect("RESUMED")
    run.authorize(prepared, second).expect("AMBIGUOUS")
    assert run.authorize(prepared, first).expect("AUTHORIZED").body["resumed"] is True
    run.prepare("U1").expect("PREPARED")
    assert len(run.unit()["attempts"]) == 1


def test_a_file_that_can_be_derived_is_never_missed(run: Host) -> None:
    run.pending()
    for lost in ("manifest.json", "manifest.lock"):
        (run.run_dir() / lost).unlink()
        resume(run).expect("RESUMED")
    run.integrate().expect("UNIT_COMMITTED")
    assert run.unit()["state"] == "cleaned"


def test_a_run_folder_deleted_under_its_lock_never_blocks_the_branch_for_ever(run: Host) -> None:
    """Section 18 row 16."""
    run.pending("U1", {"f": "unit\n"})
    run.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED")
    shutil.rmtree(run.run_dir())
    run.init("r2").expect("READY")
    run.pending("V1", {"f": "other\n"}, run="r2")
    run.integrate("V1", run="r2").expect("UNIT_COMMITTED")
    assert records(run, "integration-lock-taken-over", run="r2")
