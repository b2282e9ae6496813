"""A world of its own for a server's programs: user, mount, network and IPC namespaces.

The new root is a small read-only file system that shows the interpreter and the system's libraries, read-only, four
harmless devices, and an empty folder over which each program gets a private one in memory. No /proc, no home, no
network interface but a loopback that is down.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from envs.sandbox import kernel
from envs.sandbox.syscalls import numbers

FOLDER = "/box"
# In a server that runs as root the program becomes this user, `nobody`, who owns nothing.
STRANGER = 65534
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_FILES_IN_FOLDER = 1024
_ROOM_FOR = 4  # files of the largest size, together


def enter(readable: Iterable[str], mount_point: str, machine: str, two_users: bool) -> None:
    """Move this process into the new world for good; OSError or KeyError where this machine cannot.

    mount_point: any existing folder; it is covered in the new world only.
    """
    _become_own_administrator(two_users)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    places = _open_all([*readable, *_DEVICES])
    options = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", mount_point, "tmpfs", options, "mode=755,size=1m")
    for path, place in places.items():
        _show(path, place, mount_point + path)
    os.mkdir(mount_point + FOLDER)
    attributes = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
    kernel.restrict_mount(mount_point, attributes, recursive=False)
    # pivot_root(".", ".") stacks the old root on the new one, from where it is detached.
    os.chdir(mount_point)
    kernel.syscall(numbers(machine)["pivot_root"], b".", b".")
    kernel.unmount(".")
    os.chdir("/")


def make_private_folder(file_mb: int, owner: int) -> None:
    """Mount an empty folder in memory at FOLDER, in this process's own mount namespace, and go there."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    size = f"size={_ROOM_FOR * file_mb}m,nr_inodes={_FILES_IN_FOLDER}"
    kernel.mount("tmpfs", FOLDER, "tmpfs", flags, f"mode=770,uid={owner},gid={owner},{size}")
    os.chdir(FOLDER)


def _become_own_administrator(two_users: bool) -> None:
    """New namespaces, and the user maps that a helper outside of them writes."""
    ours, user, group = os.getpid(), os.geteuid(), os.getegid()
    ready, tell = os.pipe()
    helper = os.fork()
    if helper == 0:
        failed = 1
        try:
            os.close(tell)
            if os.read(ready, 1):
                _write_maps(ours, user, group, two_users)
                failed = 0
        finally:
            os._exit(failed)
    os.close(ready)
    try:
        flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
        kernel.unshare(flags)
        os.write(tell, b"1")
    finally:
        os.close(tell)
        _, status = os.waitpid(helper, 0)
    if status:
        raise PermissionError("the user map of the namespace could not be written")


def _write_maps(pid: int, user: int, group: int, two_users: bool) -> None:
    extra = f"\n{STRANGER} {STRANGER} 1" if two_users else ""
    texts = {"uid_map": f"{user} {user} 1{extra}", "gid_map": f"{group} {group} 1{extra}"}
    if not two_users:
        texts = {"setgroups": "deny", **texts}
    for name, text in texts.items():
        with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
            file.write(text.encode())


def _open_all(paths: Iterable[str]) -> dict[str, int]:
    """Path → a descriptor that keeps the place, for those that exist and lie in no other of them."""
    places: dict[str, int] = {}
    for path in sorted(map(os.path.normpath, paths)):
        covered = any(path == other or path.startswith(other + "/") for other in places)
        if path != "/" and not covered and os.path.exists(path):
            places[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return places


def _show(path: str, place: int, target: str) -> None:
    """Make one place of the old world visible in the new one, read-only; a symbolic link stays one."""
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    else:
        mode = os.fstat(place).st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.mount(f"/proc/self/fd/{place}", target, "none", kernel.MS_BIND | kernel.MS_REC)
        is_device = stat.S_ISCHR(mode)
        attributes = kernel.ATTR_NOEXEC if is_device else kernel.ATTR_RDONLY | kernel.ATTR_NODEV
        kernel.restrict_mount(target, attributes | kernel.ATTR_NOSUID)
    os.close(place)
