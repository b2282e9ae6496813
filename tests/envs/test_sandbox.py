"""The sandbox: right verdicts on ordinary and hostile programs, an unharmed host, nothing left behind."""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from envs.errors import InputError
from envs.sandbox import OUTCOMES, ExecResult, Frame, Limits, Sandbox, cleanup, guard, kernel, peer, seccomp
from envs.sandbox.syscalls import ARCHITECTURES, numbers
from tests.hostile_programs import HOLDS, HOSTILE, Hostile

# What a program is held by: all that this kernel offers; without namespaces; by nothing of the kernel's. In a raid
# also by either filter alone, where the guard has the rest.
HELD_BY: dict[str, tuple[str, ...]] = {
    "all": ("namespace", "seccomp", "landlock"),
    "filters": ("seccomp", "landlock"),
    "guard": (),
}
RAIDS = {**HELD_BY, "seccomp": ("seccomp",), "landlock": ("landlock",)}
# The strongest way meets every program, each weaker one those that attack what the ways hold differently, and some.
SAMPLED = [each for each in HOSTILE if each.needs or each.alone] + [
    each for each in HOSTILE if not (each.needs or each.alone)
][::6]
NOT_HELD = {"network": "none", "files": "none", "processes": "limits"}
ROOMY = Limits(wall_s=20.0, cpu_s=10, memory_mb=128, file_mb=1)
TIGHT = replace(ROOMY, wall_s=1.0)
SECRET = "BACKFIRE_SECRET=swordfish"
COOKIE = f"backfire-cookie-{os.getpid()}"
CONTENT = "untouched\n"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(ROOMY, workers=2) as made:
        yield made


def outcome(result: ExecResult) -> tuple[str, str, str]:
    return result.outcome, result.exception, result.message


# Ordinary programs


def test_a_right_program_passes_and_a_wrong_one_fails_its_first_wrong_test(sandbox: Sandbox) -> None:
    program = "def double(x):\n    return 2 * x\n"
    right = sandbox.run(program, ["assert double(2) == 4", "assert double(0) == 0"])
    assert (right.outcome, right.n_passed, right.n_tests) == ("passed", 2, 2)
    assert (right.exception, right.message, right.frames) == ("", "", ())
    assert 0 < right.wall_s < ROOMY.wall_s and not right.truncated
    wrong = sandbox.run(program, ["assert double(2) == 4", "assert double(1) == 3, 'got 2'", "1 / 0"])
    assert outcome(wrong) == ("test_failure", "AssertionError", "got 2")
    assert (wrong.n_passed, wrong.n_tests) == (1, 3)
    assert wrong.frames == (Frame("tests.py", 2, "<module>", "assert double(1) == 3, 'got 2'"),)
    assert sandbox.run("x = 1", []).outcome == "passed"


def test_an_exception_in_the_program_names_every_frame_in_it(sandbox: Sandbox) -> None:
    program = (
        "import json\n\n\ndef first(text):\n    # a comment\n    return inner(text)\n\n\n"
        "def inner(text):\n    return json.loads(text)\n"
    )
    result = sandbox.run(program, ["first('1')", "if True:\n    pass\n", "first('no')"])
    assert outcome(result) == (
        "runtime_error",
        "JSONDecodeError",
        "Expecting value: line 1 column 1 (char 0)",
    )
    assert result.n_passed == 2
    assert result.frames == (  # a test of two lines takes two; those of `json` itself are left out
        Frame("tests.py", 4, "<module>", "first('no')"),
        Frame("solution.py", 6, "first", "return inner(text)"),
        Frame("solution.py", 10, "inner", "return json.loads(text)"),
    )
    early = sandbox.run("x = 1\nx.y\n", [HOLDS])
    assert outcome(early) == ("runtime_error", "AttributeError", "'int' object has no attribute 'y'")
    assert early.frames == (Frame("solution.py", 2, "<module>", "x.y"),) and early.n_passed == 0


def test_only_an_assertion_of_a_test_itself_is_a_test_failure(sandbox: Sandbox) -> None:
    own = sandbox.run("def f(x):\n    assert x > 0, 'positive'\n    return x\n", ["assert f(-1)"])
    assert outcome(own) == ("runtime_error", "AssertionError", "positive")
    assert [(frame.file, frame.function) for frame in own.frames] == [
        ("tests.py", "<module>"),
        ("solution.py", "f"),
    ]
    library = sandbox.run("import unittest\n", ["unittest.TestCase().assertEqual(1, 2)"])
    assert outcome(library)[:2] == ("runtime_error", "AssertionError")
    helper = sandbox.run("x = 1", ["def check():\n    assert x == 2\ncheck()"])
    assert helper.outcome == "test_failure" and helper.frames[-1] == Frame(
        "tests.py", 2, "check", "assert x == 2"
    )
    assert sandbox.run("x = 1", ["raise ValueError(3)"]).outcome == "runtime_error"


def test_a_syntax_error_has_one_place(sandbox: Sandbox) -> None:
    result = sandbox.run("def f(x)\n    return x\n", ["assert f(1)"])
    assert (result.outcome, result.exception, result.n_passed) == ("syntax_error", "SyntaxError", 0)
    assert result.message.startswith("expected ':'")
    assert result.frames == (Frame("solution.py", 1, "<module>", "def f(x)"),)
    indented = sandbox.run("x = 1\n  y = 2\n", [])
    assert (indented.outcome, indented.exception) == ("syntax_error", "IndentationError")
    assert indented.frames == (Frame("solution.py", 2, "<module>", "y = 2"),)
    late = sandbox.run("\nexec('x = = 1')\n", [])
    assert (late.outcome, late.exception) == ("runtime_error", "SyntaxError")
    assert late.frames == (Frame("solution.py", 2, "<module>", "exec('x = = 1')"),)
    in_test = sandbox.run("x = 1", ["assert x", "assert x ="])
    assert (in_test.outcome, in_test.exception, in_test.n_passed) == ("runtime_error", "SyntaxError", 1)
    assert in_test.frames == (Frame("tests.py", 2, "<module>", "assert x ="),)


def test_setup_comes_between_program_and_tests(sandbox: Sandbox) -> None:
    program = "math = None\ndef area(r):\n    return 3 * r * r\n"
    assert sandbox.run(program, ["assert math.isclose(area(1), 3)"], ["import math"]).outcome == "passed"
    missing = sandbox.run(program, [HOLDS], ["import no_such_module"])
    assert outcome(missing) == ("runtime_error", "ModuleNotFoundError", "No module named 'no_such_module'")
    assert missing.n_passed == 0 and missing.frames == ()


def test_the_program_is_a_module_that_is_not_main(sandbox: Sandbox) -> None:
    program = (
        "import dataclasses, sys\n"
        "@dataclasses.dataclass\nclass Point:\n    x: 'int'\n"
        "if __name__ == '__main__':\n    sys.exit(1)\n"
    )
    tests = [
        "assert Point(1).x == 1",
        "assert sys.modules[__name__].Point is Point",
        "assert sys.argv == ['solution.py']",
    ]
    assert sandbox.run(program, tests).outcome == "passed"


def test_output_is_kept_as_it_was_written(sandbox: Sandbox) -> None:
    result = sandbox.run(
        "import sys, os\nprint('ä' * 3)\nprint('oops', file=sys.stderr)\n", ["os.write(1, b'\\xff')"]
    )
    assert result.outcome == "passed"
    assert result.stderr == "oops\n" and sorted(result.stdout) == sorted("äää\n\\xff")


def test_runs_share_nothing_and_are_deterministic(sandbox: Sandbox) -> None:
    program = "import builtins, os\nseen = os.listdir('.')\nopen('left', 'w').close()\nbuiltins.left = 1\n"
    tests = ["assert seen == []", "print(hash('text'), list({'a', 'b', 'c', 'd'}))"]
    results = [sandbox.run(program, tests) for _ in range(5)]
    assert {result.outcome for result in results} == {"passed"}
    assert len({result.stdout for result in results}) == 1
    assert sandbox.run("import builtins\n", ["assert not hasattr(builtins, 'left')"]).outcome == "passed"


def test_a_deep_recursion_keeps_both_ends(sandbox: Sandbox) -> None:
    result = sandbox.run("def f(n):\n    return g(n)\ndef g(n):\n    return f(n + 1)\n", ["f(0)"])
    assert (result.outcome, result.exception) == ("runtime_error", "RecursionError")
    assert result.message.startswith("maximum recursion depth exceeded")
    assert len(result.frames) == 20
    assert result.frames[0] == Frame("tests.py", 1, "<module>", "f(0)")
    assert result.frames[1] == Frame("solution.py", 2, "f", "return g(n)")
    assert {frame.function for frame in result.frames[10:]} == {"f", "g"}


def test_messages_are_bounded_and_always_text(sandbox: Sandbox) -> None:
    long = sandbox.run("raise ValueError('x' * 1_000_000)", [])
    assert outcome(long)[:2] == ("runtime_error", "ValueError") and set(long.message) == {"x"}
    assert 1000 <= len(long.message) <= 5000
    bad = sandbox.run("class Bad(Exception):\n    def __str__(self):\n        raise KeyError\nraise Bad", [])
    assert outcome(bad) == ("runtime_error", "Bad", "<exception str() failed>")
    odd = sandbox.run("raise ValueError('\\udc80 and \\0')", [])
    assert odd.message == "\\udc80 and \0"
    exact = sandbox.run("raise KeyError('two\\nlines')", [])
    assert exact.message == "'two\\nlines'"


def test_a_result_is_a_frozen_value(sandbox: Sandbox) -> None:
    result = sandbox.run("x = 1", [])
    with pytest.raises(FrozenInstanceError):
        result.__setattr__("outcome", "passed")
    assert hash(result) == hash(replace(result)) and result.outcome in OUTCOMES
    assert result.isolation == sandbox.isolation


def test_a_hundred_programs_two_at_a_time_keep_their_order(sandbox: Sandbox) -> None:
    jobs = [(f"def f():\n    return {i}\n", [f"assert f() == {i if i % 3 else -1}"]) for i in range(100)]
    results = sandbox.run_many(jobs)
    assert [result.outcome for result in results] == [
        "passed" if i % 3 else "test_failure" for i in range(100)
    ]
    assert [result.frames[0].source for result in results[::3]] == [tests[0] for _, tests in jobs[::3]]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Limits(wall_s=0.0), "wall_s must be a positive number"),
        (lambda: Limits(memory_mb=-1), "memory_mb must be a positive number"),
        (lambda: Limits(wall_s=float("nan")), "wall_s must be a positive number"),
        (lambda: Sandbox(workers=0), "at least one worker"),
        (lambda: Sandbox(allow=["magic"]), "allow takes a list of namespace, seccomp, landlock"),
        (lambda: Sandbox().run("x = 1", "assert x"), "tests are a list of strings"),
        (lambda: Sandbox().run_many([("x = 1", "assert x")]), "tests are a list of strings"),
        (lambda: Sandbox().run("x = 1", [], "import x"), "setup are a list of strings"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


# Limits


def test_memory_is_limited_above_a_fresh_interpreter() -> None:
    with Sandbox(replace(ROOMY, memory_mb=100), workers=1) as sandbox:
        fits, exceeds = (
            sandbox.run(f"block = bytearray({mb} << 20)\nsize = len(block)\n", ["assert size"])
            for mb in (90, 110)
        )
        assert (fits.outcome, exceeds.outcome) == ("passed", "memory_limit")
        assert exceeds.exception == "MemoryError" and exceeds.frames[-1].line == 1


def test_the_processor_limit_is_a_timeout_even_when_its_signal_is_ignored() -> None:
    plain = "while True:\n    pass\n"
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + plain
    with Sandbox(Limits(wall_s=60.0, cpu_s=1), workers=2) as sandbox:
        results = sandbox.run_many([(plain, []), (ignoring, [])])
    assert [result.outcome for result in results] == ["timeout", "timeout"]
    assert all(0.5 < result.wall_s < 50 for result in results)


def test_as_many_processes_as_allowed_can_be_started() -> None:
    program = """
import os, time
started = []
try:
    while len(started) < 20:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        started.append(pid)
except OSError as error:
    refused = error.errno
"""
    with Sandbox(replace(ROOMY, processes=5), workers=1) as sandbox:
        result = sandbox.run(program, ["print(len(started), refused)"])
        if result.isolation.processes == "namespace":
            assert result.stdout in ("5 11\n", "0 11\n")  # none where root's processes cannot be counted
        else:
            assert result.stdout != "5 11\n" and result.isolation.processes in ("seccomp", "limits")


def test_a_program_too_big_for_its_memory_is_a_memory_limit() -> None:
    with Sandbox(replace(ROOMY, memory_mb=4), workers=1) as sandbox:
        results = [sandbox.run("x = '" + "y" * size + "'\n", ["assert x"]) for size in (10**7, 10**5)]
    assert [outcome(each)[:2] for each in results] == [("memory_limit", "MemoryError"), ("passed", "")]


def script(text: str, *arguments: str) -> str:
    """What a script prints in an interpreter of its own, with this project in its path."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {root!r})\n{text}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_limit_that_this_machine_does_not_grant_becomes_the_one_it_grants() -> None:
    said = script("""
import resource
from envs.sandbox import Limits, Sandbox
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
with Sandbox(Limits(file_mb=64), workers=1) as sandbox:
    for size in (1 << 10, 2 << 20):
        print(sandbox.run(f"with open('file', 'wb') as file:\\n    file.write(bytes({size}))", []).outcome)
""")
    assert said == "passed\nruntime_error\n"


# Hostile programs


_LIBC = ctypes.CDLL(None)
_IPC_RMID, _IPC_STAT, _IPC_CREAT = 0, 2, 0o1000


def _shared_memory(flags: int) -> int:
    """A new System V memory segment; -1 where this system gives none."""
    return int(_LIBC.shmget(0, 4096, flags))


def _shared_memory_is_there(segment: int) -> bool:
    return int(_LIBC.shmctl(segment, _IPC_STAT, ctypes.create_string_buffer(1024))) == 0


class Host:
    """What must come to no harm, and what must not be reached."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder / "outside"
        self.outside.mkdir()
        for name, text in (("victim", CONTENT), ("secret", SECRET)):
            (self.outside / name).write_text(text)
        self.victim = subprocess.Popen(["/bin/sleep", "600"])
        self.segment = _shared_memory(_IPC_CREAT | 0o600)
        self.before = self.state()
        self.tcp, self.udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.tcp.bind(("127.0.0.1", 0))
        self.port = self.tcp.getsockname()[1]
        self.udp.bind(("127.0.0.1", self.port))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix_path = str(folder / "s")
        self.unix.bind(self.unix_path)
        for listener in (self.tcp, self.unix):
            listener.listen()
        for each in (self.tcp, self.udp, self.unix):
            each.setblocking(False)

    def state(self) -> list[tuple[object, ...]]:
        """Names, modes, owners, times and contents of all that lies outside."""
        found = []
        for path in [self.outside, *sorted(self.outside.rglob("*"))]:
            status = path.lstat()
            content = path.read_text() if path.is_file() else ""
            found.append((path.name, status.st_mode, status.st_uid, status.st_mtime_ns, content))
        return [*found, ("victim", self.victim.poll()), ("segment", _shared_memory_is_there(self.segment))]

    def reached(self) -> list[str]:
        """Which listeners anything arrived at."""
        tries = {"tcp": self.tcp.accept, "unix": self.unix.accept, "udp": lambda: self.udp.recv(100)}
        found = []
        for name, receive in tries.items():
            try:
                receive()
            except BlockingIOError:
                continue
            found.append(name)
        return found

    def close(self) -> None:
        for each in (self.tcp, self.udp, self.unix):
            each.close()
        self.victim.kill()
        self.victim.wait()
        if self.segment >= 0:
            _LIBC.shmctl(self.segment, _IPC_RMID, None)

    def program(self, hostile: Hostile) -> str:
        words = {
            "@OUTSIDE@": str(self.outside),
            "@PORT@": str(self.port),
            "@SOCKET@": self.unix_path,
            "@COOKIE@": COOKIE,
            "@VICTIM@": str(self.victim.pid),
            "@SEGMENT@": str(self.segment),
        }
        text = hostile.program
        for word, value in words.items():
            text = text.replace(word, value)
        return text


class Raid:
    """Hostile programs, those that may be let loose under one way of holding them, run; and the host afterwards."""

    def __init__(self, folder: Path, allow: tuple[str, ...], programs: Sequence[Hostile]) -> None:
        self.host = Host(folder)
        self.results: list[tuple[Hostile, ExecResult]] = []
        with Sandbox(ROOMY, 2, allow=allow) as roomy, Sandbox(TIGHT, 4, allow=allow) as tight:
            self.isolation = roomy.isolation
            for sandbox, endless in ((roomy, False), (tight, True)):
                let_loose = [each for each in programs if each.endless is endless and self.expected(each)]
                jobs = [(self.host.program(each), each.tests) for each in let_loose]
                self.results += zip(let_loose, sandbox.run_many(jobs), strict=True)
            self.cookies = running(COOKIE)  # while the sandbox is open: ended with their program, not with it
        self.after, self.reached = self.host.state(), self.host.reached()
        self.host.close()

    def expected(self, hostile: Hostile) -> tuple[str, ...]:
        """The outcomes that are right here; none where the program is never let loose."""
        if any(getattr(self.isolation, aspect) == NOT_HELD[aspect] for aspect in hostile.needs):
            return hostile.guarded
        return hostile.alone if hostile.alone and self.isolation.processes != "namespace" else hostile.expect


def running(word: str) -> list[int]:
    """Processes whose command line has the word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile
            continue
    return found


@pytest.fixture(scope="module", params=list(RAIDS))
def raid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raid]:
    folder = tmp_path_factory.mktemp("raid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*SECRET.split("="))
        temporary = folder / "temporary"
        temporary.mkdir(mode=0o755)
        patch.setattr(tempfile, "tempdir", str(temporary))
        programs = HOSTILE if request.param == "all" else SAMPLED
        yield Raid(folder, RAIDS[request.param], programs)
        assert list(temporary.iterdir()) == []  # no folder remains


def test_there_are_many_hostile_programs() -> None:
    assert len(HOSTILE) >= 30 and len({each.name for each in HOSTILE}) == len(HOSTILE)
    assert {word for each in HOSTILE for word in each.expect + each.alone} <= set(OUTCOMES)


def test_every_hostile_program_gets_its_right_verdict(raid: Raid) -> None:
    assert len(raid.results) > 30
    wrong = [
        (program.name, result) for program, result in raid.results if not _is_right(raid, program, result)
    ]
    assert not wrong


def _is_right(raid: Raid, hostile: Hostile, result: ExecResult) -> bool:
    limits = TIGHT if hostile.endless else ROOMY
    repr(result).encode()  # text that can be written
    return (
        result.outcome in raid.expected(hostile)
        and result.wall_s < limits.wall_s + 1.0
        and result.n_passed <= result.n_tests == len(hostile.tests)
        and len(result.stdout) <= limits.output_kb << 12
        and len(result.message) < 50_000
        and SECRET not in result.stdout + result.stderr + result.message
    )


def test_the_host_is_unharmed(raid: Raid) -> None:
    assert raid.after == raid.host.before
    assert raid.reached == []
    assert raid.cookies == []
    assert not any(
        Path(folder, "backfire-was-here").exists() for folder in ("/", "/etc", "/usr", "/dev", "/dev/shm")
    )


def test_isolation_is_stated_in_known_words(raid: Raid) -> None:
    assert raid.isolation.network in ("namespace", "seccomp", "none")
    assert raid.isolation.files in ("namespace", "landlock", "none")
    assert raid.isolation.processes in ("namespace", "seccomp", "limits")
    assert {result.isolation for _, result in raid.results} == {raid.isolation}


def test_nothing_is_claimed_that_is_not_allowed() -> None:
    for allow in ((), ("landlock",)):
        with Sandbox(workers=1, allow=allow) as sandbox:
            assert (sandbox.isolation.network, sandbox.isolation.processes) == ("none", "limits")
    assert sandbox.isolation.files in ("landlock", "none")
    sandbox.close()


def test_a_kernel_that_refuses_namespaces_is_noticed() -> None:
    """In a process that may not unshare, as in many containers, the filters take over."""
    with Sandbox(workers=1, allow=("seccomp", "landlock")) as sandbox:
        filters = sandbox.isolation
    if filters.processes != "seccomp":
        assert filters.network == "none"  # this kernel has no filter to refuse with
        return
    said = script("""
import os, struct
from envs.sandbox import Sandbox, kernel
from envs.sandbox.syscalls import numbers
unshare = numbers(os.uname().machine)["unshare"]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, unshare), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
kernel.renounce_privileges()
kernel.install_filter(b"".join(struct.pack("=HBBI", *step) for step in steps))
with Sandbox(workers=1) as sandbox:
    print(sandbox.isolation.network, sandbox.isolation.processes, sandbox.run("x = 1", ["assert x"]).outcome)
""")
    assert said == "seccomp seccomp passed\n"


def test_the_guard_alone_refuses_what_python_does_not_announce() -> None:
    program = """
import subprocess, sys, signal
refused = []
try:
    subprocess._fork_exec()
except PermissionError:
    refused.append("helper")
sys.modules.pop("_posixsubprocess")
try:
    import _posixsubprocess
except ImportError:
    refused.append("import")
if not hasattr(signal, "pidfd_send_signal"):
    refused.append("handle")
import _imp, importlib.machinery
for name in ("_posixsubprocess", "posix", "_signal", "_ctypes"):
    try:
        _imp.create_builtin(importlib.machinery.ModuleSpec(name, importlib.machinery.BuiltinImporter))
    except ImportError:
        refused.append(name)
    sys.modules.pop(name, None)
    try:
        __import__(name)
    except ImportError:
        refused.append(name)
"""
    expected = ["helper", "import", "handle"]
    expected += [name for name in ("_posixsubprocess", "posix", "_signal", "_ctypes") for _ in range(2)]
    with Sandbox(ROOMY, workers=1, allow=()) as sandbox:
        result = sandbox.run(program, [f"assert refused == {expected}"])
        assert result.outcome == "passed", result


@pytest.mark.parametrize("allow", HELD_BY.values(), ids=HELD_BY)
def test_who_judges_is_closed_to_processes_of_the_same_user(allow: tuple[str, ...]) -> None:
    """No guard and no filter in between: the kernel refuses memory, descriptors, environment and tracing."""
    if not kernel.AVAILABLE or os.uname().machine not in ARCHITECTURES:
        pytest.skip("processes are closed to others by the kernel's means only")
    look = """
import ctypes, os, sys
from envs.sandbox import kernel
from envs.sandbox.syscalls import numbers
kernel.drop_capabilities(numbers(os.uname().machine)["capset"])  # as every program has none
for pid in sys.argv[1:]:
    for name, flags in (("mem", os.O_RDWR), ("environ", 0), ("maps", 0), ("fd/0", 0), ("cwd", 0)):
        try:
            os.open(f"/proc/{pid}/{name}", flags)
        except OSError:
            continue
        print(pid, name)
    if ctypes.CDLL(None).ptrace(0x4206, int(pid), None, None) == 0:
        print(pid, "ptrace")
"""
    others = descendants(os.getpid())  # of other tests' sandboxes
    with Sandbox(replace(ROOMY, wall_s=3.0), workers=1, allow=allow) as sandbox:
        assert sandbox.isolation
        thread = threading.Thread(target=sandbox.run, args=("while True:\n    pass\n", []))
        thread.start()
        assert wait_until(lambda: len(descendants(os.getpid()) - others) >= 4)
        time.sleep(0.5)
        family = descendants(os.getpid()) - others
        programs = {pid for pid in family if b"builtins" in Path(f"/proc/{pid}/cmdline").read_bytes()}
        judges = family - programs
        assert len(judges) == 3 and len(programs) == 1, (judges, programs)
        for pid in judges:  # a handler of Python's would raise where a program of the same user interrupts it
            caught = next(
                row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in row
            )
            assert not int(caught.split()[1], 16) & 1 << (signal.SIGINT - 1)
        reached = script(look, *map(str, sorted(judges)))
        thread.join()
    assert reached == ""


@pytest.mark.parametrize("allow", RAIDS.values(), ids=RAIDS)
def test_honest_work_with_files_and_threads_is_not_guarded_away(allow: tuple[str, ...]) -> None:
    program = """
import asyncio, concurrent.futures, glob, io, logging, os, pathlib, shutil, tempfile, zipfile
with tempfile.TemporaryDirectory() as folder:
    top = pathlib.Path(folder)
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "file").write_text("x")
    with zipfile.ZipFile(top / "z.zip", "w") as archive:
        archive.write(top / "a" / "file", "file")
    with zipfile.ZipFile(top / "z.zip") as archive:
        archive.extractall(top / "out")
    shutil.rmtree(top / "out")
    os.symlink("a", top / "link")
    (top / "link" / "file").rename(top / "moved")
    (top / "link").unlink()
    found = glob.glob(folder + "/**", recursive=True)
with tempfile.NamedTemporaryFile("w+") as named, tempfile.TemporaryFile() as nameless:
    named.write("x")
    nameless.write(b"x")
made, name = tempfile.mkstemp()
os.close(made)
os.remove(name)
async def later(x):
    await asyncio.sleep(0)
    return x
async def all_of_them():
    return await asyncio.gather(later(1), asyncio.to_thread(abs, -2))
values = asyncio.run(all_of_them())
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    values += pool.map(abs, [-3, 4])
os.nice(0)
"""
    with Sandbox(ROOMY, workers=1, allow=allow) as sandbox:
        result = sandbox.run(program, ["assert values == [1, 2, 3, 4]", "assert len(found) == 5"])
        assert outcome(result) == ("passed", "", "")
        # SQL attaches any file without a word of Python's: a database needs a kernel that holds files and processes.
        held = sandbox.isolation
        by_guard = held.files == "none" or held.processes == "limits"
        base = "import sqlite3\nsqlite3.connect('own.db').execute('create table x(y)')\n"
        database = sandbox.run(base, [])
        assert (database.outcome, database.exception) == (
            ("runtime_error", "ImportError") if by_guard else ("passed", "")
        )


def test_all_that_the_guard_uses_is_bound_in_default_values() -> None:
    """Closures and globals can be changed without an announcement, by code that runs while the guard looks."""
    source = Path(guard.__file__).read_text(encoding="utf-8")
    defined: dict[str, Any] = {
        "__name__": "guard"
    }  # as the program's interpreter runs it, and no test's checks on it
    exec(compile(source, "guard", "exec", dont_inherit=True), defined)
    left = [defined["make_guard"](("/usr/",), "/nowhere", True, True)]
    seen: list[FunctionType] = []
    while left:
        function = left.pop()
        seen.append(function)
        assert function.__closure__ is None, function
        reads = {step.opname for step in dis.get_instructions(function)}
        assert not reads & {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"}, function
        left += [
            each for each in function.__defaults__ or () if type(each) is FunctionType and each not in seen
        ]
    assert {each.__name__ for each in seen} == {
        *("guard", "judge", "judge_files", "outside", "plain", "resolve", "is_folder")
    }


# Nothing remains


def children() -> set[int]:
    here = os.getpid()
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == here:
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


@pytest.mark.parametrize("allow", HELD_BY.values(), ids=HELD_BY)
def test_a_closed_sandbox_leaves_no_process_folder_or_descriptor(
    allow: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()
    before = children(), descriptors()
    with Sandbox(TIGHT, workers=2, allow=allow) as sandbox:
        sandbox.run_many([("open('file', 'w').close()", []), ("1 / 0", []), ("while True:\n    pass", [])])
    assert (children(), descriptors()) == before and list(tmp_path.iterdir()) == []
    sandbox.close()  # twice does no harm
    with pytest.raises(KeyError), Sandbox(TIGHT, workers=1, allow=allow) as sandbox:
        sandbox.run("x = 1", [])
        raise KeyError
    assert (children(), descriptors()) == before and list(tmp_path.iterdir()) == []
    forgotten = Sandbox(TIGHT, workers=1, allow=allow)
    forgotten.run("x = 1", [])
    del forgotten
    gc.collect()
    assert (children(), descriptors()) == before and list(tmp_path.iterdir()) == []


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_server_that_is_killed_is_started_again_and_no_row_is_lost() -> None:
    known = children()
    with Sandbox(ROOMY, workers=1) as sandbox:
        assert sandbox.run("x = 1", []).outcome == "passed"
        killed: list[int] = []

        def kill(times: int) -> None:
            for _ in range(times):
                assert wait_until(lambda: bool(children() - known - set(killed)))
                time.sleep(0.5)
                server = (children() - known - set(killed)).pop()
                killed.append(server)
                os.kill(server, signal.SIGKILL)

        for times, expected in ((1, "passed"), (2, "killed")):
            thread = threading.Thread(target=kill, args=(times,))
            thread.start()
            result = sandbox.run("import time\ntime.sleep(1.5)\n", [HOLDS])
            thread.join()
            assert (result.outcome, result.n_tests) == (expected, 1)
        assert len(killed) == 3
        assert sandbox.run("x = 1", ["assert x"]).outcome == "passed"
    assert children() == known


@pytest.mark.parametrize("allow", HELD_BY.values(), ids=HELD_BY)
def test_what_runs_ends_with_a_client_that_is_killed(allow: tuple[str, ...], tmp_path: Path) -> None:
    script = f"""
import sys, tempfile
sys.path.insert(0, sys.argv[1])
tempfile.tempdir = sys.argv[2]
from envs.sandbox import Limits, Sandbox
with Sandbox(Limits(wall_s=300.0, cpu_s=300), workers=1, allow={allow!r}) as sandbox:
    sandbox.run("x = 1", [])
    print("running", flush=True)
    sandbox.run("while True:\\n    pass", [])
"""
    root = str(Path(__file__).resolve().parent.parent.parent)
    command = [sys.executable, "-c", script, root, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None and client.stdout.readline() == b"running\n"
        time.sleep(0.5)
        family = descendants(client.pid)
        assert len(family) >= 3  # a server, a referee, a program
        client.kill()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    assert wait_until(lambda: list(tmp_path.iterdir()) == [])


@pytest.mark.parametrize("allow", HELD_BY.values(), ids=HELD_BY)
def test_what_runs_ends_with_a_server_that_is_killed(allow: tuple[str, ...]) -> None:
    known = descendants(os.getpid())
    with Sandbox(replace(ROOMY, wall_s=60.0, cpu_s=60), workers=1, allow=allow) as sandbox:
        sandbox.run("x = 1", [])
        results: list[ExecResult] = []
        thread = threading.Thread(target=lambda: results.append(sandbox.run("while True:\n    pass", [])))
        thread.start()
        for _ in range(2):
            assert wait_until(lambda: len(descendants(os.getpid()) - known) >= 4)  # with referee and examiner
            time.sleep(0.2)
            family = descendants(os.getpid()) - known
            os.kill(min(children() & family), signal.SIGKILL)
            assert wait_until(lambda family=family: not any(Path(f"/proc/{pid}").exists() for pid in family))
        thread.join()
    assert results[0].outcome == "killed"


def descendants(root: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def test_what_cannot_be_removed_in_time_does_not_keep_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = """
import os, threading
def make(at):
    while True:
        os.makedirs(f"{at}/0/1")
        at += 10
for start in range(5):
    threading.Thread(target=make, args=(start,), daemon=True).start()
make(5)
"""
    with Sandbox(replace(TIGHT, wall_s=0.5), workers=1, allow=HELD_BY["filters"]) as sandbox:
        sandbox.run("x = 1", [])
        begin = time.monotonic()
        assert sandbox.run(program, []).outcome == "timeout"
        assert time.monotonic() - begin < 2.5
        assert sandbox.run("import os\nseen = os.listdir('.')\n", ["assert seen == []"]).outcome == "passed"
        [base] = tmp_path.iterdir()
        assert wait_until(lambda: len(list(base.iterdir())) == 1, 60)  # that of the next program
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_does_not_answer_the_next_one() -> None:
    with Sandbox(ROOMY, workers=1) as sandbox:
        sandbox.run("x = 1", [])
        before = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a shell's background job ignores it
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                sandbox.run("import time\ntime.sleep(3)\nprint('old')\n", [])
            timer.join()
        finally:
            signal.signal(signal.SIGINT, before)
        assert sandbox.run("print('new')\n", []).stdout == "new\n"


# The parts, one by one


def filtered(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What a seccomp filter answers, by an interpreter of the few instructions that filters are made of."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        code, if_true, if_false, constant = steps[at]
        at += 1
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            value = struct.unpack_from("=I", data, constant)[0]
        elif code == 0x54:
            value &= constant
        else:
            holds = {0x15: value == constant, 0x25: value > constant}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_denies_what_it_says_on_every_architecture(machine: str) -> None:
    number, arch, me = numbers(machine), ARCHITECTURES[machine], 4321
    allow, kill, eperm, eagain, enosys, enotty = 0x7FFF0000, 0x80000000, 0x50001, 0x5000B, 0x50026, 0x50019
    alone, among = (
        seccomp.build(machine, me, alone=held, may_start=held, may_change_metadata=held)
        for held in (True, False)
    )
    thread, fork, new_user = 0x3D0F00, 0x1200011, 0x10000000
    get_flags, set_flags, set_owner, set_signal, owner_ex, lease, notify = 3, 4, 8, 10, 15, 1024, 1026
    nonblocking, signalling = 0o4000, 0o20000
    expected = [  # system call, its arguments, answer in a namespace, answer without one
        ("read", (), allow, allow),
        ("execve", (), allow, allow),
        ("socket", (2, 1), eperm, eperm),
        ("connect", (), eperm, eperm),
        ("socketpair", (1, 1 | 0x80000), allow, allow),
        ("socketpair", (1, 2), eperm, eperm),
        ("socketpair", (30, 1), eperm, eperm),
        ("setsockopt", (3, 1, 7), allow, allow),
        ("setsockopt", (3, 1, 26), eperm, eperm),
        ("ptrace", (16, 1), eperm, eperm),
        ("pidfd_open", (1,), eperm, eperm),
        ("flock", (3, 2), eperm, eperm),
        ("vmsplice", (1,), eperm, eperm),  # pages in a pipe, which no limit counts
        ("tee", (0, 1), eperm, eperm),
        ("setpriority", (0, 0, 5), allow, allow),
        ("setpriority", (0, 1, 5), eperm, eperm),
        ("setpriority", (2, 0, 5), eperm, eperm),
        *((name, (), eperm, eperm) for name in ("shmget", "shmat", "shmctl", "shmdt", "msgctl", "semctl")),
        ("fcntl", (3, get_flags), allow, allow),
        ("fcntl", (3, 1030), allow, allow),
        ("fcntl", (3, set_flags, nonblocking), allow, allow),
        ("fcntl", (3, set_flags, nonblocking | signalling), eperm, eperm),
        *(("fcntl", (3, each, 1), eperm, eperm) for each in (set_owner, set_signal, owner_ex, lease, notify)),
        ("ioctl", (3, 0x5401), allow, allow),
        *(("ioctl", (3, each), enotty, enotty) for each in (0x5452, 0x8901, 0x8902, 0x5412, 0x40049409)),
        ("clone3", (), enosys, enosys),
        ("memfd_create", (), enosys, enosys),
        ("clone", (thread,), allow, allow),
        ("clone", (fork,), allow, eagain),
        ("clone", (fork | new_user,), eperm, eagain),
        ("clone", (thread | new_user,), eperm, eagain),
        ("kill", (me,), allow, allow),
        ("kill", (0,), allow, allow),
        ("kill", (-me & 0xFFFFFFFF,), allow, allow),
        ("kill", (-1 & 0xFFFFFFFF,), allow, eperm),
        ("tgkill", (me + 1, me + 1), allow, eperm),
        ("prlimit64", (0,), allow, allow),
        ("prlimit64", (1,), eperm, eperm),
        ("prctl", (1,), eperm, eperm),
        ("prctl", (4,), eperm, eperm),
        ("prctl", (15,), allow, allow),
        ("fchmodat", (), allow, eperm),
        ("openat", (0, 0, os.O_RDONLY), allow, allow),
        ("openat", (0, 0, os.O_RDONLY | os.O_TRUNC), allow, eperm),
        ("openat", (0, 0, os.O_WRONLY | os.O_TRUNC), allow, allow),
    ]
    for name, arguments, within, without in expected:
        answers = (
            filtered(alone, arch, number[name], *arguments),
            filtered(among, arch, number[name], *arguments),
        )
        assert answers == (within, without), (name, arguments)
    for program in (alone, among):
        assert filtered(program, arch ^ 1, number["prctl"]) == kill  # another architecture's numbers
        assert filtered(program, arch, 0x40000001) == kill
        assert filtered(program, arch, 460) == enosys  # a call later than the table
        named = set(number.values())
        assert {filtered(program, arch, each) for each in range(453) if each not in named} == {eperm}
        assert len(program) // 8 < 4096
    assert ("fork" in number) is (machine == "x86_64")


def test_a_tree_is_removed_whatever_it_holds_and_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text(CONTENT)
    top = tmp_path / "top"
    (top / "1" / "2").mkdir(parents=True)
    (top / "2").mkdir()
    (top / "1" / "2" / "3").write_text("")
    (top / "link").symlink_to(kept)
    (top / "1" / "link").symlink_to(kept / "file")
    (top / "loop").symlink_to(top)
    here = os.open(top, os.O_RDONLY)
    for _ in range(1200):  # deeper than a path may be long, and than Python recurses
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    for folder in (top / "1" / "2", top / "1", top):
        folder.chmod(0)
    assert not cleanup.remove_tree(str(top), seconds=0) and top.exists()
    assert cleanup.remove_tree(str(top))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]
    assert (kept / "file").read_text() == CONTENT
    assert cleanup.remove_tree(str(top))  # gone already
    top.symlink_to(kept)
    kept.chmod(0o750)
    assert cleanup.remove_tree(str(top))  # the link, and nothing of what it names
    assert not top.is_symlink() and kept.stat().st_mode & 0o777 == 0o750
    assert (kept / "file").read_text() == CONTENT


def test_more_objects_than_there_may_be_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer.Peer(theirs.fileno(), 1).send(b"R", [[], [], []])
        monkeypatch.setattr(peer, "MOST_OBJECTS", 3)
        with pytest.raises(peer.Garbage, match="too many objects"):
            peer.Peer(ours.fileno(), 2).receive()


def test_an_interpreter_that_does_not_start_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    with Sandbox(workers=1) as sandbox:
        for executable, words in (("/bin/false", "did not start"), ("", "does not know its own executable")):
            monkeypatch.setattr(sys, "executable", executable)
            with pytest.raises(RuntimeError, match=words):
                sandbox.run("x = 1", [])
        monkeypatch.undo()
        assert sandbox.run("x = 1", []).outcome == "passed"
    assert children() == before
