"""Has Δsem heads of its own, and are they Δcopy's? Two differences' head effects, of the same items, side by side.

With c_h and s_h the mean effect (nats) of head h on the one difference and on the other:

    spearman, spearman_within_layer, recall, jaccard
                   of c and s, as `probes.stats.ranks` defines them; the top k make the repeat likelier, largest first
    reliability    of one difference: its tasks are split in disjoint halves at random and the halves' mean effects
                   correlated (Spearman; `_within_layer`; `_recall` among the top k), mean over splits; near 0 its heads
                   cannot be distinguished from noise, and no overlap means much
    across_halves  c of one half of the tasks with s of the other, mean over splits: an overlap that owes nothing to the
                   items (and their noise) that both differences share through `neut`
    beyond_zero    of one difference: share of heads whose 95 % interval leaves 0 out; by chance alone about 0.05

`chance` is what unrelated rankings give; `with` and the nats beside it say what is compared. Intervals: 95 %
percentile cluster bootstrap, tasks drawn with their items, both differences in the same draw, from six tasks on; for a
reliability and across halves, the range of the splits. A reliability is that of half of the tasks: all of them are more
reliable (Spearman and Brown).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from mech.errors import InputError
from probes.effects.agreement import AGREED_WITH, TOP, Target, reliability_name
from probes.stats.bootstrap import (
    N_DRAWS,
    RngFactory,
    cluster_codes,
    cluster_means,
    cluster_sums,
    draw_clusters,
    percentile_ends,
)
from probes.stats.frame_checks import DIRECTIONS, item_columns, rectangle, require
from probes.stats.ranks import SplitHalves, chance, halves, rank_statistics, ranking_reliability, spearman

OVERLAP = (
    *("direction", "statistic", "of", "k", "estimate", "ci_lo", "ci_hi", "chance", "n", "n_clusters"),
    *AGREED_WITH,
)
BY_CHANCE = 0.05  # intervals of 95 %

_HEAD = ["layer", "head"]


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
        codes = cluster_codes(tasks, len(a))
        counts, n_heads = (len(a), codes[1]), a.shape[1]
        targets = [
            Target.of(direction, table, item_columns(rows, table.index)["delta"])
            for table, rows in zip((a, b), rows_of, strict=True)
        ]
        layers = a.columns.get_level_values("layer").to_numpy(int)
        sums = [cluster_sums(table.to_numpy(float), *codes) for table in (a, b)]
        both = "; ".join(f"{name}: {target}" for name, target in zip(names, targets, strict=True))
        with_both = (both, *targets[1].cells()[1:])
        taken = draw_clusters(counts[1], rng_for(f"overlap/{direction}"), n_draws)
        drawn = rank_statistics(taken @ sums[0], taken @ sums[1], top, layers)
        found = rank_statistics(sums[0].sum(0)[None], sums[1].sum(0)[None], top, layers)
        for (statistic, k), value in found.items():
            ends = percentile_ends(drawn[statistic, k], counts[1])
            cells = (float(value[0]), *ends, chance(statistic, k, n_heads))
            lines.append((direction, statistic, "", k or math.nan, *cells, *counts, *with_both))
        across = _across_halves(sums, rng_for(f"across/{direction}"))
        cells = (across.mean, across.lowest, across.highest, 0.0)
        lines.append((direction, "across_halves", "", math.nan, *cells, *counts, *with_both))
        for name, table, clusters, target in zip(names, (a, b), sums, targets, strict=True):
            rng = rng_for(f"reliability/{direction}/{name}")
            for (statistic, k), split in ranking_reliability(clusters, rng, layers, top).items():
                cells = (split.mean, split.lowest, split.highest, chance(statistic, k, n_heads))
                about = (direction, reliability_name(statistic), name, k or math.nan)
                lines.append((*about, *cells, *counts, *target.cells(half=True)))
            beyond = _beyond_zero(table, tasks, rng_for(f"beyond zero/{direction}/{name}"), n_draws)
            cells = (beyond, math.nan, math.nan, BY_CHANCE)
            lines.append((direction, "beyond_zero", name, math.nan, *cells, *counts, *target.cells()))
    return pd.DataFrame(lines, columns=list(OVERLAP))


def _table(rows: pd.DataFrame, direction: str) -> pd.DataFrame | None:
    require(
        rows,
        ["item_id", "task_id", "direction", *_HEAD, "effect_nats", "delta"],
        ["item_id", "direction", *_HEAD],
    )
    group = rows[rows["direction"] == direction]
    return rectangle(group, _HEAD, "effect_nats") if len(group) else None


def _across_halves(
    sums: Sequence[Float[np.ndarray, "cluster head"]], rng: np.random.Generator
) -> SplitHalves:
    """The correlation of the one's effects in a half with the other's in the other half, over splits."""
    values = [
        float(spearman(sums[0][a].sum(0)[None], sums[1][b].sum(0)[None])[0])
        for pair in halves(len(sums[0]), rng)
        for a, b in (pair, pair[::-1])
    ]
    return SplitHalves.of(np.array(values))


def _beyond_zero(table: pd.DataFrame, tasks: pd.Series, rng: np.random.Generator, n_draws: int) -> float:
    """Share of heads whose interval leaves 0 out; NaN where there is no interval."""
    found = cluster_means(table.to_numpy(float), tasks, rng, n_draws)
    known = [one for one in found if not math.isnan(one.lo)]
    return float(np.mean([one.lo > 0 or one.hi < 0 for one in known])) if known else math.nan
