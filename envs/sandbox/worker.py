"""The client's end of one server process: start it, ask it, start it again when it died."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import envs
from envs.sandbox import cleanup, wire
from envs.sandbox.limits import Limits
from envs.sandbox.results import ExecResult, Isolation, from_wire, killed_with_its_server

_START_S = 120.0  # rehearsals included
_ANSWER_S = 60.0  # beyond the wall limit: the interpreter's start, and the server's own patience
_END_S = 5.0
_ROOT = str(Path(envs.__file__).resolve().parent.parent)
_SCRIPT = f"import sys; sys.path.append({_ROOT!r}); from envs.sandbox.server import main; main()"


class Worker:
    """One server, started when first asked. Not for two threads at a time."""

    def __init__(self, limits: Limits, allow: tuple[str, ...]) -> None:
        self._limits = limits
        self._allow = allow
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._isolation = Isolation("none", "none", "none")
        self._folder = ""

    def isolation(self) -> Isolation:
        """How this machine holds programs; starts the server."""
        if self._process is None:
            self._start()
        return self._isolation

    def run(self, program: str, tests: list[str], setup: list[str], names: list[str]) -> ExecResult:
        """One result. A program whose server dies twice is `killed`; RuntimeError when no program can be run."""
        begin = time.monotonic()
        for _ in range(2):
            answer = self._ask({"program": program, "tests": tests, "setup": setup, "names": names})
            if answer is not None and "error" in answer:
                self.close()
                raise RuntimeError(f"the sandbox could not run a program: {answer['error']}")
            if answer is not None and "lost" not in answer:
                return from_wire(answer, len(tests), self._isolation)
        return killed_with_its_server(len(tests), time.monotonic() - begin, self._isolation)

    def close(self) -> None:
        """End the server and whatever runs in it; remove its folder. May be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert self._channel is not None and process.stderr is not None
        self._channel.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # what it runs asked the kernel to end with it
            process.wait()
        process.stderr.close()
        folder, self._folder = self._folder, ""
        if folder:
            _remove(folder)

    def _start(self) -> None:
        if not sys.executable:
            raise RuntimeError(
                "this Python does not know its own executable, which the sandbox needs to start"
            )
        # A socket: unlike a pipe, nobody of the same user can open its ends once more, by way of /proc.
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-X", "utf8", "-c", _SCRIPT],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,  # empty but for an interpreter that does not start
                bufsize=0,
                env={"PYTHONHASHSEED": "0"},  # the tests run in a fork of it
                cwd="/",
                start_new_session=True,  # an interrupt at the keyboard is for the client, which closes in its own time
            )
        start = {
            "limits": dataclasses.asdict(self._limits),
            "allow": self._allow,
            "folder": os.path.realpath(tempfile.gettempdir()),
        }
        hello = self._exchange(start, _START_S)
        if hello is None or "error" in hello:
            why = self._last_words() if hello is None else hello["error"]
            self._kill()
            raise RuntimeError(f"the sandbox did not start: {why}")
        self._isolation = Isolation(**hello["isolation"])
        self._folder = hello["folder"]

    def _last_words(self) -> str:
        process = self._process
        assert process is not None and process.stderr is not None
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its server does not answer"
        return (
            os.read(process.stderr.fileno(), 1 << 16).decode("utf-8", "replace").strip() or "its server died"
        )

    def _ask(self, job: dict[str, Any]) -> dict[str, Any] | None:
        if self._process is None:
            self._start()
        try:
            answer = self._exchange(job, self._limits.wall_s + _ANSWER_S)
        except BaseException:  # interrupted: its answer would be taken for the next one's
            self._kill()
            raise
        if answer is None:
            self._kill()
        return answer

    def _kill(self) -> None:
        """End a server that does not answer, and its referee, which share a process group."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def _exchange(self, message: dict[str, Any], seconds: float) -> Any | None:
        """Send one message and receive one; None when the server died or took too long."""
        assert self._channel is not None
        try:
            wire.send(self._channel.fileno(), message)
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            return wire.receive(self._channel.fileno()) if poll.poll(seconds * 1000) else None
        except ConnectionError:
            return None


def _remove(folder: str) -> None:
    """Remove a server's folder; where the server was killed, its last program may take a moment to die too."""
    deadline = time.monotonic() + _END_S
    while True:
        try:
            cleanup.remove_tree(folder)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
