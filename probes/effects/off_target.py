"""What an ablation changes beside its target, paired unit by unit, and whether that is shown to be nothing.

    change = value under the ablation − value of the unablated model, of the same item, passage or sequence
    equivalent: the 95 % cluster interval of the mean change lies inside ±delta. Not equivalent means "not shown
    to be unchanged", not "changed"; a single cluster gives no interval and is never equivalent.

Deltas are in the quantity's own unit: nats for Δsem and the reference action's log-probability, nats a token for
losses. Tasks are the clusters of items; passages and sequences are their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from probes.effects.dose import against_unablated, check_ablated
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_means, equivalent

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
            model, or on different units under different sets.
    """
    check_ablated(rows)
    lines = []
    for quantity, delta in deltas.items():
        base, ablated, tasks = against_unablated(rows, quantity)
        moved = ablated.to_numpy(float) - base
        found = cluster_means(moved, tasks, rng_for(f"offtarget/{quantity}"), n_draws)
        for (k, kind, label), mean, change in zip(ablated.columns, ablated.mean(axis=0), found, strict=True):
            cells = (float(base.mean()), float(mean), *change.cells)
            lines.append(
                (label, kind, int(k), quantity, *cells, delta, equivalent(change, delta), *change.counts)
            )
    return pd.DataFrame(lines, columns=list(OFFTARGET))
