"""What is sent to a worker and what comes back: plain values that can be pickled, never a model.

A worker opens the study from its config. What decides its rows is compared with the same of the process that writes
them (`Spec.identity`), so that a machine with other weights, items, library versions or code measures nothing.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

Row = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """Everything from which a worker opens a study.

    Attributes:
        module: the importable module whose STUDY is the study.
        config: its config.
        folder: the run folder, absolute; a worker reads it where it can and writes nothing.
        entry: the run's name in run.json.
        directory: where the command was given: relative paths of the config begin there.
        threads: threads that a worker computes with.
        identity: what must be equal in a worker, by name.
    """

    module: str
    config: Any
    folder: Path
    entry: str
    directory: Path
    threads: int
    identity: Mapping[str, str]


@dataclass(frozen=True)
class Task:
    """A unit by its place among the units of the study, the ids of its rows, and what a report calls it."""

    place: int
    row_ids: tuple[str, ...]
    name: str


class WhereItFailed(Exception):
    """The traceback, as text, of an exception that was raised elsewhere: the cause of that exception here."""


@dataclass(frozen=True)
class Failure:
    """Why a unit has no rows; `trace` is the traceback as text, empty where the worker died."""

    error: Exception
    trace: str = ""

    def again(self) -> NoReturn:
        """Raise the error, with the traceback as its cause."""
        raise self.error from (WhereItFailed(f"\n{self.trace}") if self.trace else None)

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """An exception as it can be sent; one that cannot be pickled becomes a RuntimeError of the same text."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # whatever an exception's own constructor raises
            return cls(RuntimeError(f"{type(error).__name__}: {error}"), trace)
        return cls(error.with_traceback(None), trace)


@dataclass(frozen=True)
class Outcome:
    """What measuring a unit gave.

    Attributes:
        task: the unit.
        rows: its rows; none where it failed.
        side: file → rows that measuring left in other files of the folder.
        learned: what measuring has added to `ItemContext.learned`.
        forwards: how many were run and how many saved by a cache, where that was counted elsewhere.
        failure: why there are no rows.
    """

    task: Task
    rows: Sequence[Row] = ()
    side: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    learned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forwards: tuple[int, int] = (0, 0)
    failure: Failure | None = None


class Executor(Protocol):
    """Something that measures units."""

    @property
    def here(self) -> bool:
        """Whether units are measured with the context of this process, so that what they leave in it is there."""
        ...

    @property
    def label(self) -> str:
        """What a progress bar says of the workers."""
        ...

    @property
    def about(self) -> Mapping[str, Any]:
        """What run.json says of them."""
        ...

    def run(self, todo: Sequence[Task]) -> Generator[Outcome]:
        """The outcomes, in the order of the tasks; closing the iterator ends every worker.

        Raises:
            InputError: a worker cannot open the study, or opens another one.
        """
        ...


def outcome_of(task: Task, measure: Callable[[], Iterable[Row]]) -> Outcome:
    """The rows of a unit, or its failure; an interrupt ends the run."""
    try:
        rows = list(measure())
        if {row["id"] for row in rows} != set(task.row_ids):
            raise RuntimeError(f"other rows were measured than {task.row_ids}")
    except Exception as error:  # reported with the unit's name, and raised where it is no unit's own
        return Outcome(task, failure=Failure.of(error))
    return Outcome(task, rows)
