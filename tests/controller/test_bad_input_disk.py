"""A full disk, or a limit on file sizes: a word and a remedy; what was recorded stays, and the next call goes on."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller.situations import Desk, begin, begin_run


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _limited(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _journal_size(desk: Desk) -> int:
    return (desk.run_dir() / "journal.jsonl").stat().st_size


def test_no_run_is_half_begun(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    (desk.base / "brief.md").write_text("x\n")
    digest = "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"
    binding = '{"mode":"prefer","target":"codex","model":null,"source":"t"}'
    more = ("--binding-json", binding, "--egress-json", '{"route":"codex","intermediaries":[]}')
    args = ["init", "--run-id", "r1", "--repo", str(desk.repo)]
    args += ["--prompt-brief", str(desk.base / "brief.md"), "--prompt-digest", digest, *more]
    reply = desk.finish(desk.spawn(*args, preexec=_limited(100))).expect("BLOCKED")
    assert "too large" in reply.stderr.lower()
    assert not desk.run_dir().exists()
    assert [path.name for path in desk.runs.iterdir()] == [".locks"]
    desk.call(*args).expect("READY")


def test_a_record_that_does_not_fit_stops_the_step_before_its_effect(desk: Desk) -> None:
    """One byte is left for the journal at each step of a unit's life; without the limit the same step then works."""

    def step(word: str, *args: str) -> None:
        before = desk.trace()
        reply = desk.finish(desk.spawn(*args, preexec=_limited(_journal_size(desk) + 1)))
        assert reply.word == "BLOCKED", (args, reply)
        assert reply.body["remedy"]
        after = desk.trace()
        assert {key for key in before if before[key] != after[key]} == set(), args
        desk.call(*args).expect(word)

    (desk.base / "packet").write_text("p")
    step("PREPARED", *desk.of("prepare", "--base", "HEAD", "--packet", str(desk.base / "packet")))
    prepared = desk.call(*desk.of("prepare", "--base", "HEAD", "--packet", str(desk.base / "packet"))).body
    job = desk.write_job(prepared)
    step("AUTHORING", *desk.of("record-job", "--attempt-id", "attempt-1", "--job-id", job))
    Path(prepared["workspace"], "new.txt").write_text("new\n")
    desk.write_result(prepared)
    desk.end_job(job, "done")
    step("SYNCED", *desk.of("sync-job"))
    step("INTEGRATION_PENDING", *desk.of("terminalize"))
    step("UNIT_COMMITTED", *desk.of("integrate", "--commit-message", "m"), "--", "true")
    step("RUN_VERIFIED", "verify-run", "--run-id", "r1", "--", "true")


def test_a_transport_that_git_cannot_write_is_not_pinned(desk: Desk) -> None:
    def work(workspace: Path) -> None:
        (workspace / "big").write_bytes(os.urandom(400_000))

    desk.author(work=work)
    desk.do("SYNCED", "sync-job")
    reply = desk.finish(desk.spawn(*desk.of("terminalize"), preexec=_limited(200_000)))
    assert reply.word == "BLOCKED", reply
    assert desk.git("for-each-ref", "refs/ce-work") == ""
    assert (desk.run_dir() / "units" / "U1" / "workspace" / "big").exists()
    desk.do("INTEGRATION_PENDING", "terminalize")


def test_an_apply_that_does_not_fit_is_taken_back(desk: Desk) -> None:
    desk.pending(work={"f": "x" * 400_000, "dir/g": "changed\n"})
    before = desk.fingerprint()
    args = [*desk.of("integrate", "--commit-message", "m"), "--", "true"]
    reply = desk.finish(desk.spawn(*args, preexec=_limited(200_000)))
    assert reply.word == "BLOCKED", reply
    if desk.locks():
        desk.call("resume", "--run-id", "r1").expect("RESUMED")
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    desk.call(*args).expect("UNIT_COMMITTED")


# --- a disk that is really full -----------------------------------------------------------------------------------


def _can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Desk]:
    """A host whose runs root lies on a file system of one megabyte."""
    desk = begin(tmp_path)
    desk.runs.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(desk.runs)]
    subprocess.run(mount, check=True)
    try:
        desk.init().expect("READY")
        yield desk
    finally:
        subprocess.run(["umount", str(desk.runs)], check=True)


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass
        try:
            while True:
                file.write(b"\0")
        except OSError:
            return


@pytest.mark.skipif(not _can_mount(), reason="needs root and mount to fill a disk")
def test_a_full_disk_stops_a_transaction_without_a_lost_byte_and_resume_ends_it(small: Desk) -> None:
    desk = small
    desk.pending(work={"f": "changed\n", "new.txt": "new\n"})
    before = desk.fingerprint()
    fill = desk.runs / "r1" / "jobs" / "fill"
    script = f"dd if=/dev/zero of={fill} bs=4096 2>/dev/null; true"
    reply = desk.integrate("U1", ("sh", "-c", script)).expect("BLOCKED")
    assert "space" in reply.stderr.lower()
    assert reply.body["remedy"]
    assert desk.call("status", "--run-id", "r1").expect("STATUS")
    fill.unlink()
    desk.call("resume", "--run-id", "r1").expect("RESUMED")
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    desk.integrate().expect("UNIT_COMMITTED")


@pytest.mark.skipif(not _can_mount(), reason="needs root and mount to fill a disk")
def test_a_disk_that_is_full_before_a_command_changes_nothing(small: Desk) -> None:
    desk = small
    desk.pending()
    fill = desk.runs / "r1" / "jobs" / "fill"
    _fill(fill)
    before = desk.trace()
    (desk.base / "packet").write_text("p")
    for args in (
        desk.of("prepare", "--base", "HEAD", "--packet", str(desk.base / "packet"), unit="U2"),
        desk.of("integration-acquire"),
        [*desk.of("integrate", "--commit-message", "m"), "--", "true"],
    ):
        reply = desk.call(*args)
        assert reply.word == "BLOCKED", (args, reply)
        assert "space" in reply.stderr.lower(), reply
    after = desk.trace()
    assert {key for key in before if before[key] != after[key]} <= {"journal"}
    # A short record may still fit into the last block; it is then the intent of an effect that was not made.
    assert after["journal"].startswith(before["journal"])
    desk.call("status", "--run-id", "r1").expect("STATUS")
    fill.unlink()
    desk.integrate().expect("UNIT_COMMITTED")
