"""From the rows of an ablation study to its tables.

ablation.csv    every measure under every set               removed.csv     share of Δcopy that a set removes
controls.csv    each size against its controls              dose.csv        the whole dose curve against the controls'
offtarget.csv   what else changes, and whether within ±δ    strength.csv    how well strength controls match
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.ablated_sets import Ablated
from experiments.records import RunFolder
from mech.errors import InputError
from probes.changes import off_target_changes
from probes.dose import against_controls, dose_areas, dose_curve, share_removed
from probes.offtarget import LOSSES

_KEYS: Sequence[str] = ("set", "kind", "k", "item_id", "task_id")
ON_ITEMS: Sequence[str] = ("sem", "reference_logprob")
"""Off-target quantities of items, in nats; those of LOSSES are in nats a token."""


@dataclass(frozen=True)
class Tables:
    """The tables that a report shows."""

    ablation: pd.DataFrame
    removed: pd.DataFrame
    controls: pd.DataFrame
    dose: pd.DataFrame
    offtarget: pd.DataFrame


def long_values(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a measure; losses are means over their passages or sequences."""
    lines = [
        [*(row[name] for name in _KEYS), name, value]
        for row in rows.to_dict("records")
        for name, value in row["values"].items()
    ]
    return pd.DataFrame(lines, columns=[*_KEYS, "measure", "value"])


def long_off_target(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a quantity and unit: items, and passages or sequences, each of which is a cluster of its own."""
    long = long_values(rows)
    lines = [
        [row["set"], row["kind"], row["k"], f"{name}/{index}", f"{name}/{index}", name, value]
        for row in rows[rows["item_id"] == "prose"].to_dict("records")
        for name, values in _losses(row).items()
        for index, value in enumerate(values)
    ]
    units = pd.DataFrame(lines, columns=long.columns)
    return pd.concat([long[long["measure"].isin(ON_ITEMS)], units], ignore_index=True)


def _losses(row: dict[Any, Any]) -> dict[str, list[float]]:
    losses = row.get("losses")
    if not isinstance(losses, dict):
        raise InputError(
            f"The row '{row['id']}' of ablations.jsonl has no losses: restore or delete that line."
        )
    return losses


def write_tables(
    folder: RunFolder,
    sets: Sequence[Ablated],
    delta: float,
    delta_loss: float,
    rng_for: Callable[[str], np.random.Generator],
) -> Tables:
    """Derive every table from all rows of the folder."""
    rows = folder.rows("ablations")
    long = long_values(rows)
    removed = share_removed(long, rng_for)
    measured = [
        name for name in ON_ITEMS if name in set(long["measure"])
    ]  # no item may have a reference action
    deltas: Mapping[str, float] = {**dict.fromkeys(measured, delta), **dict.fromkeys(LOSSES, delta_loss)}
    tables = Tables(
        dose_curve(long, rng_for),
        removed,
        against_controls(removed),
        dose_areas(long, rng_for),
        off_target_changes(long_off_target(rows), deltas, rng_for),
    )
    for name, table in vars(tables).items():
        folder.write_table(name, table)
    matched = [(one.label, one.k, one.ratio, one.displaced) for one in sets if one.ratio is not None]
    if matched:
        columns = ["set", "k", "norm_ratio", "displaced"]
        folder.write_table("strength", pd.DataFrame(matched, columns=columns))
    return tables
