"""One unit after another, in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.run.executors.tasks import Outcome, Row, Task, outcome_of


@dataclass(frozen=True)
class Serial:
    """Measures `units` with the study's own context."""

    study: Any
    context: Any
    units: Sequence[Any]
    here = True
    label = ""

    @property
    def about(self) -> Mapping[str, Any]:
        """See `Executor.about`."""
        return {}

    def run(self, todo: Sequence[Task]) -> Generator[Outcome]:
        """See `Executor.run`."""
        for task in todo:
            yield outcome_of(task, partial(self._rows, task))

    def _rows(self, task: Task) -> Iterable[Row]:
        return self.study.measure(self.context, self.units[task.place])
