"""From ablated heads to dose curves, the share of Δcopy removed, and the test against random heads.

    share removed    (mean of the whole model − mean under ablation) / mean of the whole model
    p of a set       (b + 1) / (m + 1): b of the m random sets of its size remove as much or more
    area             mean height of a dose curve over k = 0 … largest k (trapezoids, k linear)

Shares are NaN, and flagged, where the mean of the whole model is too small to divide by. Intervals:
`probes.stats`, with tasks as clusters. All rows are of one model and one environment.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.effects import MIN_DELTA, SHARE_CELLS, by_item, rectangle, require, share_cells
from probes.stats import N_DRAWS, RngFactory, cluster_ratios

ABLATION = ("set", "kind", "k", "measure", "mean", "ci_lo", "ci_hi", "n")
KINDS = ("none", "selected", "random")

_ROW = ("set", "kind", "k", "item_id", "task_id", "measure", "value")


def dose_curve(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Mean of each measure under each ablated set of heads.

    Args:
        rows: set (a label), kind (none | selected | random), k (heads ablated), item_id, task_id,
            measure, value.
        rng_for: gives the stream `dose/MEASURE`; all sets see the same draws.
        n_draws: bootstrap draws.

    Returns:
        The columns of `ABLATION`, by measure, then k, kind and set.

    Raises:
        InputError: a column or number is missing, a value stands twice, a kind is unknown, or a
            measure was taken on different items under different sets.
    """
    _check_ablated(rows)
    lines = []
    for measure, group in rows.groupby("measure", sort=True):
        values = rectangle(group, ["k", "kind", "set"], "value")
        numbers = values.to_numpy(float)
        tasks = by_item(group, values.index)["task_id"]
        found = cluster_ratios(numbers, np.ones_like(numbers), tasks, rng_for(f"dose/{measure}"), n_draws)
        for (k, kind, label), dose in zip(values.columns, found, strict=True):
            lines.append((label, kind, int(k), measure, dose.mean, dose.lo, dose.hi, dose.n))
    return pd.DataFrame(lines, columns=list(ABLATION))


def share_removed(
    rows: pd.DataFrame,
    rng_for: RngFactory,
    measure: str = "copy",
    n_draws: int = N_DRAWS,
    min_delta: float = MIN_DELTA,
) -> pd.DataFrame:
    """Share of a measure that ablating a set removes: 1 − mean under ablation / mean of the whole model.

    Args:
        rows: as `dose_curve`, with exactly one set of kind `none`.
        rng_for: gives the stream `removed/MEASURE`.
        measure: whose mean is divided.
        n_draws: bootstrap draws.
        min_delta: a mean of the whole model below this (absolute) is too small to divide by.

    Returns:
        set, kind, k, share, ci_lo, ci_hi, effect_nats (mean removed), n, n_clusters, flagged.

    Raises:
        InputError: as `dose_curve`, or the measure or the unablated model is not in the rows.
    """
    _check_ablated(rows)
    group = rows[rows["measure"] == measure]
    values = rectangle(group, ["k", "kind", "set"], "value") if len(group) else pd.DataFrame()
    whole = [column for column in values.columns if column[1] == "none"]
    if len(whole) != 1:
        raise InputError(f"The share of '{measure}' removed needs one set of kind none, not {len(whole)}.")
    ablated = values.drop(columns=whole)
    base = np.repeat(values[whole].to_numpy(float), ablated.shape[1], axis=1)
    removed = base - ablated.to_numpy(float)
    tasks = by_item(group, values.index)["task_id"]
    found = cluster_ratios(removed, base, tasks, rng_for(f"removed/{measure}"), n_draws)
    small = abs(float(values[whole[0]].mean())) < min_delta
    effects = removed.mean(axis=0)
    lines = [
        (label, kind, int(k), *share_cells(share, small, float(effect)))
        for (k, kind, label), share, effect in zip(ablated.columns, found, effects, strict=True)
    ]
    return pd.DataFrame(lines, columns=["set", "kind", "k", *SHARE_CELLS])


def against_random(removed: pd.DataFrame) -> pd.DataFrame:
    """Each selected set against the random sets of its size: one-sided p = (b + 1) / (m + 1).

    Args:
        removed: what `share_removed` returns.

    Returns:
        set, k, share, random_mean, random_lo, random_hi (extremes), n_controls, p. With m controls p is
        never below 1 / (m + 1); it is NaN where there is no control, or where a share is undefined.
    """
    lines = []
    for _, selected in removed[removed["kind"] == "selected"].iterrows():
        controls = removed[(removed["kind"] == "random") & (removed["k"] == selected["k"])]["share"]
        known = len(controls) > 0 and bool(controls.notna().all()) and not math.isnan(selected["share"])
        beaten_by = int((controls >= selected["share"]).sum())
        p = (beaten_by + 1) / (len(controls) + 1) if known else math.nan
        spread = (controls.mean(), controls.min(), controls.max()) if known else (math.nan,) * 3
        lines.append((selected["set"], int(selected["k"]), selected["share"], *spread, len(controls), p))
    names = ["share", "random_mean", "random_lo", "random_hi", "n_controls", "p"]
    return pd.DataFrame(lines, columns=["set", "k", *names])


def area(curve: pd.DataFrame) -> pd.DataFrame:
    """Mean height of each measure's dose curve, from the whole model at k = 0 to the largest k.

    Args:
        curve: what `dose_curve` returns; sets of one kind and size are averaged first.

    Returns:
        measure, kind, k_max, area: the trapezoids over k divided by k_max, so in the measure's own unit.
    """
    lines = []
    for measure, group in curve.groupby("measure", sort=True):
        start = group[group["kind"] == "none"]["mean"]
        for kind, doses in group[group["kind"] != "none"].groupby("kind", sort=True):
            means = doses.groupby("k", sort=True)["mean"].mean()
            k = np.concatenate([[0.0], means.index.to_numpy(float)])
            height = np.concatenate([[start.iloc[0] if len(start) == 1 else math.nan], means.to_numpy(float)])
            trapezoids = float((np.diff(k) * (height[1:] + height[:-1]) / 2).sum())
            lines.append((measure, kind, int(k[-1]), trapezoids / k[-1]))
    return pd.DataFrame(lines, columns=["measure", "kind", "k_max", "area"])


def _check_ablated(rows: pd.DataFrame) -> None:
    """Refuse ablation rows that could only give a wrong curve."""
    require(rows, _ROW, ["set", "kind", "k", "item_id", "measure"])
    unknown = rows.loc[~rows["kind"].isin(KINDS), "kind"]
    if len(unknown):
        raise InputError(f"'{unknown.iloc[0]}' is not a kind of head set: write {', '.join(KINDS)}.")
