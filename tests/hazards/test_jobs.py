"""Rows 1-3, 36, 38-43: real jobs, through runner, adapter and controller, whose agents misbehave as agents do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.process import identify
from tests.hazards.support import Agents, abandon, alive, terminalize, until
from tests.host import Host


def _receipt(host: Host) -> dict[str, object]:
    found: dict[str, object] = host.unit()["attempts"][-1]["terminal_receipt"] or {}
    return found


def test_an_agent_never_waits_on_the_hosts_standard_input(agents: Agents) -> None:
    """Row 1: it gets the packet, then the end of the file; what a host has open on stdin is not inherited."""
    agents.agent('cat > packet.txt; cat >> packet.txt; echo "$answer"')
    job = agents.dispatch()
    assert agents.wait(job) == "done"
    terminalize(agents.host).expect("INTEGRATION_PENDING")
    packet = (agents.host.run_dir() / "units/U1/workspace/packet.txt").read_text()
    assert packet.endswith("do it\n")
    assert str(agents.host.repo) not in packet, "row 36: nothing of ours names the canonical checkout"


def test_a_child_that_holds_the_pipe_never_keeps_a_finished_job_running(agents: Agents) -> None:
    """Row 2: output goes through a supervisor that does not wait for whoever inherited it."""
    assert agents.run('echo new > new.txt; sleep 1000 & echo "$answer"') == "done"
    until(lambda: not alive(agents.host), "the child is gone")
    terminalize(agents.host).expect("INTEGRATION_PENDING")


def test_descendants_of_an_agent_never_outlive_its_job(agents: Agents) -> None:
    """Rows 3 and 42: also those that left their session; what still ran at the exit is recorded."""
    late = "trap '' TERM HUP; while :; do echo late >> late; sleep 0.05; done"
    word = agents.run(f'echo new > new.txt; setsid sh -c "{late}" & sleep 0.3; echo "$answer"')
    assert word == "done"
    assert alive(agents.host) == []
    transport = terminalize(agents.host).expect("INTEGRATION_PENDING").body["transport"]
    assert transport["changed_paths"] == ["late", "new.txt"]
    receipt = _receipt(agents.host)
    survivors = receipt.get("survivors") or receipt.get("survivor_count")
    assert survivors, f"what ran on is in the receipt: {sorted(receipt)}"


@pytest.mark.parametrize("limit", ["hard", "idle"])
def test_an_agent_that_hangs_is_ended_with_all_its_descendants(agents: Agents, limit: str) -> None:
    limits = {"CE_PEER_HARD_SECS": "1"} if limit == "hard" else {"CE_PEER_HARD_SECS": "100", "CE_PEER_IDLE_SECS": "1"}
    agents.agent("setsid sh -c 'trap \"\" TERM; sleep 1000' & sleep 1000")
    assert agents.wait(agents.dispatch(**limits)) == "timeout"
    assert alive(agents.host) == []
    reply = terminalize(agents.host).expect("BLOCKED")
    assert reply.body["process_state"] == "timeout"
    abandon(agents.host).expect("CLEANED")


def test_a_live_process_of_a_finished_job_keeps_its_work_from_being_pinned(run: Host) -> None:
    """Row 3: such a child once edited files after the gate had looked (launcher section 15 W2)."""
    made = run.prepare().expect("PREPARED").body
    job = run.write_job(made, job=f"20260101T000000Z-{os.urandom(4).hex()}")
    run.authorize(made, job).expect("AUTHORIZED")
    run.write_result(made)
    run.end_job(job, "done")
    child = subprocess.Popen(["sleep", "1000"], cwd=made["workspace"], env={**run.env, "CE_PEER_JOB_ID": job})
    try:
        reply = terminalize(run).expect("BLOCKED")
        assert reply.body["pids"] == [child.pid]
        assert run.unit()["state"] == "authoring"
    finally:
        child.kill()
        child.wait()
    terminalize(run).expect("INTEGRATION_PENDING")


def test_a_recycled_pid_is_never_taken_for_the_worker(run: Host) -> None:
    """Row 5: a bare number proves nothing; a bystander that has it now is not signalled."""
    prepared = run.prepare().expect("PREPARED").body
    job = run.write_job(prepared)
    run.authorize(prepared, job).expect("AUTHORIZED")
    bystander = subprocess.Popen(["sleep", "1000"], env=run.env, start_new_session=True)
    try:
        pid = bystander.pid
        identity = identify(pid)
        assert identity is not None
        old = {"pid": pid, "start_time": identity.start_time - 100_000, "boot_id": identity.boot_id}
        record = {"supervisor_pid": pid, "worker_pid": pid, "supervisor_pgid": pid, "supervisor": old, "worker": old}
        run.private(run.run_dir() / "jobs" / job / "pid", json.dumps(record))
        assert run.call("sync-job", "--run-id", "r1", "--unit-id", "U1").body["process_state"] == "running"
        reply = run.call("reap", "--run-id", "r1", "--unit-id", "U1").expect("REAPED")
        assert reply.body["process_state"] == "died-without-result"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


RECYCLE = """
import json, os, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.hazards.support import kill, records, resume, start_integrate, until
from tests.host import Host

host = Host.__new__(Host)
host.base, host.runs, host.repo, host.env = (Path({base!r}), Path({runs!r}), Path({repo!r}), {env!r})
process = start_integrate(host, "sh", "-c", "touch late; exec sleep 1000")
until(lambda: (host.repo / "late").exists(), "the verification runs")
data = records(host, "canonical-verification-started")[0]["data"]
supervisor, child = data["supervisor"]["pid"], data["child"]["pid"]
os.kill(supervisor, signal.SIGSTOP)
kill(process)
for pid in (supervisor, child):
    os.kill(pid, signal.SIGKILL)
def gone(pid):
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    return not os.path.exists(f"/proc/{{pid}}")
until(lambda: gone(supervisor) and gone(child), "both pids are free")
time.sleep(0.05)  # the kernel tells starts apart by 10 ms
bystanders = []
for wanted in (supervisor, child):
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(wanted - 1))
    bystanders.append(subprocess.Popen(["sleep", "1000"], env={{"PATH": os.environ["PATH"]}}, start_new_session=True))
assert [b.pid for b in bystanders] == [supervisor, child], ([b.pid for b in bystanders], supervisor, child)
resume(host).expect("RESUMED")
print(json.dumps([b.poll() for b in bystanders]))
for b in bystanders:
    b.kill()
"""


def test_a_pid_that_was_really_recycled_is_never_killed_in_place_of_a_verification(run: Host) -> None:
    """Row 5, in a pid namespace, where the next pid can be chosen."""
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    probe = subprocess.run([*namespace, "test", "-w", "/proc/sys/kernel/ns_last_pid"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no pid namespaces here: {probe.stderr.decode(errors='replace').strip()}")
    run.pending()
    root = str(Path(__file__).parents[2])
    text = RECYCLE.format(root=root, base=str(run.base), runs=str(run.runs), repo=str(run.repo), env=run.env)
    done = subprocess.run(
        [*namespace, sys.executable, "-c", text],
        cwd=root,
        env={**os.environ, **run.env},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == [None, None], "both bystanders live"
    assert not (run.repo / "late").exists()


def test_a_worker_that_cannot_write_to_git_is_never_taken_for_blocked(agents: Agents) -> None:
    """Row 38: nobody asks it to commit; the tree is taken from outside, whatever its index looks like."""
    host = agents.host
    admin = f"{host.repo}/.git/worktrees/*"
    word = agents.run(
        f"admin=$(echo {admin}); echo new > new.txt; touch $admin/index.lock; echo broken > $admin/index; "
        'git add -A 2>/dev/null; echo "$answer"'
    )
    assert word == "done"
    terminalize(host).expect("INTEGRATION_PENDING")
    host.integrate().expect("UNIT_COMMITTED")
    assert (host.repo / "new.txt").read_text() == "new\n"


QUIET_FAILURES = {
    "no output at all": "exit 0",
    "success in words only": "echo 'print timeout reached' >&2; echo 'All done. SUCCESS'; exit 0",
    "half an answer": 'echo "$answer" | cut -c -40; exit 0',
    "an answer before it dies": 'echo "$answer"; kill -9 $$',
    "a flag that an update removed": "echo \"error: unexpected argument '--full-auto' found\" >&2; exit 2",
}


@pytest.mark.parametrize("way", QUIET_FAILURES)
def test_an_agent_that_failed_quietly_is_never_taken_for_success(agents: Agents, way: str) -> None:
    """Rows 40, 41 and 43: the exit code alone proves nothing, nor does an answer of a process that was killed."""
    word = agents.run("echo half > new.txt\n" + QUIET_FAILURES[way])
    assert word != "done"
    reply = terminalize(agents.host).expect("BLOCKED")
    assert agents.host.unit()["transport"]["commit"] is None
    assert reply.body["process_state"] == word
    assert _receipt(agents.host).get("failure_reason") or word == "died-without-result"


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("You've hit your limit \u00b7 resets 9:20pm", "out_of_credits"),
        ("error: 429 Too Many Requests. Please try again in 7s.", "rate_limited"),
    ],
)
def test_a_usage_limit_is_never_counted_as_success_or_as_any_failure(agents: Agents, said: str, word: str) -> None:
    """Row 39: the class, and when to come back, are in the receipt; nothing retries blindly."""
    event = json.dumps({"type": "result", "is_error": True, "result": said})
    state = agents.run(f"echo '{event.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'; echo \"{said}\" >&2; exit 1")
    assert state == "failed"
    receipt = _receipt(agents.host)
    assert receipt["failure_class"] == word, receipt
    if word == "rate_limited":
        assert receipt["retry_after_seconds"] == 7
    assert len(agents.host.unit()["attempts"]) == 1
