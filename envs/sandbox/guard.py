"""The guard inside the program's interpreter: an audit hook, which no Python code can remove.

It always denies ways by which Python code runs what Python does not announce, or reads its interpreter's memory:
ctypes, other extension modules than the interpreter's, further interpreters, `gc.get_objects` and its kin, trace
functions, extensions of SQLite. Where the kernel does not hold files, network or processes, it denies those too, as
far as Python announces them, and takes away what Python keeps silent on: best effort, which a determined program gets
round. Known ways: a folder swapped between the look at it and its use and, from Python 3.13 on, the variables of the
guard's frames, which code that runs while the guard looks (a signal's handler, a finalizer) can change. No verdict
depends on it where the kernel holds files.

Whatever the guard uses is bound in default values of its functions: a program can change globals, builtins and
closures, and may find these functions in frames; they are not let be changed.

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
# Extension modules that open no files and start nothing without announcing it: the only ones where the guard alone
# holds files or processes. Not among them: _sqlite3, readline, _dbm, _gdbm, _tkinter, _curses, _ssl, and the like.
_HARMLESS = frozenset(
    "array binascii cmath fcntl grp math mmap resource select termios unicodedata zlib audioop pyexpat _asyncio "
    "_bisect _blake2 _bz2 _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw _contextvars _crypt "
    "_csv _datetime _decimal _elementtree _hashlib _heapq _hmac _json _lsprof _lzma _md5 _multibytecodec "
    "_multiprocessing _opcode _pickle _posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _socket "
    "_statistics _struct _typing _uuid _zoneinfo _zstd".split()
)
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

    It calls no method of an argument that might be the program's own: only exact types are looked into.
    """
    own = make_resolve()(folder) if folder else ""

    def judge(
        event: str,
        arguments: tuple[Any, ...],
        plain: Callable[[Any], str | None] = _make_plain(),  # noqa: B008
        judge_files: Callable[[str, tuple[Any, ...]], bool] | None = (
            _make_judge_of_files(own, may_open_folders) if own else None  # noqa: B008
        ),
        memory: frozenset[str] = _MEMORY,
        modules: tuple[str, ...] = (
            _MODULES + (_MODULES_ON_PROCESSES if processes else ()) + (_MODULES_ON_FILES if folder else ())
        ),
        once: tuple[str, ...] = (
            (_CHANGED_FOR_PROCESSES if processes else ()) + (_CHANGED_FOR_FILES if folder else ())
        ),
        harmless: frozenset[str] | None = _HARMLESS if processes or folder else None,
        extensions: tuple[str, ...] = extensions,
        started: frozenset[str] = _PROCESSES
        if processes or folder
        else frozenset(),  # another program has no guard
        signalled: frozenset[str] = _SIGNALS if processes else frozenset(),
        processes: bool = processes,
        network: bool = network,
        commanding: tuple[str, str] = ("fcntl.fcntl", "fcntl.ioctl"),
        fcntl_commands: frozenset[int] = _FCNTL,
        ioctl_commands: frozenset[int] = _IOCTL,
        locks: frozenset[int] = _LOCKS if folder else frozenset(),
        set_flags: int = _SETFL,
        signalling: int = _O_ASYNC,
        whole: int = _WHOLE,
        unix_sockets: tuple[int, ...] = _UNIX_SOCKETS,
        myself: int = os.getpid(),
        setting: tuple[str, str] = ("object.__setattr__", "object.__delattr__"),
        function: type = type(make_guard),  # noqa: B008
        mine: dict[str, Any] = globals(),  # noqa: B008
        number: type = int,
        kind_of: type = type,
        refusal: type[BaseException] = PermissionError,
        missing: type[BaseException] = ImportError,
    ) -> tuple[type[BaseException], str] | None:
        if event == "import":
            name, path = plain(arguments[0]) or "", plain(arguments[1])
            # An extension's own name is what follows the last dot: `x._ctypes` is _ctypes too.
            last = name.rpartition(".")[2]
            if name.startswith(modules) or last.startswith(modules) or last in once:
                return missing, f"no module {name} in the sandbox"
            if path is not None and ("/../" in path or not path.startswith(extensions)):
                return missing, "only the interpreter's own extension modules in the sandbox"
            if path is not None and harmless is not None and last not in harmless:
                return missing, f"no module {name} in the sandbox where only a guard holds files or processes"
        elif event in setting:
            # A signal's handler, for one, finds the guard's functions in its frames.
            if kind_of(arguments[0]) is function and arguments[0].__globals__ is mine:
                return refusal, "the guard stays as it is"
        elif event in memory or event.startswith("ctypes."):
            return refusal, f"{event} is not available in the sandbox"
        elif event in started:
            return refusal, f"{event}: no other processes in the sandbox"
        elif event in signalled:
            if kind_of(arguments[0]) is not number or arguments[0] not in (0, myself):
                return refusal, f"{event}: no other processes in the sandbox"
        elif event in commanding and (processes or locks):
            # The kernel sends signals and breaks leases in the name of who sets them, to whom they name.
            command, flags = arguments[1], arguments[2]
            allowed = fcntl_commands if event == commanding[0] else ioctl_commands
            plain_flags = kind_of(flags) is number and not flags & signalling
            if (
                kind_of(command) is not number
                or (processes and command & whole not in allowed)
                or (event == commanding[0] and command & whole in locks)
                or (event == commanding[0] and processes and command & whole == set_flags and not plain_flags)
            ):
                return refusal, f"{event}: no signals, leases or locks by the kernel in the sandbox"
        elif network and (event.startswith("syslog.") or event.startswith("socket.")):
            if not (
                event == "socket.__new__" and kind_of(arguments[1]) is number and arguments[1] in unix_sockets
            ):
                return refusal, f"{event}: no network in the sandbox"
        elif judge_files is not None and judge_files(event, arguments):
            return refusal, f"{event}: only the program's own folder may be changed in the sandbox"
        return None

    return judge


def _make_plain() -> Callable[[Any], str | None]:
    def plain(
        value: Any,
        text: type[str] = str,
        data: type[bytes] = bytes,
        kind_of: type = type,
        is_kind: Callable[..., bool] = issubclass,
        decode: Callable[..., str] = bytes.decode,
        all_of_it: slice = slice(None),  # noqa: B008
        encoding: str = sys.getfilesystemencoding(),  # noqa: B008
        errors: str = sys.getfilesystemencodeerrors(),  # noqa: B008
    ) -> str | None:
        """Text or bytes as exact text, whatever their class says of itself; None for anything else."""
        if is_kind(kind_of(value), text):
            return text.__str__(value)
        if is_kind(kind_of(value), data):
            return decode(data.__getitem__(value, all_of_it), encoding, errors)
        return None

    return plain


def _make_judge_of_files(own: str, may_open_folders: bool) -> Callable[[str, tuple[Any, ...]], bool]:
    """Whether an event changes a file outside the folder `own`, or reads what the kernel says of processes."""

    def outside(
        path: Any,
        of_a_name: bool,
        plain: Callable[[Any], str | None] = _make_plain(),  # noqa: B008
        resolve: Callable[..., str] = make_resolve(),  # noqa: B008
        own: str = own,
    ) -> bool:
        """Whether a path does not lie in the folder; a descriptor does not."""
        found = plain(path)
        if found is None:
            return True
        real = resolve(found, not of_a_name)
        return not (real.startswith(own + "/") or (real == own and not of_a_name))

    def judge_files(
        event: str,
        arguments: tuple[Any, ...],
        outside: Callable[[Any, bool], bool] = outside,
        plain: Callable[[Any], str | None] = _make_plain(),  # noqa: B008
        resolve: Callable[..., str] = make_resolve(),  # noqa: B008
        is_folder: Callable[[str], bool] = _make_is_folder(),  # noqa: B008
        may_open_folders: bool = may_open_folders,
        below: str = own + "/",
        fixed: tuple[str, str] = (own, "/dev/null"),
        names: frozenset[str] = _NAMES,
        contents: frozenset[str] = _CONTENTS,
        writing: int = _WRITING,
        nameless: int = _O_TMPFILE,
        number: type = int,
        kind_of: type = type,
    ) -> bool:
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
        if event in ("sqlite3.connect", "fcntl.flock", "fcntl.lockf"):
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

    return judge_files


def make_resolve() -> Callable[..., str]:
    """`os.path.realpath` that nothing in the program's reach takes part in; "" for too many links.

    Its second argument: whether a link at the end of the path is followed too.
    """
    from posix import getcwd, readlink

    def resolve(
        path: str,
        whole: bool = True,
        working: Callable[[], str] = getcwd,
        read_link: Callable[[str], str] = readlink,
        no_link: type[BaseException] = OSError,
        most: int = _MOST_LINKS,
    ) -> str:
        done = [] if path.startswith("/") else working().split("/")[1:]
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
                target = read_link("/" + "/".join(done))
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

    def is_folder(
        path: str,
        look: Callable[[str], Any] = lstat,
        missing: type[BaseException] = OSError,
        kind: int = 0o170000,
        folder: int = 0o040000,
    ) -> bool:
        try:
            return look(path).st_mode & kind == folder
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
