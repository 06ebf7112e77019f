"""Faults from outside: the kernel refuses a system call of this process, or kills it there (seccomp).

No hook in the product is needed, and no root. A filter stays for the life of the process: only for children.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

_NUMBERS: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {
        "write": (1,),
        "fsync": (74,),
        "ftruncate": (77,),
        "link": (86, 265),
        "unlink": (87, 263),
        "openat": (257,),
    },
    "aarch64": {
        "write": (64,),
        "fsync": (82,),
        "ftruncate": (46,),
        "link": (37,),
        "unlink": (35,),
        "openat": (56,),
    },
}
SUPPORTED = platform.machine() in _NUMBERS
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OFFSET_NUMBER, _OFFSET_FIRST_ARGUMENT = 0, 16


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("yes", ctypes.c_ubyte),
        ("no", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def inject(call: str, fault: int | None, fd: int | None = None) -> None:
    """From now on `call` (on `fd` only, if given) fails with errno `fault`; None: it kills the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = _KILL if fault is None else _ERRNO | fault
    for number in _NUMBERS[platform.machine()][call]:
        steps = [(_LOAD, 0, 0, _OFFSET_NUMBER), (_JUMP_IF_EQUAL, 0, 3 if fd is not None else 1, number)]
        if fd is not None:
            steps += [(_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT), (_JUMP_IF_EQUAL, 0, 1, fd)]
        steps += [(_RETURN, 0, 0, answer), (_RETURN, 0, 0, _ALLOW)]
        instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
        program = _Program(len(steps), instructions)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
            _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "seccomp")


def descriptor_of(path: Path) -> int:
    """The descriptor of this process that is open on `path`."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == os.path.realpath(path):
                return int(name)
        except FileNotFoundError:
            continue
    raise AssertionError(f"{path} is not open")


def next_descriptor() -> int:
    """The number that the next opened file gets."""
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    return fd
