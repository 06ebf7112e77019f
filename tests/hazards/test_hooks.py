"""Rows 17-19, 21, 22: hooks, signing and a file system monitor can neither hang, veto nor change a unit."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.hazards.support import Trap
from tests.host import BINDING, EGRESS, Host


def _whole_protocol(host: Host) -> str:
    """Plan, checkpoint, an integration that is restored, one that is committed, and the verification of the run."""
    import json

    plan = "# Plan\n"
    (host.repo / "plan.md").write_text(plan)
    host.call(
        "init", "--run-id", "r1", "--repo", str(host.repo), "--plan", "plan.md",
        "--plan-digest", hashlib.sha256(plan.encode()).hexdigest(),
        "--binding-json", json.dumps(BINDING), "--egress-json", json.dumps(EGRESS),
    ).expect("READY")  # fmt: skip
    host.call("checkpoint-plan", "--run-id", "r1").expect("CHECKPOINTED")
    host.pending("U1", {"f": "unit\n", "new": "unit\n"})
    host.integrate("U1", ["false"]).expect("BLOCKED")
    body = host.integrate().expect("UNIT_COMMITTED").body
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    commit: str = body["canonical_commit"]["commit"]
    return commit


def test_hooks_that_fail_veto_or_change_files_never_run(host: Host) -> None:
    """`post-checkout` once left a half-made worktree, `pre-commit` changed the verified tree, and
    `reference-transaction` vetoed the commit. (`core.hooksPath`: tests/hostile/test_shared_metadata.py.)
    """
    trap = Trap(host.base / "trap", code=1, then="echo mutated >> f; git add f")
    trap.hooks(host.repo / ".git/hooks")
    commit = _whole_protocol(host)
    assert trap.sprung == []
    assert (host.repo / "f").read_text() == "unit\n"
    assert host.git("show", f"{commit}:f") == "unit"
    host.git("commit", "--allow-empty", "-m", "plain", check=False)
    assert trap.sprung, "the trap works: plain git falls into it"


def test_a_program_that_waits_for_somebody_is_never_started(host: Host) -> None:
    """Signing that prompts, a file system monitor that hangs, editors, pagers, password prompts."""
    trap = Trap(host.base / "trap", then="exec sleep 1000")
    for name in (
        *("gpg.program", "core.fsmonitor", "core.editor", "core.askPass", "core.pager", "sequence.editor"),
        *("credential.helper", "diff.external"),
    ):
        host.git("-c", "core.fsmonitor=false", "config", name, str(trap.program))
    for name in ("commit.gpgSign", "tag.gpgSign", "core.untrackedCache"):
        host.git("config", name, "true")
    for name in ("GIT_EDITOR", "GIT_ASKPASS", "SSH_ASKPASS", "EDITOR", "VISUAL", "PAGER", "GIT_PAGER"):
        host.env[name] = str(trap.program)
    plain = host.git
    # The test's own git must not hang either.
    host.git = lambda *args, **more: plain("-c", "core.fsmonitor=false", *args, **more)  # type: ignore[method-assign]
    commit = _whole_protocol(host)
    assert trap.sprung == []
    assert "gpgsig" not in host.git("cat-file", "commit", commit)


def test_automatic_maintenance_never_starts_in_the_middle(host: Host, tmp_path: Path) -> None:
    for name, value in (("gc.auto", "1"), ("gc.autoDetach", "true"), ("maintenance.auto", "true")):
        host.git("config", name, value)
    host.init().expect("READY")
    host.pending("U1", {f"n{i}": f"{i}\n" for i in range(20)})
    host.integrate().expect("UNIT_COMMITTED")
    assert not list((host.repo / ".git/objects/pack").glob("*.pack"))
    assert not (host.repo / ".git/gc.pid").exists()
