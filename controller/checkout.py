"""The canonical checkout as the controller sees it: identity, HEAD, status, snapshot. Reads only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from controller.errors import Blocked, Refused
from controller.git import Git
from controller.shapes import Repository, Snapshot
from runner import private

_SEQUENCER = (
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
    "BISECT_LOG",
)


class Observation(msgspec.Struct, frozen=True):
    """What one `git rev-parse` says of a checkout; `branch_ref` is None when HEAD is detached."""

    repository: Repository
    head: str
    head_tree: str
    branch_ref: str | None
    shallow: bool
    revisions: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """What one `git status` says. Paths are relative to the top level; `digest` as the protocol computes it."""

    head: str | None
    branch: str | None
    staged: tuple[str, ...]
    unstaged: tuple[str, ...]
    untracked: tuple[str, ...]
    conflicted: tuple[str, ...]
    digest: str

    @property
    def dirty(self) -> tuple[str, ...]:
        """Every path that is not as in HEAD, sorted."""
        return tuple(sorted({*self.staged, *self.unstaged, *self.untracked, *self.conflicted}))


def repository_identity(common_dir: str, dev: int, ino: int) -> str:
    """SHA-256 of common directory, device and inode; no root commits: unshallowing keeps it (section 18 row 14)."""
    return hashlib.sha256(os.fsencode(f"{common_dir}\0{dev}\0{ino}\0")).hexdigest()


def observe(git: Git, *revisions: str) -> Observation:
    """Identity, HEAD and branch of the checkout, and the commits that `revisions` name. One git process.

    Raises `Refused` for a folder that is no usable canonical checkout, `Blocked` for an unknown revision.
    """
    for revision in revisions:
        if revision.startswith("-") or "\0" in revision or not revision:
            raise Refused(f"not a revision: {revision!r}", expected="a commit", found=repr(revision))
    paths = ["--path-format=absolute", "--show-toplevel", "--absolute-git-dir", "--git-common-dir"]
    rest = ["--show-object-format", "--is-shallow-repository", "HEAD", "HEAD^{tree}"]
    rest += [f"{revision}^{{commit}}" for revision in revisions]
    done = git.call("rev-parse", *paths, *rest, "--symbolic-full-name", "HEAD")
    if done.returncode != 0:
        raise _diagnose(git, revisions)
    lines = done.stdout.split(b"\n")[:-1]
    tail = len(rest) + 1
    if lines[0] == b"--path-format=absolute":  # an option that this git does not know, printed back
        raise Refused(
            "this Git is too old: unit-workspace needs Git 2.39",
            expected="Git 2.39 or newer",
            found=os.fsdecode(git.run("version").strip()),
            remedy="install it and put it first in PATH",
        )
    if len(lines) == 3 + tail:
        toplevel, git_dir, common_dir = lines[:3]
    else:  # a path holds a newline: ask for each on its own
        toplevel, git_dir, common_dir = (
            git.run("rev-parse", "--path-format=absolute", name)[:-1] for name in paths[1:]
        )
    values = [os.fsdecode(line) for line in lines[-tail:]]
    try:
        stat = os.stat(common_dir)
    except OSError as error:
        raise Blocked(f"cannot stat the Git common directory: {error}") from None
    common = os.fsdecode(common_dir)
    return Observation(
        repository=Repository(
            toplevel=os.fsdecode(toplevel),
            git_dir=os.fsdecode(git_dir),
            common_dir=common,
            common_dev=stat.st_dev,
            common_ino=stat.st_ino,
            identity_digest=repository_identity(common, stat.st_dev, stat.st_ino),
            object_format=values[0],
        ),
        shallow=values[1] == "true",
        head=values[2],
        head_tree=values[3],
        revisions=tuple(values[4:-1]),
        branch_ref=values[-1] if values[-1].startswith("refs/heads/") else None,
    )


def _diagnose(git: Git, revisions: tuple[str, ...]) -> Refused | Blocked:
    """Why `observe` failed; only on the way to a refusal, so processes do not matter."""
    where = str(git.cwd)
    inside = git.call("rev-parse", "--is-bare-repository", "--is-inside-work-tree")
    if inside.returncode != 0:
        message = inside.stderr.decode("utf-8", "replace").strip()
        if "dubious ownership" in message:
            return Refused(
                f"git does not trust {where}: {message.splitlines()[0]}",
                expected="a repository owned by the current user",
                found="another owner",
                remedy="change the owner, or add the folder to your own safe.directory",
            )
        return Refused(
            f"{where} is not inside a Git repository",
            expected="a Git checkout",
            found=message.splitlines()[-1],
            remedy="name the folder of the checkout, or begin one there: git init, and a first commit",
        )
    if inside.stdout.startswith(b"true"):
        return Refused(
            f"{where} is a bare repository",
            expected="a checkout with a working tree",
            found="a bare repository",
            remedy="clone it, and name the clone",
        )
    if inside.stdout.endswith(b"false\n"):
        return Refused(
            f"{where} is not inside a working tree",
            expected="a checkout with a working tree",
            found="a Git directory",
            remedy="name the folder of the checkout itself",
        )
    if git.call("rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode != 0:
        return Refused(
            f"{where} has no commit on its current branch",
            expected="a branch with at least one commit",
            found="an unborn branch",
            remedy="make a first commit",
        )
    for revision in revisions:
        if git.call("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").returncode != 0:
            return Blocked(
                f"{revision} is not a commit of this repository",
                expected="a commit",
                found=f"unknown: {revision}",
            )
    return Blocked(f"git rev-parse failed in {where}", remedy="run `git status` there and resolve what it reports")


def operation_in_progress(git_dir: str, *, but_pick: str | None = None) -> str | None:
    """The name of a merge, rebase, cherry-pick, revert or bisect that is under way, or None. No process.

    `but_pick`: a commit whose cherry-pick does not count.
    """
    for name in _SEQUENCER:
        path = os.path.join(git_dir, name)
        if not os.path.lexists(path):
            continue
        if name == "CHERRY_PICK_HEAD" and but_pick is not None and _line(path) == but_pick:
            continue
        return name
    return None


def _line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return ""


def status(git: Git) -> Status:
    """Every difference between HEAD, index and working tree, untracked files included. One git process."""
    out = git.run(
        "status",
        "--porcelain=v2",
        "--branch",
        "-z",
        "--untracked-files=all",
        "--ignore-submodules=none",
        "--no-renames",
    )
    return parse_status(out)


def parse_status(out: bytes) -> Status:
    """Parse `git status --porcelain=v2 --branch -z --no-renames`. Pure."""
    head = branch = None
    staged: list[str] = []
    unstaged: list[str] = []
    untracked: list[str] = []
    conflicted: list[str] = []
    digest = hashlib.sha256()
    for record in out.split(b"\0")[:-1]:
        if record.startswith(b"# "):
            key, _, value = record[2:].partition(b" ")
            if key == b"branch.oid" and value != b"(initial)":
                head = value.decode()
            elif key == b"branch.head":
                branch = os.fsdecode(value)
            continue
        digest.update(record + b"\0")
        code = record[:1]
        if code == b"1":
            fields = record.split(b" ", 8)
            path = os.fsdecode(fields[8])
            if fields[1][:1] != b".":
                staged.append(path)
            if fields[1][1:] != b".":
                unstaged.append(path)
        elif code == b"u":
            conflicted.append(os.fsdecode(record.split(b" ", 10)[10]))
        elif code == b"?":
            untracked.append(os.fsdecode(record[2:]))
        else:
            raise Blocked(f"git status printed a record of unknown type {code!r}")
    return Status(
        head=head,
        branch=branch,
        staged=tuple(staged),
        unstaged=tuple(unstaged),
        untracked=tuple(untracked),
        conflicted=tuple(conflicted),
        digest=digest.hexdigest(),
    )


def index_entries(git: Git) -> bytes:
    """Every index entry with its bits (`ls-files -v --stage -z`). One git process."""
    return git.run("ls-files", "-v", "--stage", "-z")


class Look(msgspec.Struct, frozen=True):
    """One full look at a checkout."""

    observation: Observation
    status: Status
    entries: bytes
    snapshot: Snapshot


def look(git: Git, scratch: Path) -> Look:
    """The semantic snapshot of the checkout, and what it was made of: three git processes, four with staged changes.

    `scratch`: a private name for a copy of the index while its tree is computed, because `git write-tree` locks the
    index that it reads, and a lock that a killed git left in the repository is nobody's.
    """
    seen = observe(git)
    found = status(git)
    entries = index_entries(git)
    tree = seen.head_tree
    if found.conflicted:
        tree = "conflicted"
    elif found.staged:
        tree = _index_tree(git, Path(seen.repository.git_dir) / "index", scratch)
    snapshot = Snapshot(
        head=seen.head,
        branch_ref=seen.branch_ref or "HEAD",
        head_tree=seen.head_tree,
        index_tree=tree,
        status_sha256=found.digest,
        status_empty=not found.dirty,
        worktree_index_empty=not found.unstaged and not found.conflicted,
        index_sha256=hashlib.sha256(entries).hexdigest(),
    )
    return Look(seen, found, entries, snapshot)


def _index_tree(git: Git, index: Path, scratch: Path) -> str:
    try:
        private.write_atomic(scratch, index.read_bytes())
        return git.at(git.cwd, env={"GIT_INDEX_FILE": str(scratch)}).run("write-tree").decode().strip()
    finally:
        scratch.unlink(missing_ok=True)


def require_same(observation: Observation, repository: Repository) -> None:
    """`Blocked` when another repository stands where the run's did."""
    seen = observation.repository
    for field in ("toplevel", "git_dir", "common_dir", "common_dev", "common_ino", "identity_digest"):
        expected, found = getattr(repository, field), getattr(seen, field)
        if expected != found:
            raise Blocked(
                f"repository {field} differs from the recorded one",
                detail={"field": field},
                expected=str(expected),
                found=str(found),
                remedy="put the repository back where it was, or start a new run there",
            )


def validate(observation: Observation, repository: Repository, branch_ref: str) -> None:
    """Repository validation of section 5: identity and branch are what the run recorded, else `Blocked`."""
    require_same(observation, repository)
    if observation.branch_ref != branch_ref:
        raise Blocked(
            "the checkout is on another branch than the run recorded",
            expected=branch_ref,
            found=observation.branch_ref or "a detached HEAD",
            remedy=f"git checkout {branch_ref.removeprefix('refs/heads/')}",
        )


def require_clean(found: Status, git_dir: str, *, what: str = "requires a clean canonical checkout") -> None:
    """`Blocked` with the dirty paths unless nothing differs from HEAD and no operation is under way."""
    operation = operation_in_progress(git_dir)
    if operation is not None:
        raise Blocked(
            f"{what}; {operation} says that a merge, rebase, cherry-pick or bisect is under way",
            detail={"operation": operation, "dirty_paths": list(found.dirty)},
            expected="no operation in progress",
            found=operation,
            remedy="finish or abort it",
        )
    if found.dirty:
        raise Blocked(
            what,
            detail={"dirty_paths": list(found.dirty)},
            expected="no staged, unstaged or untracked change",
            found=f"{len(found.dirty)} dirty path(s)",
            remedy="commit, stash or remove them yourself; nothing was touched",
        )
