"""G, Δcopy and Δsem of decision points in one call: does the error, or the recorded call, make a repeat likelier?

    G = L(pre) − L(fail)       negative: after the failure the failed call is more likely than before
    Δcopy = L(neut) − L(pre)   what the record of the call does, answered by a neutral acknowledgement
    Δsem = L(fail) − L(neut)   what the error adds; −G = Δcopy + Δsem

L is the summed log-probability (nats) of the failed call. All measures there are: `probes.measures.measures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mech.engine.engine import Engine
from mech.errors import InputError
from mech.results import Result, axes
from probes.items.item import Item
from probes.measures.measures import measure
from probes.prompts.wording import Wording, load_wording
from probes.scoring.score import score_item
from probes.stats.bootstrap import cluster_bootstrap

PARTS = ("G", "copy", "sem")


@dataclass(frozen=True, repr=False)
class Decomposition(Result):
    """G, Δcopy and Δsem of items, in nats.

    Attributes:
        items: one row an item, columns item_id, task_id and PARTS.
    """

    items: pd.DataFrame

    @property
    def headline(self) -> str:
        """Means over items."""
        means = self.items[list(PARTS)].mean()
        parts = f"G {means['G']:.2f}, Δcopy {means['copy']:.2f}, Δsem {means['sem']:.2f}"
        return f"Means over {len(self.items)} items: {parts} nats"

    def to_dataframe(self) -> pd.DataFrame:
        """One row an item, columns item_id, task_id, G, copy and sem."""
        return self.items.copy()

    def summary(self, rng: np.random.Generator) -> pd.DataFrame:
        """Mean of each part with its 95 % interval and p; tasks are the clusters (`probes.stats.bootstrap`)."""
        lines = []
        for name in PARTS:
            found = cluster_bootstrap(self.items[name], self.items["task_id"], rng)
            lines.append((name, *found.cells, found.p, *found.counts))
        return pd.DataFrame(lines, columns=["measure", "mean", "ci_lo", "ci_hi", "p", "n", "n_clusters"])

    def plot(self, ax: Any = None) -> Any:
        """Δcopy and Δsem of every item, side by side, by −G; nats."""
        ax = axes(ax)
        rows = self.items.sort_values("G", ignore_index=True)
        for shift, name, label in ((-0.2, "copy", "Δcopy"), (0.2, "sem", "Δsem")):
            ax.bar(rows.index + shift, rows[name], width=0.4, label=label)
        ax.plot(rows.index, -rows["G"], "k_", label="−G")
        ax.set_xlabel("item")
        ax.set_ylabel("nats")
        ax.legend()
        return ax


def decompose(engine: Engine, items: Sequence[Item], wording: Wording | None = None) -> Decomposition:
    """Score every item's failed call under pre, neut and fail.

    Args:
        engine: its model scores.
        items: decision points with different ids.
        wording: how a failure is written; None takes the default wording.

    Raises:
        InputError: no items, an id occurs twice, or a template that refuses the transcript.
        FloatingPointError: a logit is not finite.
    """
    if not items:
        raise InputError("There are no items to decompose.")
    wording = wording or load_wording()
    rows = [
        row
        for item in items
        for row in score_item(engine, item, ("pre", "neut", "fail"), wording, ["failed"])
    ]
    measured = measure(pd.DataFrame(rows))
    wide = measured.pivot(index=["item_id", "task_id"], columns="measure", values="value")
    order = [(item.item_id, item.task_id) for item in items]
    return Decomposition(wide.loc[order, list(PARTS)].reset_index().rename_axis(columns=None))
