"""Landlock: from here on this process and its descendants open files in the named places only.

Works for ordinary users since Linux 5.13. It covers opening, creating, renaming, linking and removing; not chmod,
chown, times and attributes, and truncation only since 6.2: the seccomp filter denies those, or else the guard.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from envs.sandbox import kernel

# The same on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_QUERY, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# version of Landlock → how many kinds of access it knows
_KINDS = {1: 13, 2: 14, 3: 15, 4: 15}
_KINDS_NOW = 16


def version() -> int:
    """The kernel's version of Landlock, 0 where it has none."""
    try:
        return kernel.syscall(_CREATE, None, 0, _VERSION_QUERY)
    except OSError:  # not built in, or switched off
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Allow reading and executing below `readable`, everything below `writable`, nothing elsewhere.

    A place that does not exist is left out. OSError where the kernel refuses.
    """
    every = (1 << _KINDS.get(version(), _KINDS_NOW)) - 1
    attributes = struct.pack("=Q", every)
    rules = kernel.syscall(_CREATE, attributes, len(attributes), 0)
    try:
        for access, paths in ((_READ & every, readable), (every, writable)):
            for path in paths:
                if os.path.exists(path):
                    _allow(rules, path, access)
        kernel.syscall(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _OF_A_FILE
        kernel.syscall(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", access, place), 0)
    finally:
        os.close(place)
