"""`gc` takes finished runs only, says first what goes, and never what somebody may still need."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controller import encoding, journal, lock
from controller import records as r
from tests.controller.quick import QuickHost
from tests.host import Reply
from tests.lane import Lane


@pytest.fixture
def host(tmp_path: Path, lane: Lane) -> QuickHost:
    """A host with the finished run `r1`."""
    made = QuickHost(tmp_path, lane)
    made.make_repo()
    made.init().expect("READY")
    made.pending("U1")
    made.integrate("U1").expect("UNIT_COMMITTED")
    made.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    return made


def gc(host: QuickHost, *more: str, days: str = "0") -> Reply:
    """What gc says."""
    return host.call("gc", "--older-than-days", days, *more)


def kept(reply: Reply) -> dict[str, str]:
    """Run to the reason why it stays."""
    return {item["run_id"]: item["reason"] for item in reply.body["kept"]}


def stays(host: QuickHost, phrase: str, run: str = "r1") -> None:
    """The run is kept, for this reason, also with --yes; not a byte of it changes."""
    before = {path: path.read_bytes() for path in host.run_dir(run).rglob("*") if path.is_file()}
    for more in ([], ["--yes"]):
        reason = kept(gc(host, *more))[run]
        assert phrase in reason, reason
    assert {path: path.read_bytes() for path in host.run_dir(run).rglob("*") if path.is_file()} == before


def test_it_says_what_goes_and_how_much_before_anything_goes(host: QuickHost) -> None:
    size = sum(path.lstat().st_size for path in host.run_dir().rglob("*") if path.is_file())
    body = gc(host).expect("WOULD_COLLECT").body
    assert body["runs"] == [{"run_id": "r1", "path": str(host.run_dir()), "bytes": size}]
    assert (body["bytes"], body["removed"]) == (size, False)
    assert host.run_dir().is_dir()
    assert gc(host, "--yes").expect("COLLECTED").body["runs"] == body["runs"]
    assert not host.run_dir().exists()
    assert sorted(path.name for path in host.runs.iterdir()) == [".locks"]
    host.call("doctor").expect("HEALTHY")
    assert gc(host, "--yes").expect("COLLECTED").body["runs"] == []


def test_a_finished_run_that_is_young_stays(host: QuickHost) -> None:
    assert kept(gc(host, "--yes", days="1").expect("COLLECTED")) == {"r1": "not old enough"}
    assert kept(host.call("gc", "--yes").expect("COLLECTED")) == {"r1": "not old enough"}


@pytest.mark.parametrize("days", ["nan", "inf", "-1", "x"])
def test_a_number_of_days_that_is_none_removes_nothing(host: QuickHost, days: str) -> None:
    reply = gc(host, "--yes", days=days)
    assert reply.code in (1, 2)
    assert host.run_dir().is_dir()


def test_a_huge_number_of_days_is_just_old(host: QuickHost) -> None:
    assert kept(gc(host, "--yes", days="1e300").expect("COLLECTED")) == {"r1": "not old enough"}


def _transport(host: QuickHost, run: str) -> str:
    return str(host.pending("U2", {f"{run}.txt": "x\n"}, run=run)["commit"])


def _dispatch(host: QuickHost, run: str) -> None:
    prepared = host.prepare("U2", run=run).expect("PREPARED").body
    host.authorize(prepared, host.write_job(prepared, run=run), run).expect("AUTHORIZED")


def _restore(host: QuickHost, run: str) -> None:
    _transport(host, run)
    host.integrate("U2", ("false",), run=run).expect("BLOCKED")


def _abandon(host: QuickHost, run: str) -> None:
    more = ("--abandon", "--expect-transport", _transport(host, run))
    host.call("cleanup", "--run-id", run, "--unit-id", "U2", *more).expect("CLEANED")


def _hold(host: QuickHost, run: str) -> None:
    _transport(host, run)
    host.call("integration-acquire", "--run-id", run, "--unit-id", "U2").expect("ACQUIRED")


def _commit(host: QuickHost, run: str) -> None:
    _transport(host, run)
    host.integrate("U2", run=run).expect("UNIT_COMMITTED")


UNFINISHED: dict[str, tuple[Callable[[QuickHost, str], object], str]] = {
    "unverified": (_commit, "no plan-wide verification has passed"),
    "queued": (lambda host, run: host.prepare("U2", run=run), "unit U2 is queued"),
    "dispatched": (_dispatch, "unit U2 is authoring"),
    "pending": (_transport, "unit U2 is integration-pending"),
    "restored": (_restore, "unit U2 is preserved"),
    "abandoned": (_abandon, "no plan-wide verification has passed"),
    "empty": (lambda host, run: None, "no plan-wide verification has passed"),
    "locked": (_hold, "holds the integration lock for U2"),
}


def test_unfinished_work_stays_however_old_it_is(host: QuickHost) -> None:
    for name, (harm, _) in UNFINISHED.items():
        host.init(name).expect("READY")
        harm(host, name)
    assert [item["run_id"] for item in gc(host).body["runs"]] == ["r1"]
    for name, (_, phrase) in UNFINISHED.items():
        stays(host, phrase, name)
    assert not host.run_dir("r1").exists(), "the finished one has gone"


def test_a_native_unit_that_still_has_its_workspace_stays(host: QuickHost) -> None:
    host.init("r2").expect("READY")
    prepared = host.prepare("U2", run="r2").expect("PREPARED").body
    job = host.write_job(prepared, run="r2")
    host.authorize(prepared, job, "r2").expect("AUTHORIZED")
    host.end_job(job, "failed", run="r2")
    unit = ("--run-id", "r2", "--unit-id", "U2")
    host.call("claim-fallback", *unit, "--caller-mode", "headless").expect("FALLBACK_AUTHORIZED")
    (host.repo / "native").write_text("native\n")
    host.git("add", "native")
    host.git("commit", "-qm", "native")
    more = ("--accepted-head", host.head, "--evidence-digest", "a" * 64, "--summary", "s")
    host.call("complete-fallback", *unit, *more).expect("FALLBACK_COMPLETED")
    host.call("verify-run", "--run-id", "r2", "--", "true").expect("RUN_VERIFIED")
    stays(host, "native-completed and not cleaned up", "r2")
    host.call("cleanup", *unit, "--abandon", "--expect-job", job).expect("CLEANED")
    assert [item["run_id"] for item in gc(host, "--yes").body["runs"]] == ["r2"]


def test_bytes_of_the_user_in_recovered_stay(host: QuickHost) -> None:
    host.pending("U2", {"u2": "x\n"})
    host.integrate("U2", ("sh", "-c", "echo precious >mine; exit 1")).expect("BLOCKED")
    host.integrate("U2").expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    stays(host, "recovered")
    saved = next(path for path in host.run_dir().glob("recovered/*/mine"))
    assert saved.read_text() == "precious\n"
    saved.unlink()
    assert [item["run_id"] for item in gc(host, "--yes").body["runs"]] == ["r1"]


def test_a_job_without_an_outcome_keeps_its_run(host: QuickHost) -> None:
    folder = host.run_dir() / "jobs" / "somebody"
    folder.mkdir(mode=0o700)
    host.private(folder / "meta.json", "{}")
    host.private(folder / "pid", json.dumps({"supervisor_pid": os.getpid(), "worker_pid": os.getpid()}))
    stays(host, "job somebody has no outcome")


def test_a_transport_that_is_still_pinned_keeps_its_run(host: QuickHost) -> None:
    transport = host.pending("U2", {"u2": "x\n"})
    host.integrate("U2").expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    host.git("update-ref", transport["ref"], transport["commit"])
    stays(host, "U2 is pinned")


def test_a_lock_file_that_names_the_run_keeps_it(host: QuickHost) -> None:
    lines = (host.run_dir() / "journal.jsonl").read_bytes().splitlines()
    path = next(json.loads(line)["data"]["path"] for line in lines if b"integration-lock-acquired" in line)
    names = ("branch_ref", "repository", "unit_id", "run_id", "nonce")
    host.private(Path(path), json.dumps({**dict.fromkeys(names, "x"), "run_id": "r1", "nonce": "0" * 48}))
    stays(host, "lock")


def test_a_run_that_cannot_be_read_stays(host: QuickHost) -> None:
    path = host.run_dir() / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-2] + b"!\n")
    stays(host, "cannot be read")
    (host.runs / "mine").mkdir(mode=0o700)
    (host.runs / "mine" / "notes").write_text("keep me\n")
    stays(host, "cannot be read", "mine")
    assert sorted(os.listdir(host.runs / "mine")) == ["notes"]


def test_a_link_of_the_user_in_recovered_stays_also_when_it_leads_to_a_folder(host: QuickHost) -> None:
    host.pending("U2", {"u2": "x\n"})
    host.integrate("U2", ("sh", "-c", "ln -s / mine; exit 1")).expect("BLOCKED")
    host.integrate("U2").expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    stays(host, "1 file(s) of yours")


def _worktree(host: QuickHost) -> None:
    host.git("worktree", "add", "-q", "--detach", str(host.run_dir() / "evidence" / "mine"))


@pytest.mark.parametrize(
    ("harm", "phrase"),
    [
        (lambda host: (host.run_dir() / "notes.txt").write_text("keep\n"), "notes.txt is not of the run"),
        (lambda host: (host.run_dir() / "units" / "mine").mkdir(), "units/mine is not of the run"),
        (_worktree, "evidence/mine is a registered worktree"),
    ],
    ids=["notes", "a folder among the units", "a worktree"],
)
def test_what_the_user_put_into_a_finished_run_stays(
    host: QuickHost, harm: Callable[[QuickHost], object], phrase: str
) -> None:
    harm(host)
    stays(host, phrase)


def test_a_malformed_lock_file_keeps_its_run_and_no_other(host: QuickHost) -> None:
    host.git("checkout", "-q", "-b", "other")
    host.init("r2").expect("READY")
    host.pending("U2", {"u2": "x\n"}, run="r2")
    acquired = host.call("integration-acquire", "--run-id", "r2", "--unit-id", "U2").expect("ACQUIRED").body
    (lock_file,) = (host.runs / ".locks").glob("integration-*.json")
    released = ("--run-id", "r2", "--unit-id", "U2", "--lock-token", acquired["lock_token"])
    host.call("integration-release", *released).expect("RELEASED")
    host.integrate("U2", run="r2").expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r2", "--", "true").expect("RUN_VERIFIED")
    host.private(lock_file, "{}\n")
    reply = gc(host, "--yes").expect("COLLECTED")
    assert [item["run_id"] for item in reply.body["runs"]] == ["r1"]
    assert "not a lock record" in kept(reply)["r2"]


def test_a_link_in_the_runs_root_leads_gc_nowhere(host: QuickHost) -> None:
    outside = host.base / "outside"
    host.run_dir().rename(outside)
    (host.runs / "r1").symlink_to(outside)
    assert gc(host, "--yes").body["runs"] == []
    assert (outside / "journal.jsonl").exists()


def test_a_run_that_another_command_works_on_stays_and_nobody_waits(host: QuickHost, tmp_path: Path) -> None:
    other = Lane(tmp_path)
    go = tmp_path / "go"
    try:
        script = f"while [ ! -e {go} ]; do sleep 0.02; done"
        running = other.start(host, "verify-run", "--run-id", "r1", "--", "sh", "-c", script)
        path = host.run_dir() / "journal.jsonl"
        seen = path.stat().st_size
        deadline = time.monotonic() + 20
        while path.stat().st_size == seen and time.monotonic() < deadline:
            time.sleep(0.01)
        started = time.monotonic()
        for more in ([], ["--yes"]):
            assert kept(gc(host, *more)) == {"r1": "another command works on it"}
        assert time.monotonic() - started < 8
        go.write_text("")
        running.reply().expect("RUN_VERIFIED")
    finally:
        go.write_text("")
        other.close()


def test_a_run_that_got_new_work_between_looking_and_taking_stays(host: QuickHost, tmp_path: Path) -> None:
    """What was found is found again under the run's lock: here the work is recorded while gc waits for it."""
    other = Lane(tmp_path)
    try:
        with lock.held(host.runs / ".locks" / "runs.lock", wait=5, what="test"):
            running = other.start(host, "gc", "--older-than-days", "0", "--yes")
            _until_it_waits(running.pid)
            writer, _ = journal.Writer.open(host.run_dir() / "journal.jsonl")
            data = r.LockIntent(nonce="0" * 48, path="x")
            writer.append(data.kind, "U1", "attempt-1", encoding.storable(data))
            writer.close()
        assert "holds the integration lock" in kept(running.reply())["r1"]
        assert host.run_dir().is_dir()
    finally:
        other.close()


def _until_it_waits(pid: int) -> None:
    """A command that tries a lock again and again falls asleep again and again."""
    status = Path(f"/proc/{pid}/status")
    sleeps: list[str] = []
    deadline = time.monotonic() + 5
    while len(set(sleeps[-4:])) < 4 and time.monotonic() < deadline:
        sleeps += [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt")]
        time.sleep(0.04)


def test_a_killed_gc_leaves_no_half_run(host: QuickHost) -> None:
    """The name goes first, in one step; what is left of the bytes is doctor's."""
    shutil.copytree(host.run_dir(), host.base / "copy")
    for attempt in range(6):
        running = host.lane.start(host, "gc", "--older-than-days", "0", "--yes")
        time.sleep(0.01 * attempt)
        running.kill(tree=False)
        running.wait()
        if not host.run_dir().exists():
            break
        host.call("journal", "verify", "--run-id", "r1").expect("JOURNAL_OK")
    host.call("doctor", "--fix").expect("HEALTHY")
    assert set(os.listdir(host.runs)) <= {".locks", "r1"}
