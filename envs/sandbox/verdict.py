"""From what was seen of a program to its outcome."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from envs.sandbox.peer import SOLUTION, TESTS

_LONGEST_LINE = 500
Detail = tuple[str, str, str, list[tuple[str, int, str]]]


@dataclass(frozen=True)
class End:
    """How a process ended: its wait status, 0 when it had to be ended; whether its processor time was used up."""

    status: int
    cpu_used_up: bool


class Seen:
    """What arrived so far: the examiner's words, and the output of the program and of the tests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._words = b""
        self.ready = False
        self.passed = False
        self.gone = False  # the program's process did not answer the examiner any more
        self.n_passed = 0
        self.detail: Detail | None = None
        self.failure = ""  # the examiner itself failed
        self.text = {True: b"", False: b""}  # standard output, standard error
        self.over = False

    @property
    def decided(self) -> bool:
        """Whether nothing that still arrives would change the outcome."""
        return self.passed or self.gone or self.over or self.detail is not None or self.failure != ""

    def output(self, standard: bool, data: bytes) -> None:
        """Bytes of standard output (True) or error."""
        room = self._most - len(self.text[standard])
        self.text[standard] += data[:room]
        self.over = self.over or len(data) > room

    def words(self, data: bytes) -> None:
        """Bytes of the examiner, which is trusted; see `examiner.examine`."""
        *lines, self._words = (self._words + data).split(b"\n")
        for line in lines:
            word, *rest = json.loads(line)
            if word == "ready":
                self.ready = True
            elif word == "test":
                self.n_passed = rest[0]
            elif word == "passed":
                self.passed = True
            elif word == "gone":
                self.gone = True
            elif word == "error":
                self.failure = rest[0]
            else:
                outcome, name, message, places = rest
                self.detail = (
                    outcome,
                    name,
                    message,
                    [(file, at, function) for file, at, function in places],
                )

    def complaint(self, in_time: bool) -> str:
        """Why the interpreter did not start, as far as it said."""
        said = self.failure or self.text[False].decode("utf-8", "replace").strip()
        return said or ("the interpreter ended at once" if in_time else "the interpreter took too long")


def judge(seen: Seen, job: dict[str, Any], in_time: bool, ended: list[End], wall_s: float) -> dict[str, Any]:
    """The result as the wire carries it. ended: how the program's process and the examiner ended."""
    outcome, name, message, places = _outcome(seen, in_time, ended)
    n_tests = len(job["tests"])
    lines = {
        SOLUTION: lines_of(job["program"]),
        TESTS: [row for test in job["tests"] for row in lines_of(test)],
    }
    return {
        "outcome": outcome,
        "n_passed": n_tests if seen.passed else min(seen.n_passed, max(0, n_tests - 1)),
        "exception": name,
        "message": message,
        "frames": [(file, line, function, _source(lines[file], line)) for file, line, function in places],
        "stdout": seen.text[True].decode("utf-8", "backslashreplace"),
        "stderr": seen.text[False].decode("utf-8", "backslashreplace"),
        "truncated": seen.over,
        "wall_s": wall_s,
    }


def _outcome(seen: Seen, in_time: bool, ended: list[End]) -> Detail:
    nothing: list[tuple[str, int, str]] = []
    if seen.over:
        return "output_limit", "", "", nothing
    if seen.passed:
        return "passed", "", "", nothing
    if seen.detail is not None:
        return seen.detail
    signals = [(os.WTERMSIG(each.status) if os.WIFSIGNALED(each.status) else 0, each) for each in ended]
    used_up = any(by == signal.SIGXCPU or (by == signal.SIGKILL and each.cpu_used_up) for by, each in signals)
    if used_up or not in_time:
        return "timeout", "", "", nothing
    return ("killed" if any(by for by, _ in signals) else "exited"), "", "", nothing


def _source(lines: list[str], line: int) -> str:
    text = lines[line - 1].strip()[:_LONGEST_LINE] if 0 < line <= len(lines) else ""
    return text.encode("utf-8", "backslashreplace").decode()


def lines_of(source: str) -> list[str]:
    """Lines as Python counts them; a newline at the end begins no line."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if len(lines) > 1 and lines[-1] == "" else lines
