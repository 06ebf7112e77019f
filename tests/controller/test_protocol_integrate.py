"""`integrate`: apply, verify, commit; or every byte back, proven (design.md section 6)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller.situations import Desk, alive, begin_run, wait_for
from tests.host import Reply

RESTORE_UNPROVEN = "integration failed and exact restoration could not be proven"
RELEASE_FAILED = "integration failed after exact restoration but lock release failed"
FINALIZATION = "canonical commit accepted but post-commit finalization is incomplete"
FAILED = {
    "unit_id", "verification_exit", "verification_log", "canonical_state_changed", "cleaned_paths", "ignored_state",
}  # fmt: skip
IGNORED = {
    "before", "after", "changed", "removed", "created", "uninspectable", "sample", "sample_limit", "restored",
}  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A host with a run; no process of it is left behind."""
    yield begin_run(tmp_path)
    wait_for(lambda: alive(str(tmp_path)) == [], "the test's processes to end", 10.0)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A unit that is integrated again and again and never passes."""
    made = begin_run(tmp_path_factory.mktemp("integrate"))
    made.pending(work={"new.txt": "new\n", "f": "changed\n", "deep/er/x": "x\n"})
    return made


# --- success ------------------------------------------------------------------------------------------------------


def test_an_integrated_unit_is_one_verified_commit_of_the_user_and_nothing_else_is_left(desk: Desk) -> None:
    head = desk.head
    transport = desk.pending(work={"new.txt": "new\n", "f": "changed\n"})
    message = "feat: ünit\n\n# not a comment\n  indented  "
    seen = 'test "$(cat new.txt)" = new && test "$(git diff --cached --name-only | wc -l)" = 2'
    reply = desk.call(*desk.of("integrate", "--commit-message", message), "--", "sh", "-c", seen)
    body = reply.expect("UNIT_COMMITTED").body
    assert set(body) == {
        "unit_id", "canonical_commit", "verification_digest", "verification_log_retained", "cleaned_paths",
        "ignored_state", "next",
    }  # fmt: skip
    made = body["canonical_commit"]
    assert (made["commit"], made["parent"], made["tree"]) == (desk.head, head, transport["tree"])
    assert desk.git("show", "-s", "--format=%an <%ae>|%cn <%ce>|%B") == (
        f"Test <test@example.invalid>|Test <test@example.invalid>|{message}"
    )
    assert re.fullmatch(r"[0-9a-f]{64}", body["verification_digest"])
    assert (body["verification_log_retained"], body["cleaned_paths"]) == (False, [])
    assert set(body["ignored_state"]) == IGNORED
    assert set(body["ignored_state"]["sample"]) == {"changed", "removed", "created"}
    assert desk.git("status", "--porcelain") == ""
    assert desk.git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert desk.locks() == {}
    assert desk.git("for-each-ref", "refs/ce-work") == ""
    assert desk.git("worktree", "list", "--porcelain").count("worktree ") == 1
    unit = desk.unit()
    assert unit["state"] == "cleaned"
    assert unit["cleanup"] == {
        **unit["cleanup"], "workspace_removed": True, "ref_removed": True, "abandoned": False,
        "abandonment_receipt": None,
    }  # fmt: skip
    assert unit["cleanup"]["artifact_cleanup"]["complete"] is True
    assert unit["integration"]["verification"]["digest"] == body["verification_digest"]
    assert not Path(unit["recovery_path"]).exists()
    assert os.listdir(desk.run_dir() / "jobs") == []
    kept = {path.name for path in (desk.run_dir() / "evidence" / "U1" / "attempt-1").iterdir()}
    assert kept >= {"packet.md", "authorization.json", "implementation-result.json", "adapter.log", "job-meta.json"}
    assert not list(desk.run_dir().glob("index*")), "a private index was left behind"


def test_files_keep_the_user_s_umask_and_private_state_stays_private(desk: Desk) -> None:
    def work(workspace: Path) -> None:
        for folder in ("open", "closed"):
            (workspace / folder).mkdir()
            (workspace / folder / "script").write_text("#!/bin/sh\n")
            (workspace / folder / "script").chmod(0o755)
        (workspace / "plain").write_text("x\n")

    desk.pending(work=work)
    index = stat.S_IMODE((desk.repo / ".git" / "index").stat().st_mode)
    args = desk.of("integrate", "--commit-message", "m")
    desk.finish(desk.spawn(*args, "--", "true", umask=0o002)).expect("UNIT_COMMITTED")
    modes = {name: stat.S_IMODE((desk.repo / name).stat().st_mode) for name in ("plain", "open", "open/script")}
    assert modes == {"plain": 0o664, "open": 0o775, "open/script": 0o775}
    assert stat.S_IMODE((desk.repo / ".git" / "index").stat().st_mode) == index
    commit = desk.head
    loose = desk.repo / ".git" / "objects" / commit[:2]
    assert stat.S_IMODE(loose.stat().st_mode) & 0o070 == 0o070
    for folder, _, files in os.walk(desk.runs):
        for name in files:
            assert stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode) == 0o600, name


def test_a_restore_gives_back_the_modes_that_the_umask_made(desk: Desk) -> None:
    desk.pending(work={"f": "changed\n", "dir/g": "changed\n"})
    before = desk.fingerprint()
    args = desk.of("integrate", "--commit-message", "m")
    desk.finish(desk.spawn(*args, "--", "false", umask=0o022)).expect("BLOCKED")
    assert desk.fingerprint() == before


def test_index_bits_and_content_elsewhere_are_kept(desk: Desk) -> None:
    desk.git("update-index", "--skip-worktree", "dir/g")
    (desk.repo / "dir" / "g").write_text("local setting\n")
    desk.pending(work={"new.txt": "new\n"})
    desk.integrate(argv=("false",)).expect("BLOCKED")
    assert "S dir/g" in desk.git("ls-files", "-v")
    desk.integrate().expect("UNIT_COMMITTED")
    assert "S dir/g" in desk.git("ls-files", "-v")
    assert (desk.repo / "dir" / "g").read_text() == "local setting\n"


def test_hooks_and_signing_neither_run_nor_stop_anything(desk: Desk) -> None:
    marker = desk.base / "ran"
    hook = desk.base / "hooks" / "hook"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\necho $0 >> {marker}\nexit 1\n")
    hook.chmod(0o755)
    names = (
        "pre-commit commit-msg prepare-commit-msg post-commit post-checkout post-index-change reference-transaction "
        "pre-applypatch post-rewrite pre-auto-gc post-merge fsmonitor-watchman"
    )
    for folder in (desk.repo / ".git" / "hooks", hook.parent):
        folder.mkdir(exist_ok=True)
        for name in names.split():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(hook)
    for key, value in {
        "commit.gpgSign": "true", "gpg.program": str(hook), "core.hooksPath": str(hook.parent),
        "core.fsmonitor": str(hook), "core.editor": str(hook), "core.pager": str(hook), "gc.auto": "1",
    }.items():  # fmt: skip
        desk.git("config", key, value)
    desk.pending()
    desk.integrate(argv=("false",)).expect("BLOCKED")
    desk.integrate().expect("UNIT_COMMITTED")
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert not marker.exists(), marker.read_text()


def test_a_verification_sees_the_top_level_a_clean_environment_and_no_input(desk: Desk) -> None:
    desk.pending()
    out = desk.base / "env"
    script = f"pwd -P > {out}; env >> {out}; cat >> {out}; readlink /proc/self/fd/0 >> {out}"
    args = (*desk.of("integrate", "--commit-message", "m"), "--", "sh", "-c", script)
    desk.call(*args, env={"GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere/index", "KEPT": "yes"}).expect(
        "UNIT_COMMITTED"
    )
    lines = out.read_text().splitlines()
    assert lines[0] == os.path.realpath(desk.repo)
    assert "PYTHONDONTWRITEBYTECODE=1" in lines
    assert "KEPT=yes" in lines
    assert not [line for line in lines if line.startswith(("GIT_DIR=", "GIT_INDEX_FILE="))]
    assert lines[-1] == "/dev/null"


# --- a verification that does not pass ----------------------------------------------------------------------------


def _fail(desk: Desk, *argv: str, more: tuple[str, ...] = ()) -> Reply:
    """An `integrate` that must be refused with every byte put back."""
    before = desk.fingerprint()
    reply = desk.integrate("U1", argv, *more).expect("BLOCKED")
    assert set(reply.body) >= FAILED, reply
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    assert desk.state() == "preserved"
    log = Path(reply.body["verification_log"])
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    return reply


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("false",), 1),
        (("sh", "-c", "exit 77"), 77),
        (("no-such-command-anywhere",), 127),
        (("./no/such/file",), 127),
        (("./f",), 126),
        (("./dir",), 126),
        (("sh", "-c", "kill -9 $$"), 137),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_verification_that_fails_or_cannot_start_commits_nothing(
    failing: Desk, argv: tuple[str, ...], code: int
) -> None:
    reply = _fail(failing, *argv)
    assert reply.body["verification_exit"] == code
    assert reply.body["canonical_state_changed"] is False
    assert reply.body["cleaned_paths"] == []


def test_what_a_failing_verification_said_is_kept_in_order(failing: Desk) -> None:
    reply = _fail(failing, "sh", "-c", "echo out; echo err >&2; printf '\\377\\000'; exit 3")
    assert Path(reply.body["verification_log"]).read_bytes() == b"out\nerr\n\xff\0"


def test_a_verification_that_hangs_is_ended_with_every_process_of_it(failing: Desk) -> None:
    marker = f"hang-{os.getpid()}-{time.monotonic_ns()}"
    late = failing.repo / "late"
    script = f"(setsid sh -c 'sleep 3; touch {late}; : {marker}' &) ; sh -c 'sleep 600; : {marker}'"
    started = time.monotonic()
    reply = _fail(failing, "sh", "-c", script, more=("--verification-timeout", "1"))
    assert time.monotonic() - started < 30
    assert reply.body["verification_timed_out"] is True
    assert reply.body["verification_exit"] == 124
    assert alive(marker) == []
    assert not late.exists()


@pytest.mark.parametrize(
    ("script", "cleaned"),
    [
        ("echo more >> f", []),
        ("echo more >> new.txt", []),
        ("echo more >> dir/g", ["dir/g"]),
        ("rm f", []),
        ("rm dir/g", ["dir/g"]),
        ("rm new.txt", []),
        ("touch extra", ["extra"]),
        ("mkdir -p a/b; touch a/b/c", ["a/b/c"]),
        ("chmod +x dir/g", ["dir/g"]),
        ("ln -sf /etc/passwd dir/g", ["dir/g"]),
        ("rm -r dir; touch dir", ["dir", "dir/g"]),
        ("rm f; mkdir f; touch f/x", ["f/x"]),
        ("git add -N extra 2>/dev/null; touch e2; git add e2", ["e2"]),
        ("git rm -q --cached dir/g", ["dir/g"]),
        ("git reset -q --hard", []),
        ("git update-index --assume-unchanged dir/g", []),
        ("git update-index --skip-worktree new.txt; rm new.txt", []),
        ("git stash -q", []),
    ],
)
def test_a_verification_that_passes_but_changed_something_is_no_verification(
    failing: Desk, script: str, cleaned: list[str]
) -> None:
    reply = _fail(failing, "sh", "-c", script)
    assert reply.body["verification_exit"] == 0
    assert reply.body["canonical_state_changed"] is True
    assert reply.body["cleaned_paths"] == cleaned
    assert "verification" in reply.stderr


def test_bytes_that_a_restore_removes_are_copied_first_and_named(failing: Desk) -> None:
    big = "x" * 100_000
    script = f"printf mine > 'sp ace'; printf '{big}' > d; printf edit >> f; ln -s target l; false"
    reply = _fail(failing, "sh", "-c", script)
    found = {item["path"]: item for item in reply.body["recovered"]}
    expected = {"sp ace": b"mine", "d": big.encode(), "f": b"changed\nedit", "l": b"target"}
    assert set(found) == set(expected)
    for name, data in expected.items():
        copy = Path(found[name]["copy"])
        got = os.fsencode(os.readlink(copy)) if name == "l" else copy.read_bytes()
        assert got == data
        assert (found[name]["sha256"], found[name]["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert copy.is_relative_to(failing.run_dir() / "recovered")
    recorded = [record for record in failing.records() if record["kind"] == "bytes-recovered"][-1]
    assert {item["path"] for item in recorded["data"]["recovered"]} == set(expected)


def test_names_that_are_no_text_are_recovered_too(failing: Desk) -> None:
    reply = _fail(failing, "sh", "-c", "printf a > \"$(printf 'n\\377')\"; printf b > \"$(printf 'a\\nb')\"; false")
    found = {os.fsencode(item["path"]): item for item in reply.body["recovered"]}
    assert set(found) == {b"n\xff", b"a\nb"}
    assert Path(found[b"n\xff"]["copy"]).read_bytes() == b"a"


def test_ignored_files_are_counted_never_restored_never_deleted(failing: Desk) -> None:
    build = failing.repo / "build"
    build.mkdir()
    for name in ("changed", "removed", "same"):
        (build / name).write_text("x")
    before = failing.fingerprint()
    script = "echo y > build/changed; rm build/removed; for n in $(seq 25); do touch build/new$n; done; false"
    reply = failing.integrate("U1", ("sh", "-c", script)).expect("BLOCKED")
    state = reply.body["ignored_state"]
    counts = {key: state[key] for key in ("before", "after", "changed", "removed", "created", "uninspectable")}
    assert counts == {"before": 3, "after": 27, "changed": 1, "removed": 1, "created": 25, "uninspectable": 0}
    assert state["sample"]["changed"] == ["build/changed"]
    assert state["sample"]["removed"] == ["build/removed"]
    assert len(state["sample"]["created"]) == state["sample_limit"] == 20
    assert state["sample"]["created"] == sorted(state["sample"]["created"])
    assert state["restored"] is False
    assert (build / "changed").read_text() == "y\n"
    assert not (build / "removed").exists()
    after = failing.fingerprint()
    assert {**after, "files": 0} == {**before, "files": 0}
    for path in build.iterdir():
        path.unlink()
    build.rmdir()


def test_no_process_of_a_passing_verification_writes_later(desk: Desk) -> None:
    desk.pending()
    marker = f"late-{os.getpid()}-{time.monotonic_ns()}"
    late = desk.repo / "late"
    deep = f"sleep 1; touch {late}; : {marker}"
    script = f"setsid sh -c '(setsid sh -c \"{deep}\" &) ; exit' ; nohup sh -c '{deep}' >/dev/null 2>&1 &"
    desk.integrate("U1", ("sh", "-c", script)).expect("UNIT_COMMITTED")
    assert alive(marker) == []
    time.sleep(1.2)
    assert not late.exists()


@pytest.mark.parametrize(
    ("more", "argv", "phrase"),
    [
        ((), (), "--"),
        ((), ("--",), "--"),
        ((), ("true", ""), "empty"),
        (("--commit-message", ""), ("true",), "--commit-message"),
        (("--commit-message", " \n "), ("true",), "--commit-message"),
        (("--commit-message", "x" * 1025), ("true",), "--commit-message"),
        (("--commit-message", "ü" * 513), ("true",), "--commit-message"),
    ],
    ids=["no command", "dashes", "empty argument", "empty message", "blank message", "long message", "long in bytes"],
)
def test_a_call_without_a_command_or_a_message_touches_nothing(
    failing: Desk, more: tuple[str, ...], argv: tuple[str, ...], phrase: str
) -> None:
    args = [*failing.of("integrate", "--commit-message", "m", *more), "--", *argv]
    failing.refuse("REFUSED", phrase, args=args)


def test_a_missing_identity_is_found_out_before_anything_is_touched(failing: Desk) -> None:
    config = failing.base / "gitconfig"
    text = config.read_text()
    config.write_text("[user]\nuseConfigOnly = true\n")
    try:
        before = failing.fingerprint()
        reply = failing.integrate().expect("BLOCKED")
        assert failing.fingerprint() == before
        assert failing.locks() == {}
        assert "identity" in reply.stderr.lower() or "email" in reply.stderr.lower()
    finally:
        config.write_text(text)


# --- on an advanced branch ----------------------------------------------------------------------------------------


def test_a_unit_that_began_on_an_earlier_head_is_merged_onto_what_was_accepted(desk: Desk) -> None:
    desk.author("U2", {"dir/g": "two changed\n", "only-two": "2\n"})
    first = desk.done("U1", {"f": "changed by one\n"})
    desk.do("INTEGRATION_PENDING", "terminalize", unit="U2")
    made = desk.integrate("U2").expect("UNIT_COMMITTED").body["canonical_commit"]
    assert made["parent"] == first
    assert (desk.repo / "f").read_text() == "changed by one\n"
    assert (desk.repo / "dir" / "g").read_text() == "two changed\n"
    assert desk.git("status", "--porcelain") == ""
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")


def test_a_unit_that_conflicts_with_what_was_accepted_is_refused_with_nothing_touched(desk: Desk) -> None:
    transport = desk.pending("U2", {"f": "two\n"})
    desk.done("U1", {"f": "something else\n"})
    before = desk.fingerprint()
    reply = desk.integrate("U2").expect("BLOCKED")
    assert "conflict" in reply.stderr
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    assert desk.state("U2") == "integration-pending"
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-transport", transport["commit"], unit="U2")
    desk.prepare("U2", "--attempt-id", "again").expect("PREPARED")


def test_a_commit_of_somebody_else_on_the_branch_is_not_worked_over(desk: Desk) -> None:
    desk.pending("U2", {"two": "2\n"})
    desk.done("U1")
    desk.git("commit", "-q", "--allow-empty", "-m", "by somebody")
    before = desk.fingerprint()
    reply = desk.integrate("U2").expect("BLOCKED")
    assert "canonical HEAD advanced outside the recorded wave" in reply.stderr
    assert desk.fingerprint() == before


# --- what cannot be put back or finished --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "undo"),
    [
        ("git commit -qm evil", lambda desk, head: desk.git("reset", "-q", "--soft", head)),
        ("git checkout -q -b evil; false", lambda desk, head: desk.git("checkout", "-q", "main")),
        ("git checkout -q --detach", lambda desk, head: desk.git("checkout", "-q", "main")),
    ],
    ids=["commit", "branch", "detached"],
)
def test_a_verification_that_moves_head_keeps_the_lock_until_it_is_put_back(
    desk: Desk, script: str, undo: Callable[[Desk, str], object]
) -> None:
    before = desk.fingerprint()
    desk.pending()
    reply = desk.integrate("U1", ("sh", "-c", script)).expect("BLOCKED")
    assert reply.body["reason"] == RESTORE_UNPROVEN
    assert set(reply.body) >= {
        "unit_id", "original_failure", "original_word", "restore_failure", "restore_word", "retain_integration_lock",
        "recovery_path", "ignored_state",
    }  # fmt: skip
    assert (reply.body["original_word"], reply.body["restore_word"]) == ("BLOCKED", "BLOCKED")
    assert reply.body["retain_integration_lock"] is True
    assert desk.locks() != {}
    blocker = desk.blockers[-1]
    assert (blocker["reason"], blocker["unit_id"]) == (RESTORE_UNPROVEN, "U1")
    desk.integrate().expect("BLOCKED")
    desk.call("resume", "--run-id", "r1").expect("BLOCKED")
    undo(desk, before["head"])
    actions = desk.call("resume", "--run-id", "r1").expect("RESUMED").body["actions"]
    assert actions[-1]["integration_lock_released"] is True
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    assert {blocker["resolved_by"] for blocker in desk.blockers} == {"resume"}


def test_a_foreign_index_lock_keeps_the_transaction_closed_until_it_is_gone(desk: Desk) -> None:
    before = desk.fingerprint()
    desk.pending(work={"f": "changed\n"})
    reply = desk.integrate("U1", ("sh", "-c", "touch .git/index.lock; false")).expect("BLOCKED")
    assert reply.body["reason"] == RESTORE_UNPROVEN
    assert (desk.repo / ".git" / "index.lock").exists(), "a lock that is not ours was removed"
    (desk.repo / ".git" / "index.lock").unlink()
    desk.call("resume", "--run-id", "r1").expect("RESUMED")
    assert desk.fingerprint() == before
    assert desk.locks() == {}


def test_a_lock_that_cannot_be_released_is_told_apart_from_a_failed_restore(desk: Desk) -> None:
    before = desk.fingerprint()
    desk.pending()
    script = f"chmod 644 {desk.runs}/.locks/integration-*.json; false"
    reply = desk.integrate("U1", ("sh", "-c", script)).expect("BLOCKED")
    assert reply.body["reason"] == RELEASE_FAILED
    assert set(reply.body) >= {"release_failure", "release_word", "original_failure", "retain_integration_lock"}
    assert reply.body["release_word"] == "UNREADABLE"
    assert desk.fingerprint() == before
    for path in (desk.runs / ".locks").glob("integration-*.json"):
        path.chmod(0o600)
    desk.call("resume", "--run-id", "r1").expect("RESUMED")
    assert desk.locks() == {}
    desk.integrate().expect("UNIT_COMMITTED")


def test_a_commit_whose_cleanup_fails_is_kept_and_finished_by_resume_without_a_second_one(desk: Desk) -> None:
    desk.pending()
    workspace = desk.unit()["workspace"]["path"]
    desk.git("worktree", "unlock", workspace, check=False)
    desk.git("worktree", "lock", "--reason", "mine", workspace)
    reply = desk.integrate().expect("BLOCKED")
    assert reply.body["reason"] == FINALIZATION
    assert set(reply.body) >= {
        "unit_id", "canonical_commit", "original_failure", "original_word", "retain_integration_lock",
        "recovery_path", "ignored_state",
    }  # fmt: skip
    made = reply.body["canonical_commit"]
    assert made["commit"] == desk.head
    assert desk.git("status", "--porcelain") == ""
    assert desk.locks() != {}
    desk.git("worktree", "unlock", workspace)
    actions = desk.call("resume", "--run-id", "r1").expect("RESUMED").body["actions"]
    assert actions[-1]["action"] == "committed-unit-finalized" or "cleanup-reconciled" in json.dumps(actions)
    assert desk.head == made["commit"]
    assert desk.locks() == {}
    assert desk.state() == "cleaned"


# --- two hosts at once --------------------------------------------------------------------------------------------


def _second_run(desk: Desk) -> None:
    desk.init("r2").expect("READY")
    desk.pending("V1", {"two": "2\n"}, run="r2")


def test_two_integrations_of_one_run_never_overlap(desk: Desk) -> None:
    desk.pending("U1")
    desk.pending("U2", {"two": "2\n"})
    child, go = desk.halted(desk.of("integrate", "--commit-message", "m"))
    try:
        reply = desk.integrate("U2").expect("REFUSED")
        assert "in use" in reply.stderr
        reply = desk.integrate("U1").expect("REFUSED")
        assert desk.unit("U2")["state"] == "integration-pending"
    finally:
        go.touch()
    desk.finish(child).expect("UNIT_COMMITTED")
    assert desk.git("rev-list", "--count", "HEAD") == "2"


def test_two_runs_on_one_branch_take_turns_and_the_loser_is_told_whose_turn_it_is(desk: Desk) -> None:
    desk.pending()
    _second_run(desk)
    child, go = desk.halted(desk.of("integrate", "--commit-message", "m"))
    try:
        reply = desk.integrate("V1", run="r2").expect("BLOCKED")
        assert (reply.body["owner_run"], reply.body["owner_unit"]) == ("r1", "U1")
        reply = desk.call(*desk.of("integration-acquire", unit="V1", run="r2")).expect("BLOCKED")
        assert (reply.body["owner_run"], reply.body["owner_unit"]) == ("r1", "U1")
        assert desk.state("V1", "r2") == "integration-pending"
    finally:
        go.touch()
    desk.finish(child).expect("UNIT_COMMITTED")


def test_a_host_that_queues_gets_its_turn_or_an_answer_in_time(desk: Desk) -> None:
    desk.pending()
    _second_run(desk)
    child, go = desk.halted(desk.of("integrate", "--commit-message", "m"))
    waiting = desk.spawn(*desk.of("integration-acquire", "--wait-lock", "30", unit="V1", run="r2"))
    try:
        assert desk.state("V1", "r2") == "integration-pending"
        assert waiting.poll() is None
    finally:
        go.touch()
    desk.finish(child).expect("UNIT_COMMITTED")
    body = desk.finish(waiting).expect("ACQUIRED").body
    wait_for(lambda: body["lock_token"] in json.dumps(desk.locks()), "the second run to hold the lock")


def test_two_branches_of_one_repository_do_not_wait_for_each_other(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    desk.git("worktree", "add", "-q", "-b", "side", str(desk.base / "linked"))
    desk.repo = desk.base / "linked"
    _second_run(desk)
    desk.integrate("V1", run="r2").expect("UNIT_COMMITTED")
    desk.repo = desk.base / "repo"
    desk.do("RELEASED", "integration-release", "--lock-token", token)
