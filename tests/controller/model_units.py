"""The small model that the random tests hold the controller against: what each command may do, and what it leads to.

Written from protocol.md sections 7 to 10 and 18, not from the code. It knows no file and no process: `Facts` says what
the checkout looks like, `Unit` what was done to a unit, and `Model.apply` answers whether a command must be accepted
and takes the model to the state after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

FAILED = ("failed", "timeout", "died-without-result")
TERMINAL = ("cleaned", "native-completed")
LOCKABLE = ("integration-pending", "integrated", "verified", "preserved", "committed", "cleaned")
GOOD_CHECKS = ("true", "ignored")
"""Verification commands that pass and change nothing that counts."""


@dataclass
class Unit:
    """One unit as its host and the model's reading of the protocol see it."""

    name: str
    base: str
    allowed: list[str]
    paths: frozenset[str]
    state: str = "queued"
    attempt: int = 1
    job_dir: str | None = None  # the runner's directory, if a job was started
    job: str | None = None  # the job that the attempt is bound to
    ended: str = "never-started"  # what the runner's files say
    process: str = "never-started"  # what the controller has been told
    authorized: bool = False
    touched: bool = False  # the worker has written into the workspace
    result: str = "none"
    transport: str | None = None
    failure: bool = False
    claimed: bool = False
    claim_head: str | None = None
    native: str | None = None
    pre: str | None = None
    picked: bool = False
    driver: str = ""
    ran: bool = False  # whether a verification has run since the preflight
    made: str | None = None  # the host's own commit of exactly what was verified
    canonical: str | None = None
    cleaned: bool = False
    abandoned: bool = False
    withdrawn: bool = False
    blocked_result: bool = False

    @property
    def accepted(self) -> str | None:
        """The commit by which the branch holds the unit's work."""
        if self.state == "cleaned":
            return self.canonical
        return self.native if self.state == "native-completed" else None


@dataclass
class Facts:
    """The canonical checkout: commits of the branch in order, HEAD, the user's uncommitted paths, the branch."""

    chain: list[str]
    dirt: set[str] = field(default_factory=set)
    on_branch: bool = True

    @property
    def head(self) -> str:
        """The newest commit."""
        return self.chain[-1]

    def contains(self, commit: str) -> bool:
        """Whether HEAD contains a commit."""
        return commit in self.chain

    @property
    def clean(self) -> bool:
        """Whether the user has changed nothing."""
        return not self.dirt


@dataclass
class Command:
    """One call: the command, its unit, and what of its arguments matters to the model."""

    name: str
    unit: str = ""
    token_ok: bool = True
    resume: bool = False
    expectation: str = "right"
    check: str = "true"
    head_ok: bool = True
    conflict: bool = False  # whether Git cannot merge the transport here, found out by Git itself

    def __str__(self) -> str:
        return f"{self.name} {self.unit}".strip()


class Refused(Exception):
    """The model says that a command must be refused, and why."""


def need(condition: object, why: str) -> None:
    """Refuse unless the condition holds."""
    if not condition:
        raise Refused(why)


class Model:
    """The run."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.units: dict[str, Unit] = {}
        self.lock: str | None = None
        self.restored: set[str] = set()  # units whose apply the last command took back
        self.committed = False  # whether the last command made a canonical commit
        self.errors: list[str] = []  # what keeps `resume` from saying RESUMED

    def apply(self, command: Command) -> str | None:
        """None when the command must be accepted, else why not; the model is in the state after it."""
        self.restored = set()
        self.committed = False
        self.errors = []
        rules: dict[str, Callable[[Command], None]] = {
            "checkpoint-plan": lambda _: self._clean(),
            "prepare": self._prepare,
            "prepare-again": self._prepare_again,
            "prepare-retry": self._prepare_retry,
            "authorize-dispatch": self._authorize,
            "record-job": self._record_job,
            "sync-job": lambda c: self._sync(self.units[c.unit]),
            "reap": self._reap,
            "terminalize": lambda c: self._terminalize(self.units[c.unit]),
            "integration-acquire": self._acquire,
            "preflight": self._preflight,
            "mark-applied": self._mark_applied,
            "mark-verified": self._mark_verified,
            "mark-committed": self._mark_committed,
            "integration-release": self._release,
            "restore": self._restore,
            "integrate": self._integrate,
            "cleanup": self._cleanup,
            "cleanup --abandon": self._abandon,
            "claim-fallback": self._claim,
            "complete-fallback": self._complete,
            "verify-run": self._verify_run,
            "resume": lambda _: self._resume(),
        }
        try:
            rules[command.name](command)
        except Refused as error:
            return str(error)
        return None

    # --- facts ------------------------------------------------------------------------------------------------------

    def _on_branch(self) -> None:
        need(self.facts.on_branch, "another branch is checked out")

    def _unpicked(self) -> None:
        need(not any(unit.picked for unit in self.units.values()), "a transport is applied")

    def _clean(self) -> None:
        self._on_branch()
        need(self.facts.clean, "the checkout is dirty")
        self._unpicked()

    def _accepted(self, but: str = "") -> list[str]:
        return [unit.accepted for unit in self.units.values() if unit.accepted and unit.name != but]

    def _head_allowed(self, unit: Unit) -> None:
        head, required = self.facts.head, self._accepted(unit.name)
        if head not in unit.allowed:
            need(head in required, "HEAD advanced outside the run")
            need(all(map(self.facts.contains, [*required, *unit.allowed, unit.base])), "HEAD lacks a prerequisite")
        need(all(map(self.facts.contains, required)), "HEAD lacks an accepted commit")

    def exact(self, unit: Unit) -> bool:
        """Whether the checkout is exactly the applied transport."""
        return unit.picked and self.facts.on_branch and self.facts.clean and self.facts.head == unit.pre

    def _holds(self, command: Command) -> Unit:
        unit = self.units[command.unit]
        need(self.lock == unit.name and command.token_ok, "the token is not the lock's")
        return unit

    # --- dispatch ---------------------------------------------------------------------------------------------------

    def _prepare(self, command: Command) -> None:
        self._clean()
        head = self.facts.head
        self.units[command.unit] = Unit(command.unit, head, [head], frozenset())

    def _prepare_again(self, command: Command) -> None:
        unit = self.units[command.unit]
        self._on_branch()
        need(unit.state not in TERMINAL and not unit.cleaned, "the attempt has ended")
        need(unit.state != "queued" or not unit.touched, "the workspace is dirty")

    def _prepare_retry(self, command: Command) -> None:
        unit = self.units[command.unit]
        self._clean()
        need(unit.state == "cleaned" and unit.abandoned, "the last attempt is not abandoned")
        need(not unit.claimed, "a native fallback owns the unit")
        need(self.lock is None, "the lock is held")
        head = self.facts.head
        need(head in [unit.base, *self._accepted()], "the base is no accepted commit")
        need(all(map(self.facts.contains, [*self._accepted(), unit.base, *unit.allowed])), "ancestry is missing")
        allowed = unit.allowed if head in unit.allowed else [*unit.allowed, head]
        self.units[unit.name] = Unit(unit.name, head, allowed, frozenset(), attempt=unit.attempt + 1)

    def _authorize(self, command: Command) -> None:
        unit = self.units[command.unit]
        need(unit.state in ("queued", "authoring"), "state")
        need(not unit.claimed, "a native fallback owns the unit")
        need(unit.job_dir is not None, "no job")
        need({unit.ended, unit.process} <= {"never-started", "running"}, "the job has ended")
        self._on_branch()
        need(unit.authorized or not unit.touched, "the workspace is dirty")
        unit.state, unit.job, unit.authorized = "authoring", unit.job_dir, True

    def _record_job(self, command: Command) -> None:
        unit = self.units[command.unit]
        if unit.job is not None:
            return
        need(unit.job_dir is not None, "no job")
        need(unit.state == "queued", "state")
        unit.state, unit.job = "authoring", unit.job_dir

    def _sync(self, unit: Unit) -> None:
        if unit.job is not None and not unit.cleaned:
            unit.process = unit.ended

    def _reap(self, command: Command) -> None:
        unit = self.units[command.unit]
        if unit.job is None or unit.cleaned:
            return
        if unit.ended == "running":
            unit.ended = {"none": "died-without-result", "oversize": "failed"}.get(unit.result, "done")
        self._sync(unit)

    def _terminalize(self, unit: Unit) -> None:
        self._sync(unit)
        need(unit.state in ("authoring", "authored", "integration-pending"), "state")
        if unit.state == "integration-pending":
            return
        need(not unit.claimed, "a native fallback owns the unit")
        need(unit.process == "done", "the job is not done")
        if unit.result in ("none", "bad-json", "wrong-route", "oversize"):
            unit.failure = True
            raise Refused("the result is not valid")
        unit.state = "authored"
        if unit.result == "blocked":
            unit.blocked_result = True
            raise Refused("the worker is blocked")
        if unit.result == "ignored-output":
            unit.failure = True
            raise Refused("the output cannot be transported")
        unit.state, unit.transport, unit.failure = "integration-pending", "some", False

    # --- the canonical transaction ------------------------------------------------------------------------------------

    def _acquire(self, command: Command) -> None:
        unit = self.units[command.unit]
        self._on_branch()
        need(unit.state in LOCKABLE, "state")
        need(self.lock is None or (self.lock == unit.name and command.resume), "the lock is held")
        need(self.lock or not unit.claimed or unit.native, "a native fallback owns the unit")
        self.lock = unit.name

    def _applicable(self, unit: Unit, command: Command) -> None:
        need(unit.state in ("integration-pending", "preserved"), "state")
        need(not unit.claimed, "a native fallback owns the unit")
        need(unit.result != "scope", "the worker asked for a wider scope")
        self._on_branch()
        self._head_allowed(unit)
        self._clean()
        need(not command.conflict, "the transport conflicts")

    def _preflight(self, command: Command) -> None:
        unit = self.units[command.unit]
        need(unit.state in ("integration-pending", "preserved"), "state")
        self._holds(command)
        self._applicable(unit, command)
        unit.state, unit.pre, unit.picked, unit.driver = "integration-pending", self.facts.head, False, "manual"
        unit.ran = False

    def _mark_applied(self, command: Command) -> None:
        unit = self._holds(command)
        need(unit.state in ("integration-pending", "integrated") and unit.pre is not None, "state")
        need(self.exact(unit), "not exactly applied")
        unit.state = "integrated"

    def _mark_verified(self, command: Command) -> None:
        unit = self._holds(command)
        need(unit.state in ("integrated", "verified"), "state")
        need(self.exact(unit), "not exactly applied")
        unit.state = "verified"

    def _mark_committed(self, command: Command) -> None:
        unit = self._holds(command)
        need(unit.state in ("verified", "committed"), "state")
        if unit.state == "verified":
            self._confirm(unit)

    def _confirm(self, unit: Unit) -> None:
        need(unit.made is not None and self.facts.head == unit.made and self.facts.on_branch, "HEAD is another commit")
        need(self.facts.clean, "the checkout is dirty")
        unit.state, unit.canonical, unit.picked = "committed", unit.made, False

    def _release(self, command: Command) -> None:
        unit = self._holds(command)
        pending = unit.state == "integration-pending" and unit.pre is None
        need(pending or unit.state in ("preserved", "committed", "cleaned", "native-completed"), "state")
        self.lock = None

    def _put_back(self, unit: Unit, *, anything: bool) -> None:
        need(unit.pre is not None, "no pre-fold snapshot")
        need(self.facts.on_branch and self.facts.head == unit.pre, "HEAD or branch moved")
        foreign = self.facts.dirt - unit.paths
        need(not foreign or anything, "changes that are not the unit's")
        unit.state, unit.picked, unit.made = "preserved", False, None
        self.facts.dirt -= self.facts.dirt if anything else unit.paths
        self.restored.add(unit.name)

    def _restore(self, command: Command) -> None:
        unit = self.units[command.unit]
        need(unit.state in ("integration-pending", "integrated", "verified", "restoring", "preserved"), "state")
        self._holds(command)
        self._put_back(unit, anything=unit.driver == "integrate")

    def _integrate(self, command: Command) -> None:
        unit = self.units[command.unit]
        need(unit.state in ("integration-pending", "preserved", "integrated", "verified"), "state")
        own = self.lock == unit.name
        if unit.state in ("integrated", "verified") or (own and unit.state == "integration-pending" and unit.pre):
            need(own, "the unit is applied without a lock")
            need(self.exact(unit), "not exactly applied")
        else:
            self._on_branch()
            need(self.lock is None, "the lock is held")
            self._applicable(unit, command)
            unit.pre, unit.driver = self.facts.head, "integrate"
        unit.ran = True
        if command.check in GOOD_CHECKS:
            self.committed = True
            unit.state, unit.picked, unit.canonical, self.lock = "cleaned", False, "new", None
            unit.cleaned, unit.abandoned = True, False
            return
        if command.check == "moves-head":
            # Of a verified unit it has committed exactly what was verified, which is as good as the host's commit.
            unit.state = "verified" if unit.state == "verified" else "integrated"
            unit.picked, self.lock = False, unit.name
            raise Refused("the verification moved HEAD")
        unit.state, unit.picked, unit.made, self.lock = "preserved", False, None, None
        self.restored.add(unit.name)
        raise Refused("the verification failed")

    # --- ends -------------------------------------------------------------------------------------------------------

    def _cleanup(self, command: Command) -> None:
        unit = self.units[command.unit]
        if unit.cleaned and unit.state in TERMINAL:
            return
        self._sync_running(unit)
        need(unit.state == "committed", "state")
        self._on_branch()
        unit.state, unit.cleaned = "cleaned", True

    def _sync_running(self, unit: Unit) -> None:
        if unit.process == "running" or unit.state == "native-completed":
            self._sync(unit)
        need(unit.process != "running", "the worker runs")

    def _abandon(self, command: Command) -> None:
        unit = self.units[command.unit]
        if unit.cleaned and unit.state in TERMINAL:
            return
        if unit.state not in TERMINAL:
            self._on_branch()
        self._sync_running(unit)
        legal = ("queued", "authoring", "authored", "integration-pending", "preserved", "native-completed")
        need(unit.state in legal, "state")
        need(self.lock != unit.name, "the unit holds the lock")
        need(command.expectation == "right", "the expectation is wrong")
        if unit.transport is None and unit.job is None:
            need(unit.job_dir is None, "a job was started and never recorded")
            unit.withdrawn = True
        elif unit.transport is None and unit.state != "native-completed":
            need(unit.ended in (unit.process, "never-started"), "the job's files say something newer")
            hopeless = unit.failure or unit.blocked_result
            need(unit.process != "done" or hopeless, "the output is not reconciled")
        unit.cleaned, unit.abandoned = True, True
        if unit.state != "native-completed":
            unit.state = "cleaned"

    def _claim(self, command: Command) -> None:
        unit = self.units[command.unit]
        self._on_branch()
        if unit.state == "authoring":
            self._sync(unit)
        if unit.claimed:
            return
        need(unit.state in ("queued", "authoring", "authored", "preserved", "cleaned"), "state")
        need(unit.canonical is None, "the unit is in the branch")
        if unit.state == "preserved":
            need(self.lock is None, "the lock is held")
            self._clean()
            need(self.facts.head == unit.pre, "HEAD moved")
        else:
            need(unit.process != "running", "the worker runs")
            if unit.process == "done":
                need(unit.failure and not (unit.cleaned and unit.result != "none"), "the output is not reconciled")
            need(unit.process == "done" or unit.job is not None, "never dispatched")
            self._head_allowed(unit)
            self._clean()
        unit.claimed, unit.claim_head = True, self.facts.head

    def _complete(self, command: Command) -> None:
        unit = self.units[command.unit]
        need(unit.claimed and unit.native is None, "no open claim")
        need(self.lock is None, "the lock is held")
        need(unit.canonical is None, "the unit is in the branch")
        self._clean()
        head = self.facts.head
        need(command.head_ok, "HEAD is another commit")
        need(all(map(self.facts.contains, [*self._accepted(unit.name), unit.base, *unit.allowed])), "ancestry")
        need(head not in [*self._accepted(), unit.base], "nothing was added")
        unit.state, unit.native = "native-completed", head

    def _verify_run(self, command: Command) -> None:
        accepted = self._accepted()
        need(accepted, "no accepted unit")
        need(all(unit.accepted or unit.withdrawn for unit in self.units.values()), "a unit is open")
        need(self.lock is None, "the lock is held")
        self._clean()
        need(self.facts.head in accepted and len(set(accepted)) == len(accepted), "HEAD is not accepted")
        bases = [unit.base for unit in self.units.values()]
        need(all(map(self.facts.contains, [*accepted, *bases])), "HEAD lacks a commit")
        need(command.check != "false", "the verification failed")  # what it changed is undone, and counts for nothing

    # --- resume -------------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        for name in sorted(self.units):
            try:
                self._resume_unit(self.units[name])
            except Refused as error:
                self.errors.append(f"{name}: {error}")
        need(not self.errors, "; ".join(self.errors))

    def _resume_unit(self, unit: Unit) -> None:
        own = self.lock == unit.name
        if unit.state == "queued" and unit.job_dir is not None:
            unit.state, unit.job = "authoring", unit.job_dir
        if unit.state == "authoring":
            self._sync(unit)
        if unit.state == "authored" or (unit.state == "authoring" and unit.process == "done"):
            self._resume_output(unit)
        elif unit.state == "integration-pending" and own:
            self._resume_pending(unit)
        elif unit.state in ("integrated", "verified"):
            if unit.state == "verified" and unit.made is not None and self.facts.head == unit.made:
                self._confirm(unit)
                self._finalize(unit)
            else:
                self._put_back(unit, anything=unit.ran)
                self.lock = None
        elif unit.state == "preserved" and own:
            need(self.facts.on_branch and self.facts.clean and self.facts.head == unit.pre, "not the pre-fold state")
            self.lock = None
        elif unit.state == "committed":
            need(self.lock in (None, unit.name), "another unit holds the lock")
            self._finalize(unit)
        elif unit.state in TERMINAL and own:
            self.lock = None

    def _resume_output(self, unit: Unit) -> None:
        if unit.claimed:
            return
        with suppress(Refused):  # recorded, with a way out of its own
            self._terminalize(unit)

    def _resume_pending(self, unit: Unit) -> None:
        if unit.pre is None:
            self.lock = None
        elif self.exact(unit):
            unit.state = "integrated"
        else:
            need(not unit.picked and self.facts.on_branch and self.facts.clean, "changes that are not the unit's")
            self._put_back(unit, anything=False)
            self.lock = None

    def _finalize(self, unit: Unit) -> None:
        unit.state, unit.cleaned, self.lock = "cleaned", True, None
