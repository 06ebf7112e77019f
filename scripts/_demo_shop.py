"""The demo's temporary folder: the clone, private roots and the agent; all of it goes when the demo ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from _demo_host import Stop
from _demo_units import UNITS, answer, as_shell
from _model_server import ModelServer, Turn
from _protocol import call

SCRIPTS = Path(__file__).resolve().parent
REPOSITORY = SCRIPTS.parent
# Settings of the person who starts the demo must not decide where its runs lie or how long its jobs take.
FOREIGN_PREFIXES = ("CE_WORK_", "CE_PEER_", "CROSS_MODEL_", "UNIT_WORKSPACE_")


class Shop:
    """Made on entry, taken down on exit (jobs ended first), unless `keep`."""

    def __init__(self, agent: str, *, keep: bool) -> None:
        self.agent = agent
        self.keep = keep
        self._exits = ExitStack()

    def __enter__(self) -> Shop:
        self.folder = Path(tempfile.mkdtemp(prefix="unit-workspace-demo-"))
        self._exits.callback(self._remove)
        try:
            self._furnish()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave half a folder and a running job behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._exits.close()

    def _furnish(self) -> None:
        self.checkout = self.folder / "checkout"
        self.runs = self.folder / "runs"
        self.tools = self.folder / "bin"
        self.tools.mkdir()
        temporary = self.folder / "tmp"
        temporary.mkdir()
        self.config = config = self.folder / "config" / "unit-workspace" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f"[commands.demo]\nargv = {json.dumps([sys.executable, str(SCRIPTS / '_demo_worker.py')])}\n")
        config.chmod(0o600)  # whatever the umask: the adapter ignores a configuration that others can write
        # When a git hook starts the demo, git's variables name another repository.
        asked = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
        foreign = set(asked.stdout.split())
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in foreign and not name.startswith(FOREIGN_PREFIXES)
        }
        path = [str(self.tools), str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
        self.env = {
            **inherited,
            "PATH": os.pathsep.join(path),
            "CE_WORK_RUNS_ROOT": str(self.runs),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "TMPDIR": str(temporary),  # agent CLIs leave sockets and folders there
        }
        if self.agent == "codex":
            self._furnish_codex()
        # Last, so that it runs first: a job must be over before its folders go.
        self._exits.callback(self._end_jobs)

    def _furnish_codex(self) -> None:
        """The real codex CLI, its model played by a server on loopback: no account, no key, no network."""
        codex = shutil.which("codex") or self._install_codex()
        # codex keeps its sandbox helper out of temporary folders, so its home cannot be one.
        home = tempfile.mkdtemp(prefix=".unit-workspace-demo-codex-", dir=Path.home())
        self._exits.callback(shutil.rmtree, home, ignore_errors=True)
        sockets = Path(f"/tmp/codex-daemon-{os.geteuid()}")  # made whatever TMPDIR says
        if not sockets.exists():
            self._exits.callback(_remove_if_empty, sockets)
        turns = {f"# Unit {unit.name}": Turn(as_shell(unit), json.dumps(answer(unit))) for unit in UNITS.values()}
        model = self._exits.enter_context(ModelServer(turns))
        provider = f'{{name="scripted",base_url="{model.base_url}",wire_api="responses",env_key="SCRIPTED_KEY"}}'
        settings = ["-c", "model_provider=scripted", "-c", f"model_providers.scripted={provider}"]
        wrapper = self.tools / "codex"
        wrapper.write_text(
            "#!/bin/sh\n# The adapter's command line, plus where this demo's model is.\n"
            f"CODEX_HOME={shlex.quote(home)} SCRIPTED_KEY=none\nexport CODEX_HOME SCRIPTED_KEY\n"
            f'[ "$1" = exec ] || exec {shlex.quote(codex)} "$@"\nshift\n'
            f'exec {shlex.quote(codex)} exec {shlex.join(settings)} "$@"\n'
        )
        wrapper.chmod(0o755)

    def _install_codex(self) -> str:
        npm = shutil.which("npm")
        how = "install it (npm install -g @openai/codex) or run the demo with --agent command"
        if npm is None:
            raise Stop(f"--agent codex needs the codex CLI, and there is neither codex nor npm on PATH: {how}")
        print("codex is not on PATH: npm installs it into the demo's folder (removed afterwards)", flush=True)
        argv = [npm, "install", "--no-fund", "--no-audit", "--silent", "--prefix", str(self.folder / "npm")]
        argv += ["--cache", str(self.folder / "npm-cache"), "@openai/codex"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
        found = self.folder / "npm" / "node_modules" / ".bin" / "codex"
        if done.returncode != 0 or not found.exists():
            raise Stop(f"npm could not install the codex CLI (exit {done.returncode}): {how}")
        return str(found)

    def _end_jobs(self) -> None:
        """Jobs are detached on purpose; one that still runs at the end must not outlive its folder."""
        for job in filter(Path.is_dir, self.runs.glob("*/jobs/*")):
            call(["peer-job-runner", "reap", str(job)], env=self.env)

    def _remove(self) -> None:
        if self.keep:
            print(f"kept: {self.folder}", flush=True)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
