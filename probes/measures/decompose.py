"""How much of −G is Δcopy, how the two parts compare, how often each sign occurs, and what is shown to be unchanged.

    copy_share              Σ copy / Σ −G over items: a ratio of sums, since a mean of ratios is ruled by the items
                            whose G is near zero; above 1 where Δsem is negative
    copy_share_pad          Σ copy_pad / Σ −G, with the neutral observation as long as the error
    copy_after_share        Σ copy_after / Σ −G: the share of the string in the other order, the mark of failure first
    interaction             mean of interaction = sem − sem_first = copy_after − copy, nats: how far the orders disagree
    interaction_share       Σ interaction / Σ −G = copy_after_share − copy_share, of the same items
    …_min                   these three with the bare marker for o×
    margin_…                the same of the margin of a× over the reference (margin_copy, …; margin_shift for G)
    copy_sem_ratio_median   median over items of copy / |sem|
    share_G_negative, share_copy_positive, share_sem_positive
                            share of items with that sign; zero has neither sign

Where sem is exactly 0 the item's ratio is infinite, with the sign of copy: larger than every other, which a median
can use. Where copy is 0 as well there is no ratio, and the item is left out of that line (its n says so). Every
other quantity is over the items that have what it needs; nothing missing counts as zero. Clusters are what `task_id`
names; `deff` is the design effect (`probes.stats.bootstrap`), NaN for a median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import (
    N_DRAWS,
    Interval,
    RngFactory,
    cluster_bootstrap,
    cluster_median,
    cluster_rate,
    cluster_ratios,
    equivalent,
)
from probes.stats.frame_checks import MIN_DELTA, require

_MEASURED = ("model", "env", "item_id", "task_id", "measure", "value")


def decomposition_table(measures: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The quantities above, of each model and environment; clusters are tasks.

    Args:
        measures: long frame with model, env, item_id, task_id, measure, value.
        rng_for: gives the stream of `decompose/MODEL/ENV/QUANTITY`.
        n_draws: bootstrap draws.

    Returns:
        model, env, quantity, estimate, ci_lo, ci_hi, n, n_clusters, deff; a quantity whose measures no item has is
        left out. A share of a mean −G below `MIN_DELTA` (absolute) is NaN, and so is an infinite median.

    Raises:
        InputError: a column or number is missing, or a value occurs twice.
    """
    require(measures, _MEASURED, ["model", "env", "item_id", "measure"])
    lines = []
    for (model, env), group in measures.groupby(["model", "env"], sort=True):
        wide = group.pivot(index=["item_id", "task_id"], columns="measure", values="value")
        for quantity, (needs, estimate) in _QUANTITIES.items():
            if not set(needs) <= set(wide.columns):
                continue
            values = wide[list(needs)].dropna()
            if len(values) == 0:
                continue
            found = estimate(values, rng_for(f"decompose/{model}/{env}/{quantity}"), n_draws)
            shown = found.mean if math.isfinite(found.mean) else math.nan
            about = {"model": model, "env": env, "quantity": quantity}
            lines.append({**about, **found.columns("estimate"), "estimate": shown, "deff": found.deff})
    return pd.DataFrame(lines)


def equivalences(
    measures: pd.DataFrame, deltas: Mapping[str, float], rng_for: RngFactory, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """Which measures are shown to be zero to within ±delta: the interval lies inside.

    Args:
        measures: as `decomposition_table`.
        deltas: measure → the half-width, in the measure's unit, within which it counts as unchanged. Those that
            were not measured have no line.
        rng_for: gives the stream of `equivalence/MODEL/ENV/MEASURE`.
        n_draws: bootstrap draws.

    Returns:
        model, env, measure, mean, ci_lo, ci_hi, delta, equivalent. False means not shown: also where there is no
        interval.

    Raises:
        InputError: as `decomposition_table`, or a delta is not above zero.
    """
    require(measures, _MEASURED, ["model", "env", "item_id", "measure"])
    for name, delta in deltas.items():
        if not delta > 0:
            raise InputError(f"The delta of {name} must be above 0, not {delta}: it is a half-width.")
    lines = []
    chosen = measures[measures["measure"].isin(deltas)]
    for (model, env, name), group in chosen.groupby(["model", "env", "measure"], sort=True):
        rng = rng_for(f"equivalence/{model}/{env}/{name}")
        found = cluster_bootstrap(group["value"], group["task_id"], rng, n_draws)
        delta = float(deltas[name])
        lines.append(
            {
                **{"model": model, "env": env, "measure": name},
                **dict(zip(("mean", "ci_lo", "ci_hi"), found.cells, strict=True)),
                **{"delta": delta, "equivalent": equivalent(found, delta)},
            }
        )
    return pd.DataFrame(lines)


Estimate = Callable[[pd.DataFrame, np.random.Generator, int], Interval]
"""Items down, needed measures across, indexed by item_id and task_id → an estimate with its interval."""


def _tasks(values: pd.DataFrame) -> pd.Index:
    return values.index.get_level_values("task_id")


def _mean_of(name: str) -> Estimate:
    """Mean over items, nats."""
    return lambda values, rng, n_draws: cluster_bootstrap(values[name], _tasks(values), rng, n_draws)


def _share_of(part: str, gain: str = "G") -> Estimate:
    """Σ part / Σ −G, or of another gain."""

    def estimate(values: pd.DataFrame, rng: np.random.Generator, n_draws: int) -> Interval:
        parts, gains = values[[part]].to_numpy(float), -values[[gain]].to_numpy(float)
        [found] = cluster_ratios(parts, gains, _tasks(values), rng, n_draws)
        return Interval.unknown(*found.counts) if abs(gains.mean()) < MIN_DELTA else found

    return estimate


def _ratio_median(values: pd.DataFrame, rng: np.random.Generator, n_draws: int) -> Interval:
    """Median of copy / |sem|."""
    defined = values[(values["copy"] != 0) | (values["sem"] != 0)]
    with np.errstate(divide="ignore"):  # the infinity is meant
        ratios = defined["copy"].to_numpy(float) / np.abs(defined["sem"].to_numpy(float))
    return cluster_median(ratios, _tasks(defined), rng)


def _sign_share(name: str, sign: int) -> Estimate:
    """Share of items whose measure has the sign."""
    return lambda values, rng, n_draws: cluster_rate(np.sign(values[name]) == sign, _tasks(values))


def _quantities() -> Iterator[tuple[str, tuple[tuple[str, ...], Estimate]]]:
    yield "copy_share", (("copy", "G"), _share_of("copy"))
    yield "copy_share_pad", (("copy_pad", "G"), _share_of("copy_pad"))
    for mark in ("", "_min"):
        after, both = f"copy_after{mark}", f"interaction{mark}"
        yield f"{after}_share", ((after, "G"), _share_of(after))
        yield both, ((both,), _mean_of(both))
        yield f"{both}_share", ((both, "G"), _share_of(both))
    for part in ("copy", "copy_after", "interaction", "copy_after_min", "interaction_min"):
        needs = (f"margin_{part}", "margin_shift")
        yield f"margin_{part}_share", (needs, _share_of(f"margin_{part}", "margin_shift"))
    yield "copy_sem_ratio_median", (("copy", "sem"), _ratio_median)
    for name, word, sign in (("G", "negative", -1), ("copy", "positive", 1), ("sem", "positive", 1)):
        yield f"share_{name}_{word}", ((name,), _sign_share(name, sign))


_QUANTITIES = dict(_quantities())
"""Quantity → the measures an item must have, and how it is estimated."""
