"""Starting a job never costs anybody an unfinished one, or evidence of ce-work."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.runner.support import Cli, write_job

PID = {"supervisor_pid": 1, "worker_pid": 1, "supervisor_pgid": 1}


def aged(path: Path) -> Path:
    """Make a job, its run and all in it two days old."""
    old = time.time() - 2 * 24 * 3600
    for entry in (*path.iterdir(), path, path.parent, path.parent.parent):
        os.utime(entry, (old, old), follow_symlinks=False)
    return path


def test_only_old_finished_jobs_of_other_runs_go(cli: Cli) -> None:
    base = cli.root / "peer"
    finished = aged(write_job(base / "old/jobs/a", status="done", pid=PID))
    kept = [
        aged(write_job(base / "unfinished/jobs/a", pid=PID)),
        aged(write_job(base / "mixed/jobs/a", status="done", pid=PID)),
        aged(write_job(base / "mixed/jobs/b", pid=PID)),
        aged(write_job(base / "never/jobs/a")),
        aged(write_job(base / "odd/jobs/a", status="odd")),
        write_job(base / "young/jobs/a", status="done"),
        aged(write_job(base / "r1/jobs/a", status="done")),
        aged(write_job(cli.root / "other/old/jobs/a", status="done")),
    ]
    (base / ".locks").mkdir()
    os.utime(base / ".locks", (1, 1))
    cli.start("true").wait()
    assert not finished.parent.parent.exists()
    assert [path for path in kept if not path.exists()] == []
    assert (base / ".locks").exists()


def test_what_else_lives_in_a_run_stays(cli: Cli) -> None:
    job = write_job(cli.root / "peer/old/jobs/a", status="done")
    (job.parent.parent / "report.md").write_text("mine")
    aged(job)
    cli.start("true").wait()
    assert not job.exists()
    assert (job.parent.parent / "report.md").read_text() == "mine"


def test_a_link_in_a_run_leads_the_sweep_nowhere(cli: Cli, tmp_path: Path) -> None:
    elsewhere = aged(write_job(tmp_path / "elsewhere/jobs/a", status="done"))
    (cli.root / "peer").mkdir(parents=True)
    (cli.root / "peer/linked").symlink_to(tmp_path / "elsewhere")
    inner = write_job(cli.root / "peer/old/jobs/a", status="done")
    (inner / "link").symlink_to(tmp_path / "elsewhere")
    aged(inner)
    cli.start("true").wait()
    assert elsewhere.exists()
    assert not inner.exists()


def test_ce_work_is_never_swept_and_no_sweep_means_it(cli: Cli) -> None:
    evidence = aged(write_job(cli.root / "ce-work/old/jobs/a", status="done"))
    spared = aged(write_job(cli.root / "peer/old/jobs/a", status="done"))
    cli.shell("true", skill="ce-work")
    cli.start("true", options=["--no-sweep"]).wait()
    assert evidence.exists()
    assert spared.exists()
    assert cli.text("wait", "--skill", "ce-work", *os.listdir(cli.root / "ce-work/r1/jobs")) == "done\n"
