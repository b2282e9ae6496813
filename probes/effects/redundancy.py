"""What named parts (heads, MLPs, layers) do together and not one by one, as a quantity with an interval and a reading.

    redundancy = joint effect − Σ single effects, per item, in nats; as a share: Σ redundancy / Σ delta over items

    reading       noising     denoising    what it says
    redundant     above 0     below 0      each stands in for the others (an OR): one by one they are understated by
                                           noising and overstated by denoising
    cooperating   below 0     above 0      each needs the others (an AND): the other way round
    additive      the interval holds 0     no departure from a sum is shown

Both directions are read, as Heimersheim & Nanda 2024 (arXiv:2404.15255) advise: noising alone misses an OR, denoising
alone an AND. `probes.effects.shares.redundancy` is the same gap for heads by (layer, head); here parts have names, so
that MLPs and mixed sets have one too. Intervals: `probes.stats.bootstrap`, with tasks as clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, Interval, RngFactory, cluster_ratios
from probes.stats.frame_checks import DIRECTIONS, MIN_DELTA, by_item, require

PARTS = ("item_id", "task_id", "direction", "part", "effect_nats", "delta")
REDUNDANCY = (
    "direction", "set", "n_parts", "joint_nats", "singles_nats", "redundancy_nats", "ci_lo", "ci_hi",
    "redundancy_share", "share_lo", "share_hi", "reading", "n", "n_clusters",
)  # fmt: skip


def part_redundancy(
    rows: pd.DataFrame,
    members: Mapping[str, Sequence[str]],
    rng_for: RngFactory,
    n_draws: int = N_DRAWS,
    min_delta: float = MIN_DELTA,
) -> pd.DataFrame:
    """The redundancy of each set in each direction.

    Args:
        rows: the columns of `PARTS`, one row an (item, direction, part): `part` names a part patched alone ("L18H6",
            "mlp12") or a set of `members` patched together; delta is what shares are of, such as the item's Δcopy.
        members: set label → its parts, at least two.
        rng_for: gives the streams `redundancy/DIRECTION/SET`.
        n_draws: bootstrap draws.
        min_delta: a mean |delta| below this is too small to divide by: the share is NaN.

    Returns:
        The columns of `REDUNDANCY`, means over items; reading is empty where there is no interval.

    Raises:
        InputError: a column or number is missing, a patch stands twice, a set is no set, or a set and its parts were
            not patched on the same items.
    """
    require(rows, PARTS, ["item_id", "direction", "part"])
    unknown = rows.loc[~rows["direction"].isin(DIRECTIONS), "direction"]
    if len(unknown):
        raise InputError(f"'{unknown.iloc[0]}' is not a direction: write noise or denoise.")
    lines = []
    for label, parts in members.items():
        if len(set(parts)) != len(parts) or len(parts) < 2 or label in parts:
            raise InputError(f"The set '{label}' must name at least two parts, each once, and not itself.")
        found = rows[rows["part"].isin([label, *parts])]
        for direction, group in found.groupby("direction", sort=True):
            absent = [name for name in [label, *parts] if name not in set(group["part"])]
            if absent:
                raise InputError(f"'{absent[0]}' of the set '{label}' was not patched under {direction}.")
            rng = rng_for(f"redundancy/{direction}/{label}")
            lines.append((direction, label, len(parts), *_cells(group, label, rng, n_draws, min_delta)))
    return pd.DataFrame(lines, columns=list(REDUNDANCY))


def _cells(
    group: pd.DataFrame, label: str, rng: np.random.Generator, n_draws: int, min_delta: float
) -> tuple[float | int | str, ...]:
    """One set in one direction: everything behind `n_parts`."""
    table = group.pivot(index="item_id", columns="part", values="effect_nats")
    for name in table.columns[table.isna().any()]:
        item = table.index[table[name].isna()][0]
        raise InputError(f"Item {item} has no effect of {name}, and others have: finish the run first.")
    items = by_item(group, table.index)
    joint, singles = table[label].to_numpy(float), table.drop(columns=label).sum(axis=1).to_numpy(float)
    gap, delta = joint - singles, items["delta"].to_numpy(float)
    # Two columns of one bootstrap: the mean gap in nats, and the gap as a share of the mean delta.
    over = np.stack([np.ones_like(gap), delta], axis=1)
    nats, share = cluster_ratios(np.stack([gap, gap], axis=1), over, items["task_id"], rng, n_draws)
    small = abs(float(delta.mean())) < min_delta
    shares = (math.nan,) * 3 if small else (share.mean, share.lo, share.hi)
    reading = _reading(nats, str(group["direction"].iloc[0]))
    means = (float(joint.mean()), float(singles.mean()), nats.mean, nats.lo, nats.hi)
    return (*means, *shares, reading, nats.n, nats.n_clusters)


def _reading(gap: Interval, direction: str) -> str:
    if gap.degenerate:
        return ""
    if gap.lo <= 0 <= gap.hi:
        return "additive"
    return "redundant" if (gap.lo > 0) == (direction == "noise") else "cooperating"
