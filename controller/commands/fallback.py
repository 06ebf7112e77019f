"""`claim-fallback`, `complete-fallback`: native implementation exactly once, after an authoritative end (section 8)."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from controller import ancestry, checkout, encoding, jobs, machine, receipts, run_root
from controller import records as r
from controller.answer import Answer
from controller.arguments import require_bounded
from controller.errors import Blocked, ControllerError, Refused
from controller.integration_lock import require_turn
from controller.run import OpenRun, changing
from controller.state import DONE, FAILED_WORDS, NEVER_STARTED, RUNNING, Unit, accepted_commits

PRESERVED = "canonical-attempt-preserved"
VALIDATION = "terminal-validation-failure"


def claim(*, run_id: str, unit_id: str, caller_mode: str, wait: float) -> Answer:
    """Authorize the one native fallback of a unit whose worker has authoritatively failed."""
    with changing(run_id, wait=wait) as run:
        run.observe()
        unit = run.unit(unit_id)
        if unit.state == "authoring" and unit.attempt.job_id is not None:
            jobs.sync(run, unit_id)
            unit = run.unit(unit_id)
        fallback = unit.attempt.fallback
        if fallback.claimed is not None:
            return Answer(
                "FALLBACK_ALREADY_AUTHORIZED",
                {
                    "unit_id": unit_id,
                    "start_native": False,
                    "reason": fallback.reason,
                    "claim": fallback.claimed,
                },
            )
        machine.require("claim-fallback", unit_id, unit.state)
        ancestry.require_dependencies(run.state, unit)
        mode = run.state.binding.get("mode")
        if mode not in ("prefer", "require"):
            raise Refused("the binding allows no fallback", expected="mode prefer or require", found=str(mode))
        if unit.wave.id is not None:
            require_turn(run, unit_id)
        reason = _basis(run, unit)
        jobs.require_no_process(unit)
        seen = run.look()
        head = seen.observation.head
        if reason == PRESERVED:
            if seen.snapshot != unit.integration.pre_fold:
                raise Blocked(
                    "the checkout no longer equals the pre-fold snapshot",
                    expected="the restored snapshot",
                    found="another state",
                    remedy="put it back, then claim again",
                )
        else:
            ancestry.require_head(run.git, run.state, unit, head, ())
            checkout.require_clean(seen.status, run.state.repository.git_dir)
        run.record(
            r.FallbackAuthorized(reason=reason, caller_mode=caller_mode, mode=str(mode), canonical_head=head),
            unit=unit_id,
        )
        claimed = run.unit(unit_id).attempt.fallback.claimed
        return Answer(
            "FALLBACK_AUTHORIZED",
            {"unit_id": unit_id, "start_native": True, "reason": reason, "claim": claimed},
        )


def _refuse(unit: Unit, message: str, found: str, remedy: str) -> Refused:
    return Refused(
        message,
        detail={"unit_id": unit.unit_id, "state": unit.state, "process_state": unit.attempt.process_state},
        expected="an authoritatively failed attempt, or an exactly restored one",
        found=found,
        remedy=remedy,
    )


def _basis(run: OpenRun, unit: Unit) -> str:
    """Why native work may begin; `REFUSED` when there is no reason."""
    attempt = unit.attempt
    if unit.state == "preserved":
        restored = unit.integration.restore
        if restored is None or not restored.exact or run.state.lock is not None:
            raise _refuse(unit, "exact restoration and lock release come first", "lock held", "resume")
        return PRESERVED
    if unit.state == "integration-pending":
        raise _refuse(
            unit,
            "pinned worker transport must be reconciled before a fallback",
            "a pinned transport",
            "integrate it, or cleanup --abandon with --expect-transport",
        )
    if attempt.process_state == RUNNING:
        raise _refuse(unit, "the worker is running", "running", "wait for it, or reap it")
    if attempt.process_state == DONE:
        failure = attempt.terminal_validation_failure
        if failure is None:
            raise _refuse(
                unit,
                "successful worker output must be reconciled rather than bypassed",
                "job done",
                "terminalize it",
            )
        if _digest(run, unit) != failure["result_sha256"]:
            raise Blocked("the result changed after its validation failed", remedy="terminalize again")
        return VALIDATION
    if attempt.process_state in FAILED_WORDS or (attempt.process_state == NEVER_STARTED and attempt.job_id):
        _require_receipt_unchanged(run, unit)
        return attempt.fallback.reason or attempt.process_state
    raise _refuse(
        unit,
        "the unit was never dispatched",
        "no job",
        "dispatch it; or, to implement it natively, let the dispatch fail first",
    )


def _digest(run: OpenRun, unit: Unit) -> str | None:
    try:
        data = run_root.read(receipts.result_path(run.unit_dir(unit.unit_id)), run_root.RESULT_MAX)
    except ControllerError:
        return None
    return hashlib.sha256(data).hexdigest()


def _require_receipt_unchanged(run: OpenRun, unit: Unit) -> None:
    recorded = unit.attempt.terminal_receipt
    if recorded is None or not unit.attempt.bulky_artifacts_retained:
        return
    found = receipts.route_receipt(unit, run.unit_dir(unit.unit_id))
    if found is None or found[1] != recorded:
        raise Blocked(
            "the recorded receipt does not re-read identically",
            expected=str(recorded.get("result_sha256")),
            found=str(_digest(run, unit)),
            remedy="somebody changed the result folder; inspect it",
        )


def complete(
    *, run_id: str, unit_id: str, accepted_head: str, evidence_digest: str, summary: str, wait: float
) -> Answer:
    """Accept the claimed native implementation, committed at HEAD."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", accepted_head):
        raise Refused(
            "--accepted-head is not a full commit id",
            expected="40 or 64 hex digits",
            found=accepted_head[:80],
        )
    if not re.fullmatch(r"[0-9a-f]{64}", evidence_digest):
        raise Refused("--evidence-digest is not a SHA-256", expected="64 hex digits", found=evidence_digest[:80])
    require_bounded(summary, "--summary")
    with changing(run_id, wait=wait) as run:
        unit = run.unit(unit_id)
        fallback = unit.attempt.fallback
        if fallback.claimed is None or fallback.completed is not None:
            raise Refused(
                "there is no open fallback claim",
                detail={"unit_id": unit_id},
                expected="a claim that is not completed",
                found="completed" if fallback.completed else "no claim",
                remedy="claim-fallback first",
            )
        if run.state.lock is not None:
            raise Refused("the run holds the integration lock", expected="no lock", found=run.state.lock.unit_id)
        machine.require("complete-fallback", unit_id, unit.state)
        seen = run.look()
        checkout.validate(seen.observation, run.state.repository, run.state.branch.ref)
        checkout.require_clean(seen.status, run.state.repository.git_dir)
        if seen.observation.head != accepted_head:
            raise Blocked(
                "HEAD is not the accepted head",
                expected=accepted_head,
                found=seen.observation.head,
                remedy="check out the commit that was verified",
            )
        _require_ancestry(run, unit, accepted_head)
        changed = run.git.run(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", unit.workspace.base, accepted_head
        )
        completion: dict[str, Any] = {
            "base": unit.workspace.base,
            "accepted_head": accepted_head,
            "evidence_digest": evidence_digest,
            "summary": summary,
            "snapshot": encoding.plain(seen.snapshot),
            "claim": fallback.claimed,
            "changed_paths": [name.decode("utf-8", "surrogateescape") for name in changed.split(b"\0")[:-1]],
        }
        run.record(r.FallbackCompleted(completion=completion), unit=unit_id)
        completed = run.unit(unit_id).attempt.fallback.completed
        return Answer("FALLBACK_COMPLETED", {"unit_id": unit_id, "completion": completed, "eligible_siblings": []})


def _require_ancestry(run: OpenRun, unit: Unit, head: str) -> None:
    accepted = accepted_commits(run.state)
    wanted: list[dict[str, str]] = [{"kind": "wave-head", "commit": commit} for commit in unit.wave.allowed_heads]
    wanted.append({"kind": "wave-head", "commit": unit.workspace.base})
    for name, commit in accepted.items():
        if name != unit.unit_id:
            kind = "dependency" if name in unit.dependencies else "accepted-unit"
            wanted.append({"kind": kind, "unit_id": name, "commit": commit})
    absent = set(ancestry.missing(run.git, {item["commit"] for item in wanted}, head))
    if absent or head in {*accepted.values(), unit.workspace.base}:
        raise Blocked(
            "the accepted head does not contain every controller-accepted prerequisite, or adds nothing to them",
            detail={
                "unit_id": unit.unit_id,
                "accepted_head": head,
                "missing_ancestry": [item for item in wanted if item["commit"] in absent],
            },
            expected="a new commit that descends from base and accepted commits",
            found=head,
            remedy="commit the native implementation on the canonical branch",
        )
