"""From what came of a program to the text it is answered with: the interpreter's output, in a form of our own.

The text is the same for every Python from 3.10 to 3.13. Left out of a traceback:

    carets, suggestions ("Did you mean"), paths and memory addresses; frames outside the program and its tests
    the frames that list, set and dict comprehensions had before 3.12; their line becomes the caller's
    of a recursion, all that follows once a frame occurs for the third time

Messages that were reworded between those versions are brought to one form by the table `_REWORDED`: to the newer
one, or to the one that says less where it cannot be made from the older one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from envs.base import Failure
from envs.sandbox import ExecResult, Frame

FAMILIES = ("test_failure", "runtime_error", "syntax_error", "timeout")
_REPEATS = 3  # as often as the interpreter itself writes a repeated line
_OUTERMOST = 10  # frames of a deep recursion that the sandbox keeps from its beginning
_LONGEST_MESSAGE = 300  # characters
_QUOTED = 8  # a line of at most so many characters (`else:`) stands in a text by chance

# (exception, pattern, replacement); an empty name stands for any. Versions: those that write the pattern.
_REWORDED: tuple[tuple[str, str, str], ...] = (
    ("ValueError", r"^(min|max)\(\) arg is an empty sequence$", r"\1() iterable argument is empty"),  # < 3.12
    ("ValueError", r"^Exceeds the limit \(4300\) ", "Exceeds the limit (4300 digits) "),  # < 3.11
    ("ZeroDivisionError", r"^integer modulo by zero$", "integer division or modulo by zero"),  # >= 3.11
    ("ZeroDivisionError", r"^float modulo$", "float modulo by zero"),  # < 3.13
    ("RecursionError", r"^(maximum recursion depth exceeded).*$", r"\1"),  # mostly < 3.12
    (
        "UnboundLocalError",
        r"^local variable ('.+') referenced before assignment$",
        r"cannot access local variable \1 where it is not associated with a value",
    ),  # < 3.11
    (
        "NameError",
        r"^free variable ('.+') referenced before assignment in enclosing scope$",
        r"cannot access free variable \1 where it is not associated with a value in enclosing scope",
    ),  # < 3.11
    ("TypeError", r"^(string indices must be integers), not '.+'$", r"\1"),  # >= 3.11
    ("TypeError", r"^type '.+' is not subscriptable$", "'type' object is not subscriptable"),  # >= 3.11
    ("TypeError", r"^(expected string or bytes-like object), got '.+'$", r"\1"),  # >= 3.11
    ("TypeError", r"^\w+\(\) argument 1 (must be str, not \w+)$", r"\1"),  # str.find, >= 3.13
    (
        "TypeError",
        r"^('.+') is an invalid keyword argument for (\w+\(\))$",
        r"\2 got an unexpected keyword argument \1",
    ),  # < 3.13
    (
        "TypeError",
        r"^(\w+)\(\) takes (at least|at most) (\d+) (?:positional )?(arguments?) \((\d+) given\)$",
        r"\1 expected \2 \3 \4, got \5",
    ),  # either wording, by function and version
    ("", r" \(solution\.py, line \d+\)$", ""),  # the place stands above it
    ("AttributeError", r" and no __dict__ for setting new attributes$", ""),  # >= 3.13
    ("ImportError", r" \([^()]*\)$", ""),  # the file of the module
    ("", r"\.? (?:Did you mean|Maybe you meant|Perhaps you forgot|Did you forget)\b.*\?$", ""),
    ("", r"\bat 0x[0-9A-Fa-f]+", "at 0x..."),
)

_TIMEOUT = {
    "terse": "Timed out.",
    "standard": "The program ran for too long and was stopped.",
    "verbose": "The program ran for too long and was stopped before the tests could finish.",
}
_STOPPED = {
    "memory_limit": "The program asked for too much memory and was stopped.",
    "output_limit": "The program wrote too much output and was stopped.",
    "exited": "The program ended itself before the tests could finish.",
    "killed": "The program died before the tests could finish.",
    "unverifiable": "The tests could not tell whether the program is right.",
}


def success(n_tests: int) -> str:
    """What a program that passes is answered with."""
    return f"The program passes {'its test' if n_tests == 1 else f'all of its {n_tests} tests'}."


def failure(result: ExecResult, tests: Sequence[str]) -> Failure:
    """What a program that does not pass is answered with; the family is the result's outcome.

    Outcomes outside FAMILIES (too much memory, too much output, an exit, a death) have one sentence each.
    """
    if result.outcome == "passed":
        raise AssertionError("a program that passes has no failure")
    if result.outcome == "timeout":
        return Failure(result.outcome, **_TIMEOUT)
    if result.outcome in _STOPPED:
        return Failure(result.outcome, *[_STOPPED[result.outcome]] * 3)
    passed = f"{result.n_passed} of {result.n_tests} tests passed"
    last = exception_line(result)
    if result.outcome == "test_failure":
        standard = _tidy([*tests[result.n_passed].split("\n"), last])
        return Failure(
            result.outcome, "A test fails.", standard, f"{passed}, and then one failed:\n{standard}"
        )
    ran = result.outcome == "runtime_error"  # what does not compile has a place, but is in no function
    frames = [line for frame in _shown(result) for line in _frame_lines(frame, ran)]
    standard = _tidy([*frames, last])
    header = ["Traceback (most recent call last):"] if ran else []
    whole = _tidy([*header, *(f"  {line}" for line in frames), last])
    return Failure(result.outcome, last, standard, f"{passed}, and then:\n{whole}")


def exception_line(result: ExecResult) -> str:
    """The last line of a traceback, in the wording that all versions share."""
    name, message = result.exception, result.message.strip()
    if name == "error" and " at position " in message:
        name = "PatternError"  # its name from 3.13 on
    for exception, pattern, replacement in _REWORDED:
        if exception in ("", name):
            message = re.sub(pattern, replacement, message)
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}..."
    return _tidy([f"{name}: {message}" if message else name])


def quotes_source(text: str, program: str) -> bool:
    """Whether some line of the program, longer than 8 characters without its indentation, is in the text."""
    lines = (line.strip() for line in program.split("\n"))
    return any(len(line) > _QUOTED and line in text for line in lines)


def _shown(result: ExecResult) -> list[Frame]:
    """The frames of the text: comprehensions merged into their callers, recursions cut off."""
    frames: list[Frame] = []
    for frame in result.frames:
        if frame.function in ("<listcomp>", "<dictcomp>", "<setcomp>") and frames:
            frames[-1] = replace(frame, function=frames[-1].function)
        else:
            frames.append(frame)
    if result.exception != "RecursionError":
        return frames
    # Where a recursion ends differs between versions: its outermost frames are shown, as far as they are known.
    outermost = frames[:_OUTERMOST]
    for at, frame in enumerate(outermost):
        if outermost[: at + 1].count(frame) == _REPEATS:
            return outermost[: at + 1]
    return outermost


def _frame_lines(frame: Frame, with_function: bool) -> list[str]:
    place = f'File "{frame.file}", line {frame.line}'
    lines = [f"{place}, in {frame.function}" if with_function else place]
    return [*lines, f"  {frame.source.strip()}"] if frame.source.strip() else lines


def _tidy(lines: Iterable[str]) -> str:
    """The lines as one text without trailing blanks."""
    return "\n".join(line.rstrip() for text in lines for line in text.split("\n")).strip("\n")
