"""`prepare`: one attempt of a unit gets its packet, its authorization and its private workspace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller import (
    ancestry,
    attempt_files,
    checkout,
    encoding,
    lock,
    machine,
    programs,
    run_root,
    sanction,
    shadow,
    shapes,
    worktree,
)
from controller import records as r
from controller.answer import Answer
from controller.errors import Blocked, Refused
from controller.run import OpenRun, changing
from controller.state import Unit, accepted_commits, has_open_claim


def prepare(
    *,
    run_id: str,
    unit_id: str,
    base: str,
    packet: str,
    attempt_id: str,
    activity_posture: str,
    dependency: Sequence[str],
    wave_id: str | None,
    wave_position: int,
    wait: float,
) -> Answer:
    """Queue a unit (or its next attempt) at `base`, or answer for the attempt that is prepared already."""
    with changing(run_id, wait=wait) as run:
        run_root.safe_id(unit_id, "unit id")
        run_root.safe_id(attempt_id, "attempt id")
        for name in dependency:
            run_root.safe_id(name, "dependency")
        if wave_id is not None:
            run_root.safe_id(wave_id, "wave id")
        content = run_root.read_source(Path(packet), "packet")
        seen = run.observe(base)
        commit = seen.revisions[0]
        request = _Request(
            unit_id,
            attempt_id,
            commit,
            content,
            activity_posture,
            tuple(dependency),
            wave_id,
            wave_position,
            programs.adapter(),
        )
        existing = run.state.units.get(unit_id)
        if existing is not None and any(a.attempt_id == attempt_id for a in existing.attempts):
            return _again(run, existing, request, seen.head)
        if unit_id in dependency:
            raise Refused("a unit cannot depend on itself", expected="other units", found=unit_id)
        if seen.head != commit:
            raise Blocked(
                "canonical HEAD is not the given base",
                detail={"head": seen.head, "base": commit},
                expected=commit,
                found=seen.head,
                remedy=f"pass --base {seen.head}, if that is the intended base",
            )
        checkout.require_clean(checkout.status(run.git), run.state.repository.git_dir)
        if existing is None:
            unit = _queue(run, request, (commit,), retry=False)
        else:
            unit = _retry(run, existing, request, seen.head)
        make_workspace(run, unit)
        return _answer(run, unit_id, resumed=False)


class _Request:
    """What the host asked for, with digests."""

    def __init__(
        self,
        unit_id: str,
        attempt_id: str,
        base: str,
        content: bytes,
        activity_posture: str,
        dependencies: tuple[str, ...],
        wave_id: str | None,
        wave_position: int,
        adapter: str,
    ) -> None:
        self.unit_id = unit_id
        self.attempt_id = attempt_id
        self.base = base
        self.content = content
        self.packet_digest = hashlib.sha256(content).hexdigest()
        self.activity_posture = activity_posture
        self.dependencies = dependencies
        self.wave_id = wave_id
        self.wave_position = wave_position
        self.adapter = adapter

    def authorization(self, run: OpenRun) -> dict[str, Any]:
        """The 13 keys of section 5."""
        granted = sanction.validate(run.state.binding, run.state.egress)
        return {
            "schema_version": 1,
            "run_id": run.state.run_id,
            "unit_id": self.unit_id,
            "attempt_id": self.attempt_id,
            "route": granted.route.name,
            "target": granted.route.target,
            "harness": granted.route.harness,
            "intermediaries": list(granted.route.intermediaries),
            "model_requested": granted.model,
            "restriction_posture": granted.route.restriction_posture,
            "restrictions": list(granted.restrictions),
            "activity_posture": self.activity_posture,
            "packet_digest": self.packet_digest,
            **({} if granted.effort is None else {"effort": granted.effort}),
        }


def _queue(run: OpenRun, request: _Request, allowed_heads: tuple[str, ...], *, retry: bool) -> Unit:
    """Write packet and authorization, then the record that binds them; what a killed call left is replaced."""
    directory = run.unit_dir(request.unit_id)
    run_root.make_dir(directory)
    result = directory / "result"
    if os.path.lexists(result):
        run_root.remove_tree(result)
    run_root.make_dir(result)
    run_root.write(directory / "packet.md", request.content)
    authorization = request.authorization(run)
    data = encoding.dumps(authorization).encode("ascii") + b"\n"
    run_root.write(directory / "authorization.json", data)
    identity = os.stat(result)
    kind = r.UnitRetryPrepared if retry else r.WorktreeAddIntent
    record = kind(
        dependencies=request.dependencies,
        wave=shapes.Wave(request.wave_id, request.base, request.wave_position, allowed_heads),
        packet=shapes.Packet(str(directory / "packet.md"), request.packet_digest, len(request.content)),
        workspace=str(directory / "workspace"),
        base=request.base,
        result_dir_identity=shapes.ResultDirIdentity(identity.st_dev, identity.st_ino),
        authorization=authorization,
        authorization_path=str(directory / "authorization.json"),
        authorization_digest=hashlib.sha256(data).hexdigest(),
        adapter=request.adapter,
        activity_posture=request.activity_posture,
    )
    run.record(record, unit=request.unit_id, attempt=request.attempt_id)
    return run.unit(request.unit_id)


def make_workspace(run: OpenRun, unit: Unit) -> None:
    """Create the worktree at the base, prove that it is pristine, and record what its files are."""
    common = run.state.repository.common_dir
    workspace = Path(unit.workspace.path)
    directory = run.unit_dir(unit.unit_id)
    path = lock.worktree_lock_path(run.root, common)
    with lock.held(path, wait=120.0, what="the repository's worktree registry"):
        config = shadow.record_config(run.git, common, directory)
        worktree.add(run.git, common, workspace, unit.workspace.base)
        entry = worktree.require_registered(common, workspace)
    if entry.head != unit.workspace.base:
        raise Blocked(
            "workspace HEAD no longer equals the recorded base",
            expected=unit.workspace.base,
            found=entry.head,
        )
    found = checkout.status(run.git.at(workspace))
    if found.dirty:
        with lock.held(path, wait=120.0, what="the repository's worktree registry"):
            worktree.remove(run.git, common, workspace)
        raise Blocked(
            "a fresh workspace is not clean: conversions or collisions change files on checkout",
            detail={"dirty_paths": list(found.dirty)[:100]},
            expected="a clean workspace",
            found=f"{len(found.dirty)} dirty path(s)",
            remedy="normalise these files (`git add --renormalize`) or resolve the collision, then prepare again",
        )
    entries = worktree.walk(workspace)
    data = worktree.encode_manifest(entries)
    run_root.write(directory / "workspace-manifest", data)
    run.record(
        r.WorktreePrepared(
            manifest_sha256=hashlib.sha256(data).hexdigest(),
            entries=len(entries),
            git_config_sha256=hashlib.sha256(config).hexdigest(),
        ),
        unit=unit.unit_id,
    )


def _retry(run: OpenRun, unit: Unit, request: _Request, head: str) -> Unit:
    """A new attempt of a unit whose last one was abandoned and cleaned (section 8 `prepare`)."""
    complete = unit.cleanup is not None and unit.cleanup["artifact_cleanup"]["complete"]
    if (
        "queued" not in machine.destinations("prepare", unit.state)
        or not complete
        or not (unit.cleanup or {}).get("abandoned")
    ):
        raise Refused(
            f"unit {unit.unit_id} is {unit.state}: a retry needs the earlier attempt abandoned and cleaned",
            detail={"unit_id": unit.unit_id, "state": unit.state},
            expected="state cleaned, abandoned, artifact cleanup complete",
            found=f"state {unit.state}",
            remedy="cleanup --abandon with the exact transport or job, or resume",
        )
    if has_open_claim(unit):
        raise Refused(
            "native fallback already owns implementation",
            detail={"unit_id": unit.unit_id},
            expected="no open fallback claim",
            found="a claim that is not completed",
            remedy="complete-fallback: a native implementation that was authorized is never dropped for a retry",
        )
    if run.state.lock is not None:
        raise Refused(
            "the run holds the integration lock",
            expected="no lock",
            found=f"held for {run.state.lock.unit_id}",
            remedy="finish or release that unit",
        )
    if request.dependencies != unit.dependencies:
        raise Blocked(
            "retry dependencies differ from the recorded unit",
            expected=", ".join(unit.dependencies) or "none",
            found=", ".join(request.dependencies) or "none",
        )
    if (request.wave_id, request.wave_position) != (unit.wave.id, unit.wave.position):
        raise Blocked(
            "retry wave identity/position differs from the recorded unit",
            expected=f"{unit.wave.id} {unit.wave.position}",
            found=f"{request.wave_id} {request.wave_position}",
        )
    accepted = set(accepted_commits(run.state).values())
    latest = unit.wave.allowed_heads[-1]
    detail = {"requested_base": request.base, "latest_allowed_head": latest}
    if request.base not in {unit.wave.base, *accepted}:
        raise Blocked(
            "the retry base is neither the unit's original base nor an accepted commit",
            detail=detail,
            expected=unit.wave.base,
            found=request.base,
            remedy="put the branch back to a commit that this run accepted",
        )
    absent = ancestry.missing(run.git, {*accepted, unit.wave.base, *unit.wave.allowed_heads}, request.base)
    if absent:
        raise Blocked(
            "the retry base does not contain every controller-accepted prerequisite",
            detail={**detail, "missing_ancestry": absent},
            expected="every accepted commit as an ancestor",
            found=f"{len(absent)} missing",
        )
    heads = unit.wave.allowed_heads
    heads = heads if request.base in heads else (*heads, request.base)
    return _queue(run, request, heads, retry=True)


def _again(run: OpenRun, unit: Unit, request: _Request, head: str) -> Answer:
    """Answer for an attempt that exists: everything must be what was recorded; finish a half-made workspace."""
    attempt = unit.attempt
    if attempt.attempt_id != request.attempt_id or unit.cleanup is not None or unit.state in machine.TERMINAL:
        raise Refused(
            f"attempt {request.attempt_id} of unit {unit.unit_id} has ended; supply a fresh --attempt-id",
            detail={"unit_id": unit.unit_id, "state": unit.state},
            expected="an attempt id that was not used",
            found=request.attempt_id,
            remedy="supply a fresh --attempt-id",
        )
    authorization = request.authorization(run)
    for what, expected, found in (
        ("base", unit.workspace.base, request.base),
        ("dependencies", list(unit.dependencies), list(request.dependencies)),
        ("wave id", unit.wave.id, request.wave_id),
        ("wave position", unit.wave.position, request.wave_position),
        ("packet digest", unit.packet_digest, request.packet_digest),
        ("authorization", attempt.authorization, authorization),
        ("adapter", attempt.adapter, request.adapter),
    ):
        if expected != found:
            raise Blocked(
                f"the {what} differs from the prepared attempt",
                detail={"unit_id": unit.unit_id},
                expected=str(expected),
                found=str(found),
                remedy="repeat the original request, or abandon the attempt and supply a fresh --attempt-id",
            )
    attempt_files.require_files(run, unit)
    if not unit.workspace.registered:
        if head != unit.workspace.base:
            raise Blocked("canonical HEAD is not the given base", expected=unit.workspace.base, found=head)
        make_workspace(run, unit)
        return _answer(run, unit.unit_id, resumed=False)
    entry = worktree.require_registered(run.state.repository.common_dir, Path(unit.workspace.path))
    if unit.state == "queued":
        attempt_files.require_pristine(run, unit, entry.head)
    return _answer(run, unit.unit_id, resumed=True)


def _answer(run: OpenRun, unit_id: str, *, resumed: bool) -> Answer:
    unit = run.unit(unit_id)
    attempt = unit.attempt
    return Answer(
        "PREPARED",
        {
            "unit_id": unit_id,
            "attempt_id": attempt.attempt_id,
            "workspace": unit.workspace.path,
            "result_dir": str(run.unit_dir(unit_id) / "result"),
            "packet_path": unit.packet.path,
            "packet_digest": unit.packet_digest,
            "authorization_path": attempt.authorization_path,
            "authorization_digest": attempt.authorization_digest,
            "adapter": attempt.adapter,
            "base": unit.workspace.base,
            "resumed": resumed,
        },
    )
