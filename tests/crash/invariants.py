"""What must hold after a command was killed anywhere and `resume` ran: I1 to I6 of the crash laboratory.

I1 user bytes, I2 commits, I3 processes, I4 integration lock, I5 transports, I6 a second resume changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tests.crash.scene import Scene


class Reference:
    """What the undisturbed story looks like: the only states that a killed one may show."""

    def __init__(self) -> None:
        self.settled: list[dict[str, Any]] = []
        self.passing: list[dict[str, Any]] = []
        self.trees: list[str] = []
        self.base: list[str] = []

    def settle(self, scene: Scene) -> None:
        """A state in which a run may rest."""
        self.settled.append(scene.user_state())

    def pass_by(self, scene: Scene) -> None:
        """A state that only a first resume may leave."""
        self.passing.append(scene.user_state())


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    out = []
    for key in wanted:
        if found[key] == wanted[key]:
            continue
        if key == "files":
            names = sorted(
                name for name in {*found[key], *wanted[key]} if found[key].get(name) != wanted[key].get(name)
            )
            out.append("files: " + ", ".join(f"{n} {found[key].get(n)} not {wanted[key].get(n)}" for n in names[:5]))
        else:
            out.append(f"{key}: {str(found[key])[:300]!r} not {str(wanted[key])[:300]!r}")
    return out


def user_bytes(scene: Scene, reference: Reference, *, rests: bool) -> list[str]:
    """I1: tracked, untracked and ignored bytes, modes, index entries and bits, stash, configuration."""
    found = scene.user_state()
    states = reference.settled if rests else reference.settled + reference.passing
    if found in states:
        return []
    nearest = min((_difference(found, state) for state in states), key=lambda diff: len(str(diff)))
    return ["I1 user bytes: " + "; ".join(nearest)]


def contents(scene: Scene) -> dict[bytes, str]:
    """The bytes of every file that stands in the checkout, and where."""
    found = {}
    for folder, folders, names in os.walk(scene.repo):
        if folder == str(scene.repo):
            folders.remove(".git")
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                found[Path(path).read_bytes()] = os.path.relpath(path, scene.repo)
    found.pop(b"", None)
    return found


def kept(scene: Scene, before: dict[bytes, str]) -> list[str]:
    """I1: what stood in the checkout before `resume` stands there, is in Git, or was copied to `recovered/`."""
    gone = {data: name for data, name in before.items() if data not in contents(scene)}
    copies = {path.read_bytes() for path in scene.run_dir().glob("recovered/**/*") if path.is_file()}
    problems = []
    for data, name in gone.items():
        if data not in copies:
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            if scene.git("cat-file", "-t", oid, check=False) != "blob":
                problems.append(
                    f"I1 bytes lost: {name} held {data[:60]!r}, now neither there, nor in Git, nor recovered"
                )
    return problems


def commits(scene: Scene, reference: Reference) -> list[str]:
    """I2: the branch holds a prefix of the undisturbed story's trees, each once, in a line from the same root."""
    found = scene.trees()
    if found != reference.trees[: len(found)] or found[: len(reference.base)] != reference.base:
        return [f"I2 commits: the branch has trees {found}, the undisturbed story {reference.trees}"]
    merges = scene.git("rev-list", "--min-parents=2", "HEAD")
    return [f"I2 commits: merges {merges}"] if merges else []


def processes(scene: Scene) -> list[str]:
    """I3: the kernel says that nothing is left below us."""
    if scene.keeper.settle(1.0):
        return []
    alive = scene.keeper.survivors()
    scene.keeper.kill_everything()
    return [f"I3 processes: {alive}"]


def locks(scene: Scene) -> list[str]:
    """I4: the lock file is there exactly when the journal says so; no lock of Git or ours is left behind."""
    found = [f"I4 locks: stale {path}" for path in stale_git_locks(scene.repo / ".git")]
    holders = sorted((scene.runs / ".locks").glob("integration-*.json")) if scene.runs.exists() else []
    held = _manifest_state(scene).get("integration_lock")
    if held is None and holders:
        found.append(f"I4 locks: {holders[0].name} exists, the journal holds no lock")
    if held is not None and (not holders or json.loads(holders[0].read_text())["nonce"] != held["nonce"]):
        found.append(f"I4 locks: the journal holds {held}, the file says {[h.read_text() for h in holders]}")
    return found


def stale_git_locks(git_dir: Path) -> list[str]:
    """Lock files of Git (and the markers of ours) below a Git directory."""
    found = []
    for folder, folders, names in os.walk(git_dir):
        if folder == str(git_dir / "objects"):
            folders.clear()
            continue
        found += [
            os.path.relpath(os.path.join(folder, name), git_dir)
            for name in names
            if name.endswith(".lock") or name.startswith("unit-workspace-")
        ]
    return sorted(found)


def _manifest_state(scene: Scene) -> dict[str, Any]:
    if not scene.run_dir().exists():
        return {}
    reply = scene.call("status", "--run-id", "r1").expect("STATUS")
    return reply.body


def transports(scene: Scene) -> list[str]:
    """I5: every pinned transport is at its ref until its unit is cleaned, and no other ref of ours exists."""
    refs = dict(
        line.split(" ", 1)[::-1]
        for line in scene.git("for-each-ref", "--format=%(objectname) %(refname)", "refs/ce-work").split("\n")
        if line
    )
    wanted = {}
    for unit in _manifest_state(scene).get("units", {}).values():
        if unit["transport"]["commit"] and unit["cleanup"] is None:
            wanted[unit["transport"]["ref"]] = unit["transport"]["commit"]
    problems = [
        f"I5 transports: {ref} is {refs.get(ref)}, not {commit}"
        for ref, commit in wanted.items()
        if refs.get(ref) != commit
    ]
    problems += [f"I5 transports: stray {ref}" for ref in refs.keys() - wanted.keys()]
    broken = scene.git("fsck", "--connectivity-only", "--no-dangling", "--no-progress", check=False)
    return problems + ([f"I5 fsck: {broken}"] if broken else [])


def journal_bytes(scene: Scene) -> bytes:
    """The journal as it is."""
    path = scene.run_dir() / "journal.jsonl"
    return path.read_bytes() if path.exists() else b""


def leftovers(scene: Scene) -> list[str]:
    """After the end: nothing of the run is left in the repository, nothing temporary in the run."""
    problems = []
    worktrees = scene.git("worktree", "list", "--porcelain").count("worktree ")
    if worktrees != 1 or (scene.repo / ".git" / "worktrees").exists():
        problems.append(f"leftovers: {worktrees} worktrees registered")
    for folder, _, names in os.walk(scene.runs):
        if Path(folder).parent.name == "jobs" and "meta.json" not in names:
            continue  # a job that was never started; only `gc` removes it, with its run
        for name in names:
            if name.startswith((".tmp-", "index.work", "index-")) or name == "transport.stream":
                problems.append(f"leftovers: {os.path.relpath(os.path.join(folder, name), scene.runs)}")
    # A killed adapter cannot take its scratch folder with it; the next call does.
    temporary = (name for name in os.listdir(scene.base / "tmp") if not name.startswith("unit-workspace-adapter-"))
    problems += [f"leftovers: {name}" for name in temporary]
    problems += [f"leftovers: {name}" for name in os.listdir(scene.runs) if name not in (".locks", "r0", "r1")]
    units = scene.run_dir() / "units"
    problems += [f"leftovers: units/{name}" for name in os.listdir(units)]
    return problems


def private_modes(scene: Scene) -> list[str]:
    """What the run holds is private: files 0600, folders 0700 (workspaces hold the user's files)."""
    problems = []
    for folder, folders, names in os.walk(scene.runs):
        if "workspace" in folders and Path(folder).parent.name == "units":
            folders.remove("workspace")
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            if name == "index.work.lock":  # made by a git that was killed; below a private folder
                continue
            wanted = 0o700 if name in folders else 0o600
            if not os.path.islink(path) and os.lstat(path).st_mode & 0o7777 != wanted:
                problems.append(f"modes: {os.path.relpath(path, scene.runs)} is {os.lstat(path).st_mode & 0o7777:o}")
    return problems
