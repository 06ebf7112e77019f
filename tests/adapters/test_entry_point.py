"""The drop-in entry point runs our program, whatever the folder it is started from holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.support import REPOSITORY, Room, write_answer

SCRIPT = REPOSITORY / "scripts" / "cross-model-work.sh"
CODEX_LINE = (
    "codex exec --ignore-user-config --ignore-rules --ephemeral -s workspace-write -C <workspace> --json "
    "-o <raw-result> -c model_reasoning_effort=high --skip-git-repo-check -c approval_policy=never "
    "-c sandbox_workspace_write.network_access=false -c sandbox_workspace_write.exclude_slash_tmp=true "
    "-c sandbox_workspace_write.exclude_tmpdir_env_var=true {model}- \n"
)


def emit(
    route: str, *, script: Path = SCRIPT, cwd: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), "--emit-adapter", route],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "CE_PEER_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_the_command_line_is_shown_without_calling_anything() -> None:
    shown = emit("codex")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, CODEX_LINE.format(model=""), "")


def test_an_override_is_shown_when_it_fits_and_ignored_when_it_is_for_another() -> None:
    fits = emit("codex", CE_WORK_MODEL_OVERRIDE="gpt-5.6-sol", CE_WORK_MODEL_OVERRIDE_TARGET="codex")
    assert fits.stdout == CODEX_LINE.format(model="-m gpt-5.6-sol ")
    other = emit("codex", CE_WORK_MODEL_OVERRIDE="opus", CE_WORK_MODEL_OVERRIDE_TARGET="claude")
    assert other.stdout == CODEX_LINE.format(model="")


@pytest.mark.parametrize(
    ("model", "target"),
    [("gpt-5", ""), ("", "codex"), ("opus", "codex"), ("auto", "codex"), ("x", "gemini"), ("gpt-5", "claude")],
)
def test_an_override_that_fits_nothing_is_refused(model: str, target: str) -> None:
    shown = emit("codex", CE_WORK_MODEL_OVERRIDE=model, CE_WORK_MODEL_OVERRIDE_TARGET=target)
    assert shown.returncode == 2
    assert "not compatible" in shown.stderr
    assert shown.stdout == ""


def test_dispatch_does_not_look_at_overrides(room: Room) -> None:
    room.codex(write_answer())
    assert room.run(CE_WORK_MODEL_OVERRIDE="opus", CE_WORK_MODEL_OVERRIDE_TARGET="codex").code == 0
    assert "-m" not in (room.path / "argv").read_text().splitlines()


def test_an_unknown_route_names_the_known_ones() -> None:
    shown = emit("gemini")
    assert shown.returncode == 2
    assert "codex, claude, grok-cli, cursor, composer, grok-cursor" in shown.stderr


def test_a_configured_command_is_shown_with_placeholders(room: Room) -> None:
    room.configure('[commands.mine]\nargv = ["tool", "--dir={workspace}", "{prompt_file}", "{result_file}"]\n')
    shown = emit("command", HOME=str(room.home))
    assert shown.stdout == "tool --dir=<workspace> <prompt-file> <raw-result> \n"


@pytest.mark.parametrize("name", ["adapters", "runner", "msgspec", "signal", "json"])
def test_a_hostile_current_folder_lends_no_module(tmp_path: Path, name: str) -> None:
    package = tmp_path / name
    package.mkdir()
    trap = f"open({str(tmp_path / 'pwned')!r}, 'w').close()\n"
    (package / "__init__.py").write_text(trap)
    (tmp_path / "sitecustomize.py").write_text(trap)
    shown = emit("codex", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert shown.returncode == 0
    assert shown.stdout.startswith("codex exec ")
    assert not (tmp_path / "pwned").exists()


def test_the_controller_is_not_taken_from_a_hostile_current_folder(room: Room) -> None:
    room.codex(write_answer())
    trap = f"open({str(room.path / 'pwned')!r}, 'w').close()\n"
    for name in ("json.py", "sitecustomize.py", "unit-workspace.py"):
        (room.path / name).write_text(trap)
    ran = room.run(PYTHONPATH=str(room.path))
    assert ran.code == 0, ran.stderr
    assert not (room.path / "pwned").exists()


def test_the_installed_command_asks_the_installed_controller(room: Room) -> None:
    room.codex(write_answer())
    ran = subprocess.run(
        [sys.executable, "-P", "-c", "from adapters.cli import main; main()", *room.arguments()],
        env={**room.environment, "CE_WORK_RUNS_ROOT": str(room.path / "runs")},
        cwd=room.path,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert ran.returncode == 2
    assert "unit-workspace: " in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("[cross-model-work] controller dispatch authorization failed")
    assert not room.started


def test_it_works_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "cross-model-work.sh"
    link.symlink_to(SCRIPT)
    assert emit("codex", script=link).stdout.startswith("codex exec ")


def test_output_that_nobody_takes_is_no_traceback() -> None:
    argv = [sys.executable, "-P", "-c", "from adapters.cli import main; main()", "--emit-adapter", "codex"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    for stream, code, message in ((">&-", 0, ""), (">/dev/full", 2, "No space left on device")):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {stream}', "-", *argv],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


def test_a_job_does_not_fail_because_another_unit_is_being_verified(room: Room) -> None:
    room.codex(write_answer())
    busy = 'REFUSED\n{"reason":"busy","holder":"pid 1: integrate"}\n'
    (room.scripts / "unit-workspace.py").write_text(
        "import os, sys\n"
        f"asked = {str(room.path / 'asked')!r}\n"
        "if os.path.exists(asked):\n    print('AUTHORIZED')\n    sys.exit(0)\n"
        "open(asked, 'w').close()\n"
        f"sys.stdout.write({busy!r})\nsys.exit(1)\n"
    )
    ran = room.run()
    assert ran.code == 0, ran.stderr
    assert room.result["terminal_status"] == "completed"


def test_a_busy_run_is_not_asked_for_longer_than_the_job_may_take(room: Room) -> None:
    room.codex(write_answer())
    room.controller_says('REFUSED\n{"reason":"busy"}\n', code=1)
    ran = room.run(CE_PEER_HARD_SECS="1")
    assert (ran.code, room.started) == (2, False)
    assert "controller dispatch authorization failed" in ran.stderr


def test_an_interpreter_that_is_gone_is_explained(tmp_path: Path) -> None:
    shown = emit("codex", CE_PEER_PYTHON="/nonexistent/python")
    assert shown.returncode == 1
    assert shown.stderr.startswith("[cross-model-work] no Python at '/nonexistent/python'")


def test_the_packages_of_an_interpreter_without_them_are_named(tmp_path: Path) -> None:
    copy = tmp_path / "scripts" / "cross-model-work.sh"
    copy.parent.mkdir()
    copy.write_text(SCRIPT.read_text())
    copy.chmod(0o755)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    shown = emit("codex", script=copy, cwd=tmp_path, CE_PEER_PYTHON=str(bare))
    assert shown.returncode == 1
    assert "lacks what this needs" in shown.stderr
    assert "Traceback" not in shown.stderr
