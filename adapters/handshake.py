"""Check 5: the controller's consent. It crosses a process boundary on purpose (design.md section 2)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from adapters.errors import AdapterError
from adapters.inputs import Arguments
from adapters.route_table import Authorization
from runner.limits import CE_WORK, from_environment

REFUSED = "controller dispatch authorization failed"
SCRIPT = "unit-workspace.py"

_PAUSE_SECONDS = 0.5


def authorize_dispatch(
    arguments: Arguments, authorization: Authorization, raw: bytes, job: str, environ: Mapping[str, str]
) -> None:
    """Have the controller bind `job` to exactly this request; raise `AdapterError` when it does not.

    `raw` are the authorization's bytes as they were read and checked here. The controller's own words go to
    stderr. Another transition of the run, as the verification of another unit, may rightly keep it waiting: asked is
    again for as long as the answer is that, up to the runner's hard limit for this job.
    """
    argv = [
        *_controller(environ),
        "authorize-dispatch",
        *("--run-id", authorization.run_id),
        *("--unit-id", authorization.unit_id),
        *("--attempt-id", authorization.attempt_id),
        *("--job-id", job),
        *("--authorization", arguments.authorization),
        *("--authorization-digest", hashlib.sha256(raw).hexdigest()),
        *("--workspace", arguments.workspace),
        *("--packet", arguments.packet),
        *("--packet-digest", arguments.packet_digest),
        *("--result-dir", arguments.result_dir),
    ]
    deadline = time.monotonic() + from_environment(environ, CE_WORK).hard
    while True:
        try:
            answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=environ, check=False)
        except OSError as error:
            raise AdapterError(f"{REFUSED}: cannot start {argv[0]}: {error.strerror}") from None
        if not _busy(answer.stdout) or time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE_SECONDS)
    if answer.returncode == 0 and answer.stdout.split(b"\n", 1)[0] == b"AUTHORIZED":
        return
    sys.stderr.buffer.write(answer.stdout + answer.stderr)
    sys.stderr.buffer.flush()
    raise AdapterError(f"{REFUSED} (exit {answer.returncode}); nothing was sent")


def _busy(answer: bytes) -> bool:
    """Whether the controller only says that another command works on the run (its own wait is 60 s at most)."""
    word, _, body = answer.partition(b"\n")
    try:
        return word == b"REFUSED" and json.loads(body)["reason"] == "busy"
    except (ValueError, LookupError, TypeError):
        return False


def _controller(environ: Mapping[str, str]) -> list[str]:
    """How to start the controller: the script of a skill folder if there is one, else the installed package.

    `-P` and `-E` keep the current directory, which may be a hostile repository, and `PYTHONPATH` out of the module
    search path.
    """
    folder = environ.get("UNIT_WORKSPACE_SCRIPTS_DIR")
    if folder:
        script = Path(folder, SCRIPT)
        if not script.is_file():
            raise AdapterError(f"{REFUSED}: {script} is missing; it must lie beside cross-model-work.sh")
        return [sys.executable, "-E", "-P", str(script)]
    program = sys.argv[0]
    if os.sep in program:
        script = Path(os.path.realpath(program)).with_name(SCRIPT)
        if script.is_file():
            return [sys.executable, "-E", "-P", str(script)]
    # This package was found with the same variables, so the controller's may be needed from there, too.
    return [sys.executable, *(["-E"] if sys.flags.ignore_environment else []), "-P", "-m", "controller"]
