"""`init` and `checkpoint-plan`: a run begins on a named branch, with one source and one sanctioned recipient."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Any

from controller import brief, checkout, encoding, index_file, journal, lock, run_root, sanction, shapes
from controller import records as r
from controller.answer import Answer
from controller.checkout import Observation
from controller.errors import Blocked, ControllerError, NotFound, Refused
from controller.git import Git
from controller.run import OpenRun, changing, read_directory

CHECKPOINT_MESSAGE = "docs(ce-work): checkpoint selected implementation plan"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def init(
    *,
    run_id: str,
    repo: str,
    plan: str | None,
    plan_digest: str | None,
    prompt_brief: str | None,
    prompt_digest: str | None,
    binding_json: str,
    egress_json: str,
) -> Answer:
    """Create the run, or answer for the one that is there with the same identity, source, binding and egress."""
    root = run_root.creation_root()
    run_root.safe_run_id(run_id)
    seen = checkout.observe(Git(Path(repo)))
    if seen.branch_ref is None:
        raise Refused(
            "HEAD of the repository is detached",
            expected="a branch",
            found=f"detached at {seen.head}",
            remedy="check out the branch that the work shall land on",
        )
    operation = checkout.operation_in_progress(seen.repository.git_dir)
    if operation is not None:
        raise Blocked(
            "a merge, rebase, cherry-pick or bisect is under way in the repository",
            detail={"operation": operation},
            expected="no operation in progress",
            found=operation,
            remedy="finish or abort it",
        )
    source, content = _source(seen, plan, plan_digest, prompt_brief, prompt_digest)
    binding = sanction.parse_object(binding_json, "--binding-json")
    egress = sanction.parse_object(egress_json, "--egress-json")
    sanction.validate(binding, egress)
    warnings = brief.warnings(content) if source.kind == "prompt" else []
    with lock.held(root / run_root.LOCKS / "runs.lock", wait=lock.DEFAULT_WAIT, what="the runs root"):
        existing = _existing(run_id)
        if existing is not None:
            return _answer(_same(existing, seen, source, binding, egress), True, warnings)
        run = _create(root, run_id, seen, source, content, binding, egress)
    return _answer(run, False, warnings)


def _answer(run: OpenRun, resumed: bool, warnings: list[str]) -> Answer:
    body: dict[str, Any] = {
        "run_id": run.state.run_id,
        "revision": run.state.revision,
        "resumed": resumed,
        "source_kind": run.state.source.kind,
        "source_digest": run.state.source.digest,
        "recovery_path": str(run.directory),
    }
    if warnings:
        body["warnings"] = warnings
    return Answer("READY", body)


def _digest_argument(value: str | None, flag: str, content: bytes, what: str) -> str:
    found = hashlib.sha256(content).hexdigest()
    if value is None or not _DIGEST.match(value) or value != found:
        raise Refused(
            f"{flag} is not the SHA-256 of the {what}",
            expected=found,
            found=str(value)[:80],
            remedy=f"read the {what} again; if it is the intended one, pass {flag} {found}",
        )
    return found


def _source(
    seen: Observation,
    plan: str | None,
    plan_digest: str | None,
    prompt: str | None,
    prompt_digest: str | None,
) -> tuple[shapes.Source, bytes]:
    top = seen.repository.toplevel
    if plan is not None:
        if prompt_digest is not None:
            raise Refused("a plan source forbids --prompt-digest", expected="--plan-digest", found="--prompt-digest")
        relative, content = read_plan(top, plan)
        return shapes.Source(
            "plan", "repository", relative, _digest_argument(plan_digest, "--plan-digest", content, "plan")
        ), content
    assert prompt is not None
    if plan_digest is not None:
        raise Refused("a prompt brief forbids --plan-digest", expected="--prompt-digest", found="--plan-digest")
    path = os.path.realpath(prompt)
    if path == top or path.startswith(top.rstrip("/") + "/"):
        raise Refused(
            "the prompt brief must lie outside the repository",
            expected=f"a path outside {top}",
            found=path,
            remedy="write it to the system's temporary folder",
        )
    content = run_root.read_source(Path(prompt), "prompt brief")
    digest = _digest_argument(prompt_digest, "--prompt-digest", content, "prompt brief")
    return shapes.Source("prompt", "run", "source/bare-prompt.md", digest), content


def read_plan(top: str, plan: str) -> tuple[str, bytes]:
    """The plan's path relative to the top level, and its bytes; `REFUSED` for a link, a folder or a path outside."""
    path = Path(plan) if os.path.isabs(plan) else Path(top) / plan
    real = os.path.realpath(path)
    if real == top or not real.startswith(top.rstrip("/") + "/") or os.path.relpath(real, top).split("/")[0] == ".git":
        raise Refused("the plan lies outside the repository", expected=f"a file inside {top}", found=real)
    content = run_root.read_source(path, "plan", 64 * 1024 * 1024)
    return os.path.relpath(real, top), content


def _existing(run_id: str) -> Path | None:
    try:
        return run_root.find_run(run_id)
    except NotFound:
        return None


def _same(
    directory: Path, seen: Observation, source: shapes.Source, binding: dict[str, Any], egress: dict[str, Any]
) -> OpenRun:
    if not os.path.lexists(directory / run_root.JOURNAL):
        raise Blocked(
            f"run directory {directory} exists without a controller manifest; choose a new run id",
            expected="no such directory, or one with a journal",
            found="a directory that the controller did not make",
            remedy="choose a new run id",
        )
    run = read_directory(directory)
    state = run.state
    same_source = (state.source.kind, state.source.digest) == (source.kind, source.digest)
    if state.repository.identity_digest != seen.repository.identity_digest or not same_source:
        raise Blocked(
            f"run {state.run_id} belongs to another repository or source",
            expected=f"{state.repository.toplevel}, {state.source.kind} {state.source.digest}",
            found=f"{seen.repository.toplevel}, {source.kind} {source.digest}",
            remedy="choose a new run id",
        )
    if state.binding != binding or state.egress != egress:
        raise Blocked(
            "binding or egress sanction differs from the run's",
            expected=encoding.dumps({"binding": state.binding, "egress": state.egress}),
            found=encoding.dumps({"binding": binding, "egress": egress}),
            remedy="choose a new run id for another recipient",
        )
    return run


def _create(
    root: Path,
    run_id: str,
    seen: Observation,
    source: shapes.Source,
    content: bytes,
    binding: dict[str, Any],
    egress: dict[str, Any],
) -> OpenRun:
    """Build the whole run directory under a temporary name, then give it its name in one rename."""
    for name in os.listdir(root):
        if name.startswith(run_root.INIT_PREFIX):  # ours, half made by a killed init; we hold the root's lock
            run_root.remove_tree(root / name)
    draft = root / f"{run_root.INIT_PREFIX}{secrets.token_hex(6)}"
    try:
        for folder in ("", "source", "packets", "units", "jobs"):
            run_root.make_dir(draft / folder if folder else draft)
        run_root.write(draft / "manifest.lock", b"")
        if source.kind == "prompt":
            run_root.write(draft / source.path, content)
        data = r.RunCreated(
            run_id=run_id,
            repository=seen.repository,
            branch=shapes.Branch(seen.branch_ref or "", seen.head),
            source=source,
            binding=binding,
            egress=egress,
            digests={
                name: hashlib.sha256(encoding.dumps(encoding.plain(value)).encode("ascii")).hexdigest()
                for name, value in {
                    "repository": seen.repository,
                    "source": source,
                    "binding": binding,
                    "egress": egress,
                    "config": {},
                }.items()
            },
            config={},
        )
        written = journal.Writer.create(draft / run_root.JOURNAL, data.kind, None, None, encoding.plain(data))
        written.close()
        with run_root.trusted():
            os.rename(draft, root / run_id)
            from runner.private import fsync_dir

            fsync_dir(root)
    except ControllerError:
        if draft.exists():
            run_root.remove_tree(draft)
        raise
    run = read_directory(root / run_id)
    run.project()
    return run


def checkpoint_plan(*, run_id: str, wait: float) -> Answer:
    """Commit the selected plan alone, when it is the only dirt; adopt that very commit when it is there already."""
    with changing(run_id, wait=wait) as run:
        seen = run.observe()
        found = checkout.status(run.git)
        git_dir = run.state.repository.git_dir
        source = run.state.source
        if source.kind == "prompt":
            checkout.require_clean(found, git_dir)
            return Answer("NOOP", {"checkpoint": None, "head": seen.head, "source_kind": "prompt"})
        _, content = read_plan(run.state.repository.toplevel, source.path)
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
    """The user's index first, then the branch: between the two the plan is staged, which is where a host began."""
    git_dir = Path(run.state.repository.git_dir)
    before, after = run.private_path("index"), run.private_path("index")
    with index_file.held(git_dir, run.directory) as held:
        for path in (before, after):
            index_file.copy(held.index, path)
        work = run.git.at(run.git.cwd, env={"GIT_INDEX_FILE": str(after)})
        work.run("update-index", "-z", "--add", "--index-info", stdin=entry)
        held.install(after)
    after.unlink()
    try:
        run.refs.move_branch(run.state.branch.ref, commit, head, CHECKPOINT_MESSAGE)
    except ControllerError:
        with index_file.held(git_dir, run.directory) as held:
            held.install(before)
        raise
    before.unlink()


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
    run.record(
        r.CheckpointIntent(prior_head=seen.head, commit=commit, tree=tree, path=path, digest=state.source.digest)
    )
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
    checkpoint = shapes.Checkpoint(
        prior_head=seen.head,
        commit=commit,
        tree=tree,
        path=path,
        digest=state.source.digest,
        at=encoding.seconds(journal.utc_now_ms()),
    )
    run.record(r.PlanCheckpoint(checkpoint=checkpoint))
    return checkpoint
