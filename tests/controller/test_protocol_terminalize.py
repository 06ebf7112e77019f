"""`terminalize`: the worker's complete tree becomes one commit on its base, or a blocker says exactly why not."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controller.situations import Desk, begin_run

Work = Callable[[Path], None]
TRANSPORT = {"base", "tree", "commit", "ref", "digest", "changed_paths", "inventory_b64"}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _git(workspace: Path, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=w", "-c", "user.email=w@w", *args],
        cwd=workspace,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )


def _shown(desk: Desk, transport: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Path to (mode, bytes) of the transport's tree, byte-exact names."""
    out = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--full-tree", transport["commit"]],
        cwd=desk.repo, env=desk.env, capture_output=True, check=True, stdin=subprocess.DEVNULL,
    ).stdout  # fmt: skip
    found = {}
    for record in out.split(b"\0")[:-1]:
        head, _, name = record.partition(b"\t")
        mode, _kind, oid = head.decode().split(" ")
        data = subprocess.run(
            ["git", "cat-file", "blob", oid], cwd=desk.repo, env=desk.env, capture_output=True, check=True
        ).stdout  # fmt: skip
        found[os.fsdecode(name)] = (mode, data)
    return found


# --- the transport ------------------------------------------------------------------------------------------------


def test_the_transport_is_one_commit_on_the_base_that_survives_garbage_collection(desk: Desk) -> None:
    before = desk.fingerprint()
    desk.author(work={"new.txt": "new\n", "f": "changed\n"})
    reply = desk.do("INTEGRATION_PENDING", "terminalize")
    transport = reply.body["transport"]
    assert set(transport) == TRANSPORT
    assert transport["base"] == desk.head
    form = "--format=%P|%T|%an <%ae>|%cn <%ce>|%B"
    identity = "ce-work transport <ce-work@localhost>"
    assert desk.git("show", "-s", form, transport["commit"]) == (
        f"{transport['base']}|{transport['tree']}|{identity}|{identity}|ce-work transport r1/U1"
    )
    names = [hashlib.sha256(name.encode()).hexdigest()[:20] for name in ("r1", "U1")]
    assert transport["ref"] == f"refs/ce-work/{names[0]}/{names[1]}"
    raw = base64.b64decode(transport["inventory_b64"])
    assert raw == b"M\0f\0A\0new.txt\0"
    parts = (transport["base"], transport["tree"], transport["commit"])
    assert transport["digest"] == hashlib.sha256(b"\0".join([*(part.encode() for part in parts), raw])).hexdigest()
    assert transport["changed_paths"] == ["f", "new.txt"]
    desk.git("reflog", "expire", "--expire=now", "--all")
    desk.git("gc", "-q", "--prune=now")
    assert desk.git("cat-file", "-t", transport["commit"]) == "commit"
    assert desk.fingerprint() == before
    with desk.unchanged():
        assert desk.do("INTEGRATION_PENDING", "terminalize").body["transport"] == transport
    assert (desk.state(), desk.kinds().count("transport-pinned")) == ("integration-pending", 1)
    receipt = desk.unit()["attempts"][0]["terminal_receipt"]
    assert (receipt["terminal_status"], receipt["changed_files"], receipt["evidence_count"]) == ("completed", ["f"], 1)


def _odd_names(workspace: Path) -> None:
    for name in (
        b"new\nline",
        b"sp ace",
        b"quo\"te'",
        b"n\xff\xfe",
        b"back\\slash",
        b"tab\t",
        "ünï".encode(),
        b"-dash",
    ):
        Path(os.fsdecode(os.fsencode(workspace) + b"/" + name)).write_bytes(name)


def test_names_that_are_no_text_arrive_byte_for_byte(desk: Desk) -> None:
    transport = desk.pending(work=_odd_names)
    shown = _shown(desk, transport)
    for name in (
        b"new\nline",
        b"sp ace",
        b"quo\"te'",
        b"n\xff\xfe",
        b"back\\slash",
        b"tab\t",
        "ünï".encode(),
        b"-dash",
    ):
        assert shown[os.fsdecode(name)] == ("100644", name)
        assert os.fsdecode(name) in transport["changed_paths"]
    desk.integrate().expect("UNIT_COMMITTED")
    assert desk.git("status", "--porcelain") == ""
    assert Path(os.fsdecode(os.fsencode(desk.repo) + b"/n\xff\xfe")).read_bytes() == b"n\xff\xfe"


def _kinds(workspace: Path) -> None:
    (workspace / "script").write_text("#!/bin/sh\n")
    (workspace / "script").chmod(0o755)
    (workspace / "link").symlink_to("/no/such/target")
    (workspace / "binary").write_bytes(bytes(range(256)) * 4096)
    (workspace / "empty").touch()
    (workspace / "f").chmod(0o755)
    (workspace / "dir" / "g").rename(workspace / "moved")
    (workspace / "f_as_folder").mkdir()
    (workspace / "f_as_folder" / "x").write_text("x")
    (workspace / "only-empty-folder").mkdir()


def test_links_modes_binaries_renames_and_empty_files_arrive_as_they_are(desk: Desk) -> None:
    transport = desk.pending(work=_kinds)
    shown = _shown(desk, transport)
    assert shown["script"] == ("100755", b"#!/bin/sh\n")
    assert shown["link"] == ("120000", b"/no/such/target")
    assert shown["binary"] == ("100644", bytes(range(256)) * 4096)
    assert shown["empty"] == ("100644", b"")
    assert shown["f"] == ("100755", b"one\n")
    assert "dir/g" not in shown
    assert shown["moved"] == ("100644", b"two\n")
    assert {"dir/g", "moved"} <= set(transport["changed_paths"])
    desk.integrate().expect("UNIT_COMMITTED")
    assert os.access(desk.repo / "script", os.X_OK)
    assert os.readlink(desk.repo / "link") == "/no/such/target"
    assert not (desk.repo / "dir").exists()


def test_a_file_that_becomes_a_folder_and_a_folder_that_becomes_a_link_arrive(desk: Desk) -> None:
    def work(workspace: Path) -> None:
        (workspace / "f").unlink()
        (workspace / "f").mkdir()
        (workspace / "f" / "inside").write_text("x")
        (workspace / "dir" / "g").unlink()
        (workspace / "dir").rmdir()
        (workspace / "dir").symlink_to("f")

    desk.pending(work=work)
    desk.integrate().expect("UNIT_COMMITTED")
    assert (desk.repo / "f" / "inside").read_text() == "x"
    assert os.readlink(desk.repo / "dir") == "f"
    assert desk.git("status", "--porcelain") == ""


def test_a_worker_that_changed_nothing_still_has_a_transport(desk: Desk) -> None:
    transport = desk.pending(work=lambda workspace: None)
    assert transport["changed_paths"] == []
    assert transport["tree"] == desk.git("rev-parse", "HEAD^{tree}")
    assert transport["commit"] != desk.head


def _commits(workspace: Path) -> None:
    (workspace / "a").write_text("a\n")
    _git(workspace, "add", "-A")
    _git(workspace, "commit", "-qm", "mine")
    (workspace / "b").write_text("b\n")
    _git(workspace, "add", "b")
    (workspace / "c").write_text("c\n")


def _hidden(workspace: Path) -> None:
    for name in "abc":
        (workspace / name).write_text(f"{name}\n")
    _git(workspace, "add", "-A")
    _git(workspace, "update-index", "--assume-unchanged", "f")
    _git(workspace, "update-index", "--skip-worktree", "a", "b")
    (workspace / ".git").stat()


def _reset(workspace: Path) -> None:
    for name in "abc":
        (workspace / name).write_text(f"{name}\n")
    _git(workspace, "add", "-A")
    _git(workspace, "commit", "-qm", "mine")
    _git(workspace, "reset", "-q", "HEAD~1")
    _git(workspace, "rm", "-q", "--cached", "f")


def _no_index(workspace: Path) -> None:
    for name in "abc":
        (workspace / name).write_text(f"{name}\n")
    pointer = (workspace / ".git").read_text().split(" ", 1)[1].strip()
    Path(pointer, "index").write_bytes(b"garbage")


@pytest.mark.parametrize("work", [_commits, _hidden, _reset, _no_index], ids=["commits", "bits", "reset", "index"])
def test_what_the_worker_did_with_its_index_or_head_changes_nothing(desk: Desk, work: Work) -> None:
    transport = desk.pending(work=work)
    assert transport["changed_paths"] == ["a", "b", "c"]
    assert desk.git("rev-list", "--count", f"{transport['base']}..{transport['commit']}") == "1"


# --- what the worker plants ---------------------------------------------------------------------------------------


def test_nothing_that_the_worker_wrote_is_ever_run(desk: Desk) -> None:
    """Attributes, filters, hooks, fsmonitor, aliases: everything that git could run because of a worker's file."""
    marker = desk.base / "ran"
    evil = desk.base / "evil.sh"
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >> {marker}\ncat\n')
    evil.chmod(0o755)

    def work(workspace: Path) -> None:
        (workspace / "new.txt").write_text("new\n")
        (workspace / ".gitattributes").write_text("* filter=evil diff=evil merge=evil text\n")
        (workspace / ".gitmodules").write_text(f'[submodule "x"]\n path = x\n url = x\n update = !{evil}\n')
        (workspace / ".lfsconfig").write_text("[lfs]\n url = file:///x\n")
        for key in ("filter.evil.clean", "filter.evil.smudge", "diff.evil.command", "diff.evil.textconv"):
            _git(workspace, "config", key, str(evil))
        for key in ("filter.evil.process", "merge.evil.driver", "core.fsmonitor", "core.pager", "core.editor"):
            _git(workspace, "config", key, str(evil))
        for key in ("core.sshCommand", "gpg.program", "credential.helper", "uploadpack.packObjectsHook"):
            _git(workspace, "config", key, str(evil))
        _git(workspace, "config", "core.hooksPath", str(desk.base / "hooks"))
        _git(workspace, "config", "commit.gpgSign", "true")
        (desk.base / "hooks").mkdir()
        for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit", "post-rewrite"):
            (desk.base / "hooks" / hook).symlink_to(evil)

    desk.author(work=work)
    marker.unlink(missing_ok=True)  # the worker's own git calls ran its hooks
    reply = desk.call(*desk.of("terminalize"))
    assert reply.word in ("INTEGRATION_PENDING", "BLOCKED"), reply
    assert not marker.exists(), marker.read_text()
    desk.call("resume", "--run-id", "r1")
    desk.do("STATUS", "status")
    assert not marker.exists(), marker.read_text()


def test_a_pointer_that_the_worker_bent_to_another_repository_is_not_followed(desk: Desk) -> None:
    def work(workspace: Path) -> None:
        _git(workspace, "init", "-q", str(desk.base / "elsewhere"))
        (workspace / ".git").unlink()
        (workspace / ".git").write_text(f"gitdir: {desk.base}/elsewhere/.git\n")
        (workspace / "new").write_text("x")

    desk.author(work=work)
    reply = desk.do("BLOCKED", "terminalize")
    assert ".git file" in reply.stderr
    assert desk.git("for-each-ref", "refs/ce-work") == ""


# --- blockers -----------------------------------------------------------------------------------------------------


def _submodule(workspace: Path) -> None:
    _git(workspace, "init", "-q", "sub")
    (workspace / "sub" / "x").write_text("x")
    _git(workspace / "sub", "add", "x")
    _git(workspace / "sub", "commit", "-qm", "x")


def _bare(workspace: Path) -> None:
    (workspace / "deep" / ".GIT").mkdir(parents=True)
    (workspace / "deep" / ".GIT" / "config").write_text("x")


def _fifo(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "f").write_text("x")


def _socket(workspace: Path) -> None:
    where = os.getcwd()
    os.chdir(workspace)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
    finally:
        os.chdir(where)


def _ignored(workspace: Path) -> None:
    (workspace / "build").mkdir()
    for number in range(120):
        (workspace / "build" / f"o{number:03}").write_text("x")


def _branch(workspace: Path) -> None:
    _git(workspace, "checkout", "-q", "-b", "mine")


def _merge(workspace: Path) -> None:
    pointer = (workspace / ".git").read_text().split(" ", 1)[1].strip()
    Path(pointer, "MERGE_HEAD").write_text("0" * 40 + "\n")


@pytest.mark.parametrize(
    ("work", "phrases"),
    [
        (_submodule, ["submodule state cannot be transported implicitly"]),
        (_bare, ["submodule state cannot be transported implicitly", "deep/.GIT"]),
        (_fifo, ["pipe"]),
        (_socket, ["cannot record"]),
        (_ignored, ["ignored untracked output", "build/o000"]),
        (_branch, ["not detached"]),
        (_merge, ["MERGE_HEAD"]),
    ],
    ids=["nested repository", "disguised .git", "FIFO", "socket", "ignored", "branch", "merge"],
)  # fmt: skip
def test_what_cannot_be_transported_whole_is_not_transported_in_part(
    desk: Desk, work: Work, phrases: list[str]
) -> None:
    job = desk.author(work=work)["job_id"]
    before = desk.fingerprint()
    reply = desk.do("BLOCKED", "terminalize")
    for phrase in phrases:
        assert phrase in reply.stderr, reply
    if work is _ignored:
        assert reply.body["ignored_path_count"] == 120
        assert len(reply.body["ignored_paths"]) == 100
        preview = json.loads("[" + reply.stderr.split("[", 1)[1].split("]", 1)[0] + "]")
        assert len(preview) == 20
    assert desk.fingerprint() == before
    assert desk.git("for-each-ref", "refs/ce-work") == ""
    attempt = desk.unit()["attempts"][0]
    failure = attempt["terminal_validation_failure"]
    assert set(failure) >= {"at", "word", "reason", "detail", "job_id", "result_sha256"}
    assert (failure["word"], failure["job_id"]) == ("BLOCKED", job)
    assert attempt["fallback"] == {"eligible": True, "reason": "terminal-validation-failure", "claimed": None}


def test_a_repeated_blocker_is_recorded_once_and_opens_the_fallback(desk: Desk) -> None:
    desk.author(work=_fifo)
    desk.do("BLOCKED", "terminalize")
    with desk.unchanged():
        desk.do("BLOCKED", "terminalize")
    claim = desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless")
    assert claim.body["reason"] == "terminal-validation-failure"


def test_a_removed_obstacle_lets_the_same_output_through(desk: Desk) -> None:
    prepared = desk.author(work=_fifo)
    desk.do("BLOCKED", "terminalize")
    Path(prepared["workspace"], "pipe").unlink()
    desk.do("INTEGRATION_PENDING", "terminalize")
    attempt = desk.unit()["attempts"][0]
    assert "terminal_validation_failure" not in attempt
    assert attempt["fallback"] == {"eligible": False, "reason": None, "claimed": None}


def _with_submodule(desk: Desk) -> None:
    inner = desk.base / "inner"
    subprocess.run(["git", "init", "-q", str(inner)], check=True, env=desk.env, stdin=subprocess.DEVNULL)
    (inner / "x").write_text("x\n")
    desk.git("add", "-A", cwd=inner)
    desk.git("commit", "-qm", "x", cwd=inner)
    desk.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "mod")
    desk.git("commit", "-qm", "submodule")


def test_an_untouched_submodule_is_no_obstacle_and_a_populated_one_is(desk: Desk) -> None:
    _with_submodule(desk)
    transport = desk.pending()
    assert transport["changed_paths"] == ["new.txt"]
    desk.integrate().expect("UNIT_COMMITTED")
    assert (desk.repo / "mod" / "x").read_text() == "x\n"

    def populate(workspace: Path) -> None:
        (workspace / "mod" / "y").write_text("lost")

    desk.author("U2", work=populate)
    reply = desk.do("BLOCKED", "terminalize", unit="U2")
    assert "submodule state cannot be transported implicitly" in reply.stderr


# --- the receipt --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, dict[str, Any]]:
    """A unit whose job is done and whose result is never acceptable as the tests write it."""
    made = begin_run(tmp_path_factory.mktemp("terminalize"))
    prepared = made.author()
    made.do("SYNCED", "sync-job")
    return made, prepared


@pytest.mark.parametrize(
    ("changes", "mismatch"),
    [
        ({"requested_route": "claude"}, "requested_route"),
        ({"actual_route": "claude"}, "actual_route"),
        ({"actual_route": None}, "actual_route"),
        ({"target": "claude"}, "target"),
        ({"harness": "claude"}, "harness"),
        ({"intermediaries": ["cursor"]}, "intermediaries"),
        ({"model_requested": "gpt-5"}, "model_requested"),
        ({"restriction_posture": "cooperative"}, "restriction_posture"),
        ({"packet_digest": "0" * 64}, "packet_digest"),
        ({"model_receipt_status": "mismatch"}, None),
        ({"terminal_status": "failed"}, None),
        ({"terminal_status": "unavailable", "actual_route": None}, None),
        ({"terminal_status": "glorious"}, None),
        ({"schema_version": 2}, None),
        ({"changed_files": "f"}, None),
        ({"changed_files": [""]}, None),
        ({"raw_log": "/etc/hostname"}, None),
        ({"scope_expansion": {"requested_paths": []}}, None),
    ],
    ids=lambda value: json.dumps(value)[:45] if isinstance(value, dict) else "",
)
def test_an_answer_of_another_route_model_or_packet_is_not_this_worker_s(
    done: tuple[Desk, dict[str, Any]], changes: dict[str, Any], mismatch: str | None
) -> None:
    desk, prepared = done
    before = desk.fingerprint()
    desk.write_result(prepared, **changes)
    reply = desk.do("BLOCKED", "terminalize")
    if mismatch:
        phrase = "adapter terminal receipt does not match controller authorization"
        assert phrase in reply.stderr
        assert list(reply.body["mismatches"]) == [mismatch]
        assert set(reply.body["mismatches"][mismatch]) == {"expected", "actual"}
    unit = desk.unit()
    assert unit["state"] == "authoring"
    assert unit["attempts"][0]["fallback"]["reason"] == "terminal-validation-failure"
    assert desk.fingerprint() == before
    assert desk.git("for-each-ref", "refs/ce-work") == ""


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (lambda folder: (folder / "implementation-result.json").unlink(), "BLOCKED"),
        (lambda folder: (folder / "implementation-result.json").write_text("not json"), "BLOCKED"),
        (lambda folder: (folder / "implementation-result.json").chmod(0o644), "UNREADABLE"),
        (lambda folder: os.truncate(folder / "implementation-result.json", 5 * 1024 * 1024 + 1), "UNREADABLE"),
        (lambda folder: (folder / "adapter.log").unlink(), "UNREADABLE"),
        (lambda folder: (folder / "adapter.log").chmod(0o644), "UNREADABLE"),
        (lambda folder: os.truncate(folder / "adapter.log", 10 * 1024 * 1024 + 1), "UNREADABLE"),
        (
            lambda folder: (folder / "adapter.log").rename(folder / "x") and (folder / "adapter.log").symlink_to("x"),
            "UNREADABLE",
        ),
    ],
    ids=["no result", "no JSON", "open result", "long result", "no log", "open log", "long log", "linked log"],
)
def test_a_result_that_is_missing_long_or_open_to_others_is_not_read(
    done: tuple[Desk, dict[str, Any]], harm: Callable[[Path], object], word: str
) -> None:
    desk, prepared = done
    folder = Path(prepared["result_dir"])
    desk.write_result(prepared)
    harm(folder)
    desk.do(word, "terminalize")
    for name in ("adapter.log", "x", "implementation-result.json"):
        (folder / name).unlink(missing_ok=True)
    assert desk.state() == "authoring"


def test_more_reported_files_than_the_limit_are_cut_not_refused(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, changed_files=[f"f{number}" for number in range(1500)], summary="s" * 5000)
    desk.do("INTEGRATION_PENDING", "terminalize")
    receipt = desk.unit()["attempts"][0]["terminal_receipt"]
    assert (len(receipt["changed_files"]), receipt["changed_file_count"]) == (1000, 1500)
    assert len(receipt["summary"]) == 4096


def test_a_blocked_worker_keeps_its_workspace_and_opens_no_fallback(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, terminal_status="blocked", summary="the key is missing")
    reply = desk.do("BLOCKED", "terminalize")
    assert set(reply.body) >= {"unit_id", "terminal_status", "summary", "terminal_receipt", "recovery_path"}
    assert (reply.body["terminal_status"], reply.body["summary"]) == ("blocked", "the key is missing")
    assert Path(prepared["workspace"], "new.txt").exists()
    unit = desk.unit()
    assert (unit["state"], unit["attempts"][0]["fallback"]["eligible"]) == ("authored", False)
    with desk.unchanged():
        desk.do("BLOCKED", "terminalize")
        reply = desk.do("REFUSED", "claim-fallback", "--caller-mode", "headless")
    assert "successful worker output must be reconciled rather than bypassed" in reply.stderr
    desk.write_result(prepared, terminal_status="blocked", summary="another answer")
    reply = desk.do("BLOCKED", "cleanup", "--abandon", "--expect-job", prepared["job_id"])
    assert "done output is not an exactly retained worker blocker" in reply.stderr


def test_a_wish_for_more_scope_is_transported_but_never_integrated(desk: Desk) -> None:
    prepared = desk.author()
    wider = {"requested_paths": ["elsewhere"], "reason": "needed"}
    desk.write_result(prepared, terminal_status="scope_expansion", scope_expansion=wider)
    transport = desk.do("INTEGRATION_PENDING", "terminalize").body["transport"]
    before = desk.fingerprint()
    reply = desk.integrate().expect("BLOCKED")
    assert set(reply.body) >= {"unit_id", "terminal_status", "transport", "recovery_path"}
    assert (reply.body["terminal_status"], reply.body["transport"]) == ("scope_expansion", transport)
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    assert desk.unit()["attempts"][0]["terminal_receipt"]["scope_expansion_requested"] == wider


# --- not now ------------------------------------------------------------------------------------------------------


def test_a_job_that_has_not_ended_well_is_blocked_not_pinned(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    desk.refuse("BLOCKED", "never-started", args=desk.of("terminalize"))
    job = desk.write_job(prepared)
    desk.authorize(prepared, job).expect("AUTHORIZED")
    for word in ("failed", "timeout", "died-without-result"):
        desk.end_job(job, word)
        assert word in desk.do("BLOCKED", "terminalize").stderr
    assert desk.git("for-each-ref", "refs/ce-work") == ""


def test_a_unit_that_is_past_its_transport_is_blocked_and_keeps_it(desk: Desk) -> None:
    desk.preserved()
    desk.refuse("BLOCKED", "preserved", args=desk.of("terminalize"))
    desk.integrate().expect("UNIT_COMMITTED")
    desk.refuse("BLOCKED", "cleaned", args=desk.of("terminalize"))


def test_a_claimed_fallback_is_not_overtaken_by_late_output(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, target="claude")
    desk.do("BLOCKED", "terminalize")
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless")
    desk.write_result(prepared)
    reply = desk.do("REFUSED", "terminalize")
    assert "native fallback already owns implementation" in reply.stderr
    assert desk.git("for-each-ref", "refs/ce-work") == ""


@pytest.mark.parametrize("same", [True, False], ids=["our own ref", "a foreign ref"])
def test_a_ref_that_is_there_already_is_reused_only_if_it_is_this_very_transport(desk: Desk, same: bool) -> None:
    prepared = desk.author()
    desk.killed(*desk.of("terminalize"), env=desk.killing_git('*" diff-tree "*', "after"))
    (commit,) = [line.split()[2] for line in desk.git("fsck", "--no-reflogs").split("\n") if "dangling commit" in line]
    ref = "refs/ce-work/" + "/".join(hashlib.sha256(name).hexdigest()[:20] for name in (b"r1", b"U1"))
    desk.git("update-ref", ref, commit if same else desk.head)
    if same:
        reply = desk.do("INTEGRATION_PENDING", "terminalize")
        assert (reply.body["transport"]["ref"], reply.body["transport"]["commit"]) == (ref, commit)
        return
    reply = desk.do("BLOCKED", "terminalize")
    assert "ref" in reply.stderr
    assert desk.git("rev-parse", ref) == desk.head
    assert Path(prepared["workspace"], "new.txt").exists()


# --- line endings and filters -------------------------------------------------------------------------------------


def _status_after_touch(desk: Desk) -> str:
    for path in desk.repo.rglob("*"):
        if ".git" not in path.parts and path.is_file():
            os.utime(path, (1_700_000_000, 1_700_000_000))
    return desk.git("status", "--porcelain")


ATTRIBUTES = """*.auto text=auto
*.crlf text eol=crlf
*.lf text eol=lf
*.raw -text
*.ident ident
*.utf16 working-tree-encoding=UTF-16LE eol=lf
*.latin working-tree-encoding=ISO-8859-1 eol=lf
"""
CRLF = b"a\r\nb $Id$\r\n"
FILES = {
    "x.auto": CRLF, "x.crlf": CRLF, "x.lf": CRLF, "x.raw": CRLF, "x.ident": b"$Id: 0 $\n", "x.plain": CRLF,
    "deep/x.utf16": "ä\n".encode("utf-16-le"), "x.latin": "ä\n".encode("latin-1"), "x.bin": b"\0\r\n\xff",
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [{"core.eol": "native"}, {"core.autocrlf": "true"}, {"core.autocrlf": "input"}, {"core.eol": "crlf"}],
    ids=["defaults", "autocrlf", "input", "eol"],
)
def test_line_endings_and_encodings_are_converted_as_git_does_and_leave_the_checkout_clean(
    tmp_path: Path, config: dict[str, str]
) -> None:
    desk = begin_run(tmp_path, attributes=ATTRIBUTES, config=config)

    def work(workspace: Path) -> None:
        for name, data in FILES.items():
            (workspace / name).parent.mkdir(exist_ok=True)
            (workspace / name).write_bytes(data)
        (workspace / "old.txt").write_bytes(CRLF)

    transport = desk.pending(work=work)
    desk.git("clone", "-q", str(desk.repo), str(desk.base / "oracle"))
    for key, value in config.items():
        desk.git("config", key, value, cwd=desk.base / "oracle")
    work(desk.base / "oracle")
    desk.git("add", "-A", cwd=desk.base / "oracle")
    assert transport["tree"] == desk.git("write-tree", cwd=desk.base / "oracle")
    desk.integrate().expect("UNIT_COMMITTED")
    assert desk.git("status", "--porcelain") == ""
    assert _status_after_touch(desk) == ""
    for name in ("x.bin", "x.latin", "deep/x.utf16", "x.raw", "x.crlf"):
        assert (desk.repo / name).read_bytes() == FILES[name]


def test_the_user_s_own_clean_filter_is_applied_and_leaves_the_checkout_clean(tmp_path: Path) -> None:
    desk = begin_run(
        tmp_path,
        attributes="*.txt filter=rot\n",
        config={"filter.rot.clean": "tr a-z n-za-m", "filter.rot.smudge": "tr a-z n-za-m", "filter.rot.required": "1"},
    )
    transport = desk.pending(work={"new.txt": "secret\n"})
    assert desk.git("show", f"{transport['commit']}:new.txt") == "frperg"
    desk.integrate().expect("UNIT_COMMITTED")
    assert (desk.repo / "new.txt").read_text() == "secret\n"
    assert _status_after_touch(desk) == ""


def test_attributes_that_the_unit_itself_adds_never_leave_a_dirty_checkout(desk: Desk) -> None:
    """Git is never given attributes of a worker's making (design.md section 5), so these bytes may not fit them."""

    def work(workspace: Path) -> None:
        (workspace / ".gitattributes").write_text("*.txt text\n")
        (workspace / "new.txt").write_bytes(b"a\r\nb\r\n")

    desk.pending(work=work)
    before = desk.fingerprint()
    if desk.integrate().word == "BLOCKED":
        assert desk.fingerprint() == before
    assert _status_after_touch(desk) == ""
    assert desk.locks() == {}
