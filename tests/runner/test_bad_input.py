"""Bad input gets its exit code, one clear line, an empty stdout, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.support import Cli, running, write_job

START = ("start", "--skill", "s", "--run-id", "r")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "Missing command"),
        (("frobnicate",), 2, "frobnicate"),
        (("start",), 2, "--skill"),
        (START, 2, "worker command is required"),
        ((*START, "--"), 2, "worker command is required"),
        ((*START, "--frob", "--", "true"), 2, "--frob"),
        (("start", "--skill", "../s", "--run-id", "r", "--", "true"), 1, "invalid skill"),
        (("start", "--skill", "s", "--run-id", "..", "--", "true"), 1, "invalid run id"),
        (("start", "--skill", "s", "--run-id", "r\n", "--", "true"), 1, "invalid run id"),
        (("start", "--skill", "s", "--run-id", ".locks", "--", "true"), 1, "begin with a dot"),
        ((*START, "--label", "a b", "--", "true"), 1, "invalid label"),
        ((*START, "--", ""), 1, "preflight"),
        ((*START, "--", "no-such-worker"), 1, "PATH"),
        ((*START, "--", "/no/such/worker"), 1, "preflight"),
        ((*START, "--", "/"), 1, "preflight"),
        (("status",), 2, "JOB"),
        (("status", "none"), 1, "job not found under"),
        (("status", "a\tb"), 1, "invalid job id"),
        (("status", "--skill", "a/b", "none"), 1, "invalid skill"),
        (("status", "none", "--", "x"), 2, "takes no worker command"),
        (("wait", "none", "--max-secs", "soon"), 2, "soon"),
        (("wait", "none", "--max-secs", "nan"), 2, "finite"),
        (("wait", "none", "--max-secs", "-1"), 2, "-1"),
        (("result",), 2, "needs a job id or --path"),
        (("result", "none"), 1, "job not found under"),
        (("reap", "/nonexistent/job"), 1, "job not found under"),
        (("log", "none"), 1, "job not found under"),
        (("jobs", "--skill", ".."), 1, "invalid skill"),
        (("run", "--", "true"), 2, "--timeout"),
        (("run", "--timeout", "0", "--", "true"), 2, "--timeout"),
        (("run", "--timeout", "5"), 2, "worker command is required"),
        (("run", "--timeout", "5", "--cwd", "/nonexistent", "--", "true"), 2, "--cwd"),
        (("run", "--timeout", "5", "--stdout", "/nonexistent/f", "--", "true"), 2, "cannot write --stdout"),
        (("run", "--timeout", "5", "--stderr", "/", "--", "true"), 2, "cannot write --stderr"),
        (("run", "--timeout", "5", "--", "no-such-command"), 127, "command not found"),
        (("run", "--timeout", "5", "--", "/"), 126, "cannot execute"),
    ],
)
def test_bad_input_is_refused_in_one_clear_line(cli: Cli, words: tuple[str, ...], code: int, text: str) -> None:
    done = cli.call(*words)
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), message
    assert "Traceback" not in message
    assert text in message.splitlines()[-1]
    assert message.splitlines()[-1].startswith("peer-job-runner: ")


def test_a_reference_that_is_no_utf8_is_refused_in_words(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli", "status", b"/\xff"], env=cli.env, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, b"Traceback" in done.stderr) == (1, b"", False)


def test_a_failed_preflight_leaves_a_job_that_never_started(cli: Cli) -> None:
    cli.call("start", "--skill", "s", "--run-id", "r", "--", "no-such-worker")
    (job,) = (cli.root / "s/r/jobs").iterdir()
    assert [path.name for path in job.iterdir()] == ["meta.json"]
    assert cli.text("status", job.name) == "never-started\n"


def test_a_disk_that_takes_no_record_starts_no_worker(cli: Cli, tmp_path: Path) -> None:
    # The limit lets meta.json be written and stops the record of the processes.
    script = (
        "import resource, sys; from runner import cli, supervise\n"
        "make = supervise.detach\n"
        "def detach(*args):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); make(*args)\n"
        "import runner.start; runner.start.detach = detach\n"
        "sys.exit(cli.main())\n"
    )
    ran = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-c", script, *START, "--", "sh", "-c", f": > {ran}"],
        env=cli.env,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"detach failed, nothing was started" in done.stderr
    assert not ran.exists()


def test_a_reader_that_goes_away_is_no_traceback(cli: Cli) -> None:
    argv = [sys.executable, "-m", "runner.cli", "run", "--timeout", "20", "--", "yes"]
    with running(argv, env=cli.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=20) == 141


def test_output_that_cannot_be_written_is_one_line_and_a_failure(cli: Cli, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", status="done")
    for words in (("status", str(job)), ("--help",)):
        argv = [sys.executable, "-m", "runner.cli", *words]
        with open("/dev/full", "wb") as full:
            done = subprocess.run(argv, env=cli.env, stdout=full, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr) == (1, b"peer-job-runner: No space left on device\n")
