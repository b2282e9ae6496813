"""What an ablation changes beside its target, paired unit by unit, and whether that is shown to be nothing.

    change = value under the ablation − value of the unablated model, of the same item, passage or sequence
    equivalent: the whole 95 % cluster interval of the mean change lies inside ±delta. Not equivalent means "not shown
    to be unchanged", not "changed"; a single cluster gives no interval and is never equivalent.

Deltas are in the quantity's own unit: nats for Δsem and the reference action's log-probability, nats a token for
losses. Tasks are the clusters of items; passages and sequences are their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_ratios, equivalent
from probes.stats.frame_checks import item_columns, rectangle, require

OFFTARGET = (
    *("set", "kind", "k", "quantity", "whole", "ablated", "change", "ci_lo", "ci_hi"),
    *("delta", "equivalent", "n", "n_clusters"),
)


def off_target_changes(
    rows: pd.DataFrame, deltas: Mapping[str, float], rng_for: RngFactory, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """The change of each quantity under each ablated set, against its bound.

    Args:
        rows: set, kind (one set is of kind none), k, item_id (item, passage or sequence), task_id, measure, value.
        deltas: quantity (a value of `measure`) → its bound.
        rng_for: gives the stream `offtarget/QUANTITY`; all sets see the same draws.
        n_draws: bootstrap draws.

    Returns:
        The columns of OFFTARGET, by quantity in the order of `deltas`, then k, kind and set.

    Raises:
        InputError: a column or number is missing, a quantity is not in the rows, was not taken of the unablated
        model, or
            on different units under different sets.
    """
    require(
        rows,
        ["set", "kind", "k", "item_id", "task_id", "measure", "value"],
        ["set", "kind", "k", "item_id", "measure"],
    )
    lines = []
    for quantity, delta in deltas.items():
        group = rows[rows["measure"] == quantity]
        values = rectangle(group, ["k", "kind", "set"], "value") if len(group) else pd.DataFrame()
        whole = [column for column in values.columns if column[1] == "none"]
        if len(whole) != 1:
            raise InputError(f"The change of '{quantity}' needs one set of kind none, not {len(whole)}.")
        ablated = values.drop(columns=whole)
        base = values[whole].to_numpy(float)
        moved = ablated.to_numpy(float) - base
        tasks = item_columns(group, values.index)["task_id"]
        found = cluster_ratios(moved, np.ones_like(moved), tasks, rng_for(f"offtarget/{quantity}"), n_draws)
        means = ablated.mean(axis=0)
        for (k, kind, label), mean, change in zip(ablated.columns, means, found, strict=True):
            cells = (float(base.mean()), float(mean), change.mean, change.lo, change.hi)
            counts = (delta, equivalent(change, delta), change.n, change.n_clusters)
            lines.append((label, kind, int(k), quantity, *cells, *counts))
    return pd.DataFrame(lines, columns=list(OFFTARGET))
