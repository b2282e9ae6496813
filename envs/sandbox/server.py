"""The server: one process a worker, which turns jobs into results one after another.

It finds the strongest plan that works here by rehearsing each with a real program, moves into its namespaces if the
plan has any, and keeps one interpreter started ahead, already held, so that a job need not wait for it. Nothing it
knows of one program is there for the next. It ends when its standard input closes; what runs then ends with it.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from typing import Any

from envs.sandbox import bootstrap, cleanup, kernel, landlock, namespaces, plan, syscalls
from envs.sandbox.ahead import Ahead
from envs.sandbox.limits import Limits
from envs.sandbox.referee import START_S
from envs.sandbox.wire import read_to_end, receive, send, write_all

_OWN_CODE = 2 << 20  # bytes for the code that runs the program: the interpreter grows by whole MiB
_SLICE_S = 0.1  # of removing files, between looks at the input
_REHEARSAL_LIMITS = Limits(wall_s=10.0)
# It reads from the interpreter, writes to its folder, meets its descriptors, and answers.
_REHEARSAL = {
    "program": "import string\nwith open('note', 'w') as file:\n    file.write(string.digits)\n"
    "def note():\n    with open('note') as file:\n        return file.read()\n",
    "setup": [],
    "tests": ["assert note() == '0123456789'"],
    "names": [],
}
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/nix/store", "/gnu/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")


def main() -> None:
    """Serve on standard input and output until the input closes."""
    # Nothing raises here, in a referee or an examiner because a program of the same user sent a signal: what has no
    # handler does not reach the first process of a namespace.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    start = receive(0)
    if start is None:
        return
    os.umask(0o022)
    base = ""
    try:
        limits = Limits(**start["limits"])
        setting, base = _prepare(limits, start["allow"], start["folder"])
    except Exception:
        send(1, {"error": traceback.format_exc()})
        return
    try:
        send(1, {"isolation": dataclasses.asdict(setting.plan.isolation), "folder": base})
        _serve(setting, base)
    finally:
        if base:
            cleanup.remove_tree(base)


def _prepare(limits: Limits, allowed: list[str], folder: str) -> tuple[plan.Setting, str]:
    """The setting with the strongest plan that works, in force; and the parent of private folders, or ""."""
    complaints = []
    blank = _describe(limits)
    for each in plan.plans(allowed, as_root=os.geteuid() == 0):
        setting = dataclasses.replace(blank, plan=each)
        complaint = _impossible(setting) or _rehearse(setting, folder)
        if not complaint:
            return setting, _enter(setting, folder)
        complaints.append(f"{each}: {complaint}")
    raise RuntimeError("no way to run a program works on this machine:\n" + "\n".join(complaints))


def _describe(limits: Limits) -> plan.Setting:
    command = (os.path.realpath(sys.executable), *bootstrap.FLAGS)
    libraries = [path for path in sys.path if os.path.isabs(path) and path != _own_root()]
    prefixes = {sys.base_prefix, sys.base_exec_prefix, os.path.dirname(command[0]), *libraries}
    wanted = [*prefixes, *_SYSTEM, *_SYSTEM_FILES]
    readable = sorted({*wanted, *map(os.path.realpath, wanted)} - {"/"})
    return plan.Setting(
        plan=plan.Plan(),
        limits=limits,
        machine=os.uname().machine,
        command=command,
        readable=tuple(path for path in readable if os.path.exists(path)),
        extensions=tuple(path + os.sep for path in libraries),
        memory_base=_fresh_address_space(command[0]),
        payload=bootstrap.payload(),
        own_memory=_own_address_space(),
    )


def _own_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _fresh_address_space(interpreter: str) -> int:
    """Bytes of address space of an interpreter that has done nothing but wait; 0 where the system does not say."""
    question = "import _sitebuiltins, resource; print(open('/proc/self/statm').read().split()[0])"
    flags = bootstrap.FLAGS[: bootstrap.FLAGS.index("-c")]
    command = [interpreter, *flags, "-c", question]
    answer = subprocess.run(command, env={}, capture_output=True, text=True, timeout=START_S, check=False)
    pages = int(answer.stdout) if answer.stdout.strip().isdigit() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") + _OWN_CODE if pages else 0


def _own_address_space() -> int:
    """Bytes of address space of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + _OWN_CODE
    except OSError:
        return 0


def _impossible(setting: plan.Setting) -> str:
    """Why a plan cannot even be tried here, or ""."""
    wanted = setting.plan
    if (wanted.namespaces or wanted.seccomp or wanted.landlock) and not kernel.AVAILABLE:
        return "not Linux, or an interpreter without ctypes"
    if (wanted.namespaces or wanted.seccomp) and setting.machine not in syscalls.ARCHITECTURES:
        return f"system call numbers of {setting.machine} are not known"
    return "this kernel has no Landlock" if wanted.landlock and not landlock.version() else ""


def _enter(setting: plan.Setting, folder: str) -> str:
    """Put the plan in force for this process; the parent of private folders, "" where they are made in memory."""
    if setting.plan.namespaces:
        namespaces.enter(setting.readable, folder, setting.machine, setting.plan.two_users)
        kernel.close_to_others()
        return ""
    if kernel.AVAILABLE:
        kernel.close_to_others()
        kernel.adopt_orphans()
    return tempfile.mkdtemp(prefix="backfire-sandbox-", dir=folder)


def _rehearse(setting: plan.Setting, folder: str) -> str:
    """Try a plan in a process of its own, with a real program: what went wrong, or ""."""
    result, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        complaint = "the rehearsal did not end"
        try:
            os.close(result)
            rehearsed = dataclasses.replace(setting, limits=_REHEARSAL_LIMITS)
            base = _enter(rehearsed, folder)
            try:
                answer = Ahead(rehearsed, base).answer(_REHEARSAL, watch=-1) or {"outcome": "lost"}
                complaint = "" if answer.get("outcome") == "passed" else f"{answer}"
            finally:
                if base:
                    cleanup.remove_tree(base)
        except BaseException as error:
            complaint = f"{type(error).__name__}: {error}"
        finally:
            write_all(tell, complaint.encode("utf-8", "backslashreplace") or b"fine")
            os._exit(0)
    os.close(tell)
    said = read_to_end(result).decode()
    os.close(result)
    os.waitpid(pid, 0)
    return "" if said == "fine" else said or "the rehearsal died"


def _serve(setting: plan.Setting, base: str) -> None:
    ahead = Ahead(setting, base)
    while (job := _next_job(base, ahead.folder)) is not None:
        answer = ahead.answer(job, watch=0)
        send(1, answer if answer is not None else {"lost": True})
        ahead = Ahead(setting, base)
    ahead.end()


def _next_job(base: str, kept: str) -> Any | None:
    """The next job; until it comes, remove what programs left that made more files than could be removed in time."""
    input_ = select.poll()
    input_.register(0, select.POLLIN)
    for name in os.listdir(base) if base else ():
        left = os.path.join(base, name)
        while left != kept and not input_.poll(0) and not cleanup.remove_tree(left, _SLICE_S):
            pass
    return receive(0)
