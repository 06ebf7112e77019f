"""Stops every effect of a process tree in the kernel, before it happens, and asks this process what to do with it.

A seccomp filter with a listener (seccomp_unotify(2)): inherited by every child, whatever it executes, and not to be
taken off. No hook in the product, no compiler, no root, no ptrace that would disturb waiting and stopping.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct

import msgspec

# The calls that change something outside the process, by architecture. What an architecture lacks is left out.
_X86_64 = {
    "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328, "sendfile": 40, "copy_file_range": 326,
    "open": 2, "openat": 257, "creat": 85, "fsync": 74, "fdatasync": 75, "sync": 162, "syncfs": 306,
    "rename": 82, "renameat": 264, "renameat2": 316, "link": 86, "linkat": 265, "unlink": 87, "unlinkat": 263,
    "symlink": 88, "symlinkat": 266, "mkdir": 83, "mkdirat": 258, "rmdir": 84, "truncate": 76, "ftruncate": 77,
    "fallocate": 285, "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "utimensat": 280, "utimes": 235,
    "flock": 73, "fork": 57, "vfork": 58, "clone": 56, "clone3": 435, "execve": 59, "execveat": 322,
    "kill": 62, "tgkill": 234, "pidfd_send_signal": 424,
}  # fmt: skip
_AARCH64 = {
    "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "pwritev2": 287, "sendfile": 71, "copy_file_range": 285,
    "openat": 56, "fsync": 82, "fdatasync": 83, "sync": 81, "syncfs": 267, "renameat": 38, "renameat2": 276,
    "linkat": 37, "unlinkat": 35, "symlinkat": 36, "mkdirat": 34, "truncate": 45, "ftruncate": 46, "fallocate": 47,
    "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "utimensat": 88, "flock": 32, "clone": 220, "clone3": 435,
    "execve": 221, "execveat": 281, "kill": 129, "tgkill": 131, "pidfd_send_signal": 424,
}  # fmt: skip
_MACHINES = {
    "x86_64": (0xC000003E, 317, _X86_64),
    "aarch64": (0xC00000B7, 277, _AARCH64),
}
_AUDIT, _SECCOMP, NUMBERS = _MACHINES.get(platform.machine(), (0, 0, {}))
NAMES = {number: name for name, number in NUMBERS.items()}

WRITES = frozenset({"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range"})
SYNCS = frozenset({"fsync", "fdatasync", "sync", "syncfs"})
OPENS = frozenset({"open", "openat", "creat"})
STARTS = frozenset({"fork", "vfork", "clone", "clone3", "execve", "execveat"})
# Which argument is the path that is named in reports; the others are told by descriptor.
_PATH_ARGUMENT = {
    "open": 0, "creat": 0, "openat": 1, "rename": 1, "renameat": 3, "renameat2": 3, "link": 1, "linkat": 3,
    "unlink": 0, "unlinkat": 1, "symlink": 1, "symlinkat": 2, "mkdir": 0, "mkdirat": 1, "rmdir": 0, "truncate": 0,
    "chmod": 0, "fchmodat": 1, "fchmodat2": 1, "utimensat": 1, "utimes": 0, "execve": 0, "execveat": 1,
}  # fmt: skip
_DESCRIPTOR = WRITES | {"fsync", "fdatasync", "syncfs", "ftruncate", "fallocate", "fchmod", "flock"}

_SECCOMP_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_RET_ALLOW, _RET_NOTIFY = 0x7FFF0000, 0x7FC00000
_CONTINUE = 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_LOAD, _EQUAL, _ANY_BIT, _RETURN, _JUMP = 0x20, 0x15, 0x45, 0x06, 0x05
_PR_SET_NO_NEW_PRIVS = 38
_PIDFD_GETFD = 438
_CHANGES = os.O_CREAT | os.O_TRUNC


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Call(msgspec.Struct, frozen=True):
    """One system call that waits for an answer; `pid` is the thread's id."""

    id: int
    pid: int
    name: str
    args: tuple[int, ...]


def why_not() -> str | None:
    """Why this machine cannot do it (a text to skip a test by), None when it can. Tries it, in a child."""
    if not NUMBERS:
        return f"no table of system calls for {platform.machine()}"
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            install(reads=False)
            os._exit(0)
        except OSError as error:
            os.write(write, f"no seccomp listener: {error.strerror}".encode())
        finally:
            os._exit(1)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read().decode()
    _, status = os.waitpid(pid, 0)
    return None if status == 0 else text or "no seccomp listener"


def _program(reads: bool) -> bytes:
    """The filter: notify for every call of the table; of opens only those that create or truncate, unless `reads`."""
    flags = {"open": 1, "openat": 2}
    conditional = [] if reads else [name for name in flags if name in NUMBERS]
    plain = [number for name, number in NUMBERS.items() if name not in conditional]
    # Offsets in struct seccomp_data: number 0, architecture 4, low half of argument n 16 + 8n.
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT), (_RETURN, 0, 0, _RET_ALLOW), (_LOAD, 0, 0, 0)]
    tail: list[tuple[int, int, int, int]] = [(_RETURN, 0, 0, _RET_ALLOW), (_RETURN, 0, 0, _RET_NOTIFY)]
    for name in conditional:
        block = [(_LOAD, 0, 0, 16 + 8 * flags[name]), (_ANY_BIT, 0, 1, _CHANGES)]
        tail += [*block, (_RETURN, 0, 0, _RET_NOTIFY), (_RETURN, 0, 0, _RET_ALLOW)]
    checks = len(plain) + len(conditional)
    for position, number in enumerate(plain):
        steps.append((_EQUAL, checks - position - 1 + 1, 0, number))
    for index, name in enumerate(conditional):
        steps.append((_EQUAL, checks - len(plain) - index - 1 + 2 + 4 * index, 0, NUMBERS[name]))
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, *tail])


def install(*, reads: bool) -> int:
    """Put this process and all that it starts under the filter; the listener, for another process to answer on."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = _program(reads)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):  # the second flag came with Linux 5.19
        fd = int(libc.syscall(_SECCOMP, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program)))
        if fd >= 0:
            return fd
    code_ = ctypes.get_errno()
    raise OSError(code_, os.strerror(code_))


def receive(listener: int) -> Call | None:
    """The next call that waits; None when it was withdrawn (its process died)."""
    buffer = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer, True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    identity, pid, _flags, number, _arch, _ip, *args = struct.unpack("=QIIiIQ6Q", buffer)
    return Call(identity, pid, NAMES[number], tuple(args))


def _answer(listener: int, call: Call, value: int, error: int, flags: int) -> None:
    try:
        fcntl.ioctl(listener, _SEND, struct.pack("=QqiI", call.id, value, error, flags))
    except OSError as fault:
        if fault.errno not in (errno.ENOENT, errno.EINPROGRESS):
            raise


def go_on(listener: int, call: Call) -> None:
    """Let the kernel do the call."""
    _answer(listener, call, 0, 0, _CONTINUE)


def refuse(listener: int, call: Call, code: int) -> None:
    """Let the call fail with errno `code`."""
    _answer(listener, call, 0, -code, 0)


def pretend(listener: int, call: Call, value: int) -> None:
    """Let the call return `value`; the caller has done the effect."""
    _answer(listener, call, value, 0, 0)


def descriptor(call: Call) -> int | None:
    """The descriptor that the call works on, None for calls on paths and processes."""
    if call.name not in _DESCRIPTOR:
        return None
    position = 2 if call.name == "copy_file_range" else 0
    return ctypes.c_int(call.args[position] & 0xFFFFFFFF).value


def memory(pid: int, address: int, size: int) -> bytes:
    """Up to `size` bytes of the process's memory."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, address)


def borrow(handle: int, fd: int) -> int:
    """A descriptor of ours for the open file behind `fd` of the process of a pidfd (pidfd_getfd(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(_PIDFD_GETFD, handle, fd, 0))
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return found


def target(call: Call) -> str:
    """What the call works on, for reports: a path, a signal's receiver, or nothing."""
    try:
        fd = descriptor(call)
        if fd is not None:
            return os.readlink(f"/proc/{call.pid}/fd/{fd}")
        if call.name in _PATH_ARGUMENT:
            address = call.args[_PATH_ARGUMENT[call.name]]
            text = b""
            while b"\0" not in text and len(text) < 4096:
                chunk = memory(call.pid, address + len(text), 256 - (address + len(text)) % 256)
                if not chunk:
                    break
                text += chunk
            return os.fsdecode(text.split(b"\0")[0])
    except OSError:
        return "?"
    return str(call.args[0]) if "kill" in call.name or "signal" in call.name else ""
