"""A seccomp filter: which system calls a program's interpreter, and whatever it starts, may make.

It is a list of what is allowed: what CPython and its standard library need to compute, to work with files and
streams, and to start threads and processes. A call that is not on it fails with EPERM (ENOSYS where programs know how
to do without the call, and for calls that did not exist when the list was made), so that Python raises an ordinary
OSError. So there are no sockets but a connected stream pair, no tracing, no namespaces and mounts, no System V and
POSIX message queues, semaphores and shared memory, no notifications, no memory that no limit counts.

Some calls are allowed for some arguments only: `fcntl` without signals to an owner (`F_SETOWN`, `F_SETSIG`, `O_ASYNC`),
leases and notifications; `ioctl` for what terminals and pipes are asked; `prctl` for names. Where no process
namespace hides the others: signals to the process itself only, and threads but no processes. Where no mount namespace
hides other files: no change of a file's mode, owner, times and attributes, which Landlock does not cover.
"""

from __future__ import annotations

import errno
import os
import struct

from envs.sandbox.kernel import CLONE_NEW_ANY, CLONE_THREAD
from envs.sandbox.syscalls import ARCHITECTURES, LAST, numbers

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3
open openat creat stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat
getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir rename renameat renameat2 link linkat unlink unlinkat
symlink symlinkat mknod mknodat ftruncate fallocate fadvise64 readahead fsync fdatasync umask copy_file_range sendfile
splice getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
pipe pipe2 select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime
sendto recvfrom sendmsg recvmsg shutdown getsockname getpeername getsockopt
mmap munmap mprotect mremap madvise brk mincore msync membarrier rseq
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack restart_syscall pause
alarm getitimer setitimer nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
futex futex_waitv set_robust_list get_robust_list set_tid_address arch_prctl sched_yield getcpu
sched_getaffinity sched_getparam sched_getscheduler sched_rr_get_interval sched_get_priority_max
sched_get_priority_min sched_getattr getpriority
execve execveat exit exit_group wait4 waitid
getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgid getpgrp getsid setsid setpgid
getrlimit setrlimit getrusage sysinfo uname getrandom
"""
_METADATA = """
truncate chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat utimensat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""
_MISSING = "clone3 memfd_create memfd_secret openat2 io_uring_setup io_uring_enter io_uring_register"
_SIGNALS = "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo"
_OF_ONESELF = "prlimit64 sched_setaffinity sched_setparam sched_setscheduler sched_setattr"

_F_SETFL, _O_ASYNC = 4, 0o20000
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, locks of either kind, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ
_FCNTL = (0, 1, 2, 3, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032)
# TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTL = (3, 15, 16, 23, 39, 0x53564D41)
# SO_REUSEADDR, SO_SNDBUF, SO_RCVBUF, SO_RCVTIMEO, SO_SNDTIMEO
_SOCKET_OPTIONS = (2, 7, 8, 20, 21)
_PRIO_PROCESS = 0
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _AND, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000
_WHOLE = 0xFFFFFFFF

# One condition: the masked low word of an argument is one of the values. A call is allowed where all conditions of
# one of its cases hold; elsewhere it fails with the error.
Condition = tuple[int, int, tuple[int, ...]]
Cases = tuple[tuple[Condition, ...], ...]


def build(machine: str, own_pid: int, alone: bool, may_start: bool, may_change_metadata: bool) -> bytes:
    """The filter as instructions; KeyError for an unknown machine.

    own_pid: the process it is for. alone: it sees no foreign processes, so signals need no check. may_start: it may
    start processes. may_change_metadata: it sees no foreign files.
    """
    number = numbers(machine)
    answers = {name: _answer(0) for name in _ALLOWED.split()}
    answers |= {name: _answer(errno.ENOSYS) for name in _MISSING.split()}
    if may_change_metadata:
        answers |= {name: _answer(0) for name in _METADATA.split()}
    if may_start:
        answers |= {name: _answer(0) for name in ("fork", "vfork")}
    else:
        answers |= {name: _answer(errno.EAGAIN) for name in ("fork", "vfork")}
    for name, (cases, error) in _conditional(own_pid, alone, may_start, may_change_metadata).items():
        answers[name] = _decide(cases, error)
    parts = [_opening(ARCHITECTURES[machine])]
    for name, block in answers.items():
        if name in number:
            parts.append(_step(_EQUAL, number[name], 0, len(block) // 8) + block)
    return b"".join(parts) + _answer(errno.EPERM)


def _conditional(
    own_pid: int, alone: bool, may_start: bool, may_change_metadata: bool
) -> dict[str, tuple[Cases, int]]:
    """Call → the cases in which it is allowed, and the error elsewhere."""
    itself = (own_pid, 0, -own_pid & _WHOLE)  # its process group is its own
    found: dict[str, tuple[Cases, int]] = {
        "fcntl": ((((1, _WHOLE, _FCNTL),), ((1, _WHOLE, (_F_SETFL,)), (2, _O_ASYNC, (0,)))), errno.EPERM),
        "ioctl": ((((1, _WHOLE, _IOCTL),),), errno.ENOTTY),
        "prctl": ((((0, _WHOLE, _PRCTL),),), errno.EPERM),
        "setsockopt": ((((2, _WHOLE, _SOCKET_OPTIONS),),), errno.EPERM),
        "socketpair": ((((0, _WHOLE, (_AF_UNIX,)), (1, _SOCK_TYPE, (_SOCK_STREAM,))),), errno.EPERM),
    }
    if may_start:
        found["clone"] = (((0, CLONE_NEW_ANY, (0,)),),), errno.EPERM
    else:
        found["clone"] = (((0, CLONE_NEW_ANY | CLONE_THREAD, (CLONE_THREAD,)),),), errno.EAGAIN
    found |= {name: ((((0, _WHOLE, itself[:2]),),), errno.EPERM) for name in _OF_ONESELF.split()}
    found["setpriority"] = (((0, _WHOLE, (_PRIO_PROCESS,)), (1, _WHOLE, itself[:2])),), errno.EPERM
    signals: Cases = ((),) if alone else (((0, _WHOLE, itself),),)
    found |= {name: (signals, errno.EPERM) for name in _SIGNALS.split()}
    if not may_change_metadata:
        # Landlock before its third version lets a file opened for reading be truncated by opening it.
        writing = (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_WRONLY)
        for name, argument in (("open", 1), ("openat", 2)):
            found[name] = (((argument, os.O_TRUNC, (0,)),), ((argument, os.O_ACCMODE, writing),)), errno.EPERM
    return found


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _answer(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error if error else _ALLOW)


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
            _answer(errno.ENOSYS),
        ]
    )


def _decide(cases: Cases, error: int) -> bytes:
    """A block that decides one system call by its arguments; each case ends in an answer or falls to the next."""
    block = b""
    for case in cases:
        steps = [_answer(0)]
        for argument, mask, values in reversed(case):
            beyond = len(steps)
            tests = [
                _step(_EQUAL, value, len(values) - at - 1, 0 if at < len(values) - 1 else beyond)
                for at, value in enumerate(values)
            ]
            steps = [_step(_LOAD, _ARGUMENTS_AT + 8 * argument), _step(_AND, mask), *tests, *steps]
        block += b"".join(steps)
    return block + _answer(error)
