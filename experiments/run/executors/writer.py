"""Rows of units into the run folder, in the order in which a run of one process would have written them.

A unit that failed leaves its place in failures.jsonl (where its rows would have begun), so that a later run of it puts
them there. No place is needed, and none is written, before a later unit has rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.run.executors.tasks import Outcome, Row
from experiments.run.run_folder import RunFolder

FAILURES = "failures"


class UnitWriter:
    """Writes the outcomes of a study's units, which must come in order."""

    def __init__(self, folder: RunFolder, name: str, context: Any, units: Sequence[Any]) -> None:
        self._folder, self._name, self._context, self._units = folder, name, context, units
        self._places: Mapping[str, str | None] = {
            row["id"]: row["after"] for row in folder.rows(FAILURES).to_dict("records")
        }
        self._unnoted: list[Row] = []

    def write(self, outcome: Outcome) -> None:
        """Append the rows of a unit that the folder lacks, and what else measuring it has left elsewhere."""
        self.note_failures()
        folder, task = self._folder, outcome.task
        for name, rows in outcome.side.items():
            done = folder.done_ids(name)
            folder.append_all(name, [row for row in rows if row["id"] not in done])
        for name, found in outcome.learned.items():
            self._context.learned[name].update(found)
        counter = self._context.session.engine.forwards
        counter.ran += outcome.forwards[0]
        counter.saved += outcome.forwards[1]
        if not task.row_ids:
            return
        done = folder.done_ids(self._name)
        rows = [row for row in outcome.rows if row["id"] not in done]
        note = self._note_id(task.row_ids)
        if note in self._places:
            earlier = {name for unit in self._units[: task.place] for name in unit.row_ids}
            folder.insert_all(self._name, rows, self._places[note], earlier)
        else:
            folder.append_all(self._name, rows)

    def failed(self, outcome: Outcome) -> None:
        """Keep a failed unit's place."""
        note = self._note_id(outcome.task.row_ids)
        if outcome.failure is None or not outcome.task.row_ids or note in self._places:
            return
        error = outcome.failure.error
        self._unnoted.append(
            {
                "id": note,
                "study": self._folder.study,
                "unit": outcome.task.name,
                "why": f"{type(error).__name__}: {error}",
                "after": self._folder.last_id(self._name),
            }
        )

    def note_failures(self) -> None:
        """Write the places that are kept so far."""
        if self._unnoted:
            self._folder.append_all(FAILURES, self._unnoted)
            self._unnoted = []

    def _note_id(self, row_ids: Sequence[str]) -> str:
        return f"{self._folder.study}|{row_ids[0] if row_ids else ''}"
