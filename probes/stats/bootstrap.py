"""Statistics of items that come in clusters: estimates, intervals, exact tests, equivalence.

Items of one task share a world and a prompt, so tasks are the independent units (or templates, or system prompts:
`--cluster`). With s_c and n_c the sums of numerators and denominators over the items of cluster c (a mean has
denominators of 1), θ = Σ s_c / Σ n_c and r_c = s_c − θ n_c, for C clusters:

    standard error  se = √(C / (C−1) · Σ r_c²) / |Σ n_c|, the linearised cluster-robust error (CR1)
    design effect   deff = se² over what it would be if every item were a cluster of its own
    test            sign flips over clusters: of all 2^m ways to give the m non-zero s_c a sign, the share whose sum is
                    at least as far from 0 as the observed one (two-sided, the observed one included). Null: each s_c is
                    as likely to be −s_c. Exact up to `EXACT` non-zero clusters; beyond, b of `N_FLIPS` random flips
                    give p = (b + 1) / (N_FLIPS + 1) (Phipson & Smyth 2010). 0/1 differences with an item a cluster
                    make it McNemar's exact test. No p where even all of one sign could not reach .05: m < 6.
    skewness        where differences are skewed, "the mean is 0" is not "each s_c is as likely to be −s_c", and the
                    flips alone err more often than they say. p is therefore the larger of theirs and of the one at
                    which the interval below just reaches 0, so that p ≤ .05 never goes with an interval that
                    includes 0. Not so for 0/1 differences and others with `bounds`: the two nulls are (nearly) one.
    interval        studentised cluster bootstrap (bootstrap-t; Davison & Hinkley 1997, section 5.2; Cameron, Gelbach &
                    Miller 2008): quantiles of t* = (θ* − θ) / se* over draws of C clusters with replacement, se* of the
                    draw but at least `FLOOR` of se, so that no draw's t* is infinite; each end is the wider of this one
                    and of θ ± se · t(C−1). No interval for fewer than `MIN_CLUSTERS` clusters.
    shares, rates   and 0/1 differences: the t-interval of the clusters and two more of average size, one at each bound
                    of the range, cut at the bounds (after Agresti & Coull 1998, Agresti & Min 2005). Also where all
                    items agree, and never outside the range.
    medians         all values m that the sign-flip test of Σ sign(x − m) over the clusters does not reject at .05: with
                    an item a cluster, the order-statistic interval.

`backfire calibrate` simulates the error of the tests and the coverage of the intervals; docs/statistics.md has its
table. All columns of one call see the same draws. NaN in, NaN out. `degenerate` marks an estimate without an interval
that could be read: too few clusters, values that do not vary (zero width), a denominator that may vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from jaxtyping import Float, Int, Shaped
from scipy.special import ndtr, stdtr, stdtrit

from mech.errors import InputError
from probes.stats.families import corrected, null_is_zero

N_DRAWS = 10_000
N_FLIPS = 20_000
EXACT = 24
"""Non-zero clusters up to which all sign patterns are counted: 2^24, by pairs of 2^12."""
MIN_CLUSTERS = 6
"""Fewer clusters have no interval, and no sign pattern with a two-sided p of .05: 2 / 2^5 is .0625."""
FLOOR = 0.25
MAX_DROPPED = 0.05  # share of draws that may lack what a statistic needs before its interval is given up
RATE = (0.0, 1.0)
"""The range of a share, a rate or a probability, as `bounds`."""
_MAX_CELLS = 500_000  # draws × columns held at once: 4 MB, which stay in the cache
_ROUNDING = 1e-12
_TIE = 1e-9

RngFactory = Callable[[str], np.random.Generator]
"""Name of a statistic → its own stream of random numbers."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, counts, two-sided p and design effect."""

    mean: float
    lo: float
    hi: float
    n: int
    n_clusters: int
    p: float
    degenerate: bool
    deff: float = math.nan

    @classmethod
    def unknown(cls, n: int = 0, n_clusters: int = 0) -> Interval:
        """NaN throughout, and flagged."""
        return cls(math.nan, math.nan, math.nan, n, n_clusters, math.nan, True)

    @property
    def cells(self) -> tuple[float, float, float]:
        """Mean, lo and hi."""
        return self.mean, self.lo, self.hi

    @property
    def counts(self) -> tuple[int, int]:
        """Items and clusters."""
        return self.n, self.n_clusters

    def columns(self, mean: str = "mean") -> dict[str, float]:
        """What a table has of it: `mean` (or another name), ci_lo, ci_hi, n, n_clusters."""
        return {
            mean: self.mean,
            "ci_lo": self.lo,
            "ci_hi": self.hi,
            "n": self.n,
            "n_clusters": self.n_clusters,
        }


def cluster_bootstrap(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    level: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Interval:
    """Mean over items with its interval and sign-flip p.

    Args:
        values: one number per item.
        clusters: one label per item.
        rng: the stream of this statistic.
        n_draws: bootstrap draws.
        level: coverage of the interval.
        bounds: the range of the values, such as `RATE`; differences that vary and are all −1, 0 or 1 are taken
            to be bounded by −1 and 1.

    Returns:
        The same for any order of the items.

    Raises:
        InputError: there are not as many clusters as values, a cluster has no label, or a value is out of bounds.
    """
    numbers = np.asarray(values, dtype=float)
    labels = _labels(clusters, len(numbers))
    order = np.lexsort((numbers, labels))
    column = numbers[order][:, None]
    return cluster_ratios(column, np.ones_like(column), labels[order], rng, n_draws, level, bounds)[0]


def cluster_ratios(
    numerators: Float[np.ndarray, "item column"],
    denominators: Float[np.ndarray, "item column"],
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    level: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> list[Interval]:
    """Σ numerators / Σ denominators of each column, with intervals; all columns see the same draws.

    p is that of "the sum of the numerators is 0". A ratio whose denominator changes its sign (or vanishes) in some draw
    has no interval: it is NaN, and flagged. So is everything about a column with a NaN.

    Args:
        numerators: one row an item.
        denominators: likewise.
        clusters: one label an item.
        rng: the stream of these statistics.
        n_draws: bootstrap draws.
        level: coverage of the interval.
        bounds: the range of the values, where the denominators are all 1.

    Raises:
        InputError: as `cluster_bootstrap`.
    """
    n_items, n_columns = numerators.shape
    codes, n_clusters = cluster_codes(clusters, n_items)
    if n_items == 0:
        return [Interval.unknown()] * n_columns
    tops, bottoms = cluster_sums(numerators, codes, n_clusters), cluster_sums(denominators, codes, n_clusters)
    estimates = _divide(tops.sum(0), bottoms.sum(0))
    known = np.isfinite(estimates) & np.isfinite(tops).all(0) & np.isfinite(bottoms).all(0)
    lo, hi = np.full((2, n_columns), np.nan)
    skewed = np.zeros(n_columns)
    constant = np.zeros(n_columns, dtype=bool)
    deffs = np.full(n_columns, np.nan)
    if known.any() and n_clusters > 1:
        residuals = tops[:, known] - estimates[known] * bottoms[:, known]
        errors = _standard_error(residuals, bottoms[:, known])
        constant[known] = errors <= _ROUNDING * np.maximum(np.abs(estimates[known]), 1e-300)
        items = numerators[:, known] - estimates[known] * denominators[:, known]
        deffs[known] = _divide(errors, _standard_error(items, denominators[:, known])) ** 2
        deffs[constant] = np.nan
        if n_clusters >= MIN_CLUSTERS:
            counts = draw_clusters(n_clusters, rng, n_draws)
            ends = _studentised(estimates[known], errors, residuals, bottoms[:, known], counts, level)
            lo[known], hi[known], skewed[known] = ends
            lo[constant] = hi[constant] = estimates[constant]
    if bounds is not None:
        _check_bounds(numerators[:, known], denominators, bounds)
    limited = known & (n_clusters >= MIN_CLUSTERS)
    if bounds is None:
        bounds = (-1.0, 1.0)
        limited &= ~constant & np.isin(numerators, (-1.0, 0.0, 1.0)).all(0) & (denominators == 1).all(0)
    for column in np.flatnonzero(limited):
        lo[column], hi[column] = _bounded(tops[:, column], bottoms[:, column], bounds, level)
    p = np.full(n_columns, np.nan)
    magnitudes = cluster_sums(np.abs(numerators), codes, n_clusters)
    p[known] = sign_flip(tops[:, known], rng, magnitudes[:, known])
    p = np.where(limited, p, np.maximum(p, np.nan_to_num(skewed)))
    flagged = np.isnan(lo) | (constant & ~limited)
    return [
        Interval(mean, low, high, n_items, n_clusters, p_of, bool(flag), deff)
        for mean, low, high, p_of, flag, deff in zip(
            *(values.tolist() for values in (estimates, lo, hi, p, flagged, deffs)), strict=True
        )
    ]


def cluster_means(
    values: Float[np.ndarray, "item column"],
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
) -> list[Interval]:
    """The mean over items of each column, as `cluster_ratios` with denominators of 1."""
    return cluster_ratios(values, np.ones_like(values), clusters, rng, n_draws)


def cluster_rate(values: npt.ArrayLike, clusters: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Mean of values between 0 and 1 (a share, a rate, a probability) with an interval inside [0, 1] and no p.

    No draw is needed. One counter-example refutes "the rate is zero", so there is no p.

    Raises:
        InputError: as `cluster_bootstrap`.
    """
    found = cluster_bootstrap(values, clusters, np.random.Generator(np.random.PCG64(0)), 0, level, RATE)
    return replace(found, p=math.nan)


def cluster_median(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    level: float = 0.95,
) -> Interval:
    """Median over items, its interval and the p of "the median is 0"; of an even number, the mean of the middle two.

    An infinite value is the largest (or smallest) there is and moves a finite median no further than any large
    one; where an end of the interval would be infinite there is none: NaN, and flagged.

    Args:
        values: one number per item.
        clusters: one label per item.
        rng: the stream of this statistic, for random flips.
        level: coverage of the interval.

    Raises:
        InputError: as `cluster_bootstrap`.
    """
    numbers = np.asarray(values, dtype=float)
    n_items = len(numbers)
    codes, n_clusters = cluster_codes(clusters, n_items)
    if n_items == 0 or np.isnan(numbers).any():
        return Interval.unknown(n_items, n_clusters)
    ascending = np.sort(numbers)
    with np.errstate(invalid="ignore"):  # between -inf and inf there is no middle: NaN
        estimate = float((ascending[(n_items - 1) // 2] + ascending[n_items // 2]) / 2)
    lo = hi = math.nan
    p = float(sign_flip(cluster_sums(np.sign(numbers)[:, None], codes, n_clusters), rng)[0])
    if n_clusters >= MIN_CLUSTERS and math.isfinite(estimate):
        lo, hi = _median_ends(numbers, codes, n_clusters, rng, 1 - level)
        if not (math.isfinite(lo) and math.isfinite(hi)):
            lo = hi = math.nan
    return Interval(estimate, lo, hi, n_items, n_clusters, p, not lo < hi)


def sign_flip(
    sums: Float[np.ndarray, "cluster column"],
    rng: np.random.Generator,
    magnitudes: Float[np.ndarray, "cluster column"] | None = None,
    n_flips: int = N_FLIPS,
) -> Float[np.ndarray, " column"]:
    """Two-sided p of each column under "every cluster's sum is as likely to have the other sign".

    Exact up to `EXACT` non-zero clusters by meeting in the middle: all sums of either half of the clusters, and for
    each of the one half the number of those of the other that reach the observed total.

    Args:
        sums: per cluster; zeros are left out, as flipping them changes nothing.
        rng: for the random flips of columns with more non-zero clusters.
        magnitudes: what rounding is measured against, such as Σ |value| of each cluster; |sums| if None.
        n_flips: random flips, the same for all columns.

    Returns:
        NaN where fewer than `MIN_CLUSTERS` clusters are non-zero.
    """
    scale = np.abs(sums) if magnitudes is None else magnitudes
    filled = np.where(np.abs(sums) > _ROUNDING * scale, sums, 0.0)
    n_nonzero = (filled != 0).sum(axis=0)
    p = np.full(sums.shape[1], np.nan)
    for column in np.flatnonzero((n_nonzero >= MIN_CLUSTERS) & (n_nonzero <= EXACT)):
        p[column] = _exact_flips(filled[filled[:, column] != 0, column])
    many = np.flatnonzero(n_nonzero > EXACT)
    if len(many):
        signs = rng.integers(0, 2, size=(n_flips, len(sums)), dtype=np.int8).astype(float) * 2 - 1
        least = np.abs(filled.sum(axis=0)) - _TIE * np.abs(filled).sum(axis=0)
        block = max(1, _MAX_CELLS // n_flips)
        for at in range(0, len(many), block):
            some = many[at : at + block]
            extreme = (np.abs(signs @ filled[:, some]) >= least[some]).sum(axis=0)
            p[some] = (extreme + 1) / (n_flips + 1)
    return p


def _exact_flips(sums: Float[np.ndarray, " cluster"]) -> float:
    """Share of all sign patterns whose sum is at least as far from zero as the observed one."""
    least = abs(float(sums.sum())) - _TIE * float(np.abs(sums).sum())
    if least <= 0:
        return 1.0
    half = len(sums) // 2
    left, right = _all_sums(sums[:half]), _all_sums(sums[half:])
    # Patterns come in pairs ±: those above `least` are as many as those below −least.
    above = len(right) * len(left) - int(np.searchsorted(right, least - left).sum())
    return min(1.0, 2 * above / (len(left) * len(right)))


def _all_sums(values: Float[np.ndarray, " cluster"]) -> Float[np.ndarray, " pattern"]:
    """Σ ± value over all sign patterns, in ascending order."""
    sums = np.zeros(1)
    for value in np.abs(values):
        sums = np.concatenate([sums - value, sums + value])
    return np.sort(sums)


def _standard_error(
    residuals: Float[np.ndarray, "unit column"], bottoms: Float[np.ndarray, "unit column"]
) -> Float[np.ndarray, " column"]:
    """The linearised error of a ratio over units (clusters, or items) with the factor units / (units − 1)."""
    n = len(residuals)
    return np.sqrt(n / (n - 1) * (residuals**2).sum(0)) / np.abs(bottoms.sum(0))


def _studentised(
    estimates: Float[np.ndarray, " column"],
    errors: Float[np.ndarray, " column"],
    residuals: Float[np.ndarray, "cluster column"],
    bottoms: Float[np.ndarray, "cluster column"],
    counts: Float[np.ndarray, "draw cluster"],
    level: float,
) -> Float[np.ndarray, "3 column"]:
    """Ends of the bootstrap-t intervals, each the wider of it and of the t-interval, and the p that goes with them.

    NaN where a denominator vanishes in a draw. p is at most 1 − level exactly where the interval excludes 0: the larger
    of the t-test's and of 2 (b + 1) / (B + 1), b of B draws having a t* beyond θ / se on its side (0 if none has).

    In a draw w: d = θ* − θ = w·r / w·n, and the residuals of the draw are r − d n, so that their squares sum to
    w·r² − 2 d w·(r n) + d² w·n²: three matrix products for all draws and columns.
    """
    n_draws, n_clusters = counts.shape
    lo, hi, p = np.full((3, len(estimates)), np.nan)
    widest = float(stdtrit(n_clusters - 1, (1 + level) / 2))
    certain = np.where(estimates == 0, 0.0, np.copysign(np.inf, estimates))  # what does not vary
    observed = np.divide(estimates, errors, out=certain, where=errors > 0)
    normal = 2 * stdtr(n_clusters - 1, -np.abs(observed))
    if n_draws == 0:
        return np.stack([estimates - widest * errors, estimates + widest * errors, normal])
    tail = (1 - level) / 2
    low_place = max(0, math.floor(tail * (n_draws + 1)) - 1)  # the outer of two draws: no interpolation
    high_place = n_draws - 1 - low_place
    sign = np.sign(bottoms.sum(0))
    factor = n_clusters / (n_clusters - 1)
    same = bool(
        (bottoms == bottoms[:, :1]).all()
    )  # one denominator for all columns: its products are made once
    block = max(1, _MAX_CELLS // n_draws)
    for at in range(0, len(estimates), block):
        some = slice(at, at + block)
        under = bottoms[:, :1] if same else bottoms[:, some]
        r = residuals[:, some]
        below = counts @ under
        crossing = (np.sign(below) != (sign[:1] if same else sign[some])).any(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            # In place, as these arrays are large: moved = d, own = the squares and then se*.
            moved = counts @ r
            moved /= below
            own = counts @ (r * under)
            own *= -2
            own += moved * (counts @ under**2)
            own *= moved
            own += counts @ r**2
            np.maximum(own, 0, out=own)
            np.sqrt(own, out=own)
            own *= math.sqrt(factor) / np.abs(below)
            np.maximum(own, FLOOR * errors[some], out=own)
            t = np.divide(moved, own, out=moved)
        ranked = np.partition(t.T.copy(), (low_place, high_place), axis=1)
        lowest, highest = ranked[:, low_place], ranked[:, high_place]
        lo[some] = estimates[some] - np.maximum(highest, widest) * errors[some]
        hi[some] = estimates[some] + np.maximum(-lowest, widest) * errors[some]
        side = np.sign(observed[some])
        beyond = (t * side >= np.abs(observed[some])).sum(axis=0)
        p[some] = np.maximum(normal[some], np.where(beyond > 0, 2 * (beyond + 1) / (n_draws + 1), 0))
        gone = np.broadcast_to(crossing, lo[some].shape)
        lo[some][gone] = hi[some][gone] = p[some][gone] = np.nan
    return np.stack([lo, hi, np.minimum(p, 1)])


def _bounded(
    tops: Float[np.ndarray, " cluster"],
    sizes: Float[np.ndarray, " cluster"],
    bounds: tuple[float, float],
    level: float,
) -> tuple[float, float]:
    """Ends of the t-interval of the clusters and one more at each bound, cut at the bounds; the estimate is inside."""
    size = sizes.mean()
    tops, padded = np.append(tops, np.multiply(bounds, size)), np.append(sizes, (size, size))
    middle = tops.sum() / padded.sum()
    error = float(_standard_error((tops - middle * padded)[:, None], padded[:, None])[0])
    reach = float(stdtrit(len(tops) - 1, (1 + level) / 2)) * error
    estimate = (tops.sum() - size * sum(bounds)) / sizes.sum()
    lo, hi = min(middle - reach, estimate), max(middle + reach, estimate)
    return max(bounds[0], float(lo)), min(bounds[1], float(hi))


def _median_ends(
    numbers: Float[np.ndarray, " item"],
    codes: Int[np.ndarray, " item"],
    n_clusters: int,
    rng: np.random.Generator,
    alpha: float,
) -> tuple[float, float]:
    """The least and the largest value that the sign-flip test of Σ sign(x − m) does not reject as the median.

    Tried are every value that occurs and every gap between two, in whose inside the signs stay the same, from either
    end inwards until one is not rejected. Those beyond √(2 ln(2/α)) standard deviations of the flips need no test
    (Hoeffding).
    """
    points = np.unique(numbers)
    ranks = np.searchsorted(points, numbers)
    # Places 0, 1, 2, … are point 0, the gap above it, point 1, …; an item of rank r is at place 2r.
    places = np.arange(2 * len(points) - 1)
    sums = cluster_sums(np.sign(2 * ranks[:, None] - places[None, :]).astype(float), codes, n_clusters)
    near = places[np.abs(sums.sum(0)) <= math.sqrt(2 * math.log(2 / alpha)) * np.sqrt((sums**2).sum(0))]

    def first_kept(order: Int[np.ndarray, " place"]) -> int | None:
        for at in range(0, len(order), 16):
            some = order[at : at + 16]
            kept = some[~(sign_flip(sums[:, some], rng) <= alpha)]  # NaN: it cannot be rejected
            if len(kept):
                return int(kept[0])
        return None

    lowest, highest = first_kept(near), first_kept(near[::-1])
    if lowest is None or highest is None:
        return math.nan, math.nan
    return float(points[lowest // 2]), float(points[(highest + 1) // 2])


def draw_clusters(
    n_clusters: int, rng: np.random.Generator, n_draws: int
) -> Float[np.ndarray, "draw cluster"]:
    """How many times each draw takes each cluster."""
    return rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=n_draws).astype(float)


def percentile_ends(
    draws: Float[np.ndarray, " draw"], n_clusters: int, level: float = 0.95
) -> tuple[float, float]:
    """Ends of the expanded percentile interval, for statistics that have no standard error of their own.

    The tails are Φ(−√(C / (C−1)) · t(C−1)) in place of 2.5 %: as much wider as a t-interval is than one that takes C
    clusters for many (Hesterberg 2015, The American Statistician 69, 371, section 3.3).

    Returns:
        NaN for fewer than `MIN_CLUSTERS` clusters, or where a draw is not finite.
    """
    if n_clusters < MIN_CLUSTERS or len(draws) == 0 or not np.isfinite(draws).all():
        return math.nan, math.nan
    reach = math.sqrt(n_clusters / (n_clusters - 1)) * float(stdtrit(n_clusters - 1, (1 + level) / 2))
    tail = float(ndtr(-reach))
    lo, hi = np.quantile(draws, [tail, 1 - tail])
    return float(lo), float(hi)


def equivalent(interval: Interval, delta: float) -> bool:
    """Whether "unchanged" is shown: all of the interval lies inside ±delta. False means not shown."""
    return -delta < interval.lo and interval.hi < delta


def summarise(measures: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Mean, interval and p of each measure of each model and environment.

    Args:
        measures: long frame with model, env, item_id, task_id (the cluster), measure, value.
        rng_for: gives the stream of `bootstrap/MODEL/ENV/MEASURE`.
        n_draws: bootstrap draws.

    Returns:
        model, env, measure, mean, ci_lo, ci_hi, n, n_clusters, deff, p, p_holm, family_size, sorted by the first three;
        an empty frame where nothing was measured. Probabilities, shares and rates have no p
        (`probes.stats.families.null_is_zero`). `p_holm` is corrected over the family "headline".
    """
    lines = []
    keys = ["model", "env", "measure"]
    for key, group in measures.groupby(keys, sort=True):
        rng = rng_for("bootstrap/" + "/".join(map(str, key)))
        tested = null_is_zero(str(key[2]))
        bounds = None if tested else RATE
        found = cluster_bootstrap(group["value"], group["task_id"], rng, n_draws, bounds=bounds)
        about = {"deff": found.deff, "p": found.p if tested else math.nan}
        lines.append({**dict(zip(keys, key, strict=True)), **found.columns(), **about})
    return corrected(pd.DataFrame(lines), "headline")


def _check_bounds(
    values: Float[np.ndarray, "item column"],
    denominators: Float[np.ndarray, "item any"],
    bounds: tuple[float, float],
) -> None:
    outside = (values < bounds[0] - _TIE) | (values > bounds[1] + _TIE)
    if outside.any():
        raise InputError(
            f"A value of {float(values[outside][0]):g} is outside the range {bounds[0]:g} to {bounds[1]:g}."
        )
    if not (denominators == 1).all():
        raise InputError("Only means have bounds, not ratios.")


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


def cluster_sums(
    values: Float[np.ndarray, "item column"], codes: Int[np.ndarray, " item"], n_clusters: int
) -> Float[np.ndarray, "cluster column"]:
    """Sum over the items of each cluster; the codes are those of `cluster_codes`."""
    sums = np.zeros((n_clusters, values.shape[1]))
    np.add.at(sums, codes, values)
    return sums


def _divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Elementwise top / bottom, NaN where bottom is 0."""
    return np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom != 0)
