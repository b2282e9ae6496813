"""The sandbox as its users see it."""

from __future__ import annotations

import queue
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from envs.errors import InputError
from envs.sandbox.limits import DEFAULT_LIMITS, Limits
from envs.sandbox.plan import MECHANISMS
from envs.sandbox.results import ExecResult, Isolation
from envs.sandbox.worker import Worker


class Sandbox:
    """Runs untrusted programs, `workers` at a time; a context manager. Usable from several threads.

    `allow`: the kernel's means it may use where they exist, of `namespace`, `seccomp`, `landlock`; all by default.
    Raises InputError for arguments that make no sense, RuntimeError when this machine cannot start an interpreter.
    """

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, workers: int = 2, *, allow: Sequence[str] = MECHANISMS
    ) -> None:
        if workers < 1:
            raise InputError(f"a sandbox needs at least one worker, not {workers}")
        if isinstance(allow, str) or not set(allow) <= set(MECHANISMS):
            raise InputError(f"allow takes a list of {', '.join(MECHANISMS)}, not {allow!r}")
        self._workers = tuple(Worker(limits, tuple(allow)) for _ in range(workers))
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._finalizer = weakref.finalize(self, _close_all, self._workers)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def isolation(self) -> Isolation:
        """How this machine holds programs; starts a server if none runs."""
        worker = self._idle.get()
        try:
            return worker.isolation()
        finally:
            self._idle.put(worker)

    def run(
        self, program: str, tests: Sequence[str], setup: Sequence[str] = (), names: Sequence[str] = ()
    ) -> ExecResult:
        """Run the program, then `setup`, then the tests, up to the first that fails.

        program: source of `solution.py`, run as a module that is not `__main__`. setup: statements for the tests, such
        as imports; modules that they import the program has too. tests: each a statement or several; together the
        lines of `tests.py`. They run apart from the program, whose names they use as their own; what they bind the
        program does not see. names: what the tests take from the program even where Python itself has such a name
        (`sum`); other names of Python's mean Python's, whatever the program defines.
        """
        _check(program, tests, setup, names)
        worker = self._idle.get()
        try:
            return worker.run(program, list(tests), list(setup), list(names))
        finally:
            self._idle.put(worker)

    def run_many(self, jobs: Sequence[tuple[str, Sequence[str]]]) -> list[ExecResult]:
        """The results of (program, tests) pairs in their order, `workers` of them at a time."""
        for program, tests in jobs:
            _check(program, tests)
        with ThreadPoolExecutor(len(self._workers)) as pool:
            return list(pool.map(lambda job: self.run(*job), jobs))

    def close(self) -> None:
        """End every process and remove every folder of this sandbox; a later run would start afresh."""
        _close_all(self._workers)


def _check(program: str, tests: Sequence[str], setup: Sequence[str] = (), names: Sequence[str] = ()) -> None:
    if not isinstance(program, str):
        raise InputError(f"a program is a string, not {type(program).__name__}")
    for name, lines in (("tests", tests), ("setup", setup), ("names", names)):
        if isinstance(lines, str) or not all(isinstance(line, str) for line in lines):
            raise InputError(f"{name} are a list of strings, not one string or anything else")


def _close_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.close()
