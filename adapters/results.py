"""Turns what a run left behind into the one result document (protocol sections 13 and 14). No effects."""

from __future__ import annotations

import signal
from datetime import datetime

import msgspec

from adapters.answers import JsonObject, find_answer
from adapters.contract import (
    MAX_REASON_BYTES,
    MAX_REPORTED_FILES,
    MAX_RESULT_BYTES,
    UNAVAILABLE_SUMMARY,
    UNVERIFIED_MODEL,
    ImplementationResult,
    WorkerOutput,
    parse_worker_output,
    result_bytes,
)
from adapters.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED
from adapters.failures import Failure, classify, refused_flag, stating_lines
from adapters.finished import HUNG, Finished, Measured
from adapters.models import receipt_status
from adapters.redaction import Redactor
from adapters.route_table import ROUTES, Authorization
from adapters.routes import Adapter

FAILED_SUMMARY = "External route failed"
SCHEMA_REASON = "terminal output failed implementation result schema"
NO_END = "no_final_event"
NO_END_REASON = "fixed route ended without its final event"
HUNG_NOTE = "ended by the adapter: it was still running after its final event"


class Conclusion(msgspec.Struct, frozen=True):
    """The bytes to publish, the exit code, and one line for people."""

    data: bytes
    exit_code: int
    message: str


class Receipt(msgspec.Struct, frozen=True):
    """Makes the result of one call. `now` is local time; what came from the CLI is redacted, nothing else."""

    authorization: Authorization
    raw_log: str
    redactor: Redactor
    now: datetime

    def unavailable(self, reason: str, exit_code: int = EXIT_REFUSED, detail: str | None = None) -> Conclusion:
        """The route could not take the unit: the neutral fields that the controller demands, and the reason."""
        return self._conclude(
            exit_code,
            f"unavailable: {reason}",
            terminal_status="unavailable",
            summary=UNAVAILABLE_SUMMARY,
            actual_route=None,
            failure_reason=self._bounded(reason),
            failure_class="other",
            failure_detail=detail,
        )

    def interrupted(self, signum: int, measured: Measured) -> Conclusion:
        """A signal ended the call; SIGTERM is how the runner enforces its limits."""
        failure = Failure("timeout" if signum == signal.SIGTERM else "other", "interrupted")
        reason = f"fixed route was ended by signal {signum}"
        return self._failed(reason, failure, measured, EXIT_INTERRUPTED)

    def concluded(self, finished: Finished, adapter: Adapter, measured: Measured, cap: int) -> Conclusion:
        """The result of a run that was not interrupted; `cap` is the limit on raw output in bytes."""
        if finished.outcome.launch_error is not None:
            error = finished.outcome.launch_error
            return self.unavailable(f"fixed route executable {adapter.executable!r} cannot run: {error}")
        if finished.over_cap:
            reason = f"fixed route raw output exceeded {cap} bytes"
            return self.unavailable(reason, EXIT_FAILED, "output_over_cap")
        told, fatal = self._told(finished, adapter)
        hung = finished.outcome.stopped == HUNG
        if finished.outcome.stopped is not None and not hung:
            reason = f"fixed route was ended: {finished.outcome.stopped}"
            return self._failed(reason, Failure("other", "supervision_lost"), measured)
        if finished.exit_code != 0 and not hung:
            flag = refused_flag(finished.text_lines) if finished.seen.latest is None else None
            if flag is not None:
                reason = f"fixed route executable {adapter.executable!r} does not know our flags: {flag}"
                return self.unavailable(reason, EXIT_FAILED, "cli_incompatible")
            return self._failed(f"fixed route exited with exit {finished.exit_code}", told, measured)
        if finished.seen.verdict == "failed" or fatal:
            reason = f"fixed route reported a failure: {told.evidence or 'no message'}"
            return self._failed(reason, told, measured)
        return self._answered(finished, adapter, told, measured, (HUNG_NOTE,) if hung else ())

    def _told(self, finished: Finished, adapter: Adapter) -> tuple[Failure, bool]:
        """The failure that events and lines tell of, and whether a line of the CLI's says that it did fail."""
        lines = finished.text_lines
        rules, stating = adapter.failure_rules, adapter.stating
        told = classify(finished.seen.errors, lines, self.now, rules, stating)
        fatal = [] if adapter.fatal is None else stating_lines(lines, adapter.fatal)
        if fatal and told.failure_class == "other" and told.detail is None:
            told = classify((), fatal, self.now, rules, stating)
        return told, bool(fatal)

    def _answered(
        self,
        finished: Finished,
        adapter: Adapter,
        told: Failure,
        measured: Measured,
        notes: tuple[str, ...],
    ) -> Conclusion:
        answer = _find_answer(finished, adapter)
        if answer is None:
            if told.failure_class == "other" and told.detail is None:
                told = _silent(finished, adapter, measured)
            return self._failed(NO_END_REASON if told.detail == NO_END else SCHEMA_REASON, told, measured)
        try:
            output = parse_worker_output(answer)
        except ValueError as error:
            return self._failed(SCHEMA_REASON, Failure("other", "schema_invalid", str(error)), measured)
        conclusion = self._worker_result(output, measured, notes)
        if len(conclusion.data) > MAX_RESULT_BYTES:
            reason = f"implementation result exceeded {MAX_RESULT_BYTES} bytes"
            return self._failed(reason, Failure("other", "schema_invalid"), measured)
        return conclusion

    def _worker_result(self, output: WorkerOutput, measured: Measured, notes: tuple[str, ...]) -> Conclusion:
        clean = self.redactor.redact_text
        expansion = output.scope_expansion
        if expansion is not None:
            paths = tuple(clean(path) for path in expansion.requested_paths)
            expansion = msgspec.structs.replace(
                expansion, requested_paths=tuple(dict.fromkeys(paths)), reason=clean(expansion.reason)
            )
        reported = len(output.changed_files)
        return self._conclude(
            EXIT_DONE,
            f"worker ended: {output.terminal_status}",
            terminal_status=output.terminal_status,
            summary=clean(output.summary),
            changed_files=[clean(path) for path in output.changed_files[:MAX_REPORTED_FILES]],
            changed_files_total=reported if reported > MAX_REPORTED_FILES else None,
            evidence=[clean(text) for text in output.evidence],
            scope_expansion=expansion,
            notes=notes,
            **self._measurements(measured),
        )

    def _failed(self, reason: str, failure: Failure, measured: Measured, exit_code: int = EXIT_FAILED) -> Conclusion:
        return self._conclude(
            exit_code,
            f"failed: {reason}",
            terminal_status="failed",
            summary=FAILED_SUMMARY,
            failure_reason=self._bounded(reason),
            failure_class=failure.failure_class,
            failure_detail=failure.detail,
            failure_evidence=None if failure.evidence is None else self._bounded(failure.evidence),
            retry_after_seconds=failure.retry_after_seconds,
            **self._measurements(measured),
        )

    def _measurements(self, measured: Measured) -> dict[str, object]:
        served = measured.seen.model or UNVERIFIED_MODEL
        session = measured.seen.session_id
        status = receipt_status(
            ROUTES[self.authorization.route], self.authorization.model_requested, served, measured.model_label
        )
        return {
            "model_actual": self.redactor.redact_text(served),
            "model_receipt_status": status,
            "usage": measured.seen.usage,
            "session_id": session,
            "resume_arguments": (*measured.resume, session) if measured.resume and session else (),
            "cli_version": measured.cli_version,
            "confinement": measured.confinement,
            "confinement_abi": measured.confinement_abi,
            "confinement_note": measured.confinement_note,
            "survivors": measured.survivors,
        }

    def _conclude(self, exit_code: int, message: str, **fields: object) -> Conclusion:
        authorization = self.authorization
        document: dict[str, object] = {
            "changed_files": (),
            "evidence": (),
            "requested_route": authorization.route,
            "actual_route": authorization.route,
            "target": authorization.target,
            "harness": authorization.harness,
            "intermediaries": authorization.intermediaries,
            "model_requested": authorization.model_requested,
            "activity_posture": authorization.activity_posture,
            "restriction_posture": authorization.restriction_posture,
            "packet_digest": authorization.packet_digest,
            "raw_log": self.raw_log,
            **fields,
        }
        result = msgspec.convert(document, ImplementationResult)
        return Conclusion(result_bytes(result), exit_code, self.redactor.redact_text(message))

    def _bounded(self, text: str) -> str:
        """Redacted, not empty, and at most 4096 bytes."""
        data = self.redactor.redact_text(text).encode("utf-8", "replace")[:MAX_REASON_BYTES]
        return data.decode("utf-8", "ignore") or "unknown"


def _find_answer(finished: Finished, adapter: Adapter) -> JsonObject | None:
    match adapter.answer_in:
        case "stdout":
            return find_answer(finished.stdout)
        case "words":
            # A turn that was cut may have spoken its answer before it went on (antigravity-cli#1012): the words
            # count only when the CLI said that the turn was complete.
            confirmed = finished.seen.verdict == "completed"
            said = find_answer(finished.words) if confirmed else None
            return said or find_answer(finished.stdout)
        case "raw-result":
            if not finished.raw_result.strip() and finished.seen.message is not None:
                # A CLI that hung after its final event may not have come to write its file.
                return find_answer(finished.seen.message)
            return find_answer(finished.raw_result)


def _silent(finished: Finished, adapter: Adapter, measured: Measured) -> Failure:
    """Why there is no answer although neither exit code nor messages tell of a failure."""
    seen = finished.seen
    if seen.denied:
        return Failure("other", "permission_rejected", f"denied: {', '.join(seen.denied)}")
    if measured.survivors:
        # A turn that ends while its background work runs has nothing to say (claude-code#52917).
        return Failure("other", "background_killed")
    if adapter.answer_in == "words" and seen.latest is not None and seen.verdict is None:
        return Failure("other", NO_END)
    return Failure("other", "empty_output")
