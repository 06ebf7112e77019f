"""The form of every answer: a host parses two lines, one word, one exit code, and follows `next` (section 2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import controller.cli  # noqa: F401 - registers the commands
from controller.options import cli
from tests.controller.situations import DIGEST, Desk, begin_run, wait_for

_NAMES = (
    "init checkpoint-plan prepare authorize-dispatch record-job sync-job reap terminalize integration-acquire "
    "preflight mark-applied mark-verified mark-committed restore integration-release integrate verify-run cleanup "
    "claim-fallback complete-fallback status resume"
)
COMMANDS = _NAMES.split()
AUTHORIZE = (
    "authorize-dispatch", "--ru", "r1", "--u", "U1", "--at", "a", "--j", "j", "--authorization", "a",
    "--authorization-d", "x", "--work", "w", "--packet", "p", "--packet-d", "x", "--res", "r",
)  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run with one queued unit, for calls that change nothing."""
    made = begin_run(tmp_path_factory.mktemp("shape"))
    made.prepare().expect("PREPARED")
    return made


@pytest.mark.parametrize(
    "args",
    [
        ("status",),
        ("status", "--run-id"),
        ("status", "--run-id", "r1", "--no-such-flag"),
        ("status", "--run-id", "r1", "surplus"),
        ("no-such-command",),
        ("init", "--run-id", "x", "--repo", "."),
        ("init", "--run-id", "x", "--repo", ".", "--plan", "a", "--prompt-brief", "b"),
        ("init", "--run-id", "x", "--repo", ".", "--p", "a"),
        ("prepare", "--run-id", "r1", "--unit-id", "U2", "--base", "HEAD"),
        ("prepare", "--run-id", "r1", "--unit-id", "U2", "--base", "HEAD", "--packet", "p", "--wave-position", "one"),
        ("prepare", "--run-id", "r1", "--unit-id", "U2", "--base", "HEAD", "--packet", "p", "--activity-posture", "z"),
        ("claim-fallback", "--run-id", "r1", "--unit-id", "U1", "--caller-mode", "robot"),
        ("complete-fallback", "--run-id", "r1", "--unit-id", "U1", "--accepted-head", DIGEST, "--summary", "s"),
        ("integrate", "--run-id", "r1", "--unit-id", "U1", "--", "true"),
        ("integration-acquire", "--run-id", "r1", "--unit-id", "U1", "--wait-lock", "61"),
        ("mark-applied", "--run-id", "r1", "--unit-id", "U1"),
    ],
    ids=lambda args: " ".join(args)[:60],
)
def test_a_wrong_command_line_is_never_taken_for_an_answer(desk: Desk, args: tuple[str, ...]) -> None:
    with desk.unchanged():
        reply = desk.call(*args)
    assert reply.code == 2
    assert reply.lines == []
    assert "usage" in reply.stderr.lower()


def test_no_command_of_the_protocol_is_missing() -> None:
    assert set(COMMANDS) <= set(cli.commands)
    assert "wave-advance" not in cli.commands


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("status", "--run", "r1", "--unit", "U1"), "STATUS"),
        (("status", "--run=r1", "--u=U1"), "STATUS"),
        (("sync-job", "--r", "r1", "--u", "U1"), "SYNCED"),
        (AUTHORIZE, "REFUSED"),
    ],
    ids=["spaced", "equals", "one letter", "option that begins another"],
)
def test_a_host_that_shortens_options_is_not_turned_away(desk: Desk, args: tuple[str, ...], word: str) -> None:
    with desk.unchanged():
        desk.call(*args).expect(word)


def test_words_after_the_double_dash_are_the_verification_s_own(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    desk.pending()
    test = '[ "$1" = --run ] && [ "$2" = --help ] && [ "$3" = -- ]'
    desk.integrate(argv=("sh", "-c", test, "sh", "--run", "--help", "--")).expect("UNIT_COMMITTED")


def test_a_second_leading_double_dash_is_dropped_as_hosts_are_used_to(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    desk.pending()
    desk.integrate(argv=("--", "true")).expect("UNIT_COMMITTED")


def test_an_untrusted_run_is_never_quoted_as_json(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    (desk.run_dir() / "journal.jsonl").chmod(0o644)
    reply = desk.call("status", "--run-id", "r1").expect("UNREADABLE")
    assert (reply.code, reply.lines) == (4, ["UNREADABLE"])
    assert "0600" in reply.stderr or "600" in reply.stderr


def test_a_message_with_newlines_stays_one_line_for_hosts_that_read_by_line(desk: Desk) -> None:
    reply = desk.call("status", "--run-id", "r1", "--unit-id", "U\n1\nword").expect("REFUSED")
    assert reply.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    context = cli.commands[command].make_context(command, ["--help"], resilient_parsing=True)
    text = cli.commands[command].get_help(context)
    assert text.splitlines()[0].startswith("Usage:")


def test_a_call_that_is_terminated_says_so_and_leaves_the_checkout_as_it_was(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    desk.pending()
    before = desk.fingerprint()
    child, _ = desk.halted(desk.of("integrate", "--commit-message", "m"), "echo dirt >> f")
    child.send_signal(signal.SIGTERM)
    reply = desk.finish(child).expect("INTERRUPTED")
    assert reply.code == 1
    assert "interrupted by SIGTERM; the checkout was restored exactly" in reply.stderr
    assert reply.body["remedy"] == "integrate the unit again when you are ready"
    assert desk.fingerprint() == before
    assert desk.state() == "preserved"
    assert desk.locks() == {}


def test_a_closed_standard_output_is_no_crash(desk: Desk) -> None:
    read, write = os.pipe()
    os.close(read)
    child = subprocess.run(
        [sys.executable, "-P", "-m", "controller", "status", "--run-id", "r1"],
        cwd=desk.base,
        env={**desk.env, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert b"Traceback" not in child.stderr


def test_a_status_call_never_waits_for_a_verification_that_runs(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    desk.pending()
    child, go = desk.halted(desk.of("integrate", "--commit-message", "m"))
    try:
        assert desk.recorded() == "integrated"
    finally:
        go.touch()
    desk.finish(child).expect("UNIT_COMMITTED")
    wait_for(lambda: desk.locks() == {}, "the lock to be released")
