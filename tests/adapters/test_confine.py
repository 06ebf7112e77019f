"""A confined worker changes nothing outside its workspace, whatever it tries, and can do its work inside.

Every attempt is a real process under the real rules, as root (where the tests run as root) and as an ordinary user.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters import landlock
from adapters.confine import Assessed, Confinement, Needs, Posture, fence_of, git_directories
from adapters.environment import find_executable
from runner.foreground import Outcome, run_supervised

ABI = landlock.supported_abi()
BUBBLEWRAP = find_executable("bwrap", "/usr/bin:/bin:/usr/local/bin")
NOBODY = 65534
_PR_SET_DUMPABLE = 4
needs_landlock = pytest.mark.skipif(ABI < 3, reason="this kernel's Landlock is too old or missing")
needs_bubblewrap = pytest.mark.skipif(BUBBLEWRAP is None, reason="bubblewrap is not installed")
WHO = [pytest.param("root", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")), "user"]
REFUSALS = ("Permission denied", "Read-only file system", "Invalid cross-device link", "Device or resource busy")


class Scene:
    """A checkout with a linked worktree, a home, and a confined shell in the worktree."""

    def __init__(self, base: Path, means: str, who: str) -> None:
        self.base = base
        self.who = who
        self.home = base / "home"
        self.repo = base / "repo"
        self.workspace = base / "runs" / "unit" / "workspace"
        self.evidence = base / "runs" / "unit" / "result"
        self.scratch = base / "scratch"
        self.sibling = base / "sibling"
        self.state = self.home / ".tool"
        for folder in (self.home, self.repo, self.evidence, self.scratch, self.sibling, self.state):
            folder.mkdir(parents=True)
        for folder in (self.scratch / "result", self.scratch / "tmp", self.state / "hooks"):
            folder.mkdir()
        for path in (
            self.home / "notes",
            self.sibling / "file",
            self.evidence / "adapter.log",
            self.scratch / "prompt",
        ):
            path.write_text("precious\n")
        (self.repo / "f").write_text("one\n")
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.scratch / "tmp"),
            "LC_ALL": "C",
            "REPO": str(self.repo),
            "BASE": str(base),
            "GIT_CONFIG_GLOBAL": str(base / "gitconfig"),
            "GIT_CONFIG_SYSTEM": "/dev/null",
        }
        (base / "gitconfig").write_text("[user]\nname = T\nemail = t@example.invalid\n[safe]\ndirectory = *\n")
        for words in (
            ("init", "-q"),
            ("add", "-A"),
            ("commit", "-qm", "0"),
            ("worktree", "add", "-q", "--detach", str(self.workspace)),
        ):
            subprocess.run(["git", *words], cwd=self.repo, env=self.environment, check=True, stdin=subprocess.DEVNULL)
        if who == "user" and os.geteuid() == 0:
            for path in (base, *base.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        posture = Posture("landlock", True, ABI) if means == "landlock" else Posture("bubblewrap", True)
        own = (self.scratch / "result", self.scratch / "tmp")
        needs = Needs(state=(str(self.state),), trusted=(str(self.state / "hooks"),))
        fence = fence_of(self.workspace, own, needs, {})
        self.confinement = Confinement(Assessed("on", posture, BUBBLEWRAP), fence, self.workspace)

    def shell(self, script: str) -> tuple[Outcome, str]:
        """Run `script` as the confined worker; how it ended and what it said."""
        said = bytearray()
        outcome = run_supervised(
            self.confinement.wrap(("/bin/sh", "-c", script)),
            cwd=self.workspace,
            env=self.environment,
            timeout=20.0,
            grace=0.2,
            marker=("CONFINE_TEST", str(self.base)),
            on_stdout=said.extend,
            on_stderr=None,
            merge_stderr=True,
            before_exec=self._before_exec(),
        )
        return outcome, said.decode("utf-8", "replace")

    def calls(self, call: Callable[[Scene], object]) -> str | None:
        """Make one system call from a confined process; why it failed, or None."""
        confine = self._before_exec()
        assert confine is not None

        def confined() -> None:
            confine()
            call(self)

        outcome = run_supervised(
            ("/bin/true",),
            cwd=self.workspace,
            env=self.environment,
            timeout=20.0,
            grace=0.2,
            marker=("CONFINE_TEST", str(self.base)),
            on_stdout=None,
            on_stderr=None,
            before_exec=confined,
        )
        return outcome.launch_error

    def clean(self) -> None:
        """Bring the workspace back to its one file."""
        for path in self.workspace.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (self.workspace / "f").write_text("one\n")
        os.chown(self.workspace / "f", self.workspace.stat().st_uid, -1)

    def outside(self) -> dict[str, Any]:
        """Everything in the scene that the worker must not change."""
        inside = (self.workspace, self.scratch / "result", self.scratch / "tmp", self.state)
        seen: dict[str, Any] = {str(self.workspace / ".git"): (self.workspace / ".git").read_bytes()}
        for path in sorted(self.base.rglob("*")):
            if not any(path != folder and path.is_relative_to(folder) for folder in inside):
                status = path.lstat()
                content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
                links = status.st_nlink if path.is_file() else None
                seen[str(path)] = (status.st_mode, status.st_uid, status.st_ino, links, content)
        return seen

    def _before_exec(self) -> Callable[[], None] | None:
        confine = self.confinement.before_exec()
        if self.who == "root" or os.geteuid() != 0:
            return confine

        def become_user_and_confine() -> None:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            # After a change of user a process owns its own /proc again only when it is dumpable.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
            if confine is not None:
                confine()

        return become_user_and_confine


@contextmanager
def made(means: str, who: str) -> Iterator[Scene]:
    # Not below pytest's own folder, which another user cannot enter.
    base = Path(tempfile.mkdtemp(prefix="confine-", dir="/tmp"))
    base.chmod(0o755)
    try:
        yield Scene(base, means, who)
    finally:
        shutil.rmtree(base)


@pytest.fixture(scope="module", params=WHO)
def who(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def scene(who: str) -> Iterator[Scene]:
    with made("landlock", who) as one:
        yield one


@pytest.fixture(scope="module")
def attacked(who: str) -> Iterator[Scene]:
    """One scene for all attempts: what they leave in the workspace is removed between them."""
    with made("landlock", who) as one:
        yield one


ATTEMPTS = {
    "overwrite the checkout": "echo x > $REPO/f",
    "append to the checkout": "echo x >> $REPO/f",
    "add to the checkout": "echo x > $REPO/new",
    "delete from the checkout": "rm -f $REPO/f",
    "rename in the checkout": "mv $REPO/f $REPO/g",
    "make a folder in the checkout": "mkdir $REPO/d",
    "write the home folder": "echo x > $HOME/.profile",
    "overwrite a file at home": "echo x > $HOME/notes",
    "write beside the temporary folder": "echo x > $BASE/sibling/file",
    "write the shared temporary folder": "echo x > /tmp/confine-escaped",
    "forge the evidence": "echo x > ../result/adapter.log",
    "forge a result": "echo x > ../result/implementation-result.json",
    "change the prompt": "echo x > $BASE/scratch/prompt",
    "plant beside the workspace": "mkdir ../workspace2",
    "take the workspace away": "mv ../workspace ../gone",
    "write through a hard link": "ln $REPO/f l && echo x > l",
    "move a file of the checkout in": "mv -T $REPO/f stolen",
    "move a file out": "echo x > mine; mv -T mine $REPO/f",
    "link a file out": "echo x > mine; ln mine $REPO/new",
    "write from a child of a child": "sh -c 'sh -c \"echo x > $REPO/f\"'",
    "write from a session of its own": "setsid -w sh -c 'echo x > $REPO/f'",
    "write through an open file": "exec 3< $REPO/f; echo x > /proc/self/fd/3",
    "write through a folder of a process": "cd $REPO; echo x > /proc/self/cwd/f",
    "write through a root of a process": "echo x > /proc/self/root$REPO/f",
    "truncate": "truncate -s 0 $REPO/f",
    "truncate at home": "truncate -s 0 $HOME/notes",
    "write through a symbolic link": "ln -s $REPO/f s; echo x > s",
    "write through a linked folder": "ln -s $REPO d; echo x > d/new",
    "leave the folder upwards": "echo x > ../../../repo/f",
    "copy with dd": "dd if=/dev/zero of=$REPO/f conv=notrunc bs=1 count=1",
    "stage": "echo x > f; git add f",
    "commit": "git commit -q --allow-empty -m evil",
    "move a branch": "git update-ref refs/heads/evil HEAD",
    "plant a hooks path": "git config core.hooksPath /evil",
    "plant a hook": "echo x > $REPO/.git/hooks/post-checkout",
    "write an object": "echo x | git hash-object -w --stdin",
    "stash": "echo x > f; git stash",
    "overwrite the .git file": "echo 'gitdir: /evil' > .git",
    "remove the .git file": "rm -f .git",
    "rename the .git file": "mv .git moved",
    "replace the .git file": "echo x > new; mv -f new .git",
    "plant a hook of the CLI's": "echo x > $HOME/.tool/hooks/evil",
    "replace the hooks of the CLI": "mv $HOME/.tool/hooks $HOME/.tool/gone",
    "become root again": "su -c 'echo x > $REPO/f' </dev/null",
}
# Git says it in words of its own; `su` never comes that far.
_OTHER_WORDS = {"stash", "write an object", "become root again"}


def attempt_to(attempt: str, scene: Scene) -> None:
    scene.clean()
    before = scene.outside()
    outcome, said = scene.shell(ATTEMPTS[attempt])
    assert scene.outside() == before
    assert not Path("/tmp/confine-escaped").exists()
    assert outcome.launch_error is None
    assert outcome.exit_code not in (0, None), said
    if attempt not in _OTHER_WORDS:
        assert any(refusal in said for refusal in REFUSALS), said


@needs_landlock
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_nothing_outside_the_workspace_can_be_changed(attacked: Scene, attempt: str) -> None:
    attempt_to(attempt, attacked)


@needs_bubblewrap
def test_bubblewrap_lets_nothing_outside_be_changed_either(who: str) -> None:
    with made("bubblewrap", who) as scene:
        for attempt in ATTEMPTS:
            attempt_to(attempt, scene)


CALLS: dict[str, Callable[[Scene], object]] = {
    "truncate": lambda scene: os.truncate(scene.repo / "f", 0),
    "open and truncate": lambda scene: os.open(scene.repo / "f", os.O_RDONLY | os.O_TRUNC),
    "open for writing": lambda scene: os.open(scene.repo / "f", os.O_RDWR),
    "link in": lambda scene: os.link(scene.repo / "f", "l"),
    "link out": lambda scene: os.link("f", scene.repo / "l"),
    "rename in": lambda scene: os.rename(scene.repo / "f", "taken"),
    "rename out": lambda scene: os.rename("f", scene.repo / "f"),
    "exchange": lambda scene: os.rename(scene.workspace / "f", scene.home / "notes"),
    "symbolic link": lambda scene: os.symlink("x", scene.repo / "s"),
    "unlink": lambda scene: os.unlink(scene.home / "notes"),
    "rmdir": lambda scene: os.rmdir(scene.scratch / "tmp"),
    "fifo": lambda scene: os.mkfifo(scene.repo / "pipe"),
    "unnamed file": lambda scene: os.open(scene.repo, os.O_TMPFILE | os.O_RDWR),
}


@needs_landlock
@pytest.mark.parametrize("call", CALLS)
def test_the_system_call_itself_is_refused(attacked: Scene, call: str) -> None:
    attacked.clean()
    before = attacked.outside()
    failed = attacked.calls(CALLS[call])
    assert attacked.outside() == before
    assert failed is not None
    assert "Permission denied" in failed or "Invalid cross-device link" in failed, failed


@pytest.mark.skipif(ABI < 2, reason="this kernel's Landlock lets nobody move a file to another folder")
@needs_landlock
def test_a_file_can_be_moved_between_folders_in_one_step(attacked: Scene) -> None:
    # Programs that write a file whole move it into its place; a copy in its stead could be seen half-written.
    attacked.clean()

    def move(scene: Scene) -> None:
        os.mkdir("a")
        os.rename("f", "a/f")
        os.rename("a/f", scene.scratch / "tmp" / "f")
        os.rename(scene.scratch / "tmp" / "f", "back")

    assert attacked.calls(move) is None
    assert (attacked.workspace / "back").read_text() == "one\n"


def work_in(scene: Scene) -> None:
    script = """set -e
        echo x > new; echo y >> f; mkdir -p a/b; echo z > a/b/c; mv a/b/c c; mv a moved; ln f hard; ln -s f soft
        truncate -s 1 hard; rm soft; rmdir moved/b; chmod +x new; mkfifo pipe; rm pipe
        echo t > $TMPDIR/t; mv $TMPDIR/t from-tmp; echo r > $BASE/scratch/result/raw-result; echo s > $HOME/.tool/state
        echo gone > /dev/null; echo told TOLD; cat $REPO/f > read; ls / > /dev/null
        git log --oneline > log; git diff > diff; git status --porcelain > status; git show HEAD:f > shown
        sh -c 'sh -c "echo deep > deep"'
    """
    # Another user's pipe cannot be opened by its name, confined or not.
    changed_user = scene.who == "user" and os.geteuid() == 0
    outcome, said = scene.shell(script.replace("TOLD", ">&2" if changed_user else "> /dev/stderr"))
    assert outcome.exit_code == 0, said
    assert said == "told\n"
    inside = {path.name for path in scene.workspace.iterdir()}
    assert {"new", "c", "moved", "hard", "from-tmp", "deep"} <= inside
    assert (scene.workspace / "shown").read_text() == "one\n"
    assert " M f" in (scene.workspace / "status").read_text()
    assert (scene.state / "state").read_text() == "s\n"
    assert (scene.scratch / "result" / "raw-result").read_text() == "r\n"


@needs_landlock
def test_work_inside_goes_on_as_ever(scene: Scene) -> None:
    work_in(scene)


@needs_landlock
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_shared_memory_is_there_and_is_the_workers_own(scene: Scene) -> None:
    # multiprocessing.Lock() and the like make a file there; so do the tests of many projects.
    mark = f"confine-{os.getpid()}"
    outcome, said = scene.shell(f"ls -A /dev/shm; echo x > /dev/shm/{mark} && cat /dev/shm/{mark}")
    assert not Path("/dev/shm", mark).exists()
    if scene.confinement.note() != "the workspace's .git is read-only":
        pytest.skip("no mount namespaces for this user")
    assert (outcome.exit_code, said) == (0, "x\n")


@needs_bubblewrap
def test_work_inside_goes_on_under_bubblewrap(who: str) -> None:
    with made("bubblewrap", who) as scene:
        work_in(scene)


@needs_landlock
def test_what_the_worker_leaves_behind_is_as_confined_and_ended(scene: Scene) -> None:
    before = scene.outside()
    outcome, _ = scene.shell("setsid sh -c 'sleep 0.2; echo x > $REPO/f; sleep 600' > /dev/null 2>&1 &")
    assert outcome.exit_code == 0
    assert scene.outside() == before


@pytest.mark.skipif(ABI < 6, reason="this kernel's Landlock does not know signals")
@needs_landlock
def test_no_process_outside_can_be_signalled(scene: Scene) -> None:
    bystander = subprocess.Popen(
        ["sleep", "600"], user=NOBODY if scene.who == "user" and os.geteuid() == 0 else None, stdin=subprocess.DEVNULL
    )
    try:
        outcome, said = scene.shell(f"kill {bystander.pid}; sleep 600 & kill $!")
        assert "Operation not permitted" in said or "No permission" in said
        assert outcome.exit_code == 0, said
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@needs_landlock
def test_root_cannot_make_a_device_or_undo_the_mounts(scene: Scene) -> None:
    script = "mknod disk b 8 0; mknod null c 1 3; umount .git; mount -o remount,rw .git; mount -t tmpfs t $BASE/sibling"
    before = scene.outside()
    scene.shell(script)
    assert scene.outside() == before
    assert not (scene.workspace / "disk").exists()
    assert not (scene.workspace / "null").exists()


@needs_landlock
def test_the_receipt_says_whether_the_git_file_was_held(scene: Scene) -> None:
    assert "not read-only" in str(scene.confinement.note())
    scene.shell("true")
    assert scene.confinement.note() == "the workspace's .git is read-only"


@needs_landlock
def test_without_mounts_the_rest_still_holds_and_the_receipt_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(paths: object) -> None:
        raise OSError(1, "no namespaces for you")

    monkeypatch.setattr(landlock, "shield", forbidden)
    before = scene.outside()
    _, said = scene.shell("echo x > $REPO/f; echo inside > new")
    assert "Permission denied" in said
    assert scene.outside() == before
    assert (scene.workspace / "new").read_text() == "inside\n"
    assert "not read-only" in str(scene.confinement.note())


@needs_landlock
def test_rules_that_cannot_be_put_on_start_nothing(scene: Scene) -> None:
    shutil.rmtree(scene.state)
    outcome, said = scene.shell("echo x > new")
    assert outcome.launch_error is not None
    assert "preparation before exec failed" in outcome.launch_error
    assert said == ""
    assert not (scene.workspace / "new").exists()


def test_the_git_directories_of_a_linked_worktree_are_found(scene: Scene) -> None:
    common = (scene.repo / ".git").resolve()
    assert git_directories(scene.workspace) == (common / "worktrees" / "workspace", common)
    assert git_directories(scene.repo) == (common,)
    assert git_directories(scene.home) == ()
