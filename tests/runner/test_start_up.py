"""What a caller leaves its children in (closed streams, ignored or blocked signals) harms none of our programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runner.support import Cli

PROBE = """\
import json, os, signal, sys
from {module}.cli import main
sys.argv[1:] = ["--help"]
try:
    main()
finally:
    streams = [os.path.samestat(os.fstat(fd), os.stat(os.devnull)) for fd in range(3)]
    found = [streams, sys.stderr is None, signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
             sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))]
    with open("found", "w") as file:
        json.dump(found, file)
"""


def misplace() -> None:
    """What daemons and process managers leave to those they start."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    block()
    os.closerange(0, 3)


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def ignore() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def call(
    cli: Cli, prepare: Callable[[], None] | None, *words: str, **streams: int
) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "runner.cli", *words]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(argv, env=cli.env, preexec_fn=prepare, timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("module", ["runner", "adapters", "controller"])
def test_no_program_loses_a_lock_to_its_children_or_takes_a_failure_for_a_success(
    cli: Cli, tmp_path: Path, module: str
) -> None:
    argv = [sys.executable, "-P", "-c", PROBE.format(module=module)]
    done = subprocess.run(argv, env=cli.env, cwd=tmp_path, preexec_fn=misplace, timeout=60, check=False)
    assert done.returncode == 0
    assert json.loads((tmp_path / "found").read_text()) == [[True, True, True], False, True, []]


def test_a_caller_that_ignores_its_children_gets_the_job_that_it_started(cli: Cli) -> None:
    done = call(cli, ignore, "start", "--skill", "peer", "--run-id", "r1", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (0, b"")
    assert cli.text("wait", done.stdout.decode().strip()) == "failed\n"


def test_a_job_started_with_blocked_signals_does_not_stay_running(cli: Cli) -> None:
    done = call(cli, block, "start", "--skill", "peer", "--run-id", "r1", "--", "sh", "-c", "exec >&- 2>&-; exit 0")
    assert cli.text("wait", done.stdout.decode().strip()) == "done\n"
    command = ("--timeout", "10", "--", "sh", "-c", "exec >&- 2>&-; exit 7")
    assert call(cli, block, "run", *command).returncode == 7


def test_a_job_whose_id_nobody_took_is_not_started_twice(cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        done = call(cli, None, "start", "--skill", "peer", "--run-id", "r1", "--", "true", stdout=full.fileno())
    (job,) = (cli.root / "peer/r1/jobs").iterdir()
    assert done.returncode == 1
    assert done.stderr.startswith(b"peer-job-runner: job " + job.name.encode() + b" was started; expected")
    assert cli.text("wait", job.name) == "done\n"


def test_a_message_that_nobody_takes_changes_no_exit_code(cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        assert call(cli, None, "frobnicate", stderr=full.fileno()).returncode == 2
        assert call(cli, None, "status", "none", stderr=full.fileno()).returncode == 1
