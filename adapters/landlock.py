"""What the kernel itself can hold back, without privileges: Landlock rules and namespaces of this process's own.

Everything here changes the calling process for good and is inherited by whatever it starts, so it is called in a
forked child just before exec. Sources: landlock(7), the kernel's `Documentation/userspace-api/landlock.rst` (ABI 1
to 7), mount_namespaces(7), user_namespaces(7).

Landlock does not know changes of mode, owner, times and extended attributes, nor `connect` to a Unix socket that has
a path: those stay possible outside the allowed folders, as far as the user's own permissions go.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

WRITE_FILE: Final = 1 << 1
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_BASIC = (
    WRITE_FILE
    | (_REMOVE_DIR | _REMOVE_FILE)
    | (_MAKE_CHAR | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK | _MAKE_SYM)
)
_NET_BIND_TCP, _NET_CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1 << 0, 1 << 1

TRUNCATE_ABI: Final = 3
"""From here on Landlock holds back every way to change the bytes of a file; before, `truncate` stays open."""

_NET_ABI, _IOCTL_ABI, _SCOPE_ABI = 4, 5, 6

DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom", b"/dev/tty")
"""Device nodes that programs write to without changing anything. Terminals of the user's are not among them."""

SHARED_MEMORY = b"/dev/shm"

_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
_MOUNT_FLAGS = {
    os.ST_NOSUID: _MS_NOSUID,
    os.ST_NODEV: _MS_NODEV,
    os.ST_NOEXEC: 8,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    os.ST_RELATIME: 1 << 21,
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class Rules(msgspec.Struct, frozen=True):
    """What one process may write: everything below `folders`, and the `files`. `network` false: no TCP either."""

    abi: int
    folders: tuple[bytes, ...]
    files: tuple[bytes, ...] = ()
    network: bool = True


def supported_abi() -> int:
    """The kernel's Landlock ABI; 0 when it has none, or was started without it."""
    found = int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)))
    return max(found, 0)


def restrict(rules: Rules) -> None:
    """Let this process write only where `rules` say. Raises `OSError` when that cannot be done.

    It also gains no privileges by exec any more (set-user-ID programs run without theirs), and, where the kernel
    knows how (ABI 6), signals no process outside.
    """
    handled = _handled(rules.abi)
    attr = _RulesetAttr(
        handled,
        0 if rules.network or rules.abi < _NET_ABI else _NET_BIND_TCP | _NET_CONNECT_TCP,
        0 if rules.abi < _SCOPE_ABI else _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL,
    )
    size = 8 if rules.abi < _NET_ABI else 16 if rules.abi < _SCOPE_ABI else 24
    ruleset = _check(
        _libc.syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0)),
        "create a Landlock ruleset",
    )
    try:
        # No device nodes may be made: one of a disk would be a way around every other rule for root.
        below = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
        for folder in rules.folders:
            _allow(ruleset, folder, below, os.O_DIRECTORY)
        for file in rules.files:
            _allow(ruleset, file, handled & (WRITE_FILE | _TRUNCATE), 0)
        for device in DEVICES:
            if _is_device(device):
                _allow(ruleset, device, handled & (WRITE_FILE | _TRUNCATE | _IOCTL_DEV), 0)
        _no_new_privileges()
        _check(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "apply a Landlock ruleset")
    finally:
        os.close(ruleset)


def shield(paths: Iterable[bytes]) -> None:
    """Make `paths` (existing files or folders) read-only, and not removable, for this process and its children.

    A mount namespace of its own does it; where that takes a user namespace, files of other users show as nobody's.
    Raises `OSError` where the kernel or its policy does not let us.
    """
    _unshare(_CLONE_NEWNS)
    # Nothing of this may spread to the rest of the machine.
    _mount(b"/", b"/", _MS_REC | _MS_SLAVE)
    for path in paths:
        _mount(path, path, _MS_BIND | _MS_REC)
        flags = os.statvfs(path).f_flag
        # Flags that the mount has already are locked for us and have to be said again.
        kept = sum(mount for known, mount in _MOUNT_FLAGS.items() if flags & known)
        _mount(path, path, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)


def own_shared_memory() -> None:
    """Mount an empty `SHARED_MEMORY` for this process and its children; only after `shield`. Raises `OSError`.

    Semaphores and shared memory live there (sem_open(3)), and those of other programs are none of a worker's business.
    """
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    _check(_libc.mount(b"tmpfs", SHARED_MEMORY, b"tmpfs", flags, b"mode=1777"), "mount a folder for shared memory")


def leave_network() -> None:
    """Put this process and its children into a network namespace without any interface that is up."""
    _unshare(_CLONE_NEWNET)


def can_shield(paths: Sequence[bytes]) -> bool:
    """Whether `shield(paths)` would work; tried out in a process that ends right after."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            shield(paths)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _handled(abi: int) -> int:
    newer = ((2, _REFER), (TRUNCATE_ABI, _TRUNCATE), (_IOCTL_ABI, _IOCTL_DEV))
    return _BASIC | sum(right for since, right in newer if abi >= since)


def _allow(ruleset: int, path: bytes, rights: int, kind: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC | kind)
    try:
        attr = _PathBeneathAttr(rights, fd)
        _check(
            _libc.syscall(
                _ADD_RULE,
                ctypes.c_int(ruleset),
                ctypes.c_int(_PATH_BENEATH),
                ctypes.byref(attr),
                ctypes.c_uint32(0),
            ),
            f"allow {os.fsdecode(path)}",
        )
    finally:
        os.close(fd)


def _is_device(path: bytes) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def _no_new_privileges() -> None:
    words = [ctypes.c_ulong(word) for word in (1, 0, 0, 0)]
    _check(_libc.prctl(ctypes.c_int(_PR_SET_NO_NEW_PRIVS), *words), "give up new privileges")


def _unshare(what: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(ctypes.c_int(what)) == 0:
        return
    if ctypes.get_errno() != errno.EPERM:
        raise OSError(ctypes.get_errno(), "cannot make a namespace")
    _check(_libc.unshare(ctypes.c_int(what | _CLONE_NEWUSER)), "make a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, None, ctypes.c_ulong(flags), None), f"mount {os.fsdecode(target)}")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")
    return int(result)
