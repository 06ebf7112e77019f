"""Row 27: submodules of the user stay as they are; what a worker does in one is refused by name, not lost or landed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hazards.support import abandon, case, terminalize, worktrees
from tests.host import Host


@pytest.fixture
def modules(bare_host: Host) -> Host:
    """A run in a repository with a populated submodule `sub`."""
    host = bare_host
    host.make_repo()
    upstream = host.base / "upstream"
    upstream.mkdir()
    host.git("init", "-q", cwd=upstream)
    (upstream / "s").write_text("inner\n")
    host.git("add", "-A", cwd=upstream)
    host.git("commit", "-qm", "inner", cwd=upstream)
    host.git("submodule", "--quiet", "add", str(upstream), "sub")
    host.git("commit", "-qm", "a submodule")
    host.init().expect("READY")
    return host


def test_changes_in_a_submodule_of_the_user_are_never_overlooked(modules: Host) -> None:
    """Also when the configuration tells status to look away."""
    modules.pending()
    (modules.repo / "sub/s").write_text("user\n")
    for ignore in ("none", "dirty", "all"):
        with case(ignore):
            modules.git("config", "submodule.sub.ignore", ignore)
            before = modules.fingerprint()
            assert modules.integrate().expect("BLOCKED").body["dirty_paths"] == ["sub"]
            assert modules.fingerprint() == before
    assert (modules.repo / "sub/s").read_text() == "user\n"


def test_a_clean_submodule_goes_through_a_unit_unharmed(modules: Host) -> None:
    def work(workspace: Path) -> None:
        assert list((workspace / "sub").iterdir()) == [], "a workspace has no submodule content"
        (workspace / "sub").rmdir()  # an empty folder, which no tool keeps reliably, is not the submodule
        (workspace / "new").write_text("unit\n")

    assert modules.pending("U1", work)["changed_paths"] == ["new"]
    before = modules.fingerprint()
    modules.integrate("U1", ["sh", "-c", "echo x > sub/s; exit 1"]).expect("BLOCKED")
    modules.git("checkout", "-q", "s", cwd=modules.repo / "sub")
    assert modules.fingerprint() == before
    if modules.unit()["state"] != "preserved":
        modules.call("resume", "--run-id", "r1").expect("RESUMED")
    modules.integrate().expect("UNIT_COMMITTED")
    assert modules.git("ls-files", "--stage", "sub").startswith("160000 ")
    assert modules.git("submodule", "status").lstrip().endswith("sub (heads/main)")
    assert (modules.repo / "sub/s").read_text() == "inner\n"


def _populate(workspace: Path) -> None:
    subprocess.run(["git", "submodule", "--quiet", "update", "--init"], cwd=workspace, check=True)


def _commit_inside(workspace: Path) -> None:
    _populate(workspace)
    (workspace / "sub/s").write_text("worker\n")
    git = ("git", "-c", "user.name=w", "-c", "user.email=w@example.invalid")
    subprocess.run([*git, "commit", "-qam", "inner work"], cwd=workspace / "sub", check=True)


def _loose_files(workspace: Path) -> None:
    (workspace / "sub/file").write_text("worker\n")


@pytest.mark.parametrize("work", [_commit_inside, _loose_files])
def test_work_inside_a_submodule_is_never_dropped_silently(modules: Host, work: object) -> None:
    assert callable(work)
    environment = {name: modules.env[name] for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        modules.author("U1", work)
    reply = terminalize(modules).expect("BLOCKED")
    assert "submodule state cannot be transported implicitly: sub/" in reply.stderr
    assert reply.body["paths"][0].startswith("sub/")
    # `git worktree remove` refuses a worktree with a submodule; giving up must work all the same.
    abandon(modules).expect("CLEANED")
    assert worktrees(modules) == []
    assert (modules.repo / "sub/s").read_text() == "inner\n"
    assert modules.git("status", "--porcelain") == ""


def test_a_file_in_place_of_a_submodule_never_reaches_the_checkout(modules: Host) -> None:
    def work(workspace: Path) -> None:
        (workspace / "sub").rmdir()
        (workspace / "sub").write_text("a file\n")

    modules.author("U1", work)
    reply = terminalize(modules)
    if reply.word == "INTEGRATION_PENDING":
        before = modules.fingerprint()
        reply = modules.integrate().expect("BLOCKED")
        assert modules.fingerprint() == before
    else:
        reply.expect("BLOCKED")
    assert "sub" in reply.stderr
    assert (modules.repo / "sub/s").read_text() == "inner\n"
