"""A worker that tampers: configuration that names its programs, and what must hold after whatever it did."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.run_root import remove_tree
from tests.hazards.support import Trap, abandon, terminalize
from tests.host import Host, Reply

# Every setting by which Git's configuration names a program that a call of ours could start.
PROGRAMS = (
    "core.fsmonitor core.editor core.pager core.askPass core.sshCommand core.gitProxy core.alternateRefsCommand "
    "sequence.editor diff.external gpg.program gpg.ssh.program gpg.x509.program credential.helper "
    "uploadpack.packObjectsHook web.browser interactive.diffFilter trailer.sign.command"
)
SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false")


def safe_git(host: Host) -> None:
    """From now on the test's own git falls into no trap (the controller's git is another)."""
    plain = host.git
    host.git = lambda *args, **more: plain(*SAFE, *args, **more)  # type: ignore[method-assign]


def worker(host: Host, *argv: str, cwd: Path, check: bool = True) -> str:
    """Run a command as a worker does: in its workspace, with the user's rights; what it printed."""
    done = subprocess.run(argv, cwd=cwd, env=host.env, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, (argv, done.stderr.decode())
    return done.stdout.decode().strip()


def poison(host: Host, trap: Trap, cwd: Path, *scope: str) -> None:
    """Write every program-naming setting, hooks and an include into the configuration that git finds in `cwd`."""
    hooks = trap.hooks(trap.folder / "hooks")
    included = trap.folder / "included"
    included.write_text(
        f"[core]\n\tfsmonitor = {trap.program}\n\thooksPath = {hooks}\n[alias]\n\tx = !{trap.program}\n"
    )
    values = {name: str(trap.program) for name in PROGRAMS.split()}
    values |= {"core.hooksPath": str(hooks), "include.path": str(included), "commit.gpgSign": "true", "gc.auto": "1"}
    values |= {"alias.status": f"!{trap.program}", "alias.rev-parse": f"!{trap.program}"}
    for name, value in values.items():
        worker(host, "git", *SAFE, "config", *scope, name, value, cwd=cwd)


@contextmanager
def quiet(trap: Trap) -> Iterator[None]:
    """Nothing in this block may run the trap."""
    before = trap.sprung
    yield
    assert trap.sprung == before, "a program of the worker's choosing was run"


def admin(host: Host, workspace: Path) -> Path:
    """The folder in which Git keeps the workspace's HEAD and index."""
    found = [
        folder
        for folder in (host.repo / ".git/worktrees").iterdir()
        if (folder / "gitdir").read_text().strip() == str(workspace / ".git")
    ]
    assert len(found) == 1, found
    return found[0]


def outcome(host: Host, trap: Trap, work: Callable[[Path], None], run: str = "r1") -> Reply:
    """What `terminalize` says of a worker that did this; nothing of it is run, the checkout is as before."""
    before = host.fingerprint()
    host.author("U1", work, run=run)
    with quiet(trap):
        reply = terminalize(host)
    assert host.fingerprint() == before
    return reply


class Backup:
    """A folder as it is now, to be put back after each thing that a worker tried."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._kept = []
        for number, folder in enumerate(folders):
            kept = folder.parent / f"kept-{number}-{folder.name}"
            shutil.copytree(folder, kept, symlinks=True)
            self._kept.append((kept, folder.stat()))

    def put_back(self) -> None:
        """The same folder (its inode too) with the same content and mode."""
        for folder, (kept, status) in zip(self._folders, self._kept, strict=True):
            if not folder.is_dir() or folder.is_symlink() or folder.stat().st_ino != status.st_ino:
                raise AssertionError(f"{folder} is another one; put it back by hand")
            for entry in folder.iterdir():
                remove_tree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
            folder.chmod(status.st_mode & 0o7777)

    def forget(self) -> None:
        """Remove the copies."""
        for kept, _ in self._kept:
            shutil.rmtree(kept)


def give_up(host: Host, trap: Trap) -> None:
    """The way out: abandon, prepare again, integrate; nothing of the worker's is run on the way."""
    with quiet(trap):
        abandon(host).expect("CLEANED")
        assert not (host.run_dir() / "units/U1").exists()
        host.pending("U1", {"honest": "work\n"}, "--attempt-id", "attempt-2")
        host.integrate().expect("UNIT_COMMITTED")
    assert (host.repo / "honest").read_text() == "work\n"


def transport_of(host: Host) -> dict[str, Any]:
    """The pinned transport of U1."""
    found: dict[str, Any] = host.unit()["transport"]
    return found


def blob(host: Host, path: str) -> bytes:
    """The bytes that the transport has at a path, asked of plain git without replacements or filters."""
    commit = transport_of(host)["commit"]
    env = {**host.env, "GIT_NO_REPLACE_OBJECTS": "1"}
    argv = ["git", *SAFE, "cat-file", "blob", f"{commit}:{path}"]
    done = subprocess.run(argv, cwd=host.repo, env=env, capture_output=True, check=True)
    return done.stdout


def as_root() -> bool:
    """Whether permissions mean nothing here."""
    return os.geteuid() == 0
