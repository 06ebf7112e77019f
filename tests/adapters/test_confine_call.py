"""A whole call of a CLI without a sandbox of its own: held, told in the receipt, or unavailable."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from adapters import landlock
from tests.adapters.fakes.installing import install
from tests.adapters.support import ANSWER, Room, say

pytestmark = pytest.mark.skipif(
    landlock.supported_abi() < 3, reason="this kernel's Landlock is too old or missing, so nothing is enforced"
)


def test_a_configured_command_is_confined_without_being_asked_to(room: Room) -> None:
    room.command(f"echo x > {room.home}/planted; echo x > {room.result_dir}/forged; echo ok > made\n{say(ANSWER)}")
    assert room.run().code == 0
    assert (room.workspace / "made").exists()
    assert not (room.home / "planted").exists()
    assert not (room.result_dir / "forged").exists()
    result = room.result
    assert (result["confinement"], result["confinement_abi"]) == ("landlock", landlock.supported_abi())
    assert ".git" in result["confinement_note"]
    assert b"Permission denied" in room.log


@pytest.mark.parametrize(("route", "cli"), [("claude", "claude"), ("grok-cli", "grok"), ("opencode", "opencode")])
def test_required_enforcement_is_met_by_confinement(room: Room, route: str, cli: str) -> None:
    room.authorize(route)
    install(room, cli, "completed")
    assert room.run(CE_WORK_REQUIRE_ENFORCED_CONFINEMENT="1").code == 0
    assert room.result["confinement"] == "landlock"


def test_a_command_that_is_not_confined_says_so(room: Room) -> None:
    room.command(f"echo x > {room.home}/written\n{say(ANSWER)}", config='argv = ["tool"]\nconfinement = "off"')
    assert room.run().code == 0
    assert (room.home / "written").exists()
    assert (room.result["confinement"], room.result["confinement_abi"]) == ("cooperative", None)
    assert "switched off" in room.result["confinement_note"]


@pytest.mark.parametrize(
    ("variables", "restrictions", "config", "why"),
    [
        ({"CE_WORK_REQUIRE_ENFORCED_CONFINEMENT": "1"}, (), "off", "has only cooperative restrictions"),
        ({}, ("require:enforced-confinement",), "off", "has only cooperative restrictions"),
        ({}, ("require:no-network",), "on", "cannot be enforced on route 'command'"),
        ({}, ("require:silence",), "on", "unknown and cannot be enforced"),
    ],
)
def test_what_is_required_and_cannot_be_held_makes_the_route_unavailable(
    room: Room, variables: dict[str, str], restrictions: tuple[str, ...], config: str, why: str
) -> None:
    room.command(say(ANSWER), config=f'argv = ["tool"]\nconfinement = "{config}"')
    room.authorize("command", restrictions=list(restrictions))
    assert room.run(**variables).code == 2
    assert room.result["terminal_status"] == "unavailable"
    assert why in room.result["failure_reason"]
    assert not room.started


def test_a_configuration_that_contradicts_itself_is_refused(room: Room) -> None:
    room.command(say(ANSWER))
    room.configure('confinement = "require"\n[commands.mine]\nargv = ["tool"]\nconfinement = "off"\n')
    assert room.run().code == 2
    assert "contradicts itself" in room.result["failure_reason"]
    assert not room.started


def test_a_configured_state_folder_can_be_written_and_is_made(room: Room) -> None:
    room.command(
        f"echo s > {room.home}/.tool/kept; echo x > {room.home}/.other\n{say(ANSWER)}",
        config='argv = ["tool"]\nstate = ["~/.tool"]',
    )
    assert room.run().code == 0
    assert (room.home / ".tool" / "kept").read_text() == "s\n"
    assert not (room.home / ".other").exists()


@pytest.mark.parametrize("state", ["~", "~/", "/", "relative"])
def test_a_state_folder_that_opens_everything_is_refused(room: Room, state: str) -> None:
    room.command(say(ANSWER), config=f'argv = ["tool"]\nstate = ["{state}"]')
    assert room.run().code == 2
    assert "state" in room.result["failure_reason"]
    assert not room.started


def test_temporary_files_go_to_a_folder_that_is_gone_afterwards(room: Room) -> None:
    room.command(
        f'printf %s "$TMPDIR" > where; echo t > "$TMPDIR/t"; stat -c %a "$TMPDIR" > mode; echo x > {room.tmp}/shared\n'
        + say(ANSWER)
    )
    assert room.run().code == 0
    where = Path((room.workspace / "where").read_text())
    assert where.is_relative_to(room.tmp)
    assert (room.workspace / "mode").read_text() == "700\n"
    assert not where.exists()
    assert not (room.tmp / "shared").exists()


def test_the_worker_cannot_change_what_it_was_told(room: Room) -> None:
    room.command(
        'echo forged > "$1"; cat "$1" > told\n' + say(ANSWER),
        config='argv = ["tool", "{prompt_file}"]\nprompt = "file"',
    )
    assert room.run().code == 0
    assert (room.workspace / "told").read_bytes().endswith(room.packet.read_bytes())


def test_settings_that_the_users_own_sessions_obey_stay_as_they_are(room: Room) -> None:
    if not landlock.can_shield((os.fsencode(room.home),)):
        pytest.skip("no mount namespaces for this user")
    claude = room.home / ".claude"
    (claude / "hooks").mkdir(parents=True)
    (claude / "settings.json").write_text("{}")
    script = room.bin / "claude"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version*|*--help*) exit 0;; esac\n'
        f"cd {claude}; echo evil > settings.json; rm -f settings.json; echo evil > hooks/h; echo fine > history\n"
        "exit 3\n"
    )
    script.chmod(0o755)
    room.authorize("claude")
    assert room.run().code == 1
    assert (claude / "settings.json").read_text() == "{}"
    assert list((claude / "hooks").iterdir()) == []
    assert (claude / "history").read_text() == "fine\n"


def test_a_cli_that_lost_a_flag_gets_nothing(room: Room) -> None:
    # slikk66/dangeresque#112: an update removed a flag, and the prompt went out for nothing.
    room.codex("exit 0")
    script = room.bin / "codex"
    script.write_text(script.read_text().replace(", --ephemeral", ""))
    assert room.run().code == 2
    result = room.result
    assert (result["terminal_status"], result["failure_detail"]) == ("unavailable", "cli_incompatible")
    assert "does not know our flags: --ephemeral" in result["failure_reason"]
    assert "codex-cli 9.9.9" in result["failure_reason"]
    assert not room.started


def test_the_version_is_asked_for_once(room: Room) -> None:
    room.authorize("claude")
    install(room, "claude", "completed")
    assert room.run().code == 0
    (cache,) = (room.home / ".cache" / "unit-workspace").iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    record = json.loads(cache.read_text())
    assert record["version"] == room.result["cli_version"]
    # Only the memory can know this one.
    cache.write_text(json.dumps({**record, "version": "remembered"}))
    for name in ("adapter.log", "implementation-result.json"):
        (room.result_dir / name).unlink()
    assert room.run().code == 0
    assert room.result["cli_version"] == "remembered"
