"""How git is run: nothing that somebody left in the environment or in the repository bends it (design.md section 5)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from controller.git import scrubbed
from tests.controller.situations import DIGEST, Desk, begin, begin_run
from tests.host import BINDING, EGRESS


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A repository without a run."""
    return begin(tmp_path)


def _elsewhere(desk: Desk) -> dict[str, str]:
    """Variables that would send git to another repository, index, object store and configuration."""
    other = Desk.__new__(Desk)
    other.__dict__ |= {**desk.__dict__, "repo": desk.base / "elsewhere"}
    other.make_repo({"theirs": "theirs\n"})
    git = f"{other.repo}/.git"
    evil = desk.base / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {desk.base}/ran\nexit 1\n")
    evil.chmod(0o755)
    return {
        "GIT_DIR": git, "GIT_WORK_TREE": str(other.repo), "GIT_INDEX_FILE": f"{git}/index", "GIT_COMMON_DIR": git,
        "GIT_OBJECT_DIRECTORY": f"{git}/objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{git}/objects",
        "GIT_PREFIX": "dir/", "GIT_NAMESPACE": "theirs", "GIT_CEILING_DIRECTORIES": str(desk.base),
        "GIT_DISCOVERY_ACROSS_FILESYSTEM": "0", "GIT_SHALLOW_FILE": f"{git}/shallow", "GIT_GRAFT_FILE": f"{git}/grafts",
        "GIT_REPLACE_REF_BASE": "refs/theirs", "GIT_NO_REPLACE_OBJECTS": "", "GIT_CONFIG": f"{git}/config",
        "GIT_CONFIG_PARAMETERS": f"'core.hooksPath={desk.base}' 'core.fsmonitor={evil}'",
        "GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": str(evil),
        "GIT_CONFIG_KEY_1": "core.worktree", "GIT_CONFIG_VALUE_1": str(other.repo),
        "GIT_EXTERNAL_DIFF": str(evil), "GIT_PROXY_COMMAND": str(evil), "GIT_SSH_COMMAND": str(evil),
        "GIT_EDITOR": str(evil), "GIT_SEQUENCE_EDITOR": str(evil), "GIT_PAGER": str(evil), "GIT_ASKPASS": str(evil),
        "GIT_TEMPLATE_DIR": str(desk.base), "GIT_LITERAL_PATHSPECS": "1", "GIT_ICASE_PATHSPECS": "1",
        "GIT_TRACE": f"{desk.base}/trace", "GIT_ATTR_SOURCE": "HEAD~5", "GIT_DEFAULT_HASH": "sha256",
    }  # fmt: skip


def test_every_variable_that_selects_a_repository_is_dropped() -> None:
    names = subprocess.run(
        ["git", "rev-parse", "--local-env-vars"], capture_output=True, check=True, text=True
    ).stdout.split()
    assert "GIT_DIR" in names
    environment = scrubbed({**dict.fromkeys(names, "x"), "HOME": "/home", "GIT_AUTHOR_NAME": "me"})
    assert environment == {"HOME": "/home", "GIT_AUTHOR_NAME": "me"}


def test_a_whole_run_works_on_its_own_repository_whatever_is_inherited(desk: Desk) -> None:
    plan = b"# Plan\n"
    (desk.repo / "plan.md").write_bytes(plan)
    clean = dict(desk.env)
    bent = _elsewhere(desk)
    main = desk.repo
    desk.repo = desk.base / "elsewhere"
    theirs = desk.fingerprint()
    desk.repo = main

    def git(*args: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=main, env=clean, capture_output=True, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.decode().strip()

    def bend(*args: str, word: str) -> dict[str, object]:
        return desk.call(*args, env=bent).expect(word).body

    run = ["--run-id", "r1"]
    one = [*run, "--unit-id", "U1"]
    bend(
        "init", *run, "--repo", str(main), "--plan", "plan.md", "--plan-digest", hashlib.sha256(plan).hexdigest(),
        "--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS), word="READY",
    )  # fmt: skip
    assert desk.manifest()["repository"]["toplevel"] == str(main)
    bend("checkpoint-plan", *run, word="CHECKPOINTED")
    (desk.base / "packet").write_text("p")
    more = ["--base", git("rev-parse", "HEAD"), "--packet", str(desk.base / "packet")]
    prepared = desk.call("prepare", *one, *more, env=bent).expect("PREPARED").body
    job = desk.write_job(prepared)
    desk.env |= bent
    desk.authorize(prepared, job).expect("AUTHORIZED")
    desk.env = dict(clean)
    bend("record-job", *one, "--attempt-id", "attempt-1", "--job-id", job, word="AUTHORING")
    Path(prepared["workspace"], "new").write_text("new\n")
    desk.write_result(prepared)
    desk.end_job(job, "done")
    bend("sync-job", *one, word="SYNCED")
    bend("terminalize", *one, word="INTEGRATION_PENDING")
    token = str(bend("integration-acquire", *one, word="ACQUIRED")["lock_token"])
    mine = [*one, "--lock-token", token]
    bend("preflight", *mine, word="PREFLIGHT_OK")
    git("cherry-pick", "--no-commit", desk.unit()["transport"]["commit"])
    bend("mark-applied", *mine, word="APPLIED")
    bend("restore", *mine, word="PRESERVED")
    bend("integration-release", *mine, word="RELEASED")
    bend("integrate", *one, "--commit-message", "feat: it", "--", "true", word="UNIT_COMMITTED")
    bend("verify-run", *run, "--", "true", word="RUN_VERIFIED")
    assert bend("status", *run, word="STATUS")["repository"]["problem"] is None  # type: ignore[index]
    bend("resume", *run, word="RESUMED")
    two = [*run, "--unit-id", "U2"]
    more[1] = git("rev-parse", "HEAD")
    bend("prepare", *two, *more, word="PREPARED")
    bend("cleanup", *two, "--abandon", word="CLEANED")
    assert git("log", "--format=%s").splitlines()[0] == "feat: it"
    assert git("status", "--porcelain") == ""
    desk.repo = desk.base / "elsewhere"
    assert desk.fingerprint() == theirs
    assert not (desk.base / "ran").exists()
    assert not (desk.base / "trace").exists()


def test_the_author_that_the_environment_names_is_kept(desk: Desk) -> None:
    desk.init().expect("READY")
    desk.pending()
    names = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.invalid", "GIT_COMMITTER_NAME": "Cid"}
    args = [*desk.of("integrate", "--commit-message", "m"), "--", "true"]
    desk.call(*args, env=names).expect("UNIT_COMMITTED")
    assert desk.git("show", "-s", "--format=%an <%ae> %cn") == "Ann <ann@example.invalid> Cid"


def test_a_replaced_object_changes_neither_workspace_nor_transport_nor_checkout(desk: Desk) -> None:
    (desk.base / "evil").write_text("evil\n")
    blob = desk.git("hash-object", "-w", str(desk.base / "evil"))
    desk.git("replace", desk.git("rev-parse", "HEAD:f"), blob)
    tree = desk.git("rev-parse", "HEAD^{tree}")
    empty = desk.git("commit-tree", tree, "-m", "other history")
    assert desk.git("cat-file", "-p", "HEAD:f") == "evil"
    desk.init().expect("READY")
    prepared = desk.author(work={"f": "one\nand more\n"})
    desk.git("replace", desk.head, empty)
    workspace = Path(prepared["workspace"])
    assert (workspace / "dir" / "g").read_text() == "two\n"
    transport = desk.do("INTEGRATION_PENDING", "terminalize").body["transport"]
    assert transport["changed_paths"] == ["f"]
    desk.integrate(argv=("false",)).expect("BLOCKED")
    assert (desk.repo / "f").read_text() == "one\n"
    made = desk.integrate().expect("UNIT_COMMITTED").body["canonical_commit"]
    assert (desk.repo / "f").read_text() == "one\nand more\n"
    desk.git("replace", "-d", *desk.git("replace", "-l").split())
    assert desk.git("rev-list", "--count", "HEAD") == "2"
    assert desk.git("rev-parse", f"{made['commit']}^{{tree}}") == made["tree"]


def test_a_fresh_workspace_has_the_true_bytes_of_a_replaced_base(desk: Desk) -> None:
    (desk.base / "evil").write_text("evil\n")
    desk.git("replace", desk.git("rev-parse", "HEAD:f"), desk.git("hash-object", "-w", str(desk.base / "evil")))
    desk.init().expect("READY")
    prepared = desk.prepare().expect("PREPARED").body
    assert (Path(prepared["workspace"]) / "f").read_text() == "one\n"


def test_git_is_never_asked_through_a_path_that_a_worker_controls(desk: Desk) -> None:
    """A `git` in the worker's folder, or in the checkout, is not the one that is run."""
    desk.init().expect("READY")
    marker = desk.base / "ran"

    def work(workspace: Path) -> None:
        (workspace / "git").write_text(f"#!/bin/sh\ntouch {marker}\n")
        (workspace / "git").chmod(0o755)

    desk.pending(work=work)
    desk.integrate().expect("UNIT_COMMITTED")
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert not marker.exists()


def test_a_git_that_hangs_or_is_missing_is_a_blocker_not_a_crash(desk: Desk) -> None:
    desk.init().expect("READY")
    empty = desk.base / "empty"
    empty.mkdir()
    reply = desk.call(*desk.of("sync-job"), env={"PATH": str(empty)})
    assert reply.word in ("REFUSED", "SYNCED")
    (desk.base / "packet").write_text("p")
    args = ["prepare", "--run-id", "r1", "--unit-id", "U1", "--base", "HEAD", "--packet", str(desk.base / "packet")]
    reply = desk.refuse("BLOCKED", "git", args=args, env={"PATH": str(empty)})
    assert "install git" in reply.stderr
    assert (
        desk.call("status", "--run-id", "r1", env={"PATH": str(empty)}).expect("STATUS").body["repository"]["problem"]
    )


@pytest.mark.parametrize("name", [b"with space", b"new\nline", b"n\xff\xfe", "ünï".encode(), b"-dash", b"$(touch x)"])
def test_a_repository_whose_path_is_no_plain_text_is_worked_in_all_the_same(tmp_path: Path, name: bytes) -> None:
    base = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    desk = begin_run(base)
    assert os.fsencode(desk.manifest()["repository"]["toplevel"]) == os.fsencode(desk.repo)
    desk.pending(work={"new.txt": "new\n", "f": "changed\n"})
    desk.integrate(argv=("sh", "-c", "echo x > extra; false")).expect("BLOCKED")
    assert desk.git("status", "--porcelain") == ""
    desk.integrate().expect("UNIT_COMMITTED")
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert desk.call("status", "--run-id", "r1").expect("STATUS").body["repository"]["problem"] is None
    assert desk.git("status", "--porcelain") == ""


def test_a_sha256_repository_is_worked_in_all_the_same(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.env["GIT_DEFAULT_HASH"] = "sha256"
    desk.make_repo()
    del desk.env["GIT_DEFAULT_HASH"]
    assert len(desk.head) == 64
    desk.init().expect("READY")
    transport = desk.pending(work={"new.txt": "new\n", "f": "changed\r\n"})
    assert len(transport["commit"]) == 64
    desk.integrate(argv=("false",)).expect("BLOCKED")
    desk.integrate().expect("UNIT_COMMITTED")
    desk.failed("U2")
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless", unit="U2")
    desk.git("commit", "-q", "--allow-empty", "-m", "native")
    more = ("--accepted-head", desk.head, "--evidence-digest", DIGEST, "--summary", "s")
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *more, unit="U2")
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
