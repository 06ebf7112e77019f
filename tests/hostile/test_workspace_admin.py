"""A worker that tampers with what makes its folder a worktree: `.git`, HEAD, index, its own registration.

launcher.md section 15, W3, W7, W10 and W11: every public gate looked at there ran the worker's programs or believed its
index.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hazards.support import Trap, abandon, case, terminalize, worktrees
from tests.host import Host
from tests.hostile.support import (
    SAFE,
    Backup,
    admin,
    blob,
    give_up,
    outcome,
    poison,
    quiet,
    safe_git,
    transport_of,
    worker,
)

Work = Callable[[Host, Trap, Path], None]


def _own_repository(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / ".git").unlink()
    worker(host, "git", "init", "-q", cwd=workspace)
    poison(host, trap, workspace)
    (workspace / ".git/info/attributes").write_text("* filter=evil merge=evil diff=evil\n")
    for name in ("clean", "smudge", "process"):
        worker(host, "git", *SAFE, "config", f"filter.evil.{name}", str(trap.program), cwd=workspace)


def _repointed(host: Host, trap: Trap, workspace: Path) -> None:
    _own_repository(host, trap, workspace)
    (workspace / ".git").rename(host.base / "elsewhere.git")
    (workspace / ".git").write_text(f"gitdir: {host.base / 'elsewhere.git'}\n")


def _repointed_at_canonical(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / ".git").write_text(f"gitdir: {host.repo / '.git'}\n")


def _deleted(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / ".git").unlink()


def _a_link(host: Host, trap: Trap, workspace: Path) -> None:
    own = admin(host, workspace)
    (workspace / ".git").unlink()
    (workspace / ".git").symlink_to(own)


def _a_fifo(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / ".git").unlink()
    os.mkfifo(workspace / ".git")


def _huge(host: Host, trap: Trap, workspace: Path) -> None:
    with open(workspace / ".git", "r+b") as file:
        file.truncate(1 << 40)


def _second_line(host: Host, trap: Trap, workspace: Path) -> None:
    with open(workspace / ".git", "a") as file:
        file.write("gitdir: elsewhere\n")


def _on_a_branch(host: Host, trap: Trap, workspace: Path) -> None:
    worker(host, "git", "checkout", "-q", "-b", "mine", cwd=workspace)


def _in_a_merge(host: Host, trap: Trap, workspace: Path) -> None:
    (admin(host, workspace) / "MERGE_HEAD").write_text(host.head + "\n")


def _unregistered(host: Host, trap: Trap, workspace: Path) -> None:
    shutil.rmtree(admin(host, workspace))


def _moved_registration(host: Host, trap: Trap, workspace: Path) -> None:
    (admin(host, workspace) / "gitdir").write_text(f"{host.base}/elsewhere/.git\n")


def _registered_twice(host: Host, trap: Trap, workspace: Path) -> None:
    shutil.copytree(admin(host, workspace), host.repo / ".git/worktrees/another")


def _waiting_registration(host: Host, trap: Trap, workspace: Path) -> None:
    folder = host.repo / ".git/worktrees/waits"
    folder.mkdir()
    os.mkfifo(folder / "gitdir")


BLOCKED: dict[str, tuple[Work, str]] = {
    "a repository of its own": (_own_repository, "no longer points at its own registration"),
    "a pointer to another repository": (_repointed, "no longer points at its own registration"),
    "a pointer to the canonical repository": (_repointed_at_canonical, "no longer points at its own registration"),
    "no pointer": (_deleted, "no longer points at its own registration"),
    "a link": (_a_link, "no longer points at its own registration"),
    "a FIFO": (_a_fifo, "no longer points at its own registration"),
    "a file without end": (_huge, "no longer points at its own registration"),
    "a pointer of two lines": (_second_line, "no longer points at its own registration"),
    "a branch": (_on_a_branch, "not detached"),
    "a merge": (_in_a_merge, "MERGE_HEAD"),
    "no registration": (_unregistered, "not a registered worktree"),
    "a registration of another place": (_moved_registration, "not a registered worktree"),
    "two registrations": (_registered_twice, "registered more than once"),
}


def test_a_workspace_that_is_no_longer_what_was_prepared_is_never_pinned(run: Host, trap: Trap) -> None:
    workspace = Path(run.author("U1", {"f": "worker\n"})["workspace"])
    own = admin(run, workspace)
    before = run.fingerprint()
    backup = Backup(workspace, own.parent)
    for way, (tamper, phrase) in BLOCKED.items():
        with case(way):
            tamper(run, trap, workspace)
            with quiet(trap):
                reply = terminalize(run).expect("BLOCKED")
            assert phrase in reply.stderr
            assert run.unit()["transport"]["commit"] is None
            backup.put_back()
            if (run.base / "elsewhere.git").exists():
                shutil.rmtree(run.base / "elsewhere.git")
    run.git("branch", "-D", "mine")
    assert run.fingerprint() == before
    backup.forget()
    terminalize(run).expect("INTEGRATION_PENDING")
    assert transport_of(run)["changed_paths"] == ["f"]


@pytest.mark.parametrize("way", ["a repository of its own", "a link", "no registration"])
def test_a_workspace_that_is_no_longer_what_was_prepared_can_be_given_up(run: Host, trap: Trap, way: str) -> None:
    outcome(run, trap, lambda workspace: BLOCKED[way][0](run, trap, workspace)).expect("BLOCKED")
    if way == "a repository of its own":
        give_up(run, trap)
    else:
        abandon(run).expect("CLEANED")
    assert worktrees(run) == []
    assert not (run.run_dir() / "units/U1").exists()


def test_a_registration_that_makes_git_wait_for_ever_is_refused_by_name(run: Host, trap: Trap) -> None:
    reply = outcome(run, trap, lambda workspace: _waiting_registration(run, trap, workspace)).expect("BLOCKED")
    assert str(run.repo / ".git/worktrees/waits/gitdir") in reply.stderr
    run.prepare("U2").expect("BLOCKED")
    shutil.rmtree(run.repo / ".git/worktrees/waits")
    terminalize(run).expect("INTEGRATION_PENDING")


def _bits(host: Host, trap: Trap, workspace: Path) -> None:
    worker(host, "git", "update-index", "--assume-unchanged", "f", cwd=workspace)
    worker(host, "git", "update-index", "--skip-worktree", "dir/g", cwd=workspace)


def _garbage_index(host: Host, trap: Trap, workspace: Path) -> None:
    (admin(host, workspace) / "index").write_bytes(b"garbage")
    (admin(host, workspace) / "index.lock").write_bytes(b"")


def _staged_otherwise(host: Host, trap: Trap, workspace: Path) -> None:
    """W7: the index says one thing, the disk another; only what is on disk counts."""
    (workspace / "staged-only").write_text("smuggled\n")
    worker(host, "git", "add", "staged-only", cwd=workspace)
    (workspace / "staged-only").unlink()
    worker(host, "git", "rm", "-q", "--cached", ".gitignore", cwd=workspace)


def _committed_otherwise(host: Host, trap: Trap, workspace: Path) -> None:
    """W7, W15: commits of the worker are squashed into what is on disk, and lost to nobody."""
    (workspace / "smuggled").write_text("smuggled\n")
    worker(host, "git", "add", "-A", cwd=workspace)
    worker(host, "git", "commit", "-qm", "worker", cwd=workspace)
    worker(host, "git", "rm", "-q", "smuggled", cwd=workspace)
    worker(host, "git", "commit", "-qam", "worker again", cwd=workspace)


def _all_at_once(host: Host, trap: Trap, workspace: Path) -> None:
    _committed_otherwise(host, trap, workspace)
    _staged_otherwise(host, trap, workspace)
    _bits(host, trap, workspace)


def _lying_clock(host: Host, trap: Trap, workspace: Path) -> None:
    """W10: the same size and time stamp, with a configuration that looks at nothing else."""
    for name, value in (("core.trustctime", "false"), ("core.checkStat", "minimal"), ("core.ignoreStat", "true")):
        worker(host, "git", "config", name, value, cwd=workspace)
    for name in ("f", "dir/g"):
        status = os.stat(workspace / name)
        (workspace / name).write_text((workspace / name).read_text().upper())
        os.utime(workspace / name, ns=(status.st_atime_ns, status.st_mtime_ns))


def _sparse(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / "kept").write_text((workspace / ".gitignore").read_text())
    worker(host, "git", "sparse-checkout", "set", "nothing", cwd=workspace)


def _config_of_its_own(host: Host, trap: Trap, workspace: Path) -> None:
    worker(host, "git", "config", "extensions.worktreeConfig", "true", cwd=workspace)
    poison(host, trap, workspace, "--worktree")


def _fake_common_directory(host: Host, trap: Trap, workspace: Path) -> None:
    fake = host.base / "fake-common"
    shutil.copytree(host.repo / ".git", fake)
    (admin(host, workspace) / "commondir").write_text(f"{fake}\n")
    poison(host, trap, workspace)


PENDING: dict[str, Work] = {
    "index, bits and commits that differ": _all_at_once,
    "a garbage index": _garbage_index,
    "time stamps that lie": _lying_clock,
    "a configuration of the worktree": _config_of_its_own,
    "a common directory of its own": _fake_common_directory,
}


@pytest.mark.parametrize("way", PENDING)
def test_what_is_on_disk_is_what_is_pinned_whatever_git_says_in_the_workspace(run: Host, trap: Trap, way: str) -> None:
    safe_git(run)

    def work(workspace: Path) -> None:
        PENDING[way](run, trap, workspace)
        text = "ONE\n" if way == "time stamps that lie" else "worker\n"
        if way != "time stamps that lie":
            (workspace / "f").write_text(text)
            (workspace / "dir/g").write_text(text)
        (workspace / "new").write_text("new\n")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    assert sorted(transport_of(run)["changed_paths"]) == ["dir/g", "f", "new"]
    assert blob(run, "f") == (b"ONE\n" if way == "time stamps that lie" else b"worker\n")
    assert run.git("rev-list", "--count", f"{run.head}..{transport_of(run)['commit']}") == "1"
    if way in ("a garbage index", "a common directory of its own"):
        with quiet(trap):
            run.integrate().expect("UNIT_COMMITTED")
        assert worktrees(run) == []


def test_a_sparse_checkout_made_by_the_worker_is_never_taken_for_less_than_deletion(run: Host, trap: Trap) -> None:
    """Files that stood there at `prepare` and are gone are deleted, whoever took them away and how."""
    outcome(run, trap, lambda workspace: _sparse(run, trap, workspace)).expect("INTEGRATION_PENDING")
    assert "dir/g" in transport_of(run)["changed_paths"]
    abandon(run).expect("CLEANED")


def test_a_workspace_given_away_to_others_is_refused_and_goes_on_when_it_is_private_again(
    run: Host, trap: Trap
) -> None:
    reply = outcome(run, trap, lambda workspace: workspace.chmod(0o777)).expect("UNREADABLE")
    assert "0777" in reply.stderr
    (run.run_dir() / "units/U1/workspace").chmod(0o700)
    terminalize(run).expect("INTEGRATION_PENDING")


def test_a_workspace_swapped_for_a_link_is_never_followed(run: Host, trap: Trap) -> None:
    precious = run.base / "precious"
    precious.mkdir(mode=0o700)
    (precious / "keep").write_text("keep\n")

    def work(workspace: Path) -> None:
        workspace.rename(run.base / "moved-away")
        workspace.symlink_to(precious)

    assert outcome(run, trap, work).word in ("BLOCKED", "UNREADABLE")
    abandon(run).expect("CLEANED")
    assert (precious / "keep").read_text() == "keep\n"
