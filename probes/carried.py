"""What head sets carry of a difference (Δcopy), by several methods, each beside the random sets of its size.

    method     what is changed at the candidate positions             effect (nats)                   direction
    noise      neut, z of the set from pre                            L(neut) − L(patched)            necessity
    denoise    pre, z of the set from neut                            L(patched) − L(pre)             sufficiency
    mean, resample, zero
               z of the set replaced, in pre and in neut              Δcopy − Δcopy under it          necessity
    knockout   neut, the set cannot attend to the call in the record  L(neut) − L(cut)                necessity

    share      Σ effects / Σ Δcopy over items: a ratio of means
    excess     share of the set − mean share of its controls, item by item before it is summed
    percentile of 100 controls, how many carry less than the set;  p = (b + 1) / (m + 1), b of m carry as much or more

Off target, under the same change: the reference action's log-probability, and Δsem (what the mark of failure does).
Denoising and noising: Heimersheim & Nanda 2024 (arXiv:2404.15255); knockout: Geva et al. 2023 (arXiv:2304.14767);
p: Phipson & Smyth 2010. Intervals: `probes.stats`, tasks are the clusters. All rows are of one model.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.dose import among
from probes.effects import MIN_DELTA, by_item, rectangle, require
from probes.stats import N_DRAWS, Interval, RngFactory, cluster_bootstrap, cluster_ratios, equivalent

METHODS = ("noise", "denoise", "mean", "resample", "zero", "knockout")
NECESSITY = ("noise", "mean", "resample", "zero", "knockout")
CONTROL_KINDS = ("random", "strength")
CARRIED = (
    *("env", "method", "direction", "set", "k", "share", "ci_lo", "ci_hi", "effect_nats"),
    *("controls", "n_controls", "control_mean", "control_lo", "control_hi", "percentile", "p"),
    *("excess", "excess_lo", "excess_hi", "n", "n_clusters"),
)
OFF_TARGET = (
    *("env", "method", "set", "k", "quantity", "whole", "under", "change", "ci_lo", "ci_hi"),
    *("delta", "equivalent", "n", "n_clusters"),
)
_ROW = ("env", "item_id", "task_id", "method", "set", "kind", "k", "effect_nats", "delta")
_OFF = ("env", "item_id", "task_id", "method", "set", "k", "quantity", "whole", "under")


def carried(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The share that each selected set carries by each method, beside its controls of each kind.

    Args:
        rows: env, item_id, task_id, method, set, kind (selected | random | strength), k, effect_nats and delta (the
            item's Δcopy, nats): one row an item, method and set; every set on every item of its environment.
        rng_for: gives the streams `carried/ENV/METHOD`.
        n_draws: bootstrap draws.

    Returns:
        The columns of CARRIED, one row a method, selected set and kind of control; control_lo and control_hi are the
        extremes over controls. Shares are NaN where the mean |delta| is too small to divide by.

    Raises:
        InputError: a column or number is missing, a row stands twice, a set lacks an item.
    """
    require(rows, _ROW, ["item_id", "method", "set"])
    lines = []
    for (env, method), group in rows.groupby(["env", "method"], sort=False):
        effects = rectangle(group, ["kind", "set", "k"], "effect_nats")
        items = by_item(group, effects.index)
        rng = rng_for(f"carried/{env}/{method}")
        direction = "necessity" if method in NECESSITY else "sufficiency"
        for cells in _of_method(effects, items, rng, n_draws):
            lines.append((env, method, direction, *cells))
    return pd.DataFrame(lines, columns=list(CARRIED))


def _of_method(
    effects: pd.DataFrame, items: pd.DataFrame, rng: np.random.Generator, n_draws: int
) -> list[tuple[object, ...]]:
    """One method in one environment: the cells behind `direction`, all from the same bootstrap draws."""
    delta = items["delta"].to_numpy(float)
    small = abs(float(delta.mean())) < MIN_DELTA
    selected = [column for column in effects.columns if column[0] == "selected"]
    pairs = []
    for column in selected:
        kinds = [kind for kind in CONTROL_KINDS if _controls(effects, kind, column)]
        pairs += [(column, kind) for kind in kinds or [""]]
    columns: list[np.ndarray] = []
    for column, kind in pairs:
        own = effects[column].to_numpy(float)
        against = effects[_controls(effects, kind, column)].to_numpy(float)
        columns += [own, own - against.mean(axis=1) if against.size else np.full_like(own, math.nan)]
    over = np.repeat(delta[:, None], len(columns), axis=1)
    found = cluster_ratios(np.stack(columns, axis=1), over, items["task_id"], rng, n_draws)
    lines: list[tuple[object, ...]] = []
    for index, (column, kind) in enumerate(pairs):
        share, excess = found[2 * index], found[2 * index + 1]
        against = effects[_controls(effects, kind, column)].to_numpy(float)
        shares = against.sum(axis=0) / delta.sum() if not small else np.array([])
        cells = (*_cells(share, small), float(effects[column].mean()))
        mean, low, high, m, p, percentile = among(share.mean, shares)
        spread = (m, mean, low, high, percentile, p)
        label, k = column[1], int(column[2])
        lines.append(
            (label, k, *cells, kind, *spread, *_cells(excess, small or not kind), share.n, share.n_clusters)
        )
    return lines


def _controls(effects: pd.DataFrame, kind: str, column: tuple[str, str, int]) -> list[tuple[str, str, int]]:
    """The controls of one kind drawn for a selected set: labelled after it, as `top16/random3`."""
    return [one for one in effects.columns if one[0] == kind and one[1].startswith(f"{column[1]}/")]


def _cells(share: Interval, undefined: bool) -> tuple[float, float, float]:
    return (math.nan,) * 3 if undefined else (share.mean, share.lo, share.hi)


def off_target(rows: pd.DataFrame, delta: float, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """What a change that removes Δcopy does to what it should leave alone, with an equivalence bound.

    Args:
        rows: env, item_id, task_id, method, set, k, quantity (reference | sem), whole and under (nats).
        delta: nats; a change whose whole interval lies inside ±delta counts as none.
        rng_for: gives the streams `off target/ENV/METHOD/SET/QUANTITY`.
        n_draws: bootstrap draws.

    Returns:
        The columns of OFF_TARGET: means over items, and the mean paired change with its interval.

    Raises:
        InputError: a column or number is missing, a row stands twice, or delta is not above 0.
    """
    require(rows, _OFF, ["item_id", "method", "set", "quantity"])
    if not delta > 0:
        raise InputError("The bound of an equivalence is above 0.")
    lines = []
    for (env, method, label, quantity), group in rows.groupby(
        ["env", "method", "set", "quantity"], sort=False
    ):
        rng = rng_for(f"off target/{env}/{method}/{label}/{quantity}")
        change = (group["under"] - group["whole"]).to_numpy(float)
        found = cluster_bootstrap(change, group["task_id"], rng, n_draws)
        means = (float(group["whole"].mean()), float(group["under"].mean()))
        lines.append(
            (env, method, label, int(group["k"].iloc[0]), quantity, *means, found.mean, found.lo, found.hi)
            + (delta, equivalent(found, delta), found.n, found.n_clusters)
        )
    return pd.DataFrame(lines, columns=list(OFF_TARGET))
