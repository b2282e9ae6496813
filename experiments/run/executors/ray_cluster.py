"""Workers that are actors of a Ray cluster: the model is loaded once an actor, numbers of units go out, rows come back.

An actor has one unit at a time, and its rows are taken out of Ray's object store as soon as they are there: the store
never holds more than one unit's rows a worker. Ray restarts nothing by itself, so that a unit is run again by one rule,
that of the pool; a new actor goes where the cluster has room.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

from experiments.run.executors.pool import Done, Event, Lost, Ready, Refused
from experiments.run.executors.tasks import Failure, Spec, Task
from experiments.run.executors.worker import OpenedStudy
from mech.errors import InputError

PLACED_WITHIN = 120.0
"""Seconds without any worker after which the cluster is said to have no room."""
ANSWERS_WITHIN = 10.0
"""Seconds that the address of a cluster is given to answer."""
LOCAL = "local"
STORE_BYTES = 200_000_000
"""Object store of a cluster that is started here."""


class Actor:
    """What runs in an actor: nothing that a worker has open is made before the actor is placed."""

    def placed(self) -> None:
        """Answer as soon as the cluster has found room."""

    def open(self, worker: int, spec: Spec) -> Ready | Refused:
        """Open the study."""
        try:
            self._opened = OpenedStudy(spec)
        except Exception as error:  # raised by the process that runs the study
            return Refused(worker, Failure.of(error))
        return Ready(worker, self._opened.identity)

    def measure(self, worker: int, task: Task) -> Done:
        """Measure a unit."""
        return Done(worker, self._opened.measure(task))


class RayCluster:
    """A crew of actors."""

    kind = "ray"

    def __init__(self, spec: Spec, address: str, gpu: bool = False) -> None:
        """Nothing is connected yet.

        Args:
            spec: of the study.
            address: of a cluster (auto, HOST:PORT), or local to start one here; unused where this process is connected.
            gpu: an actor takes a GPU of its own.
        """
        self._spec, self._address, self._gpu = spec, address, gpu
        self._ray: Any = None
        self._actor: Any = None
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._unplaced: dict[Any, int] = {}
        self._waited_since = time.monotonic()
        self._connected = False

    def room(self) -> int:
        """See `Crew.room`: connects to the cluster.

        Raises:
            InputError: Ray is not installed, or there is no cluster.
        """
        self._ray = ray = _ray()
        if not ray.is_initialized():
            self._connect()
        self._actor = ray.remote(
            num_cpus=self._spec.threads,
            num_gpus=1 if self._gpu else 0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )(Actor)
        return max(1, int(ray.cluster_resources().get("CPU", 1)) // self._spec.threads)

    def _connect(self) -> None:
        local: dict[str, Any] = {}
        if self._address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            local = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            _require_answer(self._address)
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (OSError, ValueError, RuntimeError) as error:  # of the first kind is a ConnectionError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"There is no Ray cluster at '{self._address}' ({reason}): start one with `ray start --head`, or give "
                f"--address {LOCAL}."
            ) from error
        self._connected = True

    def hire(self, worker: int) -> None:
        """See `Crew.hire`."""
        actor = self._actor.remote()
        self._actors[worker] = actor
        self._unplaced[actor.placed.remote()] = worker
        self._pending[actor.open.remote(worker, self._spec)] = worker

    def give(self, worker: int, task: Task) -> None:
        """See `Crew.give`."""
        self._pending[self._actors[worker].measure.remote(worker, task)] = worker

    def events(self) -> list[Event]:
        """See `Crew.events`.

        Raises:
            InputError: the cluster has had no room for a single worker for PLACED_WITHIN seconds.
        """
        while True:
            asked = [*self._pending, *self._unplaced]
            ready, _ = self._ray.wait(asked, num_returns=1, timeout=1.0)
            for reference in ready:
                if reference in self._pending:
                    return [self._event(reference)]
                del self._unplaced[reference]  # where the actor died first, its other answer says so
            self._require_room()

    def dismiss(self) -> None:
        """See `Crew.dismiss`."""
        self._pending.clear()
        self._unplaced.clear()
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        if self._connected:
            self._ray.shutdown()

    def _event(self, reference: Any) -> Event:
        worker = self._pending.pop(reference)
        try:
            event: Event = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._actors.pop(worker, None)
            self._unplaced = {one: of for one, of in self._unplaced.items() if of != worker}
            return Lost(worker, type(error).__name__)
        return event

    def _require_room(self) -> None:
        """Raise InputError where no actor has had a place for a long time."""
        if len(self._unplaced) < len(self._actors):
            self._waited_since = time.monotonic()
        elif time.monotonic() - self._waited_since > PLACED_WITHIN:
            raise InputError(
                f"The Ray cluster has no room for a worker of {self._spec.threads} CPUs: wait until it has, or give "
                "fewer --threads."
            )


def _require_answer(address: str) -> None:
    """Raise OSError where nothing answers at HOST:PORT: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=ANSWERS_WITHIN).close()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("--executor ray needs Ray: pip install 'backfire[ray]'.") from error
    return ray
