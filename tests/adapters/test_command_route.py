"""A CLI of the user's own: started as configured, judged by its exit code and its final JSON object."""

from __future__ import annotations

import json

import pytest

from tests.adapters.support import ANSWER, Room, say, write_answer


def test_the_answer_is_the_last_object_on_stdout(room: Room) -> None:
    first = {**ANSWER, "summary": "a draft"}
    room.command("cat > stdin\n" + say("Working...", first, json.dumps(ANSWER, indent=1), "bye"))
    assert room.run().code == 0
    result = room.result
    assert result["summary"] == "done"
    assert (result["requested_route"], result["actual_route"], result["target"]) == ("command",) * 3
    assert result["confinement"] == "landlock"
    assert (result["usage"], result["session_id"], result["cli_version"]) == (None, None, None)
    assert (room.workspace / "stdin").read_bytes().endswith(room.packet.read_bytes())


def test_the_answer_file_is_used_when_the_template_names_it(room: Room) -> None:
    room.command(
        "echo '" + json.dumps({**ANSWER, "summary": "on stdout"}) + "'\n" + write_answer(to='"$2"'),
        config='argv = ["tool", "--out", "{result_file}"]',
    )
    assert room.run().code == 0
    assert room.result["summary"] == "done"


def test_the_prompt_can_travel_in_a_file_and_stdin_is_then_empty(room: Room) -> None:
    room.command(
        f'cat > stdin\ncp "$1" prompt; printf \'%s\' "$2" > where; stat -c %a "$1" > mode\n{say(ANSWER)}',
        config='argv = ["tool", "{prompt_file}", "{workspace}"]\nprompt = "file"',
    )
    assert room.run().code == 0
    assert (room.workspace / "stdin").read_bytes() == b""
    assert (room.workspace / "prompt").read_bytes().endswith(room.packet.read_bytes())
    assert (room.workspace / "where").read_text() == str(room.workspace)
    assert (room.workspace / "mode").read_text() == "600\n"


def test_only_variables_that_the_user_named_are_passed_on(room: Room) -> None:
    room.command(f"env > env\n{say(ANSWER)}", config='argv = ["tool"]\nenv = ["TOOL_TOKEN", "NOT_SET"]')
    assert room.run(TOOL_TOKEN="t", OTHER_TOKEN="o").code == 0
    environment = (room.workspace / "env").read_text()
    assert "TOOL_TOKEN=t\n" in environment
    assert "OTHER_TOKEN" not in environment
    assert "NOT_SET" not in environment


@pytest.mark.parametrize("body", ["true", "echo 'All done, trust me.'", 'echo \'{"terminal_status": "completed"}\''])
def test_an_exit_0_without_an_answer_is_a_failure(room: Room, body: str) -> None:
    # google-antigravity/antigravity-cli#1012: exit 0 and nothing done.
    room.command(body)
    assert room.run().code == 1
    assert room.result["failure_reason"] == "terminal output failed implementation result schema"
    assert (room.result["failure_class"], room.result["failure_detail"]) == ("other", "empty_output")


def test_an_exit_0_that_reports_a_limit_is_classed_by_it(room: Room) -> None:
    # TheMorpheus407/RepoLens#109: a usage limit counted as success.
    room.command('echo "You\'ve hit your limit · resets 9:20pm"')
    assert room.run().code == 1
    assert room.result["failure_class"] == "out_of_credits"
    assert 0 <= room.result["retry_after_seconds"] <= 86_400


def test_a_non_zero_exit_is_a_failure_whatever_was_answered(room: Room) -> None:
    room.command(say(ANSWER) + "\necho 'error: 503 Service Unavailable' >&2\nexit 4")
    assert room.run().code == 1
    assert room.result["failure_reason"] == "fixed route exited with exit 4"
    assert room.result["failure_class"] == "overloaded"


def test_a_model_that_the_cli_announces_is_in_the_receipt(room: Room) -> None:
    room.command(say({"type": "system", "subtype": "init", "model": "m-7"}, ANSWER))
    assert room.run().code == 0
    assert (room.result["model_actual"], room.result["model_receipt_status"]) == ("m-7", "verified")


def assert_unavailable(room: Room, reason: str) -> None:
    ran = room.run()
    assert ran.code == 2
    assert reason in ran.stderr
    assert room.result["terminal_status"] == "unavailable"
    assert reason in room.result["failure_reason"]
    assert not room.started


def test_a_command_that_nobody_configured(room: Room) -> None:
    room.command(say(ANSWER))
    room.authorize("command", "yours")
    assert_unavailable(room, "no command named 'yours' is configured (configured: mine)")


def test_a_mistake_in_the_configuration(room: Room) -> None:
    room.command(say(ANSWER), config='argv = ["tool"]\npromt = "file"')
    assert_unavailable(room, "did you mean 'prompt'?")


def test_a_configuration_that_others_may_write(room: Room) -> None:
    room.command(say(ANSWER))
    (room.home / ".config" / "unit-workspace" / "config.toml").chmod(0o666)
    assert_unavailable(room, "others may write it")


def test_a_command_that_a_repository_would_like_to_configure(room: Room) -> None:
    room.command(say(ANSWER))
    planted = room.configure('[commands.mine]\nargv = ["tool"]\n')
    folder = room.workspace / ".config" / "unit-workspace"
    folder.mkdir(parents=True)
    planted.rename(folder / "config.toml")
    assert_unavailable(room, "configured: none")
    (room.result_dir / "adapter.log").unlink()
    room.environment["XDG_CONFIG_HOME"] = str(room.workspace / ".config")
    assert_unavailable(room, "inside the unit's workspace")


def test_a_configured_program_that_is_not_installed(room: Room) -> None:
    room.configure('[commands.mine]\nargv = ["no-such-tool"]\n')
    room.authorize("command")
    assert_unavailable(room, "fixed route executable 'no-such-tool' is unavailable")
