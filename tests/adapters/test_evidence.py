"""The log and the result survive whatever happens to the call, and only in the directory that was authorized."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

from adapters.scratch import scratch_folder
from tests.adapters.support import Room, end_leftovers, finish, say, until, write_answer


def test_output_is_in_the_log_while_the_cli_runs_and_after_everything_was_killed(room: Room) -> None:
    room.codex("echo working; echo warning >&2\nexec sleep 600")
    process = room.start()
    until(lambda: (room.result_dir / "adapter.log").exists() and b"warning" in room.log, "the log grows")
    process.kill()
    process.communicate(timeout=20)
    until(lambda: end_leftovers(room) == [], "the CLI ends with its adapter")
    assert b"working\n" in room.log
    assert not room.published
    for scratch in room.tmp.iterdir():  # What SIGKILL leaves: nobody was there to remove it.
        shutil.rmtree(scratch)


def test_the_prompt_of_a_killed_call_is_removed_by_the_next_and_that_of_a_running_one_is_not(
    room: Room, tmp_path: Path
) -> None:
    room.codex("echo working\nexec sleep 600")
    process = room.start()
    until(lambda: (room.result_dir / "adapter.log").exists() and b"working" in room.log, "it runs")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "keep").write_text("keep")
    (running,) = room.tmp.iterdir()
    (room.tmp / "unit-workspace-adapter-0123456789ab").symlink_to(theirs)
    with scratch_folder({"TMPDIR": str(room.tmp)}) as other:
        assert (running / "prompt").exists()
    assert not other.exists()
    process.kill()
    process.communicate(timeout=20)
    until(lambda: end_leftovers(room) == [], "the CLI ends with its adapter")
    assert (running / "prompt").exists()
    with scratch_folder({"TMPDIR": str(room.tmp)}):
        assert not running.exists()
    assert (theirs / "keep").exists()
    (room.tmp / "unit-workspace-adapter-0123456789ab").unlink()


def test_the_folder_of_a_live_call_of_another_program_is_not_removed(tmp_path: Path) -> None:
    # The public script of this name takes no lock; a person may well have named a folder after ours.
    others = [tmp_path / name for name in ("ce-work-adapter-Ab12Cd", "ce-work-adapter-0123456789ab")]
    others.append(tmp_path / "unit-workspace-adapter-notes")
    for other in others:
        other.mkdir(0o700)
    with scratch_folder({"TMPDIR": str(tmp_path)}):
        assert all(other.exists() for other in others)


def test_a_secret_cut_by_two_writes_is_not_in_the_log(room: Room) -> None:
    secrets = room.path / "secrets"
    secrets.write_text("sesame-open\n")
    room.codex(f"printf 'key: sesame'; sleep 0.3; printf -- '-open!'; sleep 0.2\n{write_answer()}")
    assert room.run(CE_WORK_REDACT_FILE=str(secrets)).code == 0
    assert b"sesame" not in room.log
    assert b"key: [REDACTED]!" in room.log


def test_what_could_have_become_a_secret_is_not_lost(room: Room) -> None:
    secrets = room.path / "secrets"
    secrets.write_text("sesame-open\n")
    room.codex("printf 'the end: sesame'; exit 3")
    assert room.run(CE_WORK_REDACT_FILE=str(secrets)).code == 1
    assert room.log.endswith(b"the end: sesame")


def test_a_flood_is_stopped_while_it_comes_and_the_log_stays_bounded(room: Room) -> None:
    room.codex("yes flood\n" + write_answer())
    started = time.monotonic()
    ran = room.run(CE_WORK_MAX_RAW_BYTES="100000")
    assert ran.code == 1
    assert time.monotonic() - started < 10
    assert len(room.log) == 100_000
    result = room.result
    assert result["terminal_status"] == "unavailable"
    assert result["failure_reason"] == "fixed route raw output exceeded 100000 bytes"


def test_a_flood_into_the_raw_result_is_stopped_too(room: Room) -> None:
    room.codex('yes flood > "$out"')
    assert room.run(CE_WORK_MAX_RAW_BYTES="100000").code == 1
    assert room.result["terminal_status"] == "unavailable"
    assert len(room.log) == 100_000


def test_redaction_that_makes_the_log_longer_does_not_pass_its_cap(room: Room) -> None:
    secrets = room.path / "secrets"
    secrets.write_text("x\n")
    room.codex("head -c 50000 /dev/zero | tr '\\0' x\n" + write_answer())
    assert room.run(CE_WORK_REDACT_FILE=str(secrets), CE_WORK_MAX_RAW_BYTES="100000").code == 0
    assert len(room.log) == 100_000


@pytest.mark.parametrize(("signum", "failure_class"), [(signal.SIGTERM, "timeout"), (signal.SIGINT, "other")])
def test_a_signal_ends_the_whole_tree_and_leaves_log_and_result(room: Room, signum: int, failure_class: str) -> None:
    room.codex(say({"type": "turn.started"}) + "\nsetsid sleep 600 & sleep 600 & trap '' TERM; echo ready; sleep 600")
    process = room.start()
    until(lambda: (room.result_dir / "adapter.log").exists() and b"ready" in room.log, "the CLI is running")
    process.send_signal(signum)
    ran = finish(process)
    assert ran.code == 143
    assert room.processes == []
    assert b"ready" in room.log
    result = room.result
    assert result["terminal_status"] == "failed"
    assert result["failure_class"] == failure_class
    assert result["failure_detail"] == "interrupted"
    assert result["cli_version"] == "codex-cli 9.9.9"


def test_a_signal_during_the_handshake_leaves_nothing(room: Room) -> None:
    room.codex(write_answer())
    stub = f"open({str(room.path / 'asked')!r}, 'w').close()\nimport time\ntime.sleep(600)\n"
    (room.scripts / "unit-workspace.py").write_text(stub)
    process = room.start()
    until((room.path / "asked").exists, "the controller is asked")
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 143
    assert not room.started
    assert os.listdir(room.result_dir) == []


def swap(room: Room) -> str:
    """Lines of shell in which the worker puts a directory of its own in place of the result directory."""
    there = shlex.quote(str(room.result_dir))
    return f"mv {there} {there}.old; mkdir -m 700 {there}; cp -p {there}.old/adapter.log {there}/\n"


def test_a_result_directory_that_was_swapped_gets_no_result(room: Room) -> None:
    room.codex(swap(room) + write_answer())
    ran = room.run()
    assert ran.code == 2
    assert "result receipt publication refused" in ran.stderr
    assert "identity changed" in ran.stderr
    assert not room.published
    assert not (room.unit / "result.old" / "implementation-result.json").exists()


def test_a_result_directory_that_became_a_link_gets_no_result(room: Room) -> None:
    there = shlex.quote(str(room.result_dir))
    room.codex(f"mv {there} {there}.old; ln -s {there}.old {there}\n" + write_answer())
    ran = room.run()
    assert ran.code == 2
    assert "result receipt publication refused" in ran.stderr
    assert not room.published


def test_a_log_that_the_worker_replaced_is_no_evidence(room: Room) -> None:
    log = shlex.quote(str(room.result_dir / "adapter.log"))
    room.codex(f"echo real output; rm {log}; echo forged > {log}\n" + write_answer())
    ran = room.run()
    assert ran.code == 2
    assert "adapter log retention refused" in ran.stderr
    assert not room.published


def test_a_result_that_the_worker_planted_is_replaced(room: Room) -> None:
    target = room.path / "precious"
    target.write_text("precious")
    planted = shlex.quote(str(room.result_dir / "implementation-result.json"))
    room.codex(f"ln -s {target} {planted}\nexit 3")
    assert room.run().code == 1
    assert room.result["terminal_status"] == "failed"
    assert target.read_text() == "precious"


def test_a_directory_in_place_of_the_result_is_refused(room: Room) -> None:
    planted = shlex.quote(str(room.result_dir / "implementation-result.json"))
    room.codex(f"mkdir {planted}\n" + write_answer())
    ran = room.run()
    assert ran.code == 2
    assert "result receipt publication refused" in ran.stderr
    assert [name for name in os.listdir(room.result_dir) if name.startswith(".result-")] == []


def test_a_full_disk_ends_the_call_with_one_clear_line(room: Room) -> None:
    # A file size limit is what an ordinary user can set; to write(2) it is as good as a full disk.
    room.codex("yes output | head -c 200000\n" + write_answer())
    room.entry.write_text(room.entry.read_text().replace("exec ", "ulimit -f 64\nexec ", 1))
    ran = room.run()
    assert ran.code == 2
    assert "adapter log retention refused: File too large" in ran.stderr
    assert not room.published
    assert room.processes == []


def test_an_answer_too_long_for_the_runner_is_a_failure_that_says_so(room: Room) -> None:
    room.codex(
        "{ printf '"
        + '{"terminal_status":"completed","changed_files":[],"evidence":[],"scope_expansion":null,"summary":"'
        + "'; head -c 6000000 /dev/zero | tr '\\0' x; printf '\"}'; } > \"$out\""
    )
    assert room.run().code == 1
    assert "implementation result exceeded" in room.result["failure_reason"]
