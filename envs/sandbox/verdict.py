"""From what was seen of a program to its outcome.

What a program sends is hostile: it is parsed strictly, bounded, and can never amount to a pass without the nonce.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from envs.sandbox.inside import SOLUTION, TESTS, lines_of
from envs.sandbox.results import OUTCOMES

_LONGEST_LINE = 500
_MOST_FRAMES = 20
Detail = tuple[str, str, str, list[tuple[str, int, str]]]


class Seen:
    """What arrived so far. `amount` grows with every byte, so that a reader can tell whether there was more."""

    def __init__(self, nonce: bytes, most: int) -> None:
        self._pass = nonce + b"passed"
        self._most = most
        self.ready = False
        self.passed = False
        self.n_passed = 0
        self.detail: Detail | None = None
        self.text = {True: b"", False: b""}  # standard output, standard error
        self.over = False
        self.amount = 0
        self._complaint = ""

    @property
    def decided(self) -> bool:
        """Whether nothing that still arrives would change the outcome."""
        return self.passed or self.detail is not None or self.over or bool(self._complaint)

    def output(self, standard: bool, data: bytes) -> None:
        """Bytes of standard output (True) or error."""
        self.amount += len(data)
        room = self._most - len(self.text[standard])
        self.text[standard] += data[:room]
        self.over = self.over or len(data) > room

    def message(self, data: bytes) -> None:
        """One message of the channel."""
        self.amount += len(data)
        if not self.ready:
            if data == b"ready":
                self.ready = True
            elif data[:1] == b"!":
                self._complaint = data[1:].decode("utf-8", "replace")
        elif data == self._pass:
            self.passed = True
        elif data[:1] == b"t" and data[1:].isdigit() and len(data) < 10:
            self.n_passed = int(data[1:])
        elif data[:1] == b"d" and self.detail is None:
            self.detail = _detail(data[1:])

    def complaint(self, in_time: bool) -> str:
        """Why the interpreter did not start, as far as it said."""
        said = self._complaint or self.text[False].decode("utf-8", "replace").strip()
        return said or ("the interpreter ended at once" if in_time else "the interpreter took too long")


def _detail(data: bytes) -> Detail | None:
    """(outcome, class, message, places), or None for what the code inside would not have sent."""
    fields = []
    while data:
        size, colon, rest = data.partition(b":")
        if not colon or not size.isdigit() or len(size) > 6 or int(size) > len(rest):
            return None
        fields.append(rest[: int(size)].decode("utf-8", "backslashreplace"))
        data = rest[int(size) :]
    if len(fields) < 3 or len(fields) % 3 or len(fields) > 3 * (_MOST_FRAMES + 1):
        return None
    outcome, name, message = fields[:3]
    places = []
    for file, line, function in zip(*(fields[start::3] for start in (3, 4, 5)), strict=True):
        if file not in (SOLUTION, TESTS) or not (line.isascii() and line.isdigit() and len(line) < 10):
            return None
        places.append((file, int(line), function))
    return None if outcome not in OUTCOMES or outcome == "passed" else (outcome, name, message, places)


def judge(
    seen: Seen, job: dict[str, Any], in_time: bool, status: int, cpu_used_up: bool, wall_s: float
) -> dict[str, Any]:
    """The result as the wire carries it. status: the process's wait status, 0 when it had to be ended."""
    outcome, name, message, places = _outcome(seen, in_time, status, cpu_used_up)
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


def _outcome(seen: Seen, in_time: bool, status: int, cpu_used_up: bool) -> Detail:
    nothing: list[tuple[str, int, str]] = []
    if seen.over:
        return "output_limit", "", "", nothing
    if seen.passed:
        return "passed", "", "", nothing
    if seen.detail is not None:
        return seen.detail
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if not in_time or ended_by == signal.SIGXCPU or (ended_by == signal.SIGKILL and cpu_used_up):
        return "timeout", "", "", nothing
    return ("killed" if ended_by else "exited"), "", "", nothing


def _source(lines: list[str], line: int) -> str:
    text = lines[line - 1].strip()[:_LONGEST_LINE] if 0 < line <= len(lines) else ""
    return text.encode("utf-8", "backslashreplace").decode()
