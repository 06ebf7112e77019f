"""`result` and `log` give exactly the bytes, or say why not, and never those of somebody else."""

from __future__ import annotations

import os
from pathlib import Path

from tests.runner.support import SLEEP, Cli, until, write_job


def test_the_result_comes_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "result"
    job = cli.shell(f"printf '\\377\\000\\r\\nend' > {path}", options=["--result-path", str(path)])
    job.wait()
    done = cli.call("result", job.id)
    assert (done.returncode, done.stdout) == (0, b"\xff\x00\r\nend")
    assert cli.call("result", "--path", str(path)).stdout == b"\xff\x00\r\nend"


def test_a_relative_result_path_is_the_callers(cli: Cli, tmp_path: Path) -> None:
    relative = os.path.relpath(tmp_path / "result")
    job = cli.shell(f"echo here > {tmp_path}/result", options=["--result-path", relative])
    assert job.wait()["state"] == "done"
    assert cli.text("result", job.id) == "here\n"


def test_a_job_without_a_declared_result_has_an_empty_one(cli: Cli) -> None:
    job = cli.shell("echo only in the log")
    job.wait()
    done = cli.call("result", job.id)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_exit_code_tells_why_there_is_no_result(cli: Cli, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    pid = {"supervisor_pid": 1, "worker_pid": 1, "supervisor_pgid": 1}
    cases = [
        (write_job(tmp_path / "running", pid=pid, meta={}), 2, b"still running"),
        (write_job(tmp_path / "failed", status="failed", meta={}), 3, b"not done"),
        (write_job(tmp_path / "never", meta={}), 3, b"not done"),
        (write_job(tmp_path / "gone", status="done", meta={"result_path": missing}), 3, b"missing"),
        (write_job(tmp_path / "unreadable", status="odd", meta={}), 4, b"not trusted"),
        (write_job(tmp_path / "bad-meta", status="done", meta="{"), 4, b"not trusted"),
    ]
    for path, code, text in cases:
        done = cli.call("result", str(path))
        assert (done.returncode, done.stdout, text in done.stderr) == (code, b"", True), path


def test_a_result_that_is_no_plain_file_of_ours_is_never_shown(cli: Cli, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link, fifo, folder = tmp_path / "link", tmp_path / "fifo", tmp_path / "folder"
    link.symlink_to(secret)
    os.mkfifo(fifo)
    folder.mkdir()
    foreign = tmp_path / "foreign"
    foreign.write_text("theirs")
    if os.geteuid() == 0:
        os.chown(foreign, 12345, -1)
    else:
        foreign = Path("/proc/version")
    for number, path in enumerate((link, fifo, folder, foreign)):
        job = write_job(tmp_path / f"job{number}", status="done", meta={"result_path": str(path)})
        for words in ((str(job),), ("--path", str(path))):
            done = cli.call("result", *words)
            assert (done.returncode, done.stdout) == (4, b""), path
    done = cli.call("result", "--path", str(secret), CE_PEER_RESULT_MAX_BYTES="5")
    assert (done.returncode, done.stdout) == (4, b"")
    assert cli.call("result", "--path", str(tmp_path / "none")).returncode == 3


def test_the_log_can_be_read_while_the_worker_runs(cli: Cli) -> None:
    job = cli.shell(f"echo one; echo two; printf three; {SLEEP}")
    until(lambda: (job.path / "out.log").stat().st_size == 13, "output")
    assert cli.text("log", job.id) == "one\ntwo\nthree"
    assert cli.text("log", job.id, "--tail", "2") == "two\nthree"
    assert cli.text("log", job.id, "--tail", "0") == ""
    cli.text("reap", job.id)


def test_a_log_that_is_a_link_is_not_followed(cli: Cli, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", status="done")
    (tmp_path / "secret").write_text("secret")
    (job / "out.log").symlink_to(tmp_path / "secret")
    done = cli.call("log", str(job))
    assert (done.returncode, done.stdout) == (4, b"")
    assert cli.call("log", str(write_job(tmp_path / "none", status="done"))).returncode == 3
