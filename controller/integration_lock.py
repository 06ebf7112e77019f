"""The integration lock of a run's branch: taken, adopted, taken over, released; each step journaled (section 9)."""

from __future__ import annotations

import os
import time

from controller import lock, machine, run_root
from controller import records as r
from controller.encoding import seconds
from controller.errors import Blocked, Refused
from controller.journal import utc_now_ms
from controller.run import OpenRun
from controller.state import Unit, accepted_commit, has_open_claim
from runner import private


def earlier(run: OpenRun, unit: Unit) -> list[str]:
    """The wave siblings with a lower position that are not resolved, sorted."""
    return sorted(
        other.unit_id
        for other in run.state.units.values()
        if unit.wave.id is not None
        and other.wave.id == unit.wave.id
        and other.wave.position < unit.wave.position
        and other.state not in ("committed", "preserved", "cleaned")
        and accepted_commit(other) is None
    )


def require_turn(run: OpenRun, unit_id: str) -> None:
    """Every wave sibling with a lower position is resolved (`BLOCKED`)."""
    waits = earlier(run, run.unit(unit_id))
    if waits:
        raise Blocked(
            "earlier wave unit not resolved",
            detail={"reason": "earlier wave unit not resolved", "units": waits},
            expected="earlier units committed, preserved or cleaned",
            found=", ".join(waits),
            remedy="integrate or resolve them first, in the order of their positions",
        )


def acquire(run: OpenRun, unit_id: str, *, resume: bool, wait: float = 0.0) -> tuple[str, bool]:
    """Hold the lock in the unit's name; (token, resumed)."""
    unit = run.unit(unit_id)
    machine.require("integration-acquire", unit_id, unit.state)
    held = run.state.lock
    if has_open_claim(unit) and (held is None or held.unit_id != unit_id):
        raise Refused(
            "native fallback already owns implementation",
            detail={"unit_id": unit_id},
            expected="no open fallback claim",
            found="a claim that is not completed",
            remedy="complete-fallback, which needs the lock free",
        )
    require_turn(run, unit_id)
    return take(run, unit_id, resume=resume, wait=wait)


def take(run: OpenRun, unit_id: str, *, resume: bool, wait: float = 0.0) -> tuple[str, bool]:
    """As `acquire`, without asking the unit's state (`verify-run` holds it in the name of a cleaned unit)."""
    held = run.state.lock
    if held is not None and held.phase != "intent":
        return _again(run, unit_id, resume)
    deadline = time.monotonic() + wait
    while True:
        try:
            return _create(run, unit_id, resume)
        except Blocked as error:
            if "owner_run" not in error.detail or time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def _again(run: OpenRun, unit_id: str, resume: bool) -> tuple[str, bool]:
    held = run.state.lock
    assert held is not None
    if not resume or held.unit_id != unit_id:
        raise Refused(
            f"this run already holds the integration lock for {held.unit_id}",
            detail={"unit_id": unit_id, "holder": held.unit_id},
            expected="no lock held, or --resume for its own unit",
            found=f"held for {held.unit_id}",
            remedy="integration-acquire --resume for that unit, finish it, or `resume --run-id`",
        )
    lock.require_token(run.state, unit_id, held.nonce, run.root)
    return held.nonce, True


def _create(run: OpenRun, unit_id: str, resume: bool) -> tuple[str, bool]:
    path = run.lock_path
    with lock.held(run.root / run_root.LOCKS / "integration.lock", wait=10.0, what="the integration locks"):
        holder = lock.read(path)
        if holder is not None and lock.holder_is_gone(holder):
            # Its run directory was deleted under the lock: nothing else could ever release it (section 18 row 16).
            run.record(r.LockTakenOver(path=str(path), previous=holder), unit=unit_id)
            path.unlink(missing_ok=True)
            holder = None
        if holder is not None:
            return _adopt(run, unit_id, holder, resume)
        nonce = lock.new_nonce()
        entry = run.record(r.LockIntent(nonce=nonce, path=str(path)), unit=unit_id)
        data = lock.content(run.state, run.directory, unit_id, nonce, seconds(entry.at))
        with run_root.trusted():
            private.sweep_temps(path.parent)
            private.create_exclusive(path, data)
    run.record(r.LockAcquired(nonce=nonce, path=str(path)), unit=unit_id)
    return nonce, False


def _adopt(run: OpenRun, unit_id: str, holder: dict[str, str], resume: bool) -> tuple[str, bool]:
    if (holder["run_id"], holder["unit_id"]) != (run.state.run_id, unit_id):
        raise Blocked(
            f"the branch is being integrated by {holder['run_id']}/{holder['unit_id']}",
            detail={"owner_run": holder["run_id"], "owner_unit": holder["unit_id"]},
            expected="a free integration lock",
            found=f"{holder['run_id']}/{holder['unit_id']}",
            remedy="let it finish, or `resume --run-id` it; pass --wait-lock to queue",
        )
    if not resume:
        raise Refused(
            "an interrupted call of this run left the integration lock",
            detail={"unit_id": unit_id},
            expected="--resume",
            found="a lock file of this unit",
            remedy="`resume --run-id`, or integration-acquire --resume",
        )
    run.record(r.LockAdopted(nonce=holder["nonce"], path=str(run.lock_path)), unit=unit_id)
    return holder["nonce"], True


def orphan(run: OpenRun) -> dict[str, str] | None:
    """A lock file of this run that the journal does not know as held, or None."""
    if run.state.lock is not None and run.state.lock.phase != "intent":
        return None
    holder = lock.read(run.lock_path)
    return holder if holder is not None and holder["run_id"] == run.state.run_id else None


def release(run: OpenRun) -> None:
    """Let the lock go; a file that is not ours any more is left alone."""
    held = run.state.lock
    if held is None:
        return
    unit_id = held.unit_id
    if held.phase != "releasing":
        run.record(r.LockReleaseIntent(nonce=held.nonce), unit=unit_id)
    holder = lock.read(run.lock_path)
    if holder is not None and lock.is_ours(holder, run.state, unit_id, held.nonce):
        with run_root.trusted():
            os.unlink(run.lock_path)
            private.fsync_dir(run.lock_path.parent)
    run.record(r.LockReleased(nonce=held.nonce), unit=unit_id)


def put_back(run: OpenRun) -> None:
    """Make the file of a held lock again after somebody removed it: the checkout must be protected meanwhile."""
    held = run.state.lock
    assert held is not None
    with lock.held(run.root / run_root.LOCKS / "integration.lock", wait=10.0, what="the integration locks"):
        data = lock.content(run.state, run.directory, held.unit_id, held.nonce, seconds(utc_now_ms()))
        with run_root.trusted():
            private.create_exclusive(run.lock_path, data)


def drop_intent(run: OpenRun) -> None:
    """Forget an intent whose file was never made."""
    held = run.state.lock
    if held is not None and held.phase == "intent" and orphan(run) is None:
        run.record(r.LockReleased(nonce=held.nonce), unit=held.unit_id)
