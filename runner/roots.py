"""Where jobs live, and finding one by its reference (protocol section 12)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner import private
from runner.errors import RunnerError, Untrusted, printable
from runner.limits import CE_WORK

JOBS = "jobs"
_TOKEN = re.compile(r"[A-Za-z0-9._-]+")


class Roots:
    """The job roots that an environment stands for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        configured = environ.get("CE_PEER_JOBS_ROOT")
        self._base = Path(os.path.abspath(configured)) if configured else None
        owner = f"compound-engineering-{os.geteuid()}"
        # Keyed by what they are: TMPDIR may be another name of /tmp, where each job would be found twice.
        tops = {_place(top): top for top in (Path(os.path.abspath(environ.get("TMPDIR") or "/tmp")), Path("/tmp"))}
        self._bases = [self._base] if self._base is not None else [top / owner for top in reversed(tops.values())]
        runs = environ.get("CE_WORK_RUNS_ROOT")
        self._ce_work = Path(os.path.abspath(runs)) if runs else None

    def create_jobs_dir(self, skill: str, run_id: str) -> Path:
        """The `jobs` directory of a run, made if missing: new components 0700, the base repaired to it.

        Raises `RunnerError` for a run id that begins with a dot: those names are the controller's own.
        """
        if run_id.startswith("."):
            raise RunnerError(
                f"invalid run id {run_id!r}",
                expected="one that does not begin with a dot: such folders are the controller's own",
                remedy="pass the run id that `unit-workspace init` was given",
            )
        if skill == CE_WORK and self._ce_work is not None:
            skill_dir = self._ce_work
            skill_dir.parent.mkdir(parents=True, exist_ok=True)
        else:
            base = self._base if self._base is not None else self._default_base()
            base.parent.mkdir(parents=True, exist_ok=True)
            _own(base, repair=True)
            skill_dir = base / skill
        path = skill_dir / run_id / JOBS
        for part in (skill_dir, path.parent, path):
            _own(part)
        return path

    def skill_dirs(self, skill: str) -> list[Path]:
        """The directories that can hold runs of `skill`."""
        if skill == CE_WORK and self._ce_work is not None:
            return [self._ce_work]
        return [base / skill for base in self._bases]

    def find(self, reference: str, skill: str | None) -> Path:
        """The job directory that `reference` names: a path if it holds a `/`, else a bare job id.

        A bare id is searched in every skill of the base, or with `skill` only there. Raises `RunnerError`
        (exit 1) when there is none or more than one.
        """
        if "/" in reference:
            path = Path(os.path.abspath(reference))
            if not path.is_dir():
                raise RunnerError(f"job not found under {path}", expected="an existing job directory")
            return path
        check_token("job id", reference)
        if skill is not None:
            roots = self.skill_dirs(skill)
            candidates = [run / JOBS / reference for root in roots for run in _subdirs(root)]
        else:
            roots = self._bases
            candidates = [
                run / JOBS / reference for root in roots for skill_dir in _subdirs(root) for run in _subdirs(skill_dir)
            ]
        found = [path for path in candidates if path.is_dir()]
        places = ", ".join(str(root) for root in roots)
        if not found:
            raise RunnerError(
                f"job not found under {places}",
                found=f"no job {reference}",
                remedy="pass --skill, or the path of the job directory",
            )
        if len(found) > 1:
            raise RunnerError(
                f"job {reference} is ambiguous under {places}",
                found=", ".join(map(str, found)),
                remedy="pass the path of the job directory",
            )
        return found[0]

    def all_jobs(self, skill: str | None, run_id: str | None) -> list[Path]:
        """Every job directory, of one skill or run if given, oldest id first."""
        if skill is not None:
            skill_dirs = self.skill_dirs(skill)
        else:
            skill_dirs = [path for base in self._bases for path in _subdirs(base)]
            if self._ce_work is not None:
                skill_dirs.append(self._ce_work)
        runs = [run for path in dict.fromkeys(skill_dirs) for run in _subdirs(path)]
        jobs = [job for run in runs if run_id in (None, run.name) for job in _subdirs(run / JOBS)]
        return sorted(jobs, key=lambda path: (path.name, str(path)))

    def _default_base(self) -> Path:
        for base in self._bases:
            if _usable(base):
                return base
        raise RunnerError(
            "no usable jobs root",
            expected=f"{' or '.join(map(str, self._bases))} owned by uid {os.geteuid()} and writable",
            remedy="set CE_PEER_JOBS_ROOT to a directory of your own",
        )


def check_token(what: str, value: str) -> None:
    """Raise `RunnerError` (exit 1) unless `value` may be one component of a path."""
    if not _TOKEN.fullmatch(value) or not value.strip("."):
        raise RunnerError(
            f"invalid {what} {printable(value)!r}",
            expected="letters, digits, '.', '_', '-' and not only dots",
        )


def _place(path: Path) -> tuple[int, int] | Path:
    """What a directory is under all its names."""
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino


def _usable(base: Path) -> bool:
    try:
        private.ensure_private_dir(base)
    except Untrusted:
        # A mode that can be repaired is repaired by `start`; anything else is somebody else's.
        try:
            status = os.lstat(base)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and os.access(base, os.W_OK)
    except OSError:
        return False
    return True


def _own(path: Path, *, repair: bool = False) -> None:
    try:
        private.ensure_private_dir(path)
    except Untrusted:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise
        if repair:
            os.chmod(path, private.DIR_MODE)


def _subdirs(path: Path) -> Iterator[Path]:
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return
    for name in names:
        yield path / name
