"""Ending what is left, and removing what was written, however a program tried to keep it."""

from __future__ import annotations

import math
import os
import signal
import stat
import time


def remove_tree(folder: str, seconds: float = math.inf) -> bool:
    """Remove a folder and all below it, as far as so many seconds suffice; whether all is gone.

    Nothing may still be writing there. Symbolic links are removed, not followed, one in the folder's own place too;
    modes are reset first; a folder inside is moved up before it is emptied, so that no depth of nesting exceeds a
    path or a recursion limit.
    """
    deadline = time.monotonic() + seconds
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
            return True
    except FileNotFoundError:
        return True
    os.chmod(folder, 0o700)
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        moved = 0
        while names := os.listdir(top):
            for name in names:
                moved = _empty_into(top, name, moved, deadline)
    except _OutOfTime:
        return False
    finally:
        os.close(top)
    os.rmdir(folder)
    return True


class _OutOfTime(Exception):
    """What is left is for later."""


def _empty_into(top: int, name: str, moved: int, deadline: float) -> int:
    """Remove one entry of the folder `top`; the folders in it move up into `top`. The number of moves so far."""
    if time.monotonic() > deadline:
        raise _OutOfTime
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return moved
    try:
        os.rmdir(name, dir_fd=top)
        return moved
    except OSError:  # not empty
        pass
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for child in os.listdir(inner):
            if time.monotonic() > deadline:
                raise _OutOfTime
            if stat.S_ISDIR(os.stat(child, dir_fd=inner, follow_symlinks=False).st_mode):
                os.chmod(child, 0o700, dir_fd=inner)  # moving a folder writes to it
                moved = _free_number(top, moved)
                os.rename(child, f"{moved}", src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _free_number(top: int, last: int) -> int:
    number = last + 1
    while True:
        try:
            os.stat(f"{number}", dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return number
        number += 1


def end_children() -> None:
    """Kill and reap every child of this process, and theirs that it inherits, until there are none."""
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # a child that ended keeps its number until it is waited for
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    """Children by /proc; those that already ended by waiting; empty where there is no /proc."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):  # ended while we looked
                continue
            if int(parent) == os.getpid():
                found.append(int(name))
    return found
