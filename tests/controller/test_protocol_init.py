"""`init` and `checkpoint-plan`: a run begins with one source and one sanctioned recipient, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.controller.situations import Desk, begin
from tests.host import BINDING, EGRESS, Reply

PLAN = b"# Plan\n\nP1: do it\n"
ROUTES = ("codex", "claude", "grok-cli", "cursor", "composer", "grok-cursor")
READY = {"run_id", "revision", "resumed", "source_kind", "source_digest", "recovery_path"}
MESSAGE = "docs(ce-work): checkpoint selected implementation plan"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plan_args(
    desk: Desk,
    *,
    run: str = "r1",
    plan: str = "docs/plan.md",
    digest: str = _digest(PLAN),
    binding: Any = BINDING,
    egress: Any = EGRESS,
    repo: Path | None = None,
) -> list[str]:
    """`init` from a plan."""
    return [
        "init", "--run-id", run, "--repo", str(repo or desk.repo), "--plan", plan, "--plan-digest", digest,
        "--binding-json", binding if isinstance(binding, str) else json.dumps(binding),
        "--egress-json", egress if isinstance(egress, str) else json.dumps(egress),
    ]  # fmt: skip


def put_plan(desk: Desk, data: bytes = PLAN) -> Path:
    """Write the plan, uncommitted."""
    path = desk.repo / "docs" / "plan.md"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A repository without a run."""
    return begin(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A repository with an uncommitted plan, for calls that are refused."""
    made = begin(tmp_path_factory.mktemp("init"))
    put_plan(made)
    return made


def _refused_init(desk: Desk, word: str, *phrases: str, args: list[str]) -> Reply:
    reply = desk.refuse(word, *phrases, args=args)
    assert not [path for path in desk.runs.glob("*") if path.name != ".locks"], "a refused init left something behind"
    return reply


# --- success ------------------------------------------------------------------------------------------------------


def test_a_plan_run_says_exactly_what_it_is_and_a_repeated_init_changes_nothing(desk: Desk) -> None:
    put_plan(desk)
    reply = desk.call(*plan_args(desk)).expect("READY")
    assert set(reply.body) == {*READY, "next"}
    assert reply.body["source_kind"] == "plan"
    assert reply.body["source_digest"] == _digest(PLAN)
    assert (reply.body["revision"], reply.body["resumed"]) == (0, False)
    assert reply.body["recovery_path"] == str(desk.run_dir())
    manifest = desk.manifest()
    assert manifest["source"] == {
        "kind": "plan", "storage": "repository", "path": "docs/plan.md", "digest": _digest(PLAN),
    }  # fmt: skip
    assert manifest["plan"] == {
        "kind": "plan", "path": "docs/plan.md", "digest": _digest(PLAN), "checkpoint": None,
    }  # fmt: skip
    assert manifest["branch"] == {"ref": "refs/heads/main", "initial_head": desk.head}
    assert (manifest["binding"], manifest["egress"]) == (BINDING, EGRESS)
    with desk.unchanged():
        again = desk.call(*plan_args(desk)).expect("READY")
    assert again.body == {**reply.body, "resumed": True, "next": again.body["next"]}


def test_an_absolute_plan_path_is_the_same_plan(desk: Desk) -> None:
    path = put_plan(desk)
    desk.call(*plan_args(desk, plan=str(path))).expect("READY")
    assert desk.manifest()["source"]["path"] == "docs/plan.md"
    assert desk.call(*plan_args(desk)).expect("READY").body["resumed"] is True


def test_a_prompt_run_keeps_a_private_copy_of_the_brief(desk: Desk) -> None:
    reply = desk.init().expect("READY")
    assert set(reply.body) == {*READY, "next"}
    assert reply.body["source_kind"] == "prompt"
    copy = desk.run_dir() / "source" / "bare-prompt.md"
    assert _digest(copy.read_bytes()) == reply.body["source_digest"]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert desk.manifest()["plan"] == {
        "kind": "prompt", "path": None, "digest": reply.body["source_digest"], "checkpoint": None,
    }  # fmt: skip
    with desk.unchanged():
        assert desk.init().expect("READY").body["resumed"] is True


def test_private_state_is_private_whatever_the_umask(desk: Desk) -> None:
    put_plan(desk)
    desk.finish(desk.spawn(*plan_args(desk), umask=0)).expect("READY")
    for folder, _, files in os.walk(desk.runs):
        assert stat.S_IMODE(os.lstat(folder).st_mode) == 0o700, folder
        for name in files:
            assert stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode) == 0o600, name


@pytest.mark.parametrize(
    ("brief", "warnings"),
    [
        ("anything at all\n", 6),
        ("# Request\n# Goal\n# Scope\nx\n# Acceptance and verification\nx\n# Constraints and exclusions\n# Units\n", 1),
        ("# Request\n# Goal\nx\n# Scope\nx\n# Acceptance and verification\nx\n# Units\n", 1),
    ],
    ids=["no headings", "empty goal", "no constraints"],
)
def test_a_thin_brief_is_accepted_with_a_warning_not_refused(desk: Desk, brief: str, warnings: int) -> None:
    reply = desk.init(brief=brief).expect("READY")
    assert len(reply.body["warnings"]) == warnings


def test_a_brief_of_exactly_the_limit_is_accepted(desk: Desk) -> None:
    desk.init(brief="x" * 200_000).expect("READY")


def test_a_folder_below_the_top_level_names_the_same_repository(desk: Desk) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk, repo=desk.repo / "dir")).expect("READY")
    assert desk.manifest()["repository"]["toplevel"] == os.path.realpath(desk.repo)
    assert desk.call(*plan_args(desk)).expect("READY").body["resumed"] is True


def test_a_linked_worktree_is_a_canonical_checkout_of_its_own(desk: Desk) -> None:
    desk.git("worktree", "add", "-q", "-b", "side", str(desk.base / "linked"))
    main = desk.fingerprint()
    desk.repo = desk.base / "linked"
    desk.init().expect("READY")
    repository = desk.manifest()["repository"]
    assert repository["git_dir"] != repository["common_dir"]
    assert desk.done() == desk.head
    assert desk.git("symbolic-ref", "HEAD") == "refs/heads/side"
    desk.repo = desk.base / "repo"
    assert desk.fingerprint() == main


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", "a b", "ä", "x" * 129, "a\nb", "-\t"])
def test_an_unsafe_run_id_reaches_no_path(shared: Desk, run: str) -> None:
    _refused_init(shared, "REFUSED", args=plan_args(shared, run=run))


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({"binding": "[]"}, ["--binding-json"]),
        ({"binding": "{"}, ["--binding-json"]),
        ({"binding": "{}"}, ["exactly mode, target, model, and source"]),
        ({"binding": {**BINDING, "extra": 1}}, ["exactly mode, target, model, and source"]),
        ({"binding": {**BINDING, "mode": "allow"}}, ["mode must be 'prefer' or 'require'"]),
        ({"binding": {**BINDING, "source": ""}}, ["source must be a non-empty string"]),
        ({"binding": {**BINDING, "source": 3}}, ["source must be a non-empty string"]),
        ({"binding": {**BINDING, "source": "x" * 257}}, ["source must be a non-empty string"]),
        ({"binding": {**BINDING, "source": "a\0b"}}, ["source must be a non-empty string"]),
        ({"binding": {**BINDING, "model": ""}}, []),
        ({"binding": {**BINDING, "model": 7}}, []),
        ({"binding": {**BINDING, "model": "opus"}}, ["model is not compatible"]),
        ({"binding": {**BINDING, "model": "gpt-5 --evil"}}, ["model is not compatible"]),
        ({"binding": {**BINDING, "target": "claude"}}, []),
        ({"egress": "7"}, ["--egress-json"]),
        ({"egress": {}}, ["unsupported egress route"]),
        ({"egress": {**EGRESS, "route": "gpt"}}, ["unsupported egress route 'gpt'", ", ".join(ROUTES)]),
        ({"egress": {**EGRESS, "intermediaries": ["cursor"]}}, ["intermediaries"]),
        ({"egress": {"route": "codex"}}, ["intermediaries"]),
        ({"egress": {**EGRESS, "restrictions": "none"}}, ["restrictions"]),
        ({"egress": {**EGRESS, "restrictions": [1]}}, ["restrictions"]),
        ({"digest": "0" * 64}, ["--plan-digest"]),
        ({"digest": _digest(PLAN).upper()}, ["--plan-digest"]),
        ({"digest": ""}, ["--plan-digest"]),
        ({"plan": "docs/none.md"}, ["plan"]),
        ({"plan": "docs"}, ["plan"]),
        ({"plan": "../repo-outside.md"}, ["outside"]),
        ({"plan": "/etc/hostname"}, ["outside"]),
        ({"plan": ".git/config"}, ["plan"]),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_a_run_never_begins_with_a_recipient_or_a_plan_that_is_not_what_was_meant(
    shared: Desk, changes: dict[str, Any], phrases: list[str]
) -> None:
    _refused_init(shared, "REFUSED", *phrases, args=plan_args(shared, **changes))


def test_a_route_of_a_later_table_is_named_with_the_six_in_their_order(shared: Desk) -> None:
    reply = _refused_init(shared, "REFUSED", args=plan_args(shared, egress={**EGRESS, "route": "no-such"}))
    assert ", ".join(ROUTES) in reply.stderr


def test_a_plan_behind_a_link_is_not_followed(desk: Desk) -> None:
    path = put_plan(desk)
    path.rename(path.with_name("real.md"))
    path.symlink_to("real.md")
    _refused_init(desk, "REFUSED", "link", args=plan_args(desk))
    path.unlink()
    (desk.base / "away.md").write_bytes(PLAN)
    path.symlink_to(desk.base / "away.md")
    _refused_init(desk, "REFUSED", args=plan_args(desk))


@pytest.mark.parametrize(
    ("flags", "phrase"),
    [
        (["--plan", "docs/plan.md", "--prompt-digest", _digest(PLAN)], "--plan-digest"),
        (["--plan", "docs/plan.md", "--plan-digest", _digest(PLAN), "--prompt-digest", _digest(PLAN)], "digest"),
        (["--plan", "docs/plan.md"], "--plan-digest"),
        (["--prompt-brief", "{brief}", "--plan-digest", _digest(PLAN)], "digest"),
        (["--prompt-brief", "{brief}"], "--prompt-digest"),
        (["--prompt-brief", "{brief}", "--prompt-digest", "1" * 64], "prompt brief"),
        (["--prompt-brief", "{repo}/docs/plan.md", "--prompt-digest", _digest(PLAN)], "prompt brief"),
        (["--prompt-brief", "{none}", "--prompt-digest", _digest(PLAN)], "prompt brief"),
        (["--prompt-brief", "{link}", "--prompt-digest", _digest(PLAN)], "prompt brief"),
        (["--prompt-brief", "{fifo}", "--prompt-digest", _digest(PLAN)], "prompt brief"),
        (["--prompt-brief", "{folder}", "--prompt-digest", _digest(PLAN)], "prompt brief"),
        (["--prompt-brief", "{big}", "--prompt-digest", _digest(b"x" * 200_001)], "prompt brief"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_source_whose_digest_or_place_is_wrong_begins_nothing(shared: Desk, flags: list[str], phrase: str) -> None:
    places = {name: shared.base / f"brief-{name}" for name in ("brief", "link", "fifo", "folder", "big", "none")}
    places["brief"].write_bytes(PLAN)
    places["big"].write_bytes(b"x" * 200_001)
    if not places["link"].is_symlink():
        places["link"].symlink_to(places["brief"])
        os.mkfifo(places["fifo"])
        places["folder"].mkdir()
    words = [flag.format(repo=shared.repo, **places) for flag in flags]
    more = ["--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS)]
    args = ["init", "--run-id", "r1", "--repo", str(shared.repo), *words, *more]
    _refused_init(shared, "REFUSED", phrase, args=args)


def test_a_run_id_that_is_taken_by_other_work_is_never_taken_over(desk: Desk) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    other = begin(desk.base / "other")
    put_plan(other)
    phrase = "another repository or source"
    desk.refuse("BLOCKED", phrase, args=plan_args(desk, repo=other.repo))
    (desk.repo / "docs" / "two.md").write_bytes(b"two")
    desk.refuse("BLOCKED", phrase, args=plan_args(desk, plan="docs/two.md", digest=_digest(b"two")))
    with desk.unchanged():
        desk.init().expect("BLOCKED")
    phrase = "binding or egress sanction differs"
    desk.refuse("BLOCKED", phrase, args=plan_args(desk, binding={**BINDING, "mode": "require"}))
    desk.refuse("BLOCKED", phrase, args=plan_args(desk, egress={**EGRESS, "note": "verbatim"}))


def test_a_folder_that_no_controller_made_is_not_used_as_a_run(desk: Desk) -> None:
    put_plan(desk)
    desk.runs.mkdir(mode=0o700)
    desk.run_dir().mkdir(mode=0o700)
    (desk.run_dir() / "note").write_text("mine")
    phrases = ("exists without a controller manifest", "choose a new run id")
    desk.refuse("BLOCKED", *phrases, args=plan_args(desk))
    assert os.listdir(desk.run_dir()) == ["note"]
    desk.call(*plan_args(desk, run="r2")).expect("READY")


def test_extra_egress_keys_are_kept_verbatim(desk: Desk) -> None:
    egress = {**EGRESS, "restrictions": ["no network"], "note": {"by": "host"}}
    desk.init(egress=egress).expect("READY")
    assert desk.manifest()["egress"] == egress
    prepared = desk.prepare().expect("PREPARED").body
    assert json.loads(Path(prepared["authorization_path"]).read_bytes())["restrictions"] == ["no network"]


# --- checkpoint-plan ----------------------------------------------------------------------------------------------

CHECKPOINT = ["checkpoint-plan", "--run-id", "r1"]


def test_only_the_plan_is_committed_and_a_second_call_does_nothing(desk: Desk) -> None:
    path = put_plan(desk)
    head = desk.head
    desk.call(*plan_args(desk)).expect("READY")
    made = desk.call(*CHECKPOINT).expect("CHECKPOINTED").body["checkpoint"]
    assert set(made) == {"prior_head", "commit", "tree", "path", "digest", "at"}
    assert (made["prior_head"], made["path"], made["digest"]) == (head, "docs/plan.md", _digest(PLAN))
    assert desk.head == made["commit"]
    assert desk.git("log", "-1", "--format=%P %T %an %s") == f"{head} {made['tree']} Test {MESSAGE}"
    assert desk.git("show", "--format=", "--name-only", "HEAD") == "docs/plan.md"
    assert desk.git("status", "--porcelain") == ""
    assert path.read_bytes() == PLAN
    assert desk.manifest()["plan"]["checkpoint"] == made
    with desk.unchanged():
        again = desk.call(*CHECKPOINT).expect("NOOP").body
    assert (again["checkpoint"], again["head"]) == (made, made["commit"])


def test_a_plan_that_is_committed_already_needs_no_checkpoint(desk: Desk) -> None:
    put_plan(desk)
    desk.git("add", "-A")
    desk.git("commit", "-qm", "plan")
    desk.call(*plan_args(desk)).expect("READY")
    with desk.unchanged():
        body = desk.call(*CHECKPOINT).expect("NOOP").body
    assert (body["checkpoint"], body["head"]) == (None, desk.head)


def test_a_prompt_run_needs_a_clean_checkout_and_no_checkpoint(desk: Desk) -> None:
    desk.init().expect("READY")
    body = desk.call(*CHECKPOINT).expect("NOOP").body
    assert {key: body[key] for key in ("checkpoint", "head", "source_kind")} == {
        "checkpoint": None, "head": desk.head, "source_kind": "prompt",
    }  # fmt: skip
    (desk.repo / "f").write_text("edit\n")
    reply = desk.refuse("BLOCKED", "requires a clean canonical checkout", args=CHECKPOINT)
    assert reply.body["dirty_paths"] == ["f"]


@pytest.mark.parametrize("staged", [False, True], ids=["unstaged", "staged"])
def test_other_dirt_is_never_swept_into_the_checkpoint(desk: Desk, staged: bool) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    (desk.repo / "f").write_text("edit\n")
    if staged:
        desk.git("add", "-A")
    reply = desk.refuse("BLOCKED", args=CHECKPOINT)
    assert reply.body["dirty_paths"] == ["docs/plan.md", "f"]


def test_a_plan_that_was_edited_after_init_is_not_committed(desk: Desk) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    put_plan(desk, PLAN + b"more\n")
    desk.refuse("BLOCKED", "plan", "digest", args=CHECKPOINT)
    (desk.repo / "docs" / "plan.md").unlink()
    with desk.unchanged():
        assert desk.call(*CHECKPOINT).code == 1


def test_the_checkpoint_holds_the_plan_of_the_digest_not_an_older_staged_one(desk: Desk) -> None:
    put_plan(desk, b"older\n")
    desk.git("add", "-A")
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    desk.call(*CHECKPOINT).expect("CHECKPOINTED")
    assert desk.git("show", "HEAD:docs/plan.md").encode() + b"\n" == PLAN
    assert desk.git("status", "--porcelain") == ""


def test_an_executable_plan_leaves_a_clean_checkout(desk: Desk) -> None:
    put_plan(desk).chmod(0o755)
    desk.call(*plan_args(desk)).expect("READY")
    desk.call(*CHECKPOINT).expect("CHECKPOINTED")
    assert desk.git("status", "--porcelain") == ""


def test_a_modified_tracked_plan_is_committed_with_its_line_endings_converted(desk: Desk) -> None:
    desk.git("config", "core.autocrlf", "true")
    put_plan(desk, b"old\r\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", "plan")
    crlf = PLAN.replace(b"\n", b"\r\n")
    put_plan(desk, crlf)
    desk.call(*plan_args(desk, digest=_digest(crlf))).expect("READY")
    desk.call(*CHECKPOINT).expect("CHECKPOINTED")
    assert desk.git("status", "--porcelain") == ""
    assert (desk.repo / "docs" / "plan.md").read_bytes() == crlf


def _commit_by_hand(desk: Desk, message: str, *, also: bool = False) -> None:
    if also:
        (desk.repo / "f").write_text("edit\n")
    desk.git("add", "-A")
    desk.git("commit", "-qm", message)


def test_the_same_commit_made_by_a_killed_call_or_by_hand_is_adopted_once(desk: Desk) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    _commit_by_hand(desk, MESSAGE)
    made = desk.call(*CHECKPOINT).expect("CHECKPOINTED").body["checkpoint"]
    assert made["commit"] == desk.head
    with desk.unchanged():
        desk.call(*CHECKPOINT).expect("NOOP")


@pytest.mark.parametrize(
    ("message", "also"), [("other message", False), (MESSAGE, True)], ids=["another message", "another path too"]
)
def test_a_commit_that_is_not_exactly_the_checkpoint_is_not_adopted(desk: Desk, message: str, also: bool) -> None:
    put_plan(desk)
    initial = desk.head
    desk.call(*plan_args(desk)).expect("READY")
    _commit_by_hand(desk, message, also=also)
    reply = desk.refuse("BLOCKED", args=CHECKPOINT)
    assert (reply.body["expected_prior_head"], reply.body["head"]) == (initial, desk.head)


def test_a_missing_git_identity_stops_the_checkpoint_before_anything_is_staged(desk: Desk) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    (desk.base / "gitconfig").write_text("[user]\nuseConfigOnly = true\n")
    desk.refuse("BLOCKED", args=CHECKPOINT)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_checkpoint_that_is_killed_at_its_commit_is_finished_by_the_next_call(desk: Desk, when: str) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    desk.killed(*CHECKPOINT, env=desk.killing_git('*" var "*', when))
    desk.call(*CHECKPOINT).expect("CHECKPOINTED")
    assert desk.git("rev-list", "--count", "HEAD") == "2"
    assert desk.git("status", "--porcelain") == ""


def test_a_checkpoint_whose_record_was_lost_is_adopted(desk: Desk) -> None:
    put_plan(desk)
    desk.call(*plan_args(desk)).expect("READY")
    made = desk.call(*CHECKPOINT).expect("CHECKPOINTED").body["checkpoint"]
    assert desk.cut(1) == ["plan-checkpoint"]
    assert desk.call(*CHECKPOINT).expect("CHECKPOINTED").body["checkpoint"]["commit"] == made["commit"]
