"""A host with one real agent CLI, a scripted model, and the real controller, runner and adapter between them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.route_table import ROUTES
from runner.process import ProcessIdentity, kill_all, marked
from tests.e2e.clis import Cli, cache_folder
from tests.e2e.model_server import ModelServer, Step
from tests.host import Host, Reply

PATIENCE = 240.0
"""Seconds after which a job that has not ended counts as stuck; on a busy machine opencode alone may need twenty."""

VERIFICATION = ("sh", "-c", "grep -q written new.txt")
PACKET = b"# Unit U1\n\nGoal: add new.txt that holds the word written.\n\nExpected files: new.txt\n"


@dataclass(frozen=True)
class Ended:
    """A job that has ended: the runner's word for it, the published receipt and the adapter's log."""

    job: str
    word: str
    receipt: dict[str, Any]
    log: str


class Stage(Host):
    """One repository, one CLI, one model. Use `staged`, which also takes it down."""

    def __init__(self, base: Path, home: Path, cli: Cli, model: ModelServer) -> None:
        super().__init__(base)
        self.cli = cli
        self.home = home
        self.model = model
        self.outside = base / "outside"
        tools, temporary = base / "bin", base / "tmp"
        for folder in (tools, temporary, self.outside):
            folder.mkdir()
        wrapper = tools / cli.route
        wrapper.write_text(cli.wrapper(str(cli.program(cache_folder())), model.url))
        wrapper.chmod(0o755)
        cli.configure(home, model.url)
        node = os.path.dirname(shutil.which("node") or "")
        path = dict.fromkeys([str(tools), *self.env["PATH"].split(os.pathsep), "/usr/bin", "/bin", node])
        del self.env["XDG_CONFIG_HOME"]
        self.env |= {
            "PATH": os.pathsep.join(entry for entry in path if entry),
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "CE_WORK_ACTIVITY_POLL_SECS": "1",
        }
        self.make_repo()
        self.route = ROUTES[cli.route]
        binding = {"mode": "require", "target": self.route.target, "model": cli.model, "source": "e2e"}
        egress = {"route": cli.route, "intermediaries": list(self.route.intermediaries), "restrictions": []}
        self.init(binding=binding, egress=egress).expect("READY")

    def begin(self, **limits: str) -> str:
        """Prepare unit U1 and start its job as `prepare` spells it; `limits` replace the runner's. The job id."""
        self.prepared = self.prepare(packet=PACKET).expect("PREPARED").body
        offered = next(argv for argv in self.prepared["next"] if "start" in argv)
        at = offered.index(next(word for word in offered if word.startswith("/")))
        given = dict(word.split("=", 1) for word in offered[1:at])
        job = self.tool(["env", *(f"{name}={value}" for name, value in {**given, **limits}.items()), *offered[at:]])
        self.step("record-job", "--attempt-id", self.prepared["attempt_id"], "--job-id", job).expect("AUTHORING")
        return job

    def finish(self, job: str) -> Ended:
        """Wait for the job and take note of its end."""
        deadline = time.monotonic() + PATIENCE
        word = "running"
        while word == "running":
            assert time.monotonic() < deadline, f"the job still runs after {PATIENCE:.0f} s:\n{self.log}"
            word = self.runner("wait", "--skill", "ce-work", "--max-secs", "60", job)
        assert self.step("sync-job").expect("SYNCED").body["process_state"] == word
        path = self.result_dir / "implementation-result.json"
        assert path.exists(), f"{word}, and no receipt:\n{self.log}\n{self.job_log(job)}"
        return Ended(job, word, json.loads(path.read_bytes()), self.log)

    def dispatch(self, **limits: str) -> Ended:
        """The whole way of one attempt, from `prepare` to the end of its job."""
        return self.finish(self.begin(**limits))

    @property
    def result_dir(self) -> Path:
        """Where the adapter publishes."""
        return Path(self.prepared["result_dir"])

    @property
    def log(self) -> str:
        """The adapter's log so far."""
        path = self.result_dir / "adapter.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def job_log(self, job: str) -> str:
        """What the adapter said to the runner."""
        return (self.run_dir() / "jobs" / job / "out.log").read_text(errors="replace")

    def step(self, command: str, *arguments: str) -> Reply:
        """A controller command about the unit."""
        return self.call(command, "--run-id", "r1", "--unit-id", "U1", *arguments)

    def runner(self, *words: str) -> str:
        """A runner command."""
        offered = next(argv for argv in self.prepared["next"] if "start" in argv)
        return self.tool([offered[offered.index("start") - 1], *words])

    def tool(self, argv: Sequence[str]) -> str:
        """Any program as the user runs it; its one line of output."""
        done = subprocess.run(
            argv, env=self.env, cwd=self.base, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=100
        )
        assert done.returncode == 0, (argv, done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "replace").strip()

    def processes_soon_gone(self) -> bool:
        """Whether nothing of this stage lives, given a moment: a supervisor publishes its record before it exits."""
        deadline = time.monotonic() + 5.0
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def processes(self) -> list[ProcessIdentity]:
        """Everything alive that was started with this stage's home."""
        return marked("HOME", str(self.home))


@contextmanager
def staged(base: Path, cli: Cli, script: Callable[[Stage], Sequence[Step]]) -> Iterator[Stage]:
    """A stage whose model plays `script`; afterwards nothing of it may be alive, and its home goes."""
    cache = cache_folder()
    with tempfile.TemporaryDirectory(prefix=".home-", dir=cache, ignore_cleanup_errors=True) as made:
        steps: list[Step] = []
        with ModelServer(lambda body: steps) as model:
            stage = Stage(base, Path(made), cli, model)
            steps += script(stage)
            try:
                yield stage
            finally:
                left = [] if stage.processes_soon_gone() else [_described(process) for process in stage.processes()]
                kill_all(stage.processes, 1.0)
            assert left == [], "processes were left behind"


def assert_measured(receipt: dict[str, Any], cli: Cli) -> None:
    """What every receipt holds, however the call ended: release, session, served model, what held the worker."""
    assert cli.version in receipt["cli_version"]
    assert re.fullmatch(cli.session, receipt["session_id"]), receipt["session_id"]
    served, status = cli.served
    assert re.fullmatch(served, receipt["model_actual"]), receipt["model_actual"]
    assert receipt["model_receipt_status"] == status
    assert receipt["confinement"] in cli.confined


def until(true: Callable[[], Any], what: str) -> None:
    """Poll until `true()`; fail after the deadline."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.05)


def _described(process: ProcessIdentity) -> str:
    try:
        words = Path("/proc", str(process.pid), "cmdline").read_bytes()
    except OSError:
        words = b"?"
    return f"{process.pid}: {words.replace(chr(0).encode(), b' ').decode('utf-8', 'replace')}"
