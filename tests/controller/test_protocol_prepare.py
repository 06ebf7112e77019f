"""`prepare`: one attempt, one packet, one private workspace at exactly the base that the host named."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controller.situations import Desk, begin_run
from tests.host import Reply

PREPARED = {
    "unit_id", "attempt_id", "workspace", "result_dir", "packet_path", "packet_digest", "authorization_path",
    "authorization_digest", "adapter", "base", "resumed",
}  # fmt: skip
AUTHORIZATION = {
    "schema_version", "run_id", "unit_id", "attempt_id", "route", "target", "harness", "intermediaries",
    "model_requested", "restriction_posture", "restrictions", "activity_posture", "packet_digest",
}  # fmt: skip
UNIT = {
    "unit_id", "state", "dependencies", "wave", "packet_digest", "packet", "workspace", "result_dir_identity",
    "attempts", "transport", "integration", "cleanup", "recovery_path",
}  # fmt: skip
ATTEMPT = {
    "attempt_id", "job_id", "dispatch_authorization_receipt", "process_state", "activity", "fallback", "authorization",
    "authorization_path", "authorization_digest", "authorization_retained", "adapter", "terminal_receipt",
}  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run with a queued unit on the second commit, for calls that are refused."""
    made = begin_run(tmp_path_factory.mktemp("prepare"))
    (made.repo / "f").write_text("two\n")
    made.git("commit", "-qam", "second")
    made.prepare().expect("PREPARED")
    return made


def _args(desk: Desk, packet: object, *more: str, base: str = "", unit: str = "U2") -> list[str]:
    return ["prepare", "--run-id", "r1", "--unit-id", unit, "--base", base or desk.head, "--packet", str(packet), *more]


def _refused(desk: Desk, word: str, *phrases: str, args: list[str]) -> Reply:
    before = sorted(os.listdir(desk.run_dir() / "units"))
    reply = desk.refuse(word, *phrases, args=args)
    assert sorted(os.listdir(desk.run_dir() / "units")) == before, "a refused prepare left a unit folder behind"
    return reply


# --- success ------------------------------------------------------------------------------------------------------


def test_a_prepared_unit_is_isolated_private_and_exactly_at_its_base(desk: Desk) -> None:
    body = desk.prepare(packet=b"the packet\n").expect("PREPARED").body
    assert set(body) == {*PREPARED, "next"}
    assert (body["unit_id"], body["attempt_id"], body["base"], body["resumed"]) == ("U1", "attempt-1", desk.head, False)
    workspace = Path(body["workspace"])
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
    assert desk.git("rev-parse", "HEAD", cwd=workspace) == desk.head
    assert desk.git("symbolic-ref", "-q", "HEAD", cwd=workspace, check=False) == ""
    assert desk.git("status", "--porcelain", "--ignored", cwd=workspace) == ""
    assert Path(body["packet_path"]).read_bytes() == b"the packet\n"
    data = Path(body["authorization_path"]).read_bytes()
    value = json.loads(data)
    assert set(value) == AUTHORIZATION
    assert data == json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert value["packet_digest"] == body["packet_digest"]
    assert (value["route"], value["model_requested"], value["activity_posture"]) == ("codex", "auto", "hard-only")
    for name in ("packet_path", "authorization_path"):
        assert stat.S_IMODE(os.stat(body[name]).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(body["result_dir"]).st_mode) == 0o700
    assert desk.git("status", "--porcelain") == ""


def test_the_manifest_shows_the_unit_in_the_shape_that_other_programs_read(desk: Desk) -> None:
    body = desk.prepare("U1", "--activity-posture", "incremental").expect("PREPARED").body
    unit = desk.unit()
    assert set(unit) >= UNIT
    assert unit["state"] == "queued"
    assert unit["wave"] == {"id": None, "base": desk.head, "position": 0, "allowed_heads": [desk.head]}
    assert unit["workspace"] == {"path": body["workspace"], "base": desk.head, "registered": True}
    assert unit["packet"] == {
        "path": body["packet_path"], "digest": body["packet_digest"], "bytes": 6, "retained": True,
    }  # fmt: skip
    assert unit["transport"] == {
        "base": None, "tree": None, "commit": None, "ref": None, "digest": None, "changed_paths": [],
    }  # fmt: skip
    attempt = unit["attempts"][0]
    assert set(attempt) >= ATTEMPT
    assert attempt["fallback"] == {"eligible": False, "reason": None, "claimed": None}
    assert attempt["activity"]["posture"] == "incremental"
    identity = os.stat(body["result_dir"])
    assert unit["result_dir_identity"] == {"dev": identity.st_dev, "ino": identity.st_ino}


def test_a_repeated_prepare_answers_for_the_same_attempt_and_changes_nothing(desk: Desk) -> None:
    first = desk.prepare().expect("PREPARED").body
    with desk.unchanged():
        again = desk.prepare().expect("PREPARED").body
    assert again == {**first, "resumed": True}


def test_a_repeated_prepare_of_a_worker_at_work_leaves_its_edits_alone(desk: Desk) -> None:
    prepared = desk.dispatched()
    edited = Path(prepared["workspace"]) / "f"
    edited.write_text("work\n")
    with desk.unchanged():
        assert desk.prepare().expect("PREPARED").body["resumed"] is True
    assert edited.read_text() == "work\n"


def test_ignored_files_of_the_user_are_no_dirt(desk: Desk) -> None:
    (desk.repo / "build").mkdir()
    (desk.repo / "build" / "out").write_text("mine")
    desk.prepare().expect("PREPARED")
    assert (desk.repo / "build" / "out").read_text() == "mine"


def test_hooks_neither_dirty_nor_break_a_fresh_workspace(desk: Desk) -> None:
    hook = desk.repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch dirt {desk.base}/ran\nexit 1\n")
    hook.chmod(0o755)
    desk.prepare().expect("PREPARED")
    assert not (desk.base / "ran").exists()


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dirt", "paths"),
    [
        (lambda desk: (desk.repo / "new").write_text("x"), ["new"]),
        (lambda desk: (desk.repo / "f").write_text("x"), ["f"]),
        (lambda desk: ((desk.repo / "f").write_text("x"), desk.git("add", "f")), ["f"]),
        (lambda desk: (desk.repo / "dir" / "g").unlink(), ["dir/g"]),
        (lambda desk: desk.git("mv", "f", "h"), ["f", "h"]),
        (lambda desk: (desk.repo / "f").chmod(0o755), ["f"]),
        (lambda desk: (desk.repo / "a b\n\"c").write_text("x"), ["a b\n\"c"]),
        (lambda desk: Path(os.fsdecode(os.fsencode(desk.repo) + b"/n\xff")).write_text("x"), ["n\udcff"]),
    ],
    ids=["untracked", "unstaged", "staged", "deleted", "renamed", "mode", "odd name", "not UTF-8"],
)  # fmt: skip
def test_a_dirty_checkout_is_refused_by_name(desk: Desk, dirt: Callable[[Desk], object], paths: list[str]) -> None:
    dirt(desk)
    (desk.base / "packet").write_text("p")
    reply = _refused(desk, "BLOCKED", "requires a clean canonical checkout", args=_args(desk, desk.base / "packet"))
    assert reply.body["dirty_paths"] == paths


def _packet(desk: Desk, kind: str) -> Path:
    path = desk.base / f"packet-{kind}"
    if not os.path.lexists(path):
        if kind == "link":
            path.symlink_to("/etc/hostname")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "long":
            path.write_bytes(b"x" * 200_001)
    return path


@pytest.mark.parametrize("kind", ["missing", "link", "fifo", "folder", "long"])
def test_a_packet_that_is_no_small_regular_file_is_refused(shared: Desk, kind: str) -> None:
    _refused(shared, "REFUSED", "packet", args=_args(shared, _packet(shared, kind)))


def test_a_packet_of_exactly_the_limit_is_kept_whole(desk: Desk) -> None:
    body = desk.prepare(packet=b"x" * 200_000).expect("PREPARED").body
    assert os.stat(body["packet_path"]).st_size == 200_000


@pytest.mark.parametrize(
    ("more", "base", "word"),
    [
        ((), "HEAD~1", "BLOCKED"),
        ((), "no-such-commit", "BLOCKED"),
        ((), "0" * 40, "BLOCKED"),
        ((), "-x", "REFUSED"),
        (("--attempt-id", "../x"), "", "REFUSED"),
        (("--dependency", "a/b"), "", "REFUSED"),
        (("--dependency", "U2"), "", "REFUSED"),
        (("--wave-id", "a b"), "", "REFUSED"),
    ],
    ids=["moved head", "unknown base", "absent object", "option as base", "attempt", "dependency", "itself", "wave"],
)
def test_a_base_or_name_that_is_not_exact_prepares_nothing(
    shared: Desk, more: tuple[str, ...], base: str, word: str
) -> None:
    (shared.base / "packet").write_text("p")
    args = _args(shared, shared.base / "packet", *more)
    if base:
        args[args.index("--base") : args.index("--base") + 2] = [f"--base={base}"]
    _refused(shared, word, args=args)


@pytest.mark.parametrize("unit", ["..", "a/b", "", "x" * 129, "U 1"])
def test_an_unsafe_unit_id_makes_no_folder(shared: Desk, unit: str) -> None:
    (shared.base / "packet").write_text("p")
    _refused(shared, "REFUSED", args=_args(shared, shared.base / "packet", unit=unit))


@pytest.mark.parametrize(
    ("more", "base", "packet"),
    [
        ((), "HEAD~1", b"do it\n"),
        (("--dependency", "U0"), "", b"do it\n"),
        (("--wave-id", "w"), "", b"do it\n"),
        (("--wave-position", "1"), "", b"do it\n"),
        (("--activity-posture", "incremental"), "", b"do it\n"),
        ((), "", b"do something else\n"),
    ],
    ids=["base", "dependency", "wave id", "wave position", "posture", "packet"],
)
def test_an_attempt_is_never_silently_given_other_work(
    shared: Desk, more: tuple[str, ...], base: str, packet: bytes
) -> None:
    with shared.unchanged():
        reply = shared.prepare("U1", *more, packet=packet, base=base).expect("BLOCKED")
    assert "differs" in reply.stderr


def test_another_attempt_is_refused_while_the_first_is_in_work(shared: Desk) -> None:
    with shared.unchanged():
        shared.prepare("U1", "--attempt-id", "attempt-2").expect("REFUSED")


@pytest.mark.parametrize(
    ("harm", "word", "phrase"),
    [
        (lambda body: Path(body["packet_path"]).write_text("evil"), "BLOCKED", "packet"),
        (lambda body: Path(body["authorization_path"]).write_text("{}"), "BLOCKED", "authorization"),
        (lambda body: Path(body["packet_path"]).chmod(0o644), "UNREADABLE", "packet"),
        (lambda body: Path(body["packet_path"]).unlink(), "UNREADABLE", "packet"),
        (
            lambda body: shutil.copytree(shutil.move(body["result_dir"], body["result_dir"] + "x"), body["result_dir"]),
            "UNREADABLE",
            "controller result directory identity changed",
        ),
        (lambda body: Path(body["workspace"], "f").write_text("dirt"), "BLOCKED", "workspace is dirty"),
        (lambda body: Path(body["workspace"], "new").write_text("dirt"), "BLOCKED", "workspace is dirty"),
        (lambda body: Path(body["workspace"]).chmod(0o755), "UNREADABLE", "workspace"),
        (lambda body: Path(body["workspace"], ".git").write_text("gitdir: /tmp"), "BLOCKED", ".git file"),
    ],
    ids=["packet", "authorization", "mode", "gone", "result folder", "edited", "added", "workspace mode", "pointer"],
)
def test_files_that_changed_since_prepare_are_not_handed_on(
    desk: Desk, harm: Callable[[dict[str, str]], object], word: str, phrase: str
) -> None:
    body = desk.prepare().expect("PREPARED").body
    harm(body)
    with desk.unchanged():
        reply = desk.prepare().expect(word)
    assert phrase in reply.stderr


def test_a_workspace_whose_head_moved_is_not_handed_on(desk: Desk) -> None:
    (desk.repo / "f").write_text("two\n")
    desk.git("commit", "-qam", "second")
    body = desk.prepare().expect("PREPARED").body
    desk.git("checkout", "-q", "HEAD~1", cwd=Path(body["workspace"]))
    with desk.unchanged():
        reply = desk.prepare().expect("BLOCKED")
    assert "workspace HEAD no longer equals the recorded base" in reply.stderr


def test_a_checkout_whose_files_change_on_checkout_is_blocked_and_leaves_no_workspace(desk: Desk) -> None:
    path = desk.repo / "crlf.txt"
    path.write_bytes(b"a\r\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))  # so that Git trusts its index entry and calls the checkout clean
    desk.git("add", "-A")
    desk.git("commit", "-qm", "crlf")
    (desk.repo / ".gitattributes").write_text("*.txt text eol=lf\n")
    desk.git("add", ".gitattributes")
    desk.git("commit", "-qm", "attributes")
    assert desk.git("status", "--porcelain") == ""
    before = desk.fingerprint()
    reply = desk.prepare().expect("BLOCKED")
    assert reply.body["dirty_paths"] == ["crlf.txt"]
    assert desk.fingerprint() == before
    assert not (desk.run_dir() / "units" / "U1" / "workspace").exists()
    desk.do("CLEANED", "cleanup", "--abandon")


# --- retry --------------------------------------------------------------------------------------------------------


def _abandon(desk: Desk, unit: str = "U1", *more: str) -> None:
    job = desk.failed(unit, "failed", *more)["job_id"]
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-job", job, unit=unit)


def test_a_retry_keeps_the_history_of_the_attempt_before(desk: Desk) -> None:
    _abandon(desk)
    with desk.unchanged():
        reply = desk.prepare().expect("REFUSED")
    assert "supply a fresh --attempt-id" in reply.stderr
    body = desk.prepare("U1", "--attempt-id", "second", packet=b"better\n").expect("PREPARED").body
    assert (body["attempt_id"], body["resumed"]) == ("second", False)
    unit = desk.unit()
    assert [attempt["attempt_id"] for attempt in unit["attempts"]] == ["attempt-1", "second"]
    assert unit["attempts"][0]["cleanup_receipt"]["abandoned"] is True
    assert (unit["state"], unit["cleanup"], unit["transport"]["commit"]) == ("queued", None, None)
    assert desk.kinds().count("unit-retry-prepared") == 1
    with desk.unchanged():
        assert desk.prepare("U1", "--attempt-id", "second", packet=b"better\n").expect("PREPARED").body["resumed"]
        assert "supply a fresh" in desk.prepare(packet=b"better\n").expect("REFUSED").stderr


def test_a_retry_is_the_same_unit_of_the_plan_or_none(desk: Desk) -> None:
    _abandon(desk)
    second = ("--attempt-id", "second")
    with desk.unchanged():
        reply = desk.prepare("U1", *second, "--dependency", "U0").expect("BLOCKED")
    assert "retry dependencies differ from the recorded unit" in reply.stderr
    for more in (("--wave-id", "w"), ("--wave-position", "3")):
        with desk.unchanged():
            reply = desk.prepare("U1", *second, *more).expect("BLOCKED")
        assert "retry wave identity/position differs from the recorded unit" in reply.stderr
    first = desk.head
    (desk.repo / "f").write_text("by somebody\n")
    desk.git("commit", "-qam", "somebody")
    with desk.unchanged():
        reply = desk.prepare("U1", *second).expect("BLOCKED")
    assert (reply.body["requested_base"], reply.body["latest_allowed_head"]) == (desk.head, first)
    desk.git("reset", "-q", "--hard", first)
    desk.prepare("U1", *second).expect("PREPARED")


def test_a_retry_begins_on_what_the_run_has_accepted_meanwhile_and_on_nothing_less(desk: Desk) -> None:
    first = desk.head
    _abandon(desk)
    accepted = desk.done("U2")
    desk.git("reset", "-q", "--hard", first)
    with desk.unchanged():
        reply = desk.prepare("U1", "--attempt-id", "second").expect("BLOCKED")
    assert reply.body["missing_ancestry"] == [accepted]
    assert (reply.body["requested_base"], reply.body["latest_allowed_head"]) == (first, first)
    desk.git("reset", "-q", "--hard", accepted)
    desk.prepare("U1", "--attempt-id", "second").expect("PREPARED")
    assert desk.unit()["wave"]["allowed_heads"] == [first, accepted]


def test_a_finished_unit_is_not_done_twice(desk: Desk) -> None:
    desk.done()
    with desk.unchanged():
        desk.prepare("U1", "--attempt-id", "second").expect("REFUSED")


def test_no_retry_while_another_unit_is_being_integrated(desk: Desk) -> None:
    _abandon(desk)
    desk.pending("U2")
    token = desk.held("U2")
    with desk.unchanged():
        desk.prepare("U1", "--attempt-id", "second").expect("REFUSED")
    desk.do("RELEASED", "integration-release", "--lock-token", token, unit="U2")
    desk.prepare("U1", "--attempt-id", "second").expect("PREPARED")


# --- killed, and two at once --------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_workspace_that_a_kill_left_half_made_is_finished(desk: Desk, when: str) -> None:
    (desk.base / "packet-U1.md").write_bytes(b"do it\n")
    args = _args(desk, desk.base / "packet-U1.md", unit="U1")
    desk.killed(*args, env=desk.killing_git('*" worktree add "*', when))
    assert desk.state() == "queued"
    body = desk.prepare().expect("PREPARED").body
    assert body["resumed"] is False
    assert desk.git("status", "--porcelain", "--ignored", cwd=Path(body["workspace"])) == ""
    assert desk.git("worktree", "list", "--porcelain").count("worktree ") == 2


def test_two_hosts_that_prepare_at_once_get_one_workspace_each(desk: Desk) -> None:
    (desk.base / "packet").write_text("p")
    children = [desk.spawn(*_args(desk, desk.base / "packet", unit=unit)) for unit in ("U1", "U2", "U1")]
    replies = [desk.finish(child).expect("PREPARED") for child in children]
    assert sorted(reply.body["resumed"] for reply in replies) == [False, False, True]
    assert desk.git("worktree", "list", "--porcelain").count("worktree ") == 3
    assert desk.git("status", "--porcelain") == ""
