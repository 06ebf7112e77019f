"""What the hazard and hostile tests share: traps, controllers that are killed, real jobs, and what the journal says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.process import ProcessIdentity, identify, kill_all, marked
from tests.host import ROOT, Host, Reply

MARK = "HAZARD_TEST_MARK"
PATIENCE = 30.0
HOOKS = (
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-rewrite",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
)


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
def case(name: str) -> Iterator[None]:
    """One of several cases of a test: its name stands before what failed."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"[{name}] {error}") from error


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return path


class Trap:
    """A program that leaves a trace when anybody runs it, passes its input on, then exits with `code`."""

    def __init__(self, folder: Path, *, code: int = 0, then: str = "cat") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.trace = folder / "trace"
        # What it runs may be git, which would fall into it again.
        body = f'[ "$TRAPPED" ] && exit {code}\nexport TRAPPED=1\n{then}\nexit {code}'
        self.program = script(folder / "trap", f'echo "$0 $*" >> {self.trace}\n{body}')

    def hooks(self, folder: Path) -> Path:
        """Every hook that Git knows, in `folder`, is this trap."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in HOOKS:
            shutil.copy(self.program, folder / name)
        return folder

    @property
    def sprung(self) -> list[str]:
        """Who ran it, a line each."""
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def reset(self) -> None:
        """Forget the trace."""
        self.trace.unlink(missing_ok=True)


def command(*words: str) -> list[str]:
    """The argument list of one controller command."""
    return [sys.executable, "-P", "-m", "controller", *words]


def start(host: Host, *words: str) -> subprocess.Popen[bytes]:
    """One controller command, left running."""
    return subprocess.Popen(
        command(*words),
        cwd=host.base,
        env={**host.env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> Reply:
    """The answer of a command that was left running."""
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert isinstance(process.args, list)
    return Reply(subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr))


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL, and gone."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def start_integrate(host: Host, *argv: str, unit: str = "U1", run: str = "r1") -> subprocess.Popen[bytes]:
    """`integrate` with this verification, left running."""
    words = ("--run-id", run, "--unit-id", unit, "--commit-message", "feat: unit", "--", *argv)
    return start(host, "integrate", *words)


def records(host: Host, kind: str = "", run: str = "r1") -> list[dict[str, Any]]:
    """The journal's records, or those of one kind, as a reader in another language sees them."""
    lines = (host.run_dir(run) / "journal.jsonl").read_bytes().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if not kind or record["kind"] == kind]


def resume(host: Host, run: str = "r1") -> Reply:
    """`resume` by run id."""
    return host.call("resume", "--run-id", run)


def terminalize(host: Host, unit: str = "U1", run: str = "r1") -> Reply:
    """`terminalize`."""
    return host.call("terminalize", "--run-id", run, "--unit-id", unit)


def abandon(host: Host, unit: str = "U1", run: str = "r1") -> Reply:
    """`cleanup --abandon`, with the exact proof that the manifest names."""
    found = host.unit(unit, run)
    transport, job = found["transport"]["commit"], found["attempts"][-1]["job_id"]
    proof = ["--expect-transport", transport] if transport else ["--expect-job", job] if job else []
    return host.call("cleanup", "--run-id", run, "--unit-id", unit, "--abandon", *proof)


def recovered(reply: Reply) -> dict[str, bytes]:
    """What a response says was copied first: path in the checkout to the bytes that were kept."""
    kept = {}
    for item in reply.body.get("recovered", []):
        copy = Path(item["copy"])
        kept[item["path"]] = os.fsencode(os.readlink(copy)) if copy.is_symlink() else copy.read_bytes()
    return kept


def worktrees(host: Host) -> list[str]:
    """The registered worktrees but the first."""
    out = host.git("worktree", "list", "--porcelain")
    return [line.removeprefix("worktree ") for line in out.splitlines() if line.startswith("worktree ")][1:]


def ids(host: Host, *refs: str) -> dict[str, str]:
    """Ref to object id."""
    out = host.git("for-each-ref", "--format=%(refname) %(objectname)", *refs)
    return dict(line.split(" ", 1) for line in out.splitlines())


@contextmanager
def watched(host: Host, mark: str) -> Iterator[Host]:
    """Everything that this host starts carries a mark; afterwards nothing with it may be alive."""
    host.env[MARK] = mark
    try:
        yield host
        left = [pid for pid in marked(MARK, mark) if identify(pid.pid) == pid]
        assert not left, f"left running: {[Path(f'/proc/{i.pid}/cmdline').read_bytes() for i in left]}"
    finally:
        kill_all(lambda: marked(MARK, mark), 0)


def alive(host: Host) -> list[ProcessIdentity]:
    """Every live process that this host started."""
    return marked(MARK, host.env[MARK])


ANSWER = {
    "terminal_status": "completed",
    "summary": "done",
    "changed_files": ["new.txt"],
    "evidence": ["looked"],
    "scope_expansion": None,
}


class Agents:
    """Real jobs: the runner starts the adapter, which runs a shell script as the user's own command `demo`."""

    binding = {"mode": "require", "target": "command", "model": "demo", "source": "test"}  # noqa: RUF012
    egress = {"route": "command", "intermediaries": []}  # noqa: RUF012

    def __init__(self, host: Host) -> None:
        self.host = host
        host.init(binding=self.binding, egress=self.egress).expect("READY")

    def agent(self, text: str) -> None:
        """What the agent does; `$answer` is a result that the adapter accepts."""
        path = script(self.host.base / "agent", f"answer='{json.dumps(ANSWER)}'\n{text}")
        config = self.host.base / "xdg" / "unit-workspace"
        config.mkdir(parents=True, exist_ok=True)
        (config / "config.toml").write_text(f'[commands.demo]\nargv = ["{path}"]\n')
        (config / "config.toml").chmod(0o600)

    def runner(self, *words: str, **env: str) -> str:
        """One runner command; what it printed."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "runner.cli", *words],
            env={**self.host.env, "PYTHONPATH": str(ROOT), "CE_PEER_GRACE_SECS": "0.5", **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def dispatch(self, unit: str = "U1", **env: str) -> str:
        """Prepare a unit and start its job; the job id."""
        prepared = self.host.prepare(unit).expect("PREPARED").body
        result = prepared["result_dir"]
        names = ("--skill", "ce-work", "--run-id", "r1", "--label", unit, "--input-digest", prepared["packet_digest"])
        paths = [prepared[name] for name in ("adapter", "authorization_path", "workspace", "packet_path")]
        where = ("--result-path", f"{result}/implementation-result.json")
        return self.runner(
            "start", "--no-sweep", *names, *where, "--", *paths, prepared["packet_digest"], result, **env
        )

    def wait(self, job: str) -> str:
        """Wait for the job's end; its word."""
        return self.runner("wait", "--skill", "ce-work", "--max-secs", str(int(PATIENCE)), job)

    def run(self, text: str, unit: str = "U1", **env: str) -> str:
        """Dispatch a unit to this agent and wait; the job's word, as the controller has it too."""
        self.agent(text)
        word = self.wait(self.dispatch(unit, **env))
        reply = self.host.call("sync-job", "--run-id", "r1", "--unit-id", unit).expect("SYNCED")
        assert reply.body["process_state"] == word
        return word
