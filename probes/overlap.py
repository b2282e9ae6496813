"""Has Δsem heads of its own, and are they Δcopy's? Two differences' head effects, of the same items, side by side.

With c_h and s_h the mean effect (nats) of head h on the one difference and on the other:

    spearman       correlation of the ranks of c and s over heads
    jaccard        |top k by c ∩ top k by s| / |their union|: heads that make the repeat likelier, largest first
    reliability    of one difference: its tasks are split in halves at random and the halves' mean effects correlated
                   (Spearman), mean over splits; near 0 its heads cannot be told from noise, and no overlap means much
    beyond_zero    of one difference: share of heads whose 95 % interval leaves 0 out; by chance alone about 0.05
                   with ten tasks or more, and more with fewer, where `chance` is left empty

`chance` is what unrelated rankings give. Intervals: 95 % percentile cluster bootstrap, tasks drawn with their items,
both differences in the same draw; for a reliability, the middle 95 % of the splits. A reliability is that of half of
the tasks: all of them are more reliable (Spearman and Brown).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from mech.errors import InputError
from probes.effects import DIRECTIONS, by_item, rectangle, require
from probes.ranks import chance_jaccard, places_by_value, spearman
from probes.stats import N_DRAWS, RngFactory, cluster_ratios

OVERLAP = ("direction", "statistic", "of", "k", "estimate", "ci_lo", "ci_hi", "chance", "n", "n_clusters")
TOP = (4, 8, 16, 32)
N_SPLITS = 200
BY_CHANCE = 0.05  # intervals of 95 %
ENOUGH = 10  # tasks from which on percentile intervals are about as wide as they say

_HEAD = ["layer", "head"]
_Clusters = Float[np.ndarray, "cluster head"]


def overlap(
    one: pd.DataFrame,
    other: pd.DataFrame,
    names: tuple[str, str],
    rng_for: RngFactory,
    top: Sequence[int] = TOP,
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """Compare the head effects of two differences, direction by direction.

    Args:
        one: item_id, task_id, direction (noise | denoise), layer, head, effect_nats (nats): every head on every item.
        other: the same of another difference, on the same items and heads.
        names: what the two differences are called, such as ("copy", "sem").
        rng_for: gives the streams `overlap/DIRECTION`, `reliability/DIRECTION/NAME` and `beyond zero/DIRECTION/NAME`.
        top: the k of the overlaps; those above the number of heads are left out.
        n_draws: bootstrap draws.

    Returns:
        The columns of OVERLAP; `of` names the difference a statistic is of, or is empty where it is of both. There is
        no interval with one cluster, and no reliability with fewer than four.

    Raises:
        InputError: a column or number is missing, a direction is unknown, or items or heads differ.
    """
    lines: list[tuple[object, ...]] = []
    for direction in DIRECTIONS:
        tables = [_table(rows, direction) for rows in (one, other)]
        if all(table is None for table in tables):
            continue
        a, b = tables
        if a is None or b is None or not a.index.equals(b.index) or not a.columns.equals(b.columns):
            raise InputError(f"Both differences need the same items and heads under {direction}.")
        tasks = by_item(one[one["direction"] == direction], a.index)["task_id"]
        counts = (len(a), int(tasks.nunique()))
        sums = [_cluster_sums(table, tasks) for table in (a, b)]
        for cells in _agreement(sums, rng_for(f"overlap/{direction}"), top, n_draws):
            lines.append((direction, *cells, *counts))
        for name, table, clusters in zip(names, (a, b), sums, strict=True):
            splits = _reliability(clusters, rng_for(f"reliability/{direction}/{name}"))
            lines.append((direction, "reliability", name, math.nan, *splits, 0.0, *counts))
            beyond = _beyond_zero(table, tasks, rng_for(f"beyond zero/{direction}/{name}"), n_draws)
            chance = BY_CHANCE if counts[1] >= ENOUGH else math.nan
            cells = (beyond, math.nan, math.nan, chance)
            lines.append((direction, "beyond_zero", name, math.nan, *cells, *counts))
    return pd.DataFrame(lines, columns=list(OVERLAP))


def _table(rows: pd.DataFrame, direction: str) -> pd.DataFrame | None:
    require(
        rows, ["item_id", "task_id", "direction", *_HEAD, "effect_nats"], ["item_id", "direction", *_HEAD]
    )
    group = rows[rows["direction"] == direction]
    return rectangle(group, _HEAD, "effect_nats") if len(group) else None


def _cluster_sums(table: pd.DataFrame, tasks: pd.Series) -> _Clusters:
    codes = np.unique(tasks.astype(str), return_inverse=True)[1]
    sums = np.zeros((int(codes.max()) + 1, table.shape[1]))
    np.add.at(sums, codes, table.to_numpy(float))
    return sums


def _agreement(
    sums: Sequence[_Clusters], rng: np.random.Generator, top: Sequence[int], n_draws: int
) -> list[tuple[object, ...]]:
    """Spearman and the overlaps: statistic, of, k, estimate, ends, chance."""
    n_clusters, n_heads = sums[0].shape
    taken = rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=n_draws)
    (one, other), (a, b) = [part.sum(0)[None] for part in sums], [taken @ part for part in sums]
    found: list[tuple[str, float, float, Float[np.ndarray, " draw"], float]] = [
        ("spearman", math.nan, float(spearman(one, other)[0]), spearman(a, b), 0.0)
    ]
    for k in [k for k in top if 1 <= k <= n_heads]:
        found.append(
            (
                "jaccard",
                float(k),
                float(_jaccard(one, other, k)[0]),
                _jaccard(a, b, k),
                chance_jaccard(k, n_heads),
            )
        )
    lines: list[tuple[object, ...]] = []
    for statistic, size, estimate, draws, chance in found:
        ends = np.quantile(draws, [0.025, 0.975]) if n_clusters > 1 else (math.nan, math.nan)
        lines.append((statistic, "", size, estimate, float(ends[0]), float(ends[1]), chance))
    return lines


def _jaccard(
    one: Float[np.ndarray, "draw head"], other: Float[np.ndarray, "draw head"], k: int
) -> Float[np.ndarray, " draw"]:
    common = ((places_by_value(one) < k) & (places_by_value(other) < k)).sum(axis=1)
    return common / (2 * k - common)


def _reliability(clusters: _Clusters, rng: np.random.Generator) -> tuple[float, float, float]:
    """Mean and middle 95 % over random halves of the tasks of the correlation of their mean effects."""
    n = len(clusters)
    if n < 4:
        return (math.nan,) * 3
    order = np.stack([rng.permutation(n) for _ in range(N_SPLITS)])
    # Sums rank heads as means do.
    halves = [clusters[part].sum(axis=1) for part in (order[:, : n // 2], order[:, n // 2 :])]
    values = spearman(*halves)
    return float(values.mean()), float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975))


def _beyond_zero(table: pd.DataFrame, tasks: pd.Series, rng: np.random.Generator, n_draws: int) -> float:
    """Share of heads whose interval leaves 0 out; NaN where there is no interval."""
    values = table.to_numpy(float)
    found = cluster_ratios(values, np.ones_like(values), tasks, rng, n_draws)
    known = [one for one in found if not math.isnan(one.lo)]
    return float(np.mean([one.lo > 0 or one.hi < 0 for one in known])) if known else math.nan
