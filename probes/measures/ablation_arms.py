"""Ablation arms: every table of an arm by itself, and every measure of an arm against the unablated model, paired.

An arm is one ablation (which heads, what takes the place of their z, where) under its label; the column `ablation`
has the label, "none" for the unablated model. Measures of two arms are of the same items, so their difference is
taken item by item and the items are resampled by cluster. Under resample ablation an item's value is a mean over
draws of its own: the interval includes the variance between draws, and not that of the reference set from which all
donors are drawn.

    difference = mean over items of m(arm) − m(against)
    removed    = 1 − Σ m(arm) / Σ m(against), a ratio of sums: the share of Δcopy (of G, …) that the ablation removes

Each arm is set against the unablated model, and against the arms named before it: a selected set against its random
controls is a difference too, and the only one that says anything of the selection. p is that of the mean difference,
corrected by Holm within one model, environment, measure and `family` (`probes.stats.families`, "arms"): "ablation arms"
(against the unablated model) or "arms against arms".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_bootstrap, cluster_ratios
from probes.stats.families import corrected
from probes.stats.frame_checks import MIN_DELTA, require
from probes.stats.layout import UNABLATED

AGAINST_UNABLATED = "ablation arms"
AMONG_ARMS = "arms against arms"
ArmTable = Callable[[pd.DataFrame, RngFactory], pd.DataFrame]
"""Rows of one arm and its streams → a table."""
_KEYS = ("model", "env", "item_id", "task_id", "measure", "value", "ablation")


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """The frame with the label of its arm in every row: rows without the column have "none"."""
    if "ablation" not in rows.columns:
        return rows.assign(ablation=UNABLATED)
    return rows.assign(ablation=rows["ablation"].fillna(UNABLATED))


def labels_of(frame: pd.DataFrame, order: Sequence[str] = ()) -> list[str]:
    """The labels in a labelled frame: the unablated model first, then those of `order`, then by their first row."""
    found = [str(label) for label in frame["ablation"].unique()]
    return [label for label in dict.fromkeys((UNABLATED, *order, *found)) if label in found]


def by_arm(
    frame: pd.DataFrame, rng_for: RngFactory, table: ArmTable, order: Sequence[str] = ()
) -> pd.DataFrame:
    """A table of every arm by itself, the unablated model's first, with the column `ablation` last.

    Args:
        frame: labelled rows or measures.
        rng_for: gives the unablated model's streams, and those of an arm under NAME/LABEL.
        table: makes the table out of the rows of one arm (without the column) and its streams. Holm families are
            therefore of one arm.
        order: of the arms, where the frame has not theirs.
    """
    parts = []
    for label in labels_of(frame, order) or [UNABLATED]:  # nothing measured: the empty table
        rows = frame[frame["ablation"] == label].drop(columns="ablation").reset_index(drop=True)
        parts.append(table(rows, _streams(rng_for, label)).assign(ablation=label))
    kept = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(kept, ignore_index=True)


def _streams(rng_for: RngFactory, label: str) -> RngFactory:
    return rng_for if label == UNABLATED else lambda name: rng_for(f"{name}/{label}")


def arm_contrasts(
    measures: pd.DataFrame, labels: Sequence[str], rng_for: RngFactory, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """Every measure of every arm against the unablated model, and against every arm before it.

    Args:
        measures: long frame with model, env, item_id, task_id, measure, value and ablation.
        labels: the order of the arms; those that are not in `measures` have no line.
        rng_for: gives the stream of `arms/MODEL/ENV/MEASURE/ARM/AGAINST` (and …/removed).
        n_draws: bootstrap draws.

    Returns:
        model, env, measure, ablation, against, mean, mean_against, difference, ci_lo, ci_hi, n, n_clusters, p, p_holm,
        family_size, family, removed, removed_lo, removed_hi: by model, env and measure, then in the order of the arms;
        over the items that have the measure under both. `removed` is NaN where the mean it is a share of is below
        `MIN_DELTA` (absolute).

    Raises:
        InputError: a column or number is missing, or a value occurs twice.
    """
    require(measures, _KEYS, ["model", "env", "item_id", "measure", "ablation"])
    order = [UNABLATED, *(label for label in labels if label != UNABLATED)]
    lines = []
    for (model, env, measure), group in measures.groupby(["model", "env", "measure"], sort=True):
        wide = group.pivot(index=["item_id", "task_id"], columns="ablation", values="value")
        present = [label for label in order if label in wide.columns]
        for place, label in enumerate(present):
            for against in present[:place]:
                pair = wide[[label, against]].dropna()
                if len(pair):
                    key = {"model": str(model), "env": str(env), "measure": str(measure)}
                    lines.append(_contrast(key, pair, rng_for, n_draws))
    return corrected(pd.DataFrame(lines), "arms")


def _contrast(
    key: Mapping[str, str], pair: pd.DataFrame, rng_for: RngFactory, n_draws: int
) -> dict[str, object]:
    """One line: `pair` has the arm's values and those it is compared with."""
    label, against = map(str, pair.columns)
    here, there = (pair[name].to_numpy(float) for name in (label, against))
    tasks = pair.index.get_level_values("task_id")
    name = "/".join(("arms", *key.values(), label, against))
    found = cluster_bootstrap(here - there, tasks, rng_for(name), n_draws)
    removed = (math.nan, math.nan, math.nan)
    if abs(float(there.mean())) >= MIN_DELTA:
        [share] = cluster_ratios(
            (there - here)[:, None], there[:, None], tasks, rng_for(f"{name}/removed"), n_draws
        )
        removed = share.cells
    family = AGAINST_UNABLATED if against == UNABLATED else AMONG_ARMS
    return {
        **{**key, "ablation": label, "against": against},
        **{"mean": float(np.mean(here)), "mean_against": float(np.mean(there))},
        **{**found.columns("difference"), "p": found.p, "family": family},
        **dict(zip(("removed", "removed_lo", "removed_hi"), removed, strict=True)),
    }
