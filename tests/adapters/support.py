"""A place with everything that one call of the adapter needs: real files, a real CLI script, a stub controller.

The controller is reached as a subprocess, so a script of its name may stand for it here. The program under test is
the drop-in entry point, started as the runner would start it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.route_table import ROUTES, Authorization
from runner.process import ProcessIdentity, marked, signal_identity

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 20.0

STUB_CONTROLLER = """\
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "handshake.json"), "w") as file:
    json.dump(sys.argv[1:], file)
with open(os.path.join(here, "answer.json")) as file:
    answer = json.load(file)
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.exit(answer["exit"])
"""

ANSWER: dict[str, Any] = {
    "terminal_status": "completed",
    "summary": "done",
    "changed_files": ["a.txt"],
    "evidence": ["ran the tests: 3 passed"],
    "scope_expansion": None,
}

CODEX = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "codex-cli 9.9.9"; exit 0; fi
if [ "$*" = "exec --help" ]; then
    echo "-c --config, -s --sandbox, -C --cd, --json, -o, -m, --skip-git-repo-check, --ephemeral"
    echo "--ignore-user-config --ignore-rules"
    exit 0
fi
echo started >> {room}/started
printf '%s\\n' "$@" > {room}/argv
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then out=$2; fi
    shift
done
pwd > {room}/cwd
cat > {room}/stdin
env > {room}/env
{body}
"""

# It is confined, so that it can leave its mark only where it works.
COMMAND = """\
#!/bin/sh
echo started >> started
{body}
"""


class Room:
    """One prepared attempt in `path`. Change its files before `run` to make them wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job = f"job-{uuid.uuid4().hex}"
        self.scripts = path / "scripts"
        self.bin = path / "bin"
        self.home = path / "home"
        self.tmp = path / "tmp"
        self.unit = path / "unit"
        for folder in (self.scripts, self.bin, self.home, self.tmp, self.unit):
            folder.mkdir()
        self.workspace = self.unit / "workspace"
        self.result_dir = self.unit / "result"
        self.packet = self.unit / "packet.md"
        self.authorization = self.unit / "authorization.json"
        subprocess.run(["git", "init", "-q", str(self.workspace)], check=True)
        self.result_dir.mkdir(mode=0o700)
        self.entry = self.scripts / "cross-model-work.sh"
        source = (REPOSITORY / "scripts" / "cross-model-work.sh").read_text()
        self.entry.write_text(source.replace('INTERPRETER=""', f"INTERPRETER={shlex.quote(sys.executable)}"))
        self.entry.chmod(0o755)
        (self.scripts / "unit-workspace.py").write_text(STUB_CONTROLLER)
        self.controller_says("AUTHORIZED\n{}\n")
        self.digest = ""
        self.write_packet(b"Goal: add a.txt\n")
        self.authorize("codex")
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "CE_PEER_JOB_ID": self.job,
        }

    def controller_says(self, stdout: str, stderr: str = "", code: int = 0) -> None:
        answer = {"stdout": stdout, "stderr": stderr, "exit": code}
        (self.scripts / "answer.json").write_text(json.dumps(answer))

    def write_packet(self, data: bytes) -> None:
        self.packet.write_bytes(data)
        self.packet.chmod(0o600)
        self.digest = hashlib.sha256(data).hexdigest()

    def authorize(self, name: str, /, model: str | None = None, **changes: Any) -> None:
        """Write the authorization for route `name`; `changes` replace fields without any check."""
        known = ROUTES[name]
        document = json.loads(
            Authorization(
                schema_version=1,
                run_id="run-1",
                unit_id="unit-1",
                attempt_id="attempt-1",
                route=name,
                target=known.target,
                harness=known.harness,
                intermediaries=known.intermediaries,
                model_requested=model or known.default_model,
                restriction_posture=known.restriction_posture,
                restrictions=(),
                activity_posture="hard-only",
                packet_digest=self.digest,
            ).to_bytes()
        )
        self.write_authorization(json.dumps({**document, **changes}).encode())

    def write_authorization(self, data: bytes) -> None:
        self.authorization.write_bytes(data)
        self.authorization.chmod(0o600)

    def codex(self, body: str) -> None:
        """A fake codex; `$out` is where its last message goes, `{room}` this room's folder."""
        self._script("codex", CODEX, body)

    def command(self, body: str, config: str = 'argv = ["tool"]') -> None:
        """A fake CLI `tool` of the user's own, configured as the command `mine`."""
        self._script("tool", COMMAND, body)
        self.configure(f"[commands.mine]\n{config}\n")
        self.authorize("command")

    def configure(self, text: str) -> Path:
        path = self.home / ".config" / "unit-workspace" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    def arguments(self) -> list[str]:
        paths = (self.authorization, self.workspace, self.packet)
        return [*map(str, paths), self.digest, str(self.result_dir)]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self.entry), *(arguments or self.arguments())],
            cwd=self.path,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, **environment: str) -> Ran:
        process = self.start(*arguments, **environment)
        return finish(process)

    @property
    def started(self) -> bool:
        """Whether the CLI was started (a version probe does not count)."""
        return (self.path / "started").exists() or (self.workspace / "started").exists()

    @property
    def result(self) -> dict[str, Any]:
        document = json.loads((self.result_dir / "implementation-result.json").read_bytes())
        assert isinstance(document, dict)
        return document

    @property
    def published(self) -> bool:
        return (self.result_dir / "implementation-result.json").exists()

    @property
    def log(self) -> bytes:
        return (self.result_dir / "adapter.log").read_bytes()

    @property
    def processes(self) -> list[ProcessIdentity]:
        return marked("CE_PEER_JOB_ID", self.job)

    def _script(self, name: str, template: str, body: str) -> None:
        path = self.bin / name
        text = template.replace("{body}", body).replace("{room}", shlex.quote(str(self.path)))
        path.write_text(text)
        path.chmod(0o755)


class Ran:
    """How a call of the adapter ended."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


def finish(process: subprocess.Popen[bytes]) -> Ran:
    """Wait for `process` and take what it said; no call may ever show a traceback."""
    stdout, stderr = process.communicate(timeout=DEADLINE)
    ran = Ran(process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def write_answer(answer: dict[str, Any] | str = ANSWER, to: str = '"$out"') -> str:
    """A line of shell that writes `answer` where codex's last message goes."""
    return f"printf '%s' {shlex.quote(answer if isinstance(answer, str) else json.dumps(answer))} > {to}"


def say(*lines: dict[str, Any] | str) -> str:
    """Lines of shell that print JSON events or texts, a line each, on stdout."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return "\n".join(f"printf '%s\\n' {shlex.quote(text)}" for text in texts)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


def end_leftovers(room: Room) -> list[int]:
    """End what still carries the room's mark; the pids, which a test expects to be none."""
    left = room.processes
    for identity in left:
        signal_identity(identity, signal.SIGKILL)
    return [identity.pid for identity in left]


def scratch_folders(room: Room) -> list[str]:
    return os.listdir(room.tmp)
