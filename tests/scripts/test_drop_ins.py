"""The drop-in entry points, started as hosts start them: any python3, any folder, hardly any environment."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from controller.install_scripts import install

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTHON_DROP_INS = ("unit-workspace.py", "peer-job-runner.py")
BARE = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    folder = tmp_path / "skill" / "scripts"
    folder.mkdir(parents=True)
    install(folder, interpreter=sys.executable)
    return folder


def run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env=env or BARE,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def hostile(folder: Path) -> Path:
    """A folder with modules of every name that the programs import; each leaves a trace on import."""
    folder.mkdir(exist_ok=True)
    trace = folder / "imported"
    code = f"open({str(trace)!r}, 'a').write(__name__)\n"
    for package in ("controller", "runner", "adapters", "click", "msgspec"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(code)
        (folder / package / "cli.py").write_text(code)
    for module in ("json", "argparse", "signal", "subprocess"):
        (folder / f"{module}.py").write_text(code)
    return trace


@pytest.mark.parametrize("name", PYTHON_DROP_INS)
@pytest.mark.parametrize("pythonpath", [None, "", ".", ":/nonexistent"])
def test_packages_in_the_current_directory_are_never_imported(
    skill: Path, tmp_path: Path, name: str, pythonpath: str | None
) -> None:
    trace = hostile(tmp_path / "repository")
    env = BARE if pythonpath is None else {**BARE, "PYTHONPATH": pythonpath}
    done = run(sys.executable, skill / name, "--help", cwd=tmp_path / "repository", env=env)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert not trace.exists(), trace.read_text()


@pytest.mark.parametrize("name", PYTHON_DROP_INS)
def test_packages_beside_the_scripts_are_never_imported(skill: Path, name: str) -> None:
    trace = hostile(skill)
    (skill / "json.py").unlink()  # what the first, unknown python3 itself loads from there is not ours to stop
    done = run(sys.executable, name, "--help", cwd=skill)
    assert done.returncode == 0, done.stderr
    assert not trace.exists(), trace.read_text()


@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="this machine has no python3 in /usr/bin")
@pytest.mark.parametrize("name", PYTHON_DROP_INS)
def test_the_systems_own_python_without_our_packages_can_start_them(skill: Path, tmp_path: Path, name: str) -> None:
    done = run("/usr/bin/python3", skill / name, "--help", cwd=tmp_path, env={})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PYTHON_DROP_INS)
def test_arguments_arrive_byte_for_byte(skill: Path, tmp_path: Path, name: str) -> None:
    """A refused argument is named in the refusal; a lossy hand-over would name another one or none."""
    done = subprocess.run(
        [sys.executable, skill / name, b"no-such-command-\xff \n"],
        cwd=tmp_path,
        env=BARE,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"no-such-command-" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", PYTHON_DROP_INS)
def test_an_interpreter_that_is_gone_is_named_with_the_remedy(skill: Path, tmp_path: Path, name: str) -> None:
    script = skill / name
    script.write_text(re.sub(r"^INTERPRETER = .*$", 'INTERPRETER = "/gone/python"', script.read_text(), flags=re.M))
    done = run(sys.executable, script, "status", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "/gone/python" in done.stderr
    assert "install-scripts" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", PYTHON_DROP_INS)
def test_a_python_without_our_packages_gives_one_line_not_a_traceback(tmp_path: Path, name: str) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    script = shutil.copy(SCRIPTS / name, tmp_path)
    done = run(tmp_path / "bare" / "bin" / "python", script, "status", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install unit-workspace" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", PYTHON_DROP_INS)
def test_an_old_python_is_told_which_version_is_needed(tmp_path: Path, name: str) -> None:
    """No old interpreter is at hand: a real one that says it is old, and the grammar of the oldest."""
    script = shutil.copy(SCRIPTS / name, tmp_path)
    ast.parse(Path(script).read_text(), feature_version=(3, 6))
    pretend = f"import runpy, sys; sys.version_info = (3, 8, 1); runpy.run_path({script!r}, run_name='__main__')"
    done = run(sys.executable, "-c", pretend, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "expected Python 3.11 or newer" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_two_python_scripts_stay_the_same_but_for_their_names() -> None:
    first, second = ((SCRIPTS / name).read_text() for name in PYTHON_DROP_INS)
    assert (
        first.replace("unit-workspace`", "peer-job-runner`", 1)
        .replace('NAME = "unit-workspace"', 'NAME = "peer-job-runner"')
        .replace("controller", "runner")
        == second
    )
