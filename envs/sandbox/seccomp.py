"""A seccomp filter: which system calls a program's interpreter, and whatever it starts, may not make.

A denied call fails with EPERM (EAGAIN for starting a process, ENOSYS where programs know how to do without the
call), so that Python raises an ordinary OSError. Denied always: sockets other than a connected stream pair, which
could reach the network, the host's services and its hypervisor; tracing and reading other processes' memory;
namespaces and mounts; memory that no limit counts; what only administrators need. Denied where no process namespace
hides the others: signals to any process but itself, starting processes (threads it may start). Denied where no mount
namespace hides other files: changing a file's mode, owner, times and attributes, which Landlock does not cover.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

from envs.sandbox.kernel import CLONE_NEW_ANY, CLONE_THREAD
from envs.sandbox.syscalls import ARCHITECTURES, LAST, numbers

_FORBIDDEN = """
socket connect bind
ptrace process_vm_readv process_vm_writev process_madvise kcmp perf_event_open pidfd_getfd pidfd_send_signal
move_pages migrate_pages setpriority ioprio_set
unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
shmget shmat semget msgget mq_open
acct swapon swapoff reboot kexec_load kexec_file_load init_module finit_module delete_module quotactl quotactl_fd
syslog sethostname setdomainname settimeofday clock_settime clock_adjtime adjtimex vhangup ioperm iopl modify_ldt
add_key request_key keyctl bpf userfaultfd fanotify_init name_to_handle_at open_by_handle_at lookup_dcookie nfsservctl
"""
_MISSING = "clone3 memfd_create memfd_secret openat2 io_uring_setup io_uring_enter io_uring_register"
_METADATA = """
truncate chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat utimensat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _AND, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000
_SOCK_STREAM, _SOCK_TYPE = 1, 0xF
_PR_SET_PDEATHSIG = 1
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_OF_ONESELF = ("prlimit64", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr")


@dataclass(frozen=True)
class _Check:
    """`inside` where the masked low word of an argument is one of the values, `outside` elsewhere (0: allow)."""

    argument: int
    mask: int
    values: tuple[int, ...]
    inside: int
    outside: int


def build(machine: str, own_pid: int, alone: bool, may_start: bool, may_change_metadata: bool) -> bytes:
    """The filter as instructions; KeyError for an unknown machine.

    own_pid: the process it is for. alone: it sees no foreign processes, so signals need no check. may_start: it may
    start processes. may_change_metadata: it sees no foreign files.
    """
    number = numbers(machine)
    refused = {name: errno.EPERM for name in _FORBIDDEN.split()}
    refused.update((name, errno.ENOSYS) for name in _MISSING.split())
    if not may_change_metadata:
        refused.update((name, errno.EPERM) for name in _METADATA.split())
    if not may_start:
        refused.update((name, errno.EAGAIN) for name in ("fork", "vfork"))
    parts = [_opening(ARCHITECTURES[machine])]
    parts += [_refuse(number[name], code) for name, code in refused.items() if name in number]
    checks = _checks(own_pid, alone, may_start, may_change_metadata)
    parts += [_look(number[name], check) for name, check in checks.items() if name in number]
    return b"".join(parts) + _step(_RETURN, _ALLOW)


def _checks(own_pid: int, alone: bool, may_start: bool, may_change_metadata: bool) -> dict[str, _Check]:
    whole = 0xFFFFFFFF
    checks = {name: _Check(0, whole, (0, own_pid), 0, errno.EPERM) for name in _OF_ONESELF}
    checks["socketpair"] = _Check(1, _SOCK_TYPE, (_SOCK_STREAM,), 0, errno.EPERM)
    checks["prctl"] = _Check(0, whole, (_PR_SET_PDEATHSIG,), errno.EPERM, 0)
    if may_start:
        checks["clone"] = _Check(0, CLONE_NEW_ANY, (0,), 0, errno.EPERM)
    else:
        checks["clone"] = _Check(0, CLONE_NEW_ANY | CLONE_THREAD, (CLONE_THREAD,), 0, errno.EAGAIN)
    if not alone:
        itself = (own_pid, 0, -own_pid & whole)  # its process group is its own
        checks.update((name, _Check(0, whole, itself, 0, errno.EPERM)) for name in _SIGNALS)
    if not may_change_metadata:
        # Landlock before its third version lets a file opened for reading be truncated by opening it.
        emptied = (os.O_TRUNC | os.O_RDONLY,)
        for name, argument in (("open", 1), ("openat", 2)):
            checks[name] = _Check(argument, os.O_TRUNC | os.O_ACCMODE, emptied, errno.EPERM, 0)
    return checks


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _verdict(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code if code else _ALLOW)


def _opening(architecture: int) -> bytes:
    """Only this architecture's own calls, and none later than the table; the call's number stays loaded."""
    return b"".join(
        [
            _step(_LOAD, _ARCH_AT),
            _step(_EQUAL, architecture, 1, 0),
            _step(_RETURN, _KILL),
            _step(_LOAD, _NUMBER_AT),
            _step(_ABOVE, _X32 - 1, 0, 1),
            _step(_RETURN, _KILL),
            _step(_ABOVE, LAST, 0, 1),
            _verdict(errno.ENOSYS),
        ]
    )


def _refuse(number: int, code: int) -> bytes:
    return _step(_EQUAL, number, 0, 1) + _verdict(code)


def _look(number: int, check: _Check) -> bytes:
    """A block that decides one system call by one argument; skipped by all others."""
    block = [_step(_LOAD, _ARGUMENTS_AT + 8 * check.argument), _step(_AND, check.mask)]
    for value in check.values:
        block += [_step(_EQUAL, value, 0, 1), _verdict(check.inside)]
    block.append(_verdict(check.outside))
    return _step(_EQUAL, number, 0, len(block)) + b"".join(block)
