"""A whole unit by the three drop-ins of a skill folder, in a bare environment and a repository that is hostile."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.install_scripts import install
from tests.host import Host, Reply

AUTHOR = """#!/bin/sh
cat >/dev/null
echo done >work.txt
echo '{"terminal_status":"completed","summary":"s","changed_files":["work.txt"],
    "evidence":["e"],"scope_expansion":null}'
"""


class Skill:
    """A ce-work skill folder with our scripts, called as a host calls them: python3, the script, arguments."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.scripts = host.base / "skill" / "scripts"
        self.scripts.mkdir(parents=True)
        install(self.scripts, interpreter=sys.executable)
        author = host.base / "author"
        author.write_text(AUTHOR)
        author.chmod(0o755)
        config = host.base / "xdg" / "unit-workspace" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[commands.author]\nargv = ["{author}"]\n')
        config.chmod(0o600)
        self.env = {
            "PATH": "/usr/bin:/bin",
            "CE_WORK_RUNS_ROOT": str(host.runs),
            "XDG_CONFIG_HOME": str(host.base / "xdg"),
            "GIT_CONFIG_GLOBAL": str(host.base / "gitconfig"),
        }

    def call(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, str(self.scripts / script), *arguments],
            cwd=self.host.repo,
            env={**self.env, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )

    def controller(self, command: str, *arguments: str) -> Reply:
        return Reply(self.call("unit-workspace.py", command, "--run-id", "r1", *arguments))

    def runner(self, *arguments: str) -> str:
        done = self.call("peer-job-runner.py", *arguments, CE_PEER_IDLE_SECS="0")
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def prepare(self) -> dict[str, Any]:
        """A run from a prompt brief and its unit U1; what `prepare` answered."""
        brief = self.host.base / "brief.md"
        brief.write_text("# Goal\nx\n")
        binding = {"mode": "require", "target": "command", "model": "author", "source": "test"}
        egress = {"route": "command", "intermediaries": []}
        self.controller(
            "init", "--repo", str(self.host.repo), "--prompt-brief", str(brief),
            "--prompt-digest", hashlib.sha256(brief.read_bytes()).hexdigest(),
            "--binding-json", json.dumps(binding), "--egress-json", json.dumps(egress),
        ).expect("READY")  # fmt: skip
        return self.controller(
            "prepare", "--unit-id", "U1", "--base", self.host.head, "--packet", str(brief)
        ).expect("PREPARED").body  # fmt: skip


@pytest.fixture
def skill(tmp_path: Path) -> Skill:
    host = Host(tmp_path)
    trace = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__)\n"
    names = ("controller", "runner", "adapters", "click", "msgspec", "json", "tomllib")
    host.make_repo({f"{name}/__init__.py": trace for name in names})
    return Skill(host)


def test_a_unit_goes_from_packet_to_verified_commit_and_the_repositorys_modules_never_run(skill: Skill) -> None:
    host = skill.host
    said = skill.prepare()
    assert said["adapter"] == os.path.realpath(skill.scripts / "cross-model-work.sh")

    job = skill.runner(
        "start", "--no-sweep", "--skill", "ce-work", "--run-id", "r1", "--label", "U1",
        "--input-digest", said["packet_digest"],
        "--result-path", f"{said['result_dir']}/implementation-result.json",
        "--", said["adapter"], said["authorization_path"], said["workspace"], said["packet_path"],
        said["packet_digest"], said["result_dir"],
    )  # fmt: skip
    assert skill.runner("wait", "--skill", "ce-work", "--max-secs", "60", job) == "done"
    unit = ["--unit-id", "U1"]
    skill.controller("record-job", *unit, "--attempt-id", "attempt-1", "--job-id", job).expect("AUTHORING")
    skill.controller("terminalize", *unit).expect("INTEGRATION_PENDING")
    verify = ["--", "test", "-f", "work.txt"]
    skill.controller("integrate", *unit, "--commit-message", "work", *verify).expect("UNIT_COMMITTED")
    skill.controller("verify-run", *verify).expect("RUN_VERIFIED")

    assert (host.repo / "work.txt").read_text() == "done\n"
    assert host.git("status", "--porcelain") == ""
    assert not (host.base / "imported").exists(), (host.base / "imported").read_text()


def test_reap_uses_the_runner_beside_the_controller(skill: Skill) -> None:
    """A skill folder may hold another version than the one that is installed: the two must not mix."""
    other = f"#!{sys.executable}\nimport sys; sys.exit('this is the one beside it')\n"
    (skill.scripts / "peer-job-runner.py").write_text(other)
    job = skill.host.write_job(skill.prepare())
    skill.controller("record-job", "--unit-id", "U1", "--attempt-id", "attempt-1", "--job-id", job).expect("AUTHORING")
    refused = skill.controller("reap", "--unit-id", "U1").expect("BLOCKED")
    assert "this is the one beside it" in repr(refused)
