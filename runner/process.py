"""Process identity and process trees, read from `/proc`.

A process is (pid, start time, boot id), never a bare pid: pids are recycled, and a recycled pid once read as
a live owner or was killed in its place (getpaseo/paseo#1305, sonichi/sutando#3831). Nothing here signals a
process whose identity was not proven after the kernel gave us a handle that cannot be recycled (a pidfd).
"""

from __future__ import annotations

import functools
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from runner.errors import Unseen

KILL_SECONDS = 5.0
"""How long `kill_all` goes on after SIGKILL: nobody can end a process in uninterruptible sleep."""

_PR_SET_CHILD_SUBREAPER = 36
_DEAD = ("Z", "X", "x")
_UNKNOWN = "unknown"
_LARGEST_PID = 2**31 - 1


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process for ever: `start_time` in clock ticks since boot (`/proc/<pid>/stat` field 22)."""

    pid: int
    start_time: int
    boot_id: str


class _Stat(msgspec.Struct, frozen=True):
    pid: int
    parent: int
    session: int
    start_time: int
    dead: bool


@functools.cache
def boot_id() -> str:
    """The kernel's boot id; it changes with every boot, so records of an earlier boot never match."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or _UNKNOWN
    except OSError:
        # Some sandboxes hide it; between two of these, pid and start time have to do.
        return _UNKNOWN


def pid_namespace() -> int | None:
    """The inode of our pid namespace, in which alone our pids mean what they say; None where it is hidden."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def is_of_another_boot(recorded: str) -> bool:
    """Whether a process recorded with this boot id has ended with its boot; `Unseen` when nobody can tell."""
    if recorded == boot_id():
        return False
    if _UNKNOWN in (recorded, boot_id()):
        raise Unseen(f"boot id {recorded}", f"boot id {boot_id()}")
    return True


def require_seen(boot: str | None, namespace: int | None) -> None:
    """Raise `Unseen` unless processes that were recorded under these (None: not recorded) can be told from here."""
    if boot is not None and is_of_another_boot(boot):
        return
    here = pid_namespace()
    if namespace not in (None, here):
        raise Unseen(f"pid namespace {namespace}", f"pid namespace {here or 'unknown'}")
    _require_proc()


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of the live process `pid`; None when it is gone or only a zombie."""
    stat = _read_stat(pid)
    return None if stat is None or stat.dead else _identity(stat)


def self_identity() -> ProcessIdentity:
    """The identity of the calling process."""
    identity = identify(os.getpid())
    if identity is None:
        raise _hidden()
    return identity


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still runs (a zombie does not); `Unseen` when that cannot be known here."""
    if is_of_another_boot(identity.boot_id):
        return False
    _require_proc()
    return identify(identity.pid) == identity


def signal_identity(identity: ProcessIdentity, sig: int) -> bool:
    """Send `sig` to exactly this process; False when it is gone or may not be signalled."""
    fd = open_pidfd(identity)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, sig)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def wait_gone(identity: ProcessIdentity, seconds: float) -> bool:
    """Wait up to `seconds` (at most an hour) until this process is gone; whether it is."""
    fd = open_pidfd(identity)
    if fd is None:
        return True
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(poll_milliseconds(seconds)))
    finally:
        os.close(fd)


def poll_milliseconds(seconds: float) -> float:
    """`seconds` as a timeout for `poll`, which cannot express more than 24 days: at most an hour."""
    return min(max(0.0, seconds), 3600.0) * 1000


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process (readable once it has exited; the caller closes it); None when gone.

    `Unseen` when that cannot be known here.
    """
    if is_of_another_boot(identity.boot_id) or not 0 < identity.pid <= _LARGEST_PID:
        return None
    _require_proc()
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    # The handle came from a number: only what the handle's process turns out to be counts.
    if identify(identity.pid) != identity:
        os.close(fd)
        return None
    return fd


def descendants(pid: int) -> list[ProcessIdentity]:
    """Every live process below `pid`, parents before children; `pid` itself is not among them."""
    return _below(list(_all_stats()), [pid])


def with_descendants(roots: Iterable[ProcessIdentity]) -> list[ProcessIdentity]:
    """Those of `roots` that live, and every live process below them, each once."""
    stats = list(_all_stats())
    present = {_identity(stat) for stat in stats if not stat.dead}
    alive = [root for root in dict.fromkeys(roots) if root in present]
    return list(dict.fromkeys([*alive, *_below(stats, [root.pid for root in alive])]))


def session_members(session: int) -> list[ProcessIdentity]:
    """Every live process of session `session` (the pid of the process that called `setsid`)."""
    return [_identity(stat) for stat in _all_stats() if stat.session == session and not stat.dead]


def children(pid: int) -> list[tuple[ProcessIdentity, int]]:
    """The live direct children of `pid`, each with its session id."""
    return [(_identity(s), s.session) for s in _all_stats() if s.parent == pid and not s.dead]


def census(pid: int) -> tuple[list[ProcessIdentity], list[int]]:
    """One look at what is below `pid`: its live descendants, and its direct children that wait to be reaped."""
    stats = list(_all_stats())
    return _below(stats, [pid]), [stat.pid for stat in stats if stat.parent == pid and stat.dead]


def marked(name: str, value: str) -> list[ProcessIdentity]:
    """Every live process of this user whose environment holds exactly NAME=VALUE.

    That finds what no parent link leads to: descendants that called `setsid` and were handed to init when
    their supervisor died. A process whose environment may not be read (other user, not dumpable) is left out.
    """
    needle = os.fsencode(f"{name}={value}")
    owner = os.geteuid()
    found = []
    for pid in _pids():
        before = identify(pid)
        if before is None:
            continue
        try:
            if os.stat(f"/proc/{pid}").st_uid != owner:
                continue
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
                environment = file.readall()
        except OSError:
            continue
        if needle in environment and needle in environment.split(b"\0") and identify(pid) == before:
            found.append(before)
    return found


def kill_all(find: Callable[[], Iterable[ProcessIdentity]], grace: float) -> list[ProcessIdentity]:
    """End everything that `find` reports, now and until it reports nothing; returns all that was ended.

    SIGTERM once to each process, up to `grace` seconds for all of them, then SIGKILL. `find` is asked again
    and again because trees grow while they are being ended. Bounded by `grace` + `KILL_SECONDS`; the calling
    process is never signalled.
    """
    seen: dict[ProcessIdentity, None] = {}
    started = time.monotonic()
    empty = 0
    while True:
        # What was found once counts until it is gone: what led to it (a parent, a session) may be gone by now.
        known = dict.fromkeys([*seen, *find()])
        alive = [identity for identity in known if identity.pid != os.getpid() and is_alive(identity)]
        # One scan of /proc is no snapshot: a fork may slip behind it, so only the second silence counts.
        empty = 0 if alive else empty + 1
        elapsed = time.monotonic() - started
        if empty == 2 or elapsed > grace + KILL_SECONDS:
            break
        for identity in alive:
            if elapsed >= grace:
                signal_identity(identity, signal.SIGKILL)
            elif identity not in seen:
                signal_identity(identity, signal.SIGTERM)
        seen.update(dict.fromkeys(alive))
        if alive:
            left = grace - elapsed
            wait_gone(alive[0], min(left, 0.05) if left > 0 else 0.01)
    return [identity for identity in seen if not is_alive(identity)]


def become_subreaper() -> None:
    """Make the calling process adopt every orphan below it (`prctl(PR_SET_CHILD_SUBREAPER)`)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")


def _identity(stat: _Stat) -> ProcessIdentity:
    return ProcessIdentity(stat.pid, stat.start_time, boot_id())


def _pids() -> list[int]:
    _require_proc()
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def _require_proc() -> None:
    """Raise `Unseen` unless `/proc` is that of our pid namespace: without it nothing can be said of any process."""
    try:
        mine = os.readlink("/proc/self")
    except OSError:
        mine = ""
    if mine != str(os.getpid()):
        raise _hidden()


def _hidden() -> Unseen:
    return Unseen("the /proc of this pid namespace", "none, or that of another", "mount /proc, then try again")


def _all_stats() -> Iterator[_Stat]:
    for pid in _pids():
        stat = _read_stat(pid)
        if stat is not None:
            yield stat


def _below(stats: Iterable[_Stat], pids: Iterable[int]) -> list[ProcessIdentity]:
    by_parent: dict[int, list[_Stat]] = {}
    for stat in stats:
        by_parent.setdefault(stat.parent, []).append(stat)
    found: list[ProcessIdentity] = []
    queue = list(pids)
    while queue:
        below = by_parent.pop(queue.pop(0), [])
        found += [_identity(stat) for stat in below if not stat.dead]
        queue += [stat.pid for stat in below]
    return found


def _read_stat(pid: int) -> _Stat | None:
    if not 0 < pid <= _LARGEST_PID:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            line = file.readall()
    except (FileNotFoundError, ProcessLookupError):
        _require_proc()
        return None
    # The second field is the command in parentheses and may itself hold blanks and parentheses.
    fields = line[line.rindex(b")") + 2 :].split()
    threads = int(fields[17])
    # A leader that ended before its threads reads Z, too, while the process runs on.
    dead = fields[0].decode() in _DEAD and threads <= 1
    return _Stat(pid, int(fields[1]), int(fields[3]), int(fields[19]), dead)
