"""`run`: exit codes that can be trusted, output where it was asked for, nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.support import SLEEP, STUBBORN, Cli, running, until


def test_output_passes_through_and_the_exit_code_is_the_commands(cli: Cli) -> None:
    done = cli.call("run", "--timeout", "20", "--", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert (done.returncode, done.stdout, done.stderr) == (9, b"out\n", b"err\n")


def test_only_our_own_timeout_says_so(cli: Cli) -> None:
    own = cli.call("run", "--timeout", "20", "--", "sh", "-c", "exit 124")
    assert (own.returncode, own.stderr) == (124, b"")
    ours = cli.call("run", "--timeout", "0.3", "--grace", "0.2", "--", "sh", "-c", f"echo out; {STUBBORN}")
    assert (ours.returncode, ours.stdout) == (124, b"out\n")
    assert ours.stderr == b"peer-job-runner: timeout: ended after 0.3 seconds\n"


def test_a_signalled_command_is_told_as_a_shell_would(cli: Cli) -> None:
    assert cli.call("run", "--timeout", "20", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_nothing_outlives_a_normal_exit(cli: Cli) -> None:
    done = cli.call("run", "--timeout", "20", "--", "sh", "-c", f"setsid sh -c '{SLEEP}' & {SLEEP} & exit 0")
    assert done.returncode == 0
    assert cli.live() == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signalled_runner_leaves_nothing(cli: Cli, tmp_path: Path, signum: signal.Signals) -> None:
    script = f"setsid sh -c '{SLEEP}' & : > {tmp_path}/up; {SLEEP}"
    argv = [sys.executable, "-m", "runner.cli", "run", "--timeout", "50", "--", "sh", "-c", script]
    with running(argv, env=cli.env, stderr=subprocess.PIPE) as process:
        until((tmp_path / "up").exists, "tree is up")
        process.send_signal(signum)
        stderr = process.communicate(timeout=20)[1]
        assert process.returncode == (-signum if signum is signal.SIGKILL else 128 + signum)
        assert b"Traceback" not in stderr
    until(lambda: not cli.live(), "nothing left")


def test_files_take_the_output_up_to_the_cap(cli: Cli, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    words = ("--stdout", str(out), "--stderr", str(err), "--max-output-bytes", "4", "--cwd", str(tmp_path))
    script = "pwd > here; echo 0123456789; echo abc >&2; exit 1"
    done = cli.call("run", "--timeout", "20", *words, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert (out.read_bytes(), err.read_bytes()) == (b"0123", b"abc\n")
    assert (tmp_path / "here").read_text() == f"{tmp_path}\n"


def test_a_command_that_fills_its_capped_output_is_not_blocked(cli: Cli, tmp_path: Path) -> None:
    words = ("--stdout", str(tmp_path / "out"), "--max-output-bytes", "0")
    done = cli.call("run", "--timeout", "20", *words, "--", "head", "-c", "3000000", "/dev/zero")
    assert (done.returncode, (tmp_path / "out").stat().st_size) == (0, 0)


def test_output_to_a_device_works_and_a_fifo_without_a_reader_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli.call("run", "--timeout", "20", "--stdout", os.devnull, "--", "echo", "x").returncode == 0
    os.mkfifo(tmp_path / "fifo")
    done = cli.call("run", "--timeout", "20", "--stdout", str(tmp_path / "fifo"), "--", "echo", "x")
    assert (done.returncode, b"cannot write --stdout" in done.stderr) == (2, True)
