"""What a worker answers and what the adapter publishes: the two result documents of protocol section 14.

Pure types: the controller validates `implementation-result.json` with them. Keys that section 18 row 21
added have defaults, because other programs write result files with the older keys only.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

WorkerStatus = Literal["completed", "blocked", "scope_expansion"]
TerminalStatus = Literal["completed", "blocked", "scope_expansion", "failed", "unavailable"]
ModelReceiptStatus = Literal["verified", "unverified", "mismatch"]
FailureClass = Literal[
    "out_of_credits",
    "rate_limited",
    "overloaded",
    "auth",
    "context_length",
    "timeout",
    "network",
    "other",
]

WORKER_KEYS: frozenset[str] = frozenset({"terminal_status", "summary", "changed_files", "evidence", "scope_expansion"})
"""The five keys, exactly, of a worker's final JSON object."""

RESULT_NAME = "implementation-result.json"
LOG_NAME = "adapter.log"
UNAVAILABLE_SUMMARY = "External route unavailable"
UNVERIFIED_MODEL = "unverified"
MAX_RESULT_BYTES = 5 * 1024 * 1024
MAX_REASON_BYTES = 4096
MAX_REPORTED_FILES = 1000

Text = Annotated[str, msgspec.Meta(min_length=1)]


def _require_unique(name: str, values: tuple[str, ...]) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{name} holds a value twice")


UniqueTexts = Annotated[tuple[Text, ...], msgspec.Meta(extra_json_schema={"uniqueItems": True})]


class ScopeExpansion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to be allowed further paths."""

    requested_paths: Annotated[UniqueTexts, msgspec.Meta(min_length=1)]
    reason: Text

    def __post_init__(self) -> None:
        _require_unique("requested_paths", self.requested_paths)


class WorkerOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The worker's account of its work; scope_expansion is given exactly when terminal_status says so."""

    # What really changed is derived by the controller; `changed_files` is a claim.
    terminal_status: WorkerStatus
    summary: Text
    changed_files: UniqueTexts
    evidence: tuple[Text, ...]
    scope_expansion: ScopeExpansion | None

    def __post_init__(self) -> None:
        _require_unique("changed_files", self.changed_files)
        if (self.terminal_status == "scope_expansion") != (self.scope_expansion is not None):
            raise ValueError("scope_expansion must be given exactly when terminal_status is scope_expansion")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the whole call as the CLI reported them. A count not reported is null, never zero."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None
    cost_usd: float | None = None


class ImplementationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One published result. Unknown keys are allowed.

    `model_actual` is `unverified` where the CLI named none. `confinement` is what really held the worker:
    `cli-sandbox`, `landlock`, `bubblewrap` or `cooperative` (nothing but its good will); null when nothing
    ran. `confinement_abi` is the Landlock ABI that was used, `confinement_note` what else has to be said of it.
    `failure_detail` refines class `other` (for example `cli_incompatible`, `empty_output`), `failure_evidence` is
    the line that decided. `retry_after_seconds` is capped and null when unknown.
    `resume_arguments` would make the CLI go on with `session_id`; they are recorded and never used here.
    `survivors` counts processes that were still alive when the CLI had exited and that were then ended.
    `changed_files_total` is the number reported when `changed_files` was cut to the first 1000.
    """

    schema_version: Literal[1] = 1
    terminal_status: TerminalStatus
    summary: str
    changed_files: tuple[Text, ...]
    evidence: tuple[str, ...]
    scope_expansion: ScopeExpansion | None = None
    requested_route: str
    actual_route: str | None
    target: str
    harness: str
    intermediaries: tuple[str, ...]
    model_requested: str
    model_actual: str | None = UNVERIFIED_MODEL
    model_receipt_status: ModelReceiptStatus = "unverified"
    activity_posture: str | None = None
    restriction_posture: str
    packet_digest: str
    failure_reason: str | None = None
    raw_log: str
    usage: Usage | None = None
    session_id: str | None = None
    resume_arguments: tuple[str, ...] = ()
    cli_version: str | None = None
    failure_class: FailureClass | None = None
    failure_detail: str | None = None
    failure_evidence: str | None = None
    retry_after_seconds: int | None = None
    confinement: str | None = None
    confinement_abi: int | None = None
    confinement_note: str | None = None
    survivors: int | None = None
    changed_files_total: int | None = None
    notes: tuple[str, ...] = ()


def worker_schema() -> str:
    """The JSON Schema (2020-12) of a worker's final object, as indented JSON."""
    import json

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(WorkerOutput)}
    return json.dumps(schema, indent=2)


def parse_worker_output(document: object) -> WorkerOutput:
    """Check a decoded JSON object against the worker schema; `ValueError` says which key is wrong."""
    return msgspec.convert(document, WorkerOutput)


def parse_result(data: bytes) -> ImplementationResult:
    """Decode a published result file; `ValueError` says which key is wrong."""
    import json

    try:
        # The standard decoder keeps lone surrogates (names that are no UTF-8), which msgspec's does not.
        document = json.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not UTF-8 JSON: {error}") from None
    return msgspec.convert(document, ImplementationResult)


def result_bytes(result: ImplementationResult) -> bytes:
    """The result file's bytes: indented sorted ASCII JSON and a newline."""
    import json

    return json.dumps(msgspec.to_builtins(result), ensure_ascii=True, sort_keys=True, indent=2).encode() + b"\n"
