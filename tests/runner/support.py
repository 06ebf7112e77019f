"""What the runner tests share: the program from outside, its jobs, and processes found by a mark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.process import ProcessIdentity, identify, kill_all, marked

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
PATIENCE = 20.0

# Runs for as long as a test may need it and leaves at once when told to.
SLEEP = "exec sleep 60"
# Cannot be told to leave: only SIGKILL ends it.
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"


def until(true: Callable[[], Any], what: str) -> Any:
    """Poll until `true()` is truthy and return that; fail after the deadline."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = true()
        if value:
            return value
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.01)


@contextmanager
def running(argv: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of a block, killed at its end however that comes."""
    with subprocess.Popen(argv, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def gone(identity: ProcessIdentity) -> bool:
    """Whether this process has ended."""
    return identify(identity.pid) != identity


class Cli:
    """`peer-job-runner` as a host calls it, with a jobs root of its own and a mark on all it starts."""

    def __init__(self, root: Path, mark: str) -> None:
        self.root = root
        self.mark = mark
        ours = ("CE_", "CROSS_", "PYTHONUNBUFFERED")
        self.env = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
        self.env |= {
            "CE_PEER_JOBS_ROOT": str(root),
            "CE_PEER_GRACE_SECS": "0.5",
            "PYTHONPATH": PYTHONPATH,
            "RUNNER_TEST_MARK": mark,
        }

    def call(self, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "runner.cli", *words],
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def text(self, *words: str, **env: str) -> str:
        """The stdout of a command that must succeed."""
        done = self.call(*words, **env)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *words: str, skill: str = "peer", options: Sequence[str] = (), **env: str) -> Job:
        """Start a job; `words` is the worker's command."""
        job_id = self.text("start", "--skill", skill, "--run-id", "r1", *options, "--", *words, **env).strip()
        return Job(self, self.root / skill / "r1" / "jobs" / job_id)

    def shell(self, script: str, skill: str = "peer", options: Sequence[str] = (), **env: str) -> Job:
        """Start a job whose worker is a shell script."""
        return self.start("sh", "-c", script, skill=skill, options=options, **env)

    def live(self) -> list[ProcessIdentity]:
        """Every live process of this test."""
        return marked("RUNNER_TEST_MARK", self.mark)


class Job:
    """One started job, looked at from outside."""

    def __init__(self, cli: Cli, path: Path) -> None:
        self.cli = cli
        self.path = path
        self.id = path.name

    @property
    def word(self) -> str:
        """The state word."""
        return self.cli.text("status", self.id).strip()

    def wait(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The job's report once it has ended."""
        (report,) = json.loads(self.cli.text("wait", "--json", "--max-secs", str(seconds), self.id))
        assert isinstance(report, dict)
        return report

    def report(self) -> dict[str, Any]:
        """The job's report now."""
        (report,) = json.loads(self.cli.text("status", "--json", self.id))
        assert isinstance(report, dict)
        return report

    def processes(self) -> tuple[ProcessIdentity, ProcessIdentity]:
        """The recorded supervisor and worker, alive now."""
        pids = json.loads((self.path / "pid").read_bytes())
        supervisor, worker = identify(pids["supervisor_pid"]), identify(pids["worker_pid"])
        assert supervisor is not None
        assert worker is not None
        return supervisor, worker

    def kill_supervisor(self) -> ProcessIdentity:
        """SIGKILL the supervisor; the worker that it leaves behind."""
        supervisor, worker = self.processes()
        os.kill(supervisor.pid, signal.SIGKILL)
        until(lambda: gone(supervisor), "supervisor gone")
        return worker


def end_marked(mark: str) -> list[ProcessIdentity]:
    """End every process that still carries the test's mark; those that should not have been there."""
    deadline = time.monotonic() + 2
    while marked("RUNNER_TEST_MARK", mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    return kill_all(lambda: marked("RUNNER_TEST_MARK", mark), 0)


def write_job(path: Path, *, status: str | None = None, mode: int = 0o644, **records: Any) -> Path:
    """A job directory as other programs write it: JSON for `meta` and `pid`, text for the rest."""
    path.mkdir(parents=True)
    path.chmod(0o700)
    names = {"meta": "meta.json", "log": "out.log"}
    for name, value in {**records, **({} if status is None else {"status": status + "\n"})}.items():
        file = path / names.get(name, name)
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        file.chmod(mode)
    return path
