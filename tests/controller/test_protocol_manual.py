"""The manual steps of the canonical transaction, as a host that drives them itself sees them (section 8)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controller.situations import DIGEST, Desk, begin_run

WRONG = "f" * 48
TOKEN = "lock token"
SNAPSHOT = {
    "head", "branch_ref", "head_tree", "index_tree", "status_sha256", "status_empty", "worktree_index_empty",
}  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _keys(body: dict[str, Any]) -> set[str]:
    return set(body) - {"next"}


def _wrong_token(desk: Desk, command: str, *more: str) -> None:
    desk.refuse("REFUSED", TOKEN, args=desk.of(command, "--lock-token", WRONG, *more))


# --- the whole way ------------------------------------------------------------------------------------------------


def test_the_whole_way_step_by_step_with_a_wrong_token_refused_at_every_step(desk: Desk) -> None:
    head = desk.head
    transport = desk.pending(work={"new.txt": "new\n", "f": "changed\n"})
    desk.refuse("REFUSED", TOKEN, args=desk.of("preflight", "--lock-token", WRONG))
    body = desk.do("ACQUIRED", "integration-acquire").body
    assert _keys(body) == {"lock_token", "resumed", "path"}
    token = body["lock_token"]
    assert re.fullmatch(r"[0-9a-f]{48}", token)
    assert body["resumed"] is False
    lock = json.loads(Path(body["path"]).read_text())
    assert set(lock) >= {"branch_ref", "created_at", "nonce", "repository", "run_id", "unit_id"}
    assert (lock["nonce"], lock["run_id"], lock["unit_id"]) == (token, "r1", "U1")
    assert os.stat(body["path"]).st_mode & 0o777 == 0o600
    assert desk.manifest()["integration_lock"] == {
        "unit_id": "U1", "nonce": token, "path": body["path"], "phase": "held",
    }  # fmt: skip
    mine = ("--lock-token", token)
    _wrong_token(desk, "preflight")
    body = desk.do("PREFLIGHT_OK", "preflight", *mine).body
    assert _keys(body) == {"unit_id", "pre_fold", "transport"}
    assert set(body["pre_fold"]) >= SNAPSHOT
    assert (body["pre_fold"]["head"], body["transport"]) == (head, transport)
    _wrong_token(desk, "mark-applied")
    _wrong_token(desk, "restore")
    _wrong_token(desk, "integration-release")
    desk.refuse("REFUSED", args=desk.of("integration-release", *mine))
    desk.pick()
    body = desk.do("APPLIED", "mark-applied", *mine).body
    assert _keys(body) == {"unit_id", "post_index_tree"}
    assert body["post_index_tree"] == transport["tree"]
    _wrong_token(desk, "mark-verified", "--evidence-digest", "x")
    body = desk.do("VERIFIED", "mark-verified", *mine, "--evidence-digest", "no digest at all").body
    assert _keys(body) == {"unit_id", "verification"}
    assert body["verification"]["digest"] == "no digest at all"
    assert body["verification"]["summary"] == "authoritative verification passed"
    _wrong_token(desk, "mark-committed")
    desk.refuse("BLOCKED", args=desk.of("mark-committed", *mine))
    desk.git("commit", "-qm", "feat: by the host")
    body = desk.do("COMMITTED", "mark-committed", *mine).body
    assert _keys(body) == {"unit_id", "canonical_commit"}
    made = body["canonical_commit"]
    assert (made["commit"], made["parent"], made["tree"]) == (desk.head, head, transport["tree"])
    with desk.unchanged():
        assert desk.do("COMMITTED", "mark-committed", *mine).body["canonical_commit"] == made
    desk.refuse("REFUSED", args=desk.of("restore", *mine))
    assert _keys(desk.do("CLEANED", "cleanup").body) == {"unit_id", "resumed"}
    _wrong_token(desk, "integration-release")
    assert _keys(desk.do("RELEASED", "integration-release", *mine).body) == {"unit_id"}
    assert desk.locks() == {}
    assert desk.manifest()["integration_lock"] is None
    desk.refuse("REFUSED", args=desk.of("integration-release", *mine))
    assert desk.git("for-each-ref", "refs/ce-work") == ""
    reply = desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert reply.body["canonical_head"] == made["commit"]
    unit = desk.unit()
    assert unit["integration"]["canonical_commit"] == made
    assert unit["cleanup"]["workspace_removed"] is True


def test_only_units_with_something_to_integrate_take_the_lock(desk: Desk) -> None:
    desk.prepare().expect("PREPARED")
    desk.refuse("REFUSED", "queued", args=desk.of("integration-acquire"))
    desk.failed("U2")
    desk.refuse("REFUSED", "authoring", args=desk.of("integration-acquire", unit="U2"))
    desk.refuse("REFUSED", "unknown unit", args=desk.of("integration-acquire", unit="U9"))


def test_a_lost_token_comes_back_with_resume_only(desk: Desk) -> None:
    desk.pending()
    desk.pending("U2")
    token = desk.held()
    desk.refuse("REFUSED", "--resume", args=desk.of("integration-acquire"))
    desk.refuse("REFUSED", "U1", args=desk.of("integration-acquire", "--resume", unit="U2"))
    with desk.unchanged():
        body = desk.do("ACQUIRED", "integration-acquire", "--resume").body
    assert (body["lock_token"], body["resumed"]) == (token, True)


def test_a_lock_file_that_vanished_or_was_bent_is_not_worked_under(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    path = next((desk.runs / ".locks").glob("integration-*.json"))
    text = path.read_text()
    args = desk.of("preflight", "--lock-token", token)
    path.write_text(text.replace(token, "0" * 48))
    desk.refuse("BLOCKED", args=args)
    path.write_text(text.replace('"U1"', '"U2"'))
    desk.refuse("BLOCKED", args=args)
    path.write_text(text.replace(token, "short"))
    desk.refuse("UNREADABLE", "nonce", args=args)
    path.write_text("{}")
    desk.refuse("UNREADABLE", args=args)
    path.write_text(text)
    path.chmod(0o644)
    desk.refuse("UNREADABLE", args=args)
    path.unlink()
    desk.refuse("BLOCKED", "missing", args=args)


def test_a_newer_owner_s_lock_file_is_left_alone_by_a_release(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    path = next((desk.runs / ".locks").glob("integration-*.json"))
    theirs = path.read_text().replace(token, "1" * 48)
    path.write_text(theirs)
    desk.do("RELEASED", "integration-release", "--lock-token", token)
    assert path.read_text() == theirs


# --- preflight ----------------------------------------------------------------------------------------------------


def test_preflight_touches_nothing_and_can_be_repeated(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    before = desk.fingerprint()
    index = (desk.repo / ".git" / "index").read_bytes()
    for _ in range(2):
        desk.do("PREFLIGHT_OK", "preflight", "--lock-token", token)
    assert desk.fingerprint() == before
    assert (desk.repo / ".git" / "index").read_bytes() == index


def _hide(bit: str) -> Callable[[Desk], object]:
    def hide(desk: Desk) -> None:
        desk.git("update-index", f"--{bit}", "f")
        (desk.repo / "f").write_text("hidden edit\n")

    return hide


def _stand(path: str) -> Callable[[Desk], object]:
    def stand(desk: Desk) -> None:
        full = desk.repo / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text("the user's own\n")

    return stand


WORK = {"new.log": "x\n", "build/out/x": "x\n", "f": "changed\n"}


@pytest.fixture(scope="module")
def pending(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A unit that changes `f` and adds paths which this user's checkout ignores."""
    made = begin_run(tmp_path_factory.mktemp("preflight"))
    made.git("rm", "-q", ".gitignore")
    made.git("commit", "-qm", "no rules in the tree")
    made.pending(work=WORK)
    (made.repo / ".git" / "info" / "exclude").write_text("*.log\nbuild\n")
    return made


@pytest.mark.parametrize(
    ("harm", "heal", "path", "phrase"),
    [
        (_stand("new.log"), ("new.log",), "new.log", "not in Git"),
        (_stand("build"), ("build",), "build", "not in Git"),
        (_stand("build/out/x/deep"), ("build",), "build/out/x/deep", "not in Git"),
        (_hide("assume-unchanged"), (), "f", "assume-unchanged"),
        (_hide("skip-worktree"), (), "f", "skip-worktree"),
    ],
    ids=["ignored file", "file for a folder", "folder for a file", "assume-unchanged", "skip-worktree"],
)
@pytest.mark.parametrize("command", ["integrate", "preflight"])
def test_files_of_the_user_that_git_does_not_know_are_never_overwritten(
    pending: Desk,
    tmp_path: Path,
    command: str,
    harm: Callable[[Desk], object],
    heal: tuple[str, ...],
    path: str,
    phrase: str,
) -> None:
    desk = pending
    harm(desk)
    assert desk.git("status", "--porcelain") == ""
    before = desk.fingerprint()
    if command == "integrate":
        reply = desk.integrate().expect("BLOCKED")
    else:
        token = desk.held()
        reply = desk.refuse("BLOCKED", args=desk.of("preflight", "--lock-token", token))
        desk.do("RELEASED", "integration-release", "--lock-token", token)
    assert reply.body["paths"] == [path]
    assert phrase in reply.stderr
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    assert desk.state() == "integration-pending"
    for name in heal:
        os.rename(desk.repo / name, tmp_path / "aside")
    if not heal:
        desk.git("update-index", "--no-assume-unchanged", "f")
        desk.git("update-index", "--no-skip-worktree", "f")
        desk.git("checkout", "-q", "f")


def test_a_file_that_was_moved_out_of_the_way_is_out_of_the_way(desk: Desk) -> None:
    desk.git("rm", "-q", ".gitignore")
    desk.git("commit", "-qm", "no rules in the tree")
    desk.pending(work=WORK)
    (desk.repo / ".git" / "info" / "exclude").write_text("*.log\nbuild\n")
    (desk.repo / "new.log").write_text("mine")
    desk.integrate().expect("BLOCKED")
    (desk.repo / "new.log").rename(desk.base / "aside")
    desk.integrate().expect("UNIT_COMMITTED")
    assert (desk.repo / "new.log").read_text() == "x\n"


def test_a_preflight_on_a_dirty_moved_or_busy_checkout_is_blocked_by_name(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    args = desk.of("preflight", "--lock-token", token)
    (desk.repo / "mine").write_text("x")
    reply = desk.refuse("BLOCKED", "requires a clean canonical checkout", args=args)
    assert reply.body["dirty_paths"] == ["mine"]
    (desk.repo / "mine").unlink()
    (desk.repo / ".git" / "MERGE_HEAD").write_text(desk.head + "\n")
    desk.refuse("BLOCKED", "MERGE_HEAD", args=args)
    (desk.repo / ".git" / "MERGE_HEAD").unlink()
    desk.git("checkout", "-qb", "other")
    desk.refuse("BLOCKED", "branch", args=args)
    desk.git("checkout", "-q", "main")
    desk.refuse("BLOCKED", args=[*args, "--allowed-head", "no-such-commit"])
    base = desk.head
    desk.git("commit", "-q", "--allow-empty", "-m", "by somebody")
    phrase = "canonical HEAD advanced outside the recorded wave"
    desk.refuse("BLOCKED", phrase, args=args)
    desk.refuse("BLOCKED", phrase, args=[*args, "--allowed-head", desk.head])
    desk.git("reset", "-q", "--hard", base)
    desk.do("PREFLIGHT_OK", "preflight", "--lock-token", token, "--allowed-head", base)


def test_a_unit_never_lands_before_what_it_depends_on(desk: Desk) -> None:
    desk.pending("U2", {"two": "2\n"}, "--dependency", "U1", "--dependency", "U0")
    reply = desk.integrate("U2").expect("BLOCKED")
    assert "dependencies must have controller-accepted canonical commits" in reply.stderr
    assert sorted(reply.body["missing_dependencies"]) == ["U0", "U1"]
    desk.pending("U1", {"one": "1\n"})
    desk.pending("U0", {"zero": "0\n"})
    reply = desk.integrate("U2").expect("BLOCKED")
    assert sorted(reply.body["unaccepted_dependencies"]) == ["U0", "U1"]
    desk.integrate("U1").expect("UNIT_COMMITTED")
    desk.integrate("U0").expect("UNIT_COMMITTED")
    made = desk.integrate("U2").expect("UNIT_COMMITTED").body["canonical_commit"]
    assert desk.git("log", "--format=%s") == "feat: U2\nfeat: U0\nfeat: U1\nfirst"
    assert desk.git("show", f"{made['commit']}:one") == "1"


# --- marks --------------------------------------------------------------------------------------------------------


def _extra_untracked(desk: Desk) -> None:
    (desk.repo / "extra").write_text("x")


def _extra_unstaged(desk: Desk) -> None:
    (desk.repo / "dir" / "g").write_text("x")


def _extra_staged(desk: Desk) -> None:
    _extra_unstaged(desk)
    desk.git("add", "-A")


def _touched_again(desk: Desk) -> None:
    (desk.repo / "new.txt").write_text("edited after the apply\n")


def _unapplied(desk: Desk) -> None:
    desk.git("reset", "-q", "--hard")


def _moved(desk: Desk) -> None:
    desk.git("stash", "-q")
    desk.git("commit", "-q", "--allow-empty", "-m", "by somebody")
    desk.git("stash", "pop", "-q", "--index")


HARMS = [_extra_untracked, _extra_unstaged, _extra_staged, _touched_again, _unapplied, _moved]


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, str]:
    """A manually applied unit and its lock token."""
    made = begin_run(tmp_path_factory.mktemp("applied"))
    return made, made.applied()


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.strip("_"))
def test_nothing_but_the_exact_application_is_ever_marked(
    applied: tuple[Desk, str], harm: Callable[[Desk], object]
) -> None:
    desk, token = applied
    desk.git("reset", "-q", "--hard", desk.unit()["integration"]["pre_fold"]["head"])
    desk.git("clean", "-fdq")
    desk.pick()
    mine = ("--lock-token", token)
    harm(desk)
    reply = desk.refuse("BLOCKED", args=desk.of("mark-applied", *mine))
    assert reply.body["unit_id"] == "U1"
    reply = desk.refuse("BLOCKED", args=desk.of("mark-verified", *mine, "--evidence-digest", DIGEST))
    assert "expected transport application" in reply.body["reason"]


def test_marks_come_in_their_order_only(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    mine = ("--lock-token", token)
    evidence = ("--evidence-digest", DIGEST)
    desk.refuse("REFUSED", "preflight", args=desk.of("mark-applied", *mine))
    desk.refuse("REFUSED", args=desk.of("mark-verified", *mine, *evidence))
    desk.refuse("REFUSED", args=desk.of("mark-committed", *mine))
    desk.refuse("REFUSED", args=desk.of("restore", *mine))
    desk.do("PREFLIGHT_OK", "preflight", *mine)
    desk.refuse("BLOCKED", args=desk.of("mark-applied", *mine))
    desk.pick()
    desk.do("APPLIED", "mark-applied", *mine)
    desk.do("APPLIED", "mark-applied", *mine)
    desk.refuse("REFUSED", args=desk.of("preflight", *mine))
    desk.refuse("REFUSED", args=desk.of("mark-committed", *mine))
    desk.refuse("REFUSED", args=desk.of("integration-release", *mine))
    desk.refuse("REFUSED", args=desk.of("cleanup"))
    wrong = ("--ignored-state", "[]")
    desk.refuse("REFUSED", "--ignored-state", args=desk.of("mark-verified", *mine, *evidence, *wrong))
    more = ("--ignored-state", '{"before":1}', "--summary", "looked at it")
    body = desk.do("VERIFIED", "mark-verified", *mine, *evidence, *more).body["verification"]
    assert (body["ignored_state"], body["summary"], body["digest"]) == ({"before": 1}, "looked at it", DIGEST)
    desk.refuse("REFUSED", args=desk.of("mark-applied", *mine))


def test_a_commit_that_is_not_exactly_what_was_verified_is_not_accepted(desk: Desk) -> None:
    token = desk.verified()
    head = desk.head
    for wrong in ("content", "parent", "dirt"):
        if wrong == "content":
            (desk.repo / "f").write_text("slipped in\n")
        desk.git("commit", "-qam", "feat: one")
        if wrong == "parent":
            desk.git("commit", "-q", "--allow-empty", "-m", "feat: two")
        if wrong == "dirt":
            (desk.repo / "extra").write_text("x")
        desk.refuse("BLOCKED", args=desk.of("mark-committed", "--lock-token", token))
        assert desk.state() == "verified"
        desk.git("reset", "-q", "--hard", head)
        desk.git("clean", "-fdq")
        desk.pick()
    desk.git("commit", "-qam", "feat: one")
    desk.do("COMMITTED", "mark-committed", "--lock-token", token)


# --- restore ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["preflighted", "picked", "applied", "verified", "preserved"])
def test_every_state_before_the_commit_can_be_taken_back_exactly(desk: Desk, state: str) -> None:
    before = desk.fingerprint()
    work = {"new/deep/file": "x\n", "f": "changed\n", "dir/g": "changed\n"}
    if state == "preflighted":
        token = desk.preflighted(work=work)
    elif state == "picked":
        token = desk.preflighted(work=work)
        desk.pick()
    else:
        token = desk.verified(work=work) if state == "verified" else desk.applied(work=work)
    if state == "preserved":
        desk.do("PRESERVED", "restore", "--lock-token", token)
    body = desk.do("PRESERVED", "restore", "--lock-token", token).body
    assert _keys(body) == {"unit_id", "recovery_path"}
    assert body["recovery_path"] == str(desk.run_dir() / "units" / "U1")
    assert desk.fingerprint() == before
    unit = desk.unit()
    assert (unit["state"], unit["integration"]["restore"]["exact"]) == ("preserved", True)
    assert desk.locks() != {}


def test_a_restore_never_touches_what_the_unit_did_not_make(desk: Desk) -> None:
    token = desk.applied()
    head = desk.head
    for harm in (_extra_untracked, _extra_unstaged, _extra_staged, _moved):
        harm(desk)
        before = desk.fingerprint()
        desk.do("BLOCKED", "restore", "--lock-token", token)
        assert desk.fingerprint() == before
        assert desk.blockers[-1]["unit_id"] == "U1"
        assert desk.blockers[-1]["retain_integration_lock"] is True
        desk.git("reset", "-q", "--hard", head)
        desk.git("clean", "-fdq")
        desk.pick()
    desk.do("PRESERVED", "restore", "--lock-token", token)


def test_an_edit_of_the_person_on_a_path_of_the_unit_is_kept_beside_before_it_is_taken_back(desk: Desk) -> None:
    token = desk.applied(work={"new.txt": "new\n", "f": "changed\n"})
    before_apply = desk.git("show", "HEAD:f")
    (desk.repo / "f").write_text("an hour of handwork\n")
    body = desk.do("PRESERVED", "restore", "--lock-token", token).body
    assert [item["path"] for item in body["recovered"]] == ["f"]
    assert Path(body["recovered"][0]["copy"]).read_text() == "an hour of handwork\n"
    assert (desk.repo / "f").read_text() == before_apply + "\n"
    assert desk.git("status", "--porcelain") == ""


def test_a_pick_on_a_head_of_the_person_is_left_to_the_person(desk: Desk) -> None:
    token = desk.preflighted(work={"f": "changed\n"})
    head = desk.head
    (desk.repo / "f").write_text("mine\n")
    desk.git("commit", "-qam", "x")
    desk.git("cherry-pick", desk.unit()["transport"]["commit"], check=False)
    before = desk.fingerprint()
    assert before["status"].startswith("u UU")
    desk.do("BLOCKED", "restore", "--lock-token", token)
    assert desk.fingerprint() == before
    desk.git("cherry-pick", "--abort")
    desk.git("reset", "-q", "--hard", head)
    desk.do("PRESERVED", "restore", "--lock-token", token)


def test_a_pick_that_left_its_marker_is_taken_back(desk: Desk) -> None:
    """A cherry-pick that stopped before its commit: CHERRY_PICK_HEAD is this transport, HEAD the pre-fold one."""
    token = desk.preflighted(work={"f": "changed\n"})
    before = desk.fingerprint()
    desk.pick()
    (desk.repo / ".git" / "CHERRY_PICK_HEAD").write_text(desk.unit()["transport"]["commit"] + "\n")
    desk.do("PRESERVED", "restore", "--lock-token", token)
    assert desk.fingerprint() == before
    assert not (desk.repo / ".git" / "CHERRY_PICK_HEAD").exists()
    desk.do("RELEASED", "integration-release", "--lock-token", token)
    desk.integrate().expect("UNIT_COMMITTED")
