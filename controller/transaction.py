"""The steps of the canonical transaction, each checked, done, recorded; commands and `resume` compose them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller import (
    ancestry,
    applying,
    canonical,
    checkout,
    encoding,
    hazards,
    integration_lock,
    journal,
    lock,
    machine,
    restoring,
    shapes,
    standing,
)
from controller import records as r
from controller.checkout import Look
from controller.errors import Blocked, ControllerError, Refused
from controller.hazards import Change
from controller.run import OpenRun
from controller.state import Unit, accepted_commit


def preflight(run: OpenRun, unit_id: str, token: str, declared: Sequence[str], *, driver: str) -> applying.Plan:
    """Prove that the transport can be applied here without touching anything, and record the intent to."""
    unit = run.unit(unit_id)
    machine.require("preflight", unit_id, unit.state)
    lock.require_token(run.state, unit_id, token, run.root)
    if unit.transport.commit is None:
        raise Refused("the unit has no transport", detail={"unit_id": unit_id}, expected="a transport", found="none")
    if unit.attempt.fallback.claimed is not None:
        raise Refused(
            "native fallback already owns implementation",
            detail={"unit_id": unit_id},
            expected="no fallback claim",
            found="a claim",
            remedy="complete-fallback; or give both up with cleanup --abandon, and prepare a fresh attempt",
        )
    ancestry.require_dependencies(run.state, unit)
    _require_in_scope(run, unit)
    _require_wave(run, unit)
    seen = run.look()
    checkout.validate(seen.observation, run.state.repository, run.state.branch.ref)
    head = seen.observation.head
    heads = [checkout.observe(run.git, name).revisions[0] if name != head else head for name in declared]
    ancestry.require_head(run.git, run.state, unit, head, heads)
    checkout.require_clean(seen.status, run.state.repository.git_dir)
    if driver == "integrate":
        run.git.run("var", "GIT_COMMITTER_IDENT")  # a missing identity must not be found out after the apply
    tree = _expected_tree(run, unit, seen)
    changes = _changes(run, seen.snapshot.head_tree, tree)
    hazards.require_safe(run.state.repository.toplevel, seen.entries, changes)
    index_copy, index_sha256 = canonical.save_index(run)
    earlier = unit.integration.index_copy
    run.record(
        r.ApplyIntent(
            driver=driver,
            pre_fold=seen.snapshot,
            expected_apply=shapes.ExpectedApply(tree, tuple(change.path for change in changes)),
            index_copy=index_copy,
            index_sha256=index_sha256,
            folders=standing.folders_about(run.git.cwd, [change.path for change in changes]),
        ),
        unit=unit_id,
    )
    if earlier is not None:
        Path(earlier).unlink(missing_ok=True)
    return applying.Plan(changes, seen.entries)


def _require_in_scope(run: OpenRun, unit: Unit) -> None:
    receipt = unit.attempt.terminal_receipt or {}
    if receipt.get("terminal_status") == "scope_expansion":
        raise Blocked(
            "the worker asked for a wider scope; its output is not to be integrated as it is",
            detail={
                "unit_id": unit.unit_id,
                "terminal_status": "scope_expansion",
                "transport": encoding.plain(unit.transport),
                "recovery_path": str(run.unit_dir(unit.unit_id)),
            },
            expected="terminal status completed",
            found="scope_expansion",
            remedy="decide on the request, cleanup --abandon with --expect-transport, then prepare a wider packet",
        )


def _require_wave(run: OpenRun, unit: Unit) -> None:
    """Members share base and order, all are terminalized, and their paths do not meet."""
    if unit.wave.id is None:
        return
    integration_lock.require_turn(run, unit.unit_id)
    members = [other for other in run.state.units.values() if other.wave.id == unit.wave.id]
    if len({member.wave.base for member in members}) != 1:
        raise Blocked("wave members have different bases", expected="one base", found="several")
    if len({member.wave.position for member in members}) != len(members):
        raise Blocked("wave members share a position", expected="unique positions", found="a position twice")
    waiting = sorted(
        member.unit_id
        for member in members
        if member.transport.commit is None and accepted_commit(member) is None and member.state != "cleaned"
    )
    if waiting:
        raise Blocked(
            "wave not fully terminalized",
            detail={"reason": "wave not fully terminalized", "units": waiting},
            expected="every member terminalized before the first fold-in",
            found=", ".join(waiting),
            remedy="terminalize, or abandon, the others first",
        )
    collisions = {
        f"{a.unit_id}:{b.unit_id}": shared
        for index, a in enumerate(members)
        for b in members[index + 1 :]
        if (shared := sorted(set(a.transport.changed_paths) & set(b.transport.changed_paths)))
    }
    if collisions:
        raise Blocked(
            "changed-path collision",
            detail={"reason": "changed-path collision", "collisions": collisions},
            expected="members that change different paths",
            found=", ".join(sorted(collisions)),
            remedy="abandon one of them and prepare it again on the new base",
        )


def _expected_tree(run: OpenRun, unit: Unit, seen: Look) -> str:
    transport = unit.transport
    if seen.observation.head == transport.base:
        return str(transport.tree)
    done = run.git.call("merge-tree", "--write-tree", "--no-messages", seen.observation.head, str(transport.commit))
    if done.returncode == 1:
        raise Blocked(
            "the transport conflicts with the canonical branch",
            detail={"unit_id": unit.unit_id, "head": seen.observation.head, "transport": transport.commit},
            expected="a clean three-way merge",
            found="conflicts",
            remedy="cleanup --abandon with --expect-transport, then prepare the unit again on the new HEAD",
        )
    if done.returncode != 0:
        raise run.git.failure(("merge-tree",), done)
    return done.stdout.decode().split("\n", 1)[0]


def _changes(run: OpenRun, old: str, new: str) -> tuple[Change, ...]:
    return hazards.parse_raw(run.git.run("diff-tree", "-r", "-z", "--no-renames", "--raw", old, new))


def apply(run: OpenRun, unit_id: str, plan: applying.Plan) -> None:
    """Apply the transport to index and working tree; `NotApplied` where nothing of it is there."""
    integration = run.unit(unit_id).integration
    assert integration.pre_fold and integration.expected_apply and integration.index_copy and integration.index_sha256
    applying.apply_tree(
        run,
        integration.pre_fold,
        integration.index_copy,
        integration.index_sha256,
        integration.expected_apply.index_tree,
        plan,
    )


def exact_problem(unit: Unit, seen: Look) -> str | None:
    """Why the checkout is not exactly the expected transport application, or None."""
    pre, expected = unit.integration.pre_fold, unit.integration.expected_apply
    if pre is None or expected is None:
        return "preflight has not recorded an expected transport application"
    if (seen.snapshot.head, seen.snapshot.branch_ref) != (pre.head, pre.branch_ref):
        return "HEAD moved: not the expected transport application"
    if seen.snapshot.index_tree != expected.index_tree:
        return "index tree differs from the expected transport application"
    if seen.status.unstaged or seen.status.conflicted:
        return "unstaged changes beyond the expected transport application"
    if set(seen.status.dirty) != set(expected.changed_paths):
        return "dirty paths differ from the expected transport application"
    return None


def require_exact(run: OpenRun, unit: Unit, seen: Look) -> None:
    """`BLOCKED` unless the transport is applied exactly and nothing else is changed."""
    problem = exact_problem(unit, seen)
    operation = checkout.operation_in_progress(run.state.repository.git_dir, but_pick=unit.transport.commit)
    if problem is None and operation is None:
        return
    expected = unit.integration.expected_apply
    paths = set(expected.changed_paths) if expected else set()
    shown = sorted(set(seen.status.untracked) - paths)
    if problem is None:
        problem = f"{operation} says that another operation is under way"
    elif shown and any(path.rpartition("/")[2] == ".gitignore" for path in paths):
        raise Blocked(
            "files that are not in Git are not ignored any more under the unit's rules",
            detail={"unit_id": unit.unit_id, "reason": problem, "unexpected_paths": shown[:100]},
            expected="exactly the transport's changes, staged",
            found=shown[0],
            remedy="move them out of the checkout, or name them in .git/info/exclude; then integrate again",
        )
    raise Blocked(
        problem,
        detail={
            "unit_id": unit.unit_id,
            "reason": problem,
            "unexpected_paths": sorted(set(seen.status.dirty) ^ paths)[:100],
        },
        expected="exactly the transport's changes, staged",
        found=problem,
        remedy="restore, then integrate again",
    )


def mark_applied(run: OpenRun, unit_id: str, seen: Look, *, reconciled: bool = False) -> None:
    """Record that the transport is applied exactly."""
    unit = run.unit(unit_id)
    require_exact(run, unit, seen)
    applied = shapes.Applied(
        at=encoding.seconds(journal.utc_now_ms()),
        post_index_tree=seen.snapshot.index_tree,
        status_sha256=seen.snapshot.status_sha256,
        reconciled=reconciled,
    )
    run.record(r.ApplyReconciled(applied) if reconciled else r.TransportApplied(applied), unit=unit_id)


def mark_verified(
    run: OpenRun, unit_id: str, seen: Look, digest: str, summary: str, ignored: dict[str, Any] | None
) -> shapes.Verification:
    """Record that the exact application passed its authoritative verification."""
    require_exact(run, run.unit(unit_id), seen)
    at = encoding.seconds(journal.utc_now_ms())
    verification = shapes.Verification(at=at, digest=digest, summary=summary, ignored_state=ignored)
    run.record(r.VerificationPassed(verification), unit=unit_id)
    return verification


def commit(run: OpenRun, unit_id: str, message: str) -> None:
    """Make the one canonical commit of the unit, with the user's identity, without hooks or signing."""
    integration = run.unit(unit_id).integration
    assert integration.pre_fold and integration.applied
    parent, tree = integration.pre_fold.head, integration.applied.post_index_tree
    text = message.rstrip("\n").encode("utf-8", "surrogateescape") + b"\n"
    made = run.git.run("commit-tree", tree, "-p", parent, stdin=text).decode().strip()
    run.record(r.CommitIntent(commit=made, parent=parent, tree=tree), unit=unit_id)
    subject = f"commit: {message.splitlines()[0][:200]}"
    run.refs.move_branch(run.state.branch.ref, made, parent, subject)


def commit_in_branch(run: OpenRun, unit: Unit, head: str, head_tree: str) -> str | None:
    """The unit's canonical commit, made and not recorded: the intended one, also below later commits, or the host's."""
    integration = unit.integration
    if integration.pre_fold is None or integration.applied is None or head == integration.pre_fold.head:
        return None
    intent = integration.commit_intent
    if intent is not None and (intent == head or not ancestry.missing(run.git, {intent}, head)):
        return intent
    if head_tree != integration.applied.post_index_tree:
        return None
    raw = run.git.run("cat-file", "commit", head).partition(b"\n\n")[0]
    parents = [line[7:].decode() for line in raw.split(b"\n") if line.startswith(b"parent ")]
    return head if parents == [integration.pre_fold.head] else None


def mark_committed(run: OpenRun, unit_id: str, *, reconciled: bool = False) -> shapes.CanonicalCommit:
    """Record the unit's canonical commit (`BLOCKED` without); what the host committed, only with a clean checkout."""
    unit = run.unit(unit_id)
    pre, applied = unit.integration.pre_fold, unit.integration.applied
    intent = unit.integration.commit_intent
    found = checkout.status(run.git)
    head: str | None = found.head
    if head is None or head != intent or f"refs/heads/{found.branch}" != run.state.branch.ref:
        seen = checkout.observe(run.git)
        head = commit_in_branch(run, unit, seen.head, seen.head_tree)
        head = head if seen.branch_ref == run.state.branch.ref else None
    if head is None or pre is None or applied is None:
        raise Blocked(
            "HEAD is not the unit's canonical commit",
            detail={"unit_id": unit_id, "head": found.head},
            expected=f"a commit with parent {pre.head if pre else None} and the verified tree",
            found=str(found.head),
            remedy="commit exactly what was verified, or restore",
        )
    if head != intent:  # our own commit holds what was verified; what has appeared since is the user's
        checkout.require_clean(found, run.state.repository.git_dir)
    made = shapes.CanonicalCommit(head, pre.head, applied.post_index_tree, encoding.seconds(journal.utc_now_ms()))
    run.record(r.CommitReconciled(made) if reconciled else r.CommitConfirmed(made), unit=unit_id)
    return made


def restore(run: OpenRun, unit_id: str, *, anything: bool, cause: str, applied: bool = True) -> restoring.Restored:
    """Put the checkout back to the unit's pre-fold snapshot, prove it, and record the unit as preserved.

    `applied` is false when it is known that nothing of the unit is in the checkout.
    """
    unit = run.unit(unit_id)
    integration = unit.integration
    if integration.pre_fold is None or integration.index_copy is None:
        raise Refused(
            "the unit has no pre-fold snapshot to restore",
            detail={"unit_id": unit_id},
            expected="a unit after preflight",
            found=f"state {unit.state}",
        )
    expected = integration.expected_apply
    done = restoring.restore(
        run,
        integration.pre_fold,
        integration.index_copy,
        touched=expected.changed_paths if expected and applied else (),
        folders=integration.folders,
        anything=anything,
        unit=unit_id,
        cause=cause,
        own_pick=unit.transport.commit,
    )
    _end_own_pick(run, unit)
    run.record(
        r.CanonicalRestored(
            shapes.Restore(
                at=encoding.seconds(journal.utc_now_ms()),
                exact=True,
                snapshot=done.snapshot,
                already_exact=not done.paths,
                recovered=done.recovered,
            )
        ),
        unit=unit_id,
    )
    return done


def verification_ran(run: OpenRun, unit_id: str) -> bool:
    """Whether a verification has run in the checkout since the unit's preflight: then any change may be its."""
    return any(
        entry.unit == unit_id and isinstance(entry.data, r.VerificationStarted)
        for entry in run.entries[run.unit(unit_id).integration.intent_revision or 0 :]
    )


def _end_own_pick(run: OpenRun, unit: Unit) -> None:
    """End a `git cherry-pick` of this very transport that stopped on a conflict: it would block the next preflight."""
    head = Path(run.state.repository.git_dir) / "CHERRY_PICK_HEAD"
    if head.is_file() and head.read_text().strip() == unit.transport.commit:
        run.git.run("cherry-pick", "--quit")


def record_blocker(
    run: OpenRun,
    kind: type[r.BlockerData],
    unit_id: str | None,
    error: ControllerError,
    reason: str | None = None,
) -> None:
    """Record a blocker; the integration lock, if held, is kept under it."""
    held = run.state.lock
    run.record(
        kind(
            reason=reason or error.message,
            detail=error.body(),
            retain_integration_lock=held is not None,
            integration_lock_nonce=None if held is None else held.nonce,
        ),
        unit=unit_id,
    )
