"""A worker whose files are traps: links, nested repositories, names, special files, sizes, and files that change.

launcher.md section 15, W1, W2, W12 and W14.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hazards.support import Trap, abandon, case, terminalize
from tests.host import Host
from tests.hostile.support import (
    SAFE,
    Backup,
    as_root,
    blob,
    give_up,
    outcome,
    poison,
    quiet,
    safe_git,
    transport_of,
    worker,
)


def test_links_out_of_the_workspace_are_never_followed(run: Host, trap: Trap) -> None:
    """W12: a link is its text. What it points at is neither read, nor written, nor removed, here or later."""
    outside = run.base / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret\n")
    links = {
        "absolute": str(outside / "secret"),
        "folder": str(outside),
        "relative": "../../../../../outside/secret",
        "to-git": "../.git",
        "dangling": "/nonexistent",
        "loop": "loop",
        "proc": "/proc/self/environ",
        "inside": "f",
    }

    def work(workspace: Path) -> None:
        for name, target in links.items():
            (workspace / name).symlink_to(target)
        (workspace / "dir/g").unlink()
        (workspace / "dir").rmdir()
        (workspace / "dir").symlink_to(outside)

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    assert sorted(transport_of(run)["changed_paths"]) == sorted([*links, "dir", "dir/g"])
    for name, target in links.items():
        assert blob(run, name) == os.fsencode(target)
    before = run.fingerprint()
    run.integrate("U1", ["false"]).expect("BLOCKED")
    assert run.fingerprint() == before
    run.integrate().expect("UNIT_COMMITTED")
    run.pending("U2", {"new": "new\n"})
    run.integrate("U2", ["sh", "-c", "rm -r absolute folder; exit 1"]).expect("BLOCKED")
    assert os.readlink(run.repo / "folder") == str(outside)
    assert [path.read_text() for path in outside.iterdir()] == ["secret\n"]


def _repository(host: Host, trap: Trap, folder: Path) -> None:
    folder.mkdir(parents=True)
    worker(host, "git", "init", "-q", cwd=folder)
    (folder / "x").write_text("inner\n")
    worker(host, "git", "add", "-A", cwd=folder)
    worker(host, "git", "commit", "-qm", "inner", cwd=folder)
    poison(host, trap, folder)


def _nested(host: Host, trap: Trap, workspace: Path) -> None:
    _repository(host, trap, workspace / "src/sub")


def _nested_by_pointer(host: Host, trap: Trap, workspace: Path) -> None:
    _repository(host, trap, host.base / "hidden")
    (workspace / "sub").mkdir()
    (workspace / "sub/.git").write_text(f"gitdir: {host.base / 'hidden/.git'}\n")


def _nested_by_link(host: Host, trap: Trap, workspace: Path) -> None:
    _repository(host, trap, host.base / "hidden")
    (workspace / "sub").mkdir()
    (workspace / "sub/.git").symlink_to(host.base / "hidden/.git")


def _empty_git_folder(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / "sub/.git").mkdir(parents=True)


def _named(*names: str) -> Callable[[Host, Trap, Path], None]:
    def make(host: Host, trap: Trap, workspace: Path) -> None:
        for name in names:
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("trick\n")

    return make


def _fifo(host: Host, trap: Trap, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")


def _ignore_file_that_waits(host: Host, trap: Trap, workspace: Path) -> None:
    (workspace / ".gitignore").unlink()
    os.mkfifo(workspace / ".gitignore")


def _socket(host: Host, trap: Trap, workspace: Path) -> None:
    here = os.getcwd()
    os.chdir(workspace)  # the whole path may be longer than a socket's
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(here)


def _endless(host: Host, trap: Trap, workspace: Path) -> None:
    with open(workspace / "endless", "wb") as file:
        file.truncate(1 << 43)


def _deeper_than_a_path(host: Host, trap: Trap, workspace: Path) -> None:
    _dig(workspace, 2100)


def _dig(top: Path, depth: int) -> None:
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder))
    os.close(folder)


BLOCKED: dict[str, tuple[Callable[[Host, Trap, Path], None], str]] = {
    "a nested repository": (_nested, "src/sub/.git"),
    "a pointer to a hidden repository": (_nested_by_pointer, "sub/.git"),
    "a link to a hidden repository": (_nested_by_link, "sub/.git"),
    "an empty .git folder": (_empty_git_folder, "sub/.git"),
    "another case of .git": (_named("sub/.GIT/config"), "sub/.GIT"),
    "the short name of .git": (_named("GIT~1/config"), "GIT~1"),
    ".git with a trailing dot": (_named("sub/.git./config"), "sub/.git."),
    ".git with a trailing blank": (_named(".git "), ".git "),
    ".git with a stream": (_named(".git::$INDEX_ALLOCATION"), ".git::"),
    ".git with a code point that a file system ignores": (_named(".g\u200cit/config"), ".g\u200cit"),
    "a FIFO": (_fifo, "fifo"),
    "an ignore file that waits for ever": (_ignore_file_that_waits, ".gitignore"),
    "a socket": (_socket, "socket"),
    "a file without end": (_endless, "endless"),
    "a folder deeper than any path": (_deeper_than_a_path, "d/d/d"),
}


def test_what_git_cannot_or_must_not_record_is_refused_by_name(run: Host, trap: Trap) -> None:
    workspace = Path(run.author("U1", {"f": "worker\n"})["workspace"])
    before = run.fingerprint()
    backup = Backup(workspace)
    for way, (tamper, named) in BLOCKED.items():
        with case(way):
            tamper(run, trap, workspace)
            with quiet(trap):
                reply = terminalize(run)
            assert reply.word in ("BLOCKED", "UNREADABLE")
            assert named in reply.stderr
            assert run.unit()["transport"]["commit"] is None
            backup.put_back()
            if (run.base / "hidden").exists():
                shutil.rmtree(run.base / "hidden")
    assert run.fingerprint() == before
    backup.forget()
    terminalize(run).expect("INTEGRATION_PENDING")
    assert transport_of(run)["changed_paths"] == ["f"]


def test_a_workspace_full_of_traps_can_be_given_up(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        for make in (_nested, _fifo, _socket, _endless):
            make(run, trap, workspace)

    outcome(run, trap, work).expect("BLOCKED")
    give_up(run, trap)


def test_names_that_only_look_like_tricks_land_as_they_are(run: Host, trap: Trap) -> None:
    names = ["...", "..x", "x/...", "-rf", "--help", "a\\..\\b", "con", "c:x", "~", "$HOME", "git", ".gitx", "x.git/y"]
    outcome(run, trap, lambda workspace: _named(*names)(run, trap, workspace)).expect("INTEGRATION_PENDING")
    assert sorted(transport_of(run)["changed_paths"]) == sorted(names)
    run.integrate().expect("UNIT_COMMITTED")
    assert sorted(os.listdir(run.base)) == sorted(["repo", "runs", "gitconfig", "brief-r1.md", "packet-U1.md", "trap"])


def test_a_name_that_is_no_text_is_neither_a_fault_nor_a_pass(run: Host, trap: Trap) -> None:
    """W1: one such name once made a gate fail, and everybody read that as a pass."""
    name = os.fsdecode(b"caf\xe9\n\xff")

    def work(workspace: Path) -> None:
        (workspace / name).write_text("bytes\n")
        (workspace / "f").write_text("worker\n")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    assert sorted(transport_of(run)["changed_paths"]) == sorted([name, "f"])
    run.integrate().expect("UNIT_COMMITTED")
    assert (run.repo / name).read_text() == "bytes\n"


@pytest.mark.skipif(as_root(), reason="nothing is unreadable for root; the test below is root's")
def test_a_folder_that_cannot_be_read_is_never_taken_for_empty(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        (workspace / "dir").chmod(0)

    reply = outcome(run, trap, work)
    assert reply.word in ("BLOCKED", "UNREADABLE")
    assert "dir" in reply.stderr
    give_up(run, trap)


def test_permissions_taken_away_or_added_change_only_the_executable_bit(run: Host, trap: Trap) -> None:
    """W14: set-user-id and write bits are no content; a workspace without permissions is removed all the same."""

    def work(workspace: Path) -> None:
        (workspace / "f").chmod(0o6777)
        (workspace / "dir/g").chmod(0o400)
        (workspace / "new").mkdir(mode=0o700)
        (workspace / "new/x").write_text("x\n")
        (workspace / "new/x").chmod(0o4750)
        (workspace / "new").chmod(0o500)
        (workspace / "empty/empty").mkdir(parents=True)
        (workspace / "empty").chmod(0o1500)

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    assert sorted(transport_of(run)["changed_paths"]) == ["f", "new/x"]
    run.integrate().expect("UNIT_COMMITTED")
    assert os.stat(run.repo / "f").st_mode & 0o7000 == 0
    assert os.stat(run.repo / "f").st_mode & 0o100
    assert os.stat(run.repo / "new/x").st_mode & 0o7000 == 0


def test_thousands_of_files_and_very_deep_folders_are_pinned_and_cleaned_away(run: Host, trap: Trap) -> None:
    def work(workspace: Path) -> None:
        for folder in range(20):
            (workspace / f"many{folder}").mkdir()
            for file in range(250):
                (workspace / f"many{folder}/{file}").write_text(f"{file}\n")
        _dig(workspace, 1100)

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    assert len(transport_of(run)["changed_paths"]) == 5001
    abandon(run).expect("CLEANED")
    assert not (run.run_dir() / "units/U1").exists()


def test_an_attribute_in_the_tree_names_no_program_and_changes_no_other_file(run: Host, trap: Trap) -> None:
    safe_git(run)

    def work(workspace: Path) -> None:
        (workspace / ".gitattributes").write_text(f"* filter={trap.program} diff={trap.program} merge={trap.program}\n")
        (workspace / ".gitconfig").write_text(f"[core]\n\tfsmonitor = {trap.program}\n")
        (workspace / "hooks").mkdir()
        trap.hooks(workspace / "hooks")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    with quiet(trap):
        run.integrate().expect("UNIT_COMMITTED")


def test_a_file_named_like_a_git_file_but_linked_is_never_read_through(run: Host, trap: Trap) -> None:
    """A `.gitattributes`, `.gitignore` or `.gitmodules` that is a link to somewhere else."""
    rules = run.base / "rules"
    rules.write_text("* text eol=crlf\nnew\n")

    def work(workspace: Path) -> None:
        for name in (".gitattributes", "dir/.gitignore"):
            (workspace / name).symlink_to(rules)
        (workspace / "dir/new").write_text("a\nb\n")

    outcome(run, trap, work).expect("INTEGRATION_PENDING")
    assert blob(run, "dir/new") == b"a\nb\n"
    abandon(run).expect("CLEANED")


RACER = """
import os, sys
workspace, outside = sys.argv[1:]
os.chdir(workspace)
print("racing", flush=True)
n = 0
while True:
    n += 1
    for step in (
        lambda: (os.rename("race", "race.old"), os.symlink(outside, "race")),
        lambda: (os.unlink("race"), os.rename("race.old", "race")),
        lambda: (os.unlink("flip"), os.mkfifo("flip")),
        lambda: (os.unlink("flip"), open("flip", "w").write("flip\\n")),
        lambda: open("half", "w").write("A" * 100000),
        lambda: open("half", "w").write("B" * 100000),
    ):
        try:
            step()
        except OSError:
            pass
"""


def test_files_that_change_while_they_are_read_are_never_pinned_half_or_from_elsewhere(run: Host, trap: Trap) -> None:
    """W2: a process that the runner could not know of rewrites files and swaps folders for links all the time."""
    outside = run.base / "outside"
    outside.mkdir()
    for i in range(60):
        (outside / f"x{i}").write_text("secret\n")

    def work(workspace: Path) -> None:
        (workspace / "race").mkdir()
        for i in range(60):
            (workspace / f"race/x{i}").write_text("inside\n")
        (workspace / "flip").write_text("flip\n")
        (workspace / "half").write_text("A" * 100000)

    made = run.author("U1", work)
    argv = [sys.executable, "-c", RACER, made["workspace"], str(outside)]
    racer = subprocess.Popen(argv, env=run.env, stdout=subprocess.PIPE)
    guard = threading.Timer(60, racer.kill)
    guard.start()
    try:
        assert racer.stdout is not None
        racer.stdout.readline()
        for _ in range(6):
            reply = terminalize(run)
            assert reply.word in ("INTEGRATION_PENDING", "BLOCKED", "UNREADABLE"), reply
            if reply.word == "INTEGRATION_PENDING":
                break
    finally:
        guard.cancel()
        racer.kill()
        racer.communicate()
    if reply.word == "INTEGRATION_PENDING":
        commit = transport_of(run)["commit"]
        for line in run.git("ls-tree", "-r", commit, "race/").splitlines():
            assert run.git("cat-file", "blob", line.split()[2]) == "inside"
        names = run.git("ls-tree", "-r", "--name-only", commit).splitlines()
        if "half" in names:
            assert set(blob(run, "half")) in ({ord("A")}, {ord("B")}, set())
    assert {path.read_text() for path in outside.iterdir()} == {"secret\n"}
    assert len(list(outside.iterdir())) == 60
    abandon(run).expect("CLEANED")
    assert len(list(outside.iterdir())) == 60


def test_a_worker_that_commits_a_gitlink_never_lands_one(run: Host, trap: Trap) -> None:
    """W14, hazard row 28: `git add -A` records a nested repository as a link, its files are lost."""

    def work(workspace: Path) -> None:
        _repository(run, trap, workspace / "sub")
        worker(run, "git", *SAFE, "add", "sub", cwd=workspace)
        worker(run, "git", *SAFE, "commit", "-qm", "a gitlink", cwd=workspace)

    reply = outcome(run, trap, work).expect("BLOCKED")
    assert "sub/.git" in reply.stderr
    assert (run.run_dir() / "units/U1/workspace/sub/x").read_text() == "inner\n"
