"""`start`: claim a job directory, check the worker, write down what is asked for, and detach a supervisor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runner import limits, private
from runner.errors import Preflight, RunnerError
from runner.job import JOB_ID_VARIABLE, LOG, Meta, write_meta
from runner.roots import Roots, check_token
from runner.supervise import detach
from runner.sweep import sweep

PYTHON_VARIABLE = "CE_PEER_PYTHON"

_CLAIMS = 16


class Request(msgspec.Struct, frozen=True):
    """What `start` is asked for; `argv` is the worker's, not empty."""

    skill: str
    run_id: str
    argv: Sequence[str]
    label: str | None = None
    input_digest: str | None = None
    result_path: str | None = None
    sweep: bool = True


def start(request: Request, environ: Mapping[str, str]) -> str:
    """Start a detached job and return its id; its `pid` file exists then.

    Raises `RunnerError` for a bad token, an unusable result path or a failed detach, `Untrusted` for a root
    that is somebody else's, and `Preflight` for a worker that cannot be executed (its job directory then reads
    `never-started`).
    """
    check_token("skill", request.skill)
    check_token("run id", request.run_id)
    if request.label is not None:
        check_token("label", request.label)
    result_path = _result_path(request.result_path)
    roots = Roots(environ)
    jobs = roots.create_jobs_dir(request.skill, request.run_id)
    if request.sweep:
        sweep(jobs.parent.parent, request.skill, request.run_id)
    job_dir = _claim(roots, request)
    program, problem = _resolve(request.argv[0], environ)
    meta = Meta(
        job_id=job_dir.name,
        skill=request.skill,
        run_id=request.run_id,
        label=request.label,
        input_digest=request.input_digest,
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        worker_argv=[program, *request.argv[1:]],
        result_path=result_path,
        sweep_enabled=request.sweep,
        supervision=limits.from_environment(environ, request.skill),
    )
    write_meta(job_dir, meta)
    if problem is not None:
        raise problem
    private.create_exclusive(job_dir / LOG, b"")
    detach(job_dir, meta, {**environ, JOB_ID_VARIABLE: job_dir.name, PYTHON_VARIABLE: sys.executable})
    return job_dir.name


def _result_path(path: str | None) -> str | None:
    """The absolute path; `RunnerError` where no file can ever be seen."""
    if not path:
        return None
    absolute = os.path.abspath(path)
    try:
        os.lstat(absolute)
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise RunnerError(
            f"unusable result path {absolute}",
            expected="a path at which a file can be",
            found=fault.strerror or "an error",
            remedy="nothing was started; pass another --result-path",
        ) from fault
    return absolute


def _claim(roots: Roots, request: Request) -> Path:
    for _ in range(_CLAIMS):
        # Made again each time: a sweep of another `start` may just have removed the empty directory.
        jobs = roots.create_jobs_dir(request.skill, request.run_id)
        job_dir = jobs / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(4).hex()}"
        try:
            os.mkdir(job_dir, private.DIR_MODE)
        except (FileExistsError, FileNotFoundError):
            continue
        os.chmod(job_dir, private.DIR_MODE)
        private.fsync_dir(jobs)
        return job_dir
    raise RunnerError(f"cannot claim a job directory for run {request.run_id}", remedy="try again")


def _resolve(program: str, environ: Mapping[str, str]) -> tuple[str, Preflight | None]:
    """The absolute path of the worker program, and why it cannot be executed."""
    if "/" in program:
        path = os.path.abspath(program)
        if _executable(path):
            return path, None
        found = "no such file" if not os.path.lexists(path) else "something that cannot be executed"
        return path, Preflight(
            f"preflight: cannot execute worker {path}",
            expected="a regular executable file",
            found=found,
            remedy="nothing was started; correct the worker command",
        )
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.abspath(os.path.join(directory, program))
        if program and _executable(path):
            return path, None
    return program, Preflight(
        f"preflight: worker {program!r} not found on PATH",
        expected="an executable file in one of its directories",
        found=f"PATH={environ.get('PATH', os.defpath)}",
        remedy="nothing was started; pass the worker's path or extend PATH",
    )


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
