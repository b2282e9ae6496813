"""The guard inside the program's interpreter: an audit hook, which no Python code can remove.

It always denies ways by which Python code runs what Python does not announce, or reads its interpreter's memory:
ctypes, other extension modules than the interpreter's, further interpreters, `gc.get_objects` and its kin, trace
functions. Where the kernel does not hold files, network or processes, it denies those too, as far as Python announces
them: best effort, which a determined program gets round. No verdict depends on it where the kernel holds files.

This file runs in the program's interpreter and imports nothing that a bare interpreter has not imported.
"""

from __future__ import annotations

import os
from _collections_abc import Callable

TYPE_CHECKING = False  # importing it from typing would double the interpreter's start
if TYPE_CHECKING:
    from typing import Any
else:
    Any = object

_MEMORY = frozenset(
    "gc.get_objects gc.get_referrers gc.get_referents sys.settrace sys.setprofile sys.monitoring.register_callback "
    "sys._current_frames sys._current_exceptions cpython._PySys_ClearAuditHooks".split()
)
_MODULES = ("_ctypes", "_test", "_xx", "_interp")  # beginnings of names
# Extension modules that open no files and start nothing without announcing it: the only ones where the guard alone
# holds files or processes. Not among them: _sqlite3, readline, _dbm, _gdbm, _tkinter, _curses, _ssl, and the like.
_HARMLESS = frozenset(
    "array binascii cmath fcntl grp math mmap resource select termios unicodedata zlib audioop pyexpat _asyncio "
    "_bisect _blake2 _bz2 _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw _contextvars _crypt "
    "_csv _datetime _decimal _elementtree _hashlib _heapq _hmac _json _lsprof _lzma _md5 _multibytecodec _opcode "
    "_pickle _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _socket _statistics _struct _typing _uuid _zoneinfo "
    "_zstd".split()
)
_PROCESSES = frozenset(
    "os.fork os.forkpty os.exec os.posix_spawn os.spawn os.system os.startfile pty.spawn subprocess.Popen".split()
)
_SIGNALS = frozenset("os.kill os.killpg resource.prlimit".split())
_CHANGES = frozenset(
    "os.remove os.rename os.link os.symlink os.mkdir os.rmdir os.truncate os.chmod os.lchmod os.chown os.lchown "
    "os.chflags os.lchflags os.utime os.setxattr os.removexattr os.mkfifo os.mknod".split()
)
# Commands of fcntl that only look, copy, lock or set flags, and of ioctl that only ask or set flags, as in `seccomp`.
_FCNTL = frozenset((0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032))
_IOCTL = frozenset((0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))
_COMMANDS = frozenset([("fcntl.fcntl", each) for each in _FCNTL] + [("fcntl.ioctl", each) for each in _IOCTL])
_O_ASYNC = getattr(os, "O_ASYNC", 0o20000)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def hide_unannounced() -> None:
    """Where the guard alone holds processes: take away the ways to start and signal some that Python keeps silent on.

    `subprocess` finds its helper as ever, which refuses; `import` of the real one is refused by the guard.
    """
    import sys

    def fork_exec(*_: Any) -> None:
        raise PermissionError("no other processes in the sandbox")

    helper = type(sys)("_posixsubprocess")
    helper.__dict__["fork_exec"] = fork_exec
    sys.modules["_posixsubprocess"] = helper
    vars(__import__("_signal")).pop("pidfd_send_signal", None)
    # Nor can one be made anew, unannounced, of a module that is part of the interpreter: they are all there.
    for name in sys.builtin_module_names:
        if name not in sys.modules and not name.startswith((*_MODULES, "xx")) and name != "_posixsubprocess":
            __import__(name)
    vars(__import__("_imp")).pop("create_builtin", None)


def make_guard(
    extensions: tuple[str, ...], folder: str, network: bool, processes: bool
) -> Callable[..., None]:
    """The hook.

    extensions: folders from which extension modules may come. folder: the only place where files may be changed, ""
    to leave files to the kernel. network, processes: whether to guard those.

    Whatever it uses is bound in default values and cannot be changed: a program can change globals and builtins, and
    finds the frames and functions of the guard in tracebacks and in the handler of a signal, but may not change these.
    From Python 3.13 on it can change the variables of a running frame there, and get round the guard.
    """
    files = make_file_check(folder) if folder else None

    def judge(
        event: str,
        arguments: tuple[Any, ...],
        plain: Callable[[str], str] = str.__str__,
        begins: Callable[..., bool] = str.startswith,
        after: Callable[..., tuple[str, str, str]] = str.rpartition,
        has: Callable[..., bool] = str.__contains__,
        memory: frozenset[str] = _MEMORY,
        modules: tuple[str, ...] = (*_MODULES, "_posixsub", "_signal") if processes else _MODULES,
        harmless: frozenset[str] | None = _HARMLESS if processes or folder else None,
        commands: frozenset[tuple[str, int]] = _COMMANDS,
        commanding: frozenset[str] = frozenset(("fcntl.fcntl", "fcntl.ioctl")),
        function: type = type(hide_unannounced),  # noqa: B008
        setting: frozenset[str] = frozenset(("object.__setattr__", "object.__delattr__")),
        mine: dict[str, Any] = globals(),  # noqa: B008
        set_flags: int = 4,
        signalling: int = _O_ASYNC,
        whole: int = 0xFFFFFFFF,
        number: type[int] = int,
        started: frozenset[str] = _PROCESSES if processes else frozenset(),
        signalled: frozenset[str] = _SIGNALS if processes else frozenset(),
        networked: bool = network,
        files: Callable[..., bool] | None = files,
        text: type[str] = str,
        is_a: Callable[..., bool] = isinstance,
        guarding: bool = processes,
        myself: int = os.getpid(),
        extensions: tuple[str, ...] = extensions,
        refusal: type[Exception] = PermissionError,
        missing: type[Exception] = ImportError,
    ) -> Exception | None:
        if event == "import":
            name, path = arguments[:2]
            # An extension's own name is what stands behind the last dot: `x._ctypes` is _ctypes too.
            last = after(plain(name), ".")[2] if is_a(name, text) else ""
            if is_a(name, text) and (begins(plain(name), modules) or begins(last, modules)):
                return missing(f"no module {plain(name)} in the sandbox")
            if is_a(path, text) and (has(plain(path), "/../") or not begins(plain(path), extensions)):
                return missing("only the interpreter's own extension modules in the sandbox")
            if is_a(path, text) and harmless is not None and last not in harmless:
                return missing(f"no module {last} in the sandbox where only a guard holds files or processes")
        elif event in setting and is_a(arguments[0], function) and arguments[0].__globals__ is mine:
            return refusal("the guard stays as it is")  # a signal's handler, for one, finds it in its frames
        elif event in memory or begins(event, "ctypes."):
            return refusal(f"{event} is not available in the sandbox")
        elif event in started or (event in signalled and arguments[0] not in (0, myself)):
            return refusal(f"{event}: no other processes in the sandbox")
        elif guarding and event in commanding:
            # The kernel sends signals and breaks leases in the name of who sets them, to whom they name.
            flags = arguments[2]
            asks = (
                arguments[1] == set_flags
                and event == "fcntl.fcntl"
                and is_a(flags, number)
                and number.__and__(flags, signalling)
            )
            if (event, arguments[1] & whole) not in commands or asks:
                return refusal(f"{event}: no signals, leases or locks by the kernel in the sandbox")
        elif (
            networked and (begins(event, "syslog.") or begins(event, "socket.")) and event != "socket.__new__"
        ):
            return refusal(f"{event}: no network in the sandbox")
        elif files is not None and files(event, arguments):
            return refusal(f"{event}: only the program's own folder may be changed in the sandbox")
        return None

    def guard(
        event: str,
        arguments: tuple[Any, ...],
        judge: Callable[..., Exception | None] | None = judge,
        any_error: type[BaseException] = BaseException,
        refusal: type[Exception] = PermissionError,
    ) -> None:
        assert judge is not None
        try:
            error = judge(event, arguments)
        except any_error:  # a recursion too deep, for one
            error = refusal("not in the sandbox")
        judge = None  # the program gets this frame, in the traceback of what it catches
        if error is not None:
            raise error

    return guard


def make_file_check(folder: str) -> Callable[[str, tuple[Any, ...]], bool]:
    """The check that an event changes a file outside the folder, or reads what the kernel says of processes.

    So that a path means the same when it is used as when it was checked: no links in the folder that lead elsewhere,
    no other working directory, and no descriptors of directories, which paths may start from unannounced.
    """
    inside = os.path.realpath(folder) + os.sep

    def resolve(
        path: str,
        working: Callable[[], str] = os.getcwd,
        read_link: Callable[[str], str] = os.readlink,
        split: Callable[..., list[str]] = str.split,
        join: Callable[..., str] = str.join,
        begins: Callable[..., bool] = str.startswith,
        failure: type[Exception] = OSError,
        most: int = 40,
    ) -> str:
        """The path without links, "" if there are too many: os.path.realpath is the program's to change."""
        found: list[str] = []
        left = split(path if begins(path, "/") else working() + "/" + path, "/")[::-1]
        while left:
            part = left.pop()
            if part == "..":
                del found[-1:]
            elif part not in ("", "."):
                try:
                    link = read_link("/" + join("/", [*found, part]))
                except failure:
                    found.append(part)
                    continue
                most -= 1
                if most < 0:
                    return ""
                if begins(link, "/"):
                    found.clear()
                left += split(link, "/")[::-1]
        return "/" + join("/", found)

    def place(
        path: Any,
        resolve: Callable[[str], str] = resolve,
        plain: Callable[[str], str] = str.__str__,
        decode: Callable[..., str] = bytes.decode,
        text: type[str] = str,
        raw: type[bytes] = bytes,
        is_a: Callable[..., bool] = isinstance,
    ) -> str:
        """Where a path leads, with a slash at its end; "" for what is not sure to say the same twice."""
        if is_a(path, raw):
            path = decode(path, "utf-8", "surrogateescape")
        return resolve(plain(path)) + "/" if is_a(path, text) else ""

    def outside(
        event: str,
        arguments: tuple[Any, ...],
        place: Callable[[Any], str] = place,
        status: Callable[[str], Any] = os.stat,
        begins: Callable[..., bool] = str.startswith,
        inside: str = inside,
        changes: frozenset[str] = _CHANGES,
        writing: int = _WRITING,
        number: type[int] = int,
        is_a: Callable[..., bool] = isinstance,
        both: frozenset[str] = frozenset(("os.rename", "os.link")),
        failures: tuple[type[Exception], ...] = (OSError, ValueError),
    ) -> bool:
        if event == "open":
            path, _, flags = arguments[:3]
            if is_a(path, number):
                return False  # a descriptor that is open already
            real = place(path)
            try:
                folder = status(real).st_mode & 0o170000 == 0o040000
            except failures:
                folder = False
            changing = not is_a(flags, number) or number.__and__(flags, writing)
            forbidden = not real or folder or begins(real, "/proc/")
            return forbidden or (changing != 0 and not begins(real, (inside, "/dev/null")))
        if event == "os.chdir":
            return not begins(place(arguments[0]), inside)
        if event not in changes:
            return False
        for path in arguments[:2] if event in both else arguments[:1]:
            if event == "os.symlink" or not begins(place(path), inside):
                return True
        return False

    return outside
