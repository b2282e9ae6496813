"""The guard inside the program's interpreter: an audit hook, which no Python code can remove.

It always denies ways by which Python code runs what Python does not announce, or reads its interpreter's memory:
ctypes, other extension modules than the interpreter's, further interpreters, `gc.get_objects` and its kin, trace
functions, extensions of SQLite. Where the kernel does not hold files, network or processes, it denies those too, as
far as Python announces them, and takes away what Python keeps silent on: best effort, which a determined program gets
round. Known ways: SQL that attaches a database file, a key log of `ssl`, a folder swapped between the look at it and
its use, signal handlers that run while the guard looks. No verdict depends on it.

This file runs in the program's interpreter and imports nothing that a bare interpreter has not imported.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Callable

TYPE_CHECKING = False  # importing it from typing would double the interpreter's start
if TYPE_CHECKING:
    from typing import Any
else:
    Any = object

_MEMORY = frozenset(
    "gc.get_objects gc.get_referrers gc.get_referents sys.settrace sys.setprofile sys.monitoring.register_callback "
    "sys._current_frames sys._current_exceptions cpython._PySys_ClearAuditHooks sqlite3.enable_load_extension "
    "sqlite3.load_extension".split()
)
_MODULES = ("_ctypes", "_test", "_xx", "_interp")  # beginnings of names
_PROCESSES = frozenset(
    "os.fork os.forkpty os.exec os.posix_spawn os.spawn os.system os.startfile pty.spawn subprocess.Popen".split()
)
_SIGNALS = frozenset("os.kill os.killpg resource.prlimit".split())
# Changes of a name in its folder, and of what the name stands for.
_NAMES = frozenset("os.remove os.rename os.link os.symlink os.mkdir os.rmdir".split())
_CONTENTS = frozenset(
    "os.truncate os.chmod os.lchmod os.chown os.lchown os.chflags os.lchflags os.utime os.setxattr "
    "os.removexattr os.link".split()
)
# Commands of fcntl that only look, copy, lock or set flags, and of ioctl that only ask or set flags, as in `seccomp`.
_LOCKS = frozenset((5, 6, 7, 36, 37, 38))
_FCNTL = frozenset((0, 1, 2, 3, 4, 1030, 1031, 1032)) | _LOCKS
_IOCTL = frozenset((0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))
_SETFL = 4
_O_ASYNC = getattr(os, "O_ASYNC", 0o20000)
_O_TMPFILE = getattr(os, "O_TMPFILE", 0)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_WHOLE = 0xFFFFFFFF
_UNIX_SOCKETS = (1, -1)  # and one that exists already
# What reaches other processes, or other files, without an announcement: names of `os` and beginnings of modules.
_SILENT_ON_PROCESSES = (
    "pidfd_open setpriority sched_setaffinity sched_setscheduler sched_setparam setns unshare".split()
)
_SILENT_ON_FILES = "mkfifo mknod chroot".split()
_MODULES_ON_PROCESSES = ("_posixsub", "_tkinter")
_MODULES_ON_FILES = ("_posixshmem", "_dbm", "_gdbm", "readline", "_tkinter")
# Modules that are changed, so that no second copy is made.
_CHANGED_FOR_PROCESSES, _CHANGED_FOR_FILES = ("posix", "_signal"), ("posix", "_multiprocessing")
_MOST_LINKS = 40


def make_guard(
    extensions: tuple[str, ...],
    folder: str,
    network: bool,
    processes: bool,
    *,
    may_open_folders: bool = False,
) -> Callable[..., None]:
    """The hook.

    extensions: folders from which extension modules may come. folder: the only place where files may be changed, ""
    to leave files to the kernel. network, processes: whether to guard those. may_open_folders: with a folder's
    descriptor, files are opened that the guard cannot judge.
    """
    judge = make_judge(extensions, folder, network, processes, may_open_folders)

    def guard(
        event: str,
        arguments: tuple[Any, ...],
        judge: Callable[[str, tuple[Any, ...]], tuple[type[BaseException], str] | None] = judge,
        any_failure: type[BaseException] = BaseException,
        own: tuple[type[BaseException], ...] = (RecursionError, MemoryError),
        unclear: tuple[type[BaseException], str] = (PermissionError, "unclear: not available in the sandbox"),
        kind_of: type = type,
    ) -> None:
        # The program finds this frame, and its variables, in the traceback of a refusal: only what does no harm may
        # be left in it. No code of the program's runs while `judge` does, whose frames are gone then.
        refused = None
        try:
            refused = judge(event, arguments)
        except any_failure as failure:
            kind = kind_of(failure)
            refused = (kind, "") if kind in own else unclear
        finally:
            del judge
        if refused:
            raise refused[0](refused[1])

    return guard


def make_judge(
    extensions: tuple[str, ...],
    folder: str,
    network: bool,
    processes: bool,
    may_open_folders: bool,
) -> Callable[[str, tuple[Any, ...]], tuple[type[BaseException], str] | None]:
    """What the hook asks: (exception, message) for what is refused, None for the rest.

    Whatever it uses is a variable of this function: a program can change globals and builtins. It calls no method of
    an argument that might be the program's own: only exact types are looked into.
    """
    text, data, number, kind_of, is_kind = str, bytes, int, type, issubclass
    decode, all_of_it = bytes.decode, slice(None)
    encoding, errors = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    refusal, missing = PermissionError, ImportError
    memory, names, contents = _MEMORY, _NAMES, _CONTENTS
    started = _PROCESSES if processes or folder else frozenset()  # another program would have no guard
    signalled = _SIGNALS if processes else frozenset()
    modules = _MODULES + (_MODULES_ON_PROCESSES if processes else ()) + (_MODULES_ON_FILES if folder else ())
    once = (_CHANGED_FOR_PROCESSES if processes else ()) + (_CHANGED_FOR_FILES if folder else ())
    fcntl_commands, ioctl_commands, locks = _FCNTL, _IOCTL, _LOCKS if folder else frozenset()
    set_flags, signalling, whole, writing = _SETFL, _O_ASYNC, _WHOLE, _WRITING
    unix_sockets, myself = _UNIX_SOCKETS, os.getpid()
    resolve, is_folder = make_resolve(), _make_is_folder()
    own = resolve(folder) if folder else ""
    below, fixed, nameless = own + "/", (own, "/dev/null"), _O_TMPFILE

    def plain(value: Any) -> str | None:
        """Text or bytes as exact text, whatever their class says of itself; None for anything else."""
        if is_kind(kind_of(value), text):
            return text.__str__(value)
        if is_kind(kind_of(value), data):
            return decode(data.__getitem__(value, all_of_it), encoding, errors)
        return None

    def outside(path: Any, of_a_name: bool) -> bool:
        """Whether a path does not lie in the folder; a descriptor does not."""
        found = plain(path)
        if found is None:
            return True
        real = resolve(found, not of_a_name)
        return not (real.startswith(below) or (real == own and not of_a_name))

    def judge_files(event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, mode, flags = arguments[:3]
            if kind_of(path) is number:
                return False  # a descriptor that is open already
            found = plain(path)
            if found is None:
                return True  # its methods might say this now and that later
            real = resolve(found)
            known = kind_of(flags) is number
            changing = not known or flags & writing
            if (real + "/").startswith("/proc/") or (
                changing and real not in fixed and not real.startswith(below)
            ):
                return True
            if may_open_folders or mode is not None or (known and flags & nameless == nameless != 0):
                return False  # what `open` makes of a folder is no descriptor of it
            return is_folder(real)
        if event == "sqlite3.connect":
            found = plain(arguments[0])
            if found in ("", ":memory:"):
                return False
            if found is None or outside(found, False):
                return True
            if not found.startswith("file:"):
                return False
            if "%" in found:
                return True
            address = found[5:].partition("?")[0].partition("#")[0]  # or a file of that very name
            if address.startswith("//"):
                address = address[2:]
                if not address.startswith("/"):
                    return True  # a host
            return address != ":memory:" and outside(address, False)
        if event in ("fcntl.flock", "fcntl.lockf"):
            return True
        both = event in ("os.rename", "os.link")
        paths = arguments[:2] if both else arguments[1:2] if event == "os.symlink" else arguments[:1]
        if event in names:
            for path in paths:
                if outside(path, True):
                    return True
        if event in contents:
            for path in paths:
                if outside(path, False):
                    return True
        return False

    def judge(event: str, arguments: tuple[Any, ...]) -> tuple[type[BaseException], str] | None:
        if event == "import":
            name, path = plain(arguments[0]) or "", plain(arguments[1])
            # An extension's own name is what stands behind the last dot: `x._ctypes` is _ctypes too.
            last = name.rpartition(".")[2]
            if name.startswith(modules) or last.startswith(modules) or last in once:
                return missing, f"no module {name} in the sandbox"
            if path is not None and ("/../" in path or not path.startswith(extensions)):
                return missing, "only the interpreter's own extension modules in the sandbox"
        elif event in memory or event.startswith("ctypes."):
            return refusal, f"{event} is not available in the sandbox"
        elif event in started:
            return refusal, f"{event}: no other processes in the sandbox"
        elif event in signalled:
            if kind_of(arguments[0]) is not number or arguments[0] not in (0, myself):
                return refusal, f"{event}: no other processes in the sandbox"
        elif event in ("fcntl.fcntl", "fcntl.ioctl") and (processes or locks):
            # The kernel sends signals and breaks leases in the name of who sets them, to whom they name.
            command, flags = arguments[1], arguments[2]
            allowed = fcntl_commands if event == "fcntl.fcntl" else ioctl_commands
            plain_flags = kind_of(flags) is number and not flags & signalling
            if (
                kind_of(command) is not number
                or (processes and command & whole not in allowed)
                or (event == "fcntl.fcntl" and command & whole in locks)
                or (event == "fcntl.fcntl" and processes and command & whole == set_flags and not plain_flags)
            ):
                return refusal, f"{event}: no signals, leases or locks by the kernel in the sandbox"
        elif network and (event.startswith("syslog.") or event.startswith("socket.")):
            if not (
                event == "socket.__new__" and kind_of(arguments[1]) is number and arguments[1] in unix_sockets
            ):
                return refusal, f"{event}: no network in the sandbox"
        elif own and judge_files(event, arguments):
            return refusal, f"{event}: only the program's own folder may be changed in the sandbox"
        return None

    return judge


def make_resolve() -> Callable[..., str]:
    """`os.path.realpath` that nothing in the program's reach takes part in; "" for too many links.

    Its second argument: whether a link at the end of the path is followed too.
    """
    from posix import getcwd, readlink

    no_link, most = OSError, _MOST_LINKS

    def resolve(path: str, whole: bool = True) -> str:
        done = [] if path.startswith("/") else getcwd().split("/")[1:]
        rest = path.split("/")[::-1]
        links = 0
        while rest:
            part = rest.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            done = [*done, part]
            if not (whole or rest):
                continue
            try:
                target = readlink("/" + "/".join(done))
            except no_link:
                continue
            links += 1
            if links > most:
                return ""
            done = [] if target.startswith("/") else done[:-1]
            rest += target.split("/")[::-1]
        return "/" + "/".join(done)

    return resolve


def _make_is_folder() -> Callable[[str], bool]:
    from posix import lstat

    missing, kind, folder = OSError, 0o170000, 0o040000

    def is_folder(path: str) -> bool:
        try:
            return lstat(path).st_mode & kind == folder
        except missing:
            return False

    return is_folder


def hide_unannounced(files: bool, processes: bool) -> None:
    """Where the guard alone holds files or processes: take away what reaches them and Python keeps silent on.

    What is taken from `os` and `subprocess` refuses when it is called; a second copy of the real ones is refused by
    the guard, and here, where Python makes one without an announcement.
    """
    import _imp
    import posix

    kind, plain, built_in = type(sys), str.__str__, _imp.create_builtin
    described: Any = type(sys.implementation)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("no other processes, and no files but the program's own, in the sandbox")

    silent = (*(_SILENT_ON_FILES if files else ()), *(_SILENT_ON_PROCESSES if processes else ()))
    for module in (os, posix):
        for name in silent:
            if hasattr(module, name):
                setattr(module, name, refuse)
    hidden, beginnings = ["_imp"], (*_MODULES, *(_MODULES_ON_PROCESSES if processes else ()))
    if files:
        hidden += (*_CHANGED_FOR_FILES, *_MODULES_ON_FILES)
        os.supports_dir_fd.clear()  # no descriptors of folders: `shutil` does without
        try:
            semaphores = vars(__import__("_multiprocessing"))
        except ImportError:
            pass
        else:  # those with names are files
            for name in ("SemLock", "sem_unlink"):
                semaphores.pop(name, None)
    if processes:
        hidden += _CHANGED_FOR_PROCESSES
        helper = kind("_posixsubprocess")
        helper.__dict__["fork_exec"] = refuse
        sys.modules["_posixsubprocess"] = helper
        vars(__import__("_signal")).pop("pidfd_send_signal", None)

    def create_builtin(spec: Any) -> Any:
        name = plain(spec.name)
        if name in hidden or name.startswith(beginnings):
            raise ImportError(f"no module {name} in the sandbox")
        return built_in(described(name=name))

    _imp.create_builtin = create_builtin
