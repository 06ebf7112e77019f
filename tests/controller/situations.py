"""Situations that a host can bring a run into with public commands alone, and what must not change by a refusal."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.host import ROOT, Host, Reply

_WORDS = (
    "READY CHECKPOINTED NOOP PREPARED AUTHORIZED AUTHORING SYNCED INTEGRATION_PENDING ACQUIRED PREFLIGHT_OK APPLIED "
    "VERIFIED COMMITTED UNIT_COMMITTED PRESERVED RUN_VERIFIED STATUS RESUMED FALLBACK_AUTHORIZED "
    "FALLBACK_ALREADY_AUTHORIZED FALLBACK_COMPLETED REAPED CLEANED RELEASED RUNS JOURNAL_OK"
)
SUCCESS_WORDS = frozenset(_WORDS.split())
REFUSAL_EXITS = {"REFUSED": 1, "BLOCKED": 1, "AMBIGUOUS": 1, "NOT_FOUND": 1, "INTERRUPTED": 1, "UNREADABLE": 4}
DIGEST = "a" * 64


def require_form(reply: Reply) -> Reply:
    """Every answer has the form of section 2: a host that parses the second line, or `next`, never stumbles."""
    if reply.code == 2:
        assert not reply.lines, repr(reply)
        assert reply.stderr
        return reply
    assert reply.word in SUCCESS_WORDS if reply.code == 0 else REFUSAL_EXITS.get(reply.word) == reply.code, repr(reply)
    if reply.code == 0:
        assert reply.stderr == "", repr(reply)
    else:
        assert re.fullmatch(r"unit-workspace: [^\n]+; to do: [^\n]+\n", reply.stderr), repr(reply)
    if reply.word == "UNREADABLE":
        assert len(reply.lines) == 1
        return reply
    assert len(reply.lines) == 2, repr(reply)
    assert reply.lines[1] == json.dumps(reply.body, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    assert reply.code == 0 or reply.body["remedy"], repr(reply)
    steps = reply.body["next"]
    assert isinstance(steps, list)
    assert all(isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv) for argv in steps)
    return reply


class Desk(Host):
    """A host that looks at the form of every answer, and can start a command without waiting for it."""

    tag = ""
    """What makes the job ids of one test its own: a process with the same `CE_PEER_JOB_ID` counts as the job's."""

    def write_job(self, prepared: dict[str, Any], *, run: str = "r1", job: str = "", **meta: Any) -> str:
        """A job directory as `peer-job-runner start` makes it; the job id."""
        tag = self.tag or f"{os.stat(self.base).st_ino}-{os.getpid()}"
        job = job or f"job-{prepared['unit_id']}-{prepared['attempt_id']}-{tag}"
        return super().write_job(prepared, run=run, job=job, **meta)

    def call(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Reply:
        """One controller command; its answer has the form of section 2."""
        return require_form(super().call(*args, env=env, cwd=cwd))

    def spawn(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        umask: int = -1,
        preexec: Callable[[], None] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a controller command."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "controller", *args],
            cwd=self.base,
            env={**self.env, "PYTHONPATH": str(ROOT), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=umask,
            preexec_fn=preexec,
        )

    def finish(self, child: subprocess.Popen[bytes]) -> Reply:
        """The answer of a started command."""
        out, err = child.communicate(timeout=60)
        return require_form(Reply(subprocess.CompletedProcess(child.args, child.returncode, out, err)))

    def killed(self, *args: str, env: dict[str, str]) -> None:
        """Run a command that something outside kills with SIGKILL."""
        child = self.spawn(*args, env=env)
        child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL, child.returncode

    # --- what a user could miss ---------------------------------------------------------------------------------

    def records(self, run: str = "r1") -> list[dict[str, Any]]:
        """The journal's records."""
        return [json.loads(line) for line in (self.run_dir(run) / "journal.jsonl").read_bytes().splitlines()]

    def kinds(self, run: str = "r1") -> list[str]:
        """The kinds of the journal's records, in order."""
        return [record["kind"] for record in self.records(run)]

    def cut(self, count: int, run: str = "r1") -> list[str]:
        """Take the last records away, as a power cut between effect and record does; their kinds."""
        path = self.run_dir(run) / "journal.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        with open(path, "r+b") as file:
            file.truncate(sum(map(len, lines[:-count])))
        return [json.loads(line)["kind"] for line in lines[-count:]]

    def locks(self) -> dict[str, str]:
        """The integration lock files."""
        return {path.name: path.read_text() for path in sorted((self.runs / ".locks").glob("integration-*.json"))}

    def put_lock_back(self, unit: str = "U1", run: str = "r1") -> None:
        """The lock file that the journal says is held, after `cut` took the record of its removal away."""
        held = [record["data"] for record in self.records(run) if record["kind"] == "integration-lock-acquired"][-1]
        manifest = self.manifest(run)
        value = {
            "branch_ref": manifest["branch"]["ref"],
            "created_at": "2026-01-01T00:00:00Z",
            "journal": str(self.run_dir(run) / "journal.jsonl"),
            "nonce": held["nonce"],
            "repository": manifest["repository"]["identity_digest"],
            "run_id": run,
            "unit_id": unit,
        }
        self.private(Path(held["path"]), json.dumps(value, sort_keys=True) + "\n")

    def trace(self, run: str = "r1") -> dict[str, Any]:
        """Everything that a refusal must leave as it is: journal, locks, refs, worktrees, checkout."""
        path = self.run_dir(run) / "journal.jsonl"
        return {
            "journal": path.read_bytes() if path.exists() else None,
            "locks": self.locks(),
            "refs": self.git("for-each-ref"),
            "worktrees": self.git("worktree", "list", "--porcelain"),
            "checkout": self.fingerprint(),
            "config": (self.repo / ".git" / "config").read_bytes(),
        }

    @contextmanager
    def unchanged(self, run: str = "r1") -> Iterator[None]:
        """Whatever is called within leaves journal, locks, refs, worktrees and checkout as they were."""
        before = self.trace(run)
        yield
        after = self.trace(run)
        assert {key for key in before if before[key] != after[key]} == set()

    def refuse(self, word: str, *phrases: str, args: Sequence[str], run: str = "r1", **how: Any) -> Reply:
        """A command that must be refused with this word, these phrases on standard error, and nothing changed."""
        with self.unchanged(run):
            reply = self.call(*args, **how).expect(word)
        for phrase in phrases:
            assert phrase in reply.stderr, repr(reply)
        return reply

    # --- the steps of one unit ------------------------------------------------------------------------------------

    def of(self, command: str, *more: str, unit: str = "U1", run: str = "r1") -> list[str]:
        """The argument list of a command on a unit."""
        return [command, "--run-id", run, "--unit-id", unit, *more]

    def do(self, word: str, command: str, *more: str, unit: str = "U1", run: str = "r1") -> Reply:
        """Run a command on a unit that must answer this word."""
        return self.call(*self.of(command, *more, unit=unit, run=run)).expect(word)

    def state(self, unit: str = "U1", run: str = "r1") -> str:
        """The unit's state by the journal; cheaply by the manifest, which a killed command leaves a step behind."""
        manifest = self.manifest(run)
        if manifest["revision"] != len(self.records(run)) - 1:
            return self.recorded(unit, run)
        return str(manifest["units"][unit]["state"])

    @property
    def blockers(self) -> list[dict[str, Any]]:
        """The blockers as other programs read them."""
        found: list[dict[str, Any]] = self.manifest()["blockers"]
        return found

    def dispatched(self, unit: str = "U1", *more: str, run: str = "r1") -> dict[str, Any]:
        """A unit whose job is authorized and has not ended; what `prepare` answered, with `job_id`."""
        prepared = self.prepare(unit, *more, run=run).expect("PREPARED").body
        job = self.write_job(prepared, run=run)
        self.authorize(prepared, job, run).expect("AUTHORIZED")
        return {**prepared, "job_id": job}

    def failed(self, unit: str = "U1", word: str = "failed", *more: str, run: str = "r1") -> dict[str, Any]:
        """A unit whose job ended badly."""
        prepared = self.dispatched(unit, *more, run=run)
        self.end_job(prepared["job_id"], word, run=run)
        self.do("SYNCED", "sync-job", unit=unit, run=run)
        return prepared

    def held(self, unit: str = "U1", run: str = "r1") -> str:
        """Take the integration lock for a unit; its token."""
        return str(self.do("ACQUIRED", "integration-acquire", unit=unit, run=run).body["lock_token"])

    def preflighted(self, unit: str = "U1", work: Any = None, run: str = "r1") -> str:
        """A unit past its manual preflight; the lock token."""
        self.pending(unit, work, run=run)
        token = self.held(unit, run)
        self.do("PREFLIGHT_OK", "preflight", "--lock-token", token, unit=unit, run=run)
        return token

    def pick(self, unit: str = "U1", run: str = "r1") -> None:
        """The host's own step between `preflight` and `mark-applied`."""
        self.git("cherry-pick", "--no-commit", self.unit(unit, run)["transport"]["commit"])

    def applied(self, unit: str = "U1", work: Any = None, run: str = "r1") -> str:
        """A manually applied unit (`integrated`); the lock token."""
        token = self.preflighted(unit, work, run)
        self.pick(unit, run)
        self.do("APPLIED", "mark-applied", "--lock-token", token, unit=unit, run=run)
        return token

    def verified(self, unit: str = "U1", work: Any = None, run: str = "r1") -> str:
        """A manually verified unit; the lock token."""
        token = self.applied(unit, work, run)
        more = ("--lock-token", token, "--evidence-digest", "any text")
        self.do("VERIFIED", "mark-verified", *more, unit=unit, run=run)
        return token

    def committed(self, unit: str = "U1", work: Any = None, run: str = "r1") -> str:
        """A manually committed unit that is not cleaned; the lock token."""
        token = self.verified(unit, work, run)
        self.git("commit", "-qm", f"feat: {unit}")
        self.do("COMMITTED", "mark-committed", "--lock-token", token, unit=unit, run=run)
        return token

    def preserved(self, unit: str = "U1", work: Any = None, run: str = "r1") -> Reply:
        """A unit whose verification failed; what `integrate` answered."""
        self.pending(unit, work, run=run)
        return self.integrate(unit, ("false",), run=run).expect("BLOCKED")

    def done(self, unit: str = "U1", work: Any = None, *more: str, run: str = "r1") -> str:
        """An integrated and cleaned unit; its canonical commit."""
        self.pending(unit, work, *more, run=run)
        made = self.integrate(unit, run=run).expect("UNIT_COMMITTED").body["canonical_commit"]["commit"]
        return str(made)

    def halted(self, args: Sequence[str], command: str = "") -> tuple[subprocess.Popen[bytes], Path]:
        """Start `args` with a verification that runs `command`, then waits; (process, file that lets it go on)."""
        started, go = self.base / "started", self.base / "go"
        started.unlink(missing_ok=True)
        go.unlink(missing_ok=True)
        script = f"{command}\ntouch {started}; while [ ! -e {go} ]; do sleep 0.02; done"
        child = self.spawn(*args, "--", "sh", "-c", script)
        wait_for(lambda: started.exists() or child.poll() is not None, "the verification to start")
        assert child.poll() is None, child.communicate()
        return child, go

    def kill_during_verification(self, args: Sequence[str], command: str = "") -> None:
        """SIGKILL to the controller while its verification runs."""
        child, _ = self.halted(args, command)
        child.kill()
        child.communicate(timeout=60)

    def killing_git(self, pattern: str, when: str, condition: str = "true") -> dict[str, str]:
        """An environment whose git kills the controller `before` or `after` it runs, once pattern and condition hold.

        The pattern is one of `case` in sh, for the arguments between spaces; the condition is a command of sh.
        """
        folder = self.base / "killing"
        folder.mkdir(exist_ok=True)
        real = shutil.which("git", path=self.env["PATH"])
        test = f'case " $* " in {pattern}) if {condition}; then kill -9 $PPID; exit 1; fi;; esac'
        body = f'{test}\nexec {real} "$@"\n' if when == "before" else f'{real} "$@"; code=$?\n{test}\nexit $code\n'
        script = folder / "git"
        script.write_text(f"#!/bin/sh\n{body}")
        script.chmod(0o755)
        return {"PATH": f"{folder}:{self.env['PATH']}"}

    def recorded(self, unit: str = "U1", run: str = "r1") -> str:
        """The unit's state as the journal has it: after a kill the projection is older."""
        return str(self.do("STATUS", "status", unit=unit, run=run).body["unit"]["state"])


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def begin(base: Path) -> Desk:
    """A host with a one-commit repository and no run."""
    base.mkdir(exist_ok=True)
    desk = Desk(base)
    desk.make_repo()
    return desk


def begin_run(base: Path, *, attributes: str = "", config: dict[str, str] | None = None) -> Desk:
    """A host with run `r1`, in a repository with these attributes, this configuration and a file `old.txt` if any."""
    desk = begin(base)
    for key, value in (config or {}).items():
        desk.git("config", key, value)
    if attributes or config:
        (desk.repo / ".gitattributes").write_text(attributes)
        (desk.repo / "old.txt").touch()
        desk.git("add", "-A")
        desk.git("commit", "-qm", "attributes")
    desk.init().expect("READY")
    return desk


def alive(marker: str) -> list[int]:
    """Processes whose command line holds the marker."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if marker.encode() in Path("/proc", name, "cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found
