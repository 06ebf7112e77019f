"""Which commits the canonical HEAD must contain, and whether it may be where it is (sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterable

from controller.errors import Blocked
from controller.git import Git
from controller.state import Run, Unit, accepted_commits


def missing(git: Git, commits: Iterable[str], head: str) -> list[str]:
    """Those of `commits` that `head` does not contain. No process when each is `head`; else one, bounded walk."""
    wanted = sorted({commit for commit in commits if commit != head})
    if not wanted:
        return []
    # Tips that HEAD contains print nothing; the walk stops where both sides meet.
    if not git.run("rev-list", "--max-count=1", *wanted, "--not", head).strip():
        return []
    return [commit for commit in wanted if git.run("rev-list", "--max-count=1", commit, "--not", head).strip()]


def require_dependencies(run: Run, unit: Unit) -> None:
    """Every dependency has an accepted canonical commit (`BLOCKED`)."""
    accepted = accepted_commits(run)
    absent = [name for name in unit.dependencies if name not in run.units]
    open_ones = [name for name in unit.dependencies if name in run.units and name not in accepted]
    if absent or open_ones:
        raise Blocked(
            "dependencies must have controller-accepted canonical commits",
            detail={
                "unit_id": unit.unit_id,
                "missing_dependencies": absent,
                "unaccepted_dependencies": open_ones,
            },
            expected="every dependency committed and cleaned",
            found=", ".join([*absent, *open_ones]),
            remedy="finish the dependencies first",
        )


def required_commits(run: Run, unit: Unit) -> set[str]:
    """Accepted commits of the other units, which any HEAD for this unit must contain."""
    return {commit for name, commit in accepted_commits(run).items() if name != unit.unit_id}


def require_head(git: Git, run: Run, unit: Unit, head: str, declared: Iterable[str]) -> None:
    """HEAD, and each head that the host declared, is an allowed head or has advanced by accepted commits only.

    `Blocked` otherwise (`canonical HEAD advanced outside the recorded wave`).
    """
    required = required_commits(run, unit)
    for candidate in dict.fromkeys([head, *declared]):
        if candidate not in unit.wave.allowed_heads:
            needed = {*required, *unit.wave.allowed_heads, unit.workspace.base}
            if candidate not in required or missing(git, needed, candidate):
                raise Blocked(
                    "canonical HEAD advanced outside the recorded wave",
                    detail={
                        "unit_id": unit.unit_id,
                        "head": candidate,
                        "allowed_heads": list(unit.wave.allowed_heads),
                    },
                    expected=" or ".join(unit.wave.allowed_heads),
                    found=candidate,
                    remedy="put the branch back, or abandon the unit and prepare it again on the new HEAD",
                )
        absent = missing(git, required, candidate)
        if absent:
            raise Blocked(
                f"{candidate} does not contain every controller-accepted prerequisite",
                detail={"unit_id": unit.unit_id, "missing_ancestry": {candidate: absent}},
                expected="every accepted commit as an ancestor",
                found=f"{len(absent)} missing",
                remedy="put the branch back to where the accepted commits are",
            )
