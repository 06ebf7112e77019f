"""`resume`: whatever was killed, whenever, bring the run to a state with a legal next step (section 10).

Never dispatches, applies or commits. Each unit's outcome is in `actions`; the word is the worst (section 18 row 12).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller import (
    checkout,
    cleaning,
    encoding,
    integration_lock,
    jobs,
    lock,
    run_root,
    terminal,
    transaction,
)
from controller import records as r
from controller.answer import Answer
from controller.checkout import Look
from controller.commands.checkpoint import finish_checkpoint
from controller.commands.prepare import make_workspace
from controller.commands.verify_run import abandon_pending
from controller.errors import Ambiguous, Blocked, ControllerError, Interrupted, NotFound, Refused, Unreadable
from controller.git import Git
from controller.run import OpenRun, changing, read_directory
from controller.state import DONE, is_finished

Action = dict[str, Any]


def resume(*, run_id: str | None, repo: str | None, plan_digest: str | None, wait: float) -> Answer:
    """Continue the named run, or the one unfinished run of a repository and plan."""
    if (run_id is None) == (repo is None) or (repo is None) != (plan_digest is None):
        raise Refused(
            "resume takes --run-id alone or both --repo and --plan-digest",
            expected="--run-id R, or --repo DIR --plan-digest SHA256",
            found="another combination",
        )
    if run_id is None:
        assert repo is not None and plan_digest is not None
        run_id = discover(repo, plan_digest)
    with changing(run_id, wait=wait) as run:
        return _Resumption(run).go()


def discover(repo: str, plan_digest: str) -> str:
    """The id of the one unfinished run with this repository, branch and plan digest."""
    if not re.fullmatch(r"[0-9a-f]{64}", plan_digest):
        raise Refused("--plan-digest is not a SHA-256", expected="64 hex digits", found=plan_digest[:80])
    seen = checkout.observe(Git(Path(repo)))
    candidates = []
    for root in run_root.lookup_roots():
        if not root.is_dir():
            continue
        for name in sorted(os.listdir(root)):
            if name == run_root.LOCKS or name.startswith(run_root.INIT_PREFIX):
                continue
            run = read_directory(_trusted_entry(root / name))
            state = run.state
            same = (
                state.repository.identity_digest == seen.repository.identity_digest
                and state.repository.toplevel == seen.repository.toplevel
                and state.repository.git_dir == seen.repository.git_dir
                and state.branch.ref == seen.branch_ref
                and (state.source.kind, state.source.digest) == ("plan", plan_digest)
            )
            if same and not is_finished(state, seen.head):
                candidates.append(
                    {
                        "run_id": name,
                        "updated_at": encoding.seconds(state.updated_at),
                        "recovery_path": str(run.directory),
                        "unit_states": {unit_id: unit.state for unit_id, unit in state.units.items()},
                    }
                )
    if not candidates:
        raise NotFound(
            "no unfinished run matches this repository, branch and plan digest",
            detail={"candidates": []},
            expected="one unfinished run",
            found="none",
            remedy="init a new run",
        )
    if len(candidates) > 1:
        raise Ambiguous(
            "several unfinished runs match",
            detail={"candidates": sorted(candidates, key=lambda item: str(item["recovery_path"]))},
            expected="one unfinished run",
            found=f"{len(candidates)}",
            remedy="resume --run-id one of them",
        )
    return str(candidates[0]["run_id"])


def _trusted_entry(path: Path) -> Path:
    """An entry of a runs root that is a run's directory; `UNREADABLE` otherwise: it could be the one looked for."""
    try:
        return run_root.find_run(path.name)
    except (NotFound, Refused) as error:
        raise Unreadable(
            f"{path} is not a run's directory",
            expected="only private directories of runs in the runs root",
            found=error.found,
            remedy="move it away, or name the run with --run-id",
        ) from None


class _Resumption:
    """One call of `resume`."""

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self.actions: list[Action] = []
        self.errors: list[ControllerError] = []
        self.foreign_lock = False

    def go(self) -> Answer:
        """Lock first, then every unit, then the lock of a finished unit."""
        run = self.run
        self._guard(None, self._checkpoint)
        self._guard(None, self._lock)
        for unit_id in sorted(run.state.units):
            self._guard(unit_id, lambda name=unit_id: self._unit(name))  # type: ignore[misc]
        self._guard(None, self._plan_wide)
        body = {
            "run_id": run.state.run_id,
            "actions": self.actions,
            "redispatched": False,
            "applied": False,
        }
        if self.errors:
            raise _worst(self.errors, body)
        return Answer("RESUMED", body)

    def _guard(self, unit_id: str | None, step: Callable[[], None]) -> None:
        """One unit that cannot be repaired does not keep the others from it; a lock that cannot be read does."""
        try:
            step()
        except ControllerError as error:
            if isinstance(error, Interrupted) or (isinstance(error, Unreadable) and unit_id is None):
                raise
            self.errors.append(error)
            self._act(unit_id, "blocked", **{**error.body(), "word": error.word, "reason": error.message})

    def _act(self, unit_id: str | None, action: str, /, **detail: Any) -> None:
        detail.pop("unit_id", None)
        detail.pop("action", None)
        self.actions.append({"unit_id": unit_id, "action": action, **detail})

    def _holds(self, unit_id: str) -> bool:
        held = self.run.state.lock
        return held is not None and held.unit_id == unit_id and held.phase == "held" and not self.foreign_lock

    def _checkpoint(self) -> None:
        """A plan checkpoint whose commit was made and whose record was not."""
        made = finish_checkpoint(self.run)
        if made is not None:
            self._act(None, "plan-checkpoint-reconciled", commit=made.commit)

    def _lock(self) -> None:
        run = self.run
        held = run.state.lock
        if held is not None and held.phase == "releasing":
            integration_lock.release(run)
            self._act(held.unit_id, "integration-release-reconciled")
            return
        holder = integration_lock.orphan(run)
        if holder is not None and holder["unit_id"] in run.state.units:
            run.record(r.LockAdopted(nonce=holder["nonce"], path=str(run.lock_path)), unit=holder["unit_id"])
            self._act(holder["unit_id"], "integration-lock-adopted")
            return
        integration_lock.drop_intent(run)
        held = run.state.lock
        if held is not None and held.phase == "held":
            found = lock.read(run.lock_path)
            if found is None:
                integration_lock.put_back(run)
                self._act(held.unit_id, "integration-lock-put-back")
            elif not lock.is_ours(found, run.state, held.unit_id, held.nonce):
                self.foreign_lock = True  # the checkout is another run's to change now, not ours
                raise Blocked(
                    "the integration lock that this run holds names another holder",
                    detail={
                        "lock": str(run.lock_path),
                        "owner_run": found["run_id"],
                        "owner_unit": found["unit_id"],
                    },
                    expected=f"{run.state.run_id}/{held.unit_id}",
                    found=f"{found['run_id']}/{found['unit_id']}",
                    remedy="let that one finish or release the lock, then resume again; the checkout was not touched",
                )

    def _unit(self, unit_id: str) -> None:
        unit = self.run.unit(unit_id)
        if unit.cleanup_intent is not None:
            cleaning.finish(self.run, unit_id)
            self._act(unit_id, "cleanup-reconciled")
            unit = self.run.unit(unit_id)
        steps: dict[str, Callable[[str], None]] = {
            "queued": self._queued,
            "authoring": self._authoring,
            "authored": self._terminalize,
            "integration-pending": self._pending,
            "integrated": self._before_commit,
            "verified": self._before_commit,
            "restoring": self._restoring,
            "preserved": self._preserved,
            "committed": self._committed,
            "cleaned": self._terminal_state,
            "native-completed": self._terminal_state,
        }
        steps[unit.state](unit_id)

    def _queued(self, unit_id: str) -> None:
        run = self.run
        unit = run.unit(unit_id)
        if not unit.workspace.registered:
            make_workspace(run, unit)
            self._act(unit_id, "worktree-prepared")
        job_id = jobs.matching(run, run.unit(unit_id)) if unit.attempt.job_id is None else None
        if job_id is not None:
            jobs.require_contract(run, run.unit(unit_id), job_id)
            run.record(r.JobAdopted(job_id=job_id), unit=unit_id)
            self._act(unit_id, "job-adopted", job_id=job_id)
            self._authoring(unit_id)

    def _authoring(self, unit_id: str) -> None:
        run = self.run
        found = jobs.sync(run, unit_id)
        unit = run.unit(unit_id)
        self._act(unit_id, "monitored", **jobs.progress(unit, found))
        if unit.attempt.process_state == DONE and unit.attempt.fallback.claimed is None:
            self._terminalize(unit_id)

    def _terminalize(self, unit_id: str) -> None:
        unit = self.run.unit(unit_id)
        if unit.attempt.fallback.claimed is not None:
            return
        known = unit.attempt.terminal_validation_failure
        try:
            unit = terminal.terminalize(self.run, unit_id)
        except terminal.WorkerBlocked as error:
            detail = {key: error.detail[key] for key in ("terminal_status", "summary", "recovery_path")}
            self._act(unit_id, "worker-blocker-retained", **detail)
            return
        except (Blocked, Unreadable) as error:
            after = self.run.unit(unit_id).attempt.terminal_validation_failure
            if after is None:
                raise
            # Recorded evidence with a way out (claim, abandon), not something that resume could mend.
            self._act(unit_id, "terminal-validation-failed", reason=error.message, known=known == after)
            return
        self._act(unit_id, "terminalized", transport=unit.transport.commit)

    def _look(self) -> Look:
        seen = self.run.look()
        checkout.validate(seen.observation, self.run.state.repository, self.run.state.branch.ref)
        return seen

    def _pending(self, unit_id: str) -> None:
        run = self.run
        unit = run.unit(unit_id)
        if unit.integration.pre_fold is None:
            if self._holds(unit_id):
                integration_lock.release(run)
                self._act(unit_id, "preflight-lock-released")
            return
        if not self._holds(unit_id):
            raise Blocked(
                "the unit is past preflight but its run holds no lock",
                detail={"unit_id": unit_id},
                expected="its own integration lock",
                found="none",
                remedy=f"integration-acquire --resume --unit-id {unit_id}, then restore",
            )
        if unit.integration.driver == "integrate":
            self._restore_interrupted(unit_id, "preflight-exact-state-recovered")
            return
        seen = self._look()
        if seen.snapshot == unit.integration.pre_fold:
            self._restore_interrupted(unit_id, "preflight-exact-state-recovered")
        elif transaction.exact_problem(unit, seen) is None:
            transaction.mark_applied(run, unit_id, seen, reconciled=True)
            self._act(unit_id, "apply-reconciled")
        else:
            transaction.require_exact(run, unit, seen)

    def _before_commit(self, unit_id: str) -> None:
        run = self.run
        unit = run.unit(unit_id)
        if not self._holds(unit_id):
            raise Blocked(
                "the unit is applied but its run holds no lock",
                detail={"unit_id": unit_id},
                expected="its own integration lock",
                found="none",
                remedy=f"integration-acquire --resume --unit-id {unit_id}, then restore",
            )
        seen = checkout.observe(run.git)
        if unit.state == "verified":
            commit = transaction.commit_in_branch(run, unit, seen.head, seen.head_tree)
            if commit is not None:
                transaction.mark_committed(run, unit_id, reconciled=True)
                self._act(unit_id, "commit-reconciled", commit=commit)
                self._committed(unit_id)
                return
        self._restore_interrupted(unit_id, "pre-commit-integration-restored", interrupted_state=unit.state)

    def _restore_interrupted(self, unit_id: str, action: str, **detail: Any) -> None:
        run = self.run
        ran = transaction.verification_ran(run, unit_id)
        try:
            done = transaction.restore(run, unit_id, anything=ran, cause="resume")
        except Blocked as error:
            if not run.state.open_blockers(unit_id=unit_id):
                transaction.record_blocker(run, r.RestoreBlocked, unit_id, error)
            raise
        integration_lock.release(run)
        self._resolve(unit_id)
        if done.recovered:
            detail["recovered"] = [item.copy for item in done.recovered]
        self._act(unit_id, action, **detail, canonical_preserved=True, integration_lock_released=True)

    def _restoring(self, unit_id: str) -> None:
        self._restore_interrupted(unit_id, "restored")

    def _preserved(self, unit_id: str) -> None:
        run = self.run
        if not self._holds(unit_id):
            self._resolve(unit_id)
            return
        unit = run.unit(unit_id)
        seen = self._look()
        if seen.snapshot != unit.integration.pre_fold:
            raise Blocked(
                "the checkout no longer equals the pre-fold snapshot",
                detail={"unit_id": unit_id, "dirty_paths": list(seen.status.dirty)},
                expected="the restored snapshot",
                found="another state",
                remedy="put your own changes aside, then `resume --run-id`; or integration-release: it was restored",
            )
        integration_lock.release(run)
        self._resolve(unit_id)
        self._act(unit_id, "integration-release-reconciled")

    def _committed(self, unit_id: str) -> None:
        run = self.run
        made = run.unit(unit_id).integration.canonical_commit
        assert made is not None
        if not self._holds(unit_id):
            integration_lock.take(run, unit_id, resume=True)
        cleaning.cleanup(run, unit_id)
        integration_lock.release(run)
        self._resolve(unit_id)
        self._act(unit_id, "committed-unit-finalized", commit=made.commit)

    def _terminal_state(self, unit_id: str) -> None:
        run = self.run
        unit = run.unit(unit_id)
        if unit.cleanup is not None and not cleaning.is_complete(unit):
            cleaning.prune(run, unit_id)
            self._act(unit_id, "artifact-cleanup-reconciled")
        if not self._holds(unit_id):
            self._resolve(unit_id)  # what had blocked the unit is behind it
        elif run.state.pending_verification is None:
            integration_lock.release(run)
            self._resolve(unit_id)
            self._act(unit_id, "integration-release-reconciled")

    def _plan_wide(self) -> None:
        """A plan-wide verification that was killed: put the checkout back, close the attempt, let the lock go."""
        run = self.run
        attempt = run.state.pending_verification
        if attempt is None:
            if run.state.verifications and run.state.verifications[-1]["verification_exit"] == 0:
                self._resolve(None)
            return
        if self.foreign_lock:
            return
        abandon_pending(run)
        holder = attempt.lock_unit_id
        integration_lock.release(run)
        self._resolve(holder)
        self._act(
            holder,
            "run-verification-restored",
            verification_attempt_id=attempt.attempt_id,
            canonical_preserved=True,
            integration_lock_released=True,
        )

    def _resolve(self, unit_id: str | None) -> None:
        open_ones = self.run.state.open_blockers()
        seqs = tuple(blocker.seq for blocker in open_ones if blocker.unit_id == unit_id)
        if seqs:
            self.run.record(r.BlockersResolved(seqs=seqs), unit=unit_id)


def _worst(errors: list[ControllerError], body: dict[str, Any]) -> ControllerError:
    """The refusal whose word is the worst, with every action in its body."""
    order = ("UNREADABLE", "BLOCKED", "AMBIGUOUS", "REFUSED", "NOT_FOUND")
    worst = min(errors, key=lambda error: order.index(error.word) if error.word in order else len(order))
    merged = {**worst.detail, **body}
    return type(worst)(worst.message, detail=merged, expected=worst.expected, found=worst.found, remedy=worst.remedy)
