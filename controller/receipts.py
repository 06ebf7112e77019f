"""Whether a published result is the authorized worker's, and what of it the journal keeps (protocol.md section 14)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from adapters.contract import LOG_NAME, RESULT_NAME, UNAVAILABLE_SUMMARY, ImplementationResult, parse_result
from controller import encoding, run_root
from controller.errors import Blocked, Unreadable
from controller.state import Attempt, Unit

_BOUND = (
    "requested_route",
    "actual_route",
    "target",
    "harness",
    "intermediaries",
    "model_requested",
    "restriction_posture",
    "packet_digest",
)
_MAX_REASON = 4096
_MAX_FILES = 1000


class Published(msgspec.Struct, frozen=True):
    """A result file that was read: its content, and digests of it and of the adapter's log."""

    result: ImplementationResult
    sha256: str
    log_sha256: str
    log_bytes: int


def result_path(unit_dir: Path) -> Path:
    """Where the adapter publishes."""
    return unit_dir / "result" / RESULT_NAME


def read(unit_dir: Path) -> Published:
    """The published result. `UNREADABLE` when it or its log breaks the private rule, `BLOCKED` when it is no result."""
    path = result_path(unit_dir)
    data = run_root.read(path, run_root.RESULT_MAX)
    try:
        result = parse_result(data)
    except (ValueError, msgspec.ValidationError) as error:
        raise Blocked(
            f"the worker's result is not a result document: {error}",
            expected="the result schema of section 14",
            found=str(error),
            remedy="claim-fallback, or cleanup --abandon with --expect-job and prepare a fresh attempt",
        ) from None
    log = unit_dir / "result" / LOG_NAME
    if os.path.realpath(result.raw_log) != os.path.realpath(log):
        raise Blocked("the result names another raw log", expected=str(log), found=result.raw_log)
    text = run_root.read(log, run_root.ADAPTER_LOG_MAX)
    return Published(result, hashlib.sha256(data).hexdigest(), hashlib.sha256(text).hexdigest(), len(text))


def mismatches(result: ImplementationResult, attempt: Attempt) -> dict[str, dict[str, Any]]:
    """Fields of a result that the authorization does not allow: name to {expected, actual}. Pure."""
    authorization = attempt.authorization
    found = {}
    for name in _BOUND:
        expected = authorization["route" if name in ("requested_route", "actual_route") else name]
        if name == "actual_route" and result.terminal_status == "unavailable":
            expected = None
        actual = encoding.plain(getattr(result, name))
        if expected != actual:
            found[name] = {"expected": expected, "actual": actual}
    if result.terminal_status in ("failed", "unavailable"):
        expected, actual = authorization["activity_posture"], result.activity_posture
        if expected != actual:
            found["activity_posture"] = {"expected": expected, "actual": actual}
    return found


def require_match(published: Published, attempt: Attempt) -> None:
    """`BLOCKED` with every mismatch when the result is not the authorized one."""
    found = mismatches(published.result, attempt)
    if found:
        raise Blocked(
            "adapter terminal receipt does not match controller authorization",
            detail={"mismatches": found},
            expected="the authorized route, model, posture and packet",
            found=", ".join(sorted(found)),
            remedy="claim-fallback, or abandon the attempt and prepare a fresh one",
        )
    if published.result.model_receipt_status == "mismatch":
        raise Blocked(
            "the model that was served is not the one that was authorized",
            detail={
                "model_requested": published.result.model_requested,
                "model_actual": published.result.model_actual,
            },
            expected=published.result.model_requested,
            found=str(published.result.model_actual),
            remedy="claim-fallback, or abandon the attempt and prepare a fresh one",
        )


def is_neutral(result: ImplementationResult) -> bool:
    """Whether a failed or unavailable receipt has exactly the fields that it may have (section 14). Pure."""
    reason = result.failure_reason or ""
    if result.changed_files or result.evidence or result.scope_expansion is not None:
        return False
    if not 1 <= len(reason.encode("utf-8", "surrogateescape")) <= _MAX_REASON:
        return False
    if result.terminal_status == "unavailable":
        return result.summary == UNAVAILABLE_SUMMARY and result.model_receipt_status == "unverified"
    return 1 <= len(result.summary.encode("utf-8", "surrogateescape")) <= _MAX_REASON


def dispatch_matches(attempt: Attempt) -> bool:
    """Whether this exact job was authorized before it could egress."""
    receipt = attempt.dispatch_authorization_receipt
    return receipt is not None and receipt.job_id == attempt.job_id and receipt.attempt_id == attempt.attempt_id


def stored(published: Published) -> dict[str, Any]:
    """The receipt that the journal keeps."""
    result = published.result
    value = {
        name: encoding.plain(getattr(result, name))
        for name in (
            "requested_route",
            "actual_route",
            "target",
            "harness",
            "intermediaries",
            "model_requested",
            "model_actual",
            "model_receipt_status",
            "activity_posture",
            "restriction_posture",
            "failure_reason",
            "raw_log",
            "packet_digest",
            "terminal_status",
            "usage",
            "session_id",
            "cli_version",
            "failure_class",
            "failure_detail",
            "retry_after_seconds",
            "confinement",
            "survivors",
        )
    }
    # The diff is the truth; a long self-report is cut, not a reason to refuse (section 18 row 22).
    reported = result.changed_files_total or len(result.changed_files)
    return {
        **value,
        "summary": result.summary[:_MAX_REASON],
        "changed_files": list(result.changed_files[:_MAX_FILES]),
        "changed_file_count": reported,
        "evidence_count": len(result.evidence),
        "scope_expansion_requested": encoding.plain(result.scope_expansion),
        "result_sha256": published.sha256,
        "raw_log_sha256": published.log_sha256,
        "raw_log_bytes": published.log_bytes,
    }


def route_receipt(unit: Unit, unit_dir: Path) -> tuple[str, dict[str, Any]] | None:
    """The trusted receipt of a route that was unavailable or failed: (terminal status, stored receipt), or None."""
    if not dispatch_matches(unit.attempt) or not result_path(unit_dir).exists():
        return None
    try:
        published = read(unit_dir)
    except (Blocked, Unreadable):
        return None
    result = published.result
    if result.terminal_status not in ("failed", "unavailable") or not is_neutral(result):
        return None
    if mismatches(result, unit.attempt):
        return None
    return result.terminal_status, stored(published)
