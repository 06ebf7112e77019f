"""What counts as a worker's answer, and that older result files stay readable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.contract import WORKER_KEYS, parse_result, parse_worker_output, worker_schema
from tests.adapters.support import ANSWER

EXPANSION = {"requested_paths": ["b.txt"], "reason": "the fix belongs there"}


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        {**ANSWER, "terminal_status": "blocked", "changed_files": [], "evidence": []},
        {**ANSWER, "terminal_status": "scope_expansion", "scope_expansion": EXPANSION},
    ],
)
def test_an_answer_of_each_kind_is_accepted(answer: dict[str, Any]) -> None:
    assert parse_worker_output(answer).terminal_status == answer["terminal_status"]


@pytest.mark.parametrize(
    "changes",
    [
        {"terminal_status": "failed"},
        {"terminal_status": "scope_expansion"},
        {"scope_expansion": EXPANSION},
        {"summary": ""},
        {"summary": None},
        {"changed_files": ["a", "a"]},
        {"changed_files": [""]},
        {"changed_files": "a"},
        {"evidence": [1]},
        {"extra": 1},
        {"terminal_status": "scope_expansion", "scope_expansion": {**EXPANSION, "requested_paths": []}},
        {"terminal_status": "scope_expansion", "scope_expansion": {**EXPANSION, "requested_paths": ["a", "a"]}},
        {"terminal_status": "scope_expansion", "scope_expansion": {**EXPANSION, "more": 1}},
    ],
)
def test_an_answer_that_breaks_the_schema_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        parse_worker_output({**ANSWER, **changes})


def test_the_schema_that_workers_are_shown_is_the_one_they_are_held_to() -> None:
    schema = json.loads(worker_schema())
    worker = schema["$defs"]["WorkerOutput"]
    assert set(worker["required"]) == set(worker["properties"]) == WORKER_KEYS
    assert worker["additionalProperties"] is False
    assert worker["properties"]["changed_files"]["uniqueItems"] is True


def test_a_result_written_by_an_older_adapter_is_still_read() -> None:
    document = {
        **{key: ANSWER[key] for key in WORKER_KEYS},
        "schema_version": 1,
        "requested_route": "codex",
        "actual_route": "codex",
        "target": "codex",
        "harness": "codex",
        "intermediaries": [],
        "model_requested": "auto",
        "model_actual": "unverified",
        "model_receipt_status": "unverified",
        "activity_posture": "hard-only",
        "restriction_posture": "adapter-enforced",
        "packet_digest": "a" * 64,
        "failure_reason": None,
        "raw_log": "/x/adapter.log",
        "key_of_a_later_release": 1,
    }
    result = parse_result(json.dumps(document).encode())
    assert result.usage is None
    assert result.failure_class is None
    with pytest.raises(ValueError):
        parse_result(b"\xff")
    with pytest.raises(ValueError, match="summary"):
        parse_result(json.dumps({**document, "summary": 1}).encode())
