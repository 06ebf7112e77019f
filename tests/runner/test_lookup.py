"""A reference means one job or none; roots are private and are where the environment says."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from runner.roots import Roots
from tests.runner.support import Cli, write_job


def test_a_bare_id_is_found_in_every_skill_and_is_never_guessed(cli: Cli) -> None:
    write_job(cli.root / "one/r1/jobs/a", status="done")
    write_job(cli.root / "one/r2/jobs/b", status="failed")
    write_job(cli.root / "two/r1/jobs/b", status="done")
    assert cli.text("status", "a") == "done\n"
    assert cli.text("status", "--skill", "two", "b") == "done\n"
    ambiguous = cli.call("status", "b")
    assert (ambiguous.returncode, ambiguous.stdout) == (1, b"")
    assert b"ambiguous" in ambiguous.stderr
    missing = cli.call("status", "--skill", "two", "a")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert f"job not found under {cli.root / 'two'}".encode() in missing.stderr


def test_a_path_is_taken_as_it_is(cli: Cli, tmp_path: Path) -> None:
    path = write_job(tmp_path / "elsewhere", status="done")
    assert cli.text("status", str(path)) == "done\n"
    assert cli.text("status", os.path.relpath(path)) == "done\n"
    missing = cli.call("status", str(tmp_path / "none"))
    assert (missing.returncode, b"job not found under" in missing.stderr) == (1, True)


def test_ce_work_jobs_live_under_the_runs_root_and_need_their_skill_named(cli: Cli, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    words = ("start", "--skill", "ce-work", "--run-id", "r9", "--no-sweep", "--", "true")
    job_id = cli.text(*words, CE_WORK_RUNS_ROOT=runs).strip()
    assert (Path(runs) / "r9" / "jobs" / job_id / "pid").exists()
    assert cli.text("wait", "--skill", "ce-work", job_id, CE_WORK_RUNS_ROOT=runs) == "done\n"
    assert cli.call("status", job_id, CE_WORK_RUNS_ROOT=runs).returncode == 1
    listed = json.loads(cli.text("jobs", "--json", CE_WORK_RUNS_ROOT=runs))
    assert [report["ref"] for report in listed] == [job_id]


def test_without_a_configured_root_the_temporary_directory_of_the_user_serves(cli: Cli, tmp_path: Path) -> None:
    # /tmp itself belongs to everybody, so only the look-up in both defaults is shown here.
    base = tmp_path / f"compound-engineering-{os.geteuid()}"
    write_job(base / "s/r/jobs/only-here", status="done")
    assert cli.text("status", "only-here", CE_PEER_JOBS_ROOT="", TMPDIR=str(tmp_path)) == "done\n"


def test_a_temporary_directory_with_two_names_holds_each_job_once(tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to("/tmp")
    assert len(Roots({"TMPDIR": str(alias)}).skill_dirs("s")) == 1
    assert len(Roots({"TMPDIR": str(tmp_path)}).skill_dirs("s")) == 2


def test_the_base_is_made_private_and_foreign_parts_are_refused(cli: Cli, tmp_path: Path) -> None:
    cli.root.mkdir(mode=0o755)
    cli.root.chmod(0o755)
    cli.start("true").wait()
    assert stat.S_IMODE(cli.root.stat().st_mode) == 0o700
    for part in ("base", "base/skill", "base/skill/run", "base/skill/run/jobs"):
        root = tmp_path / part.replace("/", "-")
        link = root / part
        link.parent.mkdir(parents=True)
        (root / "target").mkdir()
        link.symlink_to(root / "target")
        words = ("start", "--skill", "skill", "--run-id", "run", "--", "true")
        done = cli.call(*words, CE_PEER_JOBS_ROOT=str(root / "base"))
        assert (done.returncode, done.stdout) == (4, b""), part
        assert list((root / "target").iterdir()) == []


def test_jobs_are_listed_with_what_became_of_them(cli: Cli) -> None:
    meta = {"job_id": "1", "skill": "one", "run_id": "r1", "label": "unit"}
    write_job(cli.root / "one/r1/jobs/1", status="done", reason="worker exited 0\n", meta=meta)
    write_job(cli.root / "two/r2/jobs/2")
    assert cli.text("jobs") == "1\tone\tr1\tunit\tdone\tworker exited 0\n2\ttwo\tr2\t-\tnever-started\t-\n"
    assert cli.text("jobs", "--skill", "two") == "2\ttwo\tr2\t-\tnever-started\t-\n"
    assert cli.text("jobs", "--run-id", "r1").startswith("1\t")
    assert cli.text("jobs", "--run-id", "none") == ""
    reports = json.loads(cli.text("jobs", "--json"))
    assert [(report["ref"], report["state"]) for report in reports] == [("1", "done"), ("2", "never-started")]
