"""A worker that reaches for the canonical checkout itself: what it wrote there is refused by name, never committed.

Hazard row 36 and launcher.md section 15, W13. The divergence is named at the next `preflight` or `prepare`; that
`terminalize` names it already is part of the later gate (README.md).
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.hazards.support import Trap, case, resume, terminalize
from tests.host import Host
from tests.hostile.support import quiet, transport_of, worker


def test_a_write_into_the_canonical_checkout_is_named_and_never_committed(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        main = Path(worker(run, "git", "worktree", "list", cwd=workspace).split()[0])
        (main / "f").write_text("worker, in the wrong place\n")
        (main / "planted").write_text("planted\n")
        (main / "dir/g").unlink()
        (workspace / "new").write_text("new\n")

    run.author("U1", work)
    terminalize(run).expect("INTEGRATION_PENDING")
    assert transport_of(run)["changed_paths"] == ["new"]
    before = run.fingerprint()
    reply = run.integrate().expect("BLOCKED")
    assert reply.body["dirty_paths"] == ["dir/g", "f", "planted"]
    assert run.prepare("U2").expect("BLOCKED").body["dirty_paths"] == ["dir/g", "f", "planted"]
    resume(run).expect("RESUMED")
    assert run.fingerprint() == before, "nobody but the user decides what to do with it"
    run.git("checkout", "-q", "--", ".")
    (run.repo / "planted").unlink()
    run.integrate().expect("UNIT_COMMITTED")
    assert (run.repo / "f").read_text() == "one\n"


def test_a_write_through_a_hard_link_is_named_and_never_committed(run: Host, trap: Trap) -> None:
    """W13."""

    def work(workspace: Path) -> None:
        (workspace / "dir/g").unlink()
        os.link(run.repo / "dir/g", workspace / "dir/g")
        (workspace / "dir/g").write_text("through the link\n")
        os.link(run.repo / "f", workspace / "copy")

    run.author("U1", work)
    terminalize(run).expect("INTEGRATION_PENDING")
    assert run.integrate().expect("BLOCKED").body["dirty_paths"] == ["dir/g"]
    run.git("checkout", "-q", "--", "dir/g")
    run.integrate().expect("UNIT_COMMITTED")
    assert [os.stat(run.repo / name).st_nlink for name in ("copy", "dir/g")] == [1, 1]


def test_a_tampered_canonical_index_is_never_committed(run: Host, trap: Trap) -> None:
    run.pending("U1", {"f": "worker\n"})
    main = run.repo
    for what, named in (("staged", "planted"), ("index bits", "f"), ("index.lock", "index.lock"), ("half", "dir/g")):
        with case(what):
            if what == "staged":
                (main / "planted").write_text("planted\n")
                worker(run, "git", "add", "planted", cwd=main)
                (main / "planted").unlink()
            elif what == "index bits":
                (main / "f").write_text("hidden\n")
                worker(run, "git", "update-index", "--assume-unchanged", "f", cwd=main)
            elif what == "index.lock":
                (main / ".git/index.lock").write_bytes(b"")
            else:
                data = (main / ".git/index").read_bytes()
                (main / ".git/index").write_bytes(data[: len(data) // 2])
            with quiet(trap):
                reply = run.integrate().expect("BLOCKED")
            assert named in reply.stderr + str(reply.body)
            assert run.git("log", "--format=%s") == "first"
            (main / ".git/index.lock").unlink(missing_ok=True)
            (main / ".git/index").unlink()
            run.git("reset", "-q", "--hard")
    resume(run).expect("RESUMED")
    run.integrate().expect("UNIT_COMMITTED")
    assert run.git("ls-tree", "-r", "--name-only", "HEAD").split() == [".gitignore", "dir/g", "f"]


def test_an_ignored_file_planted_in_the_checkout_is_never_taken_over_by_a_unit(run: Host, trap: Trap) -> None:
    """What is ignored is not dirty: it stays, and a unit that would write there is refused by name."""

    def work(workspace: Path) -> None:
        (workspace / "new").write_text("new\n")
        (run.repo / ".git/info/exclude").write_text("*\n")
        (run.repo / "new").write_text("planted\n")

    run.author("U1", work)
    terminalize(run).expect("INTEGRATION_PENDING")
    assert run.integrate().expect("BLOCKED").body["paths"] == ["new"]
    assert (run.repo / "new").read_text() == "planted\n"


def test_work_of_one_unit_is_never_changed_by_the_worker_of_another(run: Host, trap: Trap) -> None:
    """Workspaces share a user: what U2 writes into U1's before it is pinned counts as U1's, after that nothing does."""
    first = Path(run.author("U1", {"a": "honest\n"})["workspace"])
    terminalize(run).expect("INTEGRATION_PENDING")
    pinned = transport_of(run)

    def work(workspace: Path) -> None:
        (first / "a").write_text("tampered\n")
        (first / "planted").write_text("planted\n")
        (workspace / "b").write_text("b\n")

    run.author("U2", work)
    terminalize(run, "U2").expect("INTEGRATION_PENDING")
    assert terminalize(run).body["transport"] == pinned
    run.integrate("U1").expect("UNIT_COMMITTED")
    assert (run.repo / "a").read_text() == "honest\n"
    assert not (run.repo / "planted").exists()
