"""Bytes that Git calls unchanged, or that a user saves at the very moment of an apply or a restore, are never lost.

Found by an independent review that tried what the rows of hazards.md do not name; each is a kind of row 1, 2 or 11.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller import applying
from controller.errors import Blocked
from controller.kept import Shelf
from tests.hazards.support import finish, kill, records, recovered, resume, script, start_integrate, until
from tests.host import Host

_OUTPUT = "code\nOUT ten hours\n"


@contextmanager
def _meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something beside the command under way."""
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


@contextmanager
def _while_the_index_is_held(host: Host, kind: str, act: Callable[[], None]) -> Iterator[None]:
    """Act when a record of this kind is there, while another Git command keeps the index for a moment."""
    held = host.repo / ".git/index.lock"
    if kind != "restore-intent":
        held.write_text("")

    def user() -> None:
        until(lambda: bool(records(host, kind)), kind)
        act()
        held.unlink()

    with _meanwhile(user):
        yield


def _strip(host: Host) -> None:
    """A clean filter that drops output, as nbstripout does, and text of another system's line endings."""
    host.make_repo({"a.nb": "code\n", "w.txt": "x\n", ".gitattributes": "*.nb filter=strip\n*.txt text\n"})
    host.git("config", "filter.strip.clean", "grep -v ^OUT || true")
    host.git("config", "filter.strip.smudge", "cat")
    (host.repo / "a.nb").write_text(_OUTPUT)
    (host.repo / "w.txt").write_bytes(b"x\r\n")
    host.git("add", "-A")
    assert host.git("status", "--porcelain") == "", "git calls it clean"
    host.init().expect("READY")
    host.pending("U1", {"a.nb": "code 2\n", "w.txt": "y\n"})


def test_what_a_clean_filter_hides_is_restored_and_never_overwritten_uncopied(bare_host: Host) -> None:
    host = bare_host
    _strip(host)
    before = host.fingerprint()
    host.integrate("U1", ["false"]).expect("BLOCKED")
    assert host.fingerprint() == before
    reply = host.integrate("U1", ["sh", "-c", "echo 'OUT of the user' >> a.nb; exit 1"]).expect("BLOCKED")
    assert recovered(reply) == {"a.nb": b"code 2\nOUT of the user\n"}
    assert host.fingerprint() == before
    reply = host.integrate().expect("UNIT_COMMITTED")
    assert recovered(reply) == {"a.nb": _OUTPUT.encode(), "w.txt": b"x\r\n"}
    assert (host.repo / "a.nb").read_text() == "code 2\n"


def test_modes_and_empty_folders_of_the_user_are_restored(run: Host) -> None:
    (run.repo / "f").chmod(0o600)
    for folder in ("n/deep", "d/e"):
        (run.repo / folder).mkdir(parents=True)
    for folder in ("d", "dir"):
        (run.repo / folder).chmod(0o700)

    def work(workspace: Path) -> None:
        (workspace / "d/e").mkdir(parents=True)
        for name in ("f", "n", "d/e/x"):
            (workspace / name).write_text("unit\n")
        shutil.rmtree(workspace / "dir")

    run.pending("U1", work)
    before = run.fingerprint()
    run.integrate("U1", ["false"]).expect("BLOCKED")
    assert run.fingerprint() == before
    assert (run.repo / "n/deep").is_dir() and (run.repo / "d/e").is_dir()
    assert [(run.repo / folder).stat().st_mode & 0o777 for folder in ("d", "dir")] == [0o700, 0o700]
    run.integrate().expect("UNIT_COMMITTED")


def test_a_file_saved_while_the_index_is_waited_for_is_copied_before_a_restore_takes_it(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    before = run.fingerprint()
    with _while_the_index_is_held(run, "restore-intent", lambda: _save(run.repo / "f", "saved\n")):
        reply = run.integrate("U1", ["sh", "-c", "touch .git/index.lock; exit 1"]).expect("BLOCKED")
    assert recovered(reply) == {"f": b"saved\n"}
    assert run.fingerprint() == before


def _save(path: Path, text: str) -> None:
    path.write_text(text)


def test_an_ignored_file_that_appears_after_preflight_is_never_overwritten(run: Host) -> None:
    run.pending("U1", {"gen.cfg": "unit\n"})
    (run.repo / ".git/info/exclude").write_text("*.cfg\n")
    with _while_the_index_is_held(run, "canonical-apply-intent", lambda: _save(run.repo / "gen.cfg", "mine\n")):
        reply = run.integrate().expect("BLOCKED")
    assert reply.body["paths"] == ["gen.cfg"]
    assert (run.repo / "gen.cfg").read_text() == "mine\n"
    assert run.unit()["state"] == "preserved"
    assert run.manifest()["integration_lock"] is None


def test_what_a_user_stages_before_the_apply_is_never_swept_away(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    with _while_the_index_is_held(run, "canonical-apply-intent", lambda: _save(run.repo / "note", "mine\n")):
        reply = run.integrate().expect("BLOCKED")
    assert reply.body["dirty_paths"] == ["note"]
    assert (run.repo / "note").read_text() == "mine\n"
    (run.repo / "note").unlink()
    resume(run).expect("RESUMED")
    run.integrate().expect("UNIT_COMMITTED")


def test_a_file_saved_while_a_filter_works_on_another_is_never_overwritten(bare_host: Host) -> None:
    """`git read-tree -u` looks at all files first and writes one after the other, a download in between."""
    host = bare_host
    host.make_repo({"a.big": "one\n", "f": "one\n", ".gitattributes": "*.big filter=slow\n"})
    waits = f"[ -e {host.base}/armed ] || exit 0\ntouch {host.base}/reached\nuntil [ -e {host.base}/go ]; do sleep 0.02; done"
    host.git("config", "filter.slow.smudge", str(script(host.base / "slow", f"cat\n{waits}")))
    host.git("config", "filter.slow.clean", "cat")
    host.init().expect("READY")
    host.pending("U1", {"a.big": "unit\n", "f": "unit\n"})
    (host.base / "armed").touch()
    process = start_integrate(host, "true")
    until(lambda: (host.base / "reached").exists(), "the filter works")
    (host.repo / "f").write_text("mine\n")
    (host.base / "go").touch()
    reply = finish(process)
    reply.expect("BLOCKED")
    assert (host.repo / "f").read_text() == "mine\n"
    assert (host.repo / "a.big").read_text() == "one\n"
    host.git("checkout", "-q", "f")
    resume(host).expect("RESUMED")
    host.integrate().expect("UNIT_COMMITTED")


def test_a_name_that_ends_in_a_carriage_return_is_its_own_file(bare_host: Host) -> None:
    host = bare_host
    host.make_repo({"Icon": "a\n", "Icon\r": "b\n"})
    host.init().expect("READY")
    host.pending("U1", {"Icon": "same\n", "Icon\r": "same\n"})
    reply = host.integrate("U1", ["sh", "-c", r"printf mine > \"$(printf 'Icon\r')\"; exit 1".replace('\\"', '"')])
    assert recovered(reply.expect("BLOCKED")) == {"Icon\r": b"mine"}


def test_content_that_was_staged_and_stands_nowhere_else_is_copied(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    work = "echo staged > dir/g; git add dir/g; echo two > dir/g; echo new > note; git add -N note; rm note; exit 1"
    before = run.fingerprint()
    reply = run.integrate("U1", ["sh", "-c", work]).expect("BLOCKED")
    assert recovered(reply) == {"dir/g.staged": b"staged\n"}
    assert run.fingerprint() == before


@pytest.mark.parametrize("code", [0, 1])
def test_a_merge_that_somebody_began_is_never_left_half_undone(run: Host, code: int) -> None:
    """Index and files put back under a MERGE_HEAD: the user's next commit would be a merge that drops the other side."""
    run.git("checkout", "-qb", "other")
    (run.repo / "o").write_text("other\n")
    run.git("add", "o")
    run.git("commit", "-qm", "other")
    run.git("checkout", "-q", "main")
    run.pending()
    merge = "git stash -q; git merge -q --no-commit --no-ff other" if code else "git rev-parse other > .git/MERGE_HEAD"
    reply = run.integrate("U1", ["sh", "-c", f"{merge}; exit {code}"]).expect("BLOCKED")
    assert "MERGE_HEAD" in reply.stderr
    assert run.git("log", "--format=%s", "main") == "first"
    assert (run.repo / ".git/MERGE_HEAD").exists()
    if code:
        run.git("merge", "--abort")
    else:
        (run.repo / ".git/MERGE_HEAD").unlink()
    resume(run).expect("RESUMED")
    if code:
        run.git("stash", "drop", "-q")
    run.integrate().expect("UNIT_COMMITTED")


def test_files_that_a_unit_would_un_ignore_stay_where_they_are(bare_host: Host) -> None:
    host = bare_host
    host.make_repo({"f": "one\n", ".gitignore": "*.log\nsecret\nbuild/\n"})
    host.init().expect("READY")
    (host.repo / "secret").write_text("precious\n")
    (host.repo / "build").mkdir()
    (host.repo / "build/o").write_text("big\n")
    host.pending("U1", {".gitignore": "*.log\n"})
    before = host.fingerprint()
    reply = host.integrate().expect("BLOCKED")
    assert reply.body["unexpected_paths"] == ["build/o", "secret"]
    assert ".git/info/exclude" in reply.body["remedy"]
    assert host.fingerprint() == before
    assert host.unit()["state"] == "preserved"
    (host.repo / ".git/info/exclude").write_text("secret\nbuild/\n")
    host.integrate().expect("UNIT_COMMITTED")
    assert (host.repo / "secret").read_text() == "precious\n"


def test_what_a_verification_makes_under_the_units_ignore_rules_does_not_stop_the_restore(run: Host) -> None:
    run.pending("U1", {".gitignore": "*.log\nbuild/\ndist/\n", "f": "unit\n"})
    before = run.fingerprint()
    reply = run.integrate("U1", ["sh", "-c", "mkdir dist; echo o > dist/o; exit 1"]).expect("BLOCKED")
    assert recovered(reply) == {"dist/o": b"o\n"}
    assert run.fingerprint() == before
    assert run.manifest()["integration_lock"] is None


def test_another_repository_at_the_same_place_is_never_restored(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    process = start_integrate(run, "sh", "-c", "touch late; exec sleep 1000")
    until(lambda: (run.repo / "late").exists(), "the verification runs")
    kill(process)
    old = run.base / "old"
    run.repo.rename(old)
    run.git("clone", "-q", str(old), str(run.repo), cwd=run.base)
    (run.repo / "dir/g").write_text("mine\n")
    before = run.fingerprint()
    assert "put the repository back" in resume(run).expect("BLOCKED").stderr
    assert run.fingerprint() == before
    run.repo.rename(run.base / "new")
    old.rename(run.repo)
    resume(run).expect("RESUMED")
    assert run.git("status", "--porcelain") == ""


def test_sparse_patterns_are_never_applied_to_files_beside_the_unit(bare_host: Host) -> None:
    host = bare_host
    host.make_repo({"f": "one\n", "dir/g": "two\n", "z/a": "a\n"})
    host.git("sparse-checkout", "set", "--cone", "dir")
    (host.repo / "z").mkdir()
    (host.repo / "z/a").write_text("edited\n")
    host.git("add", "--sparse", "z/a")
    host.git("commit", "-qm", "edit")
    host.init().expect("READY")
    host.pending("U1", {"f": "unit\n"})
    before = host.fingerprint()
    host.integrate("U1", ["false"]).expect("BLOCKED")
    assert host.fingerprint() == before
    host.integrate().expect("UNIT_COMMITTED")
    assert (host.repo / "z/a").read_text() == "edited\n"


def test_a_packed_branch_in_a_folder_and_a_symbolic_one_can_be_committed_to(bare_host: Host) -> None:
    host = bare_host
    host.make_repo()
    host.git("checkout", "-q", "-b", "feature/x")
    host.git("pack-refs", "--all", "--prune")
    host.git("symbolic-ref", "refs/heads/alias", "refs/heads/feature/x")
    host.git("symbolic-ref", "HEAD", "refs/heads/alias")
    assert not (host.repo / ".git/refs/heads/feature").exists()
    host.init().expect("READY")
    host.pending()
    host.integrate().expect("UNIT_COMMITTED")
    assert host.git("log", "--format=%s", "feature/x") == "feat: U1\nfirst"


def test_a_commit_of_the_user_on_top_of_an_unrecorded_one_never_leads_to_a_second(run: Host) -> None:
    """A file that appears at the moment of the commit is the user's; what he does next never undoes the commit."""
    run.pending("U1", {"f": "unit\n"})
    branch = run.repo / ".git/refs/heads/main"
    first = run.head

    def user() -> None:
        until(lambda: branch.read_text().strip() != first, "the commit")
        (run.repo / "note").write_text("mine\n")

    with _meanwhile(user):
        run.integrate().expect("UNIT_COMMITTED")
    assert (run.repo / "note").read_text() == "mine\n"


def test_a_tree_that_was_collected_as_garbage_does_not_stop_a_restore(bare_host: Host) -> None:
    host = bare_host
    host.make_repo()
    host.init().expect("READY")
    host.pending("U1", {"f": "unit\n"})
    host.pending("U2", {"a": "two\n"})
    host.integrate().expect("UNIT_COMMITTED")
    before = host.fingerprint()
    process = start_integrate(host, "sh", "-c", "touch late; exec sleep 1000", unit="U2")
    until(lambda: (host.repo / "late").exists(), "the verification runs")
    kill(process)
    host.git("reset", "-q")
    host.git("gc", "-q", "--prune=now")
    resume(host).expect("RESUMED")
    assert host.fingerprint() == before


def test_a_split_index_whose_other_half_expired_is_restored(run: Host) -> None:
    for name, value in (("core.splitIndex", "true"), ("splitIndex.sharedIndexExpire", "now")):
        run.git("config", name, value)
    run.git("config", "splitIndex.maxPercentChange", "0")
    run.git("update-index", "--split-index")
    run.pending("U1", {"f": "unit\n"})
    before = run.fingerprint()
    run.integrate("U1", ["sh", "-c", "echo x > u1; git add u1; git status; exit 1"]).expect("BLOCKED")
    assert run.fingerprint() == before
    run.integrate().expect("UNIT_COMMITTED")
    assert run.git("status", "--porcelain") == ""


def test_a_path_too_long_for_its_copy_is_copied_under_a_short_name(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    before = run.fingerprint()
    deep = (3990 - len(os.fsencode(run.repo))) // 201
    code = f"import os\nfor _ in range({deep}):\n os.mkdir('d'*200); os.chdir('d'*200)\nopen('u','w').write('mine')\nraise SystemExit(1)"
    reply = run.integrate("U1", ["python3", "-c", code]).expect("BLOCKED")
    assert list(recovered(reply).values()) == [b"mine"]
    assert run.fingerprint() == before
    assert run.manifest()["integration_lock"] is None


def test_bytes_that_a_blocked_resume_has_copied_are_not_copied_again(run: Host) -> None:
    run.pending("U1", {"f": "unit\n"})
    work = "echo mine > note; mkdir stuck; echo x > stuck/x; touch .git/index.lock; sleep 0.1; exit 1"
    run.integrate("U1", ["sh", "-c", work]).expect("BLOCKED")
    resume(run).expect("BLOCKED")
    (run.repo / ".git/index.lock").unlink()
    resume(run).expect("RESUMED")
    assert len(list((run.run_dir() / "recovered").rglob("note"))) == 1


def test_a_git_directory_on_another_file_system_loses_nothing(bare_host: Host) -> None:
    """No rename and no link leads there: files are copied whole instead."""
    host = bare_host
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == host.base.stat().st_dev:
        pytest.skip("no second file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        host.repo.mkdir()
        host.git("init", "-q", f"--separate-git-dir={folder}/git")
        (host.repo / "link").symlink_to("f")
        for name in ("f", "old/gone"):
            (host.repo / name).parent.mkdir(exist_ok=True)
            (host.repo / name).write_text("one\n")
        host.git("add", "-A")
        host.git("commit", "-qm", "first")
        host.init().expect("READY")

        def work(workspace: Path) -> None:
            (workspace / "f").write_text("unit\n")
            (workspace / "link").unlink()
            (workspace / "link").symlink_to("new/deep")
            shutil.rmtree(workspace / "old")
            (workspace / "new").mkdir()
            (workspace / "new/deep").write_text("unit\n")

        host.pending("U1", work)
        before = _files(host.repo)
        reply = host.integrate("U1", ["sh", "-c", "echo mine >> f; exit 1"]).expect("BLOCKED")
        assert recovered(reply) == {"f": b"unit\nmine\n"}
        assert _files(host.repo) == before
        host.integrate().expect("UNIT_COMMITTED")
        assert host.git("status", "--porcelain") == ""
        assert (host.repo / "link").read_text() == "unit\n"
        assert [name for name in os.listdir(f"{folder}/git") if name.startswith("unit-workspace")] == []


def _files(top: Path) -> dict[str, tuple[int, str]]:
    found = [path for path in top.rglob("*") if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(top)): (path.lstat().st_mode, os.readlink(path) if path.is_symlink() else path.read_text())
        for path in found
    }


def test_an_apply_that_is_undone_never_gives_up_the_file_that_it_cannot_put_back(tmp_path: Path) -> None:
    """The user saves a file at the moment in which the old one is on the shelf, and the apply has to stop."""
    top, git_dir = tmp_path / "top", tmp_path / "git"
    for folder in (top, git_dir):
        folder.mkdir()
    (top / "f").write_text("old\n")
    run: Any = SimpleNamespace(
        git=SimpleNamespace(cwd=top),
        state=SimpleNamespace(repository=SimpleNamespace(git_dir=str(git_dir))),
        directory=tmp_path / "run",
    )
    kept = Shelf(git_dir, run.directory, "kept")
    assert kept.take(top, "f")
    (top / "f").write_text("saved\n")
    with pytest.raises(Blocked):
        applying._undo(run, kept, {})
    assert (top / "f").read_text() == "saved\n"
    assert kept.place("f").read_text() == "old\n"
    (top / "f").unlink()
    applying._undo(run, kept, {})
    assert (top / "f").read_text() == "old\n"
    assert list(git_dir.iterdir()) == []
