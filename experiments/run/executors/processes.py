"""Workers that are processes of this machine: started afresh, so that nothing of the parent's state is in them.

They map the weights from the checkpoint's file, whose pages the machine has in memory once for all of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from experiments.run.executors.pool import Done, Event, Lost, Ready, Refused
from experiments.run.executors.tasks import Failure, Spec, Task
from experiments.run.executors.worker import OpenedStudy

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PATIENCE = 5.0
"""Seconds that a process is given to end before it is killed."""


class Processes:
    """A crew of processes."""

    kind = "processes"

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._crew: dict[int, tuple[SpawnProcess, Connection]] = {}

    def room(self) -> int:
        """See `Crew.room`."""
        return cpus()

    def hire(self, worker: int) -> None:
        """See `Crew.hire`."""
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=serve, args=(worker, self._spec, there), name=f"worker-{worker}", daemon=True
        )
        with _environment(dict.fromkeys(_THREADS, str(self._spec.threads))):
            process.start()
        there.close()
        self._crew[worker] = process, here

    def give(self, worker: int, task: Task) -> None:
        """See `Crew.give`; a worker that has died in the meantime is an event."""
        try:
            self._crew[worker][1].send(task)
        except OSError:
            return  # its end of the pipe is closed, and `events` finds that too

    def events(self) -> list[Event]:
        """See `Crew.events`."""
        ready = wait([pipe for _, pipe in self._crew.values()])
        found: list[Event] = []
        for worker, (_, pipe) in list(self._crew.items()):
            if pipe not in ready:
                continue
            try:
                found.append(pipe.recv())
            except (EOFError, OSError):
                found.append(Lost(worker, self._buried(worker)))
        return found

    def dismiss(self) -> None:
        """See `Crew.dismiss`."""
        for process, pipe in self._crew.values():
            process.terminate()
            pipe.close()
        for process, _ in self._crew.values():
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
        self._crew.clear()

    def _buried(self, worker: int) -> str:
        process, pipe = self._crew.pop(worker)
        pipe.close()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def serve(worker: int, spec: Spec, pipe: Connection) -> None:
    """What a worker does: open the study, measure what it is given, and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends its workers
    try:
        try:
            opened = OpenedStudy(spec)
        except Exception as error:  # raised in the parent
            pipe.send(Refused(worker, Failure.of(error)))
            return
        pipe.send(Ready(worker, opened.identity))
        while True:
            pipe.send(Done(worker, opened.measure(pipe.recv())))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def cpus() -> int:
    """CPUs that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These variables in the environment of what is started in the body."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
