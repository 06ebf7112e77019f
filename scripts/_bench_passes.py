"""What the bench does with one folder of scripts: a unit through every transition, the runner's latencies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from _bench_meter import BenchError, Meter
from _protocol import call

# Plays an agent CLI that answers at once: knows the flags that an adapter may look for, edits one file.
INSTANT_CODEX = r"""#!/bin/sh
began=$(date +%s%N)
case " $* " in
*" --version "*) echo "codex-cli 0.171.0"; exit 0 ;;
*" --help "*)
    echo "  --json  -o, --output-last-message <F>  -s, --sandbox <S>  -C, --cd <D>  --skip-git-repo-check"
    echo "  --ephemeral  --ignore-user-config  --ignore-rules  -m, --model <M>  -c, --config <K=V>"
    echo "  --output-schema <F>"
    exit 0 ;;
esac
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2 ;; -C) cd "$2" || exit 1 ;; esac
    shift
done
cat >/dev/null
echo "$began" >bench.txt
said='{"terminal_status":"completed","summary":"wrote it","changed_files":["bench.txt"],"evidence":["-"],'
said="$said\"scope_expansion\":null}"
printf '%s\n' "$said" >"$out"
quoted=$(printf '%s' "$said" | sed 's/"/\\"/g')
echo '{"type":"thread.started","thread_id":"bench"}'
echo '{"type":"turn.started"}'
echo '{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"'"$quoted"'"}}'
echo '{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":1}}'
echo "$began $(date +%s%N)" >CLI_TIMES
"""
WORKER = "sleep 0.5; date +%s%N >'{stamp}.new'; mv '{stamp}.new' '{stamp}'"
PEER_JOBS = "bench"


class Programs:
    """The scripts of one folder, started as a host would: by a python3 that is not the environment's."""

    def __init__(self, folder: Path) -> None:
        # Resolved, because a version manager's shim in front of it would be measured too.
        python = os.path.realpath(sys.executable)
        self.controller = [python, str(folder / "unit-workspace.py")]
        self.runner = [python, str(folder / "peer-job-runner.py")]


def fake_cli(tools: Path) -> Path:
    """Write the instant codex into `tools`; the file where it leaves its begin and end (nanoseconds)."""
    times = tools / "cli-times"
    program = tools / "codex"
    program.write_text(INSTANT_CODEX.replace("CLI_TIMES", f"'{times}'"))
    program.chmod(0o755)
    return times


def transitions(meter: Meter, programs: Programs, repo: Path, work: Path, number: int, times: Path) -> None:
    """One run of one unit: init to verify-run; each transition filed as a row of its name."""
    run = ["--run-id", f"bench-{number}"]
    plan = repo / f"plan-{number}.md"
    plan.write_text(f"# Plan {number}\n")
    digest = hashlib.sha256(plan.read_bytes()).hexdigest()
    binding = {"mode": "require", "target": "codex", "model": None, "source": "bench"}
    egress = {"route": "codex", "intermediaries": [], "restrictions": []}

    def step(command: str, *arguments: str, expect: str) -> dict[str, object]:
        argv = [*programs.controller, command, *run, *arguments]
        return meter.run(command, argv, expect=expect, cwd=repo).body

    sanction = ["--binding-json", json.dumps(binding), "--egress-json", json.dumps(egress)]
    step("init", "--repo", str(repo), "--plan", str(plan), "--plan-digest", digest, *sanction, expect="READY")
    step("checkpoint-plan", expect="CHECKPOINTED")
    packet = work / "packet.md"
    packet.write_text(f"# Unit u1 of run {number}\nWrite bench.txt.\n")
    head = call(["git", "rev-parse", "HEAD"], env=meter.env, cwd=repo).stdout.strip()
    unit = ["--unit-id", "u1"]
    prepared = step("prepare", *unit, "--base", head, "--packet", str(packet), expect="PREPARED")
    said = {key: str(value) for key, value in prepared.items()}

    start = [*programs.runner, "start", "--no-sweep", "--skill", "ce-work", *run, "--label", "u1"]
    start += ["--input-digest", said["packet_digest"]]
    start += ["--result-path", f"{said['result_dir']}/implementation-result.json", "--", said["adapter"]]
    start += [said[key] for key in ("authorization_path", "workspace", "packet_path", "packet_digest", "result_dir")]
    began = time.monotonic()
    job = meter.run("start", start, expect=None, cwd=repo).stdout.strip()
    _wait(programs, meter, job, repo)
    took = time.monotonic() - began
    if meter.mode == "fsync":
        # strace stays until the whole job is over, so what it counted for `start` is the job's.
        whole, started = meter.rows["start to worker's end"], meter.rows["start"]
        whole.fsyncs, started.fsyncs = started.fsyncs, None
    else:
        meter.add("start to worker's end", took)
    if meter.mode == "time":
        first, last = (int(stamp) for stamp in times.read_text().split())
        meter.add("… of it not the CLI", took - (last - first) / 1e9)

    step("record-job", *unit, "--attempt-id", said["attempt_id"], "--job-id", job, expect="AUTHORING")
    step("sync-job", *unit, expect="SYNCED")
    step("status", expect="STATUS")
    step("terminalize", *unit, expect="INTEGRATION_PENDING")
    step("integrate", *unit, "--commit-message", "bench", "--", "true", expect="UNIT_COMMITTED")
    step("verify-run", "--", "true", expect="RUN_VERIFIED")
    step("resume", expect="RESUMED")


def _wait(programs: Programs, meter: Meter, job: str, cwd: Path, skill: str = "ce-work") -> None:
    argv = [*programs.runner, "wait", "--skill", skill, "--max-secs", "60", job]
    done = call(argv, env=meter.env, cwd=cwd)
    if done.stdout.strip() != "done":
        raise BenchError(f"expected the job to be done; {done}")


def latencies(meter: Meter, programs: Programs, work: Path) -> None:
    """A worker's exit until `wait` returns; `reap` of a job whose supervisor and worker were killed."""
    stamp = work / "exit-stamp"
    stamp.unlink(missing_ok=True)
    _start(meter, programs, work, "sh", "-c", WORKER.format(stamp=stamp), then_wait=True)
    meter.add("worker's exit to wait's return", (time.time_ns() - int(stamp.read_text())) / 1e9)

    job = _start(meter, programs, work, "sleep", "600")
    folder = work / "jobs" / PEER_JOBS / "bench" / "jobs" / job
    pids = json.loads((folder / "pid").read_text())
    for name in ("supervisor_pid", "worker_pid"):
        os.kill(pids[name], signal.SIGKILL)
    meter.run("reap of a dead job", [*programs.runner, "reap", "--skill", PEER_JOBS, job], expect=None, cwd=work)


def _start(meter: Meter, programs: Programs, work: Path, *worker: str, then_wait: bool = False) -> str:
    argv = [*programs.runner, "start", "--no-sweep", "--skill", PEER_JOBS, "--run-id", "bench", "--", *worker]
    started = call(argv, env=meter.env, cwd=work)
    if started.code != 0:
        raise BenchError(f"expected a job id; {started}")
    job = started.stdout.strip()
    if then_wait:
        _wait(programs, meter, job, work, PEER_JOBS)
    return job


def end_jobs(work: Path, folders: list[Path]) -> None:
    """Reap what an interrupted bench left running: jobs are detached, they would outlive it."""
    jobs = [*work.glob("*/jobs/*/*/jobs/*"), *work.glob("*/runs/*/jobs/*")]
    for job in filter(Path.is_dir, jobs):
        call([*Programs(folders[0]).runner, "reap", str(job)], env=os.environ)
