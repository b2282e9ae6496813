"""Measures split by what the items are: operator, error family, template, step, and whether the error quotes a×.

    by              level
    operator        how the action was made wrong
    error_type      the family of the error it met
    template        the kind of task
    step            how many successful steps precede it
    quotes_source   whether the error text quotes a line of the submission (true | false)

A cell is one level of one split, of one measure, model and environment. Cells of fewer than three items are left out
and listed by `small_cells`; a cell of one task has a mean and no interval (NaN). Splits are read one at a time: an
operator and its error family name nearly the same items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RATE, RngFactory, cluster_bootstrap
from probes.stats.families import null_is_zero
from probes.stats.frame_checks import require, require_columns

SPLITS = {
    "operator": "operator",
    "error_type": "error_type",
    "template": "template",
    "step": "step_index",
    "quotes_source": "quotes_source",
}
"""Name of a split → the attribute of an item that it reads."""
MEASURES = ("G", "copy", "sem", "p_repeat_fail")
MIN_ITEMS = 3  # a mean of fewer says no more than its items
_LACK = "The attributes of the items lack"

_CELL = ("model", "env", "by", "level", "measure")
_MEASURED = ("model", "env", "item_id", "task_id", "measure", "value")


def breakdown(
    measures: pd.DataFrame,
    attributes: pd.DataFrame,
    rng_for: RngFactory,
    measures_wanted: Sequence[str] = MEASURES,
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """Mean and interval of each measure in each level of each split; clusters are tasks.

    Args:
        measures: long frame with model, env, item_id, task_id, measure, value.
        attributes: one line an item with env, item_id and the attributes of `SPLITS` (and model, if items differ
            between models); see `item_attributes`. An empty attribute puts the item in no level of that split.
        rng_for: gives the stream of `breakdown/MODEL/ENV/BY/LEVEL/MEASURE`.
        measures_wanted: those to split, as far as they were measured.
        n_draws: bootstrap draws.

    Returns:
        model, env, by, level, measure, mean, ci_lo, ci_hi, n, n_clusters, splits in the order of `SPLITS`; every cell
        of at least `MIN_ITEMS` items. Levels are text.

    Raises:
        InputError: a column is missing, a value or an item occurs twice, or a measured item has no attributes.
    """
    lines = []
    for key, cell in _cells(measures, attributes, measures_wanted):
        if len(cell) >= MIN_ITEMS:
            rng = rng_for("breakdown/" + "/".join(key))
            bounds = None if null_is_zero(key[-1]) else RATE
            found = cluster_bootstrap(cell["value"], cell["task_id"], rng, n_draws, bounds=bounds)
            lines.append({**dict(zip(_CELL, key, strict=True)), **found.columns()})
    return pd.DataFrame(lines)


def small_cells(
    measures: pd.DataFrame, attributes: pd.DataFrame, measures_wanted: Sequence[str] = MEASURES
) -> pd.DataFrame:
    """The cells that `breakdown` leaves out, with their number of items: model, env, by, level, measure, n.

    Raises:
        InputError: as `breakdown`.
    """
    cells = _cells(measures, attributes, measures_wanted)
    small = [(key, len(cell)) for key, cell in cells if len(cell) < MIN_ITEMS]
    return pd.DataFrame([{**dict(zip(_CELL, key, strict=True)), "n": n} for key, n in small])


def item_attributes(rows: pd.DataFrame) -> pd.DataFrame:
    """One line an item out of score rows, each of which has its item's attributes.

    Raises:
        InputError: a column is missing, or an item has two values of an attribute.
    """
    keys = ["model", "env", "item_id"]
    require_columns(rows, [*keys, *SPLITS.values()], _LACK)
    attributes = rows[[*keys, *SPLITS.values()]].drop_duplicates(ignore_index=True)
    mixed = attributes.duplicated(keys)
    if mixed.any():
        raise InputError(f"Item {attributes.loc[mixed.idxmax(), 'item_id']} has two values of an attribute.")
    return attributes


def _cells(
    measures: pd.DataFrame, attributes: pd.DataFrame, wanted: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """(model, env, by, level, measure) → the lines of that cell, in the order of the table."""
    require(measures, _MEASURED, ["model", "env", "item_id", "measure"])
    joined = _with_attributes(measures[measures["measure"].isin(wanted)], attributes)
    for (model, env), group in joined.groupby(["model", "env"], sort=True):
        for by, attribute in SPLITS.items():
            for level, part in group.groupby(attribute, sort=True):
                for measure, cell in part.groupby("measure", sort=True):
                    yield (str(model), str(env), by, _level_text(level), str(measure)), cell


def _with_attributes(measures: pd.DataFrame, attributes: pd.DataFrame) -> pd.DataFrame:
    """Each measured value beside its item's attributes."""
    keys = [name for name in ("model", "env", "item_id") if name != "model" or name in attributes.columns]
    require_columns(attributes, [*keys, *SPLITS.values()], _LACK)
    require(attributes, keys, keys)
    joined = measures.merge(
        attributes[[*keys, *SPLITS.values()]],
        on=keys,
        how="left",
        validate="many_to_one",
        indicator="_found",
    )
    unknown = joined["_found"] != "both"
    if unknown.any():
        raise InputError(f"Item {joined.loc[unknown.idxmax(), 'item_id']} is measured and has no attributes.")
    return joined.drop(columns="_found")


def _level_text(level: Any) -> str:
    """A level as a table writes it: true and false in small letters, whole numbers without a point."""
    if isinstance(level, (bool, np.bool_)):
        return str(bool(level)).lower()
    return str(int(level)) if isinstance(level, (float, np.floating)) else str(level)
