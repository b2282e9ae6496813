"""The last steps before the program's interpreter is executed: descriptors, limits, and the kernel's restrictions.

Nothing of the server survives `execve`: the interpreter is a fresh one, with five descriptors, no environment but a
fixed hash seed, and no way to raise what is set here.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from dataclasses import dataclass
from typing import NoReturn

from envs.sandbox import kernel, landlock, seccomp
from envs.sandbox.namespaces import STRANGER
from envs.sandbox.plan import Setting
from envs.sandbox.syscalls import ARCHITECTURES, numbers

ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_DESCRIPTORS = 256
_FIRST_FREE = 10  # descriptors below are the program's


@dataclass(frozen=True)
class Ends:
    """The program's ends, to become its descriptors 0 to 4: what to run, output, errors, verdict, nothing."""

    job: int
    out: int
    err: int
    channel: int
    null: int

    def all(self) -> tuple[int, ...]:
        """In the order of the numbers they become."""
        return (self.job, self.out, self.err, self.channel, self.null)


def out_of_the_way(descriptor: int) -> int:
    """The same open file under a number that no end takes; the old number is closed."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    os.close(descriptor)
    return moved


def become_program(setting: Setting, ends: Ends, folder: str) -> NoReturn:
    """Turn this process into the program's interpreter; a failure is told over the channel and ends it."""
    try:
        os.setsid()
        for number, end in enumerate(ends.all()):
            os.dup2(end, number)
        os.chdir(folder)
        for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_DFL)
        _set_limits(setting)
        if kernel.AVAILABLE:
            _restrict(setting, folder)
        os.execve(setting.command[0], setting.command, ENVIRONMENT)
    except BaseException as error:
        os.write(ends.channel, f"!{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)


def _set_limits(setting: Setting) -> None:
    limits = setting.limits  # memory's is set by the interpreter itself, when it is ready for the program
    pairs = {
        "RLIMIT_CPU": (limits.cpu_s, limits.cpu_s + 1),
        "RLIMIT_FSIZE": (limits.file_mb << 20, limits.file_mb << 20),
        "RLIMIT_NOFILE": (_DESCRIPTORS, _DESCRIPTORS),
        "RLIMIT_CORE": (0, 0),
    }
    if setting.plan.may_start_processes:
        # The kernel counts a user's processes in this namespace: with one user, the server and its child are two.
        own = 1 if setting.plan.two_users else 3
        pairs["RLIMIT_NPROC"] = (own + limits.processes, own + limits.processes)
    for name, pair in pairs.items():
        which = getattr(resource, name)
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:  # what this machine allows anyone may be less
            pair = (min(pair[0], ceiling), min(pair[1], ceiling))
        resource.setrlimit(which, pair)


def _restrict(setting: Setting, folder: str) -> None:
    plan = setting.plan
    if plan.two_users:
        os.setgroups([])
        os.setresgid(STRANGER, STRANGER, STRANGER)
        os.setresuid(STRANGER, STRANGER, STRANGER)
    kernel.renounce_privileges()
    if setting.machine in ARCHITECTURES:
        kernel.drop_capabilities(numbers(setting.machine)["capset"])
    if not plan.namespaces:
        kernel.die_with_parent()
    if plan.landlock:
        devices = ("/dev/zero", "/dev/random", "/dev/urandom")
        landlock.restrict((*setting.readable, *devices), (folder, "/dev/null"))
    if plan.seccomp:
        program = seccomp.build(
            setting.machine,
            own_pid=os.getpid(),
            alone=plan.namespaces,
            may_start=plan.may_start_processes,
            may_change_metadata=plan.namespaces,
        )
        kernel.install_filter(program)
