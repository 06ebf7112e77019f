"""References are written by Git's own protocol: whatever git does afterwards finds what it would have written itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from controller.errors import Blocked
from controller.git import Git
from controller.ref_file import Refs
from tests.host import Host

BRANCH = "refs/heads/main"
TRANSPORT = "refs/ce-work/0123/4567"


@pytest.fixture(autouse=True)
def _user(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "HOME"):
        monkeypatch.setenv(name, host.env[name])


def refs(host: Host, checkout: Path | None = None) -> Refs:
    """The references of a checkout, for a run."""
    at = checkout or host.repo
    git_dir = host.git("rev-parse", "--absolute-git-dir", cwd=at)
    common = host.git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=at)
    run = host.base / "run"
    run.mkdir(exist_ok=True)
    return Refs(Git(at), Path(git_dir), Path(common), run)


def child(host: Host) -> str:
    """A new commit on HEAD that no reference names."""
    return host.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "next")


def test_a_moved_branch_is_in_both_logs_as_git_writes_them(host: Host) -> None:
    old, new = host.head, child(host)
    refs(host).move_branch(BRANCH, new, old, "commit: words\nand  more\tof them")
    host.git("update-ref", "-m", "commit: words and more of them", "refs/heads/other", new)
    assert host.head == new
    for name in ("HEAD@{0}", "main@{0}"):
        assert host.git("rev-parse", name) == new
    assert host.git("rev-parse", "HEAD@{1}") == old
    subjects = [host.git("reflog", "-1", "--format=%gn <%ge> %gs", name) for name in ("HEAD", "main")]
    assert subjects == ["Test <test@example.invalid> commit: words and more of them"] * 2
    assert host.git("fsck", "--no-dangling") == ""
    assert (
        sorted(path.name for path in (host.repo / ".git").iterdir() if "lock" in path.name or "unit" in path.name) == []
    )


def test_a_branch_that_is_only_packed_is_moved(host: Host) -> None:
    host.git("pack-refs", "--all", "--prune")
    assert not (host.repo / ".git" / BRANCH).exists()
    old, new = host.head, child(host)
    refs(host).move_branch(BRANCH, new, old, "commit: x")
    assert host.head == new
    host.git("gc", "-q")
    assert host.head == new


def test_a_branch_of_a_linked_worktree_is_moved_with_its_own_head_log(host: Host) -> None:
    linked = host.base / "linked"
    host.git("worktree", "add", "-q", "-b", "topic", str(linked))
    old, new = host.head, child(host)
    refs(host, linked).move_branch("refs/heads/topic", new, old, "commit: linked")
    assert host.git("rev-parse", "HEAD", cwd=linked) == new
    assert host.git("reflog", "-1", "--format=%gs", "HEAD", cwd=linked) == "commit: linked"
    assert host.git("reflog", "-1", "--format=%gs", "HEAD") != "commit: linked"
    assert host.head == old


def test_somebody_else_s_commit_is_never_taken_off_the_branch(host: Host) -> None:
    old, mine = host.head, child(host)
    host.git("commit", "-q", "--allow-empty", "-m", "the user's")
    theirs = host.head
    with pytest.raises(Blocked):
        refs(host).move_branch(BRANCH, mine, old, "commit: late")
    assert host.head == theirs
    host.git("checkout", "-q", "-b", "elsewhere")
    with pytest.raises(Blocked):
        refs(host).move_branch(BRANCH, mine, theirs, "commit: not checked out")
    assert host.git("rev-parse", BRANCH) == theirs


@pytest.mark.parametrize("name", ["HEAD.lock", "refs/heads/main.lock"])
def test_a_lock_of_another_program_stops_a_move_and_stays(host: Host, name: str) -> None:
    path = host.repo / ".git" / name
    path.write_text("theirs")
    old = host.head
    with pytest.raises(Blocked, match=name.rpartition("/")[2]):
        refs(host).move_branch(BRANCH, child(host), old, "commit: x")
    assert (host.head, path.read_text()) == (old, "theirs")


def test_a_user_who_wants_no_logs_gets_none(host: Host) -> None:
    host.git("config", "core.logAllRefUpdates", "false")
    for log in (host.repo / ".git" / "logs").rglob("*"):
        if log.is_file():
            log.unlink()
    old, new = host.head, child(host)
    refs(host).move_branch(BRANCH, new, old, "commit: x")
    assert host.head == new
    assert [log for log in (host.repo / ".git" / "logs").rglob("*") if log.is_file()] == []


def test_the_mode_that_the_repository_is_shared_with_is_kept(host: Host) -> None:
    (host.repo / ".git" / BRANCH).chmod(0o664)
    refs(host).move_branch(BRANCH, child(host), host.head, "commit: x")
    assert stat.S_IMODE((host.repo / ".git" / BRANCH).stat().st_mode) == 0o664


def test_a_packed_transport_is_removed_and_every_other_reference_stays(host: Host) -> None:
    new = child(host)
    own = refs(host)
    own.create(TRANSPORT, new, None)
    host.git("tag", "-a", "annotated", "-m", "x")
    host.git("update-ref", "refs/ce-work/other/one", new)
    host.git("pack-refs", "--all", "--prune")
    before = host.git("for-each-ref").split("\n")
    own.delete(TRANSPORT, new)
    assert host.git("for-each-ref").split("\n") == [line for line in before if TRANSPORT not in line]
    assert host.git("fsck", "--no-dangling") == ""
    assert host.git("rev-parse", "annotated^{commit}") == host.head


def test_a_transport_that_points_elsewhere_is_neither_moved_nor_removed(host: Host) -> None:
    own, new = refs(host), child(host)
    host.git("update-ref", TRANSPORT, host.head)
    with pytest.raises(Blocked):
        own.create(TRANSPORT, new, None)
    with pytest.raises(Blocked):
        own.delete(TRANSPORT, new)
    assert host.git("rev-parse", TRANSPORT) == host.head
    own.create(TRANSPORT, new, host.head)
    assert host.git("rev-parse", TRANSPORT) == new


def test_a_symbolic_reference_in_the_way_never_moves_what_it_points_to(host: Host) -> None:
    own, old = refs(host), host.head
    host.git("symbolic-ref", TRANSPORT, BRANCH)
    new = child(host)
    with pytest.raises(Blocked):
        own.create(TRANSPORT, new, None)
    with pytest.raises(Blocked):
        own.delete(TRANSPORT, old)
    assert host.head == old
    assert host.git("symbolic-ref", TRANSPORT) == BRANCH
