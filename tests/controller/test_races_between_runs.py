"""Hosts at once on different runs: of one branch, of clones, of linked worktrees; deleted runs; recycled pids."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller import encoding, journal
from controller import records as r
from controller.shapes import Identity
from controller.survivors import MARKER
from runner.process import boot_id, identify
from tests.controller.quick import QuickHost
from tests.host import ROOT, Reply
from tests.lane import Lane


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Lane]]:
    """Two commands at once."""
    made = [Lane(tmp_path_factory.mktemp(f"lane-{number}")) for number in range(2)]
    yield made
    for lane in made:
        lane.close()


@pytest.fixture
def host(tmp_path: Path, lanes: list[Lane]) -> QuickHost:
    """A host with a repository and the runs `r1` and `r2` on its branch."""
    made = QuickHost(tmp_path, lanes[0])
    made.make_repo()
    for run in ("r1", "r2"):
        made.init(run).expect("READY")
    return made


def at_once(lanes: list[Lane], *calls: tuple[QuickHost, list[str]]) -> list[Reply]:
    """Both commands at once; their answers."""
    running = [lane.start(host, *argv) for lane, (host, argv) in zip(lanes, calls, strict=True)]
    return [one.reply() for one in running]


def integrate(run: str, *more: str, unit: str = "U1", check: tuple[str, ...] = ("true",)) -> list[str]:
    """The command line of an `integrate`."""
    return ["integrate", "--run-id", run, "--unit-id", unit, "--commit-message", f"feat: {run}", *more, "--", *check]


def kinds(host: QuickHost, run: str) -> list[str]:
    """The kinds of a run's records."""
    lines = (host.run_dir(run) / "journal.jsonl").read_bytes().splitlines()
    return [json.loads(line)["kind"] for line in lines]


def sound(host: QuickHost, *runs: str) -> None:
    """Journals verify, no lock is left, nothing is left in the checkout."""
    for run in runs:
        host.call("journal", "verify", "--run-id", run).expect("JOURNAL_OK")
        assert host.manifest(run)["integration_lock"] is None
    assert not list((host.runs / ".locks").glob("integration-*.json"))
    assert host.git("status", "--porcelain", "-uall") == ""


def test_two_runs_that_integrate_on_one_branch_never_both_commit_on_the_same_head(
    host: QuickHost, lanes: list[Lane]
) -> None:
    """One commit; the other run is told who was first, or that HEAD is not where it was prepared."""
    for run in ("r1", "r2"):
        host.pending("U1", {f"{run}.txt": "new\n"}, run=run)
    before = host.head
    replies = at_once(lanes, (host, integrate("r1")), (host, integrate("r2")))
    assert sorted(reply.word for reply in replies) == ["BLOCKED", "UNIT_COMMITTED"]
    loser = next(reply for reply in replies if reply.code)
    assert "owner_run" in loser.body or "advanced outside" in loser.stderr, repr(loser)
    assert host.git("rev-list", "--count", f"{before}..HEAD") == "1"
    sound(host, "r1", "r2")


def test_a_run_that_queues_for_the_branch_gets_its_turn_and_a_clear_word(host: QuickHost, lanes: list[Lane]) -> None:
    """With --wait-lock the second one waits for the first, then learns what the first has done."""
    for run in ("r1", "r2"):
        host.pending("U1", {f"{run}.txt": "new\n"}, run=run)
    slow = ("sh", "-c", "sleep 0.5; exit 1")
    first = lanes[0].start(host, *integrate("r1", check=slow))
    deadline = time.monotonic() + 20
    while "canonical-verification-started" not in kinds(host, "r1") and time.monotonic() < deadline:
        time.sleep(0.01)
    refused = lanes[1].start(host, *integrate("r2")).reply().expect("BLOCKED")
    assert (refused.body["owner_run"], refused.body["owner_unit"]) == ("r1", "U1")
    second = lanes[1].start(host, *integrate("r2", "--wait-lock", "30")).reply()
    first.reply().expect("BLOCKED")
    second.expect("UNIT_COMMITTED")
    sound(host, "r1", "r2")


def test_two_runs_that_take_the_lock_by_hand_get_one_token(host: QuickHost, lanes: list[Lane]) -> None:
    """One holds the branch, the other is told who."""
    for run in ("r1", "r2"):
        host.pending("U1", {f"{run}.txt": "new\n"}, run=run)
    calls = [["integration-acquire", "--run-id", run, "--unit-id", "U1"] for run in ("r1", "r2")]
    replies = at_once(lanes, (host, calls[0]), (host, calls[1]))
    assert sorted(reply.word for reply in replies) == ["ACQUIRED", "BLOCKED"]
    winner = "r1" if replies[0].code == 0 else "r2"
    loser = next(reply for reply in replies if reply.code)
    assert loser.body["owner_run"] == winner
    host.call("resume", "--run-id", winner).expect("RESUMED")
    sound(host, "r1", "r2")


def test_two_hosts_that_begin_the_same_run_make_one(tmp_path: Path, lanes: list[Lane]) -> None:
    """The second `init` answers for the run of the first."""
    host = QuickHost(tmp_path, lanes[0])
    host.make_repo()
    host.init("other").expect("READY")
    brief = tmp_path / "brief-other.md"
    argv = ["init", "--run-id", "r1", "--repo", str(host.repo), "--prompt-brief", str(brief), "--prompt-digest"]
    argv += [hashlib.sha256(brief.read_bytes()).hexdigest()]
    argv += ["--binding-json", '{"mode":"prefer","target":"codex","model":null,"source":"t"}']
    argv += ["--egress-json", '{"route":"codex","intermediaries":[]}']
    replies = at_once(lanes, (host, argv), (host, argv))
    assert [reply.expect("READY").body["resumed"] for reply in replies].count(False) == 1
    assert sorted(path.name for path in host.runs.iterdir()) == [".locks", "other", "r1"]


def test_clones_that_share_nothing_do_not_wait_for_each_other(tmp_path: Path, lanes: list[Lane]) -> None:
    """Two clones, two runs, one runs root: both commit."""
    one = QuickHost(tmp_path, lanes[0])
    one.make_repo()
    two = QuickHost(tmp_path, lanes[1])
    two.repo = tmp_path / "clone"
    one.git("clone", "-q", str(one.repo), str(two.repo))
    for host, run in ((one, "r1"), (two, "r2")):
        host.init(run).expect("READY")
    prepares = [_prepare(host, run) for host, run in ((one, "r1"), (two, "r2"))]
    for reply in at_once(lanes, (one, prepares[0]), (two, prepares[1])):
        reply.expect("PREPARED")
    for host, run in ((one, "r1"), (two, "r2")):
        _finish_attempt(host, run)
    for reply in at_once(lanes, (one, integrate("r1")), (two, integrate("r2"))):
        reply.expect("UNIT_COMMITTED")
    assert one.head != two.head
    sound(one, "r1")
    sound(two, "r2")


def test_linked_worktrees_of_one_repository_prepare_and_integrate_at_once(tmp_path: Path, lanes: list[Lane]) -> None:
    """`git worktree add` writes into one registry: both workspaces are registered, once each, both commit."""
    one = QuickHost(tmp_path, lanes[0])
    one.make_repo()
    two = QuickHost(tmp_path, lanes[1])
    two.repo = tmp_path / "linked"
    one.git("worktree", "add", "-q", "-b", "second", str(two.repo))
    for host, run in ((one, "r1"), (two, "r2")):
        host.init(run).expect("READY")
    for round_number in range(3):
        unit = f"U{round_number}"
        prepares = [_prepare(one, "r1", unit), _prepare(two, "r2", unit)]
        for reply in at_once(lanes, (one, prepares[0]), (two, prepares[1])):
            reply.expect("PREPARED")
        listed = one.git("worktree", "list", "--porcelain")
        for run in ("r1", "r2"):
            assert listed.count(f"worktree {one.run_dir(run)}/units/{unit}/workspace\n") == 1
            _finish_attempt(one if run == "r1" else two, run, unit)
        calls = [integrate("r1", unit=unit), integrate("r2", unit=unit)]
        for reply in at_once(lanes, (one, calls[0]), (two, calls[1])):
            reply.expect("UNIT_COMMITTED")
    assert one.git("rev-list", "--count", "main") == one.git("rev-list", "--count", "second") == "4"
    assert one.git("worktree", "list").count("\n") == 1
    sound(one, "r1")
    sound(two, "r2")


def _prepare(host: QuickHost, run: str, unit: str = "U1") -> list[str]:
    packet = host.base / f"packet-{run}.md"
    packet.write_text(f"{run}\n")
    return ["prepare", "--run-id", run, "--unit-id", unit, "--base", host.head, "--packet", str(packet)]


def _finish_attempt(host: QuickHost, run: str, unit: str = "U1") -> None:
    """The prepared attempt is dispatched, worked on and terminalized."""
    prepared = host.call(*_prepare(host, run, unit)).expect("PREPARED").body
    job = host.write_job(prepared, run=run)
    host.authorize(prepared, job, run).expect("AUTHORIZED")
    Path(prepared["workspace"], f"{run}-{unit}.txt").write_text("new\n")
    host.write_result(prepared)
    host.end_job(job, "done", run=run)
    host.call("terminalize", "--run-id", run, "--unit-id", unit).expect("INTEGRATION_PENDING")


def test_a_run_folder_deleted_under_a_held_lock_does_not_block_its_branch_for_ever(
    host: QuickHost, lanes: list[Lane]
) -> None:
    """The next integrate of another run takes the lock over and says so in its journal; two at once: one does."""
    for run in ("r1", "r2"):
        host.pending("U1", {f"{run}.txt": "new\n"}, run=run)
    host.init("r3").expect("READY")
    host.pending("U1", {"r3.txt": "new\n"}, run="r3")
    token = host.call("integration-acquire", "--run-id", "r1", "--unit-id", "U1").expect("ACQUIRED").body["lock_token"]
    host.integrate("U1", run="r2").expect("BLOCKED")
    shutil.rmtree(host.run_dir("r1"))
    replies = at_once(lanes, (host, integrate("r2")), (host, integrate("r3")))
    assert sorted(reply.word for reply in replies) == ["BLOCKED", "UNIT_COMMITTED"]
    taken = [run for run in ("r2", "r3") if "integration-lock-taken-over" in kinds(host, run)]
    assert len(taken) == 1
    lines = (host.run_dir(taken[0]) / "journal.jsonl").read_bytes().splitlines()
    record = next(value for value in map(json.loads, lines) if value["kind"] == "integration-lock-taken-over")
    assert (record["data"]["previous"]["run_id"], record["data"]["previous"]["nonce"]) == ("r1", token)
    sound(host, "r2", "r3")


def test_a_killed_integrate_of_one_run_is_not_taken_over_by_another(host: QuickHost, lanes: list[Lane]) -> None:
    """Its lock stays until its own `resume`; then the other run may go on."""
    for run in ("r1", "r2"):
        host.pending("U1", {f"{run}.txt": "new\n"}, run=run)
    before = host.fingerprint()
    running = lanes[1].start(host, *integrate("r1", check=("sleep", "600")))
    deadline = time.monotonic() + 20
    while "canonical-verification-started" not in kinds(host, "r1") and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill(tree=True)
    running.wait()
    reply = host.integrate("U1", run="r2").expect("BLOCKED")
    assert reply.body["owner_run"] == "r1"
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    assert host.fingerprint() == before
    host.integrate("U1", run="r2").expect("UNIT_COMMITTED")
    sound(host, "r1", "r2")


# --- pids ------------------------------------------------------------------------------------------------------------


def _record(host: QuickHost, run: str, data: r.Data, unit: str) -> None:
    """A record that a controller would have written before it was killed."""
    writer, _ = journal.Writer.open(host.run_dir(run) / "journal.jsonl")
    writer.append(data.kind, unit, "attempt-1", encoding.storable(data))
    writer.close()


def _verification(pid: int, start_time: int, marker: str) -> r.VerificationStarted:
    identity = Identity(pid=pid, start_time=start_time, boot_id=boot_id())
    return r.VerificationStarted(
        supervisor=identity, child=identity, marker=marker, argv=("true",), log="/nowhere", timeout_seconds=60
    )


def test_a_bystander_with_the_pid_of_a_dead_verification_is_never_signalled(host: QuickHost) -> None:
    """The recorded start time is another one: the pid was recycled."""
    host.prepare("U1").expect("PREPARED")
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        alive = identify(bystander.pid)
        assert alive is not None
        _record(host, "r1", _verification(alive.pid, alive.start_time - 1, secrets.token_hex(16)), "U1")
        host.call("resume", "--run-id", "r1").expect("RESUMED")
        assert bystander.poll() is None
        assert kinds(host, "r1")[-1] == "survivors-ended"
    finally:
        bystander.kill()
        bystander.wait()


def test_what_a_killed_controller_left_running_is_ended_before_anything_else(host: QuickHost) -> None:
    """Exactly the recorded process, and whatever carries the mark of its verification; nobody else."""
    host.prepare("U1").expect("PREPARED")
    marker = secrets.token_hex(16)
    others = {"PATH": os.environ["PATH"]}
    leader = subprocess.Popen(["sleep", "600"], env=others)
    marked = subprocess.Popen(["sleep", "600"], env={**others, MARKER: marker}, start_new_session=True)
    bystander = subprocess.Popen(["sleep", "600"], env={**others, MARKER: f"{marker}0"})
    try:
        alive = identify(leader.pid)
        assert alive is not None
        _record(host, "r1", _verification(alive.pid, alive.start_time, marker), "U1")
        host.call("sync-job", "--run-id", "r1", "--unit-id", "U1").expect("SYNCED")
        assert leader.wait(timeout=10) == marked.wait(timeout=10) == -signal.SIGTERM
        assert bystander.poll() is None
    finally:
        for process in (leader, marked, bystander):
            process.kill()
            process.wait()


def _namespaces() -> list[str] | None:
    """How to get a pid namespace here, or None."""
    for more in ([], ["--user", "--map-root-user"]):
        argv = ["unshare", *more, "--pid", "--fork", "--mount-proc"]
        script = "echo 100 >/proc/sys/kernel/ns_last_pid"
        try:
            if subprocess.run([*argv, "sh", "-c", script], capture_output=True, check=False).returncode == 0:
                return argv
        except FileNotFoundError:
            return None
    return None


def test_recycled_pids_of_a_verification_are_left_alone_in_a_pid_namespace(tmp_path: Path) -> None:
    """Real pids that come back, as after a day of a busy machine."""
    argv = _namespaces()
    if argv is None:
        pytest.skip("no pid namespaces here (unshare --pid --mount-proc with ns_last_pid)")
    command = [*argv, sys.executable, "-P", "-m", "tests.controller.race_recycled_pids", str(tmp_path)]
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "untouched\n", done.stderr
