"""A host whose runs root, or repository, lies on a file system of its own: small, or read-only at will.

Runs in a process of its own in a mount namespace: `python -m tests.crash.mounts <story> <folder>`; prints what went
wrong as a JSON list. Root mounts directly; an ordinary user needs user namespaces.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.host import ROOT, Host, Reply

REFUSALS = ("BLOCKED", "REFUSED", "UNREADABLE")
_CLONE_NEWUSER, _CLONE_NEWNS = 0x10000000, 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 0x4000, 1 << 18


def isolate() -> str | None:
    """Give this process mounts of its own; why it cannot have them, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS if uid == 0 else _CLONE_NEWNS | _CLONE_NEWUSER):
        return f"no mount namespace: {os.strerror(ctypes.get_errno())}"
    if uid != 0:
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        except OSError as error:
            return f"no user namespace: {error.strerror}"
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        return f"no private mounts: {os.strerror(ctypes.get_errno())}"
    return None


def mount(folder: Path, size: str) -> None:
    """A file system of a size on a folder."""
    folder.mkdir(exist_ok=True)
    _mount(folder, 0, f"size={size},mode=700,uid={os.getuid()},gid={os.getgid()}")


def set_writable(folder: Path, writable: bool) -> None:
    """Make a mounted file system read-only, or writable again."""
    _mount(folder, _MS_REMOUNT | (0 if writable else _MS_RDONLY), "")


def _mount(folder: Path, flags: int, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {folder}: {os.strerror(ctypes.get_errno())}")


def _fill(folder: Path, left: int) -> Path:
    """Leave so many bytes free."""
    filler = folder / "filler"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    with filler.open("wb") as file:
        file.write(bytes(max(0, free - left)))
    return filler


class _Step(msgspec.Struct, frozen=True):
    """A command; what its host does before it while nothing hinders."""

    name: str
    call: Callable[[], Reply]
    before: Callable[[], None] = lambda: None


def _steps(host: Host) -> list[_Step]:
    """The whole story of a unit."""
    prepared: dict[str, Any] = {}
    job = f"job-{os.getpid()}"

    def prepare() -> Reply:
        reply = host.prepare()
        prepared.update(reply.body)
        return reply

    def start() -> None:
        host.write_job(prepared, job=job)

    def work() -> None:
        Path(prepared["workspace"], "new.txt").write_bytes(b"new\n" * 5000)
        host.write_result(prepared)
        host.end_job(job, "done")

    unit = ("--run-id", "r1", "--unit-id", "U1")
    return [
        _Step("init", host.init),
        _Step("prepare", prepare),
        _Step("authorize-dispatch", lambda: host.authorize(prepared, job), start),
        _Step("terminalize", lambda: host.call("terminalize", *unit), work),
        _Step("integrate", host.integrate),
        _Step("verify-run", lambda: host.call("verify-run", "--run-id", "r1", "--", "true")),
    ]


def _hindered(host: Host, hinder: Callable[[], object], release: Callable[[], None]) -> list[str]:
    """Each step fails with a word while it is hindered, and works after one `resume`."""
    problems: list[str] = []
    for step in _steps(host):
        step.before()
        before = host.fingerprint()
        hinder()
        try:
            reply = step.call()
            status = host.call("status", "--run-id", "r1") if host.run_dir().exists() else None
        finally:
            release()
        if reply.code != 0 and reply.word not in REFUSALS:
            problems.append(f"{step.name}: {reply!r}"[:800])
        if status is not None and status.word not in ("STATUS", *REFUSALS):
            problems.append(f"status after {step.name}: {status!r}"[:800])
        if host.run_dir().exists():
            resumed = host.call("resume", "--run-id", "r1")
            if resumed.word != "RESUMED":
                problems.append(f"resume after {step.name}: {resumed!r}"[:800])
        committed = host.git("rev-list", "--count", "HEAD") != "1"
        if not committed and host.fingerprint() != before:
            problems.append(f"{step.name} left the checkout changed: {host.git('status', '--porcelain')!r}")
        if reply.code != 0 and not (step.name == "integrate" and committed):
            again = step.call()
            if again.code != 0:
                problems.append(f"{step.name} again: {again!r}"[:800])
    if host.git("rev-list", "--count", "HEAD") != "2":
        problems.append("not exactly one canonical commit")
    return problems


def small(base: Path, what: str, left: int) -> list[str]:
    """The runs root or the repository on a file system of 2 MB with so many bytes left at each step."""
    folder = base / what
    mount(folder, "2m")
    host = Host(base)
    if what == "runs":
        host.make_repo()
    else:
        _make_in(host)
    return _hindered(host, lambda: _fill(folder, left), (folder / "filler").unlink)


def _make_in(host: Host) -> None:
    """`make_repo` where the folder is there already."""
    subprocess.run(["git", "init", "-q"], cwd=host.repo, env=host.env, check=True)
    (host.repo / ".git" / "info" / "exclude").write_text("filler\n")
    (host.repo / "f").write_text("one\n")
    (host.repo / ".gitignore").write_text("*.log\n")
    host.git("add", "-A")
    host.git("commit", "-qm", "first")


def read_only(base: Path) -> list[str]:
    """The runs root becomes read-only between the steps."""
    mount(base / "runs", "8m")
    host = Host(base)
    host.make_repo()
    folder = base / "runs"
    return _hindered(host, lambda: set_writable(folder, False), lambda: set_writable(folder, True))


def tell(story: str, base: Path) -> list[str] | str:
    """Run one story in a process of its own: what went wrong, or why it cannot be run here."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.crash.mounts", story, str(base)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    answer: list[str] | str = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    reason = isolate()
    words = sys.argv[1].split(":")
    place = Path(sys.argv[2])
    if reason is not None:
        json.dump(reason, sys.stdout)
    elif words[0] == "read-only":
        json.dump(read_only(place), sys.stdout)
    else:
        json.dump(small(place, words[1], int(words[2])), sys.stdout)
