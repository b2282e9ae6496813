"""Has Δsem heads of its own, and are they Δcopy's? Two differences' head effects, of the same items, side by side.

With c_h and s_h the mean effect (nats) of head h on the one difference and on the other:

    spearman       correlation of the ranks of c and s over heads; `spearman_within_layer` within each layer, pooled
    recall         |top k by c ∩ top k by s| / k: heads that make the repeat likelier, largest first
    jaccard        |top k by c ∩ top k by s| / |their union|
    reliability    of one difference: its tasks are split in disjoint halves at random and the halves' mean effects
                   correlated (Spearman; `_within_layer`; `_recall` among the top k), mean over splits; near 0 its heads
                   cannot be told from noise, and no overlap means much
    across_halves  c of one half of the tasks with s of the other, mean over splits: an overlap that owes nothing to the
                   items (and their noise) that both differences share through `neut`
    beyond_zero    of one difference: share of heads whose 95 % interval leaves 0 out; by chance alone about 0.05

`chance` is what unrelated rankings give; `with` and the nats beside it say what is agreed with. Intervals: 95 %
percentile cluster bootstrap, tasks drawn with their items, both differences in the same draw, from six tasks on; for a
reliability and across halves, the range of the splits. A reliability is that of half of the tasks: all of them are more
reliable (Spearman and Brown).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from mech.errors import InputError
from probes.effects.agreement import AGREED_WITH, Target, reliability_name
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_ratios, percentile_ends
from probes.stats.frame_checks import DIRECTIONS, item_columns, rectangle, require
from probes.stats.halves import halves, ranking_reliability
from probes.stats.ranks import chance_jaccard, layer_spearman, places_by_value, spearman

OVERLAP = (
    *("direction", "statistic", "of", "k", "estimate", "ci_lo", "ci_hi", "chance", "n", "n_clusters"),
    *AGREED_WITH,
)
TOP = (4, 8, 16, 32)
BY_CHANCE = 0.05  # intervals of 95 %

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
        one: item_id, task_id, direction (noise | denoise), layer, head, effect_nats, delta (the item's difference; both
            in nats): every head on every item.
        other: the same of another difference, on the same items and heads.
        names: what the two differences are called, such as ("copy", "sem").
        rng_for: gives the streams `overlap/DIRECTION`, `across/DIRECTION`, `reliability/DIRECTION/NAME` and
            `beyond zero/DIRECTION/NAME`.
        top: the k of the overlaps; those above the number of heads are left out.
        n_draws: bootstrap draws.

    Returns:
        The columns of OVERLAP; `of` names the difference a statistic is of, or is empty where it is of both. There is
        no interval with fewer than six clusters, and no reliability with fewer than four.

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
        rows_of = [rows[rows["direction"] == direction] for rows in (one, other)]
        tasks = item_columns(rows_of[0], a.index)["task_id"]
        counts = (len(a), int(tasks.nunique()))
        targets = [
            Target.of(direction, table, item_columns(rows, table.index)["delta"])
            for table, rows in zip((a, b), rows_of, strict=True)
        ]
        layers = a.columns.get_level_values("layer").to_numpy(int)
        sums = [_cluster_sums(table, tasks) for table in (a, b)]
        with_both = _with_both(names, targets)
        for cells in _agreement(sums, rng_for(f"overlap/{direction}"), top, layers, n_draws):
            lines.append((direction, *cells, *counts, *with_both))
        across = _across_halves(sums, rng_for(f"across/{direction}"))
        lines.append((direction, "across_halves", "", math.nan, *across, 0.0, *counts, *with_both))
        for name, table, clusters, target in zip(names, (a, b), sums, targets, strict=True):
            rng = rng_for(f"reliability/{direction}/{name}")
            for (statistic, k), split in ranking_reliability(clusters, rng, layers, tuple(top)).items():
                chance = k / a.shape[1]
                values = (split.mean, split.lowest, split.highest, chance)
                about = (direction, reliability_name(statistic), name, k or math.nan)
                lines.append((*about, *values, *counts, *target.cells(half=True)))
            beyond = _beyond_zero(table, tasks, rng_for(f"beyond zero/{direction}/{name}"), n_draws)
            found = (beyond, math.nan, math.nan, BY_CHANCE)
            lines.append((direction, "beyond_zero", name, math.nan, *found, *counts, *target.cells()))
    return pd.DataFrame(lines, columns=list(OVERLAP))


def _table(rows: pd.DataFrame, direction: str) -> pd.DataFrame | None:
    require(
        rows,
        ["item_id", "task_id", "direction", *_HEAD, "effect_nats", "delta"],
        ["item_id", "direction", *_HEAD],
    )
    group = rows[rows["direction"] == direction]
    return rectangle(group, _HEAD, "effect_nats") if len(group) else None


def _cluster_sums(table: pd.DataFrame, tasks: pd.Series) -> _Clusters:
    codes = np.unique(tasks.astype(str), return_inverse=True)[1]
    sums = np.zeros((int(codes.max()) + 1, table.shape[1]))
    np.add.at(sums, codes, table.to_numpy(float))
    return sums


def _agreement(
    sums: Sequence[_Clusters],
    rng: np.random.Generator,
    top: Sequence[int],
    layers: Int[np.ndarray, " head"],
    n_draws: int,
) -> list[tuple[object, ...]]:
    """Spearman and the overlaps: statistic, of, k, estimate, ends, chance."""
    n_clusters, n_heads = sums[0].shape
    taken = rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=n_draws)
    (one, other), (a, b) = [part.sum(0)[None] for part in sums], [taken @ part for part in sums]
    found: list[tuple[str, float, float, Float[np.ndarray, " draw"], float]] = [
        ("spearman", math.nan, float(spearman(one, other)[0]), spearman(a, b), 0.0),
        (
            "spearman_within_layer",
            math.nan,
            float(layer_spearman(one, other, layers)[0]),
            layer_spearman(a, b, layers),
            0.0,
        ),
    ]
    for k in [k for k in top if 1 <= k <= n_heads]:
        estimate, draws = _common(one, other, k), _common(a, b, k)
        found += [
            ("recall", float(k), float(estimate[0]) / k, draws / k, k / n_heads),
            (
                "jaccard",
                float(k),
                float((estimate / (2 * k - estimate))[0]),
                draws / (2 * k - draws),
                chance_jaccard(k, n_heads),
            ),
        ]
    return [
        (statistic, "", size, value, *percentile_ends(draws, n_clusters), chance)
        for statistic, size, value, draws, chance in found
    ]


def _common(
    one: Float[np.ndarray, "draw head"], other: Float[np.ndarray, "draw head"], k: int
) -> Float[np.ndarray, " draw"]:
    """How many heads are among the first k of both."""
    return ((places_by_value(one) < k) & (places_by_value(other) < k)).sum(axis=1).astype(float)


def _with_both(names: tuple[str, str], targets: Sequence[Target]) -> tuple[str, float, float]:
    one, other = (f"{name}: {target}" for name, target in zip(names, targets, strict=True))
    return f"{one}; {other}", targets[1].effects_nats, targets[1].delta_nats


def _across_halves(sums: Sequence[_Clusters], rng: np.random.Generator) -> tuple[float, float, float]:
    """Mean and range over splits of the correlation of the one's effects in a half with the other's in the other."""
    values = [
        float(spearman(sums[0][a].sum(0)[None], sums[1][b].sum(0)[None])[0])
        for pair in halves(len(sums[0]), rng)
        for a, b in (pair, pair[::-1])
    ]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return (math.nan,) * 3
    return float(np.mean(known)), min(known), max(known)


def _beyond_zero(table: pd.DataFrame, tasks: pd.Series, rng: np.random.Generator, n_draws: int) -> float:
    """Share of heads whose interval leaves 0 out; NaN where there is no interval."""
    values = table.to_numpy(float)
    found = cluster_ratios(values, np.ones_like(values), tasks, rng, n_draws)
    known = [one for one in found if not math.isnan(one.lo)]
    return float(np.mean([one.lo > 0 or one.hi < 0 for one in known])) if known else math.nan
