"""Removing old finished jobs (section 18 row 19).

Only job directories that carry a terminal word and are older than a day, only in runs without any unfinished
job, and never those of `ce-work`, whose evidence belongs to its controller.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

from runner.job import STATUS, read_state
from runner.limits import CE_WORK
from runner.roots import JOBS
from runner.verdict import TERMINAL

AGE_SECONDS = 24 * 60 * 60


def sweep(skill_dir: Path, skill: str, current_run: str) -> list[Path]:
    """Remove the old finished jobs of other runs of `skill`; returns them. What cannot be removed stays."""
    if skill == CE_WORK:
        return []
    removed: list[Path] = []
    for run in _real_dirs(skill_dir):
        if run.name == current_run:
            continue
        jobs = _real_dirs(run / JOBS)
        if jobs and all(_finished_long_ago(job) for job in jobs):
            for job in jobs:
                shutil.rmtree(job, ignore_errors=True)
            removed += jobs
            _remove_if_empty(run / JOBS)
            _remove_if_empty(run)
    return removed


def _finished_long_ago(job: Path) -> bool:
    if read_state(job) not in TERMINAL:
        return False
    try:
        return time.time() - os.lstat(job / STATUS).st_mtime > AGE_SECONDS
    except OSError:
        return False


def _real_dirs(path: Path) -> list[Path]:
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return []
        with os.scandir(path) as entries:
            found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
            return [Path(entry.path) for entry in found if entry.stat().st_uid == os.geteuid()]
    except OSError:
        return []


def _remove_if_empty(path: Path) -> None:
    try:
        os.rmdir(path)
    except OSError:
        # Something else lives there.
        pass
