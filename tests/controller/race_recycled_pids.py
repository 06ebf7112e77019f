"""Inside a pid namespace of its own: pids of a dead verification come back as somebody else's processes.

`unshare --pid --fork --mount-proc python -m tests.controller.race_recycled_pids <empty folder>` prints `untouched`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.host import ROOT, Host

_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def _started(host: Host) -> dict[str, Any] | None:
    for line in (host.run_dir() / "journal.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        if record["kind"] == "canonical-verification-started":
            return dict(record["data"])
    return None


def _take_pid(pid: int) -> subprocess.Popen[bytes]:
    """A bystander with exactly this pid."""
    for _ in range(500):
        _LAST_PID.write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "600"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise SystemExit(f"pid {pid} does not come back")


def main(base: Path) -> None:
    """Kill a verification with everything that it has, give its pids to others, resume."""
    host = Host(base)
    host.make_repo()
    host.init().expect("READY")
    host.pending()
    integrate = ["integrate", "--run-id", "r1", "--unit-id", "U1", "--commit-message", "m", "--", "sleep", "600"]
    controller = subprocess.Popen(
        [sys.executable, "-P", "-m", "controller", *integrate],
        env={**host.env, "PYTHONPATH": str(ROOT)},
        cwd=base,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while (started := _started(host)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert started is not None
    pids = [started["supervisor"]["pid"], started["child"]["pid"]]
    for pid in (controller.pid, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    controller.wait()
    # We are process 1 here: what has lost its parent is ours to reap, or its pid stays taken.
    while any(Path("/proc", str(pid)).exists() for pid in pids) and time.monotonic() < deadline:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            time.sleep(0.01)
    time.sleep(0.05)  # the kernel tells starts apart by 10 ms, and no real machine recycles a pid within that
    bystanders = [_take_pid(pid) for pid in sorted(pids)]
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    kinds = [json.loads(line)["kind"] for line in (host.run_dir() / "journal.jsonl").read_bytes().splitlines()]
    assert "survivors-ended" in kinds, kinds
    assert host.unit()["state"] == "preserved"
    assert all(process.poll() is None for process in bystanders), "a bystander was signalled"
    for process in bystanders:
        process.kill()
        process.wait()
    print("untouched")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
