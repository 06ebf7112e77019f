"""Rows 10, 24-26, 29, 30, 34, 35: names, line endings, filters, sizes arrive as they are, or are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

from tests.hazards.support import Trap, abandon, resume, script, terminalize, worktrees
from tests.host import Host

NAMES = [
    b"a space", b"new\nline", b"tab\ttab", b'"quoted"', b"back\\slash", b"\xc3\xbcn\xc3\xaf", b"latin-\xfc\xff",
    b"-rf", b"--", b"a:b", b":(glob)x", b"*", b"[x]", b"!x", b"#x", b"~", b"...", b"..x", b"$(touch x)", b"\x01\x7f",
    b" lead", b"trail ", b"carriage\r", b"d d/\xff/x",
]  # fmt: skip


def _write(top: Path, content: bytes) -> None:
    for name in NAMES:
        path = os.path.join(os.fsencode(top), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content + name)


def test_names_that_git_quotes_are_never_misread(run: Host) -> None:
    """Row 24: bytes and -z everywhere, through add, restore and delete."""
    added = run.pending("U1", lambda workspace: _write(workspace, b"one"))["changed_paths"]
    assert sorted(os.fsencode(path) for path in added) == sorted(NAMES)
    before = run.fingerprint()
    shout = 'for f in *; do [ -d "$f" ] || echo user >> "./$f"; done; exit 1'
    reply = run.integrate("U1", ["sh", "-c", shout]).expect("BLOCKED")
    assert run.fingerprint() == before
    kept = {os.fsencode(item["path"]): Path(item["copy"]).read_bytes() for item in reply.body["recovered"]}
    assert kept[b"new\nline"] == b"onenew\nlineuser\n"
    assert kept[b"latin-\xfc\xff"] == b"onelatin-\xfc\xffuser\n"
    run.integrate().expect("UNIT_COMMITTED")

    for name in NAMES:
        assert Path(os.fsdecode(os.path.join(os.fsencode(run.repo), name))).read_bytes() == b"one" + name

    def remove(workspace: Path) -> None:
        for name in NAMES:
            os.unlink(os.path.join(os.fsencode(workspace), name))

    assert len(run.pending("U2", remove)["changed_paths"]) == len(NAMES)
    run.integrate("U2").expect("UNIT_COMMITTED")
    assert sorted(os.listdir(run.repo)) == [".git", ".gitignore", "dir", "f"]


def test_line_endings_of_the_user_never_make_untouched_files_dirty(bare_host: Host) -> None:
    """Row 25: the repository holds LF, the user's checkout CRLF, the unit's diff only what the worker did."""
    host = bare_host
    host.make_repo({"f": "one\n", "w.txt": "a\nb\n", "bin": "x\ny\n", ".gitattributes": "bin -text\n"})
    host.git("config", "core.autocrlf", "true")
    for name in ("f", "w.txt"):
        (host.repo / name).unlink()
    host.git("checkout", "--", ".")
    assert (host.repo / "w.txt").read_bytes() == b"a\r\nb\r\n"
    host.init().expect("READY")

    def work(workspace: Path) -> None:
        assert (workspace / "w.txt").read_bytes() == b"a\r\nb\r\n"
        (workspace / "w.txt").write_bytes(b"a\r\nb\r\nc\r\n")
        (workspace / "n.txt").write_bytes(b"n\r\n")
        (workspace / "bin").write_bytes(b"x\r\ny\n")
        (workspace / "f").write_bytes(b"one\n")  # the same text with other line endings is no change

    assert host.pending("U1", work)["changed_paths"] == ["bin", "n.txt", "w.txt"]
    before = host.fingerprint()
    host.integrate("U1", ["sh", "-c", "echo x > w.txt; exit 1"]).expect("BLOCKED")
    assert host.fingerprint() == before
    host.integrate().expect("UNIT_COMMITTED")
    assert host.git("status", "--porcelain") == ""
    assert host.git("cat-file", "blob", "HEAD:w.txt") == "a\nb\nc"
    assert host.git("cat-file", "blob", "HEAD:n.txt") == "n"
    assert host.git("cat-file", "blob", "HEAD:bin") == "x\r\ny"
    assert (host.repo / "n.txt").read_bytes() == b"n\r\n"


def test_a_base_that_no_checkout_reproduces_is_refused_before_any_work_is_paid_for(bare_host: Host) -> None:
    """Row 25: with `eol=lf` over a committed CRLF file every fresh checkout is dirty."""
    host = bare_host
    host.make_repo({"f": "one\n", "w.txt": "a\r\nb\r\n"})
    host.init().expect("READY")
    host.git("config", "filter.up.smudge", "tr a-z A-Z")
    (host.repo / ".git/info/attributes").write_text("w.txt filter=up\n")
    reply = host.prepare().expect("BLOCKED")
    assert reply.body["dirty_paths"] == ["w.txt"]
    assert worktrees(host) == []
    host.git("config", "filter.up.clean", "tr A-Z a-z")
    host.prepare().expect("PREPARED")


def test_names_that_differ_only_in_case_or_unicode_form_never_land(bare_host: Host) -> None:
    host = bare_host
    there = {"readme", "d/a", "caf\u00e9", "Stra\u00dfe", "f", "other"}
    added = {"README", "D/b", "cafe\u0301", "STRASSE", "F/x"}
    host.make_repo(dict.fromkeys(there, "there\n"))
    host.init().expect("READY")
    host.pending("U1", dict.fromkeys(added | {"other2", "README2"}, "unit\n"))
    before = host.fingerprint()
    reply = host.integrate().expect("BLOCKED")
    assert reply.body["reason"] == "path collision"
    assert set(reply.body["paths"]) == added
    assert host.fingerprint() == before
    host.pending("U2", {"new/A": "unit\n", "new/a": "unit\n"})
    assert host.integrate("U2").expect("BLOCKED").body["paths"] == ["new/A", "new/a"]


def test_a_base_with_colliding_names_is_usable_where_the_file_system_keeps_them_apart(bare_host: Host) -> None:
    bare_host.make_repo({"readme": "small\n", "README": "large\n", "f": "one\n"})
    bare_host.init().expect("READY")
    bare_host.pending("U1", {"README": "unit\n"})
    bare_host.integrate().expect("UNIT_COMMITTED")
    assert (bare_host.repo / "readme").read_text() == "small\n"


def _large_file_storage(host: Host, command: str) -> None:
    host.make_repo({"f": "one\n", ".gitattributes": "*.bin filter=big\n"})
    (host.repo / "a.bin").write_text("pointer\n")
    host.git("add", "a.bin")
    host.git("commit", "-qm", "a pointer")
    host.git("config", "filter.big.required", "true")
    for name in ("smudge", "clean"):
        host.git("config", f"filter.big.{name}", command)
    host.init().expect("READY")


def test_a_required_filter_that_is_missing_never_leaves_half_a_worktree(bare_host: Host) -> None:
    """Row 29: the refusal names filter and file, nothing is left, and installing it mends it."""
    host = bare_host
    _large_file_storage(host, "no-such-tool")
    reply = host.prepare().expect("BLOCKED")
    assert "a.bin" in reply.stderr
    assert "no-such-tool" in reply.stderr or "'big'" in reply.stderr
    assert worktrees(host) == []
    resume(host)
    assert worktrees(host) == []
    for name in ("smudge", "clean"):
        host.git("config", f"filter.big.{name}", "cat")
    host.prepare().expect("PREPARED")


def test_large_files_are_never_fetched_for_a_workspace(bare_host: Host) -> None:
    """Row 29: a workspace gets pointers, the canonical checkout what the user's configuration gives it."""
    host = bare_host
    told = host.base / "told"
    _large_file_storage(host, str(script(host.base / "big", f'echo "$GIT_LFS_SKIP_SMUDGE $(pwd)" >> {told}\ncat')))
    told.unlink(missing_ok=True)

    def work(workspace: Path) -> None:
        assert {line.rpartition("/")[0] for line in told.read_text().splitlines()} >= {f"1 {workspace.parent}"}
        told.unlink()
        (workspace / "b.bin").write_text("new pointer\n")

    host.pending("U1", work)
    host.integrate().expect("UNIT_COMMITTED")
    assert f" {host.repo}" in told.read_text().splitlines(), "without the variable, in the canonical checkout"


def test_a_secret_in_an_ignored_file_never_reaches_a_worker(run: Host) -> None:
    """Row 34: files that Git does not track are copied for nobody (there is no allow-list yet)."""
    for name in ("secret.log", "build/.env"):
        (run.repo / name).parent.mkdir(exist_ok=True)
        (run.repo / name).write_text("TOKEN=1\n")
    workspace = Path(run.prepare().expect("PREPARED").body["workspace"])
    assert sorted(p.name for p in workspace.iterdir()) == [".git", ".gitignore", "dir", "f"]


def test_output_in_an_ignored_folder_is_never_dropped_silently(run: Host) -> None:
    """Row 35."""
    run.author("U1", {"build/out": "work of an hour\n", "notes.log": "notes\n", "new": "new\n"})
    reply = terminalize(run).expect("BLOCKED")
    assert reply.body["ignored_paths"] == ["build/out", "notes.log"]
    assert "ignored untracked output" in reply.stderr
    kept = run.run_dir() / "units/U1/workspace/build/out"
    assert kept.read_text() == "work of an hour\n"
    abandon(run).expect("CLEANED")


def test_a_transport_is_never_collected_as_garbage(run: Host) -> None:
    """Row 10: a commit that no ref reaches is gone after `git gc`."""
    commit = run.pending("U1", {"new": "unit\n"})["commit"]
    run.git("reflog", "expire", "--expire=now", "--all")
    run.git("gc", "--quiet", "--prune=now")
    assert run.git("cat-file", "-t", commit) == "commit"
    run.integrate().expect("UNIT_COMMITTED")


def test_a_repository_of_many_files_goes_through_whole(bare_host: Host) -> None:
    """Row 30: argument lists, pipes and answers hold whatever the number of paths."""
    host = bare_host
    host.make_repo({f"d{i % 50}/some-rather-long-file-name-{i}": f"{i}\n" for i in range(900)})
    host.init().expect("READY")

    def work(workspace: Path) -> None:
        for i in range(900):
            path = workspace / f"d{i % 50}/some-rather-long-file-name-{i}"
            if i % 3:
                path.write_text(f"changed {i}\n")
            elif i % 2:
                path.unlink()
        for i in range(600):
            (workspace / f"new-{'x' * 100}-{i}").write_text(f"{i}\n")

    assert len(host.pending("U1", work)["changed_paths"]) > 1200
    before = host.fingerprint()
    host.integrate("U1", ["sh", "-c", "rm -rf d1; exit 1"]).expect("BLOCKED")
    assert host.fingerprint() == before
    host.integrate().expect("UNIT_COMMITTED")
    assert host.git("status", "--porcelain") == ""
    assert len(host.git("ls-files").splitlines()) == 900 - 150 + 600


def test_a_filter_of_the_user_never_sees_what_a_worker_calls_it(run: Host) -> None:
    """Attributes in the worker's tree name no program: only the user's configuration does, as `prepare` found it."""
    trap = Trap(run.base / "trap")
    run.author("U1", {".gitattributes": "* filter=late\n", "new": "x\n"})
    run.git("config", "filter.late.clean", str(trap.program))
    terminalize(run).expect("INTEGRATION_PENDING")
    assert trap.sprung == []
