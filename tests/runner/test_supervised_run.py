"""`run_supervised`: the outcome is the truth about the child, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from runner.errors import Interrupted, Usage
from runner.foreground import Outcome, run_supervised
from runner.process import ProcessIdentity, marked
from tests.runner.support import SLEEP, STUBBORN, gone, running, until


class Runner:
    """Calls `run_supervised` with defaults and keeps what the sinks got."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.mark = mark
        self.stdout = b""
        self.stderr = b""

    def argv(self, *argv: str, **options: Any) -> Outcome:
        env = {"PATH": os.environ["PATH"], "RUNNER_TEST_MARK": self.mark}
        settings: dict[str, Any] = {
            "cwd": self.folder,
            "env": env,
            "timeout": 30.0,
            "grace": 0.3,
            "on_stderr": self.take_stderr,
        }
        settings |= {"marker": ("RUN_MARK", self.mark), "on_stdout": self.take_stdout}
        outcome = run_supervised(argv, **(settings | options))
        assert marked("RUNNER_TEST_MARK", self.mark) == [], "the tree outlived the call"
        return outcome

    def shell(self, script: str, **options: Any) -> Outcome:
        return self.argv("sh", "-c", script, **options)

    def take_stdout(self, data: bytes) -> None:
        self.stdout += data

    def take_stderr(self, data: bytes) -> None:
        self.stderr += data


@pytest.fixture
def run(tmp_path: Path, mark: str) -> Runner:
    return Runner(tmp_path, mark)


def test_exit_code_output_and_directory_are_the_childs(run: Runner) -> None:
    outcome = run.shell("pwd; echo err >&2; exit 3")
    assert (outcome.exit_code, outcome.signal, outcome.timed_out, outcome.launch_error) == (
        3,
        None,
        False,
        None,
    )
    assert (run.stdout, run.stderr) == (os.fsencode(run.folder) + b"\n", b"err\n")


def test_both_streams_in_one_keep_their_order(run: Runner) -> None:
    run.shell("echo a; echo b >&2; echo c", merge_stderr=True, on_stderr=None)
    assert run.stdout == b"a\nb\nc\n"


def test_a_childs_own_124_is_no_timeout(run: Runner) -> None:
    outcome = run.shell("exit 124")
    assert (outcome.exit_code, outcome.timed_out) == (124, False)


def test_a_timeout_ends_a_child_that_will_not_leave(run: Runner) -> None:
    outcome = run.shell(STUBBORN, timeout=0.3)
    assert (outcome.exit_code, outcome.signal, outcome.timed_out) == (None, signal.SIGKILL, True)


def test_a_child_that_is_told_to_leave_can_clean_up(run: Runner) -> None:
    # `wait` is interrupted by the trap; the sleep below it gets its own SIGTERM.
    outcome = run.shell("trap 'echo clean; exit 7' TERM; sleep 60 & wait", timeout=0.3, grace=5)
    assert (outcome.exit_code, outcome.timed_out, run.stdout) == (7, True, b"clean\n")


def test_a_background_child_does_not_outlive_a_normal_exit(run: Runner) -> None:
    outcome = run.shell("(sleep 60; echo late > late) & echo done")
    assert (outcome.exit_code, run.stdout) == (0, b"done\n")
    assert outcome.survivors
    assert all(gone(identity) for identity in outcome.survivors)


def test_a_descendant_in_a_session_of_its_own_with_an_empty_environment_is_ended(run: Runner) -> None:
    outcome = run.shell("env -i setsid sh -c 'sleep 60; :' & sleep 0.2; exit 0")
    assert outcome.exit_code == 0
    # Nothing marks these; the supervisor knows them because the kernel handed them to it.
    assert len(outcome.survivors) == 2
    assert all(gone(identity) for identity in outcome.survivors)


def test_a_grandchild_gets_its_grace_when_the_child_has_left_already(run: Runner) -> None:
    (run.folder / "worker").write_text("trap 'sleep 0.2; echo saved > saved; exit' TERM; : > ready; sleep 60 & wait")
    outcome = run.shell("setsid sh worker & while [ ! -e ready ]; do sleep 0.01; done", grace=10)
    assert outcome.exit_code == 0
    assert (run.folder / "saved").read_text() == "saved\n"


def test_a_helper_that_ends_right_after_its_writer_is_no_survivor(run: Runner) -> None:
    outcome = run.argv("bash", "-c", "exec > >(cat; echo last); echo first")
    assert outcome.survivors == ()
    assert run.stdout == b"first\nlast\n"


def test_a_survivor_that_holds_the_pipe_does_not_hang_the_call(run: Runner) -> None:
    before = time.monotonic()
    run.shell("setsid sleep 60 & exit 0")
    assert time.monotonic() - before < 10


def test_a_child_that_closes_its_output_is_waited_for(run: Runner) -> None:
    outcome = run.shell("exec >&- 2>&-; sleep 0.3; exit 4")
    assert outcome.exit_code == 4


def test_no_byte_of_much_output_is_lost(run: Runner) -> None:
    run.shell("yes 0123456789abcde | head -c 6000000; printf end")
    assert (len(run.stdout), run.stdout[-3:]) == (6000003, b"end")


def test_the_child_reads_the_given_file_or_nothing(run: Runner) -> None:
    (run.folder / "packet").write_bytes(b"packet\n")
    run.shell("cat", stdin=run.folder / "packet")
    run.shell("cat; echo eof")
    assert run.stdout == b"packet\neof\n"


def test_a_stdin_that_could_block_is_refused(run: Runner) -> None:
    os.mkfifo(run.folder / "fifo")
    for name in ("fifo", "missing"):
        with pytest.raises(Usage):
            run.shell("cat", stdin=run.folder / name)
    with pytest.raises(Usage):
        run.argv()


def test_the_child_inherits_no_descriptor_no_environment_and_no_ignored_signal(run: Runner) -> None:
    with open(run.folder / "held", "w") as held:
        os.set_inheritable(held.fileno(), True)
        run.shell("ls /proc/$$/fd; env | cut -d= -f1 | sort; grep -E 'Sig(Ign|Blk)' /proc/self/status")
    words = run.stdout.split()
    assert words[:3] == [b"0", b"1", b"2"]
    assert {b"RUN_MARK", b"RUNNER_TEST_MARK", b"PATH"} <= set(words)
    assert b"HOME" not in words
    assert words[-4:] == [b"SigBlk:", b"0000000000000000", b"SigIgn:", b"0000000000000000"]


def test_arguments_that_are_no_utf8_reach_the_child_byte_for_byte(run: Runner) -> None:
    run.argv("printf", "%s", os.fsdecode(b"\xff\xfe \n"))
    assert run.stdout == b"\xff\xfe \n"


def test_why_nothing_was_executed_is_said(run: Runner) -> None:
    plain = run.folder / "plain"
    plain.write_text("echo no")
    orphaned = run.folder / "orphaned"
    orphaned.write_text("#!/nonexistent/interpreter\n")
    orphaned.chmod(0o755)
    garbage = run.folder / "garbage"
    garbage.write_bytes(b"\x00\x01\x02\x03")
    garbage.chmod(0o755)
    cases: list[tuple[str, int, str]] = [
        ("no-such-command", 127, "command not found: no-such-command"),
        ("/nonexistent/command", 127, "command not found: /nonexistent/command"),
        (str(plain), 126, "Permission denied"),
        (str(orphaned), 126, "its interpreter is missing"),
        (str(garbage), 126, "Exec format error"),
        ("nul\0byte", 126, "embedded null"),
    ]
    for program, code, message in cases:
        outcome = run.argv(program)
        assert outcome.exit_code == code
        assert message in str(outcome.launch_error)
    outcome = run.shell("exit 0", cwd=run.folder / "missing")
    assert outcome.exit_code == 126
    assert "cannot enter working directory" in str(outcome.launch_error)


def test_nothing_is_executed_before_it_is_recorded(run: Runner) -> None:
    seen: list[tuple[ProcessIdentity, ProcessIdentity]] = []

    def started(supervisor: ProcessIdentity, child: ProcessIdentity) -> None:
        time.sleep(0.1)
        assert not (run.folder / "ran").exists()
        seen.append((supervisor, child))

    run.shell("echo $$ > ran", on_started=started)
    ((supervisor, child),) = seen
    assert int((run.folder / "ran").read_text()) == child.pid
    assert supervisor.pid not in (child.pid, os.getpid())


def test_nothing_is_executed_when_it_cannot_be_recorded(run: Runner) -> None:
    with pytest.raises(OSError, match="journal is full"):
        run.shell("echo > ran", on_started=_fail("journal is full"))
    assert not (run.folder / "ran").exists()


def test_nothing_is_executed_unconfined_when_confinement_fails(run: Runner) -> None:
    outcome = run.shell("echo > ran", before_exec=_fail("no Landlock"))
    assert (outcome.exit_code, (run.folder / "ran").exists()) == (126, False)
    assert "no Landlock" in str(outcome.launch_error)


def test_confinement_applies_to_the_child_only(run: Runner) -> None:
    # Any attribute of the process shows where the function ran.
    run.shell("nice", before_exec=lambda: [os.nice(3)][1:] and None)
    assert run.stdout.strip() == str(os.nice(0) + 3).encode()


def test_a_sink_that_cannot_write_ends_the_run(run: Runner) -> None:
    with pytest.raises(OSError, match="disk full"):
        run.shell("yes", on_stdout=_fail("disk full"))


def test_a_reason_to_stop_ends_the_run_and_is_told(run: Runner) -> None:
    outcome = run.shell("echo x; " + SLEEP, should_stop=lambda: "seen enough" if run.stdout else None)
    assert (outcome.stopped, outcome.timed_out, outcome.signal) == ("seen enough", False, signal.SIGTERM)
    with pytest.raises(OSError, match="broken question"):
        run.shell(SLEEP, should_stop=_fail("broken question"))


def test_a_killed_supervisor_takes_nothing_with_it_and_leaves_nothing(run: Runner) -> None:
    ours = ExitStack()
    own: list[subprocess.Popen[bytes]] = []

    def started(supervisor: ProcessIdentity, child: ProcessIdentity) -> None:
        del child
        own.append(ours.enter_context(running(["sleep", "60"])))
        threading.Thread(target=kill_later, args=(supervisor,)).start()

    def kill_later(supervisor: ProcessIdentity) -> None:
        until((run.folder / "ready").exists, "tree is up")
        os.kill(supervisor.pid, signal.SIGKILL)

    # Without mark and parent; the sleep before `ready` is for the parent to be gone.
    script = "(env -i setsid sh -c 'sleep 0.1; : > ready; sleep 60; :' &) ; exec sleep 60"
    with ours:
        outcome = run.shell(script, on_started=started)
        assert (outcome.stopped, outcome.signal) == ("supervisor died", signal.SIGTERM)
        assert len(outcome.survivors) == 2
        assert all(gone(identity) for identity in outcome.survivors)
        assert own[0].poll() is None, "a child of the caller's own was ended"


def test_a_supervisor_killed_before_the_start_lets_nothing_run(run: Runner) -> None:
    outcome = run.shell("echo > ran", on_started=lambda supervisor, child: os.kill(supervisor.pid, 9))
    assert (outcome.stopped, (run.folder / "ran").exists()) == ("supervisor died", False)


def test_a_child_that_stops_its_supervisor_does_not_escape_its_timeout(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The caller gives its supervisor that much time to answer; the test need not.
    monkeypatch.setattr("runner.foreground.KILL_SECONDS", 0.2)
    outcome = run.shell("kill -STOP $PPID; " + SLEEP, timeout=0.2, grace=0)
    assert outcome.timed_out
    assert outcome.stopped == "supervisor died"


def test_two_runs_at_once_from_two_threads_do_not_end_each_other(run: Runner) -> None:
    outcomes: list[Outcome] = []

    def thread(number: int) -> None:
        outcomes.append(
            run_supervised(
                ["sh", "-c", f"sleep 0.{number}; exit {number}"],
                cwd=run.folder,
                env={"PATH": os.environ["PATH"]},
                timeout=20,
                marker=("RUN_MARK", f"{run.mark}-{number}"),
                on_stdout=None,
                on_stderr=None,
            )
        )

    threads = [threading.Thread(target=thread, args=(number,)) for number in (1, 4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(str(outcome.exit_code) for outcome in outcomes) == ["1", "4"]


def _fail(message: str) -> Callable[..., Any]:
    def fail(*ignored: Any) -> Any:
        raise OSError(message)

    return fail


def test_exits_and_signals_are_noticed_though_the_caller_has_blocked_them(run: Runner) -> None:
    handler = signal.signal(signal.SIGHUP, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGHUP})
    try:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        outcome = run.shell("exec >&- 2>&-; exit 7", timeout=5.0)
        assert (outcome.exit_code, outcome.timed_out) == (7, False)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
        with pytest.raises(Interrupted):
            run.shell(f"kill -HUP {os.getpid()}; {SLEEP}", timeout=5.0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGHUP, handler)
