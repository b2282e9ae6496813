"""Programs that mean harm, each with the outcomes that are right for it. Data only: nothing here is run on import.

Markers are replaced before a run: `@OUTSIDE@` a folder of the host that holds `victim` and `secret`, `@PORT@` a TCP
and UDP port on which the host listens, `@SOCKET@` the path of its unix socket, `@COOKIE@` a word by which a process
can be found, `@VICTIM@` the number of a process of the host's, `@SEGMENT@` that of a System V memory segment of its,
`@SECRET@` is never put into a program: it is what programs must not find.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Hostile:
    """One program. `expect`: right outcomes. `alone`: right ones where no process can be started, if they differ.

    `needs`: what the kernel must hold ("files", "network", "processes") for the program to be let loose. `guarded`:
    right outcomes where the kernel does not and the guard alone has to: only for programs that could harm nothing
    but what the tests own.
    """

    name: str
    expect: tuple[str, ...]
    program: str
    tests: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()

    @property
    def endless(self) -> bool:
        """Whether it may run until its time is up."""
        return "timeout" in self.expect + self.alone + self.guarded


# A test that holds for any program: what such a program must not be saved by, or must not reach.
HOLDS = "assert True"


def _program(
    name: str, expect: str, program: str, *tests: str, needs: str = "", alone: str = "", guarded: str = ""
) -> Hostile:
    return Hostile(
        name,
        tuple(expect.split()),
        dedent(program).lstrip("\n"),
        tests,
        tuple(needs.split()),
        tuple(alone.split()),
        tuple(guarded.split()),
    )


TIME = (
    _program("loop", "timeout", "while True:\n    pass\n"),
    _program("loop in a test", "timeout", "def f():\n    while True:\n        pass\n", HOLDS, "f()"),
    _program("loop in C, sum", "timeout", "import itertools\nsum(itertools.repeat(0))\n"),
    _program("loop in C, pow", "timeout", "pow(3, (1 << 400000) - 1, (1 << 400000) + 1)\n"),
    _program("loop in C, regex", "timeout", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')\n"),
    _program("sleep", "timeout", "import time\ntime.sleep(10000)\n"),
    _program("stop itself", "timeout", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"),
    _program(
        "wait for a lock",
        "timeout",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n",
    ),
    _program(
        "signals ignored",
        "timeout",
        """
        import signal
        for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_IGN)
        while True:
            pass
        """,
    ),
    _program(
        "signals handled and blocked",
        "timeout",
        """
        import signal
        for each in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGHUP):
            signal.signal(each, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            pass
        """,
    ),
    _program(
        "message that never ends",
        "timeout",
        """
        class Slow(Exception):
            def __str__(self):
                while True:
                    pass
        raise Slow
        """,
    ),
    _program("read from a pipe of its own", "timeout", "import os\nos.read(os.pipe()[0], 1)\n"),
)

RESOURCES = (
    _program(
        "fork bomb", "runtime_error timeout", "import os\nwhile True:\n    os.fork()\n", needs="processes"
    ),
    _program(
        "fork bomb that does not give up",
        "timeout",
        """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
        needs="processes",
    ),
    _program(
        "thread bomb",
        "runtime_error",
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(100,)).start()\n",
        needs="processes",
    ),
    _program("memory, list", "memory_limit", "hoard = []\nwhile True:\n    hoard.append('x' * 1_000_000)\n"),
    _program("memory, bytearray", "memory_limit", "bytearray(100_000_000_000)\n"),
    _program("memory, mmap", "memory_limit", "import mmap\nmmap.mmap(-1, 1 << 40)\n"),
    _program(
        "memory, in a test",
        "memory_limit",
        "def f(n):\n    return [0] * n\n",
        "assert f(3)",
        "assert f(1 << 36)",
    ),
    _program(
        "memory, caught",
        "passed",
        """
        hoard = []
        try:
            while True:
                hoard.append('x' * 1_000_000)
        except MemoryError:
            size, hoard = len(hoard), None
        """,
        "assert 0 < size < 200",
    ),
    _program(
        "memory, in a grandchild",
        "passed",
        """
        import os
        child = os.fork()
        if child == 0:
            try:
                hoard = bytearray(100_000_000_000)
            except MemoryError:
                os._exit(7)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        """,
        "assert os.WEXITSTATUS(status) == 7",
        needs="processes",
        guarded="runtime_error",
        alone="runtime_error",
    ),
    _program(
        "raise its own limits",
        "runtime_error",
        """
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
        """,
    ),
    _program("output", "output_limit", "while True:\n    print('x' * 1000)\n"),
    _program("errors", "output_limit", "import sys\nwhile True:\n    sys.stderr.write('x' * 1000)\n"),
    _program(
        "output and errors at once",
        "output_limit",
        """
        import os, threading
        def flood(descriptor):
            while True:
                os.write(descriptor, b'x' * 100_000)
        threading.Thread(target=flood, args=(1,)).start()
        flood(2)
        """,
    ),
    _program("output in one write", "output_limit", "import os\nos.write(1, b'x' * 50_000_000)\n"),
    _program("output, then pass", "output_limit", "print('x' * 200_000)\n", HOLDS),
    _program(
        "output by a daemon thread",
        "passed output_limit",
        """
        import threading
        def flood():
            while True:
                print('x')
        threading.Thread(target=flood, daemon=True).start()
        """,
        HOLDS,
    ),
    _program(
        "huge file",
        "runtime_error",
        """
        with open('big', 'wb') as file:
            while True:
                file.write(b'x' * 100_000)
        """,
    ),
    _program("huge hole", "runtime_error", "with open('big', 'wb') as file:\n    file.truncate(1 << 40)\n"),
    _program(
        "many files",
        "runtime_error passed",  # the folder in memory has room for a thousand
        "for i in range(1500):\n    open(f'file{i}', 'w').close()\n",
    ),
    _program(
        "deep folders",
        "runtime_error passed",
        "import os\nfor i in range(600):\n    os.mkdir('deeper')\n    os.chdir('deeper')\n",
    ),
)

ENDINGS = (
    _program("exit()", "exited", "exit()\n", "assert False"),
    _program("quit()", "exited", "quit()\n", "assert False"),
    _program("sys.exit(0)", "exited", "import sys\nsys.exit(0)\n", "assert False"),
    _program("os._exit(0)", "exited", "import os\nos._exit(0)\n", "assert False"),
    _program(
        "SystemExit in the tested function",
        "exited",
        "def f():\n    raise SystemExit(0)\n",
        "assert f() == 1",
    ),
    _program("os._exit in the second test", "exited", "import os\n", HOLDS, "os._exit(0)"),
    _program("KeyboardInterrupt", "exited", "raise KeyboardInterrupt\n", "assert False"),
    _program(
        "another program",
        "exited",
        "import os\nos.execv('/bin/true', ['true'])\n",
        "assert False",
        needs="processes files",
        guarded="runtime_error",
    ),
    _program(
        "os._exit in a thread",
        "exited",
        "import os, threading, time\nthreading.Thread(target=os._exit, args=(0,)).start()\ntime.sleep(100)\n",
    ),
    _program(
        "message that exits",
        "exited",
        """
        import os
        class Gone(Exception):
            def __str__(self):
                os._exit(0)
        raise Gone
        """,
    ),
    _program("SIGKILL to itself", "killed", "import os\nos.kill(os.getpid(), 9)\n"),
    _program("SIGSEGV to itself", "killed", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"),
    _program("abort", "killed", "import os\nos.abort()\n"),
    _program("kill its group", "killed", "import os\nos.kill(0, 9)\n", needs="processes", guarded="killed"),
    _program("close every descriptor", "exited", "import os\nos.closerange(0, 10000)\n", HOLDS),
    _program("close the outputs", "passed", "import os\nos.close(1)\nos.close(2)\nprint('x')\n", HOLDS),
    _program(
        "thread that never ends",
        "passed",
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(10000,)).start()
        """,
        HOLDS,
    ),
    _program(
        "atexit that hangs",
        "passed",
        "import atexit, time\natexit.register(time.sleep, 10000)\n",
        HOLDS,
    ),
    _program(
        "__del__ that hangs",
        "passed",
        """
        class Sticky:
            def __del__(self):
                while True:
                    pass
        kept = Sticky()
        """,
        "assert kept",
    ),
    _program(
        "generator that will not close",
        "passed",
        """
        def numbers():
            while True:
                try:
                    yield 1
                except GeneratorExit:
                    pass
        kept = numbers()
        """,
        "assert next(kept) == 1",
    ),
    _program("reads its input", "runtime_error", "input()\n"),
)

FORGERIES = (
    _program(
        "success in words",
        "exited",
        """
        import os
        print('PASSED\\n1 passed in 0.01s\\nOK', flush=True)
        os._exit(0)
        """,
        "assert False",
    ),
    _program(
        "success on every descriptor",
        "exited",
        """
        import os
        for descriptor in range(3, 256):
            for word in (b'passed', b'PASSED', b'ready', b't9', b'd6:passed0:0:', bytes(32) + b'passed'):
                try:
                    os.write(descriptor, word)
                except OSError:
                    pass
        os._exit(0)
        """,
        "assert False",
    ),
    _program(
        "noise on every descriptor",
        "exited",  # what it says is no answer
        """
        import os
        for descriptor in range(3, 256):
            try:
                os.write(descriptor, b'noise')
            except OSError:
                pass
        """,
        HOLDS,
    ),
    _program(
        "a failure of its own making",
        "test_failure exited",
        """
        import os
        fields = ('test_failure', 'AssertionError', 'mine', 'tests.py', '1', '<module>')
        os.write(3, b'd' + b''.join(b'%d:%b' % (len(each), each.encode()) for each in fields))
        os._exit(0)
        """,
        "assert False",
    ),
    _program(
        "read the channel and answer",
        "exited",
        """
        import os, socket
        for descriptor in range(3, 256):
            try:
                os.set_blocking(descriptor, False)
                os.write(descriptor, os.read(descriptor, 32) + b'passed')
            except OSError:
                pass
        os._exit(0)
        """,
        "assert False",
    ),
    _program(
        "look for a secret in frames",
        "exited",
        """
        import os, sys
        def bytes_in(value, depth=0):
            if isinstance(value, bytes):
                yield value
            elif depth < 4:
                parts = ()
                if isinstance(value, dict):
                    parts = list(value.values())
                elif isinstance(value, (list, tuple, set, frozenset)):
                    parts = list(value)
                elif hasattr(value, '__defaults__'):
                    closure = [cell.cell_contents for cell in value.__closure__ or ()]
                    parts = [value.__defaults__, value.__kwdefaults__, closure, value.__code__.co_consts]
                for part in parts:
                    yield from bytes_in(part, depth + 1)
        found, frame = set(), sys._getframe()
        while frame:
            for place in (frame.f_locals, frame.f_globals, frame.f_builtins, frame.f_code.co_consts):
                found.update(bytes_in(place))
            frame = frame.f_back
        for secret in found:
            for start in range(0, max(1, min(len(secret), 100) - 31)):
                os.write(3, secret[start:start + 32] + b'passed')
        os._exit(0)
        """,
        "assert False",
    ),
    _program("look for a secret with gc", "runtime_error", "import gc\ngc.get_objects()\n"),
    _program(
        "ctypes under another module's name",
        "runtime_error",
        """
        import _imp, glob, importlib.util, sys
        [path] = [p for d in sys.path for p in glob.glob(d + "/_ctypes.*so")][:1]
        _imp.create_dynamic(importlib.util.spec_from_file_location("x._ctypes", path))
        """,
        HOLDS,
    ),
    _program(
        "another interpreter under another module's name",
        "runtime_error",
        """
        import _imp, glob, importlib.util, sys
        names = ("_xxsubinterpreters", "_interpreters")
        [path] = [p for d in sys.path for n in names for p in glob.glob(f"{d}/{n}.*so")][:1]
        name = path.rsplit("/", 1)[1].split(".")[0]
        _imp.create_dynamic(importlib.util.spec_from_file_location("x." + name, path))
        """,
        HOLDS,
    ),
    _program(
        "a library of its own by a way through the interpreter's",
        "runtime_error",
        """
        import _imp, glob, importlib.util, os, shutil, sys
        [path] = [p for d in sys.path for p in glob.glob(d + "/_json.*so")][:1]
        own = os.path.join(os.getcwd(), "mine.so")
        shutil.copyfile(path, own)
        around = os.path.dirname(path) + "/" + "../" * path.count("/") + own.lstrip("/")
        assert os.path.samefile(around, own)
        _imp.create_dynamic(importlib.util.spec_from_file_location("_json", around))
        """,
        HOLDS,
    ),
    _program(
        "look for a secret with ctypes", "runtime_error", "import ctypes\nctypes.string_at(id(b''), 64)\n"
    ),
    _program(
        "look for a secret in /proc/self/mem",
        "runtime_error",
        "open('/proc/self/mem', 'rb').read(1)\n",
    ),
    _program(
        "look with another interpreter in the process",
        "runtime_error",
        """
        import importlib
        for name in ('_xxsubinterpreters', '_interpreters', '_testcapi'):
            try:
                importlib.import_module(name)
            except ImportError:
                continue
            break
        else:
            raise ImportError('none')
        """,
    ),
    _program("trace the code beneath it", "runtime_error", "import sys\nsys.settrace(lambda *_: None)\n"),
    _program(
        "jump in the code beneath it",
        "runtime_error",
        """
        import sys
        if not hasattr(sys, 'monitoring'):  # before Python 3.12 only a trace function may jump
            sys.settrace(lambda *_: None)
        step = sys._getframe().f_back
        def jump(code, line):
            if code is step.f_code:
                sys._getframe(1).f_lineno = code.co_firstlineno + 9
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(1, 'jump')
        sys.monitoring.register_callback(1, events.LINE, jump)
        sys.monitoring.set_events(1, events.LINE)
        """,
        "assert 1 == 2",
    ),
    _program(
        "a child that passes in its parent's place",
        "exited",
        """
        import os
        if os.fork():
            os.wait()
            os._exit(0)
        """,
        HOLDS,
        needs="processes",
        guarded="runtime_error",
        alone="runtime_error",
    ),
    _program(
        "replace builtins",
        "test_failure",
        """
        import builtins, json, os, sys
        for name in ('exec', 'compile', 'all', 'map', 'isinstance', 'issubclass', 'str', 'type', 'len', 'getattr'):
            setattr(builtins, name, lambda *_, **__: True)
        builtins.AssertionError = builtins.BaseException = builtins.Exception = None
        os.write = os._exit = json.dumps = json.loads = sys.exc_info = lambda *_, **__: None
        """,
        "assert 1 == 2",
    ),
    _program(
        "replace what lies beneath it",
        "test_failure runtime_error exited",
        """
        import sys
        frame = sys._getframe().f_back
        while frame:
            for place in (frame.f_builtins, frame.f_globals):
                for name, value in list(place.items()):
                    if callable(value):
                        place[name] = lambda *_, **__: True
            for name in list(frame.f_locals):
                try:
                    frame.f_locals[name] = ()
                except Exception:
                    pass
            frame = frame.f_back
        """,
        "assert 1 == 2",
    ),
    _program(
        "rewrite the functions beneath it",
        "test_failure exited",
        """
        import sys
        def always(*_, **__):
            return True
        frame = sys._getframe().f_back
        while frame:
            for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
                if hasattr(value, '__code__'):
                    try:
                        value.__code__ = always.__code__
                    except Exception:
                        pass
            frame = frame.f_back
        """,
        "assert 1 == 2",
    ),
    _program(
        "an output that lies",
        "passed",
        """
        import sys
        class Liar:
            def write(self, text):
                raise OSError
            flush = close = write
        sys.stdout = sys.stderr = sys.__stdout__ = Liar()
        """,
        HOLDS,
    ),
    _program("no modules left", "test_failure", "import sys\nsys.modules.clear()\n", "assert 1 == 2"),
)

OTHERS = (
    _program(
        "kill its parent",
        "passed runtime_error",  # in its namespace the parent is beyond signals; elsewhere the call is denied
        "import os\nos.kill(os.getppid(), 9)\n",
        HOLDS,
        needs="processes",
        guarded="runtime_error",
    ),
    _program("kill everyone", "runtime_error passed", "import os\nos.kill(-1, 9)\n", needs="processes"),
    _program(
        "kill one after another",
        "passed",
        """
        import os
        for pid in range(1, 40000):
            if pid != os.getpid():
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
        """,
        HOLDS,
        needs="processes",
    ),
    _program(
        "interrupt one after another, again and again",
        "passed killed",  # where it is the examiner's user too, it ends its own examination
        """
        import os, time
        def f():
            return 1
        for _ in range(20):
            for pid in range(1, 12):
                if pid != os.getpid():
                    try:
                        os.kill(pid, 2)
                    except OSError:
                        pass
            time.sleep(0.005)
        """,
        "assert f() == 1",
        needs="processes",
    ),
    _program(
        "write outside",
        "runtime_error",
        "open('@OUTSIDE@/victim', 'w').write('gone')\n",
        needs="files",
        guarded="runtime_error",
    ),
    _program(
        "add outside",
        "runtime_error",
        "open('@OUTSIDE@/new', 'w').write('here')\n",
        needs="files",
        guarded="runtime_error",
    ),
    _program(
        "delete outside",
        "runtime_error",
        "import os\nos.remove('@OUTSIDE@/victim')\n",
        needs="files",
        guarded="runtime_error",
    ),
    _program(
        "change outside",
        "passed",
        """
        import os
        victim = '@OUTSIDE@/victim'
        open('mine', 'w').close()
        tries = (
            lambda: os.chmod(victim, 0),
            lambda: os.chmod('@OUTSIDE@', 0),
            lambda: os.utime(victim, (0, 0)),
            lambda: os.truncate(victim, 0),
            lambda: os.close(os.open(victim, os.O_RDONLY | os.O_TRUNC)),
            lambda: os.rename(victim, victim + '2'),
            lambda: os.rename('mine', victim),
            lambda: os.link(victim, 'link'),
            lambda: os.symlink('mine', '@OUTSIDE@/link'),
            lambda: os.mkdir('@OUTSIDE@/folder'),
            lambda: os.setxattr(victim, 'user.x', b'1'),
            lambda: os.chown(victim, 1, 1),
        )
        done = 0
        for each in tries:
            try:
                each()
            except OSError:
                continue
            done += 1
        """,
        "assert done == 0",
        needs="files",
        guarded="passed",
    ),
    _program(
        "write everywhere",
        "passed",
        """
        import os
        written = []
        library = os.path.dirname(os.__file__)
        for folder in ('/', '/etc', '/usr', '/var', '/var/tmp', '/dev', '/dev/shm', '/run', '..', library):
            try:
                open(folder + '/backfire-was-here', 'w').close()
            except OSError:
                continue
            written.append(folder)
        """,
        "assert written == []",
        needs="files",
    ),
    _program(
        "read a secret file", "runtime_error", "print(open('@OUTSIDE@/secret').read())\n", needs="files"
    ),
    _program(
        "read the environment",
        "passed",
        """
        import glob, os
        texts = [repr(dict(os.environ)).encode()]
        for path in glob.glob('/proc/*/environ') + ['/proc/%d/environ' % os.getppid()]:
            try:
                texts.append(open(path, 'rb').read())
            except OSError:
                pass
        found = [part for text in texts for part in text.split(b'\\0') if b'BACKFIRE_' in part]
        print(found)
        empty = os.environ == {}
        """,
        "assert empty and found == []",
        needs="files",
        guarded="passed",
    ),
    _program(
        "a link to outside left behind",
        "passed runtime_error",
        """
        import os
        os.symlink('@OUTSIDE@', 'link')
        os.mkdir('folder')
        os.symlink('@OUTSIDE@', 'folder/link')
        """,
        HOLDS,
        needs="files",
        guarded="passed",
    ),
    _program(
        "write through a link",
        "runtime_error",
        """
        import os
        os.symlink('@OUTSIDE@/victim', 'link')
        open('link', 'w').write('gone')
        """,
        needs="files",
        guarded="runtime_error",
    ),
    _program(
        "lock its folder",
        "passed",
        """
        import os
        os.mkdir('inner')
        open('inner/file', 'w').close()
        os.chmod('inner', 0)
        os.chmod('.', 0)
        """,
        HOLDS,
        needs="processes",
        guarded="passed",
        alone="runtime_error",
    ),
    _program(
        "remove its folder",
        "runtime_error",
        "import os\nos.rmdir(os.getcwd())\n",
        needs="files",
        guarded="runtime_error passed",
    ),
    _program(
        "TCP",
        "runtime_error",
        "import socket\nsocket.create_connection(('127.0.0.1', @PORT@))\n",
        needs="network",
        guarded="runtime_error",
    ),
    _program(
        "UDP",
        "runtime_error",
        """
        import socket
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'here', ('127.0.0.1', @PORT@))
        """,
        needs="network",
        guarded="runtime_error",
    ),
    _program(
        "unix socket",
        "runtime_error",
        """
        import socket
        socket.socket(socket.AF_UNIX).connect('@SOCKET@')
        """,
        needs="network",
        guarded="runtime_error",
    ),
    _program(
        "unix datagram through a pair",
        "runtime_error",
        """
        import socket
        socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].connect('@SOCKET@')
        """,
        needs="network",
        guarded="runtime_error",
    ),
    _program(
        "listen",
        "runtime_error",
        """
        import socket
        socket.socket().bind(('127.0.0.1', 0))
        """,
        needs="network",
        guarded="runtime_error",
    ),
    _program(
        "grandchild that outlives it",
        "passed",
        """
        import os
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv('/bin/sleep', ['@COOKIE@', '600'])
            os._exit(0)
        os.wait()
        """,
        HOLDS,
        needs="processes",
        guarded="runtime_error",
        alone="runtime_error",
    ),
    _program(
        "grandchild that keeps the pipes",
        "passed",
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        """,
        HOLDS,
        needs="processes",
        guarded="runtime_error",
        alone="runtime_error",
    ),
    _program(
        "grandchild that writes on",
        "passed output_limit",
        """
        import os
        if os.fork() == 0:
            os.setsid()
            while True:
                os.write(1, b'x' * 100)
        """,
        HOLDS,
        needs="processes",
        guarded="runtime_error",
        alone="runtime_error",
    ),
    _program(
        "ordinary child",
        "passed",
        """
        import subprocess
        said = subprocess.run(['/bin/echo', 'hello'], capture_output=True, text=True).stdout
        """,
        "assert said == 'hello\\n'",
        needs="processes",
        guarded="runtime_error",
        alone="runtime_error",
    ),
    _program(
        "another root",
        "runtime_error",
        "import os\nos.chroot('.')\n",
        needs="processes",
        guarded="runtime_error",
    ),
)

TEXTS = (
    _program("recursion", "runtime_error", "def f(n):\n    return f(n + 1)\n", "assert f(0)"),
    _program(
        "recursion without a limit",
        "runtime_error memory_limit killed timeout",  # the stack overflows, or the memory or the time ends
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return f(n + 1)\n",
        "assert f(0)",
    ),
    _program("recursion in C", "runtime_error", "x = []\nfor _ in range(100_000):\n    x = [x]\nrepr(x)\n"),
    _program("null byte", "syntax_error", "x = 1\0\n"),
    _program("surrogate", "syntax_error", "x = '\udc80'\n"),
    _program("nested too deeply", "syntax_error", "x = " + "(" * 1000 + ")" * 1000 + "\n"),
    _program(
        "negated too often",
        "runtime_error memory_limit killed syntax_error passed",  # every version of the parser has its own end
        "x = " + "-" * 100_000 + "1\n",
    ),
    _program(
        "a megabyte",
        "passed",
        "x = 0\n" + "x += 1  # " + "y" * 90 + "\n" + "# " + "z" * 1_000_000 + "\n",
        "assert x == 1",
    ),
    _program("gigantic message", "runtime_error", "raise ValueError('x' * 20_000_000)\n"),
    _program("message of surrogates", "runtime_error", "raise ValueError('\\udc80' * 5000)\n"),
    _program(
        "message that cannot be made",
        "runtime_error",
        """
        class Bad(Exception):
            def __str__(self):
                raise KeyError('no')
        raise Bad
        """,
    ),
    _program(
        "message of a strange type",
        "runtime_error",
        """
        class Text(str):
            def __getitem__(self, key):
                return 0
            def encode(self, *_):
                return 0
        class Bad(Exception):
            def __str__(self):
                return Text('odd')
        raise Bad
        """,
    ),
    _program("BaseException", "runtime_error", "class Base(BaseException):\n    pass\nraise Base('base')\n"),
    _program(
        "name of a strange type",
        "runtime_error",
        """
        class Meta(type):
            __name__ = property(lambda cls: 1 / 0)
            __mro__ = property(lambda cls: 1 / 0)
        class Odd(Exception, metaclass=Meta):
            __class__ = property(lambda self: 1 / 0)
            __traceback__ = property(lambda self: 1 / 0)
            def __getattribute__(self, name):
                raise SystemExit
        raise Odd('odd')
        """,
    ),
    _program(
        "an exception that holds itself",
        "runtime_error",
        "error = ValueError()\nerror.args = (error, [error])\ndef f():\n    raise error\n",
        "f()",
    ),
    _program("every byte", "passed", "import os\nos.write(1, bytes(range(256)))\n", HOLDS),
)

# Its own messages for the channel: `say(tag, body)`, `value(n)` for a small number as an answer.
_SPEAKS = """
import os
def number(n):
    return n.to_bytes(4, 'little')
def message(tag, body):
    data = tag + number(0) + body
    return len(data).to_bytes(8, 'little') + data
def value(n):
    return message(b'R', number(1) + b'i' + number(1) + bytes([n]) + number(0))
"""

VERDICTS = (
    _program(
        "another channel in its place, the verdict to the real one",
        "exited",
        """
        import os, sys
        real = os.dup(3)
        there, here = os.pipe()
        os.dup2(here, 3)
        frame = sys._getframe()
        while frame:
            for place in (frame.f_globals, frame.f_builtins):
                for name in ('_exit', 'write', 'read', 'send'):
                    if name in place:
                        place[name] = lambda *_: 0
            frame = frame.f_back
        for word in (b'passed', b'["passed"]\\n', bytes(32) + b'passed'):
            os.write(real, word)
        """,
        "assert 1 == 2 or f()",
    ),
    _program(
        "replace how the process ends and is served",
        "test_failure",
        """
        import sys
        frame = sys._getframe()
        while frame:
            for place in (frame.f_globals, frame.f_builtins):
                if 'Service' in place:
                    for name in list(vars(place['Service'])):
                        if name in ('report', 'complain'):
                            setattr(place['Service'], name, lambda self, *_: self.send(b'R', None))
                if '_exit' in place:
                    place['_exit'] = lambda *_: None
            frame = frame.f_back
        def f():
            return 1
        """,
        "assert f() == 2",
    ),
    _program(
        "answers before it is asked",
        "runtime_error test_failure exited",
        _SPEAKS + "for _ in range(50):\n    os.write(3, value(1))\ndef f():\n    return 1\n",
        "assert f() == 2",
    ),
    _program(
        "answers twice",
        "test_failure",
        _SPEAKS + "def f():\n    os.write(3, value(1))\n    return 1\n",
        "assert f() == 2",
        "assert f() == 1",
    ),
    _program(
        "answers without an end",
        "exited timeout",
        _SPEAKS
        + "os.write(3, (1 << 20).to_bytes(8, 'little') + b'R')\nwhile True:\n    os.write(3, b'x' * 10_000)\n",
        "assert 1 == 2",
    ),
    _program(
        "an answer of an impossible size",
        "exited",
        "import os\nos.write(3, b'\\xff' * 8 + b'R')\nwhile True:\n    pass\n",
        HOLDS,
    ),
    _program(
        "children answer in its place, all at once",
        "runtime_error test_failure exited timeout",
        _SPEAKS
        + dedent("""
        channel = os.dup(3)
        for _ in range(5):
            if os.fork() == 0:
                while True:
                    try:
                        os.write(channel, value(1))
                    except OSError:
                        os._exit(0)
        def f():
            return 1
        """),
        "assert f() == 2",
        needs="processes",
        alone="runtime_error",
        guarded="runtime_error",
    ),
    _program(
        "a child that answers while its parent is gone",
        "exited runtime_error",
        """
        import os, sys
        channel = os.dup(3)
        if os.fork() == 0:
            os.dup2(channel, 3)
        else:
            os._exit(0)
        def f():
            return 1
        """,
        "assert f() == 2",
        needs="processes",
        alone="runtime_error",
        guarded="runtime_error",
    ),
    _program(
        "children flood the channel",
        "exited timeout",
        """
        import os
        channel = os.dup(3)
        for _ in range(6):
            if os.fork() == 0:
                while True:
                    try:
                        os.write(channel, b'x' * 50_000)
                    except OSError:
                        pass
        while True:
            pass
        """,
        HOLDS,
        needs="processes",
        alone="runtime_error",
        guarded="runtime_error",
    ),
    _program(
        "children flood the outputs, their parent ends",
        "output_limit exited",
        """
        import os
        for _ in range(6):
            if os.fork() == 0:
                os.setsid()
                while True:
                    try:
                        os.write(1, b'x' * 50_000)
                    except OSError:
                        pass
        os._exit(0)
        """,
        HOLDS,
        needs="processes",
        alone="runtime_error",
        guarded="runtime_error",
    ),
    _program(
        "children that write nothing, again and again",
        "test_failure",
        """
        import os
        channel = os.dup(3)
        for _ in range(4):
            if os.fork() == 0:
                while True:
                    os.write(channel, b'')
        """,
        "assert 1 == 2",
        needs="processes",
        alone="runtime_error",
        guarded="runtime_error",
    ),
    _program(
        "equal to everything",
        "unverifiable",
        """
        class Any:
            __eq__ = __contains__ = __lt__ = __gt__ = __le__ = __ge__ = lambda *_: True
            __ne__ = lambda *_: False
            __hash__ = lambda _: 0
        def f():
            return Any()
        """,
        "assert f() == 2",
    ),
    _program(
        "equal to everything, said by its metaclass",
        "unverifiable test_failure",
        """
        class Meta(type):
            __eq__ = lambda *_: True
            __instancecheck__ = lambda *_: True
            __hash__ = lambda _: 0
        class Any(metaclass=Meta):
            __class__ = int
        def f():
            return Any
        """,
        "assert f() == 2",
    ),
    _program(
        "a number, a text and a list that are equal to everything",
        "unverifiable",
        """
        class Number(int):
            __eq__ = __ge__ = lambda *_: True
            __hash__ = int.__hash__
        class Text(str):
            __eq__ = lambda *_: True
            __hash__ = str.__hash__
        class List(list):
            __eq__ = lambda *_: True
            __iter__ = lambda _: iter([2, 'two', [2]])
        def f():
            return List([Number(1), Text('one'), List()])
        """,
        "assert f()[0] == 1 and f()[1] == 'one' and f()[2] == []",
        "assert f() == [2, 'two', [2]] or f()[0] == 2 or f()[1] == 'two' or list(f()) == [2, 'two', [2]]",
    ),
    _program(
        "no difference to anything",
        "unverifiable",
        """
        class Zero:
            __sub__ = __rsub__ = __mod__ = lambda *_: 0
            __abs__ = __float__ = lambda _: 0.0
        def f():
            return Zero()
        """,
        "assert abs(f() - 2) < 1e-6",
    ),
    _program(
        "an answer to every question",
        "unverifiable",
        """
        class Yes:
            def __getattr__(self, name):
                return lambda *_: True
        def f():
            return Yes()
        """,
        "assert f().startswith('a')",
    ),
    _program(
        "Python's own functions redefined",
        "test_failure",
        """
        import builtins
        def same(*_, **__):
            return 0
        all = set = sorted = len = sum = list = isinstance = abs = same
        vars(builtins).update(all=same, set=same, sorted=same, len=same)
        def f():
            return [1]
        """,
        "assert set(f()) == set([2]) or sorted(f()) == [2] or len(f()) == 2 or all([f() == [2]])",
    ),
    _program(
        "the library's modules redefined",
        "test_failure",
        """
        import math, sys
        class math:
            isclose = staticmethod(lambda *_, **__: True)
        sys.modules['math'] = math
        def f():
            return 1.0
        """,
        "assert math.isclose(f(), 2.0)",
    ),
    _program(
        "a module of the library in its folder",
        "test_failure",
        """
        import os, sys
        for folder in ('.', os.getcwd()):
            for name in ('statistics', 'colorsys', 'fractions'):
                open(f'{folder}/{name}.py', 'w').write('import os\\nos._exit(0)\\nmean = rgb_to_hsv = lambda *_: 2')
        sys.path.insert(0, os.getcwd())
        def f():
            return 1
        """,
        "import statistics, colorsys, fractions\nassert statistics.mean([f()]) == 2",
    ),
    _program(
        "an exit from a block that swallows what a test asserts",
        "unverifiable",
        """
        class Quiet:
            def __enter__(self):
                return self
            def __exit__(self, *_):
                return True
        def f():
            return 1
        """,
        "with Quiet():\n    assert f() == 2",
    ),
    _program(
        "exceptions that a test catches all",
        "unverifiable",
        """
        class Any:
            __eq__ = lambda *_: True
        def f():
            return Any()
        """,
        "try:\n    assert f() == 2\nexcept:\n    pass",
    ),
    _program(
        "gone while a test catches all",
        "exited",
        "import os\ndef f():\n    os._exit(0)\n",
        "try:\n    f()\nexcept:\n    pass",
        HOLDS,
    ),
    _program(
        "evaluated by the test's end",
        "test_failure runtime_error unverifiable exited",
        """
        import pickle, os
        class Evil:
            def __reduce__(self):
                return (os._exit, (0,))
            def __repr__(self):
                return '__import__("os")._exit(0)'
        check = eval
        decode = pickle.loads
        def f():
            return Evil()
        def text():
            return '(_ for _ in ()).throw(SystemExit)'
        """,
        "assert check('1 + 1') == 2",
        "assert f() == 2 or check(text()) == 2",
    ),
    _program(
        "values without bottom",
        "unverifiable memory_limit timeout",
        """
        def f(n):
            x = []
            for _ in range(100_000):
                x = [x, x]
            return x
        def g():
            x = ()
            for _ in range(40):
                x = (x, x)
            return x
        """,
        "assert f(1) == 2",
    ),
    _program(
        "a value that grows as it is read",
        "unverifiable memory_limit timeout",
        "def g():\n    x = ()\n    for _ in range(40):\n        x = (x, x)\n    return x\n",
        "assert g() == 2",
    ),
    _program(
        "an endless row",
        "timeout memory_limit",
        "def f():\n    while True:\n        yield 1\n",
        "assert list(f()) == [2]",
    ),
    _program(
        "looks into the other processes",
        "test_failure",
        """
        import os
        seen = []
        me = os.getpid()
        for pid in {*range(1, 100), *range(max(1, me - 50), me + 50)} - {me}:
            for name in ('mem', 'environ', 'maps', 'fd/3', 'fd/10', 'fd/11', 'fd/12', 'fd/13'):
                try:
                    with open(f'/proc/{pid}/{name}', 'r+b' if name == 'mem' else 'rb') as file:
                        seen.append((pid, name))
                except OSError:
                    pass
        def f():
            return seen
        """,
        "assert f() == []",
        "assert 1 == 2",
    ),
)

OUTSIDERS = (
    _program(
        "signals to others by way of a file's owner",
        "passed",
        """
        import fcntl, os, signal, socket, struct
        there, here = os.pipe()
        pair = socket.socketpair()
        done = []
        def attempt(what, *arguments):
            try:
                what(*arguments)
            except OSError:
                return
            done.append(arguments[1])
        set_owner, set_owner_ex, set_signal = 8, 15, 10
        for each in (there, pair[0].fileno()):
            attempt(fcntl.fcntl, each, set_owner, @VICTIM@)
            attempt(fcntl.fcntl, each, set_owner_ex, struct.pack('ii', 1, @VICTIM@))
            attempt(fcntl.fcntl, each, set_signal, signal.SIGKILL)
            attempt(fcntl.fcntl, each, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
            attempt(fcntl.ioctl, each, 0x5452, struct.pack('i', 1))
            attempt(fcntl.ioctl, each, 0x8901, struct.pack('i', @VICTIM@))
            attempt(fcntl.ioctl, each, 0x8902, struct.pack('i', @VICTIM@))
        os.write(here, b'x')
        pair[1].send(b'x')
        """,
        "assert done == []",
        needs="processes",
        guarded="passed",
    ),
    _program(
        "leases and notifications on the host's files",
        "passed",
        """
        import fcntl, os
        done = []
        for path in (os.__file__, os.path.dirname(os.__file__)):
            for command, argument in ((1024, 0), (1024, 1), (1026, 0x3F)):
                try:
                    fcntl.fcntl(os.open(path, os.O_RDONLY), command, argument)
                except OSError:
                    continue
                done.append(command)
        """,
        "assert done == []",
        needs="processes",
        guarded="passed",
    ),
    _program(
        "remove the host's memory segment",
        "exited",
        "import os\nos.execv('/usr/bin/ipcrm', ['ipcrm', '-m', '@SEGMENT@'])\n",
        HOLDS,
        needs="processes files",
        guarded="runtime_error",
    ),
    _program(
        "signals to others by way of a handle, from a module made anew",
        "runtime_error",
        """
        import _imp, os, sys, types
        del sys.modules['_signal']
        try:
            import _signal
        except ImportError:
            _signal = _imp.create_builtin(types.SimpleNamespace(name='_signal'))
            _imp.exec_builtin(_signal)
        _signal.pidfd_send_signal(os.pidfd_open(@VICTIM@), 9)
        """,
        needs="processes",
        guarded="runtime_error",
    ),
    *(
        _program(
            f"write outside by way of {way}",
            "runtime_error",
            text,
            needs="files",
            guarded="runtime_error",
        )
        for way, text in (
            (
                "a changed realpath",
                """
                import os, posixpath
                here = os.getcwd()
                posixpath._joinrealpath = lambda *_: (here + '/mine', True)
                posixpath.realpath.__code__ = (lambda path, **_: here + '/mine').__code__
                open('@OUTSIDE@/new', 'w').close()
                """,
            ),
            (
                "a descriptor of a folder",
                """
                import os
                os.open('@OUTSIDE@/new'[1:], os.O_CREAT | os.O_WRONLY, dir_fd=os.open('/', os.O_RDONLY))
                """,
            ),
            (
                "a path in a buffer",
                """
                import os, warnings
                warnings.simplefilter('ignore')
                try:
                    os.open(memoryview(b'@OUTSIDE@/new'), os.O_CREAT | os.O_WRONLY)
                except TypeError:
                    raise PermissionError
                """,
            ),
            (
                "a path that changes",
                """
                import _io
                class Path:
                    asked = 0
                    def __fspath__(self):
                        self.asked += 1
                        return '@OUTSIDE@/new' if self.asked == 1 else 'mine'
                _io.FileIO(Path(), 'w')
                """,
            ),
            (
                "another working directory",
                """
                import os
                os.chdir('@OUTSIDE@')
                open('new', 'w').close()
                """,
            ),
            (
                "a data base",
                """
                import sqlite3
                base = sqlite3.connect('mine')
                base.execute("attach '@OUTSIDE@/new' as other")
                base.execute('create table other.t(x)')
                base.commit()
                """,
            ),
            (
                "the guard's own frames",
                """
                def spoil(error):
                    entry = error.__traceback__
                    while entry:
                        for value in list(entry.tb_frame.f_locals.values()):
                            if hasattr(value, '__defaults__') and value is not spoil and value is not deep:
                                value.__code__ = (lambda *_, **__: None).__code__
                        entry = entry.tb_next
                def deep(n=0):
                    try:
                        deep(n + 1)
                    except RecursionError:
                        pass
                    try:
                        open('@OUTSIDE@/new', 'w')
                    except Exception as error:
                        spoil(error)
                deep()
                open('@OUTSIDE@/new', 'w')
                """,
            ),
            (
                "the guard's frames in the handler of a signal",
                """
                import signal
                def handle(number, frame):
                    while frame:
                        if frame.f_code.co_filename == '<sandbox>':
                            for value in list(frame.f_locals.values()):
                                try:
                                    value.__code__ = (lambda *_, **__: None).__code__
                                except (AttributeError, TypeError, PermissionError):
                                    pass
                        frame = frame.f_back
                signal.signal(signal.SIGALRM, handle)
                signal.setitimer(signal.ITIMER_REAL, 2e-3, 2e-3)
                for _ in range(100):
                    try:
                        open('/tmp/' + 'x/../' * 200 + 'nothing')
                    except OSError:
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
                open('@OUTSIDE@/new', 'w')
                """,
            ),
        )
    ),
    _program(
        "signals to others by way of a handle",
        "runtime_error",
        "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(@VICTIM@), 9)\n",
        needs="processes",
        guarded="runtime_error",
    ),
    _program(
        "orders to others that Python does not announce",
        "passed",
        """
        import os, sys
        done = []
        def attempt(name, what, *arguments):
            try:
                what(*arguments)
            except (AttributeError, ImportError, OSError):
                return
            done.append(name)
        def signal_by_handle():
            del sys.modules['_signal']
            import _signal
            _signal.pidfd_send_signal(os.pidfd_open(@VICTIM@), 9)
        attempt('handle', signal_by_handle)
        attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, @VICTIM@, 7))
        attempt('processors', lambda: os.sched_setaffinity(@VICTIM@, {0}))
        attempt('scheduler', lambda: os.sched_setscheduler(@VICTIM@, os.SCHED_IDLE, os.sched_param(0)))
        """,
        "assert done == []",
        needs="processes",
        guarded="passed",
    ),
    _program(
        "files outside by ways that Python does not announce in full",
        "passed",
        """
        import _io, _multiprocessing, fcntl, os, posixpath, sys
        done = []
        def by_a_folder():
            root = os.open('/', os.O_RDONLY)
            os.open('@OUTSIDE@/1'[1:], os.O_CREAT | os.O_WRONLY, dir_fd=root)
        def memory_by_a_folder():
            os.open('proc/self/mem', os.O_RDWR, dir_fd=os.open('/', os.O_RDONLY))
        def by_a_path_that_changes():
            class Path:
                asked = 0
                def __fspath__(self):
                    self.asked += 1
                    return '@OUTSIDE@/2' if self.asked == 1 else 'mine'
            _io.FileIO(Path(), 'w')
        def by_odd_text():
            class Text(str):
                startswith = lambda *_: False
                split = lambda *_: []
                __add__ = __radd__ = lambda self, other: other
                partition = lambda *_: ('', '', '')
            open(Text('@OUTSIDE@/3'), 'w')
        def by_odd_bytes():
            class Bytes(bytes):
                decode = lambda *_: 'mine'
            os.mkdir(Bytes(b'@OUTSIDE@/4'))
        def by_a_traceback():
            try:
                open('@OUTSIDE@/5', 'w')
            except OSError as error:
                entry = error.__traceback__.tb_next
                while entry:
                    for value in [*entry.tb_frame.f_locals.values(), *entry.tb_frame.f_globals.values()]:
                        if hasattr(value, '__code__') and not value.__code__.co_freevars:
                            value.__code__ = (lambda *_, **__: None).__code__
                        if isinstance(value, dict):
                            value.pop('fcntl.fcntl', None)
                    entry = entry.tb_next
            open('@OUTSIDE@/5', 'w')
        def by_an_argument():
            class Number(int):
                def __eq__(self, other):
                    for value in sys._getframe(1).f_locals.values():
                        if hasattr(value, '__code__') and not value.__code__.co_freevars:
                            value.__code__ = (lambda *_, **__: None).__code__
                    return False
                __hash__ = int.__hash__
                __and__ = __rand__ = lambda *_: 1
            try:
                sys.audit('fcntl.fcntl', Number(3), Number(4), Number(0))
            except OSError:
                pass
            open('@OUTSIDE@/6', 'w')
        def by_another_resolution():
            posixpath._joinrealpath = lambda *_: (os.getcwd() + '/mine', True)
            posixpath.realpath = os.path.realpath = lambda *_, **__: os.getcwd() + '/mine'
            open('@OUTSIDE@/7', 'w')
        def by_a_database():
            import sqlite3
            sqlite3.connect('@OUTSIDE@/8').execute('create table x(y)')
        def by_a_database_address():
            import sqlite3
            sqlite3.connect('file:@OUTSIDE@/9?mode=rwc', uri=True).execute('create table x(y)')
        def shared_memory():
            import _posixshmem
            _posixshmem.shm_open('/@COOKIE@', os.O_CREAT | os.O_RDWR, mode=0o600)
        tries = (
            by_a_folder, memory_by_a_folder, by_a_path_that_changes, by_odd_text, by_odd_bytes, by_a_traceback,
            by_an_argument, by_another_resolution, by_a_database, by_a_database_address, shared_memory,
            lambda: os.mkfifo('@OUTSIDE@/fifo'),
            lambda: os.mknod('@OUTSIDE@/node'),
            lambda: _multiprocessing.SemLock(0, 1, 1, '/@COOKIE@', False),
            lambda: fcntl.flock(open('@OUTSIDE@/victim'), fcntl.LOCK_SH),
            lambda: fcntl.lockf(open('@OUTSIDE@/victim'), fcntl.LOCK_SH),
            lambda: fcntl.fcntl(open('@OUTSIDE@/victim'), 6, bytes(32)),
        )
        for each in tries:
            try:
                each()
            except Exception:  # sqlite3 has errors of its own
                continue
            done.append(each.__code__.co_name + str(each.__code__.co_firstlineno))
        """,
        "assert done == []",
        needs="files",
        guarded="passed",
    ),
    _program(
        "a link to outside in its folder's place",
        "runtime_error",
        """
        import os
        here = os.getcwd()
        os.rmdir(here)
        os.symlink('@OUTSIDE@', here)
        """,
        HOLDS,
        needs="files",
        guarded="runtime_error",
    ),
    _program(
        "another interpreter, without a guard",
        "exited",
        """
        import os, sys
        os.execv(sys.executable, ['python', '-S', '-c', "open('@OUTSIDE@/victim', 'w')"])
        """,
        HOLDS,
        needs="processes files",
        guarded="runtime_error",
    ),
    _program(
        "listen without an address",
        "runtime_error",
        "import socket\nsocket.socket().listen()\n",
        needs="network",
        guarded="runtime_error",
    ),
)

HOSTILE = (*TIME, *RESOURCES, *ENDINGS, *FORGERIES, *VERDICTS, *OTHERS, *OUTSIDERS, *TEXTS)
