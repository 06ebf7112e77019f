"""`job_spec` and `job_result`: the launcher contract as types, with the rules that tie their fields together.

Every way to make one checks every rule: a document from outside (`parse_job_spec`, `parse_job_result`) and a
constructor alike raise `ValueError`. The JSON Schemas in `adapters/schemas` are generated from these types by
`python -m adapters.job_types`; what a schema cannot say is in the docstrings, which it carries. Sources: launcher.md
sections 1 to 4 and 15 (W1, W9, W17, W24, W29); `design.md` section 7.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

import msgspec

from adapters.contract import FailureClass
from adapters.prompt import WORKER_LOCK
from adapters.refusal import nearest

Backend = Literal[
    "codex",
    "claude",
    "grok-cli",
    "cursor",
    "composer",
    "grok-cursor",
    "opencode",
    "antigravity",
    "devin",
    "command",
]
Tier = Literal["frontier", "deep", "standard", "light"]
Effort = Literal["low", "medium", "high", "xhigh"]
JobStatus = Literal["success", "blocked", "timeout", "error"]
TestScope = Literal["full", "impacted", "floor_only"]
RunScope = Literal["full", "impacted", "floor_only", "impacted+referencing"]
Verdict = Literal["pass", "blocked", "error"]

DEFAULT_TIMEOUT_SECONDS = 900
MAX_TIMEOUT_SECONDS = 21_600
DEFAULT_TEST_SECONDS = 480
MAX_TEST_SECONDS = 540

Text = Annotated[str, msgspec.Meta(min_length=1)]
AbsolutePath = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00]*\Z")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Commit = Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
DiffDigest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]

_GATE_EXITS: dict[Verdict, int] = {"pass": 0, "blocked": 1, "error": 2}
_UNSET_CLASSES = (None, "", "none")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document with exactly the named keys."""


class TestContract(_Strict, frozen=True, kw_only=True):
    """The commands that a job's tests are, resolved by the caller: in order, each once, `floor_command` first.

    `timeout_s` is seconds for one command.
    """

    __test__ = False

    scope: TestScope
    resolved_commands: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    floor_command: Text | None = None
    full_command: Text | None = None
    selected_count: Count | None = None
    timeout_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_TEST_SECONDS)] = DEFAULT_TEST_SECONDS

    def __post_init__(self) -> None:
        commands = self.resolved_commands
        # A blank command would exit 0 and pass for a test that ran.
        _require(all(command.strip() for command in commands), "resolved_commands must not hold a blank command")
        _require(len(set(commands)) == len(commands), "resolved_commands must hold each command once")
        floor = self.floor_command
        _require(floor is None or commands[0] == floor, "resolved_commands must begin with floor_command")


class JobSpec(_Strict, frozen=True, kw_only=True):
    """One work order for one worker.

    - `tier` or `model` must be there; an explicit `model` wins. `effort` `xhigh` is for backend codex only. A model of
      opencode is `provider/model`.
    - `prompt` opens with the planner/executor lock (`locked` puts it there).
    - `write_allowed` are the only enforced globs: relative, without `..` and without a `.git` component; an empty list
      means that nothing may change. `read_allowed` is advice to the worker.
    - `timeout_sec` is the worker's wall clock in seconds. `network` and `output_schema` are for codex; elsewhere they
      are advice.
    """

    backend: Backend
    prompt: Text
    cwd: AbsolutePath
    write_allowed: tuple[Text, ...]
    tier: Tier | None = None
    effort: Effort | None = None
    model: Text | None = None
    read_allowed: tuple[Text, ...] = ()
    read_only: bool = False
    timeout_sec: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    network: bool = False
    output_schema: AbsolutePath | None = None
    test_contract: TestContract | None = None

    def __post_init__(self) -> None:
        _require(self.tier is not None or self.model is not None, "tier or model must be given")
        if self.effort == "xhigh" and self.backend != "codex":
            raise ValueError(f"effort 'xhigh' is for backend codex only, found {self.backend!r}; use 'high'")
        if self.backend == "opencode" and self.model is not None:
            provider, _, model = self.model.partition("/")
            _require(provider and model, f"model of opencode must be provider/model, found {self.model!r}")
        _require(self.prompt.startswith(WORKER_LOCK), "prompt must open with the planner/executor lock")
        for glob in self.write_allowed:
            fault = _glob_fault(glob)
            _require(fault is None, f"write_allowed holds {glob!r}: {fault}")


class JobUsage(_Strict, frozen=True, kw_only=True):
    """Tokens of the whole job. `measured` exactly when both counts are there: never estimated, never half.

    `advisor_calls` is counted by the caller; what a worker claims of it does not count.
    """

    backend: Backend
    measured: bool
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    advisor_calls: Count | None = None

    def __post_init__(self) -> None:
        counts = (self.input_tokens, self.output_tokens)
        _require((None in counts) != self.measured, "measured must be true exactly when both token counts are given")
        _require(self.measured or counts == (None, None), "one token count without the other is no measurement")


class JobTests(_Strict, frozen=True, kw_only=True):
    """Tests as somebody other than the worker ran them.

    `command` is what ran, a line each; `exit_code` 0 exactly when all passed, else the first failing code (124: out of
    time). `selected_count` counts commands. `failures` are the failing commands: [] means measured and none failed,
    null means not measurable.
    """

    command: Text
    exit_code: int
    scope: RunScope
    selected_count: Count
    duration_ms: Count | None = None
    failures: tuple[Text, ...] | None = None

    def __post_init__(self) -> None:
        if self.failures is not None:
            _require((self.exit_code == 0) == (not self.failures), "failures must be empty exactly when exit_code is 0")


class GateReceipt(_Strict, frozen=True, kw_only=True):
    """The scope gate's own statement about one change; `exit_code` is 0, 1 or 2 for pass, blocked or error."""

    baseline_commit: Commit
    realised_commit: Commit
    diff_digest: DiffDigest
    verdict: Verdict
    raw_stdout: str
    exit_code: Literal[0, 1, 2]

    def __post_init__(self) -> None:
        expected = _GATE_EXITS[self.verdict]
        _require(self.exit_code == expected, f"exit_code of verdict {self.verdict!r} must be {expected}")


class JobResult(_Strict, frozen=True, kw_only=True):
    """What came of one job.

    - `blocked` is true exactly when `status` is blocked; a violation always blocks.
    - `failure_class` is null on success. With error or timeout, null and `none` become `other`: a failure that nobody
      classed must not pass for none.
    - success needs `exit_code` 0 and, where there is a `gate_receipt`, its verdict pass; a gate that blocked means
      status blocked. `tests` exist only with success.
    - `files_changed` and `violations` are the caller's findings, relative to the repository; `summary` is the worker's
      word. `worktree` is absolute, or empty. `retry_after_seconds` is 0 when unknown.
    """

    status: JobStatus
    blocked: bool
    files_changed: tuple[Text, ...]
    violations: tuple[Text, ...]
    summary: str
    session_id: str
    worktree: str
    exit_code: int
    failure_class: FailureClass | Literal["none"] | None
    retry_after_seconds: Count
    usage: JobUsage | None = None
    tests: JobTests | None = None
    gate_receipt: GateReceipt | None = None

    def __post_init__(self) -> None:
        _require(
            self.blocked == (self.status == "blocked"),
            f"blocked must be true exactly when status is blocked, found blocked {self.blocked} with {self.status!r}",
        )
        _require(self.blocked or not self.violations, "violations without blocked: a violation always blocks")
        _require(not self.worktree or os.path.isabs(self.worktree), "worktree must be an absolute path or empty")
        if self.status in ("error", "timeout") and self.failure_class in _UNSET_CLASSES:
            msgspec.structs.force_setattr(self, "failure_class", "other")
        if self.status == "success":
            _require(self.failure_class is None, "failure_class must be null on success")
            _require(self.exit_code == 0, f"success with exit_code {self.exit_code}")
        verdict = None if self.gate_receipt is None else self.gate_receipt.verdict
        _require(self.status != "success" or verdict in (None, "pass"), f"success with gate verdict {verdict!r}")
        _require(verdict != "blocked" or self.blocked, f"status {self.status!r} with gate verdict 'blocked'")
        _require(self.tests is None or self.status == "success", f"tests with status {self.status!r}")


SCHEMAS: dict[str, type[msgspec.Struct]] = {"job_spec": JobSpec, "job_result": JobResult}
"""The documents that have a schema file `adapters/schemas/<name>.json`."""

_NESTED: dict[type[msgspec.Struct], dict[str, type[msgspec.Struct]]] = {
    JobSpec: {"test_contract": TestContract},
    JobResult: {"usage": JobUsage, "tests": JobTests, "gate_receipt": GateReceipt},
}


def locked(prompt: str) -> str:
    """`prompt` behind the planner/executor lock, unless it opens with it already."""
    return prompt if prompt.startswith(WORKER_LOCK) else f"{WORKER_LOCK}\n\n{prompt}"


def parse_job_spec(document: object) -> JobSpec:
    """A decoded JSON object as a work order; `ValueError` says which key is wrong, and the nearest known name."""
    _refuse_unknown("job_spec", document, JobSpec)
    return msgspec.convert(document, JobSpec)


def parse_job_result(document: object) -> JobResult:
    """A decoded JSON object as a result; `ValueError` says which key is wrong, and the nearest known name."""
    _refuse_unknown("job_result", document, JobResult)
    if isinstance(document, dict) and document.get("failure_class") == "":
        document = {**document, "failure_class": None}
    return msgspec.convert(document, JobResult)


def schema_text(name: str) -> str:
    """The JSON Schema (2020-12) of document `name` as indented JSON with a newline."""
    import json

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SCHEMAS[name])}
    # JSON Schema's patterns are those of ECMA-262, which writes Python's `\Z` as `$`.
    return json.dumps(schema, indent=2).replace("\\\\Z", "$") + "\n"


def write_schemas(folder: str) -> None:
    """Write every schema file anew."""
    for name in SCHEMAS:
        with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as file:
            file.write(schema_text(name))


def _refuse_unknown(place: str, document: object, known: type[msgspec.Struct]) -> None:
    if not isinstance(document, dict):
        return
    names = known.__struct_fields__
    for key, value in document.items():
        if key not in names:
            near = nearest(str(key), names)
            hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(names)}"
            raise ValueError(f"unknown key {str(key)[:80]!r} in {place}; {hint}")
        nested = _NESTED.get(known, {}).get(key)
        if nested is not None:
            _refuse_unknown(f"{place}.{key}", value, nested)


def _glob_fault(glob: str) -> str | None:
    """Why `glob` can match no path of a change, or must not; None when it is fine."""
    parts = glob.split("/")
    if "\0" in glob:
        return "a path holds no NUL"
    if parts[0] in ("", "."):
        return "it must be relative to the repository, without './'"
    if ".." in parts:
        return "it must not lead out of the repository"
    if any(re.fullmatch(r"\.git", part, re.IGNORECASE) for part in parts):
        return "Git's own files are never a worker's"
    if "" in parts[:-1]:
        return "an empty component matches no path"
    return None


def _require(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


if __name__ == "__main__":
    write_schemas(os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas"))
