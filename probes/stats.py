"""Statistics of items that come in clusters: bootstrap intervals, p-values, Holm's correction, equivalence.

Items of one task share a world and a prompt, so tasks are drawn, not items. One draw of the percentile
cluster bootstrap takes as many clusters as there are, with replacement, and pools all their items: with s the
sums and n the sizes of the clusters and w ~ Multinomial(C, 1/C) the number of times each was taken, its mean
is w·s / w·n. All draws are one matrix product. A ratio of means, Σa / Σb, is the same with the sums of b in
place of n. A median is one too: with the items in ascending order and m the number of each cluster's items up to a
place in that order, w·m is the rank the draw reaches there, and its median stands where the rank passes half.

p-values are two-sided and come from the draws centred on the estimate (the null "the mean is zero"): with b
of m centred draws at least as far from zero as the estimate, p = (b + 1) / (m + 1), never 0.

What a percentile bootstrap cannot express: an interval from one cluster (NaN here) and one from values that
do not vary (zero width here, p NaN); both are flagged `degenerate`. With fewer than about ten clusters it is
too narrow. NaN in, NaN out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from jaxtyping import Float, Int, Shaped

from mech.errors import InputError
from probes.families import corrected as _corrected
from probes.families import family_size as family_size
from probes.families import holm as holm
from probes.families import null_is_zero

SUMMARY = ("model", "env", "measure", "mean", "ci_lo", "ci_hi", "n", "n_clusters", "p", "p_holm")
HEADLINE = "G"  # the declared family: the sign of G, one test per model and environment
N_DRAWS = 10_000
MAX_DROPPED = 0.05  # share of draws that may lack what a statistic needs before its interval is given up
_MAX_CELLS = 4_000_000  # draws × items held at once for a median: 32 MB

RngFactory = Callable[[str], np.random.Generator]
"""Name of a statistic → its own stream of random numbers."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile interval, counts and two-sided p."""

    mean: float
    lo: float
    hi: float
    n: int
    n_clusters: int
    p: float
    degenerate: bool


def cluster_bootstrap(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    level: float = 0.95,
) -> Interval:
    """Mean over items with its cluster-bootstrap interval.

    Args:
        values: one number per item.
        clusters: one label per item.
        rng: the stream of this statistic.
        n_draws: bootstrap draws.
        level: coverage of the interval.

    Returns:
        The same for any order of the items.

    Raises:
        InputError: there are not as many clusters as values, or a cluster has no label.
    """
    numbers = np.asarray(values, dtype=float)
    labels = _labels(clusters, len(numbers))
    order = np.lexsort((numbers, labels))
    column = numbers[order][:, None]
    return cluster_ratios(column, np.ones_like(column), labels[order], rng, n_draws, level)[0]


def cluster_ratios(
    numerators: Float[np.ndarray, "item column"],
    denominators: Float[np.ndarray, "item column"],
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    level: float = 0.95,
) -> list[Interval]:
    """Σ numerators / Σ denominators of each column, with intervals; all columns see the same draws.

    A ratio whose denominator changes its sign (or vanishes) in some draw has no percentile interval: it is
    NaN, and flagged. So is everything about a column that holds NaN.

    Raises:
        InputError: as `cluster_bootstrap`.
    """
    n_items, n_columns = numerators.shape
    codes, n_clusters = cluster_codes(clusters, n_items)
    if n_items == 0:
        return [Interval(math.nan, math.nan, math.nan, 0, 0, math.nan, True)] * n_columns
    tops, bottoms = _sums(numerators, codes, n_clusters), _sums(denominators, codes, n_clusters)
    counts = draw_clusters(n_clusters, rng, n_draws)
    # The estimate, and every draw, is top / bottom; NaN where the bottom is zero.
    estimates = _divide(tops.sum(0), bottoms.sum(0))
    bottom_draws = counts @ bottoms
    draws = _divide(counts @ tops, bottom_draws)
    crossing = (np.sign(bottom_draws) != np.sign(bottoms.sum(0))).any(axis=0)
    draws[:, crossing] = np.nan
    return [_interval(float(estimates[c]), draws[:, c], n_items, n_clusters, level) for c in range(n_columns)]


def cluster_median(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    level: float = 0.95,
) -> Interval:
    """Median over items with its cluster-bootstrap interval; of an even number, the mean of the middle two.

    An infinite value is the largest (or smallest) there is and moves a finite median no further than any large
    one; if the median of some draw is infinite there is no interval: NaN, and flagged.

    Args:
        values: one number per item.
        clusters: one label per item.
        rng: the stream of this statistic.
        n_draws: bootstrap draws.
        level: coverage of the interval.

    Raises:
        InputError: as `cluster_bootstrap`.
    """
    numbers = np.asarray(values, dtype=float)
    n_items = len(numbers)
    codes, n_clusters = cluster_codes(clusters, n_items)
    if n_items == 0 or np.isnan(numbers).any():
        return Interval(math.nan, math.nan, math.nan, n_items, n_clusters, math.nan, True)
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    up_to = np.cumsum(codes[order] == np.arange(n_clusters)[:, None], axis=1).astype(float)
    estimate = float(_medians(ascending, np.ones((1, n_clusters)), up_to)[0])
    counts = draw_clusters(n_clusters, rng, n_draws)
    block = max(1, _MAX_CELLS // n_items)
    parts = [_medians(ascending, counts[at : at + block], up_to) for at in range(0, n_draws, block)]
    return _interval(estimate, np.concatenate(parts), n_items, n_clusters, level)


def _medians(
    ascending: Float[np.ndarray, " item"],
    counts: Float[np.ndarray, "draw cluster"],
    up_to: Float[np.ndarray, "cluster item"],
) -> Float[np.ndarray, " draw"]:
    """Median of each draw; `up_to` counts each cluster's items up to every place of the ascending order."""
    ranks = counts @ up_to  # whole numbers, exact in float64
    half = ranks[:, -1:] / 2
    # The first items whose rank reaches the lower and the upper middle; one and the same if the number is odd.
    lower, upper = ((ranks < middle).sum(axis=1) for middle in (np.ceil(half), np.floor(half) + 1))
    with np.errstate(invalid="ignore"):  # between -inf and inf there is no middle: NaN
        return (ascending[lower] + ascending[upper]) / 2


def draw_clusters(
    n_clusters: int, rng: np.random.Generator, n_draws: int
) -> Float[np.ndarray, "draw cluster"]:
    """How many times each draw takes each cluster."""
    return rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=n_draws).astype(float)


def _interval(
    estimate: float, draws: Float[np.ndarray, " draw"], n: int, n_clusters: int, level: float
) -> Interval:
    """Percentiles and p of one column of draws."""
    if n_clusters < 2 or not np.isfinite(draws).all() or not math.isfinite(estimate):
        return Interval(estimate, math.nan, math.nan, n, n_clusters, math.nan, True)
    if np.ptp(draws) <= 1e-12 * max(abs(estimate), 1e-300):
        return Interval(estimate, estimate, estimate, n, n_clusters, math.nan, True)
    tail = (1 - level) / 2
    lo, hi = np.quantile(draws, [tail, 1 - tail])
    # A tie must count whatever the last bit says.
    extreme = np.abs(draws - estimate) >= abs(estimate) * (1 - 1e-12)
    # C clusters have 2^C sign patterns: no fewer than 2 of them are as extreme as all of one sign.
    p = min(1.0, max((int(extreme.sum()) + 1) / (len(draws) + 1), 2.0 ** (1 - n_clusters)))
    return Interval(estimate, float(lo), float(hi), n, n_clusters, p, False)


def share_negative(values: npt.ArrayLike) -> float:
    """Share of items below zero; NaN if there is none or a value is missing: that is not "not negative"."""
    numbers = np.asarray(values, dtype=float)
    return math.nan if len(numbers) == 0 or np.isnan(numbers).any() else float((numbers < 0).mean())


def equivalent(interval: Interval, delta: float) -> bool:
    """Whether "unchanged" is shown: the whole interval lies inside ±delta. False means not shown."""
    return -delta < interval.lo and interval.hi < delta


def summarise(measures: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Mean, interval and p of each measure of each model and environment; clusters are tasks.

    Args:
        measures: long frame with model, env, item_id, task_id, measure, value.
        rng_for: gives the stream of `bootstrap/MODEL/ENV/MEASURE`.
        n_draws: bootstrap draws.

    Returns:
        The columns of `SUMMARY`, sorted by model, env, measure. `p_holm` is corrected over the
        declared family (measure G, all models and environments) and NaN elsewhere. An interval of
        zero width, or NaN, is degenerate.
    """
    lines = []
    for key, group in measures.groupby(["model", "env", "measure"], sort=True):
        rng = rng_for("bootstrap/" + "/".join(map(str, key)))
        found = cluster_bootstrap(group["value"], group["task_id"], rng, n_draws)
        lines.append((*key, found.mean, found.lo, found.hi, found.n, found.n_clusters, found.p, math.nan))
    return corrected(pd.DataFrame(lines, columns=list(SUMMARY)))


def corrected(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary with `p_holm` over the declared family: measure G, all models and environments it holds."""
    headline = summary["measure"] == HEADLINE
    return summary.assign(p_holm=summary["p"].where(headline).pipe(holm))


def _labels(clusters: npt.ArrayLike, n_items: int) -> Shaped[np.ndarray, " item"]:
    """Cluster labels as text, one per item."""
    labels = np.asarray(clusters, dtype=object)
    if labels.shape != (n_items,):
        raise InputError(f"There are {n_items} items and {len(labels)} cluster labels; each item needs one.")
    if pd.isna(labels).any():
        raise InputError("An item has no cluster label (task_id).")
    return labels.astype(str)


def cluster_codes(clusters: npt.ArrayLike, n_items: int) -> tuple[Int[np.ndarray, " item"], int]:
    """Number of each item's cluster, clusters in alphabetical order, and how many there are.

    Raises:
        InputError: as `cluster_bootstrap`.
    """
    names, codes = np.unique(_labels(clusters, n_items), return_inverse=True)
    return codes, len(names)


def _sums(
    values: Float[np.ndarray, "item column"], codes: Int[np.ndarray, " item"], n_clusters: int
) -> Float[np.ndarray, "cluster column"]:
    """Sum of each cluster's items."""
    sums = np.zeros((n_clusters, values.shape[1]))
    np.add.at(sums, codes, values)
    return sums


def _divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Elementwise top / bottom, NaN where bottom is 0."""
    return np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom != 0)
