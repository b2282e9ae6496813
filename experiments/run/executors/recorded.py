"""No worker at all: the rows of units that shards of the same study have measured."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.run.executors.tasks import Outcome, Row, Task
from experiments.run.run_json import read_run
from mech.errors import InputError


@dataclass(frozen=True)
class Recorded:
    """Hands out rows by their ids.

    Attributes:
        rows: id → row.
        folder: the run folder that is written, which must have been claimed under the settings of the shards.
        entry: the study's name in run.json.
        config_hash: of these settings.
        about: what run.json says of the shards.
    """

    rows: Mapping[str, Row]
    folder: Path
    entry: str
    config_hash: str
    about: Mapping[str, Any]
    here = False
    label = ""

    def run(self, todo: Sequence[Task]) -> Generator[Outcome]:
        """See `Executor.run`.

        Raises:
            InputError: the settings are others than those of the shards, or a row is missing.
        """
        claimed = read_run(self.folder)["studies"][self.entry]
        if claimed["config_hash"] != self.config_hash:
            raise InputError(
                f"'{self.entry}' has other settings now than when its shards were measured (a file, the model or the "
                "code has changed): measure the shards again."
            )
        for task in todo:
            missing = [name for name in task.row_ids if name not in self.rows]
            if missing:
                raise InputError(
                    f"No shard of '{self.entry}' has the row '{missing[0]}': run the shards again."
                )
            yield Outcome(task, [self.rows[name] for name in task.row_ids])
