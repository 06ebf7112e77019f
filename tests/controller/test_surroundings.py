"""What the controller is started in: a copied root, streams nobody reads, no /proc, odd names, a strange PATH."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from controller import interrupts
from controller.errors import Refused
from controller.frame import answer
from controller.git import Git
from controller.sanction import parse_object
from runner.errors import RunnerError
from tests.controller.situations import Desk, begin, begin_run
from tests.host import ROOT


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers as they were, afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_command_in_a_copy_of_the_runs_root_never_touches_the_original(desk: Desk) -> None:
    transport = desk.pending()["commit"]
    copy = desk.base / "copy"
    shutil.copytree(desk.runs, copy, symlinks=True)
    there = {"CE_WORK_RUNS_ROOT": str(copy)}
    args = desk.of("cleanup", "--abandon", "--expect-transport", transport)
    reply = desk.refuse("BLOCKED", f"put the run back to {desk.run_dir()}", args=args, env=there)
    assert (reply.body["expected"], reply.body["found"]) == (f"the run at {desk.run_dir()}", str(copy / "r1"))
    assert Path(desk.unit()["workspace"]["path"]).is_dir()
    assert transport in desk.git("for-each-ref", "refs/ce-work")
    for words in (("status", "--run-id", "r1"), ("journal", "verify", "--run-id", "r1")):
        assert desk.call(*words, env=there).code == 0, words
    alias = desk.base / "alias"
    alias.symlink_to(desk.base)
    desk.call(*args, env={"CE_WORK_RUNS_ROOT": str(alias / "runs")}).expect("CLEANED")


def _run(
    desk: Desk, *args: str, stdout: int | IO[bytes], stderr: int | IO[bytes]
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "controller", *args],
        cwd=desk.base,
        env={**desk.env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        check=False,
    )


def test_an_answer_that_cannot_be_written_is_told_and_no_crash(desk: Desk) -> None:
    with open("/dev/full", "wb") as full:
        done = _run(desk, "status", "--run-id", "r1", stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        assert done.stderr.count(b"unit-workspace: the answer could not be written") == 1
        done = _run(desk, "journal", "show", "--run-id", "r1", stdout=full, stderr=subprocess.PIPE)
        assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
        (desk.run_dir() / "journal.jsonl").chmod(0o644)
        done = _run(desk, "status", "--run-id", "r1", stdout=subprocess.PIPE, stderr=full)
        assert (done.returncode, done.stdout) == (4, b"UNREADABLE\n")


def test_a_machine_without_proc_is_a_refusal_and_no_crash(capsys: Any, handlers: None) -> None:
    def command() -> Any:
        raise RunnerError("cannot read processes", expected="a Linux /proc", remedy="mount /proc")

    with pytest.raises(SystemExit) as ended:
        answer(command)
    out, err = capsys.readouterr()
    assert (ended.value.code, out.splitlines()[0]) == (1, "BLOCKED")
    assert "cannot read processes; expected a Linux /proc; to do: mount /proc" in err


def test_a_branch_whose_name_is_not_utf_8_goes_the_whole_way(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    subprocess.run([b"git", b"checkout", b"-q", b"-b", b"caf\xe9"], cwd=desk.repo, env=desk.env, check=True)
    desk.init().expect("READY")
    commit = desk.done()
    assert desk.manifest()["branch"]["ref"] == "refs/heads/caf\udce9"
    desk.git("pack-refs", "--all")
    assert (desk.head, desk.git("status", "--porcelain")) == (commit, "")
    desk.done("U2", {"second": "x"})


def test_seconds_that_are_no_number_and_json_that_nests_for_ever_are_refused(desk: Desk) -> None:
    reply = desk.call("sync-job", "--run-id", "r1", "--unit-id", "U1", "--wait-lock", "nan")
    assert (reply.code, "--wait-lock" in reply.stderr, "Traceback" in reply.stderr) == (2, True, False)
    with pytest.raises(Refused):
        parse_object('{"a":' + "[" * 100_000, "--binding-json")


def test_two_runs_of_one_name_below_two_roots_never_share_their_transports(desk: Desk) -> None:
    desk.pending()
    desk.env["CE_WORK_RUNS_ROOT"] = str(desk.base / "second")
    assert "transports of another run r1" in desk.init().expect("BLOCKED").stderr
    desk.init("r2").expect("READY")


def test_a_program_of_the_repository_is_never_run_in_place_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "git"
    trap.write_text("#!/bin/sh\necho trapped\n")
    trap.chmod(0o755)
    for path in (f":{os.defpath}", f".:{os.defpath}", f"{os.defpath}:", "", ".", "bin"):
        monkeypatch.setenv("PATH", path)
        assert Git(tmp_path).run("version").startswith(b"git version"), path


def test_a_signal_that_nohup_ignores_stays_ignored(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.install()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)


def test_a_git_that_is_too_old_is_named_as_the_reason(desk: Desk) -> None:
    old = desk.base / "old"
    old.mkdir()
    real = shutil.which("git", path=desk.env["PATH"])
    (old / "git").write_text(
        '#!/bin/sh\ncase " $* " in *" --path-format=absolute "*) echo --path-format=absolute; exit;; esac\n'
        f'exec {real} "$@"\n'
    )
    (old / "git").chmod(0o755)
    desk.env["PATH"] = f"{old}:{desk.env['PATH']}"
    assert "needs Git 2.39" in desk.init("r2").expect("REFUSED").stderr
