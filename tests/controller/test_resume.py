"""`resume`: after any kill one call brings the run to a state with a legal next step, and a second one does nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controller.situations import DIGEST, Desk, alive, begin, begin_run, wait_for
from tests.host import BINDING, EGRESS

RESUME = ["resume", "--run-id", "r1"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A host with a run."""
    return begin_run(tmp_path)


def _resume(desk: Desk, word: str = "RESUMED", *, again: bool = True) -> list[dict[str, Any]]:
    """One `resume`; its actions. A second one finds nothing to do."""
    body = desk.call(*RESUME).expect(word).body
    if word == "RESUMED":
        assert set(body) == {"run_id", "actions", "redispatched", "applied", "next"}
        assert (body["redispatched"], body["applied"]) == (False, False)
    if again:
        with desk.unchanged():
            desk.call(*RESUME)
    actions: list[dict[str, Any]] = body["actions"]
    assert all(set(action) >= {"unit_id", "action"} for action in actions)
    return actions


def _names(actions: list[dict[str, Any]]) -> list[str]:
    return [action["action"] for action in actions]


# --- the lock -----------------------------------------------------------------------------------------------------


def test_a_release_that_was_cut_off_is_finished(desk: Desk) -> None:
    desk.pending()
    token = desk.held()
    before = desk.locks()
    for file_is_left in (False, True):
        if file_is_left:
            desk.do("ACQUIRED", "integration-acquire")
            before = desk.locks()
            token = json.loads(next(iter(before.values())))["nonce"]
        desk.do("RELEASED", "integration-release", "--lock-token", token)
        assert desk.cut(1) == ["integration-lock-released"]
        if file_is_left:
            for name, text in before.items():
                desk.private(desk.runs / ".locks" / name, text)
        assert _names(_resume(desk)) == ["integration-release-reconciled"]
        assert desk.locks() == {}
        assert desk.manifest()["integration_lock"] is None


@pytest.mark.parametrize("records", [1, 2], ids=["not acquired", "not even intended"])
def test_a_lock_file_that_no_record_knows_is_taken_back(desk: Desk, records: int) -> None:
    desk.pending()
    desk.held()
    desk.cut(records)
    actions = _names(_resume(desk))
    assert actions[0] == "integration-lock-adopted"
    assert desk.locks() == {}
    desk.integrate().expect("UNIT_COMMITTED")


def test_a_lock_that_was_only_intended_hinders_nobody(desk: Desk) -> None:
    desk.pending()
    desk.held()
    desk.cut(1)
    for name in desk.locks():
        (desk.runs / ".locks" / name).unlink()
    desk.integrate().expect("UNIT_COMMITTED")


def test_a_lock_file_that_somebody_removed_is_no_dead_end(desk: Desk) -> None:
    before = desk.fingerprint()
    desk.applied()
    for name in desk.locks():
        (desk.runs / ".locks" / name).unlink()
    assert _names(_resume(desk)) == ["integration-lock-put-back", "pre-commit-integration-restored"]
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    desk.integrate().expect("UNIT_COMMITTED")


def test_a_lock_that_another_run_holds_now_protects_the_checkout_from_a_late_resume(desk: Desk) -> None:
    desk.applied()
    for name in desk.locks():
        (desk.runs / ".locks" / name).unlink()
    desk.init("r2").expect("READY")
    stash = desk.git("stash", "create")
    desk.git("reset", "-q", "--hard")
    desk.pending("V1", {"two": "2\n"}, run="r2")
    token = desk.held("V1", "r2")
    desk.git("stash", "apply", "-q", "--index", stash)
    before = desk.fingerprint()
    locks = desk.locks()
    reply = desk.call(*RESUME).expect("BLOCKED")
    assert "r2" in json.dumps(reply.body)
    assert desk.fingerprint() == before
    assert desk.locks() == locks
    desk.do("RELEASED", "integration-release", "--lock-token", token, unit="V1", run="r2")
    assert _names(_resume(desk)) == ["integration-lock-put-back", "pre-commit-integration-restored"]


def test_a_lock_whose_run_was_deleted_is_taken_over_with_a_record(desk: Desk) -> None:
    desk.pending()
    desk.held()
    desk.init("r2").expect("READY")
    desk.pending("V1", {"two": "2\n"}, run="r2")
    desk.integrate("V1", run="r2").expect("BLOCKED")
    holder = json.loads(next(iter(desk.locks().values())))
    shutil.rmtree(desk.run_dir())
    desk.integrate("V1", run="r2").expect("UNIT_COMMITTED")
    taken = [record for record in desk.records("r2") if record["kind"].endswith("taken-over")]
    assert len(taken) == 1
    assert taken[0]["data"]["previous"]["nonce"] == holder["nonce"]
    assert desk.locks() == {}


# --- before the transport -----------------------------------------------------------------------------------------


def test_a_started_job_that_was_never_recorded_is_adopted(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    desk.write_job(prepared, job="other", label="U2")
    assert _resume(desk) == []
    job = desk.write_job(prepared)
    actions = _resume(desk)
    assert _names(actions) == ["job-adopted", "monitored"]
    assert actions[0]["job_id"] == job
    assert actions[1]["process_state"] == "never-started"
    assert desk.state() == "authoring"
    desk.authorize(prepared, job).expect("AUTHORIZED")
    desk.write_result(prepared)
    desk.end_job(job, "done")
    actions = _resume(desk)
    assert _names(actions) == ["monitored", "terminalized"]
    assert (actions[0]["process_state"], actions[1]["transport"]) == ("done", desk.unit()["transport"]["commit"])


def test_two_jobs_that_match_are_for_a_person_to_choose(desk: Desk) -> None:
    prepared = desk.prepare().expect("PREPARED").body
    for job in ("one", "two"):
        desk.write_job(prepared, job=job)
    with desk.unchanged():
        reply = desk.call(*RESUME).expect("AMBIGUOUS")
    assert reply.body["actions"][0]["jobs"] == ["one", "two"]


def test_a_running_or_failed_worker_is_watched_not_replaced(desk: Desk) -> None:
    prepared = desk.dispatched()
    desk.private(desk.run_dir() / "jobs" / prepared["job_id"] / "pid", '{"worker_pid":1}')
    assert _resume(desk)[0]["process_state"] == "running"
    desk.end_job(prepared["job_id"], "timeout")
    assert _resume(desk)[0]["process_state"] == "timeout"
    assert desk.state() == "authoring"
    assert desk.unit()["attempts"][0]["fallback"]["eligible"] is True


def test_a_blocked_worker_is_kept_and_is_no_error(desk: Desk) -> None:
    desk.write_result(desk.author(), terminal_status="blocked", summary="no key")
    for _ in range(2):
        actions = _resume(desk)
        assert actions[-1]["action"] == "worker-blocker-retained"
        assert (actions[-1]["terminal_status"], actions[-1]["summary"]) == ("blocked", "no key")
        assert actions[-1]["recovery_path"] == str(desk.run_dir() / "units" / "U1")


def test_an_output_that_does_not_pass_is_recorded_and_leads_to_the_fallback(desk: Desk) -> None:
    desk.write_result(desk.author(), target="claude")
    _resume(desk)
    assert desk.unit()["attempts"][0]["fallback"]["reason"] == "terminal-validation-failure"
    desk.do("FALLBACK_AUTHORIZED", "claim-fallback", "--caller-mode", "headless")
    _resume(desk)
    assert desk.git("for-each-ref", "refs/ce-work") == ""


@pytest.mark.parametrize("point", ["before the objects", "after the objects", "after the ref"])
def test_an_authored_unit_is_pinned_once(desk: Desk, point: str) -> None:
    desk.author()
    if point == "after the ref":
        desk.do("INTEGRATION_PENDING", "terminalize")
        assert desk.cut(1) == ["transport-pinned"]
    else:
        when = point.partition(" ")[0]
        desk.killed(*desk.of("terminalize"), env=desk.killing_git('*" fast-import "*', when))
    assert desk.recorded() == "authored"
    actions = _resume(desk)
    assert _names(actions) == ["terminalized"]
    assert actions[0]["transport"] == desk.unit()["transport"]["commit"]
    assert not list((desk.run_dir() / "units" / "U1").glob("shadow*"))
    desk.integrate().expect("UNIT_COMMITTED")


def test_a_half_made_workspace_is_made_whole(desk: Desk) -> None:
    (desk.base / "packet").write_text("p")
    args = ["prepare", "--run-id", "r1", "--unit-id", "U1", "--base", desk.head, "--packet", str(desk.base / "packet")]
    desk.killed(*args, env=desk.killing_git('*" worktree add "*', "after"))
    _resume(desk)
    unit = desk.unit()
    assert unit["workspace"]["registered"] is True
    assert desk.git("status", "--porcelain", cwd=Path(unit["workspace"]["path"])) == ""
    assert desk.call(*args).expect("PREPARED").body["resumed"] is True


# --- manual steps -------------------------------------------------------------------------------------------------


def test_a_lock_without_a_preflight_is_let_go(desk: Desk) -> None:
    desk.pending()
    desk.held()
    assert _names(_resume(desk)) == ["preflight-lock-released"]
    assert (desk.locks(), desk.state()) == ({}, "integration-pending")


def test_a_preflight_that_was_not_applied_is_undone(desk: Desk) -> None:
    desk.preflighted()
    actions = _resume(desk)
    assert actions == [
        {
            "unit_id": "U1",
            "action": "preflight-exact-state-recovered",
            "canonical_preserved": True,
            "integration_lock_released": True,
        }
    ]
    assert (desk.locks(), desk.state()) == ({}, "preserved")


def test_an_apply_that_was_not_marked_is_reconciled_then_undone(desk: Desk) -> None:
    before = desk.fingerprint()
    desk.preflighted(work={"new.txt": "new\n", "f": "changed\n"})
    desk.pick()
    assert _names(_resume(desk, again=False)) == ["apply-reconciled"]
    assert desk.state() == "integrated"
    assert desk.unit()["integration"]["applied"]["reconciled"] is True
    assert desk.locks() != {}
    assert (desk.repo / "f").read_text() == "changed\n"
    actions = _resume(desk)
    assert _names(actions) == ["pre-commit-integration-restored"]
    assert actions[0]["interrupted_state"] == "integrated"
    assert desk.fingerprint() == before
    assert desk.locks() == {}


def test_a_reconciled_apply_can_be_finished_by_the_host(desk: Desk) -> None:
    token = desk.preflighted()
    desk.pick()
    _resume(desk, again=False)
    desk.do("VERIFIED", "mark-verified", "--lock-token", token, "--evidence-digest", DIGEST)
    desk.git("commit", "-qm", "feat: one")
    desk.do("COMMITTED", "mark-committed", "--lock-token", token)


def test_dirt_that_is_not_the_unit_s_is_left_where_it_is(desk: Desk) -> None:
    desk.preflighted()
    desk.pick()
    (desk.repo / "mine").write_text("x")
    before = desk.fingerprint()
    reply = desk.call(*RESUME).expect("BLOCKED")
    assert "mine" in json.dumps(reply.body)
    assert desk.fingerprint() == before
    assert desk.locks() != {}
    (desk.repo / "mine").unlink()
    assert _names(_resume(desk, again=False)) == ["apply-reconciled"]


@pytest.mark.parametrize("state", ["integrated", "verified"])
def test_a_manual_application_that_was_left_is_taken_back(desk: Desk, state: str) -> None:
    before = desk.fingerprint()
    if state == "integrated":
        desk.applied()
    else:
        desk.verified()
    actions = _resume(desk)
    assert actions[0]["action"] == "pre-commit-integration-restored"
    assert actions[0]["interrupted_state"] == state
    assert (actions[0]["canonical_preserved"], actions[0]["integration_lock_released"]) == (True, True)
    assert desk.fingerprint() == before
    assert (desk.locks(), desk.state()) == ({}, "preserved")


def test_a_manual_commit_that_was_not_marked_is_found_and_finished(desk: Desk) -> None:
    desk.verified()
    desk.git("commit", "-qm", "feat: one")
    head = desk.head
    actions = _resume(desk)
    assert [(action["action"], action["commit"]) for action in actions] == [
        ("commit-reconciled", head),
        ("committed-unit-finalized", head),
    ]
    assert (desk.head, desk.locks(), desk.state()) == (head, {}, "cleaned")


@pytest.mark.parametrize("lock", ["held", "released", "foreign"])
def test_a_committed_unit_is_finished_when_the_branch_is_free(desk: Desk, lock: str) -> None:
    token = desk.committed()
    if lock != "held":
        desk.do("RELEASED", "integration-release", "--lock-token", token)
    if lock == "foreign":
        desk.init("r2").expect("READY")
        desk.pending("V1", {"two": "2\n"}, run="r2")
        theirs = desk.held("V1", "r2")
        with desk.unchanged():
            reply = desk.call(*RESUME).expect("BLOCKED")
        assert (reply.body["owner_run"], reply.body["owner_unit"]) == ("r2", "V1")
        desk.do("RELEASED", "integration-release", "--lock-token", theirs, unit="V1", run="r2")
    actions = _resume(desk)
    assert _names(actions) == ["committed-unit-finalized"]
    assert (desk.locks(), desk.state()) == ({}, "cleaned")


def test_a_restored_unit_s_lock_is_let_go_only_while_the_checkout_is_as_restored(desk: Desk) -> None:
    token = desk.applied()
    desk.do("PRESERVED", "restore", "--lock-token", token)
    (desk.repo / "mine").write_text("x")
    reply = desk.call(*RESUME).expect("BLOCKED")
    assert reply.body["actions"][0]["dirty_paths"] == ["mine"]
    assert desk.locks() != {}
    (desk.repo / "mine").unlink()
    assert _names(_resume(desk)) == ["integration-release-reconciled"]
    assert desk.locks() == {}


def test_pruning_that_was_cut_off_is_finished(desk: Desk) -> None:
    desk.done()
    kinds = desk.kinds()
    desk.cut(len(kinds) - kinds.index("finalized-artifacts-pruned"))
    desk.put_lock_back()
    actions = _names(_resume(desk))
    assert "artifact-cleanup-reconciled" in actions
    assert desk.unit()["cleanup"]["artifact_cleanup"]["complete"] is True


def test_the_lock_of_a_cleaned_unit_is_let_go(desk: Desk) -> None:
    desk.committed()
    desk.do("CLEANED", "cleanup")
    assert _names(_resume(desk)) == ["integration-release-reconciled"]
    assert desk.locks() == {}


# --- a killed integrate -------------------------------------------------------------------------------------------

MOVED = '[ "$(cat {base}/repo/.git/refs/heads/main)" != {head} ]'
POINTS: list[tuple[str, str, str]] = [
    ('*" diff-tree "*', "after", "true"),
    ('*" read-tree "*', "before", "true"),
    ('*" read-tree "*', "after", "true"),
    ('*" commit-tree "*', "before", "true"),
    ('*" commit-tree "*', "after", "true"),
    ("*", "before", MOVED),
]


@pytest.mark.parametrize(("pattern", "when", "condition"), POINTS, ids=lambda value: value[:20].strip('*" '))
def test_a_killed_integrate_is_taken_back_or_finished_by_one_resume(
    desk: Desk, pattern: str, when: str, condition: str
) -> None:
    before = desk.fingerprint()
    desk.pending(work={"new.txt": "new\n", "f": "changed\n", "dir/h/i": "deep\n"})
    args = [*desk.of("integrate", "--commit-message", "feat: once"), "--", "true"]
    condition = condition.format(base=desk.base, head=before["head"])
    desk.killed(*args, env=desk.killing_git(pattern, when, condition))
    committed = desk.head != before["head"]
    assert committed == (pattern == "*")
    _resume(desk)
    assert desk.locks() == {}
    assert not list((desk.repo / ".git").rglob("*.lock"))
    if committed:
        assert desk.state() == "cleaned"
    else:
        assert desk.fingerprint() == before
        assert desk.state() in ("preserved", "integration-pending")
        desk.call(*args).expect("UNIT_COMMITTED")
    assert desk.git("log", "--format=%s") == "feat: once\nfirst"
    assert desk.git("status", "--porcelain") == ""
    assert not list(desk.run_dir().glob("index*"))


def test_a_commit_whose_record_was_lost_is_found_and_not_made_twice(desk: Desk) -> None:
    desk.done()
    kinds = desk.kinds()
    desk.cut(len(kinds) - kinds.index("canonical-commit-confirmed"))
    desk.put_lock_back()
    head = desk.head
    _resume(desk)
    assert (desk.head, desk.locks(), desk.state()) == (head, {}, "cleaned")
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")


@pytest.mark.parametrize("pattern", ['*" checkout-index -u "*', '*" cat-file blob "*'], ids=["put back", "recover"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_in_the_middle_of_a_restore_is_restored(desk: Desk, pattern: str, when: str) -> None:
    before = desk.fingerprint()
    desk.pending(work={"new.txt": "new\n", "f": "changed\n"})
    script = "echo mine > extra; echo edit >> f; echo edit >> dir/g; echo staged > s; git add s; rm s; false"
    args = [*desk.of("integrate", "--commit-message", "m"), "--", "sh", "-c", script]
    desk.killed(*args, env=desk.killing_git(pattern, when))
    assert desk.recorded() == "restoring"
    actions = _resume(desk)
    assert _names(actions) == ["restored"]
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    kept = [path.read_text() for path in (desk.run_dir() / "recovered").rglob("*") if path.is_file()]
    assert {"mine\n", "changed\nedit\n", "two\nedit\n", "staged\n"} <= set(kept)


def test_a_controller_killed_while_it_verifies_leaves_no_process_and_no_byte(desk: Desk) -> None:
    before = desk.fingerprint()
    desk.pending(work={"f": "changed\n"})
    marker = f"survivor-{os.getpid()}-{time.monotonic_ns()}"
    late = desk.repo / "late"
    dirt = f"echo mine > extra; (setsid sh -c 'sleep 2; touch {late}; sleep 600; : {marker}' &)"
    desk.kill_during_verification(desk.of("integrate", "--commit-message", "m"), dirt)
    actions = _resume(desk)
    assert alive(marker) == []
    assert _names(actions) == ["pre-commit-integration-restored"]
    assert Path(actions[0]["recovered"][0]).read_text() == "mine\n"
    wait_for(lambda: alive(str(desk.base)) == [], "the verification's processes to end")
    assert desk.fingerprint() == before
    assert desk.locks() == {}
    desk.integrate().expect("UNIT_COMMITTED")


# --- several units, wrong arguments -------------------------------------------------------------------------------


def test_one_unit_that_cannot_be_repaired_does_not_keep_the_others_from_it(desk: Desk) -> None:
    desk.author("U2")
    prepared = desk.prepare("U1").expect("PREPARED").body
    for job in ("one", "two"):
        desk.write_job(prepared, job=job)
    reply = desk.call(*RESUME).expect("AMBIGUOUS")
    by_unit = {action["unit_id"]: action["action"] for action in reply.body["actions"]}
    assert by_unit == {"U1": "blocked", "U2": "terminalized"}
    assert desk.state("U2") == "integration-pending"
    desk.prepare("U3").expect("PREPARED")
    for name in ("one", "two"):
        shutil.rmtree(desk.run_dir() / "jobs" / name)
    token = desk.held("U2")
    desk.do("PREFLIGHT_OK", "preflight", "--lock-token", token, unit="U2")
    (desk.repo / "mine").write_text("x")
    for name in ("three", "four"):
        desk.write_job(prepared, job=name)
    reply = desk.call(*RESUME).expect("BLOCKED")
    words = {action["unit_id"]: action.get("word") for action in reply.body["actions"]}
    assert words == {"U1": "AMBIGUOUS", "U2": "BLOCKED"}


@pytest.mark.parametrize(
    ("args", "word", "phrase"),
    [
        ((), "REFUSED", "--run-id alone or both --repo and --plan-digest"),
        (("--run-id", "r1", "--repo", "."), "REFUSED", "--run-id alone or both --repo and --plan-digest"),
        (("--run-id", "r1", "--plan-digest", DIGEST), "REFUSED", "--run-id alone or both --repo and --plan-digest"),
        (("--repo", "."), "REFUSED", "--run-id alone or both --repo and --plan-digest"),
        (("--plan-digest", DIGEST), "REFUSED", "--run-id alone or both --repo and --plan-digest"),
        (("--repo", ".", "--plan-digest", "x"), "REFUSED", "--plan-digest"),
        (("--run-id", "../r1"), "REFUSED", "run id"),
        (("--run-id", "r9"), "NOT_FOUND", "r9"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_resume_of_nothing_in_particular_resumes_nothing(
    tmp_path_factory: pytest.TempPathFactory, args: tuple[str, ...], word: str, phrase: str
) -> None:
    desk = begin_run(tmp_path_factory.mktemp("args"))
    desk.refuse(word, phrase, args=["resume", *args])


# --- discovery ----------------------------------------------------------------------------------------------------

PLAN = b"# Plan\n"
PLAN_DIGEST = hashlib.sha256(PLAN).hexdigest()


def _plan_run(desk: Desk, run: str = "r1") -> None:
    (desk.repo / "plan.md").write_bytes(PLAN)
    desk.call(
        "init", "--run-id", run, "--repo", str(desk.repo), "--plan", "plan.md", "--plan-digest", PLAN_DIGEST,
        "--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS),
    ).expect("READY")  # fmt: skip


def _discover(desk: Desk) -> list[str]:
    return ["resume", "--repo", str(desk.repo), "--plan-digest", PLAN_DIGEST]


def test_the_one_unfinished_run_of_a_plan_is_found_and_a_finished_one_is_not(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    assert desk.call(*_discover(desk)).expect("NOT_FOUND").body["candidates"] == []
    _plan_run(desk)
    assert desk.call(*_discover(desk)).expect("RESUMED").body["run_id"] == "r1"
    assert desk.call(*_discover(desk)[:-1], "0" * 64).expect("NOT_FOUND").body["candidates"] == []
    desk.call("checkpoint-plan", "--run-id", "r1").expect("CHECKPOINTED")
    desk.done()
    desk.call(*_discover(desk)).expect("RESUMED")
    desk.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    assert desk.call(*_discover(desk)).expect("NOT_FOUND").body["candidates"] == []
    desk.git("checkout", "-qb", "other")
    assert desk.call(*_discover(desk)).expect("NOT_FOUND").body["candidates"] == []


def test_several_unfinished_runs_are_named_not_guessed_at(tmp_path: Path) -> None:
    desk = begin(tmp_path)
    for run in ("rb", "ra"):
        _plan_run(desk, run)
    with desk.unchanged("ra"), desk.unchanged("rb"):
        reply = desk.call(*_discover(desk)).expect("AMBIGUOUS")
    candidates = reply.body["candidates"]
    assert [candidate["run_id"] for candidate in candidates] == ["ra", "rb"]
    assert set(candidates[0]) == {"run_id", "updated_at", "recovery_path", "unit_states"}
    time.strptime(candidates[0]["updated_at"], "%Y-%m-%dT%H:%M:%SZ")


def _file(root: Path) -> Path:
    (root / "note").write_text("x")
    return root / "note"


def _unsafe(root: Path) -> Path:
    (root / "a b").mkdir(mode=0o700)
    return root / "a b"


def _open(root: Path) -> Path:
    (root / "other").mkdir()
    (root / "other").chmod(0o755)
    return root / "other"


def _empty(root: Path) -> Path:
    (root / "other").mkdir(mode=0o700)
    return root / "other"


def _linked(root: Path) -> Path:
    (root / "other").symlink_to("r1")
    return root / "other"


def _misnamed(root: Path) -> Path:
    shutil.copytree(root / "r1", root / "other")
    (root / "other").chmod(0o700)
    return root / "other"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A run of a plan."""
    made = begin(tmp_path_factory.mktemp("discovery"))
    _plan_run(made)
    return made


@pytest.mark.parametrize("harm", [_file, _unsafe, _open, _empty, _linked, _misnamed])
def test_an_entry_that_cannot_be_trusted_is_never_skipped_over(planned: Desk, harm: Callable[[Path], Path]) -> None:
    planned.call(*_discover(planned)).expect("RESUMED")
    path = harm(planned.runs)
    try:
        planned.refuse("UNREADABLE", args=_discover(planned))
        planned.call(*RESUME).expect("RESUMED")
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
