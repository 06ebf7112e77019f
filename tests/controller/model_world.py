"""The world of the random tests: a repository with its user, a runner and a worker that the test plays, crashes.

It keeps account of every byte that the user wrote (`owed`), of what the checkout looked like, and of what the model
says of the run; `settle` compares them after every command.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller import machine
from controller.transport import ref_name
from tests.controller.model_units import TERMINAL, Command, Facts, Model, Unit
from tests.controller.quick import QuickHost
from tests.host import Reply
from tests.lane import Lane

RUN = "r1"
FILES = {
    "f": "one\n",
    "dir/g": "two\n",
    "keep.txt": "kept\n",
    ".gitignore": "*.log\nbuild/\n",
}
WORK: dict[str, tuple[str, ...]] = {"U1": ("u1.txt", "f"), "U2": ("u2/x.txt", "dir/g"), "U3": ("u3.txt", "f")}
IGNORED = ("my.log", "build/out")
CHECKS: dict[str, list[str]] = {
    "true": ["true"],
    "false": ["false"],
    "dirties": ["sh", "-c", "echo by-verification >>keep.txt"],
    "litters": ["sh", "-c", "echo by-verification >litter.txt"],
    "ignored": ["sh", "-c", "sleep 0.02; echo by-verification >verify.log"],
    "moves-head": ["git", "commit", "-q", "--allow-empty", "-m", "by verification"],
}
LEFT_BY_CHECKS = ("verify.log",)
Eye = dict[str, Any]


@dataclass(frozen=True)
class Crash:
    """When to kill: so many milliseconds after the start, or bytes after the journal's end; with git or without."""

    after: str
    amount: int
    tree: bool


class World(QuickHost):
    """One repository, one run, and everybody who works with them."""

    def __init__(self, base: Path, lane: Lane) -> None:
        super().__init__(base, lane)
        self.make_repo(FILES)
        self.log: list[str] = []
        self.steps = 0
        self.failed = False
        self.owed: dict[str, bytes] = {}
        self.undo: dict[str, tuple[bytes | None, str]] = {}
        self.before_apply: dict[str, Eye] = {}
        self.prepared: dict[str, dict[str, Any]] = {}
        self.token = "0" * 48
        self.fog: set[str] | None = None  # after a crash: the paths that the user has touched since, until `resume`
        self.fog_eye: Eye = {}
        self.origin: dict[str, str] = {}
        self.model = Model(Facts([self.head]))
        self.init().expect("READY")

    # --- looking ------------------------------------------------------------------------------------------------------

    def eye(self) -> Eye:
        """What a user could miss: HEAD, branch, index with its bits, every file's bytes and mode."""
        files: dict[str, Any] = {}
        for folder, names, leaves in os.walk(self.repo):
            if folder == str(self.repo):
                names.remove(".git")
            for leaf in leaves:
                full = os.path.join(folder, leaf)
                name = os.path.relpath(full, self.repo)
                if name not in LEFT_BY_CHECKS:
                    files[name] = (os.lstat(full).st_mode, Path(full).read_bytes())
        head = (self.repo / ".git" / "HEAD").read_text().strip()
        at = (self.repo / ".git" / head.removeprefix("ref: ")).read_text().strip()
        return {"head": at, "branch": head, "index": self.git("ls-files", "-v", "--stage"), "files": files}

    def journal_bytes(self) -> bytes:
        """The journal as it is."""
        return (self.run_dir(RUN) / "journal.jsonl").read_bytes()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A failure carries the story that led to it."""
        try:
            yield
        except AssertionError as error:
            if not self.failed:
                error.add_note("\n".join(self.log))
            self.failed = True
            raise

    def tell(self, what: object, reply: Reply) -> None:
        """Note an answer, short."""
        cause = reply.stderr.removeprefix("unit-workspace: ").strip()[:200]
        self.log.append(f"{what} -> {reply.word} {cause}".rstrip())

    # --- the user ---------------------------------------------------------------------------------------------------

    def write(self, name: str, *, stage: bool = False) -> None:
        """The user writes a file of the checkout: bytes that must never be lost."""
        self.log.append(f"user writes {name}{' and stages it' if stage else ''}")
        path = self.repo / name
        old = path.read_bytes() if path.exists() else None
        entry = self.git("ls-files", "--stage", "--", name)
        if name not in self.undo:
            self.undo[name] = (old, entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = f"user {len(self.log)} {name}\n".encode()
        path.write_bytes(content)
        self.owed[name] = content
        if stage and name not in IGNORED:
            self.git("add", "--", name)
        self._dirtied(name)

    def delete(self, name: str) -> None:
        """The user deletes a file."""
        if not (self.repo / name).exists():
            return
        self.log.append(f"user deletes {name}")
        if name not in self.undo:
            self.undo[name] = ((self.repo / name).read_bytes(), self.git("ls-files", "--stage", "--", name))
        (self.repo / name).unlink()
        self.owed.pop(name, None)
        self._dirtied(name)

    def _dirtied(self, name: str) -> None:
        if name not in IGNORED:
            self.model.facts.dirt.add(name)
        if self.fog is not None:
            self.fog.add(name)

    def tidy(self) -> None:
        """The user takes back what they did to the checkout and did not commit (but for ignored files)."""
        self.log.append("user tidies up")
        for name in sorted(self.model.facts.dirt):
            self._take_back(name)
        self.model.facts.dirt.clear()

    def _take_back(self, name: str) -> None:
        path = self.repo / name
        if self.fog is not None:
            self.fog.add(name)
        old, entry = self.undo.pop(name)
        mine = self.owed.pop(name, None)
        now = path.read_bytes() if path.exists() else None
        if now == mine:
            if old is None:
                path.unlink()
                for parent in path.relative_to(self.repo).parents[:-1]:
                    if not any((self.repo / parent).iterdir()):
                        (self.repo / parent).rmdir()
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(old)
        elif mine is not None:
            self.owed[f"{name} (given up)"] = mine  # the controller took it away: it must be in recovered/
        if self.git("ls-files", "--stage", "--", name) != entry and now == mine:
            self.git("update-index", "--force-remove", "--", name)
            if entry:
                mode, oid, _ = entry.split("\t")[0].split(" ")
                self.git("update-index", "--add", "--cacheinfo", f"{mode},{oid},{name}")

    def commit(self) -> None:
        """The user commits everything that is there."""
        facts = self.model.facts
        if facts.clean or not facts.on_branch or self.fog is not None:
            return
        self.log.append("user commits")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", f"user {len(self.log)}")
        facts.dirt.clear()
        self.undo.clear()
        self._advanced(self.head)
        for unit in self.model.units.values():
            unit.picked = False

    def _advanced(self, commit: str) -> None:
        if commit != self.model.facts.head:
            self.model.facts.chain.append(commit)

    def switch(self) -> None:
        """The user goes to another branch at the same commit, or back."""
        facts = self.model.facts
        self.log.append("user switches the branch")
        if facts.on_branch:
            self.git("checkout", "-q", "-B", "side")
        else:
            self.git("symbolic-ref", "HEAD", "refs/heads/main")
        facts.on_branch = not facts.on_branch

    def rewind(self) -> None:
        """The user keeps what moved HEAD on a branch of their own and goes back to where the transaction began."""
        for unit in self.model.units.values():
            moved = unit.pre is not None and unit.pre != self.model.facts.head and self.model.lock == unit.name
            if moved and unit.pre and unit.state in ("integration-pending", "integrated", "verified", "restoring"):
                if unit.made == self.model.facts.head:
                    continue
                self.log.append("user puts HEAD back, keeping a branch")
                self.git("branch", f"kept-{len(self.log)}")
                self.git("reset", "-q", "--hard", unit.pre)
                chain = self.model.facts.chain
                del chain[chain.index(unit.pre) + 1 :]
                unit.picked, unit.made = False, None
                if self.fog is not None:
                    self.fog_eye = self.eye()

    def pick(self, unit: Unit) -> None:
        """The host applies the transport by hand."""
        self.log.append(f"host cherry-picks {unit.name}")
        self.git("cherry-pick", "--no-commit", self.unit(unit.name)["transport"]["commit"])
        unit.picked = True

    def commit_pick(self, unit: Unit) -> None:
        """The host commits what was verified."""
        self.log.append(f"host commits {unit.name}")
        self.git("commit", "-q", "-m", f"feat: {unit.name} {unit.attempt}")
        unit.made = self.head
        unit.picked = False
        self._advanced(unit.made)

    def unpick(self, unit: Unit) -> None:
        """The host takes the applied transport away by hand."""
        self.log.append(f"user resets {unit.name} away")
        self.git("reset", "-q", "--hard")
        unit.picked = False

    # --- runner and worker ------------------------------------------------------------------------------------------

    def start_job(self, unit: Unit) -> None:
        """What `peer-job-runner start` leaves before its worker runs."""
        limits = {"idle": None, "hard": 7200, "log_max": 1 << 20, "result_max": 5 << 20, "poll": 2, "grace": 1}
        self.log.append(f"job for {unit.name}")
        unit.job_dir = self.write_job(self.prepared[unit.name], run=RUN, supervision=limits)

    def work(self, unit: Unit) -> None:
        """The worker writes its output."""
        self.log.append(f"worker of {unit.name} writes")
        workspace = Path(self.prepared[unit.name]["workspace"])
        for name in WORK[unit.name]:
            (workspace / name).parent.mkdir(exist_ok=True)
            (workspace / name).write_text(f"{unit.name} attempt {unit.attempt} {name}\n")
        unit.touched = True

    def end_work(self, unit: Unit, word: str, result: str) -> None:
        """The job ends with this word and this sort of result; `running` means that the runner has lost it."""
        assert unit.job_dir is not None
        self.log.append(f"job of {unit.name}: {word}, result {result}")
        prepared = self.prepared[unit.name]
        results: dict[str, dict[str, Any]] = {
            "wrong-route": {"actual_route": "claude"},
            "blocked": {"terminal_status": "blocked", "summary": "cannot"},
            "scope": {
                "terminal_status": "scope_expansion",
                "scope_expansion": {"requested_paths": ["more"], "reason": "needed"},
            },
            "oversize": {"summary": "x" * (6 << 20)},
        }
        if result != "none":
            self.write_result(prepared, **results.get(result, {}))
        if result == "bad-json":
            (Path(prepared["result_dir"]) / "implementation-result.json").write_text('{"terminal_status": ')
        if result == "ignored-output":
            (Path(prepared["workspace"]) / "made.log").write_text("ignored\n")
        unit.ended, unit.result = word, result
        folder = self.run_dir(RUN) / "jobs" / unit.job_dir
        if word == "running":
            self.private(folder / "pid", json.dumps({"supervisor_pid": 999_999_999, "worker_pid": 999_999_998}))
        else:
            self.end_job(unit.job_dir, word, run=RUN)

    # --- commands ---------------------------------------------------------------------------------------------------

    def argv(self, command: Command) -> list[str]:
        """The command line of a command."""
        unit = self.model.units.get(command.unit)
        name, _, flag = command.name.partition(" ")
        common = ["--run-id", RUN, *(["--unit-id", command.unit] if command.unit else [])]
        token = ["--lock-token", self.token if command.token_ok else "f" * 48]
        attempt = unit.attempt if unit else 1
        if name.startswith("prepare"):
            attempt += name == "prepare-retry"
            packet = self.base / f"packet-{command.unit}.md"
            packet.write_text(f"do {command.unit}\n")
            base = unit.base if unit and name == "prepare-again" else self.model.facts.head
            more = ["--base", base, "--packet", str(packet), "--attempt-id", f"attempt-{attempt}"]
            return ["prepare", *common, *more]
        more = {
            "record-job": ["--attempt-id", f"attempt-{attempt}", "--job-id", (unit and unit.job_dir) or "no-job"],
            "integration-acquire": ["--resume"] if command.resume else [],
            "preflight": token,
            "mark-applied": token,
            "mark-verified": [*token, "--evidence-digest", "any text"],
            "mark-committed": token,
            "integration-release": token,
            "restore": token,
            "integrate": ["--commit-message", f"feat: {command.unit} {attempt}", "--", *CHECKS[command.check]],
            "verify-run": ["--", *CHECKS[command.check]],
            "cleanup": self._abandonment(command, unit) if flag and unit else [],
            "claim-fallback": ["--caller-mode", "headless"],
            "complete-fallback": [
                *("--accepted-head", self.model.facts.head if command.head_ok else "e" * 40),
                *("--evidence-digest", "a" * 64, "--summary", "native"),
            ],
        }.get(name, [])
        return [name, *common, *more]

    def _abandonment(self, command: Command, unit: Unit) -> list[str]:
        if command.expectation == "wrong":
            return ["--abandon", "--expect-transport", "e" * 40]
        if unit.transport is not None:
            return ["--abandon", "--expect-transport", self.unit(unit.name)["transport"]["commit"]]
        return ["--abandon", *(["--expect-job", unit.job] if unit.job is not None else [])]

    def conflicts(self, unit: Unit) -> bool:
        """Whether Git cannot merge the unit's transport into HEAD."""
        if unit.transport is None or self.fog is not None:
            return False
        commit = self.unit(unit.name)["transport"]["commit"]
        args = ["merge-tree", "--write-tree", "--no-messages", self.model.facts.head, commit]
        return "\n" in self.git(*args, check=False)  # after the tree, the paths in conflict

    def do(self, command: Command, crash: Crash | None = None) -> Reply | None:
        """Give a command, hold everything against the model; None when it was killed."""
        self.steps += 1
        unit = self.model.units.get(command.unit)
        if command.name in ("integrate", "preflight") and unit is not None:
            command.conflict = self.conflicts(unit)
        argv = self.argv(command)
        eye, journal, before = self.eye(), self.journal_bytes(), copy.deepcopy(self.model)
        running = (
            self.lane.start(self, *self._authorization(command.unit))
            if command.name == "authorize-dispatch"
            else self.lane.start(self, *argv)
        )
        if crash is not None and self._kill(running, crash, len(journal)):
            running.wait()
            self.log.append(f"{command} killed after {crash.amount} {crash.after}{' with git' if crash.tree else ''}")
            self._into_fog(eye)
            return None
        reply = running.reply()
        self.tell(f"{command} ({command.check})" if "--" in argv else command, reply)
        with self.explained():
            self._form(reply)
            if self.fog is None:
                why = self.model.apply(command)
                assert (reply.code == 0) == (why is None), f"{command}: the model says {why or 'accept'}; {reply}"
                self._learn(command, reply)
                self._settle(command, before, eye)
            elif command.name == "prepare" and reply.code == 0:
                self.prepared[command.unit] = reply.body
        return reply

    def hurry(self, command: Command) -> Reply:
        """Give a command without looking at anything but whether the model would have accepted it."""
        authorize = command.name == "authorize-dispatch"
        reply = self.call(*(self._authorization(command.unit) if authorize else self.argv(command)))
        self.tell(command, reply)
        assert (self.model.apply(command) is None) == (reply.code == 0), repr(reply)
        self._learn(command, reply)
        return reply

    def _authorization(self, unit_id: str) -> list[str]:
        prepared = self.prepared[unit_id]
        unit = self.model.units[unit_id]
        values = {
            "unit-id": unit_id,
            "attempt-id": prepared["attempt_id"],
            "job-id": unit.job_dir or "no-job",
            "authorization": prepared["authorization_path"],
            "authorization-digest": prepared["authorization_digest"],
            "workspace": prepared["workspace"],
            "packet": prepared["packet_path"],
            "packet-digest": prepared["packet_digest"],
            "result-dir": prepared["result_dir"],
        }
        return ["authorize-dispatch", "--run-id", RUN, *(w for k, v in values.items() for w in (f"--{k}", v))]

    def _kill(self, running: Any, crash: Crash, size: int) -> bool:
        """Kill a running command at the chosen moment; whether it was still there."""
        journal = self.run_dir(RUN) / "journal.jsonl"
        end = time.monotonic() + (crash.amount / 1000 if crash.after == "ms" else 10.0)
        poller = select.poll()
        if running.fd < 0:
            return False
        poller.register(running.fd, select.POLLIN)
        while time.monotonic() < end:
            if crash.after == "journal bytes" and os.stat(journal).st_size >= size + crash.amount:
                break
            if poller.poll(0.3):
                return False
        running.kill(tree=crash.tree)
        return True

    def _form(self, reply: Reply) -> None:
        """A clear word, the right exit code, and a next step."""
        exits = {"REFUSED": 1, "BLOCKED": 1, "AMBIGUOUS": 1, "NOT_FOUND": 1, "UNREADABLE": 4}
        assert reply.code == exits.get(reply.word, 0), repr(reply)
        assert reply.word, repr(reply)
        if reply.word != "UNREADABLE":
            assert reply.body["next"], repr(reply)

    def _learn(self, command: Command, reply: Reply) -> None:
        """What the host remembers of an answer."""
        if reply.code == 0 and command.name in ("prepare", "prepare-retry"):
            self.prepared[command.unit] = reply.body
            self.model.units[command.unit].paths = frozenset(WORK[command.unit])
        if command.name == "preflight" and reply.code == 0:
            self.before_apply[command.unit] = self.eye()
        if command.name == "integration-acquire" and reply.code == 0:
            self.token = reply.body["lock_token"]
        if command.check == "moves-head" and self.model.units[command.unit].state == "verified":
            self.model.units[command.unit].made = self.head
        if command.name == "integrate" and self.model.committed:
            self.model.units[command.unit].canonical = reply.body["canonical_commit"]["commit"]
        self._advanced(self.git("rev-parse", "refs/heads/main"))

    # --- invariants ---------------------------------------------------------------------------------------------------

    def _settle(self, command: Command, before: Model, eye: Eye) -> None:
        if command.name == "integrate" and before.lock is None:
            self.before_apply[command.unit] = eye
        self._legal(command, before)
        self._compare()
        now = self.eye()
        if self.model.committed:
            unit = self.model.units[command.unit]
            assert now["head"] == unit.canonical != eye["head"]
            assert self.git("rev-parse", f"{unit.canonical}^@") == unit.pre
            assert self.git("status", "--porcelain", "-uall") == ""
        elif self.model.restored:
            applied = [name for name in self.model.restored if before.lock == name]
            expected = self.before_apply[applied[0]] if applied else eye
            assert self._but_ignored(now) == self._but_ignored(expected), "the restoration is not exact"
            assert {k: v for k, v in now["files"].items() if k in IGNORED} == {
                k: v for k, v in eye["files"].items() if k in IGNORED
            }
            self._forget_recovered()
        elif command.check != "moves-head":
            assert now == eye, f"{command} changed the checkout"
        self.check()

    def _but_ignored(self, eye: Eye) -> Eye:
        return {**eye, "files": {k: v for k, v in eye["files"].items() if k not in IGNORED}}

    def _forget_recovered(self) -> None:
        for name in [name for name in self.undo if name not in self.model.facts.dirt and name not in IGNORED]:
            self._take_back(name)

    def _legal(self, command: Command, before: Model) -> None:
        """The table of the product allows every move that was made, by this very command."""
        trigger = command.name.removesuffix("-again").removesuffix("-retry")
        for name, unit in self.manifest(RUN)["units"].items():
            old = before.units.get(name)
            if old is not None and old.state != unit["state"]:
                found, reach = {old.state}, {old.state}
                while found:
                    found = {dest for state in found for dest in machine.destinations(trigger, state)} - reach
                    reach |= found
                assert unit["state"] in reach, f"{trigger} took {name} from {old.state} to {unit['state']}"
                assert command.unit in ("", name), f"{command} moved {name}"

    def _compare(self) -> None:
        """The manifest says what the model says."""
        manifest = self.manifest(RUN)
        lock = manifest["integration_lock"]
        assert (None if lock is None else lock["unit_id"]) == self.model.lock
        assert set(manifest["units"]) == set(self.model.units)
        for name, unit in self.model.units.items():
            view = manifest["units"][name]
            attempt = view["attempts"][-1]
            seen = {
                "state": view["state"],
                "attempt": len(view["attempts"]),
                "job": attempt["job_id"],
                "process": attempt["process_state"],
                "transport": view["transport"]["commit"] is not None,
                "claimed": attempt["fallback"]["claimed"] is not None,
                "cleaned": view["cleanup"] is not None,
                "failure": "terminal_validation_failure" in attempt,
            }
            expected = {key: getattr(unit, key) for key in seen} | {"transport": unit.transport is not None}
            assert seen == expected, f"{name}: the manifest differs from the model"

    def check(self) -> None:
        """What holds whenever no command runs and nothing is half done."""
        manifest = self.manifest(RUN)
        lock = manifest["integration_lock"]
        files = sorted((self.runs / ".locks").glob("integration-*.json"))
        assert len(files) == (lock is not None)
        if lock is not None:
            assert json.loads(files[0].read_bytes())["nonce"] == lock["nonce"]
        listed = self.git("for-each-ref", "--format=%(objectname) %(refname)", "refs/ce-work/").splitlines()
        refs = {ref: commit for commit, ref in (line.split(" ") for line in listed)}
        wanted = {
            ref_name(RUN, name): unit["transport"]["commit"]
            for name, unit in manifest["units"].items()
            if unit["transport"]["commit"] is not None and unit["cleanup"] is None
        }
        assert refs == wanted, "a transport is not reachable until its unit is cleaned, or for longer"
        subjects = self.git("log", "--format=%s", "refs/heads/main").splitlines()
        ours = [subject for subject in subjects if subject.startswith("feat: ")]
        assert len(ours) == len({subject.split(" ")[1] for subject in ours}), "a unit has two canonical commits"
        assert not (self.repo / ".git" / "index.lock").exists()
        self.check_owed()

    def check_owed(self) -> None:
        """Every byte that the user wrote and did not destroy is in the checkout, in Git, or in recovered/."""
        missing = {}
        for name, content in self.owed.items():
            path = self.repo / name
            if not (path.is_file() and path.read_bytes() == content):
                missing[hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()] = name
        if not missing:
            return
        kept = {path.read_bytes() for path in self.run_dir(RUN).glob("recovered/*/**/*") if path.is_file()}
        for oid, name in missing.items():
            if self.owed[name] not in kept:
                assert self.git("cat-file", "-t", oid, check=False) == "blob", f"the user's {name} is lost"

    # --- after a crash ------------------------------------------------------------------------------------------------

    def _into_fog(self, eye: Eye) -> None:
        if self.fog is None:
            self.fog = set()
            self.fog_eye = eye
            self.origin = {name: unit.state for name, unit in self.model.units.items()}
        self.check_owed()

    def recover(self) -> None:
        """`resume` until nothing changes (a manual apply takes two, section 10), then see what became of the run."""
        with self.explained():
            for count in range(4):
                journal, eye = self.journal_bytes(), self.eye()
                reply = self.call("resume", "--run-id", RUN)
                self.tell("resume", reply)
                self._form(reply)
                if self.journal_bytes() == journal:
                    assert self.eye() == eye, "a resume that records nothing changed the checkout"
                    break
                assert count < 3, "resume does not come to rest"
            if reply.code != 0:
                excuse = not self.model.facts.clean or not self.model.facts.on_branch or self._moved()
                assert excuse, f"one resume does not bring the run back: {reply}"
                return
            self._out_of_fog()

    def _moved(self) -> bool:
        units = self.call("status", "--run-id", RUN).body["units"].values()
        fold = [unit["integration"]["pre_fold"] for unit in units if unit["state"] not in TERMINAL]
        return any(pre is not None and pre["head"] != self.head for pre in fold)

    def _out_of_fog(self) -> None:
        status = self.call("status", "--run-id", RUN).expect("STATUS").body
        assert status["revision"] == self.manifest(RUN)["revision"], "the manifest is older than the journal"
        fog, self.fog = self.fog or set(), None
        lock = status["integration_lock"]
        self.model.lock = None if lock is None else lock["unit_id"]
        self.token = "0" * 48 if lock is None else lock["nonce"]
        for name, view in status["units"].items():
            self._sync_unit(name, view)
        self._lift(fog)
        self.check()

    def _sync_unit(self, name: str, view: dict[str, Any]) -> None:
        attempt, integration = view["attempts"][-1], view["integration"]
        old = self.model.units.get(name)
        if old is None or old.attempt != len(view["attempts"]):
            old = Unit(name, view["workspace"]["base"], [], frozenset(WORK[name]), attempt=len(view["attempts"]))
            self.model.units[name] = old
        old.state = view["state"]
        old.allowed = list(view["wave"]["allowed_heads"])
        old.job, old.process = attempt["job_id"], attempt["process_state"]
        old.job_dir = old.job_dir or old.job
        status = self.run_dir(RUN) / "jobs" / (old.job_dir or "none") / "status"
        old.ended = status.read_text().strip() if status.exists() else old.ended  # a killed `reap` may have written it
        old.authorized = attempt["dispatch_authorization_receipt"] is not None
        old.transport = view["transport"]["commit"] and "some"
        old.failure = "terminal_validation_failure" in attempt
        old.claimed = attempt["fallback"]["claimed"] is not None
        completed = attempt["fallback"].get("completed")
        old.native = completed and completed["accepted_head"]
        old.pre = integration["pre_fold"] and integration["pre_fold"]["head"]
        old.driver = integration["driver"] or ""
        old.picked = old.state in ("integrated", "verified") and old.made is None
        made = integration["canonical_commit"]
        old.canonical = made and made["commit"]
        old.cleaned = view["cleanup"] is not None
        old.abandoned = old.cleaned and view["cleanup"]["abandoned"]
        receipt = (view["cleanup"] or {}).get("abandonment_receipt") or {}
        old.withdrawn = receipt.get("kind") == "never-dispatched"
        old.blocked_result = (attempt["terminal_receipt"] or {}).get("terminal_status") == "blocked"
        self.prepared[name] = {
            "unit_id": name,
            "attempt_id": attempt["attempt_id"],
            "workspace": view["workspace"]["path"],
            "result_dir": f"{view['recovery_path']}/result",
            "packet_path": view["packet"]["path"],
            "packet_digest": view["packet_digest"],
            "authorization_path": attempt["authorization_path"],
            "authorization_digest": attempt["authorization_digest"],
            "adapter": attempt["adapter"],
        }

    def _lift(self, fog: set[str]) -> None:
        """After the crash: the commit was made, wholly, or the checkout is what it was before."""
        eye = self.eye()
        applied = [unit for unit in self.model.units.values() if unit.picked]
        if eye["head"] != self.fog_eye["head"]:
            assert self.git("rev-parse", "HEAD^@") == self.fog_eye["head"], "not one commit on top of the old HEAD"
            self._advanced(eye["head"])
            assert eye["head"] in [unit.canonical for unit in self.model.units.values()]
            assert set(self.git("status", "--porcelain", "-uall").splitlines()) == set() or fog
        elif not applied:
            options = [self.fog_eye, *self.before_apply.values()]
            assert self._without(eye, fog) in [self._without(option, fog) for option in options], "not put back exactly"
        self.model.facts.dirt = {name for name in self.model.facts.dirt if self._still_dirty(name)}
        self._forget_recovered()

    def _without(self, eye: Eye, fog: set[str]) -> Eye:
        files = {k: v for k, v in eye["files"].items() if k not in fog and k not in IGNORED}
        index = [line for line in eye["index"].splitlines() if line.split("\t")[1] not in fog]
        return {"head": eye["head"], "files": files, "index": index}

    def _still_dirty(self, name: str) -> bool:
        return self.git("status", "--porcelain", "-uall", "--", name) != ""
