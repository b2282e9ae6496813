"""Units to workers and outcomes back in order, whatever becomes of the workers.

A worker has one unit at a time. No unit is given out that is more than AHEAD units a worker before the next one to be
written, so that what waits for its turn is bounded. The unit of a worker that died is given out again, to whichever
worker is free, ATTEMPTS times at most; then it has failed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.run.executors.identity import differences
from experiments.run.executors.tasks import Failure, Outcome, Spec, Task
from mech.errors import InputError

logger = logging.getLogger(__name__)

AHEAD = 8
"""Units a worker that may be measured before the next one to be written is."""
ATTEMPTS = 3
"""Workers that a unit may cost."""


@dataclass(frozen=True)
class Ready:
    """A worker has opened a study of this identity."""

    worker: int
    identity: Mapping[str, str]


@dataclass(frozen=True)
class Refused:
    """A worker cannot open the study."""

    worker: int
    failure: Failure


@dataclass(frozen=True)
class Done:
    """A worker has measured its unit."""

    worker: int
    outcome: Outcome


@dataclass(frozen=True)
class Lost:
    """A worker is gone."""

    worker: int
    why: str


Event = Ready | Refused | Done | Lost


class Crew(Protocol):
    """Workers of one kind, by number."""

    kind: str

    def room(self) -> int:
        """How many workers there is room for; asked once, first."""
        ...

    def hire(self, worker: int) -> None:
        """Start a worker, which then opens the study."""
        ...

    def give(self, worker: int, task: Task) -> None:
        """Let a worker that is ready and free measure a unit."""
        ...

    def events(self) -> list[Event]:
        """What has happened; waits until something has."""
        ...

    def dismiss(self) -> None:
        """End every worker."""
        ...


class Pool:
    """Runs units on a crew of `size` workers (None: as many as there is room for); see `tasks.Executor`."""

    here = False

    def __init__(self, crew: Crew, spec: Spec, size: int | None) -> None:
        self._crew, self._spec, self._asked, self._size = crew, spec, size, 0
        self._hired = self._lost = self._unopened = 0
        self._busy: dict[int, int] = {}  # worker → place in the todo list
        self._free: list[int] = []

    @property
    def label(self) -> str:
        """How many workers have the study open, and how many were lost."""
        lost = f", {self._lost} lost" if self._lost else ""
        return f"{len(self._busy) + len(self._free)} workers{lost}"

    @property
    def about(self) -> Mapping[str, Any]:
        """What run.json says of them."""
        return {
            "executor": self._crew.kind,
            "workers": self._size,
            "threads": self._spec.threads,
            "workers_lost": self._lost,
        }

    def run(self, todo: Sequence[Task]) -> Generator[Outcome]:
        """See `Executor.run`."""
        waiting = deque(range(len(todo)))
        finished: dict[int, Outcome] = {}
        lost: Counter[int] = Counter()
        following = 0
        try:
            room = self._crew.room()
            self._size = min(self._asked or room, len(todo))
            for _ in range(self._size):
                self._hire()
            while following < len(todo):
                while self._free and waiting and waiting[0] < following + AHEAD * self._size:
                    worker, place = self._free.pop(0), waiting.popleft()
                    self._busy[worker] = place
                    self._crew.give(worker, todo[place])
                for event in self._crew.events():
                    self._take(event, todo, waiting, finished, lost)
                while following in finished:
                    yield finished.pop(following)
                    following += 1
        finally:
            self._crew.dismiss()

    def _take(
        self,
        event: Event,
        todo: Sequence[Task],
        waiting: deque[int],
        finished: dict[int, Outcome],
        lost: Counter[int],
    ) -> None:
        if isinstance(event, Ready):
            self._require_same(event)
            self._unopened = 0
            self._free.append(event.worker)
        elif isinstance(event, Refused):
            event.failure.again()
        elif isinstance(event, Done):
            finished[self._busy.pop(event.worker)] = event.outcome
            self._free.append(event.worker)
        else:
            self._replace(event, todo, waiting, finished, lost)

    def _replace(
        self,
        event: Lost,
        todo: Sequence[Task],
        waiting: deque[int],
        finished: dict[int, Outcome],
        lost: Counter[int],
    ) -> None:
        """Give the unit of a lost worker back, or up; start another worker while there is work for one."""
        self._lost += 1
        if event.worker in self._free:
            self._free.remove(event.worker)
        elif event.worker in self._busy:
            place = self._busy.pop(event.worker)
            lost[place] += 1
            name = todo[place].name
            if lost[place] < ATTEMPTS:
                waiting.appendleft(place)
                logger.warning("A worker was lost (%s): %s is measured again.", event.why, name)
            else:
                why = f"{ATTEMPTS} workers were lost while they measured it ({event.why})"
                finished[place] = Outcome(todo[place], failure=Failure(RuntimeError(why)))
        else:
            self._unopened += 1
            if self._unopened >= ATTEMPTS * self._size:
                raise InputError(
                    f"{self._unopened} workers in turn were lost while they opened the study ({event.why}): give "
                    "fewer --workers, if memory is short."
                )
        opening = self._hired - self._lost - len(self._busy) - len(self._free)
        if len(waiting) > len(self._free) + opening:
            self._hire()

    def _hire(self) -> None:
        self._hired += 1
        self._crew.hire(self._hired)

    def _require_same(self, event: Ready) -> None:
        others = differences(self._spec.identity, event.identity)
        if others:
            raise InputError(
                f"A worker has not what this process has: {', '.join(others)}. Rows of the two would not be of one run."
            )
