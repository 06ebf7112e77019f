"""`checkpoint-plan`: the selected plan is committed alone, when it is the only change, or that commit is adopted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controller import checkout, encoding, index_file, journal, run_root, shapes
from controller import records as r
from controller.answer import Answer
from controller.checkout import Observation
from controller.errors import Blocked
from controller.run import OpenRun, changing

CHECKPOINT_MESSAGE = "docs(ce-work): checkpoint selected implementation plan"


def checkpoint_plan(*, run_id: str, wait: float) -> Answer:
    """Commit the selected plan alone, when it is the only dirt; adopt that very commit when it is there already."""
    with changing(run_id, wait=wait) as run:
        finished = finish_checkpoint(run)
        if finished is not None:
            return Answer("CHECKPOINTED", {"checkpoint": encoding.plain(finished)})
        seen = run.observe()
        found = checkout.status(run.git)
        git_dir = run.state.repository.git_dir
        source = run.state.source
        if source.kind == "prompt":
            checkout.require_clean(found, git_dir)
            return Answer("NOOP", {"checkpoint": None, "head": seen.head, "source_kind": "prompt"})
        _, content = run_root.read_plan(run.state.repository.toplevel, source.path)
        digest = hashlib.sha256(content).hexdigest()
        if digest != source.digest:
            raise Blocked(
                "the plan file differs from the recorded digest",
                expected=source.digest,
                found=digest,
                remedy="put the selected plan back, or start a run for the new one",
            )
        if not found.dirty:
            checkout.require_clean(found, git_dir)
            return _clean_checkpoint(run, seen)
        if found.dirty != (source.path,):
            raise Blocked(
                "checkpoint-plan requires a clean canonical checkout but for the plan",
                detail={"dirty_paths": list(found.dirty)},
                expected=f"only {source.path} dirty",
                found=f"{len(found.dirty)} dirty path(s)",
                remedy="commit, stash or remove the others yourself",
            )
        checkout.require_clean(checkout.parse_status(b""), git_dir)
        return Answer("CHECKPOINTED", {"checkpoint": encoding.plain(_commit(run, seen, content))})


def _clean_checkpoint(run: OpenRun, seen: Observation) -> Answer:
    state = run.state
    if state.checkpoint is not None:
        return Answer("NOOP", {"checkpoint": encoding.plain(state.checkpoint), "head": seen.head})
    if seen.head == state.branch.initial_head:
        return Answer("NOOP", {"checkpoint": None, "head": seen.head})
    adopted = _matching_checkpoint(run, seen)
    if adopted is None:
        raise Blocked(
            "HEAD moved since init, and not by this run's plan checkpoint",
            detail={"expected_prior_head": state.branch.initial_head, "head": seen.head},
            expected=state.branch.initial_head,
            found=seen.head,
            remedy="start a new run at the present HEAD",
        )
    run.record(r.PlanCheckpoint(checkpoint=adopted))
    return Answer("CHECKPOINTED", {"checkpoint": encoding.plain(adopted)})


def _matching_checkpoint(run: OpenRun, seen: Observation) -> shapes.Checkpoint | None:
    """HEAD as a checkpoint: sole parent the initial head, the exact message, only the plan changed."""
    state = run.state
    raw = run.git.run("cat-file", "commit", seen.head)
    header, _, message = raw.partition(b"\n\n")
    parents = [line[7:].decode() for line in header.split(b"\n") if line.startswith(b"parent ")]
    changed = run.git.run("diff-tree", "-r", "-z", "--name-only", state.branch.initial_head, seen.head)
    names = [os.fsdecode(name) for name in changed.split(b"\0")[:-1]]
    if parents != [state.branch.initial_head] or names != [state.source.path]:
        return None
    if message.rstrip(b"\n").decode("utf-8", "replace") != CHECKPOINT_MESSAGE:
        return None
    return shapes.Checkpoint(
        prior_head=state.branch.initial_head,
        commit=seen.head,
        tree=seen.head_tree,
        path=state.source.path,
        digest=state.source.digest,
        at=encoding.seconds(journal.utc_now_ms()),
    )


def _move(run: OpenRun, entry: bytes, commit: str, head: str) -> None:
    """The branch, and then the user's index for that one path; a kill between the two is finished by the next call."""
    with _with_entry(run, entry) as install:
        run.refs.move_branch(run.state.branch.ref, commit, head, CHECKPOINT_MESSAGE)
        install()


@contextmanager
def _with_entry(run: OpenRun, entry: bytes) -> Iterator[Callable[[], None]]:
    """Hold the canonical index and a copy of it with one entry changed; the yielded function puts the copy in place."""
    work = run.private_path("index")
    with index_file.held(Path(run.state.repository.git_dir), run.directory) as held:
        index_file.copy(held.index, work)
        git = run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": str(work)})
        git.run("update-index", "-z", "--add", "--index-info", stdin=entry)
        yield lambda: held.install(work)
    work.unlink(missing_ok=True)


def finish_checkpoint(run: OpenRun) -> shapes.Checkpoint | None:
    """Finish a checkpoint whose commit is HEAD but whose record is missing; None when there is none such."""
    if run.state.checkpoint_intent is None or run.state.checkpoint is not None:
        return None
    intent = next(entry.data for entry in reversed(run.entries) if isinstance(entry.data, r.CheckpointIntent))
    if run.observe().head != intent.commit:
        return None
    path = intent.path
    before, after = (_tree_entry(run, tree, path) for tree in (intent.prior_head, intent.commit))
    staged = run.git.run("ls-files", "--stage", "-z", "--", path).partition(b" 0\t")[0].decode()
    if staged == before and after:
        with _with_entry(run, f"{after} 0\t".encode() + os.fsencode(path) + b"\0") as install:
            install()
    return _record_checkpoint(run, intent)


def _tree_entry(run: OpenRun, tree: str, path: str) -> str:
    """`<mode> <object id>` of a path in a tree, empty when it is not there."""
    out = run.git.run("ls-tree", "-z", "--full-tree", tree, "--", path).decode("utf-8", "surrogateescape")
    if not out:
        return ""
    mode, _kind, oid = out.partition("\t")[0].split(" ")
    return f"{mode} {oid}"


def _record_checkpoint(run: OpenRun, intent: r.CheckpointIntent) -> shapes.Checkpoint:
    checkpoint = shapes.Checkpoint(
        prior_head=intent.prior_head,
        commit=intent.commit,
        tree=intent.tree,
        path=intent.path,
        digest=intent.digest,
        at=encoding.seconds(journal.utc_now_ms()),
    )
    run.record(r.PlanCheckpoint(checkpoint=checkpoint))
    return checkpoint


def _commit(run: OpenRun, seen: Observation, content: bytes) -> shapes.Checkpoint:
    """Commit the plan from a private index, then bring the user's index along for that one path."""
    state = run.state
    path = state.source.path
    stage = run.git.run("ls-files", "--stage", "-z", "--", path).decode("utf-8", "surrogateescape")
    mode = stage[:6] if stage else "100644"
    if run.git.run("config", "--type=bool", "--default=true", "core.fileMode") == b"true\n":
        executable = os.stat(Path(state.repository.toplevel) / path).st_mode & 0o100
        mode = "100755" if executable else "100644"
    oid = run.git.run("hash-object", "-w", "--stdin", f"--path={path}", stdin=content).decode().strip()
    scratch = run.private_path("index")
    work = run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": str(scratch)})
    work.run("read-tree", seen.head)
    entry = f"{mode} {oid} 0\t".encode() + os.fsencode(path) + b"\0"
    work.run("update-index", "-z", "--index-info", stdin=entry)
    tree = work.run("write-tree").decode().strip()
    scratch.unlink(missing_ok=True)
    commit = (
        run.git.run("commit-tree", tree, "-p", seen.head, stdin=CHECKPOINT_MESSAGE.encode() + b"\n").decode().strip()
    )
    intent = r.CheckpointIntent(prior_head=seen.head, commit=commit, tree=tree, path=path, digest=state.source.digest)
    run.record(intent)
    _move(run, entry, commit, seen.head)
    after = checkout.status(run.git)
    if after.dirty or after.head != commit:
        raise Blocked(
            "the checkout is not clean after the plan checkpoint",
            detail={"dirty_paths": list(after.dirty)},
            expected="a clean checkout",
            found=f"{len(after.dirty)} dirty path(s)",
            remedy="look at `git status`; a filter may rewrite the plan",
        )
    return _record_checkpoint(run, intent)
