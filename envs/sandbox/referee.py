"""The supervisor of one program: feeds it, watches it, ends it and all it started, and judges.

In a process namespace it is process 1: no signal from inside reaches it (it has no handlers, see `server`), and when
it ends the kernel ends the rest.
It executes nothing of the program's or the tests'. What it believes is the examiner's words, which come by a pipe
that is made after the program's process: the program never has an end of it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
import traceback
from typing import Any, NoReturn

from envs.sandbox import kernel, namespaces
from envs.sandbox.bootstrap import packed
from envs.sandbox.confine import Desk, Ends, become_examiner, become_program, out_of_the_way
from envs.sandbox.plan import Setting
from envs.sandbox.verdict import End, Seen, judge
from envs.sandbox.wire import read_to_end, write_all, write_in_time

START_S = 30.0  # for an interpreter to be ready, before the program's own clock starts
_TICK_MS = 5  # between looks at processes that the kernel gives no descriptor for
_LAST_WORDS_S = 1.0  # for a process that stopped answering to end, so that one learns how
_END_S = 10.0  # for killed processes to be gone
_PIECE = 1 << 18
_PIPE = 2 << 20  # bytes, more than a pipe holds


def referee(setting: Setting, folder: str, jobs: int, report: int) -> NoReturn:
    """Wait for one job on `jobs`, write one result to `report`, end. `folder`: the private one; "" makes its own."""
    answer: dict[str, Any] | None = None
    try:
        answer = _supervise(setting, folder, jobs)
    except BaseException:
        answer = {"error": traceback.format_exc()}
    finally:
        if answer is not None:
            write_all(report, json.dumps(answer).encode("ascii"))
        os._exit(0)


def _supervise(setting: Setting, folder: str, jobs: int) -> dict[str, Any] | None:
    if kernel.AVAILABLE:
        kernel.die_with_parent()
        kernel.close_to_others()
    os.close(0)
    os.close(1)
    if setting.plan.namespaces:
        namespaces.make_private_folder(setting.limits.file_mb, _owner(setting))
        folder = namespaces.FOLDER
    run = _Run(setting, folder)
    job = read_to_end(jobs)  # the interpreter starts meanwhile
    if not job:
        return None  # the server has no more work; what waits here ends with this process
    return run.judged(json.loads(job))


def _owner(setting: Setting) -> int:
    return namespaces.STRANGER if setting.plan.two_users else os.geteuid()


class _Run:
    """One program's process and its examiner, from their start to their end."""

    def __init__(self, setting: Setting, folder: str) -> None:
        self.setting = setting
        self.folder = folder
        self.seen = Seen(setting.limits.output_kb << 10)
        ours, theirs = socket.socketpair()
        job, self.feed = os.pipe()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        ends = Ends(*map(out_of_the_way, (job, out, err, theirs.detach(), null)))
        self.program = os.fork()
        if self.program == 0:
            become_program(setting, ends, folder)
        os.close(ends.job)
        os.close(ends.channel)
        self.left_for_tests = (ends.null, ends.out, ends.err, out_of_the_way(ours.detach()))
        self.examiner = 0

    def judged(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run the job; the result as the wire carries it, or {"error": …} when the interpreter did not start."""
        deadline = time.monotonic() + START_S
        try:
            write_in_time(self.feed, packed(self.setting, self.folder, job["program"]), START_S)
        except BrokenPipeError:  # it ended before it read: what it said as an error says why
            pass
        os.close(self.feed)
        handle = _handle(self.program)
        self._start_examiner(job, handle)
        handles = {self.program: handle, self.examiner: _handle(self.examiner)}
        started = self._watch(deadline, handles, until_ready=True)
        if not self.seen.ready or self.seen.failure:
            self._end()
            self._take_rest()
            return {"error": self.seen.complaint(started)}
        begin = time.monotonic()
        deadline = begin + self.setting.limits.wall_s
        in_time = self._watch(deadline, handles, until_ready=False)
        wall_s = time.monotonic() - begin
        if self.seen.gone:
            _wait_for(self.program, handle, min(deadline, time.monotonic() + _LAST_WORDS_S))
        ended = self._end()
        self._take_rest()
        failed = self.seen.failure
        return {"error": failed} if failed else judge(self.seen, job, in_time, ended, wall_s)

    def _start_examiner(self, job: dict[str, Any], handle: int | None) -> None:
        self.verdict, verdict = os.pipe()
        verdict = out_of_the_way(verdict)
        null, out, err, channel = self.left_for_tests
        self.examiner = os.fork()
        if self.examiner == 0:
            become_examiner(self.setting, Desk(null, out, err, channel, handle, verdict), self.folder, job)
        for end in (*self.left_for_tests, verdict):
            os.close(end)
        for descriptor in (self.verdict, self.out, self.err):
            os.set_blocking(descriptor, False)

    def _watch(self, deadline: float, handles: dict[int, int | None], until_ready: bool) -> bool:
        """Take what arrives until the run is decided, the examiner ended, or time is up (then False)."""
        poll = select.poll()
        for descriptor in (self.verdict, self.out, self.err):
            poll.register(descriptor, select.POLLIN)
        known = [handle for handle in handles.values() if handle is not None]
        for handle in known:
            poll.register(handle, select.POLLIN)
        lost = 0.0  # when the program's process was seen to have ended
        while not self.seen.decided and not (until_ready and self.seen.ready):
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                return False
            ticking = len(known) < len(handles) or lost
            for descriptor, _ in poll.poll(min(left_ms, _TICK_MS) if ticking else left_ms):
                if descriptor == handles[self.program]:
                    poll.unregister(descriptor)  # the examiner sees it too, and says what it means
                elif descriptor not in known and not self._take(descriptor):
                    poll.unregister(descriptor)  # closed at the other end
            if _has_ended(self.examiner):
                self._take_rest_of(self.verdict)
                return True
            if handles[self.program] is None and _has_ended(self.program):
                lost = lost or time.monotonic()
                self.seen.gone = self.seen.gone or time.monotonic() > lost + _LAST_WORDS_S
        return True

    def _take(self, descriptor: int) -> int:
        """One read; how many bytes it was, 0 when the other end is closed, -1 when nothing has come."""
        try:
            data = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return -1
        if descriptor == self.verdict:
            self.seen.words(data)
        else:
            self.seen.output(descriptor == self.out, data)
        return len(data)

    def _take_rest(self) -> None:
        """All that has arrived. All that wrote has been ended; of what got away, no more than a pipe holds."""
        for descriptor in (self.verdict, self.out, self.err):
            self._take_rest_of(descriptor)

    def _take_rest_of(self, descriptor: int) -> None:
        room = _PIPE
        while room > 0 and (size := self._take(descriptor)) > 0:
            room -= size

    def _end(self) -> list[End]:
        """End the program and its group, in a namespace everything, and the examiner; how the two ended."""
        both = (self.program, self.examiner)
        by_themselves = [_has_ended(pid) for pid in both]
        if self.setting.plan.namespaces:
            _signal_if_there(os.kill, -1)
        for pid in both:
            _signal_if_there(os.killpg, pid)
            _signal_if_there(os.kill, pid)  # not yet the leader of a group
        ended = []
        for pid, by_itself in zip(both, by_themselves, strict=True):
            if not _wait_for(pid, None, time.monotonic() + _END_S):
                raise RuntimeError("a process could not be ended")
            _, status, usage = os.wait4(pid, 0)
            used_up = usage.ru_utime + usage.ru_stime >= self.setting.limits.cpu_s
            ended.append(End(status if by_itself else 0, used_up))
        return ended


def _wait_for(pid: int, handle: int | None, deadline: float) -> bool:
    """Wait until a child has ended, or the deadline; whether it has. It stays to be waited for."""
    handle = _handle(pid) if handle is None else handle
    while not _has_ended(pid):
        left_ms = (deadline - time.monotonic()) * 1000
        if left_ms <= 0:
            return False
        if handle is None:
            time.sleep(_TICK_MS / 1000)
        else:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(left_ms)
    return True


def _handle(pid: int) -> int | None:
    try:
        return out_of_the_way(os.pidfd_open(pid))
    except (AttributeError, OSError):  # not Linux, or before 5.3
        return None


def _has_ended(pid: int) -> bool:
    """Whether the process ended; it stays to be waited for, so that its number belongs to nobody else."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_if_there(send: Any, pid: int) -> None:
    try:
        send(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone; macOS refuses to signal a zombie's group
        return
