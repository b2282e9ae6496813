"""From patched heads to shares of a difference (Δcopy, Δsem), and the redundancy of a set of heads.

    share of a head        Σ effects / Σ delta over items: a ratio of means, so that items whose delta is
                           near zero do not blow it up, as they would a mean of ratios
    redundancy of a set    joint effect − Σ of its heads' single effects, per item; in noising it is
                           positive where heads compensate for each other

Shares are NaN, and flagged, where the delta is too small to divide by. Intervals: `probes.stats.bootstrap`, with tasks
as clusters. All rows are of one model and one environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_means, cluster_ratios
from probes.stats.frame_checks import (
    MIN_DELTA,
    SHARE_CELLS,
    by_item,
    item_columns,
    rectangle,
    require,
    require_directions,
    share_cells,
)

EFFECTS = ("item_id", "direction", "layer", "head", "effect_nats", "share")

_PATCH = ("item_id", "task_id", "direction", "layer", "head", "effect_nats", "delta")


def item_shares(rows: pd.DataFrame, min_delta: float = MIN_DELTA) -> pd.DataFrame:
    """Each patched item and head, with its share of the item's own delta.

    Args:
        rows: item_id, task_id, direction (noise | denoise), layer, head, effect_nats and delta (the
            difference the effect is a share of, such as the item's Δcopy), in nats. With a column
            `set`, rows that name one are joint patches, and layer and head are empty there.
        min_delta: |delta| below this is too small to divide by.

    Returns:
        The columns of `EFFECTS` (and `set`, if given); share is NaN where |delta| < min_delta.

    Raises:
        InputError: a column or number is missing, a patch occurs twice, or an item has two deltas.
    """
    _check_patch(rows)
    shares = rows.assign(share=rows["effect_nats"] / rows["delta"].where(rows["delta"].abs() >= min_delta))
    extra = ["set"] if "set" in rows.columns else []
    return shares[[*EFFECTS, *extra]].astype({"layer": "Int64", "head": "Int64"}).reset_index(drop=True)


def head_shares(
    rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS, min_delta: float = MIN_DELTA
) -> pd.DataFrame:
    """Each head's share of the mean delta, with its cluster interval.

    Args:
        rows: as `item_shares`; joint patches are not read.
        rng_for: gives the streams `share/noise` and `share/denoise`; all heads see the same draws.
        n_draws: bootstrap draws.
        min_delta: a mean |delta| below this is too small to divide by.

    Returns:
        direction, layer, head, share, ci_lo, ci_hi, effect_nats (mean), n, n_clusters, flagged.

    Raises:
        InputError: as `item_shares`, or the heads of a direction were patched on different items.
    """
    _check_patch(rows)
    lines = []
    for direction, group in single_patches(rows).groupby("direction", sort=True):
        effects = rectangle(group, ["layer", "head"], "effect_nats")
        items = item_columns(group, effects.index)
        deltas = np.repeat(items["delta"].to_numpy(float)[:, None], effects.shape[1], axis=1)
        shares = cluster_ratios(
            effects.to_numpy(float), deltas, items["task_id"], rng_for(f"share/{direction}"), n_draws
        )
        small = abs(float(items["delta"].mean())) < min_delta
        for (layer, head), share, effect in zip(effects.columns, shares, effects.mean(), strict=True):
            lines.append((direction, int(layer), int(head), *share_cells(share, small, float(effect))))
    return pd.DataFrame(lines, columns=["direction", "layer", "head", *SHARE_CELLS])


def redundancy(
    rows: pd.DataFrame,
    members: Mapping[str, Sequence[tuple[int, int]]],
    rng_for: RngFactory,
    n_draws: int = N_DRAWS,
    min_delta: float = MIN_DELTA,
) -> pd.DataFrame:
    """The joint effect of each set beside the sum of its heads' single effects.

    Args:
        rows: as `item_shares`, with a column `set`: joint patches, and single patches of their heads.
        members: set label → its (layer, head) pairs.
        rng_for: gives the streams `redundancy/DIRECTION/SET` and `joint/DIRECTION/SET`.
        n_draws: bootstrap draws.
        min_delta: a mean |delta| below this is too small to divide by.

    Returns:
        direction, set, joint_share of the mean delta with its interval share_lo, share_hi (NaN where the delta
        is small), joint_nats, singles_nats (sum of single effects), redundancy_nats with its interval ci_lo,
        ci_hi, n, n_clusters: means over items.

    Raises:
        InputError: as `item_shares`; a set has no member list, or a head was not patched alone on its items.
    """
    _check_patch(rows)
    joint = _is_joint(rows)
    joint_rows, single = rows[joint], rows[~joint]
    alone = {
        direction: by_item(group, ["layer", "head"], "effect_nats")
        for direction, group in single.groupby("direction")
    }
    lines = []
    for (direction, label), group in joint_rows.groupby(["direction", "set"], sort=True):
        if label not in members:
            raise InputError(f"The heads of the set '{label}' are not given.")
        joint = group.set_index("item_id")["effect_nats"].sort_index()
        singles = _sum_of_singles(alone.get(direction, pd.DataFrame()), members[label], joint.index)
        items = item_columns(group, joint.index)
        tasks, deltas = items["task_id"], items["delta"].to_numpy(float)[:, None]
        gap = (joint - singles).to_numpy(float)[:, None]
        [found] = cluster_means(gap, tasks, rng_for(f"redundancy/{direction}/{label}"), n_draws)
        effects = joint.to_numpy(float)[:, None]
        [share] = cluster_ratios(effects, deltas, tasks, rng_for(f"joint/{direction}/{label}"), n_draws)
        small = abs(float(deltas.mean())) < min_delta
        means = (float(joint.mean()), float(singles.mean()))
        lines.append(
            (direction, label, *share_cells(share, small, means[0])[:3], *means, *found.cells, *found.counts)
        )
    cells_of = [
        "joint_share",
        "share_lo",
        "share_hi",
        "joint_nats",
        "singles_nats",
        "redundancy_nats",
        "ci_lo",
        "ci_hi",
    ]
    return pd.DataFrame(lines, columns=["direction", "set", *cells_of, "n", "n_clusters"])


def single_patches(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are patches of one head: all without a column `set`, else those that name no set."""
    return rows[~_is_joint(rows)]


def _is_joint(rows: pd.DataFrame) -> pd.Series:
    """Which rows are patches of a named set."""
    if "set" not in rows.columns:
        return pd.Series(False, index=rows.index)
    return rows["set"].notna() & (rows["set"] != "")


def _check_patch(rows: pd.DataFrame) -> None:
    """Refuse patch rows that could only give wrong shares."""
    extra = ["set"] if "set" in rows.columns else []
    heads = ["layer", "head"]
    require(rows, [c for c in _PATCH if c not in heads], ["item_id", "direction", *heads, *extra])
    require(single_patches(rows), heads, ["item_id", "direction", *heads])
    require_directions(rows)
    keys = zip(rows["item_id"].tolist(), rows["direction"].tolist(), strict=True)
    known: dict[tuple[str, str], float] = {}
    mixed = [
        key
        for key, delta in zip(keys, rows["delta"].tolist(), strict=True)
        if known.setdefault(key, delta) != delta
    ]
    if mixed:
        item, direction = min(mixed)
        raise InputError(f"Item {item} has two deltas under {direction}.")


def _sum_of_singles(alone: pd.DataFrame, heads: Sequence[tuple[int, int]], items: pd.Index) -> pd.Series:
    """Sum over a set's heads of what each does when patched alone, per item; `alone` is by item and head."""
    place = {key: at for at, key in enumerate(alone.columns)}
    table = alone.reindex(items)
    for layer, head in heads:
        if (layer, head) not in place or np.isnan(table.iloc[:, place[layer, head]].to_numpy()).any():
            raise InputError(f"L{layer}H{head} was not patched alone on every item of its set.")
    return table.iloc[:, [place[head] for head in heads]].sum(axis=1)
