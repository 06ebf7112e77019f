"""Where the three programs are: beside the drop-in entry point, else the installed commands (section 18 row 28)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SCRIPTS_VARIABLE = "UNIT_WORKSPACE_SCRIPTS_DIR"


def scripts() -> Path | None:
    """The folder of the drop-in entry point that this process was started through, or None."""
    value = os.environ.get(SCRIPTS_VARIABLE)
    return Path(os.path.realpath(value)) if value else None


def _installed(name: str) -> str:
    return os.path.abspath(Path(sys.executable).parent / name)


def adapter() -> str:
    """The one legal worker executable, absolute."""
    folder = scripts()
    if folder is not None:
        return os.path.realpath(folder / "cross-model-work.sh")
    return _installed("cross-model-work")


def runner() -> list[str]:
    """The runner's command."""
    folder = scripts()
    return (
        [sys.executable, str(folder / "peer-job-runner.py")] if folder is not None else [_installed("peer-job-runner")]
    )


def controller() -> list[str]:
    """The controller's command."""
    folder = scripts()
    return [sys.executable, str(folder / "unit-workspace.py")] if folder is not None else [_installed("unit-workspace")]
