"""What happens in the program's own interpreter: run the program, then its tests, and say how it went.

The program shares this interpreter with the code below, so the code below keeps its one secret, the nonce that makes
a verdict a pass, where no Python code can look: in `main` the nonce lies on the value stack of a suspended
expression, in no variable, no frame's `f_locals`, and nothing that `gc` tracks, while the program runs. The functions
that are called after the program ran are on that stack too, or are bound in default values, so that what the program
does to builtins, modules, globals and frames cannot change whether `all(...)` is true. What a failing program says of
its failure is its own word; it cannot say "passed".

This file imports nothing that a bare interpreter has not imported, `resource` apart: the program finds a fresh one.
"""

from __future__ import annotations

import os
import sys  # a program may replace what modules hold: what is used after it ran has names here
from _collections_abc import Callable
from os import _exit, read, write
from sys import exc_info

TYPE_CHECKING = False  # importing it from typing would double the interpreter's start
if TYPE_CHECKING:
    from typing import Any
else:
    Any = object

CHANNEL = 3
SOLUTION, TESTS, SETUP = "solution.py", "tests.py", "setup.py"
_FAILED_OR_PASSED = (b"failed", b"passed")
NONCE_BYTES = 32
_LONGEST_NAME, _LONGEST_MESSAGE = 200, 4000
_KEPT = 10  # frames at either end
_ENOMEM = 12
_RESERVE = 16 << 20  # bytes above the limit of memory, for the report of a failure
_STARVED = b"d12:memory_limit11:MemoryError0:"

Unit = tuple[bytes, Callable[..., object], tuple[Any, ...]]
Place = tuple[str, int, str]


def main(
    job: tuple[str, list[str], list[str]],
    memory: int,
    make_guard: Callable[..., Any],
    rules: tuple[Any, ...],
) -> None:
    """Run (program, setup, tests) under the guard, send what came of it over the channel, end the process.

    memory: bytes of address space the process may have from here on, 0 for no limit.
    """
    namespace = _prepare()
    _limit_memory(memory)
    report = _make_report()
    sys.addaudithook(make_guard(*rules))
    try:
        write(CHANNEL, b"ready")
        units = _compile_all(job, namespace, report)
        if units is not None:
            # Left to right: all but the outcome lies on the value stack before the program's first line runs.
            write(
                CHANNEL,
                read(CHANNEL, NONCE_BYTES) + _FAILED_OR_PASSED[all(map(_make_step(report), units))],
            )
    finally:
        _exit(0)


def _prepare() -> dict[str, Any]:
    """Close what was needed to start; the namespace of a module `solution` as the program finds it."""
    import builtins
    from _sitebuiltins import Quitter
    from os import environ
    from sys import argv

    os.dup2(4, 0)
    os.close(4)
    os.set_inheritable(CHANNEL, False)
    # Only this process has a say: a child finds nothing at the channel's number.
    os.register_at_fork(after_in_child=lambda dup2=os.dup2: dup2(0, CHANNEL, False))
    environ.clear()
    argv[:] = [SOLUTION]
    for name in ("exit", "quit"):  # as `site` would have set them
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))
    module = type(sys)("solution")
    sys.modules["solution"] = module
    module.__dict__["__file__"] = SOLUTION
    module.__dict__["__builtins__"] = builtins
    return module.__dict__


def _limit_memory(most: int) -> None:
    import resource

    ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most and ceiling in (resource.RLIM_INFINITY, max(ceiling, most + _RESERVE)):
        resource.setrlimit(resource.RLIMIT_AS, (most, most + _RESERVE))


def _compile_all(
    job: tuple[str, list[str], list[str]], namespace: dict[str, Any], report: Callable[..., None]
) -> tuple[Unit, ...] | None:
    """(note, function, arguments) in order; None when the program does not compile, which is then reported.

    Tests are the lines of one file, `tests.py`, one after another. A test that does not compile raises when its turn
    comes. The last unit empties the buffers.
    """
    program, setup, tests = job
    try:
        code = compile(program, SOLUTION, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError) as error:
        # ValueError: a null byte (SyntaxError from 3.12 on) or a lone surrogate, which no source file can hold.
        name = _name(type(error)) if issubclass(type(error), SyntaxError) else "SyntaxError"
        _send("syntax_error", name, _text(error), _place_of(error, SOLUTION))
        return None
    except (RecursionError, MemoryError) as error:  # nested too deeply to compile
        report(error)
        return None
    units: list[Unit] = [(b"", exec, (code, namespace))]
    units += [_compiled(b"", source, SETUP, namespace) for source in setup]
    above = 0
    for index, source in enumerate(tests):
        units.append(_compiled(b"t%d" % index, "\n" * above + source, TESTS, namespace))
        above += len(lines_of(source))
    units.append((b"", _flush, ()))
    return tuple(units)


def _compiled(note: bytes, source: str, file: str, namespace: dict[str, Any]) -> Unit:
    try:
        return note, exec, (compile(source, file, "exec", dont_inherit=True), namespace)
    except Exception as error:
        return note, _throw, (error,)


def _throw(error: Exception) -> None:
    raise error


def lines_of(source: str) -> list[str]:
    """Lines as Python counts them; a newline at the end begins no line."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if len(lines) > 1 and lines[-1] == "" else lines


def _make_step(report: Callable[..., None]) -> Callable[[Unit], bool]:
    """A function that runs one unit and is true when it returned; reachable from no frame once `map` holds it."""

    def step(unit: Unit, report: Callable[..., None] = report, write: Callable[..., int] = write) -> bool:
        note, function, arguments = unit
        if note:
            write(3, note)
        try:
            function(*arguments)
        except BaseException as error:  # whatever a program raises is its outcome
            report(error, note)
            return False
        return True

    return step


def _flush() -> None:
    for stream in _STREAMS:
        try:
            stream.flush()
        except Exception:  # closed or replaced by the program: there is nothing to keep
            continue


_STREAMS = (sys.stdout, sys.stderr)


def _make_report() -> Callable[..., None]:
    """A function that sends what an exception was; it first takes the reserve of memory, and stops signals."""
    import resource

    signals = __import__("_signal")  # not `signal`, which imports much that a bare interpreter has not

    def report(error: BaseException, note: bytes = b"") -> None:
        try:
            tell(error, note)
        except MemoryError:  # not even the reserve is enough
            write(CHANNEL, _STARVED)

    def tell(error: BaseException, note: bytes) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signals.pthread_sigmask(signals.SIG_BLOCK, signals.valid_signals())
        _flush()
        kind = type(error)
        places, innermost = _places()
        outcome = _outcome(error, kind, innermost == TESTS and note != b"")
        if note and not places:
            places = _place_of(error, TESTS)
        _send(outcome, _name(kind), _text(error), places)

    return report


def _outcome(error: BaseException, kind: type, raised_by_a_test: bool) -> str:
    if issubclass(kind, (SystemExit, KeyboardInterrupt)):
        return "exited"
    if issubclass(kind, MemoryError):
        return "memory_limit"
    if issubclass(kind, OSError) and OSError.__dict__["errno"].__get__(error) == _ENOMEM:
        return "memory_limit"
    return "test_failure" if raised_by_a_test and issubclass(kind, AssertionError) else "runtime_error"


def _places() -> tuple[list[Place], str]:
    """Frames of the exception being handled, outermost first, and the file of the innermost of all."""
    first: list[Any] = []
    last: list[Any] = []
    innermost = ""
    entry = exc_info()[2]
    while entry is not None:
        innermost = entry.tb_frame.f_code.co_filename
        if innermost in (SOLUTION, TESTS):
            if len(first) < _KEPT:
                first.append(entry)
            else:
                last.append(entry)
                if len(last) > _KEPT:
                    del last[0]
        entry = entry.tb_next
    # A line number is looked up when it is asked for: only those of the frames that are kept.
    kept = ((each.tb_frame.f_code, each.tb_lineno or 0) for each in first + last)
    return [(code.co_filename, line, code.co_name) for code, line in kept], innermost


def _place_of(error: BaseException, file: str) -> list[Place]:
    """The one place of an error that compiling raised, if it names one."""
    line = SyntaxError.__dict__["lineno"].__get__(error) if issubclass(type(error), SyntaxError) else None
    return [(file, line, "<module>")] if type(line) is int and line > 0 else []


def _name(kind: type) -> str:
    name = type.__dict__["__name__"].__get__(kind)  # a metaclass may have another idea of it
    return str.__getitem__(name, slice(0, _LONGEST_NAME))


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # its __str__ is the program's
        return "<exception str() failed>"
    return str.__getitem__(text, slice(0, _LONGEST_MESSAGE))


def _send(outcome: str, name: str, message: str, places: list[Place]) -> None:
    """One message: each field as its length, a colon, and its bytes."""
    fields = [outcome, name, message]
    for file, line, function in places:
        fields += [file, f"{line}", str.__getitem__(function, slice(0, _LONGEST_NAME))]
    encoded = [field.encode("utf-8", "backslashreplace") for field in fields]
    write(CHANNEL, b"d" + b"".join(b"%d:%b" % (len(each), each) for each in encoded))
