"""`next`: a host that does nothing but follow it gets through every path of the protocol (design.md section 4)."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import controller.cli  # noqa: F401 - registers the commands
from controller.options import cli
from tests.controller.situations import DIGEST, Desk, begin, begin_run, require_form
from tests.host import BINDING, EGRESS, Reply


class Follower:
    """A host that knows no command line of its own: every step is taken from the last answer's `next`."""

    def __init__(self, desk: Desk, first: Reply) -> None:
        self.desk = desk
        self.reply = first
        self._check()

    @property
    def names(self) -> list[str]:
        """What is proposed, by name."""
        return [_name(argv) for argv in self.reply.body["next"]]

    def _check(self) -> None:
        """Every proposed controller command is one that the parser accepts, in full."""
        for argv in self.reply.body["next"]:
            if Path(argv[0]).name == "unit-workspace":
                filled = ["headless" if word == "<interactive|headless>" else word for word in argv[2:]]
                with cli.commands[argv[1]].make_context(argv[1], filled):
                    pass

    def step(self, name: str, word: str = "", **fill: str) -> Reply:
        """Take a proposed step; unknown arguments come from `fill`."""
        argv = next((argv for argv in self.reply.body["next"] if _name(argv) == name), None)
        assert argv is not None, (name, self.names, self.reply)
        given = {
            "message": "feat: it",
            "verification-command": "true",
            "argument ...": "x",
            "unit-id": "U1",
            "summary": "done",
            "interactive|headless": "headless",
            "sha256": DIGEST,
            "head": self.desk.head,
            "commit": self.desk.head,
            "packet-file": str(self.desk.base / "packet"),
            **fill,
        }
        (self.desk.base / "packet").write_text("do it\n")
        words = [given[item[1:-1]] if item.startswith("<") else item for item in argv]
        done = subprocess.run(
            words, cwd=self.desk.base, env=self.desk.env, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
        if Path(words[0]).name != "unit-workspace":
            assert done.returncode == 0, (words, done.stderr)
            return self.reply
        self.reply = require_form(Reply(done))
        assert self.reply.code == 0, (words, self.reply)
        if word:
            self.reply.expect(word)
        self._check()
        return self.reply


def _name(argv: list[str]) -> str:
    if Path(argv[0]).name == "git":
        return argv[3]
    return "start" if argv[0] == "env" else argv[1]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _status(desk: Desk) -> Follower:
    return Follower(desk, desk.do("STATUS", "status"))


def test_a_plan_run_leads_from_its_checkpoint_to_the_first_unit(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    plan = b"# Plan\n"
    (desk.repo / "plan.md").write_bytes(plan)
    reply = desk.call(
        "init", "--run-id", "r1", "--repo", str(desk.repo), "--plan", "plan.md",
        "--plan-digest", hashlib.sha256(plan).hexdigest(),
        "--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS),
    )  # fmt: skip
    follower = Follower(desk, reply)
    assert follower.names == ["checkpoint-plan", "prepare"]
    follower.step("checkpoint-plan", "CHECKPOINTED")
    assert follower.names == ["prepare"]
    follower.step("prepare", "PREPARED")


def test_the_straight_way_leads_from_nothing_to_a_verified_run_and_to_the_next_unit(desk: Desk) -> None:
    follower = Follower(desk, desk.call("status", "--run-id", "r1"))
    prepared = follower.step("prepare", "PREPARED").body
    assert follower.names == ["start", "record-job", "cleanup"]
    job = desk.write_job(prepared)
    follower.step("record-job", "AUTHORING", **{"job-id": job})
    assert follower.names == ["wait", "sync-job", "reap"]
    desk.authorize(prepared, job).expect("AUTHORIZED")
    Path(prepared["workspace"], "new").write_text("new\n")
    desk.write_result(prepared)
    desk.end_job(job, "done")
    follower.step("wait")
    follower.step("sync-job", "SYNCED")
    assert follower.names == ["terminalize"]
    follower.step("terminalize", "INTEGRATION_PENDING")
    assert follower.names == ["diff", "integrate", "cleanup"]
    follower.step("diff")
    follower.step("integrate", "UNIT_COMMITTED")
    assert follower.names == ["prepare", "verify-run"]
    follower.step("verify-run", "RUN_VERIFIED")
    assert follower.names == ["prepare"]
    follower.step("prepare", "PREPARED", **{"unit-id": "U2"})


def test_the_manual_way_leads_to_the_same_end(desk: Desk) -> None:
    desk.pending()
    follower = Follower(desk, desk.do("ACQUIRED", "integration-acquire"))
    assert follower.names == ["preflight", "integration-release"]
    follower.step("preflight", "PREFLIGHT_OK")
    assert follower.names == ["cherry-pick", "mark-applied", "restore"]
    follower.step("cherry-pick")
    follower.step("mark-applied", "APPLIED")
    follower.step("mark-verified", "VERIFIED")
    assert follower.names == ["commit", "mark-committed", "restore"]
    follower.step("commit")
    follower.step("mark-committed", "COMMITTED")
    follower.step("cleanup", "CLEANED")
    follower.step("integration-release", "RELEASED")
    follower.step("verify-run", "RUN_VERIFIED")


def test_a_lock_that_was_taken_too_early_can_be_let_go(desk: Desk) -> None:
    desk.pending()
    follower = Follower(desk, desk.do("ACQUIRED", "integration-acquire"))
    follower.step("integration-release", "RELEASED")
    follower.step("integrate", "UNIT_COMMITTED")


def test_a_manual_apply_can_be_taken_back_and_integrated_after_all(desk: Desk) -> None:
    desk.applied()
    follower = _status(desk)
    assert follower.names == ["mark-verified", "integrate", "restore"]
    follower.step("restore", "PRESERVED")
    assert follower.names == ["integration-release", "preflight", "resume"]
    follower.step("preflight", "PREFLIGHT_OK")
    follower.step("restore", "PRESERVED")
    follower.step("integration-release", "RELEASED")
    assert follower.names == ["integrate", "cleanup", "claim-fallback"]
    follower.step("integrate", "UNIT_COMMITTED")


def test_a_manual_apply_can_be_handed_to_integrate(desk: Desk) -> None:
    desk.applied()
    _status(desk).step("integrate", "UNIT_COMMITTED")


def test_a_verified_unit_can_still_be_taken_back(desk: Desk) -> None:
    desk.verified()
    follower = _status(desk)
    follower.step("restore", "PRESERVED")
    follower.step("resume", "RESUMED")
    _status(desk).step("cleanup", "CLEANED")


def test_a_committed_unit_whose_lock_was_let_go_is_still_finished(desk: Desk) -> None:
    desk.committed()
    follower = _status(desk)
    assert follower.names == ["cleanup", "integration-release", "resume"]
    follower.step("integration-release", "RELEASED")
    assert follower.names == ["cleanup", "resume"]
    follower.step("resume", "RESUMED")
    follower.step("verify-run", "RUN_VERIFIED")


def test_a_failed_worker_leads_to_one_native_implementation(desk: Desk) -> None:
    desk.failed()
    follower = _status(desk)
    assert follower.names == ["claim-fallback", "cleanup"]
    follower.step("claim-fallback", "FALLBACK_AUTHORIZED")
    assert follower.names == ["complete-fallback"]
    (desk.repo / "native").write_text("native\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", "native")
    follower.step("complete-fallback", "FALLBACK_COMPLETED")
    follower.step("verify-run", "RUN_VERIFIED")


def _blocked(desk: Desk) -> None:
    desk.write_result(desk.author(), terminal_status="blocked", summary="no key")
    desk.do("BLOCKED", "terminalize")


def _invalid(desk: Desk) -> None:
    desk.write_result(desk.author(), target="claude")
    desk.do("BLOCKED", "terminalize")


def _scope(desk: Desk) -> None:
    wider = {"requested_paths": ["x"], "reason": "r"}
    desk.write_result(desk.author(), terminal_status="scope_expansion", scope_expansion=wider)
    desk.do("INTEGRATION_PENDING", "terminalize")


@pytest.mark.parametrize(
    ("situation", "names"),
    [
        (lambda desk: desk.prepare().expect("PREPARED"), ["start", "record-job", "cleanup"]),
        (lambda desk: desk.failed(), ["claim-fallback", "cleanup"]),
        (_blocked, ["cleanup"]),
        (_invalid, ["claim-fallback", "cleanup"]),
        (_scope, ["diff", "cleanup"]),
        (lambda desk: desk.preserved(), ["integrate", "cleanup", "claim-fallback"]),
    ],
    ids=["queued", "failed", "blocked", "invalid", "scope expansion", "preserved"],
)
def test_an_attempt_that_leads_nowhere_can_be_given_up_and_tried_again(
    desk: Desk, situation: Any, names: list[str]
) -> None:
    situation(desk)
    follower = _status(desk)
    assert follower.names == names
    follower.step("cleanup", "CLEANED")
    assert follower.names == ["prepare"]
    reply = follower.step("prepare", "PREPARED")
    assert reply.body["attempt_id"] == "attempt-2"


def test_a_killed_integration_leads_through_resume_back_to_integrate(desk: Desk) -> None:
    desk.pending()
    desk.kill_during_verification(desk.of("integrate", "--commit-message", "m"))
    follower = _status(desk)
    assert follower.names[0] == "resume"
    follower.step("resume", "RESUMED")
    _status(desk).step("integrate", "UNIT_COMMITTED")


def test_the_proposed_start_command_dispatches_the_real_adapter_to_an_end(desk: Desk) -> None:
    desk.env |= {"PATH": "/usr/bin:/bin", "CROSS_MODEL_CODEX_APP_DIRS": ""}
    if shutil.which("codex", path=desk.env["PATH"]):
        pytest.skip("a codex CLI is installed here")
    prepared = desk.prepare().expect("PREPARED")
    start = prepared.body["next"][0]
    assert _name(start) == "start"
    done = subprocess.run(start, env=desk.env, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    job = done.stdout.decode().strip()
    follower = Follower(desk, prepared)
    follower.step("record-job", "AUTHORING", **{"job-id": job})
    follower.step("wait")
    reply = follower.step("sync-job", "SYNCED")
    assert reply.body["process_state"] == "failed"
    assert "codex" in reply.body["failure_reason"]
    receipt = desk.unit()["attempts"][0]["terminal_receipt"]
    assert (receipt["terminal_status"], receipt["summary"]) == ("unavailable", "External route unavailable")
    assert follower.names == ["claim-fallback", "cleanup"]


def test_a_running_worker_can_be_ended_by_what_next_says(desk: Desk) -> None:
    """The runner is real here; the worker only sleeps."""
    prepared = desk.prepare().expect("PREPARED")
    body = prepared.body
    start = list(body["next"][0])
    adapter = desk.base / "bin" / "cross-model-work.sh"
    adapter.parent.mkdir()
    adapter.write_text("#!/bin/sh\nexec sleep 600\n")
    adapter.chmod(0o755)
    start[start.index(body["adapter"])] = str(adapter)
    done = subprocess.run(start, env=desk.env, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    job = done.stdout.decode().strip()
    meta = desk.run_dir() / "jobs" / job / "meta.json"
    meta.write_text(meta.read_text().replace(str(adapter), body["adapter"]))
    follower = Follower(desk, prepared)
    follower.step("record-job", "AUTHORING", **{"job-id": job})
    follower.step("sync-job", "SYNCED")
    assert follower.names == ["wait", "sync-job", "reap"]
    assert follower.step("reap", "REAPED").body["process_state"] == "timeout"
    assert follower.names == ["claim-fallback", "cleanup"]


def test_a_retry_is_proposed_with_its_wave_and_an_attempt_id_that_is_free(desk: Desk) -> None:
    desk.prepare("U1", "--wave-id", "w", "--wave-position", "1", "--attempt-id", "attempt-2").expect("PREPARED")
    follower = _status(desk)
    follower.step("cleanup", "CLEANED")
    assert follower.step("prepare", "PREPARED").body["attempt_id"] == "attempt-3"
    follower.step("cleanup", "CLEANED")
    assert follower.step("prepare", "PREPARED").body["attempt_id"] == "attempt-4"


def test_an_attempt_is_not_proposed_to_be_given_up_right_after_its_adapter_asked_for_consent(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    follower = Follower(desk, desk.authorize(prepared, desk.write_job(prepared)))
    assert follower.names == ["wait", "sync-job", "reap"]
    follower.step("sync-job", "SYNCED")  # now it is known that it never started
    assert follower.names == ["sync-job", "claim-fallback", "cleanup"]
    follower.step("claim-fallback", "FALLBACK_AUTHORIZED")


def test_nothing_is_proposed_that_another_unit_keeps_from_being_done(desk: Desk) -> None:
    desk.pending("U2", {"b": "x"})
    desk.pending("U1", {"a": "x"}, "--dependency", "U2")
    assert _status(desk).names == ["diff", "status", "cleanup"]  # U2 first: it depends on it
    follower = _status(desk)
    assert "U2" in follower.step("status", "STATUS").body["unit"]["unit_id"]
    assert follower.names == ["diff", "integrate", "cleanup"]
    desk.prepare("U3").expect("PREPARED")
    desk.do("CLEANED", "cleanup", "--abandon", unit="U3")
    desk.held("U2")
    reply = desk.do("STATUS", "status", unit="U3")
    assert "prepare" not in Follower(desk, reply).names, "a retry needs the lock free"
    desk.pending("U4", {"d": "x"}, "--dependency", "U9")
    assert Follower(desk, desk.do("STATUS", "status", unit="U4")).names == ["diff", "status", "cleanup"]


def test_a_wave_unit_is_not_proposed_before_its_turn(desk: Desk) -> None:
    desk.pending("U1", {"a": "x"}, "--wave-id", "w", "--wave-position", "1")
    desk.pending("U2", {"b": "x"}, "--wave-id", "w", "--wave-position", "2")
    assert Follower(desk, desk.do("STATUS", "status", unit="U2")).names == ["diff", "status", "cleanup"]
    assert Follower(desk, desk.do("STATUS", "status", unit="U1")).names == ["diff", "integrate", "cleanup"]
