"""The other two programs: a job that is started, supervised and reaped, and the adapter's one call."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.crash.scenarios import SCENARIOS as SCENARIOS
from tests.crash.scenarios import begin, interrupt, scenario
from tests.crash.scene import Scene, small_work

_WORKER = """\
#!/bin/sh
umask 077
{authorize} --job-id "$CE_PEER_JOB_ID" >/dev/null || exit 2
echo working
(setsid sleep 60 &)
printf 'second unit\\n' > "$2/second"
printf 'log\\n' > "$5/adapter.log"
cp {result} "$5/.result"
mv "$5/.result" "$5/implementation-result.json"
"""
_SLEEPER = """\
#!/bin/sh
{authorize} --job-id "$CE_PEER_JOB_ID" >/dev/null || exit 2
exec sleep 60
"""
_CODEX = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "codex-cli 9.9.9"; exit 0; fi
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then out=$2; fi
    shift
done
cat > /dev/null
printf 'second unit\\n' > second
cat {answer} > "$out"
"""


def _prepared(scene: Scene, script: str) -> dict[str, Any]:
    """A prepared unit whose one legal worker is `script` (or the real adapter, where it is empty)."""
    scripts = scene.base / "scripts"
    scripts.mkdir()
    for name in ("cross-model-work.sh", "peer-job-runner.py", "unit-workspace.py"):
        (scripts / name).symlink_to(Path(__file__).resolve().parents[2] / "scripts" / name)
    if script:
        (scripts / "cross-model-work.sh").unlink()
        (scripts / "cross-model-work.sh").touch(mode=0o755)
    scene.env["UNIT_WORKSPACE_SCRIPTS_DIR"] = str(scripts)
    scene.work["U1"] = small_work
    prepared: dict[str, Any] = begin(scene).prepare().expect("PREPARED").body
    authorize = [
        *scene.controller("authorize-dispatch", "--run-id", "r1", "--unit-id", "U1", "--attempt-id", "attempt-1"),
        *("--authorization", prepared["authorization_path"], "--workspace", prepared["workspace"]),
        *("--authorization-digest", prepared["authorization_digest"], "--packet", prepared["packet_path"]),
        *("--packet-digest", prepared["packet_digest"], "--result-dir", prepared["result_dir"]),
    ]
    if script:
        scene.write_result(prepared)
        for name in ("implementation-result.json", "adapter.log"):
            (Path(prepared["result_dir"]) / name).rename(scene.base / name)
        text = script.format(authorize=shlex.join(authorize), result=scene.base / "implementation-result.json")
        (scripts / "cross-model-work.sh").write_text(text)
    return prepared


def _adapter_call(prepared: dict[str, Any]) -> list[str]:
    names = ("authorization_path", "workspace", "packet_path", "packet_digest", "result_dir")
    return [prepared[name] for name in names]


def _start(prepared: dict[str, Any]) -> list[str]:
    what = ["--skill", "ce-work", "--run-id", "r1", "--label", "U1", "--input-digest", prepared["packet_digest"]]
    result = ["--result-path", prepared["result_dir"] + "/implementation-result.json", "--no-sweep"]
    worker = ["--", prepared["adapter"], *_adapter_call(prepared)]
    return [sys.executable, "-P", "-m", "runner", "start", *what, *result, *worker]


@scenario("peer-job-runner start", detached=True)
def runner_start(scene: Scene) -> list[str]:
    """A whole job: start, supervisor, worker with its handshake, the end; the worker leaves a process behind."""
    return _start(_prepared(scene, _WORKER))


def _running(scene: Scene) -> str:
    """A job that reads `running` and of which nothing lives: its supervisor and its worker were killed."""
    interrupt(scene, lambda inside: _start(_prepared(inside, _SLEEPER)), "cross", "execve", 1, "sleep")
    return next((scene.run_dir() / "jobs").iterdir()).name


@scenario("peer-job-runner reap", detached=True)
def runner_reap(scene: Scene) -> list[str]:
    """Of a job whose supervisor is gone."""
    job = _running(scene)
    return [sys.executable, "-P", "-m", "runner", "reap", "--skill", "ce-work", job]


@scenario("reap", detached=True)
def reap_lost_job(scene: Scene) -> list[str]:
    """The controller's, of a job whose supervisor is gone."""
    _running(scene)
    scene.call("resume", "--run-id", "r1")
    return scene.controller("reap", "--run-id", "r1", "--unit-id", "U1")


@scenario("cross-model-work", detached=True)
def adapter_call(scene: Scene) -> list[str]:
    """The adapter's call of a CLI, with its handshake; its job is played by a directory."""
    prepared = _prepared(scene, "")
    answer = {"terminal_status": "completed", "summary": "done", "changed_files": ["second"], "evidence": ["ran it"]}
    (scene.base / "answer.json").write_text(json.dumps({**answer, "scope_expansion": None}))
    tools = scene.base / "tools"
    tools.mkdir()
    (tools / "codex").touch(mode=0o755)
    (tools / "codex").write_text(_CODEX.format(answer=scene.base / "answer.json"))
    scene.env["PATH"] = f"{tools}:{scene.env['PATH']}"
    scene.env["CE_PEER_JOB_ID"] = scene.notes["job"] = scene.write_job(prepared)
    return [sys.executable, "-P", "-m", "adapters", *_adapter_call(prepared)]
