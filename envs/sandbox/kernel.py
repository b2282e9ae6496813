"""The Linux calls that Python 3.10 has no name for, through ctypes. Each raises OSError when the kernel refuses.

Only the server imports this; a program's interpreter is executed afresh and never has ctypes in its memory.
"""

from __future__ import annotations

import os
import struct
import sys
from importlib.util import find_spec
from typing import Any

# False on other systems, and for an interpreter built without libffi: then the plans do without all of this.
AVAILABLE = sys.platform == "linux" and find_spec("_ctypes") is not None
if AVAILABLE:
    import ctypes

CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEW_ANY = 0x7E020000
CLONE_THREAD = 0x00010000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8  # of mount_setattr
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 22, 38, 36
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
# The same on every architecture since system calls got common numbers.
_CLONE3, _MOUNT_SETATTR = 435, 442

# PyDLL keeps the interpreter's lock: after clone3 the child goes on as the one thread that holds it.
_LIBC: Any = ctypes.PyDLL(None, use_errno=True) if AVAILABLE else None


def syscall(number: int, *arguments: Any) -> int:
    """A raw system call; every integer is passed as a long, None as a null pointer."""
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *values))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _checked(_LIBC.unshare(ctypes.c_int(flags)))


def clone(flags: int) -> int:
    """As os.fork(), the child in new namespaces. Only for a process with one thread.

    Python's own after-fork duties (locks of other threads) have nothing to do in such a process.
    """
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, 17)  # 17: SIGCHLD; no stack of its own: as fork
    return syscall(_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a source at a target."""
    texts = (os.fsencode(source), os.fsencode(target), kind.encode())
    _checked(_LIBC.mount(*texts, ctypes.c_ulong(flags), options.encode()))


def unmount(target: str) -> None:
    """umount2(2), detaching at once what is still in use."""
    _checked(_LIBC.umount2(os.fsencode(target), MNT_DETACH))


def restrict_mount(target: str, attributes: int, recursive: bool = True) -> None:
    """Add attributes (read-only, no devices, …) to a mount and to those below it; Linux 5.12."""
    values = (ctypes.c_uint64 * 4)(attributes)
    flags = _AT_RECURSIVE if recursive else 0
    path = os.fsencode(target)
    syscall(_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(values), ctypes.sizeof(values))


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def close_to_others() -> None:
    """No process without privileges may trace this one, read its memory or take its descriptors, of whatever user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def renounce_privileges() -> None:
    """No program executed from here on gains privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(capset: int) -> None:
    """Give up every capability; `capset` is the system call's number."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    empty = (ctypes.c_uint32 * 6)()
    syscall(capset, ctypes.byref(header), ctypes.byref(empty))


def install_filter(instructions: bytes) -> None:
    """Put this process and its descendants under a seccomp filter (8 bytes an instruction) for good."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(code))
    zero, mode = ctypes.c_ulong(0), ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    _checked(_LIBC.prctl(ctypes.c_int(_PR_SET_SECCOMP), mode, program, zero, zero))
