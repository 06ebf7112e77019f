"""A caller of `run_supervised` that tests can kill: `driver.py <folder> <lock file> <shell script> <grace>`.

It holds a lock, writes the identities of its supervisor and child to `<folder>/started`, and the outcome to
`<folder>/outcome`. With `DIE_BEFORE_EXEC` in the environment it kills itself before the child may execute.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

import msgspec

from runner.errors import Interrupted
from runner.foreground import run_supervised
from runner.private import write_atomic
from runner.process import ProcessIdentity


def main() -> int:
    folder, lock, script, grace = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(held, True)
    fcntl.flock(held, fcntl.LOCK_EX)

    def started(supervisor: ProcessIdentity, child: ProcessIdentity) -> None:
        if "DIE_BEFORE_EXEC" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        write_atomic(folder / "started", msgspec.json.encode([supervisor, child]))

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    try:
        outcome = run_supervised(
            ["sh", "-c", script],
            cwd=folder,
            env=os.environ,
            timeout=60,
            grace=grace,
            marker=("DRIVER_MARK", os.environ["RUNNER_TEST_MARK"]),
            on_stdout=lambda data: None,
            on_stderr=None,
            on_started=started,
        )
    except Interrupted as fault:
        write_atomic(folder / "outcome", f"interrupted {fault.signum}".encode())
        code = fault.exit_code
    else:
        write_atomic(folder / "outcome", msgspec.json.encode(outcome))
        code = 0
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    return code if before == after else 1


if __name__ == "__main__":
    sys.exit(main())
