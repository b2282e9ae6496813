"""A study as a worker has it open: its context rebuilt from the config, its units measured by number.

Libraries are imported when the study is opened, after the environment of the process is what it shall be.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

from experiments.run.executors.tasks import Outcome, Spec, Task, outcome_of


class OpenedStudy:
    """The context and the units of a study, in a worker; `identity` is what its rows depend on."""

    def __init__(self, spec: Spec) -> None:
        """Open the study.

        Raises:
            InputError: as the study's `open` and `prepare`.
        """
        os.environ.setdefault("GOMP_SPINCOUNT", "50000")
        if spec.directory.is_dir():
            os.chdir(spec.directory)
        import torch

        from experiments.run.executors.identity import identity_of
        from experiments.run.run_folder import FolderView
        from experiments.run.session import mapped_weights

        torch.set_num_threads(spec.threads)
        self._study = import_module(spec.module).STUDY
        with mapped_weights():
            context = self._study.open(replace(spec.config, quiet=True))
        self.identity = identity_of(self._study, spec.config, context)
        self._folder = FolderView(spec.folder, spec.entry)
        self._context = self._study.prepare(context, self._folder)
        self._units = self._study.units(self._context)
        self._learned = {name: set(found) for name, found in self._context.learned.items()}
        self._folder.taken()  # a selection that the folder has not, each process makes again

    def measure(self, task: Task) -> Outcome:
        """The outcome of one unit."""
        counter = self._context.session.engine.forwards
        before = counter.ran, counter.saved
        outcome = outcome_of(task, lambda: self._rows(task))
        ran, saved = counter.ran - before[0], counter.saved - before[1]
        return replace(outcome, side=self._folder.taken(), learned=self._new(), forwards=(ran, saved))

    def _rows(self, task: Task) -> list[Any]:
        unit = self._units[task.place] if task.place < len(self._units) else None
        if unit is None or unit.row_ids != task.row_ids:
            raise RuntimeError(f"the worker has another unit at place {task.place}")
        rows = list(self._study.measure(self._context, unit))
        self._context.session.model.require_unchanged()
        return rows

    def _new(self) -> dict[str, dict[str, Any]]:
        found = {}
        for name, known in self._context.learned.items():
            seen = self._learned.setdefault(name, set())
            found[name] = {key: value for key, value in known.items() if key not in seen}
            seen.update(found[name])
        return {name: one for name, one in found.items() if one}
