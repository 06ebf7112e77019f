"""A repository that is no usable canonical checkout is refused by its cause, with nothing made and nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controller.situations import Desk, begin, begin_run
from tests.host import BINDING, EGRESS, Reply


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A repository without a run."""
    return begin(tmp_path)


def _init(desk: Desk, repo: Path) -> Reply:
    brief = desk.base / "brief.md"
    brief.write_text("x\n")
    digest = "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"
    reply = desk.call(
        "init", "--run-id", "r1", "--repo", str(repo), "--prompt-brief", str(brief), "--prompt-digest", digest,
        "--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS),
    )  # fmt: skip
    assert not desk.run_dir().exists()
    return reply


def _bare(desk: Desk) -> Path:
    desk.git("clone", "-q", "--bare", str(desk.repo), str(desk.base / "bare.git"))
    return desk.base / "bare.git"


def _empty_folder(desk: Desk) -> Path:
    (desk.base / "plain").mkdir()
    return desk.base / "plain"


def _unborn(desk: Desk) -> Path:
    subprocess.run(["git", "init", "-q", str(desk.base / "unborn")], env=desk.env, check=True)
    return desk.base / "unborn"


def _detached(desk: Desk) -> Path:
    desk.git("checkout", "-q", "--detach")
    return desk.repo


def _broken_head(desk: Desk) -> Path:
    (desk.repo / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    return desk.repo


def _no_objects(desk: Desk) -> Path:
    head = desk.head
    (desk.repo / ".git" / "objects" / head[:2] / head[2:]).unlink()
    return desk.repo


@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda desk: desk.base / "no" / "where", "no/where"),
        (lambda desk: desk.repo / "f", "repo/f"),
        (_empty_folder, "not inside a Git repository"),
        (_bare, "bare"),
        (_unborn, "no commit"),
        (_broken_head, "no commit"),
        (_no_objects, ""),
        (_detached, "detached"),
        (lambda desk: desk.repo / ".git", "not inside a working tree"),
    ],
    ids=["missing", "file", "no repository", "bare", "unborn", "no branch", "damaged", "detached", ".git"],
)
def test_a_run_is_not_begun_in_what_is_no_checkout_on_a_branch(
    desk: Desk, make: Callable[[Desk], Path], phrase: str
) -> None:
    reply = _init(desk, make(desk))
    assert reply.word in ("REFUSED", "BLOCKED"), reply
    assert phrase in reply.stderr
    assert reply.body["found"] or reply.body["expected"]


def _merge(desk: Desk) -> None:
    side = desk.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "side")
    desk.git("merge", "-q", "--no-ff", "--no-commit", side)


def _rebase(desk: Desk) -> None:
    (desk.repo / ".git" / "rebase-merge").mkdir()
    (desk.repo / ".git" / "rebase-merge" / "head-name").write_text("refs/heads/main\n")


def _bisect(desk: Desk) -> None:
    (desk.repo / ".git" / "BISECT_LOG").write_text("git bisect start\n")


def _pick(desk: Desk) -> None:
    (desk.repo / ".git" / "CHERRY_PICK_HEAD").write_text(desk.head + "\n")


def _revert(desk: Desk) -> None:
    (desk.repo / ".git" / "REVERT_HEAD").write_text(desk.head + "\n")


@pytest.mark.parametrize("harm", [_merge, _rebase, _bisect, _pick, _revert], ids=lambda harm: harm.__name__.strip("_"))
def test_an_operation_under_way_stops_a_run_at_its_begin_and_every_unit_after(
    desk: Desk, tmp_path: Path, harm: Callable[[Desk], None]
) -> None:
    harm(desk)
    reply = _init(desk, desk.repo).expect("BLOCKED")
    assert "under way" in reply.stderr
    for name in ("MERGE_HEAD", "BISECT_LOG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge/head-name"):
        (desk.repo / ".git" / name).unlink(missing_ok=True)
    if (desk.repo / ".git" / "rebase-merge").exists():
        (desk.repo / ".git" / "rebase-merge").rmdir()
    desk.git("reset", "-q", "--hard")
    desk.init().expect("READY")
    harm(desk)
    before = desk.fingerprint()
    reply = desk.prepare().expect("BLOCKED")
    assert "under way" in reply.stderr
    assert desk.fingerprint() == before
    assert not (desk.run_dir() / "units" / "U1").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a repository of another user")
def test_a_repository_of_another_user_is_refused_with_what_to_do(desk: Desk) -> None:
    for folder, _, files in os.walk(desk.repo):
        for name in ["", *files]:
            os.lchown(os.path.join(folder, name), 65534, 65534)
    reply = _init(desk, desk.repo).expect("REFUSED")
    assert "trust" in reply.stderr
    assert "safe.directory" in reply.stderr


# --- a run whose repository is not what it was --------------------------------------------------------------------


@pytest.fixture(scope="module")
def pending(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run with one unit of each kind: queued, failed, pending."""
    made = begin_run(tmp_path_factory.mktemp("moved"))
    made.pending("U3")
    made.failed("U2")
    made.prepare("U1").expect("PREPARED")
    (made.base / "packet").write_text("p")
    return made


def _commands(desk: Desk) -> list[list[str]]:
    more = ["--base", "HEAD", "--packet", str(desk.base / "packet")]
    return [
        ["checkpoint-plan", "--run-id", "r1"],
        desk.of("prepare", *more, unit="U4"),
        desk.of("integration-acquire", unit="U3"),
        [*desk.of("integrate", "--commit-message", "m", unit="U3"), "--", "true"],
        desk.of("claim-fallback", "--caller-mode", "headless", unit="U2"),
        desk.of("cleanup", "--abandon"),
        ["resume", "--repo", str(desk.repo), "--plan-digest", "x"],
    ]


@pytest.mark.parametrize("harm", ["branch", "detached", "moved", "deleted", "replaced"])
def test_no_command_works_on_a_repository_that_is_not_the_run_s(pending: Desk, harm: str) -> None:
    desk = pending
    kinds = [kind for kind in desk.kinds() if not kind.startswith("integration-lock")]
    kept = desk.base / "kept"
    if harm == "branch":
        desk.git("checkout", "-qb", "other")
    elif harm == "detached":
        desk.git("checkout", "-q", "--detach")
    else:
        desk.repo.rename(kept)
        if harm == "moved":
            desk.repo.symlink_to(kept)
        elif harm == "replaced":
            desk.make_repo()
    try:
        for args in _commands(desk):
            reply = desk.call(*args)
            assert reply.word in ("BLOCKED", "REFUSED"), (harm, args, reply)
            assert reply.body["next"] is not None
        # `integrate` takes the lock before it looks, and gives it back.
        assert [kind for kind in desk.kinds() if not kind.startswith("integration-lock")] == kinds
        assert desk.locks() == {}
    finally:
        if harm in ("branch", "detached"):
            desk.git("checkout", "-q", "main")
            desk.git("branch", "-q", "-D", "other", check=False)
        else:
            if desk.repo.is_symlink():
                desk.repo.unlink()
            elif desk.repo.exists():
                desk.repo.rename(desk.base / "second")
                subprocess.run(["rm", "-rf", str(desk.base / "second")], check=True)
            kept.rename(desk.repo)
    assert desk.call("status", "--run-id", "r1").expect("STATUS").body["repository"]["problem"] is None


def test_unshallowing_a_clone_does_not_make_it_another_repository(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    desk.git("commit", "-q", "--allow-empty", "-m", "second")
    origin = desk.repo
    desk.repo = tmp_path / "shallow"
    desk.git("clone", "-q", "--depth", "1", f"file://{origin}", str(desk.repo), cwd=tmp_path)
    desk.init().expect("READY")
    desk.pending()
    desk.git("fetch", "-q", "--unshallow")
    desk.integrate().expect("UNIT_COMMITTED")
