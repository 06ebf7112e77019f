"""The launcher contract refuses what would let a failure pass for a success, or a forbidden path for an allowed one."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.job_types import (
    SCHEMAS,
    JobResult,
    JobSpec,
    locked,
    parse_job_result,
    parse_job_spec,
    schema_text,
)
from tests.adapters.support import REPOSITORY

COMMIT = "a" * 40
SPEC: dict[str, Any] = {
    "backend": "codex",
    "prompt": locked("Add a.txt"),
    "tier": "deep",
    "cwd": "/repo",
    "write_allowed": ["src/**"],
}
RESULT: dict[str, Any] = {
    "status": "success",
    "blocked": False,
    "files_changed": ["a.txt"],
    "violations": [],
    "summary": "done",
    "session_id": "",
    "worktree": "/w",
    "exit_code": 0,
    "failure_class": None,
    "retry_after_seconds": 0,
}
RECEIPT: dict[str, Any] = {
    "baseline_commit": COMMIT,
    "realised_commit": "b" * 64,
    "diff_digest": "sha256:" + "c" * 64,
    "verdict": "pass",
    "raw_stdout": "{}",
    "exit_code": 0,
}
TESTS: dict[str, Any] = {"command": "make test", "exit_code": 0, "scope": "full", "selected_count": 1}
USAGE: dict[str, Any] = {"backend": "codex", "measured": True, "input_tokens": 1, "output_tokens": 0}
CONTRACT: dict[str, Any] = {"scope": "full", "resolved_commands": ["make test"]}


def test_the_shortest_work_order_has_the_documented_defaults() -> None:
    spec = parse_job_spec(SPEC)
    assert (spec.timeout_sec, spec.network, spec.read_only) == (900, False, False)
    assert (spec.effort, spec.model, spec.output_schema, spec.test_contract) == (None, None, None, None)
    assert spec.read_allowed == ()


@pytest.mark.parametrize(
    "change",
    [
        {"tier": None, "model": "gpt-5.6-sol"},
        {"effort": "xhigh"},
        {"tier": "frontier", "backend": "claude"},
        {"backend": "opencode", "model": "anthropic/claude/opus"},
        {"write_allowed": []},
        {"write_allowed": ["**/*.py", "src/", ".github/**", "a b/[x]", "dir/.gitignore"]},
        {"timeout_sec": 1},
        {"timeout_sec": 21_600},
        {"output_schema": "/s.json"},
        {"test_contract": {**CONTRACT, "floor_command": "make test", "timeout_s": 540}},
    ],
)
def test_a_legal_work_order(change: dict[str, Any]) -> None:
    parse_job_spec({**SPEC, **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tier": None}, "tier or model must be given"),
        ({"effort": "xhigh", "backend": "claude"}, "'xhigh' is for backend codex only"),
        ({"backend": "CODEX"}, "Invalid enum value"),
        ({"tier": "DEEP"}, "Invalid enum value"),
        ({"backend": "opencode", "model": "opus"}, "provider/model"),
        ({"backend": "opencode", "model": "/opus"}, "provider/model"),
        ({"backend": "opencode", "model": "anthropic/"}, "provider/model"),
        ({"model": ""}, "length >= 1"),
        ({"prompt": "Add a.txt"}, "must open with the planner/executor lock"),
        ({"cwd": "repo"}, "cwd"),
        ({"cwd": "/repo\0"}, "cwd"),
        ({"timeout_sec": 0}, "timeout_sec"),
        ({"timeout_sec": -5}, "timeout_sec"),
        ({"timeout_sec": 21_601}, "timeout_sec"),
        ({"timeout_sec": True}, "Expected `int`, got `bool`"),
        ({"timeout_sec": "900"}, "Expected `int`, got `str`"),
        ({"timeout_sec": 900.5}, "Expected `int`, got `float`"),
        ({"network": "false"}, "Expected `bool`"),
        ({"output_schema": "s.json"}, "output_schema"),
        ({"write_allowed": [""]}, "length >= 1"),
        ({"write_allowed": [None]}, "Expected `str`, got `null`"),
        ({"write_allowed": "src/**"}, "Expected `array`"),
        ({"write_allowed": ["/etc/**"]}, "must be relative"),
        ({"write_allowed": ["./src"]}, "must be relative"),
        ({"write_allowed": ["../x/**"]}, "out of the repository"),
        ({"write_allowed": ["a/../../x"]}, "out of the repository"),
        ({"write_allowed": [".git/hooks/**"]}, "Git's own files"),
        ({"write_allowed": ["sub/.GIT/config"]}, "Git's own files"),
        ({"write_allowed": ["a//b"]}, "empty component"),
        ({"write_alowed": []}, "unknown key 'write_alowed' in job_spec; did you mean 'write_allowed'?"),
        ({"depend_on": []}, "known keys: backend, prompt"),
        ({"test_contract": {**CONTRACT, "timeout": 3}}, "unknown key 'timeout' in job_spec.test_contract"),
        ({"test_contract": {**CONTRACT, "resolved_commands": []}}, "resolved_commands"),
        ({"test_contract": {**CONTRACT, "resolved_commands": ["  "]}}, "blank command"),
        ({"test_contract": {**CONTRACT, "resolved_commands": ["a", "a"]}}, "each command once"),
        ({"test_contract": {**CONTRACT, "floor_command": "lint"}}, "begin with floor_command"),
        ({"test_contract": {**CONTRACT, "timeout_s": 541}}, "timeout_s"),
        ({"test_contract": {**CONTRACT, "scope": "some"}}, "Invalid enum value"),
    ],
)
def test_a_work_order_that_would_be_misunderstood_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_job_spec({**SPEC, **change})
    assert said in str(refused.value)


@pytest.mark.parametrize("key", ["backend", "prompt", "cwd", "write_allowed"])
def test_a_work_order_without_a_required_field(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        parse_job_spec({name: value for name, value in SPEC.items() if name != key})


def test_the_lock_is_put_in_front_once() -> None:
    assert locked(locked("x")) == locked("x")
    assert locked("x").startswith("You are an implementation worker, NOT the planner.")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"status": "blocked", "blocked": True, "violations": ["b"], "exit_code": 1, "failure_class": "network"},
        {"status": "blocked", "blocked": True},
        {"status": "timeout", "exit_code": 124, "failure_class": "timeout"},
        {"status": "error", "exit_code": 0, "failure_class": "auth", "retry_after_seconds": 30},
        {"worktree": ""},
        {"usage": USAGE},
        {"usage": {"backend": "claude", "measured": False, "advisor_calls": 2}},
        {"tests": TESTS},
        {"tests": {**TESTS, "exit_code": 124, "failures": ["make test"], "duration_ms": 5}},
        {"gate_receipt": RECEIPT},
        {
            "status": "blocked",
            "blocked": True,
            "gate_receipt": {**RECEIPT, "verdict": "blocked", "exit_code": 1},
        },
    ],
)
def test_a_legal_result(change: dict[str, Any]) -> None:
    parse_job_result({**RESULT, **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # The published schema of the launcher lets each of these pass.
        ({"blocked": True}, "blocked must be true exactly when status is blocked"),
        ({"status": "blocked"}, "blocked must be true exactly when status is blocked"),
        ({"violations": ["b"]}, "a violation always blocks"),
        ({"failure_class": "none"}, "must be null on success"),
        ({"failure_class": "other"}, "must be null on success"),
        ({"exit_code": 1}, "success with exit_code 1"),
        ({"exit_code": True}, "Expected `int`, got `bool`"),
        ({"failure_class": "quota", "status": "error"}, "failure_class"),
        ({"retry_after_seconds": -1}, "retry_after_seconds"),
        ({"worktree": "w"}, "worktree must be an absolute path or empty"),
        ({"files_change": []}, "did you mean 'files_changed'?"),
        ({"usage": {**USAGE, "input_tokens": None}}, "measured must be true exactly when both"),
        ({"usage": {**USAGE, "measured": False}}, "measured must be true exactly when both"),
        ({"usage": {**USAGE, "measured": False, "output_tokens": None}}, "no measurement"),
        ({"usage": {**USAGE, "input_tokens": 1.5}}, "Expected `int | null`, got `float`"),
        ({"usage": {**USAGE, "input_tokens": True}}, "got `bool`"),
        ({"usage": {**USAGE, "input_tokens": -1}}, "input_tokens"),
        ({"usage": {**USAGE, "cost": 1}}, "unknown key 'cost' in job_result.usage"),
        ({"tests": {**TESTS, "exit_code": 1, "failures": []}}, "failures must be empty exactly when"),
        ({"tests": {**TESTS, "failures": ["x"]}}, "failures must be empty exactly when"),
        ({"tests": TESTS, "status": "error"}, "tests with status 'error'"),
        ({"tests": {**TESTS, "command": ""}}, "command"),
        ({"gate_receipt": {**RECEIPT, "exit_code": 1}}, "exit_code of verdict 'pass' must be 0"),
        ({"gate_receipt": {**RECEIPT, "verdict": "error", "exit_code": 2}}, "success with gate verdict 'error'"),
        (
            {"status": "error", "gate_receipt": {**RECEIPT, "verdict": "blocked", "exit_code": 1}},
            "with gate verdict 'blocked'",
        ),
        ({"gate_receipt": {**RECEIPT, "diff_digest": "sha256:abc"}}, "diff_digest"),
        ({"gate_receipt": {**RECEIPT, "baseline_commit": COMMIT + "\n"}}, "baseline_commit"),
        ({"gate_receipt": {name: RECEIPT[name] for name in list(RECEIPT)[:-1]}}, "exit_code"),
        ({"gate_receipt": {**RECEIPT, "signed": True}}, "unknown key 'signed' in job_result.gate_receipt"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_job_result({**RESULT, **change})
    assert said in str(refused.value)


@pytest.mark.parametrize("key", list(RESULT))
def test_a_result_without_one_of_its_ten_keys(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        parse_job_result({name: value for name, value in RESULT.items() if name != key})


@pytest.mark.parametrize("status", ["error", "timeout"])
@pytest.mark.parametrize("unset", [None, "none", ""])
def test_a_failure_that_nobody_classed_does_not_pass_for_none(status: str, unset: str | None) -> None:
    document = {**RESULT, "status": status, "exit_code": 1, "failure_class": unset}
    assert parse_job_result(document).failure_class == "other"


def test_the_rules_hold_for_those_who_build_a_document_too() -> None:
    with pytest.raises(ValueError, match="a violation always blocks"):
        JobResult(
            status="success",
            blocked=False,
            files_changed=(),
            violations=("x",),
            summary="",
            session_id="",
            worktree="",
            exit_code=0,
            failure_class=None,
            retry_after_seconds=0,
        )
    with pytest.raises(ValueError, match="tier or model"):
        JobSpec(backend="codex", prompt=locked("x"), cwd="/r", write_allowed=())


@pytest.mark.parametrize("document", [None, [], "x", 5])
def test_what_is_no_object_is_no_document(document: object) -> None:
    for parse in (parse_job_spec, parse_job_result):
        with pytest.raises(ValueError, match="Expected `object`"):
            parse(document)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schemas_are_in_step_with_the_types(name: str) -> None:
    shipped = resources.files("adapters").joinpath("schemas", f"{name}.json").read_text()
    assert shipped == schema_text(name), "run python -m adapters.job_types"
    document = json.loads(shipped)
    root = document["$defs"][SCHEMAS[name].__name__]
    assert root["additionalProperties"] is False
    assert set(root["properties"]) == set(SCHEMAS[name].__struct_fields__)
    # `\\Z` means nothing outside Python.
    assert "\\Z" not in shipped


def test_only_the_documented_keys_are_required() -> None:
    def required(name: str) -> set[str]:
        root = json.loads(schema_text(name))["$defs"][SCHEMAS[name].__name__]
        return set(root["required"])

    assert required("job_spec") == {"backend", "prompt", "cwd", "write_allowed"}
    assert required("job_result") == set(RESULT)


def test_a_document_survives_a_round_trip() -> None:
    spec = parse_job_spec({**SPEC, "test_contract": CONTRACT})
    assert parse_job_spec(json.loads(msgspec.json.encode(spec))) == spec
    result = parse_job_result({**RESULT, "usage": USAGE, "tests": TESTS, "gate_receipt": RECEIPT})
    assert parse_job_result(json.loads(msgspec.json.encode(result))) == result


def test_the_schemas_are_in_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"adapters/schemas/{name}.json" for name in SCHEMAS} <= names
