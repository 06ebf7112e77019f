"""`init`: a run begins on a named branch, with one source and one sanctioned recipient."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from controller import brief, checkout, encoding, journal, lock, run_root, sanction, shapes, transport
from controller import records as r
from controller.answer import Answer
from controller.checkout import Observation
from controller.errors import Blocked, ControllerError, NotFound, Refused
from controller.git import Git
from controller.run import OpenRun, read_directory

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
        _require_unused(Git(Path(seen.repository.toplevel)), run_id)
        run = _create(root, run_id, seen, source, content, binding, egress)
    return _answer(run, False, warnings)


def _require_unused(git: Git, run_id: str) -> None:
    """`BLOCKED` when a run of this name, below another runs root, has transports here: each would end the other's."""
    space = transport.ref_name(run_id, "").rpartition("/")[0]
    found = git.run("for-each-ref", "--count=1", "--format=%(refname)", f"{space}/").decode("utf-8", "replace").strip()
    if found:
        raise Blocked(
            f"the repository holds transports of another run {run_id}",
            detail={"run_id": run_id, "ref": found},
            expected=f"no reference below {space}/",
            found=found,
            remedy="choose a new run id; or, if that run's directory is gone for good and its work is not wanted, "
            "delete these references with git update-ref -d",
        )


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
        relative, content = run_root.read_plan(top, plan)
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
        # Half made by a killed init (we hold the root's lock) or half removed by a gc. One that stays is doctor's.
        if run_root.is_draft(root / name):
            with suppress(Blocked):
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
