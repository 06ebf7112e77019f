"""Rows 20, 23, 31-33: repositories of every make, and environments that point elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hazards.support import Trap, abandon, resume, worktrees
from tests.host import Host


def _hidden(host: Host, names: dict[str, str]) -> Callable[..., str]:
    """The test's own git, without the variables that the controller is to inherit."""
    plain = host.git

    def git(*args: str, **more: Any) -> str:
        kept = {name: host.env.pop(name) for name in names}
        try:
            return plain(*args, **more)
        finally:
            host.env.update(kept)

    return git


def test_inherited_git_variables_never_lead_to_another_repository(host: Host) -> None:
    """Row 20: as when a hook of another repository calls the host; git and verification alike."""
    other = host.base / "other"
    other.mkdir()
    host.git("init", "-q", cwd=other)
    (other / "theirs").write_text("theirs\n")
    host.git("add", "-A", cwd=other)
    trap = Trap(host.base / "trap")
    names = {
        "GIT_DIR": str(other / ".git"),
        "GIT_COMMON_DIR": str(other / ".git"),
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": str(other / ".git/index"),
        "GIT_OBJECT_DIRECTORY": str(other / ".git/objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(other / ".git/objects"),
        "GIT_NAMESPACE": "elsewhere",
        "GIT_PREFIX": "dir/",
        "GIT_CEILING_DIRECTORIES": str(host.base),
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(trap.program),
        "GIT_CONFIG_KEY_1": "filter.x.clean",
        "GIT_CONFIG_VALUE_1": str(trap.program),
        "GIT_CONFIG_PARAMETERS": "'core.bare=true'",
        "GIT_EXTERNAL_DIFF": str(trap.program),
        "GIT_SSH_COMMAND": str(trap.program),
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_REPLACE_REF_BASE": "refs/heads/",
        "GIT_GRAFT_FILE": str(other / "theirs"),
        "GIT_SHALLOW_FILE": str(other / "theirs"),
        "GIT_ATTR_SOURCE": "HEAD",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_TRACE": str(host.base / "git-trace"),
    }
    index = (other / ".git/index").read_bytes()
    host.git = _hidden(host, names)  # type: ignore[method-assign]
    host.env.update(names)
    host.init().expect("READY")
    host.pending("U1", {"f": "unit\n"})
    seen = host.base / "seen"
    verify = f"env | grep -o '^GIT_[A-Z_0-9]*' > {seen}; git diff --cached --name-only >> {seen}; exit 1"
    host.integrate("U1", ["sh", "-c", verify]).expect("BLOCKED")
    # Who the user is and where their own configuration lies stays.
    assert sorted(seen.read_text().split()) == ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "f"]
    host.integrate().expect("UNIT_COMMITTED")
    assert (host.repo / "f").read_text() == "unit\n"
    assert (other / ".git/index").read_bytes() == index
    assert sorted(os.listdir(other)) == [".git", "theirs"]
    assert not (other / ".git/refs/ce-work").exists()
    assert trap.sprung == []


def test_a_temporary_folder_that_is_a_link_is_the_same_folder(host: Host) -> None:
    """Row 23: paths are compared as places, not as texts."""
    (host.base / "real-runs").mkdir(mode=0o700)
    (host.base / "link").symlink_to(host.base / "real-runs")
    (host.base / "repo-link").symlink_to(host.repo)
    host.runs = host.base / "link" / "runs"
    host.env["CE_WORK_RUNS_ROOT"] = str(host.runs)
    real, host.repo = host.repo, host.base / "repo-link"
    host.init().expect("READY")
    host.repo = real
    host.pending()
    assert worktrees(host) == [str(host.base / "real-runs/runs/r1/units/U1/workspace")]
    # The same run under its other name.
    host.env["CE_WORK_RUNS_ROOT"] = str(host.base / "real-runs/runs")
    host.integrate().expect("UNIT_COMMITTED")
    assert worktrees(host) == []


def test_a_linked_worktree_is_a_canonical_checkout_like_any_other(host: Host) -> None:
    main = host.repo
    linked = host.base / "linked"
    host.git("worktree", "add", "-q", "-b", "feature", str(linked))
    (main / "f").write_text("user, in the main worktree\n")
    host.repo = linked
    host.init().expect("READY")
    host.pending("U1", {"f": "unit\n", "new": "unit\n"})
    (linked / "f").write_text("user\n")
    host.integrate().expect("BLOCKED")
    assert (linked / "f").read_text() == "user\n"
    host.git("checkout", "-q", "f")
    host.integrate("U1", ["sh", "-c", "echo x > f; exit 1"]).expect("BLOCKED")
    assert (linked / "f").read_text() == "one\n"
    host.integrate().expect("UNIT_COMMITTED")
    assert host.git("log", "-1", "--format=%s", "feature") == "feat: U1"
    assert host.git("log", "-1", "--format=%s", "main") == "first"
    assert (main / "f").read_text() == "user, in the main worktree\n"
    assert host.git("status", "--porcelain") == ""
    assert worktrees(host) == [str(linked)]


def _sparse(host: Host) -> None:
    host.make_repo({"a/x": "x\n", "b/y": "y\n", "b/z": "z\n", "top": "top\n"})
    host.git("sparse-checkout", "set", "a")
    host.init().expect("READY")


def test_files_outside_a_sparse_cone_are_never_taken_for_deleted(bare_host: Host) -> None:
    host = bare_host
    _sparse(host)
    transport = host.pending("U1", {"a/x": "unit\n", "a/new": "unit\n", "b/new": "unit\n"})
    assert transport["changed_paths"] == ["a/new", "a/x", "b/new"]
    host.integrate("U1", ["false"]).expect("BLOCKED")
    host.integrate().expect("UNIT_COMMITTED")
    assert host.git("ls-tree", "-r", "--name-only", "HEAD").split() == ["a/new", "a/x", "b/new", "b/y", "b/z", "top"]
    assert sorted(os.listdir(host.repo)) == [".git", "a", "top"], "a new file outside the cone stays outside"
    assert host.git("status", "--porcelain") == ""


def test_work_outside_a_sparse_cone_is_never_dropped(bare_host: Host) -> None:
    """Row 31: `git add -A` leaves it out with exit 1."""
    host = bare_host
    _sparse(host)
    transport = host.pending("U1", {"b/new": "unit\n", "b/y": "unit\n"})
    assert transport["changed_paths"] == ["b/new", "b/y"]
    reply = host.integrate().expect("BLOCKED")
    assert reply.body["paths"] == ["b/y"], "an entry that git does not look at is refused by name"
    host.git("sparse-checkout", "disable")
    host.integrate().expect("UNIT_COMMITTED")
    assert host.git("show", "HEAD:b/new") == "unit"


def _clone(host: Host, *options: str) -> Path:
    """Make the host's repository a clone of what it was; where that was."""
    source = host.repo
    host.git("config", "uploadpack.allowFilter", "true")
    host.git("clone", "-q", *options, source.as_uri(), str(host.base / "clone"))
    host.repo = host.base / "clone"
    return source


def test_a_shallow_clone_needs_no_merge_base(host: Host) -> None:
    """Row 32; and unshallowing it meanwhile makes it no other repository."""
    (host.repo / "f").write_text("second\n")
    host.git("commit", "-qam", "second")
    _clone(host, "--depth", "1")
    assert host.git("rev-parse", "--is-shallow-repository") == "true"
    host.init().expect("READY")
    host.pending("U1", {"f": "unit\n"})
    host.git("fetch", "-q", "--unshallow")
    host.integrate().expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")


def test_a_partial_clone_without_its_origin_is_usable_as_far_as_it_goes(bare_host: Host) -> None:
    """Row 33: what is there is enough for a sparse workspace."""
    host = bare_host
    host.make_repo({"a/x": "x\n", "b/y": "y\n", "top": "top\n"})
    source = _clone(host, "--filter=blob:none", "--no-checkout")
    host.git("sparse-checkout", "set", "a")
    host.git("checkout", "-q", "main")
    source.rename(host.base / "offline")
    host.init().expect("READY")
    assert host.pending("U1", {"a/x": "unit\n"})["changed_paths"] == ["a/x"]
    host.integrate().expect("UNIT_COMMITTED")


def test_a_partial_clone_that_lacks_the_base_offline_says_so_and_leaves_nothing(bare_host: Host) -> None:
    host = bare_host
    host.make_repo({"a": "a\n", "b": "b\n"})
    source = _clone(host, "--filter=blob:none", "--no-checkout")
    host.git("read-tree", "HEAD")
    host.git("update-index", "--skip-worktree", "a", "b")
    source.rename(host.base / "offline")
    host.init().expect("READY")
    reply = host.prepare().expect("BLOCKED")
    assert "promisor remote" in reply.stderr
    assert worktrees(host) == []
    (host.base / "offline").rename(source)
    host.prepare().expect("PREPARED")


def test_a_repository_that_was_moved_is_never_worked_on(run: Host) -> None:
    run.pending()
    elsewhere = run.base / "elsewhere"
    run.repo.rename(elsewhere)
    reply = run.integrate().expect("BLOCKED")
    assert str(run.repo) in reply.stderr
    assert run.call("status", "--run-id", "r1").expect("STATUS").body["repository"]["problem"]["word"] == "BLOCKED"
    # Another repository in its place is not it.
    run.repo.mkdir()
    run.git("init", "-q")
    (run.repo / "f").write_text("another\n")
    run.git("add", "-A")
    run.git("commit", "-qm", "another")
    run.integrate().expect("BLOCKED")
    assert (run.repo / "f").read_text() == "another\n"
    run.repo.rename(run.base / "another")
    elsewhere.rename(run.repo)
    run.integrate().expect("UNIT_COMMITTED")


def test_a_checkout_on_another_branch_is_never_written_to(run: Host) -> None:
    run.pending()
    run.git("checkout", "-q", "-b", "other")
    before = run.fingerprint()
    reply = run.integrate().expect("BLOCKED")
    assert reply.body["remedy"] == "git checkout main"
    assert run.fingerprint() == before
    assert run.call("status", "--run-id", "r1").expect("STATUS").body["repository"]["problem"]
    run.git("checkout", "-q", "--detach")
    run.integrate().expect("BLOCKED")
    run.git("checkout", "-q", "main")
    run.integrate().expect("UNIT_COMMITTED")


def test_a_rebase_or_merge_of_the_user_is_never_broken_into(run: Host) -> None:
    run.pending()
    run.git("checkout", "-q", "-b", "side")
    (run.repo / "f").write_text("side\n")
    run.git("commit", "-qam", "side")
    run.git("checkout", "-q", "main")
    run.git("merge", "-q", "--no-ff", "--no-commit", "-s", "ours", "side")
    before = run.fingerprint()
    reply = run.integrate().expect("BLOCKED")
    assert reply.body["operation"] == "MERGE_HEAD"
    assert run.fingerprint() == before
    assert (run.repo / ".git/MERGE_HEAD").exists()


def test_a_cleanup_never_removes_a_branch_or_worktree_of_the_same_commit(run: Host) -> None:
    """Rows 8 and 10: only the exact transport that the host names is given up, and only our ref of it."""
    commit = run.pending("U1", {"new": "only copy\n"})["commit"]
    workspace = run.run_dir() / "units/U1/workspace"
    for proof in ((), ("--expect-transport", run.head), ("--expect-job", "job-U1-attempt-1")):
        run.call("cleanup", "--run-id", "r1", "--unit-id", "U1", "--abandon", *proof).expect("REFUSED")
        run.call("cleanup", "--run-id", "r1", "--unit-id", "U1").expect("REFUSED")
        assert (workspace / "new").read_text() == "only copy\n"
    run.git("branch", "keep", commit)
    abandon(run).expect("CLEANED")
    assert run.git("rev-parse", "keep") == commit
    assert run.git("for-each-ref", "refs/ce-work") == ""


def test_an_unverified_unit_is_never_cleaned_away(run: Host) -> None:
    """Row 9: a failed verification keeps workspace and transport."""
    commit = run.pending("U1", {"new": "only copy\n"})["commit"]
    run.integrate("U1", ["false"]).expect("BLOCKED")
    run.call("cleanup", "--run-id", "r1", "--unit-id", "U1").expect("REFUSED")
    assert run.git("cat-file", "-t", commit) == "commit"
    assert (run.run_dir() / "units/U1/workspace/new").exists()
    resume(run).expect("RESUMED")
    assert (run.run_dir() / "units/U1/workspace/new").exists()
