"""The last steps before a process is let loose: descriptors, limits, and the kernel's restrictions.

Nothing of the server survives `execve` into the program's interpreter: that is a fresh one, with five descriptors, no
environment but a fixed hash seed, and no way to raise what is set here. The process that runs the tests is a fork of
the referee under the same restrictions; it keeps its own user id where the program gets another, and is closed to
being traced and read by others.
"""

from __future__ import annotations

import builtins
import fcntl
import json
import os
import resource
import signal
import sys
import traceback
from _sitebuiltins import Quitter
from dataclasses import dataclass
from typing import Any, NoReturn

from envs.sandbox import kernel, landlock, seccomp
from envs.sandbox.bootstrap import guard_rules
from envs.sandbox.examiner import examine
from envs.sandbox.guard import make_guard
from envs.sandbox.namespaces import STRANGER
from envs.sandbox.peer import RESERVE, SOLUTION
from envs.sandbox.plan import Setting
from envs.sandbox.syscalls import ARCHITECTURES, numbers
from envs.sandbox.wire import write_all

ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_DESCRIPTORS = 256
_FIRST_FREE = 10  # descriptors below are the program's


@dataclass(frozen=True)
class Ends:
    """The program's ends, to become its descriptors 0 to 4: what to run, output, errors, questions, nothing."""

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
    """Turn this process into the program's interpreter; a failure is told as an error output and ends it."""
    try:
        os.setsid()
        for number, end in enumerate(ends.all()):
            os.dup2(end, number)
        os.chdir(folder)
        for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_DFL)
        _set_limits(setting)
        if kernel.AVAILABLE:
            _restrict(setting, folder, examining=False)
        os.execve(setting.command[0], setting.command, ENVIRONMENT)
    except BaseException as error:
        os.write(ends.err, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)


@dataclass(frozen=True)
class Desk:
    """The examiner's ends: nothing, output, errors, the program's answers, the program's end (if known), verdict."""

    null: int
    out: int
    err: int
    channel: int
    handle: int | None
    verdict: int


def become_examiner(setting: Setting, desk: Desk, folder: str, job: dict[str, Any]) -> NoReturn:
    """Run a job's tests in this process and end it; what is told goes to `desk.verdict`, a line of JSON each."""

    def tell(words: list[Any]) -> None:
        write_all(desk.verdict, json.dumps(words).encode("ascii") + b"\n")

    try:
        os.setsid()
        for number, end in enumerate((desk.null, desk.out, desk.err)):
            os.dup2(end, number)
        _close_all_but(
            {0, 1, 2, desk.channel, desk.verdict, *(() if desk.handle is None else (desk.handle,))}
        )
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # raises nothing in the midst of a test
        os.chdir(folder)
        # What the program writes into its folder is never imported here, and no file of this project is visible.
        sys.path[:] = [path.rstrip(os.sep) for path in setting.extensions]
        sys.dont_write_bytecode = True
        sys.argv[:] = [SOLUTION]
        for name in ("exit", "quit"):
            setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))
        _set_limits(setting)
        most = setting.own_memory + (setting.limits.memory_mb << 20) if setting.own_memory else 0
        ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
        if most and ceiling in (resource.RLIM_INFINITY, max(ceiling, most + RESERVE)):
            resource.setrlimit(resource.RLIMIT_AS, (most, most + RESERVE))
        if kernel.AVAILABLE:
            _restrict(setting, folder, examining=True)
        sys.addaudithook(make_guard(*guard_rules(setting, folder), may_open_folders=True))
        examine(job, desk.channel, desk.handle, tell, _take_reserve)
    except BaseException:
        tell(["error", traceback.format_exc()])
    finally:
        os._exit(0)


def _take_reserve() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _close_all_but(kept: set[int]) -> None:
    first = 0
    for each in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        if first < each:  # an empty range may close others
            os.closerange(first, each)
        first = each + 1


def _set_limits(setting: Setting) -> None:
    limits = setting.limits  # memory's is set by the interpreter itself, when it is ready for the program
    pairs = {
        "RLIMIT_CPU": (limits.cpu_s, limits.cpu_s + 1),
        "RLIMIT_FSIZE": (limits.file_mb << 20, limits.file_mb << 20),
        "RLIMIT_NOFILE": (_DESCRIPTORS, _DESCRIPTORS),
        "RLIMIT_CORE": (0, 0),
    }
    if setting.plan.may_start_processes:
        # The kernel counts a user's processes in this namespace: with one user, the server, the
        # referee and the examiner are three.
        own = 1 if setting.plan.two_users else 4
        pairs["RLIMIT_NPROC"] = (own + limits.processes, own + limits.processes)
    for name, pair in pairs.items():
        which = getattr(resource, name)
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:  # what this machine allows anyone may be less
            pair = (min(pair[0], ceiling), min(pair[1], ceiling))
        resource.setrlimit(which, pair)


def _restrict(setting: Setting, folder: str, examining: bool) -> None:
    plan = setting.plan
    if plan.two_users:
        os.setgroups([])
        os.setresgid(STRANGER, STRANGER, STRANGER)
        if not examining:
            os.setresuid(STRANGER, STRANGER, STRANGER)
    kernel.renounce_privileges()
    if setting.machine in ARCHITECTURES:
        kernel.drop_capabilities(numbers(setting.machine)["capset"])
    if examining:
        kernel.close_to_others()
    if examining or not plan.namespaces:
        kernel.die_with_parent()
    if plan.landlock:
        devices = ("/dev/zero", "/dev/random", "/dev/urandom")
        landlock.restrict((*setting.readable, *devices), (folder, "/dev/null"))
    if plan.seccomp:
        program = seccomp.build(
            setting.machine,
            own_pid=os.getpid(),
            alone=plan.namespaces,
            may_start=plan.may_start_processes and not examining,
            may_change_metadata=plan.namespaces,
        )
        kernel.install_filter(program)
