"""Which metric a study's report shows, of tables that hold all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from mech.errors import InputError
from probes.items.item import Item


def require_metric(items: Sequence[Item], metric: str) -> None:
    """Raise InputError where the metric is defined for none of the items, before anything is run."""
    if metric != "logprob" and all(len(item.candidates()) == 1 for item in items):
        raise InputError(_undefined(metric))


def of_metric(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric, without the column that says so.

    Raises:
        InputError: the metric is defined for none of the items.
    """
    rows = table[table["metric"] == metric]
    if rows.empty and len(table):
        raise InputError(_undefined(metric))
    return rows.drop(columns="metric")


def _undefined(metric: str) -> str:
    return (
        f"There is no {metric} of these items: none has a reference action or a distractor to compare with."
    )
