"""Checks and cells that every table shares: columns that are there and filled, complete items, the cells of a share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import Interval, cluster_means

DIRECTIONS = ("noise", "denoise")
SHARE_CELLS = ("share", "ci_lo", "ci_hi", "effect_nats", "n", "n_clusters", "flagged")
MIN_DELTA = 0.01  # nats; the engine is exact to 2e-4, which is then 2 % of a share


def share_cells(share: Interval, small: bool, effect: float) -> tuple[float | int | bool, ...]:
    """The cells of `SHARE_CELLS`: NaN in place of a share whose denominator is too small."""
    values = (math.nan,) * 3 if small else share.cells
    return (*values, effect, *share.counts, small or share.degenerate)


def by_item(rows: pd.DataFrame, columns: list[str], value: str) -> pd.DataFrame:
    """Items down (sorted), `columns` across (sorted), NaN where there is no row; `DataFrame.pivot` takes much longer.

    Raises:
        InputError: an item has two rows of the same columns.
    """
    down = rows["item_id"].tolist()
    across = list(zip(*(rows[name].tolist() for name in columns), strict=True))
    items, keys = ({key: place for place, key in enumerate(sorted(set(found)))} for found in (down, across))
    places = np.array([items[one] * len(keys) + keys[key] for one, key in zip(down, across, strict=True)])
    if len(np.unique(places)) < len(rows):
        require_once(rows, ["item_id", *columns], "A row")
    cells = np.full((len(items), len(keys)), np.nan)
    cells.flat[places] = rows[value].to_numpy(float)
    named = pd.MultiIndex.from_tuples(keys, names=columns)
    return pd.DataFrame(cells, pd.Index(list(items), name="item_id"), named, copy=False)


def rectangle(rows: pd.DataFrame, columns: list[str], value: str) -> pd.DataFrame:
    """As `by_item`, without an empty cell: only equal items can be compared.

    Raises:
        InputError: as `by_item`, or a cell is empty; the sentence names the first.
    """
    table = by_item(rows, columns, value)
    if np.isnan(table.to_numpy()).any():
        empty = table.isna()
        column = empty.any().idxmax()
        item = empty[column].idxmax()
        place = ", ".join(f"{name} {key}" for name, key in zip(columns, column, strict=True))
        raise InputError(f"Item {item} has no {value} for {place}, and others have: finish the run first.")
    return table


def item_columns(rows: pd.DataFrame, items: pd.Index) -> pd.DataFrame:
    """What belongs to the item and not to the patch (task_id, delta), in the order of `items`."""
    names = rows["item_id"].tolist()
    first = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
    return rows.iloc[[first[item] for item in items]].set_index("item_id")


def column_means(
    rows: pd.DataFrame, columns: list[str], value: str, rng: np.random.Generator, n_draws: int
) -> tuple[pd.Index, list[Interval]]:
    """The columns of `rectangle`, and the mean over items of each; clusters are tasks.

    Raises:
        InputError: as `rectangle`.
    """
    table = rectangle(rows, columns, value)
    tasks = item_columns(rows, table.index)["task_id"]
    return table.columns, cluster_means(table.to_numpy(float), tasks, rng, n_draws)


def require_columns(frame: pd.DataFrame, columns: Iterable[str], lacks: str = "The rows lack") -> None:
    """Raise InputError ("The rows lack the columns a, b.") unless all columns are there."""
    missing = [column for column in dict.fromkeys(columns) if column not in frame.columns]
    if missing:
        raise InputError(f"{lacks} the columns {', '.join(missing)}.")


def require_known(values: pd.Series, known: Collection[str], what: str, advice: str) -> None:
    """Raise InputError ("'x' is not WHAT: ADVICE") unless every value is among the known ones."""
    unknown = values[~values.isin(known)]
    if len(unknown):
        raise InputError(f"'{unknown.iloc[0]}' is not {what}: {advice}.")


def require_directions(rows: pd.DataFrame) -> None:
    """Raise InputError unless every direction is one of DIRECTIONS."""
    require_known(rows["direction"], DIRECTIONS, "a direction", "write noise or denoise")


def require(rows: pd.DataFrame, columns: Sequence[str], once: Sequence[str]) -> None:
    """Raise InputError unless all columns are there and filled, and no combination of `once` occurs twice."""
    require_columns(rows, columns)
    for column in columns:
        empty = rows[column].isna()
        if empty.any():
            raise InputError(f"The row of item {rows.loc[empty, 'item_id'].iloc[0]} has no {column}.")
    require_once(rows, once, "A row")


def require_once(rows: pd.DataFrame, once: Sequence[str], what: str) -> None:
    """Raise InputError, naming the first, where two rows have the same values in the columns `once`."""
    doubled = rows.duplicated(list(once))
    if doubled.any():
        first = rows.loc[doubled, list(once)].iloc[0]
        raise InputError(f"{what} occurs twice: {', '.join(f'{name} {key}' for name, key in first.items())}.")
