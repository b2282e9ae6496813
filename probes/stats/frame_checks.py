"""Checks and cells that every table of effects shares: filled columns, complete items, the cells of a share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import Interval

DIRECTIONS = ("noise", "denoise")
SHARE_CELLS = ("share", "ci_lo", "ci_hi", "effect_nats", "n", "n_clusters", "flagged")
MIN_DELTA = 0.01  # nats; the engine is exact to 2e-4, which is then 2 % of a share


def share_cells(share: Interval, small: bool, effect: float) -> tuple[float | int | bool, ...]:
    """The cells of `SHARE_CELLS`: NaN in place of a share whose denominator is too small."""
    values = (math.nan,) * 3 if small else (share.mean, share.lo, share.hi)
    return (*values, effect, share.n, share.n_clusters, small or share.degenerate)


def rectangle(rows: pd.DataFrame, columns: list[str], value: str) -> pd.DataFrame:
    """Items down (sorted), `columns` across (sorted); only equal items can be compared.

    Raises:
        InputError: a cell is empty; the sentence names the first.
    """
    table = rows.pivot(index="item_id", columns=columns, values=value).sort_index(axis=1)
    empty = table.isna()
    if empty.to_numpy().any():
        column = empty.any().idxmax()
        item = empty[column].idxmax()
        place = ", ".join(f"{name} {key}" for name, key in zip(columns, column, strict=True))
        raise InputError(f"Item {item} has no {value} for {place}, and others have: finish the run first.")
    return table


def item_columns(rows: pd.DataFrame, items: pd.Index) -> pd.DataFrame:
    """What belongs to the item and not to the patch (task_id, delta), in the order of `items`."""
    return rows.drop_duplicates("item_id").set_index("item_id").loc[items]


def require(rows: pd.DataFrame, columns: Sequence[str], once: Sequence[str]) -> None:
    """Raise InputError unless all columns are there and filled, and no combination of `once` stands twice."""
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        raise InputError(f"The rows lack the columns {', '.join(missing)}.")
    for column in columns:
        if rows[column].isna().any():
            raise InputError(
                f"The row of item {rows.loc[rows[column].isna(), 'item_id'].iloc[0]} has no {column}."
            )
    doubled = rows.duplicated(list(once))
    if doubled.any():
        first = rows.loc[doubled, list(once)].iloc[0]
        raise InputError(f"A row stands twice: {', '.join(f'{name} {key}' for name, key in first.items())}.")
