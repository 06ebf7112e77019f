"""The form of every answer: a host parses two lines, one word, one exit code, and follows `next` (section 2)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from controller.cli import cli
from tests.controller.situations import DIGEST, Desk, begin, begin_run, wait_for

FILL = {
    "<message>": "feat: it",
    "<verification-command>": "true",
    "<argument ...>": "x",
    "<unit-id>": "U9",
    "<summary>": "done",
    "<interactive|headless>": "headless",
    "<sha256>": DIGEST,
}
COMMANDS = (
    "init checkpoint-plan prepare authorize-dispatch record-job sync-job reap terminalize integration-acquire preflight "
    "mark-applied mark-verified mark-committed restore integration-release integrate verify-run cleanup claim-fallback "
    "complete-fallback status resume"
).split()


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
        (("authorize-dispatch", "--r", "r1", "--u", "U1", "--at", "a", "--j", "j", "--authorization", "a")
         + ("--authorization-d", "x", "--work", "w", "--packet", "p", "--packet-d", "x", "--res", "r"), "REFUSED"),
    ],
    ids=["spaced", "equals", "one letter", "option that begins another"],
)  # fmt: skip
def test_a_host_that_shortens_options_is_not_turned_away(desk: Desk, args: tuple[str, ...], word: str) -> None:
    with desk.unchanged():
        desk.call(*args).expect(word)


def test_words_after_the_double_dash_are_the_verification_s_own(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    desk.pending()
    desk.integrate(argv=("sh", "-c", '[ "$1" = --run ] && [ "$2" = --help ] && [ "$3" = -- ]', "sh", "--run", "--help", "--")).expect(
        "UNIT_COMMITTED"
    )


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
    assert "SIGTERM" in reply.stderr
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


# --- next ---------------------------------------------------------------------------------------------------------


def _queued(desk: Desk) -> None:
    desk.prepare().expect("PREPARED")


def _plan_run(desk: Desk) -> None:
    (desk.repo / "plan.md").write_text("# Plan\n")
    import hashlib

    digest = hashlib.sha256(b"# Plan\n").hexdigest()
    egress = '{"route":"codex","intermediaries":[]}'
    binding = '{"mode":"prefer","target":"codex","model":null,"source":"t"}'
    more = ("--plan", "plan.md", "--plan-digest", digest, "--binding-json", binding, "--egress-json", egress)
    desk.call("init", "--run-id", "r1", "--repo", str(desk.repo), *more).expect("READY")


def _ended(desk: Desk) -> None:
    desk.author()
    desk.do("SYNCED", "sync-job")


def _running(desk: Desk) -> None:
    job = desk.dispatched()["job_id"]
    desk.private(desk.run_dir() / "jobs" / job / "pid", '{"supervisor_pid":1,"worker_pid":2,"supervisor_pgid":1}')
    desk.do("SYNCED", "sync-job")


def _blocked(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, terminal_status="blocked", summary="no key")
    desk.do("BLOCKED", "terminalize")


def _invalid(desk: Desk) -> None:
    prepared = desk.author()
    desk.write_result(prepared, target="claude")
    desk.do("BLOCKED", "terminalize")


def _scope(desk: Desk) -> None:
    prepared = desk.author()
    wider = {"requested_paths": ["x"], "reason": "r"}
    desk.write_result(prepared, terminal_status="scope_expansion", scope_expansion=wider)
    desk.do("INTEGRATION_PENDING", "terminalize")


def _claimed(desk: Desk) -> None:
    desk.failed()
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless")


def _native(desk: Desk) -> None:
    _claimed(desk)
    (desk.repo / "n").write_text("native\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", "native")
    more = ("--accepted-head", desk.head, "--evidence-digest", DIGEST, "--summary", "s")
    desk.do("FALLBACK_COMPLETED", "complete-fallback", *more)


def _abandoned(desk: Desk) -> None:
    job = desk.failed()["job_id"]
    desk.do("CLEANED", "cleanup", "--abandon", "--expect-job", job)


def _restored(desk: Desk) -> None:
    token = desk.applied()
    desk.do("PRESERVED", "restore", "--lock-token", token)


def _released_commit(desk: Desk) -> None:
    token = desk.committed()
    desk.do("RELEASED", "integration-release", "--lock-token", token)


def _cleaned_held(desk: Desk) -> None:
    desk.committed()
    desk.do("CLEANED", "cleanup")


def _killed(desk: Desk) -> None:
    desk.pending()
    desk.kill_during_verification(desk.of("integrate", "--commit-message", "m"))


SITUATIONS: dict[str, Callable[[Desk], object]] = {
    "fresh": lambda desk: None,
    "plan": _plan_run,
    "queued": _queued,
    "authoring": lambda desk: desk.dispatched(),
    "running": _running,
    "ended": _ended,
    "failed": lambda desk: desk.failed(),
    "invalid": _invalid,
    "blocked": _blocked,
    "pending": lambda desk: desk.pending(),
    "scope": _scope,
    "held": lambda desk: (desk.pending(), desk.held()),
    "preflighted": lambda desk: desk.preflighted(),
    "applied": lambda desk: desk.applied(),
    "verified": lambda desk: desk.verified(),
    "committed": lambda desk: desk.committed(),
    "committed, released": _released_commit,
    "cleaned, held": _cleaned_held,
    "preserved": lambda desk: desk.preserved(),
    "restored": _restored,
    "claimed": _claimed,
    "native": _native,
    "abandoned": _abandoned,
    "done": lambda desk: desk.done(),
    "killed": _killed,
}


def _situation(base: Path, name: str) -> Desk:
    desk = begin(base)
    if name != "plan":
        desk.init().expect("READY")
    SITUATIONS[name](desk)
    return desk


def _next(desk: Desk) -> list[list[str]]:
    args = ["status", "--run-id", "r1"]
    units = desk.call(*args).expect("STATUS")
    if units.body["units"]:
        args += ["--unit-id", "U1"]
    steps: list[list[str]] = desk.call(*args).expect("STATUS").body["next"]
    return steps


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_next_proposes_is_accepted_and_leads_on(tmp_path: Path, name: str) -> None:
    first = _situation(tmp_path / "0", name)
    steps = _next(first)
    assert steps, f"no way on from {name}"
    controller = 0
    for number, argv in enumerate(steps):
        program = Path(argv[0]).name
        if program == "env":
            continue  # `start` is run for real below
        desk = first if number == 0 else _situation(tmp_path / str(number), name)
        argv = _next(desk)[number]
        if program == "git":
            message = ["-m", "feat: it"] if "commit" in argv else []
            argv = [word for word in argv if word not in ("-m", "<message>")]
            desk.git(*argv[1:], *message)
            continue
        if program == "peer-job-runner":
            assert Path(argv[0]).exists()
            wait = [word if word != "60" else "0" for word in argv]
            done = subprocess.run(wait, env=desk.env, capture_output=True, check=False, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr
            continue
        assert program == "unit-workspace"
        controller += 1
        (desk.base / "packet").write_text("more\n")
        fill = {**FILL, "<head>": desk.head, "<commit>": desk.head, "<packet-file>": str(desk.base / "packet")}
        if name == "queued" and argv[1] == "record-job":
            prepared = desk.prepare().expect("PREPARED").body
            fill["<job-id>"] = desk.write_job(prepared)
        if argv[1] == "complete-fallback":
            (desk.repo / "native").write_text("native\n")
            desk.git("add", "-A")
            desk.git("commit", "-qm", "native")
            fill["<commit>"] = desk.head
        if argv[1] == "mark-applied":
            desk.pick()
        if argv[1] == "mark-committed":
            desk.git("commit", "-qm", "feat: it")
        words = [fill.get(word, word) for word in argv[1:]]
        assert not [word for word in words if word.startswith("<")], argv
        reply = desk.call(*words)
        assert reply.code == 0, (name, argv, reply)
    assert controller, f"no controller command from {name}"


def test_the_proposed_start_command_dispatches_the_real_adapter_to_an_end(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    prepared = desk.prepare().expect("PREPARED").body
    start, record, _ = prepared["next"]
    env = {**desk.env, "PATH": "/usr/bin:/bin", "CROSS_MODEL_CODEX_APP_DIRS": ""}
    if shutil.which("codex", path=env["PATH"]):
        pytest.skip("a codex CLI is installed here")
    done = subprocess.run(start, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    job = done.stdout.decode().strip()
    record = [job if word == "<job-id>" else word for word in record]
    reply = desk.call(*record[1:]).expect("AUTHORING")
    assert reply.body["job_id"] == job
    wait = reply.body["next"][0]
    assert wait[1] == "wait"
    waited = subprocess.run(wait, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=90)
    assert waited.stdout.decode().strip() == "failed", waited
    synced = desk.do("SYNCED", "sync-job")
    assert synced.body["process_state"] == "failed"
    assert "codex" in synced.body["failure_reason"]
    receipt = desk.unit()["attempts"][0]["terminal_receipt"]
    assert (receipt["terminal_status"], receipt["summary"]) == ("unavailable", "External route unavailable")
    assert [argv[1] for argv in synced.body["next"]] == ["claim-fallback", "cleanup"]


def test_known_arguments_of_next_are_filled_in_and_parse(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    transport = desk.pending()
    steps = _next(desk)
    parsed = []
    for argv in steps:
        if Path(argv[0]).name != "unit-workspace":
            continue
        command = cli.commands[argv[1]]
        with command.make_context(argv[1], list(argv[2:])) as context:
            assert isinstance(context, click.Context)
            parsed.append((argv[1], context.params))
    names = [name for name, _ in parsed]
    assert names == ["integrate", "cleanup"]
    assert parsed[1][1]["expect_transport"] == transport["commit"]
    assert parsed[1][1]["abandon"] is True


def test_a_verification_that_runs_is_reported_by_nobody_as_free(tmp_path: Path) -> None:
    desk = begin_run(tmp_path)
    desk.pending()
    child, go = desk.halted(desk.of("integrate", "--commit-message", "m"))
    try:
        # Read-only commands never wait for the run's lock.
        assert desk.state() == "integrated"
    finally:
        go.touch()
    desk.finish(child).expect("UNIT_COMMITTED")
    wait_for(lambda: desk.locks() == {}, "the lock to be released")
