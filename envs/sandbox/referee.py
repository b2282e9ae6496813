"""The supervisor of one program: feeds it, watches it, ends it and all it started, and judges.

In a process namespace it is process 1: no signal from inside reaches it, and when it ends the kernel ends the rest.
It executes nothing of the program's. A pass is one message, the nonce and "passed", which only the code that ran
every test can send; anything else that arrives is at most a description of a failure.
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

from envs.sandbox import inside, kernel, namespaces
from envs.sandbox.bootstrap import packed
from envs.sandbox.confine import Ends, become_program, out_of_the_way
from envs.sandbox.plan import Setting
from envs.sandbox.verdict import Seen, judge
from envs.sandbox.wire import read_to_end, write_all

START_S = 30.0  # for an interpreter to be ready, before the program's own clock starts
_TICK_MS = 5  # between looks at a process that the kernel gives no descriptor for
_MESSAGE = 1 << 18


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
    """One program's process, from its start to its end."""

    def __init__(self, setting: Setting, folder: str) -> None:
        self.setting = setting
        self.folder = folder
        self.nonce = os.urandom(inside.NONCE_BYTES)
        self.seen = Seen(self.nonce, setting.limits.output_kb << 10)
        self.channel, channel = _message_pair()
        job, self.feed = os.pipe()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        ends = Ends(*map(out_of_the_way, (job, out, err, channel, null)))
        self.pid = os.fork()
        if self.pid == 0:
            become_program(setting, ends, folder)
        for end in ends.all():
            os.close(end)
        for descriptor in (self.out, self.err, self.channel):
            os.set_blocking(descriptor, False)
        os.write(self.channel, self.nonce)

    def judged(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run the job; the result as the wire carries it, or {"error": …} when the interpreter did not start."""
        try:
            write_all(self.feed, packed(self.setting, self.folder, job))
        except BrokenPipeError:  # it ended before it read: what it said on the channel says why
            pass
        os.close(self.feed)
        started = self._watch(START_S, until_ready=True)
        if not self.seen.ready:
            self._end()
            return {"error": self.seen.complaint(started)}
        begin = time.monotonic()
        in_time = self._watch(self.setting.limits.wall_s, until_ready=False)
        wall_s = time.monotonic() - begin
        status, cpu_s = self._end()
        self._take_all()
        return judge(self.seen, job, in_time, status, cpu_s >= self.setting.limits.cpu_s, wall_s)

    def _watch(self, seconds: float, until_ready: bool) -> bool:
        """Take what arrives until the run is decided, its process ended, or time is up (then False)."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        for descriptor in (self.channel, self.out, self.err):
            poll.register(descriptor, select.POLLIN)
        handle = _handle(self.pid)
        if handle is not None:
            poll.register(handle, select.POLLIN)
        try:
            while not self.seen.decided and not (until_ready and self.seen.ready):
                left_ms = (deadline - time.monotonic()) * 1000
                if left_ms <= 0:
                    return False
                for descriptor, _ in poll.poll(left_ms if handle is not None else min(left_ms, _TICK_MS)):
                    if descriptor != handle and not self._take(descriptor):
                        poll.unregister(descriptor)  # closed at the other end
                if _has_ended(self.pid):
                    self._take_all()
                    return True
            return True
        finally:
            if handle is not None:
                os.close(handle)

    def _take(self, descriptor: int) -> bool:
        """One read; False when the other end is closed."""
        try:
            data = os.read(descriptor, _MESSAGE)
        except BlockingIOError:
            return True
        except ConnectionResetError:  # ended with the nonce unread
            return False
        if descriptor == self.channel:
            self.seen.message(data)
        else:
            self.seen.output(descriptor == self.out, data)
        return bool(data)

    def _take_all(self) -> None:
        """All that has arrived; nobody writes any more."""
        for descriptor in (self.channel, self.out, self.err):
            before = -1
            while before != self.seen.amount:
                before = self.seen.amount
                self._take(descriptor)

    def _end(self) -> tuple[int, float]:
        """End the program and its group, in a namespace everything; its wait status and processor seconds."""
        ended_itself = _has_ended(self.pid)
        if self.setting.plan.namespaces:
            _signal_if_there(os.kill, -1)
        else:
            _signal_if_there(os.killpg, self.pid)
            _signal_if_there(os.kill, self.pid)  # not yet the leader of a group
        _, status, usage = os.wait4(self.pid, 0)
        return (status if ended_itself else 0), usage.ru_utime + usage.ru_stime


def _message_pair() -> tuple[int, int]:
    """Two descriptors that keep the borders of messages."""
    kind = socket.SOCK_SEQPACKET if os.uname().sysname == "Linux" else socket.SOCK_DGRAM
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
    return ours.detach(), theirs.detach()


def _handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
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
