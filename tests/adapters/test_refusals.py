"""Nothing is sent unless everything that was sanctioned is exactly what stands there: no CLI starts, no result."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.adapters.support import Ran, Room, write_answer


def assert_refused(room: Room, ran: Ran, message: str) -> None:
    assert ran.code == 2, ran.stderr
    assert message in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("[cross-model-work] ")
    assert not room.started, "the CLI was started"
    assert not room.published


@pytest.fixture
def ready(room: Room) -> Room:
    room.codex(write_answer())
    return room


def link(path: Path) -> None:
    """Put a link to the same thing in its place."""
    target = path.with_name(path.name + ".real")
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_wrong_number_of_arguments(ready: Room, count: int) -> None:
    arguments = [*ready.arguments(), "extra"][:count]
    assert_refused(ready, ready.run(*arguments), "usage: cross-model-work")


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, "", "an authorization file is required"),
        (1, "/nonexistent", "workspace is not a directory"),
        (2, "/nonexistent", "packet must be a regular file"),
        (3, "ABC", "64 lowercase hex"),
        (3, "A" * 64, "64 lowercase hex"),
        (4, "/nonexistent", "result directory must be a real directory"),
    ],
)
def test_an_argument_that_names_nothing_usable(ready: Room, position: int, value: str, message: str) -> None:
    arguments = ready.arguments()
    arguments[position] = value
    assert_refused(ready, ready.run(*arguments), message)


def test_a_link_instead_of_the_packet(ready: Room) -> None:
    link(ready.packet)
    assert_refused(ready, ready.run(), "packet must be a regular file and no link")


def test_a_link_instead_of_the_result_directory(ready: Room) -> None:
    link(ready.result_dir)
    assert_refused(ready, ready.run(), "result directory must be a real directory and no link")


def test_a_link_instead_of_the_authorization(ready: Room) -> None:
    link(ready.authorization)
    assert_refused(ready, ready.run(), "controller authorization rejected")


def test_an_authorization_that_others_may_read(ready: Room) -> None:
    ready.authorization.chmod(0o640)
    assert_refused(ready, ready.run(), "controller authorization rejected")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_authorization_of_another_user(ready: Room) -> None:
    os.chown(ready.authorization, 12345, 12345)
    assert_refused(ready, ready.run(), "controller authorization rejected")


def test_an_oversize_authorization(ready: Room) -> None:
    ready.authorize("codex", restrictions=["x" * 70_000])
    assert_refused(ready, ready.run(), "controller authorization rejected")


def test_an_authorization_with_a_key_too_many(ready: Room) -> None:
    ready.authorize("codex", extra=True)
    assert_refused(ready, ready.run(), "controller authorization rejected")


def test_an_authorization_for_an_unknown_route(ready: Room) -> None:
    ready.authorize("codex", route="gemini")
    assert_refused(ready, ready.run(), "codex, claude, grok-cli, cursor, composer, grok-cursor")


def test_an_authorization_for_another_routes_model(ready: Room) -> None:
    ready.authorize("codex", model="opus")
    assert_refused(ready, ready.run(), "controller authorization rejected")


def test_an_authorization_for_another_packet(ready: Room) -> None:
    ready.authorize("codex", packet_digest="0" * 64)
    assert_refused(ready, ready.run(), "controller authorization rejected")


@pytest.mark.parametrize("job", ["", "..", "a/b", "a b", "x" * 129])
def test_an_unsafe_job_id(ready: Room, job: str) -> None:
    assert_refused(ready, ready.run(CE_PEER_JOB_ID=job), "CE_PEER_JOB_ID")
    assert not (ready.scripts / "handshake.json").exists()


def test_a_missing_redaction_file(ready: Room) -> None:
    assert_refused(ready, ready.run(CE_WORK_REDACT_FILE="/nonexistent/secrets"), "egress refused")
    assert not (ready.scripts / "handshake.json").exists(), "the attempt was bound to a job that cannot run"


def test_a_controller_that_says_no_is_quoted(ready: Room) -> None:
    ready.controller_says("BLOCKED\n{}\n", "unit-workspace: packet differs\n", 1)
    ran = ready.run()
    assert_refused(ready, ran, "controller dispatch authorization failed")
    assert "BLOCKED" in ran.stderr
    assert "unit-workspace: packet differs" in ran.stderr


@pytest.mark.parametrize(
    ("stdout", "code"), [("AUTHORIZED\n", 1), ("", 0), ("NOT AUTHORIZED\n", 0), ("authorized\n", 0)]
)
def test_only_exit_0_and_the_exact_word_are_consent(ready: Room, stdout: str, code: int) -> None:
    ready.controller_says(stdout, "", code)
    assert_refused(ready, ready.run(), "controller dispatch authorization failed")


def test_a_skill_folder_without_its_controller(ready: Room) -> None:
    (ready.scripts / "unit-workspace.py").unlink()
    assert_refused(ready, ready.run(), "controller dispatch authorization failed")


def test_the_controller_is_asked_for_exactly_this_request(ready: Room) -> None:
    assert ready.run().code == 0
    asked = json.loads((ready.scripts / "handshake.json").read_text())
    assert asked[0] == "authorize-dispatch"
    given = dict(zip(asked[1::2], asked[2::2], strict=True))
    assert given == {
        "--run-id": "run-1",
        "--unit-id": "unit-1",
        "--attempt-id": "attempt-1",
        "--job-id": ready.job,
        "--authorization": str(ready.authorization),
        "--authorization-digest": hashlib.sha256(ready.authorization.read_bytes()).hexdigest(),
        "--workspace": str(ready.workspace),
        "--packet": str(ready.packet),
        "--packet-digest": ready.digest,
        "--result-dir": str(ready.result_dir),
    }


def test_a_packet_whose_bytes_were_changed(ready: Room) -> None:
    ready.packet.write_bytes(b"Goal: something else\n")
    assert_refused(ready, ready.run(), "packet digest")


def test_an_oversize_packet(ready: Room) -> None:
    ready.write_packet(b"x" * 200_001)
    ready.authorize("codex")
    assert_refused(ready, ready.run(), "packet must be at most 200000 bytes")
    assert ready.run(CE_WORK_MAX_PACKET_BYTES="200001").code == 0


def test_results_inside_the_workspace(ready: Room) -> None:
    arguments = ready.arguments()
    inside = ready.workspace / "result"
    inside.mkdir()
    arguments[4] = str(inside)
    assert_refused(ready, ready.run(*arguments), "result directory must be outside the workspace")


def test_a_packet_inside_the_workspace_through_a_linked_folder(ready: Room) -> None:
    arguments = ready.arguments()
    (ready.workspace / "packet.md").write_bytes(ready.packet.read_bytes())
    (ready.path / "elsewhere").symlink_to(ready.workspace)
    arguments[2] = str(ready.path / "elsewhere" / "packet.md")
    assert_refused(ready, ready.run(*arguments), "packet must be outside the workspace")


def test_a_workspace_that_is_no_git_work_tree(ready: Room) -> None:
    (ready.workspace / ".git").rename(ready.path / "git")
    assert_refused(ready, ready.run(), "not inside a Git work tree")


def test_a_log_that_exists_already_is_not_written_over(ready: Room) -> None:
    (ready.result_dir / "adapter.log").write_text("evidence of an earlier call")
    assert_refused(ready, ready.run(), "adapter log retention refused")
    assert ready.log == b"evidence of an earlier call"


def test_a_link_planted_for_the_log_is_not_followed(ready: Room) -> None:
    target = ready.path / "precious"
    (ready.result_dir / "adapter.log").symlink_to(target)
    assert_refused(ready, ready.run(), "adapter log retention refused")
    assert not target.exists()


def test_a_scratch_folder_that_cannot_be_made(ready: Room) -> None:
    ran = ready.run(TMPDIR="/nonexistent")
    assert ran.code == 2
    assert "cannot create a private scratch directory" in ran.stderr
    assert not ready.started
