"""`integrate`: the one fail-stop transaction on the canonical checkout (design.md section 6, protocol.md section 8)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from controller import (
    checkout,
    cleaning,
    encoding,
    integration_lock,
    lock,
    machine,
    transaction,
    verification,
)
from controller import records as r
from controller.answer import Answer
from controller.applying import NotApplied
from controller.arguments import require_bounded
from controller.errors import Blocked, ControllerError, Interrupted, Refused
from controller.run import OpenRun, changing
from controller.shapes import Snapshot

RESTORE_UNPROVEN = "integration failed and exact restoration could not be proven"
RELEASE_FAILED = "integration failed after exact restoration but lock release failed"
FINALIZATION = "canonical commit accepted but post-commit finalization is incomplete"
# Long enough that an adapter's handshake of another unit is no reason to fail, short enough to be "at once".
_RUN_LOCK_PATIENCE = 2.0


def integrate(
    *,
    run_id: str,
    unit_id: str,
    commit_message: str,
    verification_summary: str,
    allowed_head: Sequence[str],
    timeout: int,
    wait_lock: float,
    argv: Sequence[str],
) -> Answer:
    """Lock, preflight, apply, verify, commit, clean up, release; or put every byte back and prove it."""
    words = verification.arguments(argv)
    require_bounded(commit_message, "--commit-message")
    with changing(run_id, wait=max(wait_lock, _RUN_LOCK_PATIENCE)) as run:
        unit = run.unit(unit_id)
        machine.require("integrate", unit_id, unit.state)
        if unit.state in ("committed", "restoring"):
            raise Refused(
                f"an interrupted transaction of unit {unit_id} is {unit.state}",
                detail={"unit_id": unit_id, "state": unit.state},
                expected="a unit before its transaction",
                found=f"state {unit.state}",
                remedy="run `resume --run-id`: it finishes or restores without doing anything twice",
            )
        call = _Transaction(run, unit_id, commit_message, verification_summary, timeout, words)
        if unit.state in ("integrated", "verified") or _applied_unmarked(run, unit_id):
            return call.go_on()
        return call.begin(allowed_head, wait_lock)


def _applied_unmarked(run: OpenRun, unit_id: str) -> bool:
    unit = run.unit(unit_id)
    held = run.state.lock
    return (
        unit.state == "integration-pending"
        and unit.integration.pre_fold is not None
        and held is not None
        and held.unit_id == unit_id
    )


class _Transaction:
    """One call of `integrate` on one unit."""

    def __init__(
        self, run: OpenRun, unit_id: str, message: str, summary: str, timeout: int, argv: tuple[str, ...]
    ) -> None:
        self.run = run
        self.unit_id = unit_id
        self.message = message
        self.summary = summary
        self.timeout = timeout
        self.argv = argv
        self.ignored: dict[str, Any] | None = None
        self.digest = ""

    def begin(self, allowed_head: Sequence[str], wait: float) -> Answer:
        """From a free lock."""
        run = self.run
        token, _ = integration_lock.acquire(run, self.unit_id, resume=False, wait=wait)
        try:
            plan = transaction.preflight(run, self.unit_id, token, allowed_head, driver="integrate")
        except ControllerError:
            integration_lock.release(run)
            raise
        try:
            transaction.apply(run, self.unit_id, plan)
            applied = run.look()
            transaction.mark_applied(run, self.unit_id, applied)
            self._verify_and_commit(applied.snapshot)
        except ControllerError as error:
            raise self._fail_back(error) from None
        return self._finalize()

    def go_on(self) -> Answer:
        """From a transport that is applied exactly under this unit's own lock (section 18 row 27)."""
        run = self.run
        held = run.state.lock
        if held is None:
            raise Blocked(
                "the unit is applied but the run holds no integration lock",
                expected="its own lock",
                found="none",
                remedy="run `resume --run-id`",
            )
        lock.require_token(run.state, self.unit_id, held.nonce, run.root)
        seen = run.look()
        checkout.validate(seen.observation, run.state.repository, run.state.branch.ref)
        transaction.require_exact(run, run.unit(self.unit_id), seen)
        if run.unit(self.unit_id).state == "integration-pending":
            transaction.mark_applied(run, self.unit_id, seen)
        try:
            self._verify_and_commit(seen.snapshot)
        except ControllerError as error:
            raise self._fail_back(error) from None
        return self._finalize()

    def _verify_and_commit(self, before: Snapshot) -> None:
        run = self.run
        unit = run.unit(self.unit_id)
        log = run.unit_dir(self.unit_id) / "result" / f"host-verification-{secrets.token_hex(6)}.log"
        verdict = verification.run_command(run, self.unit_id, self.argv, log, before, self.timeout)
        self.ignored = verdict.ignored_state
        if verdict.exit_code != 0 or verdict.changed:
            run.record(
                r.VerificationFailed(
                    exit_code=verdict.exit_code,
                    timed_out=verdict.timed_out,
                    canonical_state_changed=verdict.changed,
                    log=verdict.log,
                ),
                unit=self.unit_id,
            )
            raise self._verification_failed(verdict)
        self.digest = verification.evidence_digest(
            {
                "argv": list(self.argv),
                "exit": 0,
                "log_sha256": verdict.log_sha256,
                "before": encoding.plain(before),
                "after": encoding.plain(verdict.after.snapshot),
                "cleaned_paths": [],
                "ignored_state": verdict.ignored_state,
            }
        )
        transaction.mark_verified(run, unit.unit_id, verdict.after, self.digest, self.summary, verdict.ignored_state)
        log.unlink(missing_ok=True)
        transaction.commit(run, self.unit_id, self.message)
        transaction.mark_committed(run, self.unit_id)

    def _verification_failed(self, verdict: verification.Verdict) -> Blocked:
        if verdict.exit_code == 0:
            message = "verification changed canonical state"
        elif verdict.timed_out:
            message = f"verification did not end within {self.timeout} s and was ended"
        elif verdict.launch_error:
            message = f"verification could not start: {verdict.launch_error}"
        else:
            message = f"verification failed with exit {verdict.exit_code}"
        return Blocked(
            message,
            detail={
                "unit_id": self.unit_id,
                "verification_exit": verdict.exit_code,
                "verification_timed_out": verdict.timed_out,
                "verification_log": verdict.log,
                "canonical_state_changed": verdict.changed,
            },
            expected="exit 0 and no change of tracked or visible state",
            found=message,
            remedy=f"read {verdict.log}; then cleanup --abandon and prepare again, or integrate again",
        )

    def _fail_back(self, error: ControllerError) -> ControllerError:
        """Restore and release after a failure before the commit; the refusal to answer with."""
        run = self.run
        unit = run.unit(self.unit_id)
        if unit.state in ("committed", "cleaned"):
            return self._post_commit(error)
        if transaction_committed(run, self.unit_id):
            return self._post_commit(error)
        extra: dict[str, Any] = {} if self.ignored is None else {"ignored_state": self.ignored}
        try:
            restored = transaction.restore(
                run,
                self.unit_id,
                anything=transaction.verification_ran(run, self.unit_id),
                cause=error.message,
                applied=not isinstance(error, NotApplied),
            )
        except ControllerError as failure:
            return self._stuck(r.IntegrationRestoreBlocked, RESTORE_UNPROVEN, "restore", error, failure, extra)
        expected = unit.integration.expected_apply
        touched = set(expected.changed_paths) if expected else set()
        extra["cleaned_paths"] = sorted(set(restored.paths) - touched)
        if restored.recovered:
            extra["recovered"] = encoding.plain(restored.recovered)
        try:
            integration_lock.release(run)
        except ControllerError as failure:
            return self._stuck(r.IntegrationReleaseBlocked, RELEASE_FAILED, "release", error, failure, extra)
        error.detail.update(extra)
        error.message += "; the checkout was restored exactly"
        if isinstance(error, Interrupted):
            error.remedy = "integrate the unit again when you are ready"
        return error

    def _stuck(
        self,
        kind: type[r.BlockerData],
        reason: str,
        what: str,
        error: ControllerError,
        failure: ControllerError,
        extra: dict[str, Any],
    ) -> ControllerError:
        detail = {
            "reason": reason,
            "unit_id": self.unit_id,
            "original_failure": error.message,
            "original_word": error.word,
            f"{what}_failure": failure.message,
            f"{what}_word": failure.word,
            "retain_integration_lock": True,
            "recovery_path": str(self.run.unit_dir(self.unit_id)),
            **{key: value for key, value in failure.detail.items() if key == "dirty_paths"},
            **extra,
        }
        stuck = Blocked(
            reason,
            detail=detail,
            expected=failure.expected,
            found=failure.found,
            remedy=f"{failure.remedy}; then run `resume --run-id`",
        )
        try:
            transaction.record_blocker(self.run, kind, self.unit_id, stuck, reason)
        except ControllerError:
            pass  # the journal cannot be written either; the state it holds already keeps the lock
        return stuck

    def _finalize(self) -> Answer:
        run = self.run
        try:
            cleaning.cleanup(run, self.unit_id)
            integration_lock.release(run)
        except ControllerError as error:
            raise self._post_commit(error) from None
        made = run.unit(self.unit_id).integration.canonical_commit
        return Answer(
            "UNIT_COMMITTED",
            {
                "unit_id": self.unit_id,
                "canonical_commit": encoding.plain(made),
                "verification_digest": self.digest,
                "verification_log_retained": False,
                "cleaned_paths": [],
                "ignored_state": self.ignored,
                **({"recovered": recovered} if (recovered := self._recovered()) else {}),
            },
        )

    def _recovered(self) -> Any:
        """The user's bytes that the commit's files stand in place of, and that Git does not have."""
        run = self.run
        since = run.unit(self.unit_id).integration.intent_revision or 0
        return [
            encoding.plain(item)
            for entry in run.entries[since:]
            if entry.unit == self.unit_id and isinstance(entry.data, r.BytesRecovered)
            for item in entry.data.recovered
        ]

    def _post_commit(self, error: ControllerError) -> ControllerError:
        made = run_commit(self.run, self.unit_id)
        if isinstance(error, Interrupted):
            error.detail.update({"unit_id": self.unit_id, "canonical_commit": made})
            return error
        stuck = Blocked(
            FINALIZATION,
            detail={
                "reason": FINALIZATION,
                "unit_id": self.unit_id,
                "canonical_commit": made,
                "original_failure": error.message,
                "original_word": error.word,
                "retain_integration_lock": True,
                "recovery_path": str(self.run.unit_dir(self.unit_id)),
                "ignored_state": self.ignored,
            },
            expected="a finished transaction",
            found=error.message,
            remedy="run `resume --run-id`: it finishes without a second commit",
        )
        try:
            transaction.record_blocker(self.run, r.PostCommitBlocked, self.unit_id, stuck, FINALIZATION)
        except ControllerError:
            pass  # as above
        return stuck


def run_commit(run: OpenRun, unit_id: str) -> Any:
    """The recorded canonical commit, or the intended one."""
    integration = run.unit(unit_id).integration
    return encoding.plain(integration.canonical_commit) or integration.commit_intent


def transaction_committed(run: OpenRun, unit_id: str) -> bool:
    """Whether the intended canonical commit is HEAD although its record failed."""
    intent = run.unit(unit_id).integration.commit_intent
    if intent is None:
        return False
    try:
        seen = checkout.observe(run.git)
        return transaction.commit_in_branch(run, run.unit(unit_id), seen.head, seen.head_tree) == intent
    except ControllerError:
        return False
