"""Rows 11-14: whatever the user has in the checkout is refused before anything is touched, and stays as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hazards.support import case
from tests.host import Host


def test_a_merge_never_wipes_uncommitted_edits(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    (run.repo / "f").write_text("user\n")
    (run.repo / "dir/g").write_text("staged\n")
    run.git("add", "dir/g")
    (run.repo / "note").write_text("untracked\n")
    before = run.fingerprint()
    reply = run.integrate().expect("BLOCKED")
    assert reply.body["dirty_paths"] == ["dir/g", "f", "note"]
    assert run.fingerprint() == before
    assert run.git("stash", "list") == ""
    assert run.manifest()["integration_lock"] is None


def _file(name: str) -> Callable[[Path, Path], None]:
    def make(repo: Path, outside: Path) -> None:
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious\n")

    return make


def _link(name: str, *, dangling: bool = False) -> Callable[[Path, Path], None]:
    def make(repo: Path, outside: Path) -> None:
        (repo / name).symlink_to("/nonexistent/target" if dangling else outside)

    return make


def _retype_dir(workspace: Path) -> None:
    shutil.rmtree(workspace / "dir")
    (workspace / "dir").write_text("a file now\n")


def _rename(workspace: Path) -> None:
    (workspace / "moved").mkdir()
    (workspace / "dir/g").rename(workspace / "moved/g")


WAYS: dict[str, tuple[dict[str, str] | Callable[[Path], None], Callable[[Path, Path], None], str]] = {
    "a file on an added path": ({"n": "unit\n"}, _file("n"), "n"),
    "a file where a folder must go": ({"d/n": "unit\n"}, _file("d"), "d"),
    "a folder where a file must go": ({"n": "unit\n"}, _file("n/deep/keep"), "n/deep/keep"),
    "a file below a retyped folder": (_retype_dir, _file("dir/mine"), "dir/mine"),
    "a file on the new name of a renamed one": (_rename, _file("moved/g"), "moved/g"),
    "a link on an added path": ({"n": "unit\n"}, _link("n", dangling=True), "n"),
    "a link where a folder must go": ({"d/n": "unit\n"}, _link("d"), "d"),
}


def test_an_ignored_file_is_never_overwritten_by_a_unit(run: Host) -> None:
    outside = run.base / "outside"
    outside.mkdir()
    (outside / "n").write_text("elsewhere\n")
    units = {f"U{number}": case_ for number, case_ in enumerate(WAYS.items())}
    for unit, (_, (work, _, _)) in units.items():
        run.pending(unit, work)
    # Private ignore rules of the user, so that the unit's own files are not ignored where it was written.
    (run.repo / ".git/info/exclude").write_text("*\n")
    for unit, (way, (_, make, named)) in units.items():
        with case(way):
            make(run.repo, outside)
            assert run.git("status", "--porcelain") == "", "the file is ignored: git says that all is clean"
            before = run.fingerprint()
            reply = run.integrate(unit).expect("BLOCKED")
            assert reply.body["paths"] == [named]
            assert named in reply.stderr
            assert run.fingerprint() == before
            assert [p.read_text() for p in outside.iterdir()] == ["elsewhere\n"]
            assert (run.repo / named).is_symlink() or (run.repo / named).read_text() == "precious\n"
            (run.repo / named).unlink()
            shutil.rmtree(run.repo / "n", ignore_errors=True)
            shutil.rmtree(run.repo / "moved", ignore_errors=True)
    run.integrate("U0").expect("UNIT_COMMITTED")


def test_an_untracked_file_is_never_overwritten_by_a_unit(run: Host) -> None:
    run.pending("U1", {"n": "unit\n"})
    (run.repo / "n").write_text("mine\n")
    before = run.fingerprint()
    assert run.integrate().expect("BLOCKED").body["dirty_paths"] == ["n"]
    assert run.fingerprint() == before


def test_ignored_files_beside_a_unit_survive_success_and_failure(run: Host) -> None:
    for name in ("a.log", "dir/b.log", "build/out/c"):
        _file(name)(run.repo, run.base)
    os.mkfifo(run.repo / "fifo.log")

    def work(workspace: Path) -> None:
        (workspace / "dir/g").unlink()
        (workspace / "dir/h").write_text("unit\n")

    run.pending("U1", work)
    (run.repo / "fifo.log").unlink()  # `fingerprint` reads every file
    before = run.fingerprint()
    run.integrate("U1", ["false"]).expect("BLOCKED")
    assert run.fingerprint() == before
    run.integrate().expect("UNIT_COMMITTED")
    for name in ("a.log", "dir/b.log", "build/out/c"):
        assert (run.repo / name).read_text() == "precious\n"
    assert not (run.repo / "dir/g").exists()


def test_a_tracked_link_that_becomes_a_folder_is_never_followed(bare_host: Host) -> None:
    host = bare_host
    outside = host.base / "outside"
    outside.mkdir()
    (outside / "x").write_text("elsewhere\n")
    host.make_repo()
    (host.repo / "d").symlink_to(outside)
    host.git("add", "d")
    host.git("commit", "-qm", "link")
    host.init().expect("READY")

    def work(workspace: Path) -> None:
        (workspace / "d").unlink()
        (workspace / "d").mkdir()
        (workspace / "d/x").write_text("unit\n")

    assert host.pending("U1", work)["changed_paths"] == ["d", "d/x"]
    before = host.fingerprint()
    host.integrate("U1", ["sh", "-c", "grep -q unit d/x && exit 1"]).expect("BLOCKED")
    assert host.fingerprint() == before
    assert (outside / "x").read_text() == "elsewhere\n"
    host.integrate().expect("UNIT_COMMITTED")
    assert (host.repo / "d/x").read_text() == "unit\n"
    assert (outside / "x").read_text() == "elsewhere\n"


def test_edits_hidden_behind_an_index_bit_are_never_wiped(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    for bit in ("assume-unchanged", "skip-worktree"):
        for text in ("one\n", "hidden edit\n"):
            with case(f"{bit}, {text}"):
                run.git("update-index", f"--{bit}", "f")
                (run.repo / "f").write_text(text)
                assert run.git("status", "--porcelain") == ""
                before = run.fingerprint()
                reply = run.integrate().expect("BLOCKED")
                assert reply.body["paths"] == ["f"]
                assert f"no-{bit}" in reply.body["remedy"]
                assert run.fingerprint() == before
                (run.repo / "f").write_text("one\n")
                run.git("update-index", f"--no-{bit}", "f")
    run.integrate().expect("UNIT_COMMITTED")


def test_hidden_edits_on_paths_that_the_unit_leaves_alone_stay_hidden_and_whole(run: Host) -> None:
    run.pending("U1", {"new": "unit\n"})
    for bit, name in (("assume-unchanged", "f"), ("skip-worktree", "dir/g")):
        run.git("update-index", f"--{bit}", name)
        (run.repo / name).write_text("hidden edit\n")
    before = run.fingerprint()
    run.integrate("U1", ["false"]).expect("BLOCKED")
    assert run.fingerprint() == before
    run.integrate().expect("UNIT_COMMITTED")
    for bit, name in (("h", "f"), ("S", "dir/g")):
        assert (run.repo / name).read_text() == "hidden edit\n"
        assert run.git("show", f"HEAD:{name}") in ("one", "two")
        assert run.git("ls-files", "-v", name)[0] == bit


def _fold(workspace: Path) -> None:
    (workspace / "f").unlink()
    (workspace / "f").mkdir()
    (workspace / "f/x").write_text("a folder now\n")


def test_a_folder_that_a_unit_made_a_file_is_put_back_whole(run: Host) -> None:
    """Restored after the apply and also before it, when nothing was touched yet; likewise a file made a folder."""

    def work(workspace: Path) -> None:
        _retype_dir(workspace)
        _fold(workspace)

    run.pending("U1", work)
    before = run.fingerprint()
    reply = run.integrate("U1", ["false"]).expect("BLOCKED")
    assert reply.body["verification_exit"] == 1
    assert run.fingerprint() == before
    names = ("--run-id", "r1", "--unit-id", "U1")
    token = run.call("integration-acquire", *names).expect("ACQUIRED").body["lock_token"]
    run.call("preflight", *names, "--lock-token", token).expect("PREFLIGHT_OK")
    run.call("restore", *names, "--lock-token", token).expect("PRESERVED")
    assert run.fingerprint() == before
    run.call("integration-release", *names, "--lock-token", token).expect("RELEASED")
    run.integrate().expect("UNIT_COMMITTED")
