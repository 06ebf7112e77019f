"""Turns what a run left behind into the one result document (protocol sections 13 and 14). No effects."""

from __future__ import annotations

import signal
from datetime import datetime

import msgspec

from adapters.answers import find_answer
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
from adapters.failures import Failure, classify, refused_flag
from adapters.finished import HUNG, Finished, Measured
from adapters.models import receipt_status
from adapters.redaction import Redactor
from adapters.route_table import ROUTES, Authorization
from adapters.routes import Adapter

FAILED_SUMMARY = "External route failed"
SCHEMA_REASON = "terminal output failed implementation result schema"
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
        told = classify(finished.seen.errors, finished.text_lines, self.now, adapter.failure_rules)
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
        if finished.seen.verdict == "failed":
            reason = f"fixed route reported a failure: {told.evidence or 'no message'}"
            return self._failed(reason, told, measured)
        return self._answered(finished, adapter, told, measured, (HUNG_NOTE,) if hung else ())

    def _answered(
        self,
        finished: Finished,
        adapter: Adapter,
        told: Failure,
        measured: Measured,
        notes: tuple[str, ...],
    ) -> Conclusion:
        answer = find_answer(_answer_source(finished, adapter))
        if answer is None:
            if told.failure_class == "other" and told.detail is None:
                # A turn that ends while its background work runs has nothing to say (claude-code#52917).
                detail = "background_killed" if measured.survivors else "empty_output"
                told = msgspec.structs.replace(told, detail=detail)
            return self._failed(SCHEMA_REASON, told, measured)
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
        route = ROUTES[self.authorization.route]
        return {
            "model_actual": self.redactor.redact_text(served),
            "model_receipt_status": receipt_status(route, self.authorization.model_requested, served),
            "usage": measured.seen.usage,
            "session_id": measured.seen.session_id,
            "cli_version": measured.cli_version,
            "confinement": measured.confinement,
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


def _answer_source(finished: Finished, adapter: Adapter) -> bytes:
    if adapter.answer_in == "stdout":
        return finished.stdout
    if not finished.raw_result.strip() and finished.seen.message is not None:
        # A CLI that hung after its final event may not have come to write its file.
        return finished.seen.message.encode("utf-8", "surrogateescape")
    return finished.raw_result
