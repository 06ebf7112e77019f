"""One codex call: what it is told, what it may see, and what its ending is taken to mean."""

from __future__ import annotations

import json
import stat
from typing import Any

import pytest

from adapters.contract import WORKER_KEYS
from tests.adapters.support import ANSWER, Room, finish, say, write_answer

THREAD = {"type": "thread.started", "thread_id": "67e55044-10b1-426f-9247-bb680e5fe0c8"}
DONE = {
    "type": "turn.completed",
    "usage": {"input_tokens": 120, "cached_input_tokens": 100, "output_tokens": 45, "reasoning_output_tokens": 7},
}


def failure(message: str) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": message}}


def test_a_completed_unit_is_published_with_its_receipt(room: Room) -> None:
    room.codex(say(THREAD, DONE) + "\n" + write_answer())
    ran = room.run()
    assert ran.code == 0, ran.stderr
    assert ran.stdout == ""
    result = room.result
    assert {key: result[key] for key in WORKER_KEYS} == ANSWER
    expected = {
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
        "packet_digest": room.digest,
        "failure_reason": None,
        "failure_class": None,
        "raw_log": str(room.result_dir / "adapter.log"),
        "session_id": "67e55044-10b1-426f-9247-bb680e5fe0c8",
        "cli_version": "codex-cli 9.9.9",
        "confinement": "cli-sandbox",
        "survivors": 0,
    }
    assert {key: result[key] for key in expected} == expected
    assert result["usage"]["input_tokens"] == 120
    assert result["usage"]["cache_write_input_tokens"] is None


def test_the_files_of_the_evidence_are_private(room: Room) -> None:
    room.codex(write_answer())
    room.result_dir.chmod(0o755)
    assert room.run().code == 0
    assert stat.S_IMODE(room.result_dir.stat().st_mode) == 0o700
    assert sorted(path.name for path in room.result_dir.iterdir()) == ["adapter.log", "implementation-result.json"]
    for path in room.result_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_codex_is_kept_inside_the_workspace_and_asked_nothing(room: Room) -> None:
    room.authorize("codex", "gpt-5.6-sol")
    room.codex(write_answer())
    assert room.run().code == 0
    argv = (room.path / "argv").read_text().splitlines()
    line = " ".join(argv)
    assert line.startswith("exec --ignore-user-config --ignore-rules --ephemeral -s workspace-write -C ")
    assert f"-C {room.workspace} --json -o " in line
    for wanted in (
        "-c model_reasoning_effort=high",
        "--skip-git-repo-check",
        "-c approval_policy=never",
        "-c sandbox_workspace_write.network_access=false",
        "-c sandbox_workspace_write.exclude_slash_tmp=true",
        "-c sandbox_workspace_write.exclude_tmpdir_env_var=true",
    ):
        assert wanted in line
    assert line.endswith("-m gpt-5.6-sol -")
    assert (room.path / "cwd").read_text().strip() == str(room.workspace)


def test_the_packet_arrives_byte_for_byte_on_stdin_and_not_in_the_command_line(room: Room) -> None:
    packet = b"Goal: \xff\xfe bytes\r\n\0 and `$(touch pwned)`\n--flag\n" + b"x" * 150_000
    room.write_packet(packet)
    room.authorize("codex")
    room.codex(write_answer())
    assert room.run().code == 0
    prompt = (room.path / "stdin").read_bytes()
    assert prompt.endswith(packet)
    assert prompt.startswith(b"You are an implementation worker, NOT the planner.")
    assert b'"terminal_status"' in prompt
    assert b"sandbox" in prompt
    assert b"pwned" not in (room.path / "argv").read_bytes()


def test_secrets_leave_neither_in_the_prompt_nor_in_log_or_result(room: Room) -> None:
    secret = 'tok"en-123'
    secrets = room.path / "secrets"
    secrets.write_text(f"{secret}\nhunter2\n")
    room.write_packet(f"Goal: use {secret} and hunter2\n".encode())
    room.authorize("codex")
    answer = {**ANSWER, "summary": f"used {secret}", "evidence": ["curl -u hunter2"], "changed_files": ["hunter2.txt"]}
    room.codex(say({"type": "x", "text": secret}, "stderr follows") + "\necho hunter2 >&2\n" + write_answer(answer))
    assert room.run(CE_WORK_REDACT_FILE=str(secrets)).code == 0
    everything = (room.path / "stdin").read_bytes() + room.log + json.dumps(room.result).encode()
    assert b"hunter2" not in everything
    assert b"en-123" not in everything
    assert room.result["summary"] == "used [REDACTED]"
    assert room.result["changed_files"] == ["[REDACTED].txt"]


def test_no_api_key_and_nothing_else_of_the_host_reaches_the_cli(room: Room) -> None:
    room.codex(write_answer())
    ran = room.run(
        OPENAI_API_KEY="k",
        ANTHROPIC_API_KEY="k",
        GIT_DIR="/x",
        CE_WORK_REDACT_FILE="",
        CODEX_HOME="/codex",
        LANG="C.UTF-8",
        XDG_CONFIG_HOME="/c",
        CLAUDE_CONFIG_DIR="/claude",
    )
    assert ran.code == 0
    names = {line.split("=", 1)[0] for line in (room.path / "env").read_text().splitlines()}
    # The shell of the fake CLI adds PWD (and some OLDPWD, SHLVL, _).
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        *("PATH", "PYTHONDONTWRITEBYTECODE", "HOME", "TMPDIR", "LANG", "XDG_CONFIG_HOME", "CODEX_HOME"),
        "CE_PEER_JOB_ID",
    }


def test_a_program_planted_in_the_workspace_is_not_taken_for_the_cli(room: Room) -> None:
    room.codex(write_answer())
    planted = room.workspace / "codex"
    planted.write_text("#!/bin/sh\ntouch ../../pwned\n")
    planted.chmod(0o755)
    ran = room.run(PATH=f".:{':'.join(('', str(room.bin)))}:/usr/bin:/bin")
    assert ran.code == 0, ran.stderr
    assert "PATH=" + f"{room.bin}:/usr/bin:/bin" in (room.path / "env").read_text().splitlines()
    assert not (room.path / "pwned").exists()


def test_a_session_id_that_is_no_uuid_is_not_passed_on(room: Room) -> None:
    room.codex(say({"type": "thread.started", "thread_id": "--last"}, DONE) + "\n" + write_answer())
    assert room.run().code == 0
    assert room.result["session_id"] is None


def test_usage_is_the_threads_total_and_never_a_sum(room: Room) -> None:
    later = {"type": "turn.completed", "usage": {"input_tokens": 300, "output_tokens": True}}
    room.codex(say(DONE, {"type": "turn.started"}, later) + "\n" + write_answer())
    assert room.run().code == 0
    assert room.result["usage"]["input_tokens"] == 300
    assert room.result["usage"]["output_tokens"] is None


def test_unknown_events_and_noise_are_data(room: Room) -> None:
    noise = ["Reading prompt from stdin...", '{"type":"holo.deck","x":[1]}', "{broken", "[]", '{"type":5}', "\\u0000"]
    room.codex(say(THREAD, *noise, DONE) + "\n" + write_answer())
    assert room.run().code == 0
    assert room.result["session_id"] == THREAD["thread_id"]


def test_a_reconnect_that_succeeds_is_no_failure(room: Room) -> None:
    reconnect = {"type": "error", "message": "Reconnecting... 1/5 (stream disconnected before completion)"}
    room.codex(say(THREAD, reconnect, DONE) + "\n" + write_answer())
    assert room.run().code == 0


@pytest.mark.parametrize("status", ["blocked", "scope_expansion"])
def test_a_worker_that_cannot_go_on_is_no_failure(room: Room, status: str) -> None:
    expansion = {"requested_paths": ["b.txt"], "reason": "it is there"} if status == "scope_expansion" else None
    room.codex(write_answer({**ANSWER, "terminal_status": status, "scope_expansion": expansion}))
    assert room.run().code == 0
    assert room.result["terminal_status"] == status
    assert room.result["scope_expansion"] == expansion


def test_a_file_name_that_is_no_utf8_is_reported_exactly(room: Room) -> None:
    answer = json.dumps(ANSWER).replace("a.txt", "a\\377.txt")
    room.codex(f"printf '{answer}' > \"$out\"")
    assert room.run().code == 0
    assert room.result["changed_files"] == ["a\udcff.txt"]


def test_more_changed_files_than_the_controller_takes_are_cut_with_their_count(room: Room) -> None:
    room.codex(write_answer({**ANSWER, "changed_files": [f"f{n}" for n in range(1500)]}))
    assert room.run().code == 0
    assert len(room.result["changed_files"]) == 1000
    assert room.result["changed_files_total"] == 1500


@pytest.mark.parametrize(
    ("body", "reason", "failure_class", "detail"),
    [
        (say(failure("unexpected status 401 Unauthorized")) + "\nexit 1", "exited with exit 1", "auth", None),
        (say(failure("You've hit your usage limit.")), "reported a failure", "out_of_credits", "usage_cap"),
        (say({"type": "error", "message": "429 Too Many Requests"}), "reported a failure", "rate_limited", None),
        ("echo 'ERROR: connection refused' >&2; exit 7", "exited with exit 7", "network", None),
        ("echo 'src/dns/x.ts line 1401' >&2; exit 1", "exited with exit 1", "other", None),
        ("kill -9 $$", "exited with exit 137", "other", None),
        ("exit 124", "exited with exit 124", "other", None),
    ],
)
def test_failures_are_classed_and_the_answer_is_not_believed(
    room: Room, body: str, reason: str, failure_class: str, detail: str | None
) -> None:
    room.codex(write_answer() + "\n" + body)
    assert room.run().code == 1
    result = room.result
    assert result["terminal_status"] == "failed"
    assert reason in result["failure_reason"]
    assert result["failure_class"] == failure_class
    assert result["failure_detail"] == detail
    assert result["actual_route"] == "codex"
    assert (result["changed_files"], result["evidence"], result["scope_expansion"]) == ([], [], None)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("true", "empty_output"),
        (write_answer("I am done."), "empty_output"),
        (write_answer({**ANSWER, "terminal_status": "success"}), "schema_invalid"),
        (write_answer({**ANSWER, "extra": 1}), "schema_invalid"),
        (write_answer({**ANSWER, "changed_files": ["a", "a"]}), "schema_invalid"),
    ],
)
def test_an_exit_0_without_a_valid_answer_is_a_failure(room: Room, body: str, detail: str) -> None:
    room.codex(body)
    assert room.run().code == 1
    assert room.result["failure_reason"] == "terminal output failed implementation result schema"
    assert (room.result["failure_class"], room.result["failure_detail"]) == ("other", detail)


def test_a_link_in_place_of_the_last_message_is_not_read(room: Room) -> None:
    stolen = room.path / "stolen"
    stolen.write_text(json.dumps({**ANSWER, "summary": "the content of another file"}))
    room.codex(f'ln -s {stolen} "$out"')
    assert room.run().code == 1
    assert "another file" not in json.dumps(room.result)
    assert b"another file" not in room.log


def test_a_cli_that_lost_a_flag_is_unavailable_and_no_failed_attempt(room: Room) -> None:
    room.codex("echo \"error: unexpected argument '--ephemeral' found\" >&2; exit 2")
    assert room.run().code == 1
    result = room.result
    assert result["terminal_status"] == "unavailable"
    assert result["actual_route"] is None
    assert result["failure_detail"] == "cli_incompatible"
    assert "--ephemeral" in result["failure_reason"]


def assert_neutral(room: Room, reason: str) -> None:
    result = room.result
    assert result["terminal_status"] == "unavailable"
    assert result["summary"] == "External route unavailable"
    assert (result["changed_files"], result["evidence"], result["scope_expansion"]) == ([], [], None)
    assert (result["actual_route"], result["model_actual"], result["model_receipt_status"]) == (
        None,
        "unverified",
        "unverified",
    )
    assert reason in result["failure_reason"]
    assert (room.result_dir / "adapter.log").exists()


def test_a_cli_that_is_not_installed_is_unavailable(room: Room) -> None:
    ran = room.run(CROSS_MODEL_CODEX_APP_DIRS="")
    assert ran.code == 2
    assert "[cross-model-work] unavailable: " in ran.stderr
    assert_neutral(room, "fixed route executable 'codex' is unavailable")


def test_a_cli_that_cannot_be_executed_is_unavailable(room: Room) -> None:
    (room.bin / "codex").write_text("#!/nonexistent/interpreter\n")
    (room.bin / "codex").chmod(0o755)
    assert room.run().code == 2
    assert_neutral(room, "cannot run")


def test_codex_is_found_in_its_application_folder(room: Room) -> None:
    room.codex(write_answer())
    app = room.path / "Codex.app"
    room.bin.rename(app)
    assert room.run(CROSS_MODEL_CODEX_APP_DIRS=f"/nonexistent:{app}").code == 0
    assert room.started


def test_a_cli_that_hangs_after_its_final_event_is_ended_and_its_work_counts(room: Room) -> None:
    # anthropics/claude-code#25629: the final result was printed, the process never exited.
    room.codex(write_answer() + "\n" + say(THREAD, DONE) + "\nsleep 600 & sleep 600")
    assert room.run(CE_WORK_EXIT_GRACE_SECS="1").code == 0
    assert room.result["terminal_status"] == "completed"
    assert "still running after its final event" in room.result["notes"][0]


def test_a_hung_cli_that_never_wrote_its_file_has_still_said_its_answer(room: Room) -> None:
    message = {"type": "item.completed", "item": {"type": "agent_message", "text": json.dumps(ANSWER)}}
    room.codex(say(THREAD, message, DONE) + "\nexec sleep 600")
    assert room.run(CE_WORK_EXIT_GRACE_SECS="1").code == 0
    assert room.result["summary"] == ANSWER["summary"]


def test_a_cli_that_hangs_after_a_failed_turn_has_failed(room: Room) -> None:
    room.codex(write_answer() + "\n" + say(failure("unexpected status 500")) + "\nexec sleep 600")
    assert room.run(CE_WORK_EXIT_GRACE_SECS="1").code == 1
    assert room.result["failure_class"] == "overloaded"


def test_processes_that_the_cli_leaves_behind_are_ended_and_counted(room: Room) -> None:
    late = room.workspace / "late"
    room.codex(f"setsid sh -c 'sleep 1; touch {late}' >/dev/null 2>&1 &\n" + write_answer())
    assert room.run().code == 0
    assert room.result["survivors"] >= 1
    assert room.processes == []
    assert not late.exists()


def test_a_turn_that_ends_while_its_background_work_runs_says_why(room: Room) -> None:
    room.codex("setsid sleep 600 >/dev/null 2>&1 &")
    assert room.run().code == 1
    assert room.result["failure_detail"] == "background_killed"


def test_activity_is_told_while_the_cli_runs(room: Room) -> None:
    room.codex(f"{say(THREAD)}\nwhile [ ! -e {room.path}/go ]; do sleep 0.05; done\n{write_answer()}")
    process = room.start(CE_WORK_ACTIVITY_POLL_SECS="1")
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert "output-updated" in line
    assert "thread.started" in line
    (room.path / "go").touch()
    assert finish(process).code == 0


def test_a_quiet_cli_is_not_reported_as_active(room: Room) -> None:
    room.codex("sleep 1.5\n" + write_answer())
    assert "output-updated" not in room.run(CE_WORK_ACTIVITY_POLL_SECS="1").stderr
