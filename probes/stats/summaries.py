"""The check of a table that is read as a summary: ours, or a published one with the same columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.frame_checks import require_columns
from probes.stats.layout import UNABLATED

KEYS = ("model", "env", "measure")
NUMBERS = ("mean", "ci_lo", "ci_hi", "n", "n_clusters")


def check_summary(table: pd.DataFrame, what: str, more_keys: Sequence[str] = ()) -> pd.DataFrame:
    """The table with text keys and numbers as numbers, if it is a summary; intervals may be empty.

    Args:
        table: a summary, or another table with its columns from `model` to `n_clusters`.
        what: the table's name in a refusal: "The summary".
        more_keys: columns that tell lines of one model, environment and measure apart. Of a summary with ablation
            arms only the lines of the unablated model are read, unless `ablation` is among these.

    Returns:
        The keys, mean, ci_lo, ci_hi, n and n_clusters.

    Raises:
        InputError: a column is missing, a key, a mean or a count is empty, a number is not one (or infinite), or a
            line occurs twice.
    """
    keys, columns = [*KEYS, *more_keys], [*KEYS, *more_keys, *NUMBERS]
    require_columns(table, columns, f"{what} lacks")
    if "ablation" in table.columns and "ablation" not in keys:
        table = table[table["ablation"].fillna(UNABLATED) == UNABLATED]
    checked = table[columns].reset_index(drop=True)
    for column in columns:
        empty = checked[column].isna()
        if empty.any() and not column.startswith("ci_"):
            raise InputError(f"{what} has no {column} on line {empty.idxmax() + 1} of its rows.")
        if column in keys:
            checked[column] = checked[column].astype(str)
            continue
        found = pd.to_numeric(checked[column], errors="coerce").astype(float)
        wrong = (found.isna() & ~empty) | np.isinf(found)
        if wrong.any():
            raise InputError(
                f"{what} has a {column} that is no number on line {wrong.idxmax() + 1} of its rows."
            )
        checked[column] = found
    doubled = checked.duplicated(keys)
    if doubled.any():
        raise InputError(f"{what} has a line twice: {', '.join(checked.loc[doubled.idxmax(), keys])}.")
    return checked.astype({"n": int, "n_clusters": int})
