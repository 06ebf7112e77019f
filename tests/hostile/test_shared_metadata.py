"""A worker that tampers with what a linked worktree shares with the canonical checkout: configuration, refs, objects.

The comparison of fingerprints between `prepare` and `terminalize` comes later (README.md lists what it has to add).
What must hold already: nothing of it is run, the transport follows the configuration recorded at `prepare`, and a
branch that moved blocks. launcher.md section 15, W3-W6, W10, W11.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import pytest

from controller.transport import ref_name
from tests.hazards.support import Trap, abandon, case, ids, resume, terminalize, worktrees
from tests.host import Host
from tests.hostile.support import SAFE, blob, outcome, poison, quiet, safe_git, transport_of, worker


def _config(host: Host, workspace: Path, name: str, value: str) -> None:
    worker(host, "git", *SAFE, "config", name, value, cwd=workspace)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_programs_that_a_worker_configures_are_never_run(run: Host, trap: Trap) -> None:
    """W3, W5: through terminalize, integrate, verify-run, the next prepare, status, resume and cleanup."""
    safe_git(run)

    def work(workspace: Path) -> None:
        poison(run, trap, workspace)
        trap.hooks(run.repo / ".git/hooks")
        (workspace / "new").write_text("new\n")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    with quiet(trap):
        run.integrate("U1", ["false"]).expect("BLOCKED")
        run.integrate().expect("UNIT_COMMITTED")
        run.prepare("U2").expect("PREPARED")
        run.call("status", "--run-id", "r1").expect("STATUS")
        resume(run).expect("RESUMED")
        abandon(run, "U2").expect("CLEANED")
        run.init("r2").expect("READY")
    plain = run.base / "plain"
    plain.mkdir()
    assert run.git("cat-file", "commit", "HEAD").count("gpgsig") == 0
    worker(run, "git", "status", cwd=run.repo, check=False)
    assert trap.sprung, "the trap works: plain git falls into it"


def test_filters_that_a_worker_configures_are_never_run_on_its_own_files(run: Host, trap: Trap) -> None:
    """W3, W4: a clean filter could show the gate other bytes than the merge gets. The bytes on disk count."""

    def work(workspace: Path) -> None:
        for name in ("clean", "smudge", "process"):
            _config(run, workspace, f"filter.evil.{name}", str(trap.program))
        _config(run, workspace, "filter.evil.required", "true")
        (run.repo / ".git/info/attributes").write_text("* filter=evil diff=evil merge=evil\n")
        (workspace / ".gitattributes").write_text("* filter=evil\n")
        (workspace / "f").write_text("worker\n")

    run.author("U1", work)
    with quiet(trap):
        terminalize(run).expect("INTEGRATION_PENDING")
    assert blob(run, "f") == b"worker\n"
    assert sorted(transport_of(run)["changed_paths"]) == [".gitattributes", "f"]
    with quiet(trap):
        abandon(run).expect("CLEANED")


LATER = "the fingerprint of shared Git metadata is compared in a later issue: README.md, `what the later gate adds`"


@pytest.mark.xfail(strict=True, reason=LATER)
@pytest.mark.parametrize("kind", ["filter", "merge driver"])
def test_filters_and_merge_drivers_of_a_worker_are_never_run_in_the_canonical_checkout(
    run: Host, trap: Trap, kind: str
) -> None:
    lines = "1\n2\n3\n4\n5\n6\n"
    (run.repo / "f").write_text(lines)
    run.git("commit", "-qam", "lines")
    if kind == "merge driver":  # the canonical branch must have moved on
        run.author("U2", {"f": lines.replace("1", "one")})
        terminalize(run, "U2").expect("INTEGRATION_PENDING")

    def work(workspace: Path) -> None:
        (workspace / "f").write_text(lines.replace("6", "six"))
        attribute = "filter=evil" if kind == "filter" else "merge=evil"
        (run.repo / ".git/info/attributes").write_text(f"* {attribute}\n")
        name = "filter.evil.smudge" if kind == "filter" else "merge.evil.driver"
        _config(run, workspace, name, str(trap.program))

    run.author("U1", work)
    reply = terminalize(run)
    with quiet(trap):
        if kind == "merge driver":
            run.integrate("U2")
        if reply.word == "INTEGRATION_PENDING":
            run.integrate("U1")


@pytest.mark.xfail(strict=True, reason=LATER)
def test_a_commit_never_bears_a_name_that_a_worker_configured(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        (workspace / "f").write_text("worker\n")
        _config(run, workspace, "user.name", "somebody else")

    run.author("U1", work)
    if terminalize(run).word == "INTEGRATION_PENDING":
        run.integrate()
    assert run.git("log", "-1", "--format=%an") == "Test"


@pytest.mark.xfail(strict=True, reason=LATER)
def test_a_branch_stash_or_hook_that_a_worker_leaves_behind_is_named_when_its_work_is_pinned(
    run: Host, trap: Trap
) -> None:
    def work(workspace: Path) -> None:
        (workspace / "f").write_text("worker\n")
        worker(run, "git", "branch", "left-behind", cwd=workspace)
        worker(run, "git", "stash", cwd=workspace)
        trap.hooks(run.repo / ".git/hooks")
        (workspace / "f").write_text("worker\n")

    reply = outcome(run, trap, work).expect("BLOCKED")
    assert "left-behind" in str(reply.body)


def test_conversions_follow_the_configuration_recorded_at_prepare(run: Host, trap: Trap) -> None:
    """W10, W14: what a worker sets later changes no byte, mode, type or name of the transport."""

    def work(workspace: Path) -> None:
        attributes = run.base / "attributes"
        attributes.write_text("* text=auto eol=crlf ident working-tree-encoding=UTF-16\n")
        for name, value in {
            "core.autocrlf": "input",
            "core.fileMode": "false",
            "core.symlinks": "false",
            "core.ignoreCase": "true",
            "core.excludesFile": str(attributes),
            "core.attributesFile": str(attributes),
            "core.protectNTFS": "false",
            "core.bigFileThreshold": "1",
            "i18n.commitEncoding": "latin1",
        }.items():
            _config(run, workspace, name, value)
        (run.repo / ".git/info/exclude").write_text("*\n")
        (run.repo / ".git/info/attributes").write_text("* -text ident\n")
        (workspace / "crlf").write_bytes(b"a\r\nb\n$Id$\n")
        (workspace / "tool").write_text("#!/bin/sh\n")
        (workspace / "tool").chmod(0o755)
        (workspace / "link").symlink_to("f")
        (workspace / "F").write_text("another\n")

    run.author("U1", work)
    with quiet(trap):
        terminalize(run).expect("INTEGRATION_PENDING")
    assert sorted(transport_of(run)["changed_paths"]) == ["F", "crlf", "link", "tool"]
    assert blob(run, "crlf") == b"a\r\nb\n$Id$\n"
    modes = run.git("ls-tree", transport_of(run)["commit"], "tool", "link").splitlines()
    assert [line[:6] for line in modes] == ["120000", "100755"]
    assert "encoding" not in run.git("cat-file", "commit", transport_of(run)["commit"])


def test_a_replaced_base_never_changes_what_is_compared_or_prepared(run: Host, trap: Trap) -> None:
    """W6: `git replace` once let a gate pass, and every later worktree had the foreign content."""
    base = run.head

    def work(workspace: Path) -> None:
        (workspace / "f").write_text("worker\n")
        worker(run, "git", "commit", "-qam", "evil", cwd=workspace)
        evil = worker(run, "git", "rev-parse", "HEAD", cwd=workspace)
        worker(run, "git", "reset", "-q", "--hard", base, cwd=workspace)
        (workspace / "new").write_text("new\n")
        worker(run, "git", "replace", base, evil, cwd=workspace)
        blobs = [worker(run, "git", "rev-parse", f"{commit}:f", cwd=workspace) for commit in (evil, "main")]
        if blobs[0] != blobs[1]:
            worker(run, "git", "replace", blobs[1], blobs[0], cwd=workspace)

    run.env["GIT_NO_REPLACE_OBJECTS"] = "1"  # for the test's own git
    before = run.fingerprint()
    del run.env["GIT_NO_REPLACE_OBJECTS"]
    run.author("U1", work)
    terminalize(run).expect("INTEGRATION_PENDING")
    assert transport_of(run)["changed_paths"] == ["new"]
    run.integrate("U1", ["false"]).expect("BLOCKED")
    run.env["GIT_NO_REPLACE_OBJECTS"] = "1"
    assert run.fingerprint() == before
    made = run.integrate().expect("UNIT_COMMITTED").body["canonical_commit"]
    workspace = Path(run.prepare("U2").expect("PREPARED").body["workspace"])
    assert made["parent"] == base
    assert (workspace / "f").read_text() == "one\n"


def test_a_rewritten_ancestry_never_changes_whose_child_a_commit_is(run: Host, trap: Trap) -> None:
    (run.repo / "f").write_text("second\n")
    run.git("commit", "-qam", "second")
    base = run.head

    def work(workspace: Path) -> None:
        for where in ("info/grafts", "shallow"):
            _write(run.repo / ".git" / where, f"{base}\n")

    run.author("U1", work)
    assert run.git("rev-list", "--count", "HEAD") == "1", "git believes it"
    terminalize(run).expect("INTEGRATION_PENDING")
    run.integrate().expect("UNIT_COMMITTED")
    for where in ("info/grafts", "shallow"):
        (run.repo / ".git" / where).unlink()
    assert run.git("log", "--format=%s") == "feat: U1\nsecond\nfirst"


def test_foreign_object_stores_never_stand_in_for_the_repositorys_own(run: Host, trap: Trap) -> None:
    other = run.base / "other"
    other.mkdir()

    def work(workspace: Path) -> None:
        worker(run, "git", "init", "-q", cwd=other)
        paths = f"{other}/.git/objects\n/nonexistent/objects\n"
        (run.repo / ".git/objects/info/alternates").write_text(paths)
        (workspace / "new").write_text("new\n")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    (run.repo / ".git/objects/info/alternates").unlink()
    assert run.git("fsck", "--no-dangling") == ""
    run.integrate().expect("UNIT_COMMITTED")


def test_an_object_with_forged_content_never_changes_more_than_the_workers_own_path(run: Host, trap: Trap) -> None:
    """The worker knows which object its file will become, and stores other bytes under that name beforehand."""
    good, evil = b"good\n", b"evil\n"
    oid = hashlib.sha1(b"blob %d\0" % len(good) + good, usedforsecurity=False).hexdigest()

    def work(workspace: Path) -> None:
        (workspace / "new").write_bytes(good)
        place = run.repo / ".git/objects" / oid[:2]
        place.mkdir(exist_ok=True)
        (place / oid[2:]).write_bytes(zlib.compress(b"blob %d\0" % len(evil) + evil))

    reply = outcome(run, trap, work)
    before = run.fingerprint()["files"]
    if reply.word == "INTEGRATION_PENDING":
        reply = run.integrate()
    after = run.fingerprint()["files"]
    if reply.word == "UNIT_COMMITTED":
        assert after.pop("new")
    else:
        reply.expect("BLOCKED")
    assert after == before


def test_a_damaged_object_is_named(run: Host, trap: Trap) -> None:
    tree = run.git("rev-parse", "HEAD^{tree}")
    place = run.repo / ".git/objects" / tree[:2] / tree[2:]
    whole = place.read_bytes()

    def work(workspace: Path) -> None:
        (workspace / "f").write_text("worker\n")
        place.chmod(0o644)
        place.write_bytes(b"garbage")

    run.author("U1", work)
    assert tree in terminalize(run).expect("BLOCKED").stderr
    place.write_bytes(whole)
    terminalize(run).expect("INTEGRATION_PENDING")
    run.integrate().expect("UNIT_COMMITTED")


def test_a_branch_that_a_worker_moved_is_never_integrated_onto(run: Host, trap: Trap) -> None:
    """W11: `update-ref` of the canonical branch; the checkout then looks like a staged revert of the foreign commit."""
    base = run.head

    def work(workspace: Path) -> None:
        (workspace / "f").write_text("worker\n")
        worker(run, "git", "commit", "-qam", "evil", cwd=workspace)
        worker(run, "git", "update-ref", "refs/heads/main", "HEAD", cwd=workspace)

    run.author("U1", work)
    moved = run.head
    assert moved != base
    reply = terminalize(run)
    if reply.word == "INTEGRATION_PENDING":
        reply = run.integrate()
    reply.expect("BLOCKED")
    assert reply.body["head"] == moved or reply.body["dirty_paths"]
    assert (run.repo / "f").read_text() == "one\n"
    run.prepare("U2").expect("BLOCKED")
    run.git("reset", "-q", "--soft", base)
    run.integrate().expect("UNIT_COMMITTED")


def test_a_head_that_a_worker_pointed_elsewhere_is_never_committed_to(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        worker(run, "git", "branch", "elsewhere", cwd=workspace)
        (run.repo / ".git/HEAD").write_text("ref: refs/heads/elsewhere\n")
        (workspace / "new").write_text("new\n")

    run.author("U1", work)
    terminalize(run)
    reply = run.integrate().expect("BLOCKED")
    assert "refs/heads/elsewhere" in reply.body["found"]
    assert ids(run, "refs/heads")["refs/heads/elsewhere"] == run.head
    (run.repo / ".git/HEAD").write_text("ref: refs/heads/main\n")
    run.integrate().expect("UNIT_COMMITTED")


def test_a_transport_ref_that_a_worker_made_first_is_never_believed(run: Host, trap: Trap) -> None:
    ref = ref_name("r1", "U1")

    def work(workspace: Path) -> None:
        (workspace / "smuggled").write_text("smuggled\n")
        worker(run, "git", "add", "-A", cwd=workspace)
        worker(run, "git", "commit", "-qm", "ce-work transport r1/U1", cwd=workspace)
        worker(run, "git", "update-ref", ref, "HEAD", cwd=workspace)
        (workspace / "smuggled").unlink()
        (workspace / "new").write_text("new\n")

    reply = outcome(run, trap, work).expect("BLOCKED")
    theirs = ids(run)[ref]
    assert reply.body["found"] == theirs
    assert abandon(run).word in ("CLEANED", "BLOCKED")
    if ids(run).get(ref) is not None:
        run.git("update-ref", "-d", ref, theirs)
    if run.unit()["state"] != "cleaned":
        abandon(run).expect("CLEANED")
    run.pending("U1", {"honest": "work\n"}, "--attempt-id", "attempt-2")


def test_a_symbolic_transport_ref_never_makes_or_moves_a_branch(run: Host, trap: Trap) -> None:
    ref = ref_name("r1", "U1")

    def work(workspace: Path) -> None:
        worker(run, "git", "symbolic-ref", ref, "refs/heads/of-the-workers-choosing", cwd=workspace)
        (workspace / "new").write_text("new\n")

    reply = outcome(run, trap, work)
    if reply.word == "INTEGRATION_PENDING":
        run.integrate().expect("UNIT_COMMITTED")
    else:
        assert ref in reply.expect("BLOCKED").stderr + str(reply.body)
    assert list(ids(run, "refs/heads")) == ["refs/heads/main"]


def test_a_ref_in_place_of_the_transports_folder_is_refused(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        worker(run, "git", "update-ref", "refs/ce-work", "HEAD", cwd=workspace)

    outcome(run, trap, work).expect("BLOCKED")
    run.git("update-ref", "-d", "refs/ce-work")
    terminalize(run).expect("INTEGRATION_PENDING")


def test_garbage_in_packed_refs_never_loses_a_transport_or_a_branch(run: Host, trap: Trap) -> None:
    run.author("U1", lambda workspace: _write(run.repo / ".git/packed-refs", "garbage garbage\n"))
    with quiet(trap):
        reply = terminalize(run)
        second = run.integrate() if reply.word == "INTEGRATION_PENDING" else reply
    (run.repo / ".git/packed-refs").unlink()
    assert reply.word in ("INTEGRATION_PENDING", "BLOCKED", "REFUSED")
    assert second.word in ("UNIT_COMMITTED", "BLOCKED", "REFUSED")
    if run.unit()["state"] != "cleaned":
        resume(run)
        terminalize(run)
        run.integrate()
    assert run.unit()["state"] == "cleaned"
    assert run.git("log", "--format=%s") == "feat: U1\nfirst"
    assert run.git("for-each-ref", "refs/ce-work") == ""


def test_a_repository_that_was_told_to_be_elsewhere_is_never_written_to_there(run: Host, trap: Trap) -> None:
    decoy = run.base / "decoy"
    decoy.mkdir()
    (decoy / "f").write_text("decoy\n")
    before = run.fingerprint()
    workspace = Path(run.author("U1", {"new": "new\n"})["workspace"])
    for name, value in (("core.worktree", str(decoy)), ("core.bare", "true")):
        with case(name):
            _config(run, workspace, name, value)
            assert terminalize(run).word in ("INTEGRATION_PENDING", "BLOCKED", "REFUSED")
            assert run.integrate().word in ("BLOCKED", "REFUSED")
            assert run.call("status", "--run-id", "r1").expect("STATUS").body["repository"]["problem"]
            worker(run, "git", "config", "--file", str(run.repo / ".git/config"), "--unset", name, cwd=run.base)
    assert sorted(os.listdir(decoy)) == ["f"]
    assert run.fingerprint() == before
    terminalize(run)
    run.integrate().expect("UNIT_COMMITTED")


def test_settings_named_like_submodules_are_never_run(run: Host, trap: Trap) -> None:
    """`submodule.<name>.update = !program`, with names that climb out of the repository."""
    evil = f'[submodule "../../evil"]\n\tpath = sub\n\turl = -u./evil\n\tupdate = !{trap.program}\n'

    def work(workspace: Path) -> None:
        (workspace / ".gitmodules").write_text(evil)
        _config(run, workspace, "submodule.sub.update", f"!{trap.program}")
        _config(run, workspace, "submodule.recurse", "true")
        _config(run, workspace, "fetch.recurseSubmodules", "true")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    with quiet(trap):
        run.integrate().expect("UNIT_COMMITTED")
        run.prepare("U2").expect("PREPARED")
    assert (run.repo / ".gitmodules").read_text() == evil, "it is a file like any other: a reviewer sees it in the diff"
    assert worktrees(run) == [str(run.run_dir() / "units/U2/workspace")]


def test_a_stash_or_reflog_is_neither_used_nor_needed(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        (workspace / "f").write_text("stashed\n")
        worker(run, "git", "stash", cwd=workspace)
        worker(run, "git", "reflog", "expire", "--expire=now", "--all", cwd=workspace)
        (workspace / "new").write_text("new\n")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    run.integrate().expect("UNIT_COMMITTED")
    assert (run.repo / "f").read_text() == "one\n"
    assert run.git("show", "stash@{0}:f") == "stashed", "whoever made it: it stays"


def test_one_workers_tampering_never_reaches_the_transport_of_another(run: Host, trap: Trap) -> None:
    run.author("U1", {"f": "honest\n"})
    honest = run.run_dir() / "units/U1/workspace"

    def work(workspace: Path) -> None:
        poison(run, trap, workspace)
        for name in ("clean", "smudge"):
            _config(run, workspace, f"filter.evil.{name}", str(trap.program))
        (run.repo / ".git/info/attributes").write_text("* filter=evil\n")

    run.author("U2", work)
    with quiet(trap):
        terminalize(run, "U1").expect("INTEGRATION_PENDING")
    assert blob(run, "f") == b"honest\n"
    assert (honest / "f").read_text() == "honest\n"
