"""Which metric a study's report shows, of tables that hold all of them."""

from __future__ import annotations

import pandas as pd

from experiments.schema import TABLES
from mech.errors import InputError


def of_metric(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric, without the column that says so.

    Raises:
        InputError: the metric is defined for none of the items.
    """
    rows = table[table["metric"] == metric]
    if rows.empty and len(table):
        raise InputError(
            f"There is no {metric} of these items: none has a reference action or a distractor to compare with."
        )
    return rows.drop(columns="metric")


def ordered(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with its columns as `experiments.schema` has them, further ones behind."""
    known = [column for column in TABLES[name] if column in table.columns]
    return table[[*known, *(column for column in table.columns if column not in known)]]
