"""References of the canonical repository, changed under locks that a kill leaves provably ours.

`git update-ref` would leave `HEAD.lock`, `<branch>.lock` or `packed-refs.lock` behind when it is killed, and nothing
would say whose they are: the user could not commit any more. So the files are written here by Git's own protocol
(gitrepository-layout(5), git-pack-refs(1)): lock, compare, log, rename. Other storage than files is left to git.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

from controller import git_lock, run_root
from controller.errors import Blocked
from controller.git import Git
from runner import private

NAMESPACE = "refs/ce-work"


class Refs:
    """The references that one run may change: its branch, and those of its transports."""

    def __init__(self, git: Git, git_dir: Path, common_dir: Path, run_directory: Path) -> None:
        self._git = git
        self._git_dir = git_dir
        self._common = common_dir
        self._run = run_directory

    @property
    def _files(self) -> bool:
        return not (self._common / "reftable").exists()

    def _marker(self, kind: str) -> Path:
        return git_lock.marker(self._git_dir if kind == "head" else self._common, self._run, kind)

    def _lock(self, ref: str) -> Path:
        return self._common / f"{ref}.lock"

    def current(self, ref: str) -> str | None:
        """The object id in a reference's file, or the text of a symbolic one; else what is packed, or None."""
        with run_root.trusted():
            try:
                return (self._common / ref).read_text("ascii", "replace").strip()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                pass
        for line in self._packed():
            if line.endswith(os.fsencode(f" {ref}")):
                return line.partition(b" ")[0].decode()
        return None

    def _packed(self) -> list[bytes]:
        with run_root.trusted():
            try:
                return (self._common / "packed-refs").read_bytes().split(b"\n")[:-1]
            except FileNotFoundError:
                return []

    def move_branch(self, ref: str, new: str, old: str, message: str) -> None:
        """Move the checked-out branch from `old` to `new`, with its log and that of HEAD; `Blocked` if it moved."""
        if not self._files:
            self._git.run("update-ref", "-m", message, ref, new, old)
            return
        who = self._git.run("var", "GIT_COMMITTER_IDENT").strip()
        subject = " ".join(message.split()).encode("utf-8", "surrogateescape")
        entry = b"%s %s %s\t%s\n" % (old.encode(), new.encode(), who, subject)
        with run_root.trusted():
            os.makedirs((self._common / ref).parent, exist_ok=True)  # a packed branch needs no folder, its lock does
        with ExitStack() as locks:
            branch = locks.enter_context(git_lock.held(self._lock(ref), self._marker("ref")))
            locks.enter_context(git_lock.held(self._git_dir / "HEAD.lock", self._marker("head")))
            if self._head() != ref or self.current(ref) != old:
                raise Blocked(
                    f"{ref} was moved by somebody else",
                    detail={"ref": ref},
                    expected=f"HEAD on {ref} at {old}",
                    found=f"HEAD on {self._head()}, {ref} at {self.current(ref)}",
                    remedy="see `git reflog`; nothing was committed",
                )
            for log in (self._common / "logs" / ref, self._git_dir / "logs" / "HEAD"):
                self._append(log, entry)
            branch.install(self._common / ref, f"{new}\n".encode(), self._mode(ref))

    def _head(self) -> str:
        with run_root.trusted():
            head = self._git_dir / "HEAD"
            text = os.readlink(head) if head.is_symlink() else os.fsdecode(head.read_bytes())
        name = text.removeprefix("ref:").strip()
        for _ in range(5):  # as deep as git follows
            target = self.current(name)
            if target is None or not target.startswith("ref:"):
                break
            name = target.removeprefix("ref:").strip()
        return name

    def _append(self, log: Path, entry: bytes) -> None:
        """One line of a reference's log; a log that does not exist is begun unless the user wants none."""
        if not log.exists():
            wish = self._git.call("config", "--get", "core.logAllRefUpdates").stdout.decode().strip().lower()
            if wish in ("false", "no", "off", "0"):
                return
        with run_root.trusted():
            os.makedirs(log.parent, exist_ok=True)
            fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                private.write_all(fd, entry)
            finally:
                os.close(fd)

    def _mode(self, ref: str) -> int:
        """The mode of the file that is replaced, or of HEAD: what the user's umask or `core.sharedRepository` gave."""
        for path in (self._common / ref, self._git_dir / "HEAD"):
            with suppress(OSError):
                return os.stat(path).st_mode & 0o666
        return 0o644

    def create(self, ref: str, commit: str, previous: str | None) -> None:
        """Let `ref` point at `commit`, from nothing or from `previous`; `Blocked` when it points elsewhere."""
        if not self._files:
            found = self._git.call("rev-parse", "--verify", "--quiet", ref).stdout.decode().strip()
            self._require(ref, found or None, (None, commit, previous), commit)
            self._git.run("update-ref", "--no-deref", ref, commit, found or "0" * len(commit))
            return
        with run_root.trusted():
            os.makedirs((self._common / ref).parent, exist_ok=True)
        with git_lock.held(self._lock(ref), self._marker("ref")) as lock:
            found_now = self.current(ref)
            self._require(ref, found_now, (None, commit, previous), commit)
            if found_now != commit:
                lock.install(self._common / ref, f"{commit}\n".encode(), self._mode(ref))

    def delete(self, ref: str, commit: str) -> None:
        """Remove `ref` if it points at `commit`; nothing is an error that is already gone, another value `Blocked`."""
        if not self._files:
            found = self._git.call("rev-parse", "--verify", "--quiet", ref).stdout.decode().strip()
            if found:
                self._require(ref, found, (commit,), commit)
                self._git.run("update-ref", "--no-deref", "-d", ref, commit)
            return
        path = self._common / ref
        if self.current(ref) is not None:
            with run_root.trusted():
                os.makedirs(path.parent, exist_ok=True)  # a packed reference needs no folder, its lock does
            with ExitStack() as locks:
                locks.enter_context(git_lock.held(self._lock(ref), self._marker("ref")))
                # As git does: nobody may pack the reference between our look and our removal.
                packed = locks.enter_context(git_lock.held(self._common / "packed-refs.lock", self._marker("packed")))
                self._require(ref, self.current(ref), (None, commit), commit)
                self._unpack(ref, packed)
                with run_root.trusted():
                    for file in (path, self._common / "logs" / ref):
                        file.unlink(missing_ok=True)
        for folder in (path.parent, path.parent.parent, (self._common / "logs" / ref).parent):
            with suppress(OSError):
                os.rmdir(folder)

    def _unpack(self, ref: str, lock: git_lock.Held) -> None:
        """Rewrite `packed-refs` without `ref` (and the peeled line that may follow it)."""
        lines = self._packed()
        kept: list[bytes] = []
        dropping = False
        for line in lines:
            dropping = line.endswith(os.fsencode(f" {ref}")) or (dropping and line.startswith(b"^"))
            if not dropping:
                kept.append(line)
        if kept != lines:
            file = self._common / "packed-refs"
            lock.install(file, b"".join(line + b"\n" for line in kept), os.stat(file).st_mode & 0o777)

    def _require(self, ref: str, found: str | None, allowed: tuple[str | None, ...], commit: str) -> None:
        if found in allowed:
            return
        raise Blocked(
            "the transport ref points at another commit than the recorded transport",
            detail={"ref": ref},
            expected=commit,
            found=str(found),
            remedy="inspect that commit; delete the ref only if nothing there is needed",
        )

    def is_left(self) -> bool:
        """Whether a command of this run holds such a lock, or was killed while it did."""
        return any(os.path.lexists(self._marker(kind)) for kind in ("ref", "head", "packed"))

    def clear_stale(self, branch: str, transports: list[str]) -> list[str]:
        """Remove what a killed command of this run left of these locks; their paths. Under the run's lock."""
        found = [
            git_lock.clear(self._marker("ref"), [self._lock(ref) for ref in (branch, *transports)]),
            git_lock.clear(self._marker("head"), [self._git_dir / "HEAD.lock"]),
            git_lock.clear(self._marker("packed"), [self._common / "packed-refs.lock"]),
        ]
        return [path for path in found if path is not None]
