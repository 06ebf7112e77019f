"""`install-scripts`: what it may overwrite, what it leaves, and that the wheel carries what it writes."""

from __future__ import annotations

import stat
import sys
import tomllib
from pathlib import Path

import pytest

from controller.errors import Refused
from controller.install_scripts import MARKER, NAMES, install

ROOT = Path(__file__).parents[2]


def test_writes_three_executable_scripts_that_name_their_interpreter(tmp_path: Path) -> None:
    written = install(tmp_path, interpreter=sys.executable)
    assert sorted(path.name for path in written) == sorted(NAMES)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES), "no temporary file stays"
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
        assert sys.executable in path.read_text(), "else it cannot run with PATH=/usr/bin:/bin"


def test_a_second_install_replaces_its_own_scripts(tmp_path: Path) -> None:
    install(tmp_path, interpreter="/bin/sh")
    install(tmp_path, interpreter=sys.executable)
    assert "/bin/sh" not in (tmp_path / "unit-workspace.py").read_text()
    assert all(sys.executable in (tmp_path / name).read_text() for name in NAMES)


def test_the_scripts_of_somebody_else_are_not_overwritten_and_nothing_is_written(tmp_path: Path) -> None:
    theirs = tmp_path / "peer-job-runner.py"
    theirs.write_text("print('the skill came with this one')\n")
    with pytest.raises(Refused) as refused:
        install(tmp_path, interpreter=sys.executable)
    assert str(theirs) in refused.value.message
    assert refused.value.remedy is not None
    assert [path.name for path in tmp_path.iterdir()] == ["peer-job-runner.py"]
    assert theirs.read_text() == "print('the skill came with this one')\n"


def test_force_replaces_them_all(tmp_path: Path) -> None:
    (tmp_path / "peer-job-runner.py").write_text("theirs\n")
    install(tmp_path, interpreter=sys.executable, force=True)
    assert MARKER in (tmp_path / "peer-job-runner.py").read_bytes()


def test_force_replaces_a_link_and_leaves_the_file_it_points_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text("precious\n")
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "unit-workspace.py").symlink_to(elsewhere)
    with pytest.raises(Refused):
        install(folder, interpreter=sys.executable)
    install(folder, interpreter=sys.executable, force=True)
    assert elsewhere.read_text() == "precious\n"
    assert not (folder / "unit-workspace.py").is_symlink()


@pytest.mark.parametrize("interpreter", ["python3", "/nonexistent/python"])
def test_an_interpreter_that_cannot_run_is_refused_before_it_breaks_the_skill(tmp_path: Path, interpreter: str) -> None:
    with pytest.raises(Refused, match="interpreter"):
        install(tmp_path, interpreter=interpreter)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        install(tmp_path / "no such", interpreter=sys.executable)
    assert refused.value.remedy == f"create it first: mkdir -p '{tmp_path}/no such'"


def test_the_sources_of_a_checkout_are_not_made_into_installed_copies() -> None:
    with pytest.raises(Refused, match="sources"):
        install(ROOT / "scripts", interpreter=sys.executable)


def test_a_wheel_carries_the_scripts() -> None:
    """Building one needs the network for the build backend; reading what it is told to include does not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"scripts/{name}": f"controller/_dropins/{name}" for name in NAMES}
    assert all((ROOT / source).is_file() for source in included)
