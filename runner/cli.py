"""The program `peer-job-runner`: parses, calls, prints. Messages go to stderr as `peer-job-runner: ...`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from runner.job import JobView
    from runner.roots import Roots

PROGRAM = "peer-job-runner"

# As a shell reports SIGINT and SIGPIPE.
_INTERRUPTED = 130
_READER_GONE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Never raises, never shows a traceback."""
    from runner.errors import RunnerError, printable
    from runner.start_up import complain, forget_stdout, start_up

    start_up()
    words = list(sys.argv[1:] if argv is None else argv)
    # The first `--` ends our own arguments, wherever it stands.
    worker = None
    if "--" in words:
        cut = words.index("--")
        words, worker = words[:cut], words[cut + 1 :]
    if not sys.platform.startswith("linux"):
        return _complain(f"needs Linux, found {sys.platform}; on Windows run it inside WSL", 1)
    try:
        outcome = cli.main(args=words, prog_name=PROGRAM, standalone_mode=False, obj=worker)
        return outcome if isinstance(outcome, int) else 0
    except click.UsageError as fault:
        if fault.ctx is not None:
            complain(fault.ctx.get_usage())
        return _complain(printable(fault.format_message()), 2)
    except RunnerError as fault:
        return _complain(str(fault), fault.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted", _INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # Click turns the first into the second.
        forget_stdout()
        return _READER_GONE
    except OSError as fault:
        forget_stdout()
        where = f" {fault.filename!r}" if fault.filename is not None else ""
        return _complain(printable(f"{fault.strerror or fault}{where}"), 1)
    except Exception as fault:
        return _complain(printable(f"internal error, please report it: {type(fault).__name__}: {fault}"), 1)


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Starts, supervises, waits for and ends detached jobs; nothing of a job outlives it."""


def _finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    del ctx
    if not math.isfinite(value):
        raise click.BadParameter("not a finite number of seconds", param=param)
    return value


_skill = click.option("--skill", metavar="S", help="Look only under this skill.")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON array instead of words.")


@cli.command()
@click.option("--skill", required=True, metavar="S")
@click.option("--run-id", required=True, metavar="R")
@click.option("--label", metavar="L")
@click.option("--input-digest", metavar="D")
@click.option("--result-path", metavar="P", help="File that the worker must leave, not empty.")
@click.option("--no-sweep", is_flag=True, help="Do not remove finished jobs older than a day.")
@click.pass_obj
def start(worker: list[str] | None, /, no_sweep: bool, **asked: Any) -> None:
    """Start a detached job; prints its id. The worker's command follows `--`."""
    import os

    from runner.errors import RunnerError
    from runner.start import Request
    from runner.start import start as start_job

    job = start_job(Request(argv=_worker(worker), sweep=not no_sweep, **asked), os.environ)
    try:
        _line(job)
    except OSError as fault:
        raise RunnerError(
            f"job {job} was started",
            expected="a standard output that takes its id",
            found=fault.strerror or "none",
            remedy="do not start it again: wait for it by this id, or reap it",
        ) from fault


@cli.command()
@_skill
@_json
@click.argument("job", nargs=-1, required=True)
@click.pass_obj
def status(worker: list[str] | None, job: tuple[str, ...], skill: str | None, as_json: bool) -> None:
    """Print the state word of each job."""
    _no_worker(worker)
    _print_states(job, _find(job, skill), as_json)


@cli.command()
@_skill
@click.option("--max-secs", type=click.FloatRange(min=0), callback=_finite, default=30, metavar="N")
@_json
@click.argument("job", nargs=-1, required=True)
@click.pass_obj
def wait(worker: list[str] | None, job: tuple[str, ...], skill: str | None, max_secs: float, as_json: bool) -> None:
    """Wait until no job is running, at most --max-secs; then as `status`."""
    from runner.wait import wait as wait_for

    _no_worker(worker)
    found = _find(job, skill)
    wait_for(found, max_secs)
    _print_states(job, found, as_json)


@cli.command()
@_skill
@click.option("--path", "file", metavar="FILE", help="Read this file instead of a job's result.")
@click.argument("job", required=False)
@click.pass_obj
def result(worker: list[str] | None, job: str | None, skill: str | None, file: str | None) -> None:
    """Write the declared result of a done job, byte for byte, to stdout."""
    import os

    from runner import limits
    from runner import result as results
    from runner.errors import Usage

    _no_worker(worker)
    limit = limits.result_max(os.environ)
    if file is not None:
        data = results.of_path(file, limit)
    elif job is not None:
        data = results.of_job(_find((job,), skill)[0], limit)
    else:
        raise Usage("result needs a job id or --path")
    _emit(data)


@cli.command()
@_skill
@click.option("--gone", is_flag=True, help="Where its processes cannot be seen: they are no more, for sure.")
@click.argument("job")
@click.pass_obj
def reap(worker: list[str] | None, job: str, skill: str | None, gone: bool) -> None:
    """End a running job and everything of it; does nothing to one that has ended."""
    from runner.reap import reap as reap_job

    _no_worker(worker)
    reap_job(_find((job,), skill)[0], gone=gone)


@cli.command()
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), callback=_finite, required=True)
@click.option("--grace", type=click.FloatRange(min=0), callback=_finite, default=3, show_default=True)
@click.option("--cwd", metavar="D", help="Directory to run in.")
@click.option("--stdout", metavar="F", help="File for its output, instead of ours.")
@click.option("--stderr", metavar="F", help="File for its messages, instead of ours.")
@click.option("--max-output-bytes", type=click.IntRange(min=0), help="Cap of each of the two files.")
@click.pass_obj
def run(
    worker: list[str] | None,
    timeout: float,
    grace: float,
    cwd: str | None,
    stdout: str | None,
    stderr: str | None,
    max_output_bytes: int | None,
) -> int:
    """Run the command after `--` in the foreground; end all of it after --timeout seconds (exit 124)."""
    import os
    from pathlib import Path

    from runner import run_command

    request = run_command.Request(
        argv=_worker(worker),
        timeout=timeout,
        grace=grace,
        cwd=None if cwd is None else Path(cwd),
        stdout=None if stdout is None else Path(stdout),
        stderr=None if stderr is None else Path(stderr),
        max_output=max_output_bytes,
    )
    outcome = run_command.run(request, os.environ)
    if outcome.timed_out:
        _complain(f"timeout: ended after {timeout:g} seconds", run_command.TIMED_OUT)
    elif outcome.launch_error is not None:
        _complain(outcome.launch_error, 0)
    elif outcome.stopped is not None:
        _complain(outcome.stopped, 0)
    return run_command.exit_code(outcome)


@cli.command()
@click.option("--skill", metavar="S", help="Only jobs of this skill.")
@click.option("--run-id", metavar="R", help="Only jobs of this run.")
@_json
@click.pass_obj
def jobs(worker: list[str] | None, skill: str | None, run_id: str | None, as_json: bool) -> None:
    """List jobs, oldest first: id, skill, run, label, state and reason, separated by tabs."""
    from runner.job import read_job
    from runner.roots import check_token

    _no_worker(worker)
    for what, value in (("skill", skill), ("run id", run_id)):
        if value is not None:
            check_token(what, value)
    found = _roots().all_jobs(skill, run_id)
    views = [read_job(job_dir) for job_dir in found]
    if as_json:
        _print_json([_report(job_dir.name, view) for job_dir, view in zip(found, views, strict=True)])
        return
    for job_dir, view in zip(found, views, strict=True):
        run_dir = job_dir.parent.parent
        named = (view.meta.skill, view.meta.run_id, view.meta.label) if view.meta is not None else ()
        skill_name, run_name, label = named or (run_dir.parent.name, run_dir.name, None)
        _line("\t".join([job_dir.name, skill_name, run_name, label or "-", view.state, view.reason or "-"]))


@cli.command()
@_skill
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.argument("job")
@click.pass_obj
def log(worker: list[str] | None, job: str, skill: str | None, tail: int | None) -> None:
    """Write what the worker has printed so far to stdout."""
    from runner.errors import NoResult
    from runner.job import LOG
    from runner.private import read_owned

    _no_worker(worker)
    job_dir = _find((job,), skill)[0]
    try:
        data = read_owned(job_dir / LOG, None)
    except FileNotFoundError:
        raise NoResult(f"job has no log: {job_dir}") from None
    if tail is not None:
        data = b"".join(data.splitlines(keepends=True)[-tail:] if tail else [])
    _emit(data)


def _worker(worker: list[str] | None) -> list[str]:
    from runner.errors import Usage

    if not worker:
        raise Usage("a worker command is required", expected="-- command [argument ...]", found="nothing")
    return worker


def _no_worker(worker: list[str] | None) -> None:
    from runner.errors import Usage

    if worker is not None:
        raise Usage("this command takes no worker command", found="an argument --", remedy="leave it out")


def _roots() -> Roots:
    import os

    from runner.roots import Roots

    return Roots(os.environ)


def _find(references: Sequence[str], skill: str | None) -> list[Path]:
    from runner.roots import check_token

    if skill is not None:
        check_token("skill", skill)
    roots = _roots()
    return [roots.find(reference, skill) for reference in references]


def _print_states(references: Sequence[str], job_dirs: Sequence[Path], as_json: bool) -> None:
    from runner.job import read_job, read_state

    if as_json:
        pairs = zip(references, job_dirs, strict=True)
        _print_json([_report(reference, read_job(job_dir)) for reference, job_dir in pairs])
        return
    states = [read_state(job_dir) for job_dir in job_dirs]
    for reference, state in zip(references, states, strict=True):
        _line(state if len(states) == 1 else f"{reference}\t{state}")


def _report(reference: str, view: JobView) -> dict[str, Any]:
    import time

    now = time.time()
    return {
        "ref": reference,
        "job_dir": view.job_dir,
        "state": view.state.value,
        "contact": view.contact,
        "reason": view.reason,
        "elapsed_seconds": _rounded(view.elapsed_seconds(now)),
        "idle_seconds_left": _rounded(view.idle_seconds_left(now)),
        "hard_seconds_left": _rounded(view.hard_seconds_left(now)),
        "last_activity": _rounded(view.last_activity),
        "log_bytes": view.log_bytes,
        "survivors": len(view.survivors),
        "problem": view.problem,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _print_json(value: Any) -> None:
    import json

    _line(json.dumps(value, sort_keys=True, separators=(",", ":")))


def _line(text: str) -> None:
    # Names are bytes to the system: what came in with a byte that is no UTF-8 goes out the same.
    _emit(text.encode("utf-8", "surrogateescape") + b"\n")


def _emit(data: bytes) -> None:
    from runner.private import write_all

    # Past the interpreter's buffer, which would hide until exit that nobody could take the bytes.
    write_all(1, data)


def _complain(message: str, code: int) -> int:
    from runner.start_up import complain

    complain(f"{PROGRAM}: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
