"""What came of one run, as frozen values.

| outcome | when |
|---|---|
| `passed` | the program ran, then every test ran without an exception |
| `test_failure` | a test statement itself raised AssertionError |
| `runtime_error` | any other exception, in the program or in a test (RecursionError too) |
| `syntax_error` | the program does not compile |
| `timeout` | the wall clock or the processor limit was reached |
| `memory_limit` | MemoryError, or an OSError that says "cannot allocate memory", ended it |
| `output_limit` | it wrote more than the limit to standard output or error, whatever else it did |
| `exited` | SystemExit, KeyboardInterrupt, `os._exit` or the like came before the verdict |
| `unverifiable` | a test would take the program's word for its verdict, see `examiner`; or a value cannot be sent |
| `killed` | a signal ended it, from itself or from the kernel (a crash of the interpreter) |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OUTCOMES = (
    "passed",
    "test_failure",
    "runtime_error",
    "syntax_error",
    "timeout",
    "memory_limit",
    "output_limit",
    "exited",
    "killed",
    "unverifiable",
)


@dataclass(frozen=True)
class Frame:
    """One place of a traceback: `function` is `<module>` at top level, `source` the line without indentation."""

    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True)
class Isolation:
    """How the program was held, a word each, strongest first.

    network: `namespace` (an empty network), `seccomp` (no sockets), `none` (not isolated: only a guard inside the
    interpreter). files: `namespace` (sees the interpreter, read-only, and its own folder), `landlock` (may open no
    others), `none` (only a guard inside the interpreter). processes: `namespace` (sees none but its own, all end with
    it), `seccomp` (may start none and signal none), `limits` (resource limits, its process group, and the guard).
    """

    network: str
    files: str
    processes: str


@dataclass(frozen=True)
class ExecResult:
    """The verdict on one program.

    outcome: one of OUTCOMES. n_passed of n_tests: tests that ran through; the first that did not ends the run.
    exception, message: class name and str() of what ended it, "" where nothing was raised. frames: outermost first,
    those in `solution.py` and `tests.py` only; of a deep recursion the first and last ten. stdout, stderr: bytes that
    are not UTF-8 are written as backslash escapes. truncated: whether either was cut. wall_s: seconds.
    """

    outcome: str
    n_passed: int
    n_tests: int
    exception: str
    message: str
    frames: tuple[Frame, ...]
    stdout: str
    stderr: str
    truncated: bool
    wall_s: float
    isolation: Isolation


def from_wire(values: Mapping[str, Any], n_tests: int, isolation: Isolation) -> ExecResult:
    """The result that a server's answer stands for."""
    return ExecResult(
        outcome=values["outcome"],
        n_passed=values["n_passed"],
        n_tests=n_tests,
        exception=values["exception"],
        message=values["message"],
        frames=tuple(Frame(*each) for each in values["frames"]),
        stdout=values["stdout"],
        stderr=values["stderr"],
        truncated=values["truncated"],
        wall_s=values["wall_s"],
        isolation=isolation,
    )


def killed_with_its_server(n_tests: int, wall_s: float, isolation: Isolation) -> ExecResult:
    """The result of a program whose server died twice while it ran: nothing is known but that."""
    return ExecResult("killed", 0, n_tests, "", "", (), "", "", False, wall_s, isolation)
