"""One referee, started with its interpreter before there is a job: the start-up is over when the job comes."""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from typing import Any

from envs.sandbox import cleanup, kernel
from envs.sandbox.plan import Setting
from envs.sandbox.referee import START_S, referee
from envs.sandbox.wire import write_in_time

_TIDY_S = (
    0.5  # for removing a program's files before its result is known; what is left waits until there is time
)
_GRACE_S = 10.0  # beyond all limits, before a referee itself is taken for lost


class Ahead:
    """A started referee; `answer` or `end` it once. `base`: the parent of private folders, "" in namespaces.

    folder: its private folder, "" in namespaces.
    """

    def __init__(self, setting: Setting, base: str) -> None:
        self._setting = setting
        self.folder = tempfile.mkdtemp(dir=base) if base else ""
        jobs, self._feed = os.pipe()
        self._report, report = os.pipe()
        if setting.plan.namespaces:
            self._pid = kernel.clone(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        else:
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._feed)
            os.close(self._report)
            referee(setting, self.folder, jobs, report)
        os.close(jobs)
        os.close(report)

    def answer(self, job: dict[str, Any], watch: int) -> dict[str, Any] | None:
        """The referee's answer; None when it died, or when the descriptor `watch` (-1: none) had something to say.

        While a program runs nothing is due on the server's input: what it has to say is that it closed.
        """
        try:
            self._tell(job)
            said = self._listen(watch)
        finally:
            self.end()
        return json.loads(said) if said else None

    def end(self) -> None:
        """End the referee, which ends its program, and remove what the program left, as far as there is time."""
        self._close_feed()
        os.close(self._report)
        os.kill(
            self._pid, signal.SIGKILL
        )  # it has reported, or has nothing to report; it is not yet waited for
        os.waitpid(self._pid, 0)
        if not self._setting.plan.namespaces:
            cleanup.end_children()
            cleanup.remove_tree(self.folder, _TIDY_S)

    def _tell(self, job: dict[str, Any]) -> None:
        try:
            write_in_time(self._feed, json.dumps(job).encode("ascii"), START_S)
        except BrokenPipeError:
            return  # it died waiting, and will have reported nothing
        finally:
            self._close_feed()

    def _close_feed(self) -> None:
        if self._feed >= 0:
            os.close(self._feed)
            self._feed = -1

    def _listen(self, watch: int) -> bytes:
        deadline = time.monotonic() + START_S + self._setting.limits.wall_s + _GRACE_S
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        if watch >= 0:
            poll.register(watch, select.POLLIN)
        parts: list[bytes] = []
        while (left := deadline - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            if self._report in ready:
                part = os.read(self._report, 1 << 20)
                if not part:
                    return b"".join(parts)
                parts.append(part)
            elif ready:
                break
        return b""
