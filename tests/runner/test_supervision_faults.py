"""Whatever goes wrong for the supervisor itself: no worker is left to itself, and its end gets a word and a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.runner.support import SLEEP, Cli, Job, until

START = ("start", "--skill", "peer", "--run-id", "r1")


def start_faulty(cli: Cli, fault: str, *words: str) -> Job:
    """Start a job whose supervisor has the fault that this Python code gives it."""
    script = f"import sys\nfrom runner import cli, supervise\n{fault}\nsys.exit(cli.main())\n"
    argv = [sys.executable, "-c", script, *START, "--", *words]
    done = subprocess.run(argv, env=cli.env, capture_output=True, check=True, timeout=60)
    return Job(cli, cli.root / "peer/r1/jobs" / done.stdout.decode().strip())


def test_a_worker_that_hides_its_result_behind_a_loop_of_links_does_not_shake_off_its_limits(
    cli: Cli, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    script = f"rmdir {place}; ln -s {place} {place}; {SLEEP}"
    job = cli.shell(script, options=["--result-path", str(place / "out")], CE_PEER_HARD_SECS="1")
    report = job.wait()
    assert (report["state"], "hard cap" in report["reason"]) == ("timeout", True)
    assert cli.live() == []


def test_a_result_path_that_no_file_can_have_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in ("x" * 300, str(tmp_path / "loop" / "out")):
        done = cli.call(*START, "--result-path", path, "--", "true")
        assert (done.returncode, done.stdout, b"unusable result path" in done.stderr) == (1, b"", True)
    assert not cli.root.exists()


def test_a_supervisor_that_cannot_go_on_ends_its_worker_and_says_why(cli: Cli) -> None:
    fault = "def broken(meta): raise RuntimeError('a surprise')\nsupervise.result_of = broken"
    job = start_faulty(cli, fault, "sh", "-c", f"setsid sleep 60 & echo working; {SLEEP}")
    report = job.wait()
    assert report["state"] == "failed"
    assert report["reason"] == "supervision failed, the worker was ended: RuntimeError: a surprise"
    until(lambda: not cli.live(), "nothing left")


def test_a_worker_is_ended_also_where_processes_cannot_be_listed(cli: Cli) -> None:
    fault = (
        "from runner import tree\n"
        "def broken(*args): raise RuntimeError('a surprise')\n"
        "supervise.result_of = tree.census = broken"
    )
    job = start_faulty(cli, fault, "sh", "-c", f"echo working; {SLEEP}")
    assert job.wait()["state"] == "failed"
    until(lambda: not cli.live(), "nothing left")


def test_paid_work_is_not_ended_because_its_messages_find_no_room(cli: Cli, tmp_path: Path) -> None:
    fault = (
        "import resource\n"
        "make = supervise.write_processes\n"
        "def limited(*args):\n"
        "    make(*args); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "supervise.write_processes = limited"
    )
    finished = tmp_path / "finished"
    job = start_faulty(cli, fault, "sh", "-c", f"head -c 10000 /dev/zero; sleep 0.2; : > {finished}")
    report = job.wait()
    assert finished.exists()
    assert report["state"] == "done"
    assert report["reason"] == "worker exited 0; 5904 bytes of output could not be logged: File too large"
    assert report["log_bytes"] == 4096


def test_how_a_job_ended_is_not_lost_on_a_disk_that_is_full_for_a_while(cli: Cli) -> None:
    fault = (
        "import errno\n"
        "left = [1, 1]\n"
        "publish = supervise.publish\n"
        "def full(*args):\n"
        "    if left: left.pop(); raise OSError(errno.ENOSPC, 'full')\n"
        "    publish(*args)\n"
        "supervise.publish = full"
    )
    report = start_faulty(cli, fault, "sh", "-c", "exit 5").wait()
    assert (report["state"], report["reason"]) == ("failed", "worker exited 5")
