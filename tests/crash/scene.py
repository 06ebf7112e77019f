"""A host in a room: a user's repository with everything in it that must survive, and the work of the units."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.crash.room import Room
from tests.crash.watch import Keeper, Plan
from tests.host import ROOT, Host, Reply

FILES: dict[str, bytes] = {
    ".gitignore": b"*.log\nbuild/\n",
    "f": b"one\n",
    "dir/g": b"two\n",
    "dir/\u00fcn\u00ef.txt": b"name that is not ASCII\n",
    "old/gone": b"the unit removes this\n",
    "run.sh": b"#!/bin/sh\nexit 0\n",
    "data.bin": bytes(range(256)) * 8,
    "hidden": b"assume-unchanged\n",
    "sparse": b"skip-worktree\n",
    "plan.md": b"# Plan\n",
}
IGNORED = {"user.log": b"ignored, and precious\n", "build/out": b"ignored folder\n"}


class Scene(Host):
    """A repository, a runs root, and what the units are to do; every command is served by one keeper."""

    def __init__(self, room: Room, keeper: Keeper) -> None:
        super().__init__(room.live)
        self.room = room
        self.keeper = keeper
        git = shutil.which("git", path=os.environ.get("PATH")) or "/usr/bin/git"
        self.env["PATH"] = os.pathsep.join(dict.fromkeys([os.path.dirname(git), "/usr/bin", "/bin"]))
        self.env["TMPDIR"] = str(room.live / "tmp")
        (room.live / "tmp").mkdir()
        self.work: dict[str, Callable[[Path], None]] = {}
        self.notes: dict[str, Any] = {}
        self.dirty: dict[str, bytes] = {}
        self._make()

    def _make(self) -> None:
        self.repo.mkdir()
        self.git("init", "-q")
        for name, data in FILES.items():
            path = self.repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (self.repo / "run.sh").chmod(0o755)
        (self.repo / "link").symlink_to("f")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        self.git("update-index", "--assume-unchanged", "hidden")
        self.git("update-index", "--skip-worktree", "sparse")
        (self.repo / "hidden").write_bytes(b"the user's edit behind assume-unchanged\n")
        (self.repo / "sparse").write_bytes(b"the user's edit behind skip-worktree\n")
        for name, data in IGNORED.items():
            path = self.repo / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        (self.repo / "dir" / "g").chmod(0o640)
        (self.repo / "user.log").chmod(0o600)

    # --- commands ---------------------------------------------------------------------------------------------------

    def watched(
        self, argv: Sequence[str], plan: Plan | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run any program to its end; orphans of earlier ones are served meanwhile."""
        full = {**self.env, "PYTHONPATH": str(ROOT), **(env or {})}
        done = self.keeper.run(argv, env=full, cwd=self.base, plan=plan)
        assert not done.stuck, f"{list(argv)[:6]} did not end: {done.stdout!r} {done.stderr!r}"
        return subprocess.CompletedProcess(list(argv), done.code, done.stdout, done.stderr)

    def controller(self, *args: str) -> list[str]:
        """A controller command as an argument list."""
        return [sys.executable, "-P", "-m", "controller", *args]

    def call(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Reply:
        """One controller command."""
        del cwd
        return Reply(self.watched(self.controller(*args), env=env))

    def job_name(self, unit: str, attempt: str) -> str:
        """A job id that no other room uses at the same time: processes of a job are found by it, in all of the machine."""
        return f"job-{unit}-{attempt}-{hashlib.sha256(os.fsencode(self.base)).hexdigest()[:8]}"

    def write_job(self, prepared: dict[str, Any], *, run: str = "r1", job: str = "", **meta: Any) -> str:
        """A job directory under a name of this room."""
        name = job or self.job_name(prepared["unit_id"], prepared["attempt_id"])
        return super().write_job(prepared, run=run, job=name, **meta)

    def shield(self, *names: str) -> None:
        """These folders of the units may change or go now; nothing looks at their identity any more."""
        for name in names or ("result", "workspace"):
            self.room.shield(*self.run_dir().glob(f"units/*/{name}"))

    # --- the user ---------------------------------------------------------------------------------------------------

    def scribble(self) -> None:
        """The user edits while a worker works: a tracked file, a new one."""
        self.dirty = {"run.sh": b"#!/bin/sh\necho the user is at it\n", "notes.txt": b"untracked notes\n"}
        for name, data in self.dirty.items():
            (self.repo / name).write_bytes(data)

    def tidy(self) -> None:
        """The user puts their edits aside."""
        for name in self.dirty:
            if name in FILES:
                self.git("checkout", "-q", "--", name)
            else:
                (self.repo / name).unlink(missing_ok=True)
        self.dirty = {}

    def user_state(self) -> dict[str, Any]:
        """What a user could miss, commit ids left out: two runs of the same story give the same."""
        found = self.fingerprint()
        del found["head"]
        found["tree"] = self.git("rev-parse", "HEAD^{tree}")
        found["stash"] = self.git("stash", "list")
        found["config"] = (self.repo / ".git" / "config").read_bytes()
        return found

    def mark(self) -> None:
        """This is what the user has; the start state of the command may add what it is to undo."""
        self.notes["mark"] = self.user_state()
        self.notes["mark_trees"] = self.trees()

    def trees(self) -> list[str]:
        """The trees of the branch, oldest first."""
        return self.git("log", "--first-parent", "--reverse", "--format=%T").split("\n")

    # --- the work ---------------------------------------------------------------------------------------------------

    def unit_work(self, unit: str) -> Callable[[Path], None]:
        """What the worker of a unit does."""
        return self.work.get(unit, broad_work)


def broad_work(workspace: Path) -> None:
    """A change of every kind: modify, add (also executable, also in a new folder), remove, retarget, move."""
    (workspace / "f").write_bytes(b"one\nmore\n")
    (workspace / "added").write_bytes(b"new\n")
    (workspace / "tool").write_bytes(b"#!/bin/sh\n")
    (workspace / "tool").chmod(0o755)
    (workspace / "new" / "deep").mkdir(parents=True)
    (workspace / "new" / "deep" / "file").write_bytes(b"deep\n")
    (workspace / "old" / "gone").unlink()
    (workspace / "old").rmdir()
    (workspace / "link").unlink()
    (workspace / "link").symlink_to("dir/g")
    (workspace / "data.bin").rename(workspace / "moved.bin")


def small_work(workspace: Path) -> None:
    """A second, disjoint change."""
    (workspace / "second").write_bytes(b"second unit\n")
