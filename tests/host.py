"""A host as the tests play it: a real repository, a private runs root, and the real programs as separate processes.

`Host.author` stands for runner and worker where a test is not about them: it writes the job directory and the result
that those would have written, which protocol.md section 15 allows other programs to do.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import lane
from tests.lane import ROOT as ROOT
from tests.reply import Reply as Reply

BINDING = {"mode": "prefer", "target": "codex", "model": None, "source": "test"}
EGRESS = {"route": "codex", "intermediaries": []}


class Host:
    """One repository, one runs root."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.runs = base / "runs"
        self.repo = base / "repo"
        self.env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(base),
            "CE_WORK_RUNS_ROOT": str(self.runs),
            "XDG_CONFIG_HOME": str(base / "xdg"),
            "GIT_CONFIG_GLOBAL": str(base / "gitconfig"),
            "GIT_CONFIG_SYSTEM": os.devnull,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        (base / "gitconfig").write_text(
            "[user]\nname = Test\nemail = test@example.invalid\n[init]\ndefaultBranch = main\n"
            '[protocol "file"]\nallow = always\n'
        )

    # --- the repository ---------------------------------------------------------------------------------------------

    def git(self, *args: str, cwd: Path | None = None, check: bool = True) -> str:
        """Run git as the user does; its standard output without the last newline."""
        done = subprocess.run(
            ["git", *args],
            cwd=cwd or self.repo,
            env=self.env,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, (args, done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def make_repo(self, files: dict[str, str] | None = None) -> Path:
        """A repository with one commit."""
        self.repo.mkdir()
        self.git("init", "-q")
        for name, text in (files or {"f": "one\n", "dir/g": "two\n", ".gitignore": "*.log\nbuild/\n"}).items():
            path = self.repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        return self.repo

    @property
    def head(self) -> str:
        """The canonical HEAD."""
        return self.git("rev-parse", "HEAD")

    def fingerprint(self) -> dict[str, Any]:
        """Everything of the checkout that a user could miss: HEAD, index bits, bytes and modes of every file."""
        files: dict[str, Any] = {}
        for folder, names, leaves in os.walk(os.fsencode(self.repo)):
            if folder == os.fsencode(self.repo):
                names.remove(b".git")
            for leaf in leaves + [name for name in names if os.path.islink(os.path.join(folder, name))]:
                full = os.path.join(folder, leaf)
                info = os.lstat(full)
                content = os.readlink(full) if os.path.islink(full) else Path(os.fsdecode(full)).read_bytes()
                files[os.fsdecode(os.path.relpath(full, os.fsencode(self.repo)))] = (info.st_mode, content)
        return {
            "head": self.head,
            "branch": self.git("symbolic-ref", "HEAD"),
            "index": self.git("ls-files", "-v", "--stage"),
            "status": self.git("status", "--porcelain=v2", "-z", "--untracked-files=all"),
            "files": files,
        }

    # --- the controller ---------------------------------------------------------------------------------------------

    def call(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Reply:
        """One controller command as a process of its own, forked from one that has loaded the controller.

        With an environment that Python, the loader or the locale reads at a start, it is started anew.
        """
        names = {*self.env, *(env or {})} - {"PYTHONDONTWRITEBYTECODE"}
        if not any(name.startswith(("PYTHON", "LD_", "LC_", "LANG")) for name in names):
            return lane.shared().start(self, *args, env=env, cwd=cwd).reply()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "controller", *args],
            cwd=cwd or self.base,
            env={**self.env, "PYTHONPATH": str(ROOT), **(env or {})},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Reply(done)

    def run_dir(self, run: str = "r1") -> Path:
        """The run's directory."""
        return self.runs / run

    def manifest(self, run: str = "r1") -> dict[str, Any]:
        """The projection that other programs read."""
        value: dict[str, Any] = json.loads((self.run_dir(run) / "manifest.json").read_text())
        return value

    def unit(self, unit: str = "U1", run: str = "r1") -> dict[str, Any]:
        """One unit of the manifest."""
        value: dict[str, Any] = self.manifest(run)["units"][unit]
        return value

    def init(
        self,
        run: str = "r1",
        *,
        brief: str = "# Request\nx\n# Goal\nx\n# Scope\nx\n# Acceptance and verification\nx\n"
        "# Constraints and exclusions\nx\n# Units\nP1\n",
        binding: dict[str, Any] | None = None,
        egress: dict[str, Any] | None = None,
    ) -> Reply:
        """`init` from a prompt brief."""
        path = self.base / f"brief-{run}.md"
        path.write_text(brief)
        return self.call(
            "init", "--run-id", run, "--repo", str(self.repo), "--prompt-brief", str(path),
            "--prompt-digest", hashlib.sha256(brief.encode()).hexdigest(),
            "--binding-json", json.dumps(binding or BINDING), "--egress-json", json.dumps(egress or EGRESS),
        )  # fmt: skip

    def prepare(
        self, unit: str = "U1", *more: str, run: str = "r1", packet: bytes = b"do it\n", base: str = ""
    ) -> Reply:
        """`prepare` at HEAD."""
        path = self.base / f"packet-{unit}.md"
        path.write_bytes(packet)
        return self.call(
            "prepare", "--run-id", run, "--unit-id", unit, "--base", base or self.head, "--packet", str(path), *more
        )

    def write_job(self, prepared: dict[str, Any], *, run: str = "r1", job: str = "", **meta: Any) -> str:
        """A job directory as `peer-job-runner start` makes it; the job id."""
        unit = prepared["unit_id"]
        job = job or f"job-{unit}-{prepared['attempt_id']}"
        path = self.run_dir(run) / "jobs" / job
        path.mkdir(mode=0o700)
        value = {
            "job_id": job,
            "skill": "ce-work",
            "run_id": run,
            "label": unit,
            "input_digest": prepared["packet_digest"],
            "started_at": "2026-01-01T00:00:00Z",
            "worker_argv": [
                prepared["adapter"], prepared["authorization_path"], prepared["workspace"],
                prepared["packet_path"], prepared["packet_digest"], prepared["result_dir"],
            ],
            "result_path": prepared["result_dir"] + "/implementation-result.json",
            "sweep_enabled": False,
            "supervision": {"idle": None, "hard": 7200, "log_max": 1, "result_max": 1, "poll": 2, "grace": 5},
            **meta,
        }  # fmt: skip
        self.private(path / "meta.json", json.dumps(value))
        self.private(path / "out.log", "")
        return job

    def end_job(self, job: str, word: str, reason: str = "test", *, run: str = "r1") -> None:
        """The runner's record of an ended job."""
        path = self.run_dir(run) / "jobs" / job
        self.private(path / "reason", reason + "\n")
        self.private(path / "status", word + "\n")

    def private(self, path: Path, text: str) -> None:
        """A 0600 file."""
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text)

    def authorize(self, prepared: dict[str, Any], job: str, run: str = "r1") -> Reply:
        """The adapter's handshake."""
        return self.call(
            "authorize-dispatch", "--run-id", run, "--unit-id", prepared["unit_id"],
            "--attempt-id", prepared["attempt_id"], "--job-id", job,
            "--authorization", prepared["authorization_path"],
            "--authorization-digest", prepared["authorization_digest"],
            "--workspace", prepared["workspace"], "--packet", prepared["packet_path"],
            "--packet-digest", prepared["packet_digest"], "--result-dir", prepared["result_dir"],
        )  # fmt: skip

    def write_result(self, prepared: dict[str, Any], **changes: Any) -> None:
        """The result that the adapter publishes."""
        authorization = json.loads(Path(prepared["authorization_path"]).read_bytes())
        folder = Path(prepared["result_dir"])
        self.private(folder / "adapter.log", "log\n")
        names = ("target", "harness", "intermediaries", "model_requested", "activity_posture", "restriction_posture")
        value = {
            "schema_version": 1,
            "terminal_status": "completed",
            "summary": "done",
            "changed_files": ["f"],
            "evidence": ["ran it"],
            "scope_expansion": None,
            "requested_route": authorization["route"],
            "actual_route": authorization["route"],
            **{name: authorization[name] for name in names},
            "model_actual": "unverified",
            "model_receipt_status": "unverified",
            "packet_digest": prepared["packet_digest"],
            "failure_reason": None,
            "raw_log": str(folder / "adapter.log"),
            **changes,
        }
        self.private(folder / "implementation-result.json", json.dumps(value, indent=2))

    def author(
        self, unit: str = "U1", work: Callable[[Path], None] | dict[str, str] | None = None, *more: str, run: str = "r1"
    ) -> dict[str, Any]:
        """Prepare a unit and play runner and worker for it until the job is `done`; what `prepare` answered."""
        prepared = self.prepare(unit, *more, run=run).expect("PREPARED").body
        job = self.write_job(prepared, run=run)
        self.authorize(prepared, job, run).expect("AUTHORIZED")
        workspace = Path(prepared["workspace"])
        if callable(work):
            work(workspace)
        else:
            for name, text in (work or {"new.txt": "new\n"}).items():
                (workspace / name).parent.mkdir(parents=True, exist_ok=True)
                (workspace / name).write_text(text)
        self.write_result(prepared)
        self.end_job(job, "done", run=run)
        return {**prepared, "job_id": job}

    def pending(
        self, unit: str = "U1", work: Callable[[Path], None] | dict[str, str] | None = None, *more: str, run: str = "r1"
    ) -> dict[str, Any]:
        """A unit in `integration-pending`; its transport."""
        self.author(unit, work, *more, run=run)
        reply = self.call("terminalize", "--run-id", run, "--unit-id", unit).expect("INTEGRATION_PENDING")
        transport: dict[str, Any] = reply.body["transport"]
        return transport

    def integrate(self, unit: str = "U1", argv: Sequence[str] = ("true",), *more: str, run: str = "r1") -> Reply:
        """`integrate` with a verification command."""
        return self.call(
            "integrate", "--run-id", run, "--unit-id", unit, "--commit-message", f"feat: {unit}", *more, "--", *argv
        )
