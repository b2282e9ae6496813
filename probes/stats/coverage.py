"""Error and coverage of the tests and intervals of `probes.stats.bootstrap` with few clusters, the truth known.

    error       share of simulations whose p ≤ .05 although the null holds (type-I error)
    flips       the same of the sign-flip test alone, whose null is symmetry and not a mean of 0
    coverage    share whose interval includes the truth; below, above: the truth lies below, or above, the interval
    width       median width of the intervals over the width that θ ± 1.96 standard errors would have

Items of a cluster share a part: value = √ICC · u_c + √(1−ICC) · e_i, u and e of one distribution with mean 0; clusters
have 1 to 4 items. Values are normal, or lognormal less its mean, exp(σ z) − exp(σ²/2), whose skewness σ sets. Pairs of
0/1 outcomes differ by +1 or −1 with probabilities of a Dirichlet draw a cluster, 0/1 outcomes are beta-binomial, both
with that ICC. Of a run, clusters are drawn with replacement, with all their items: the run's own items, with their
shape, sizes and dependence, are then the population, and its mean (ratio, median) the truth. Medians are of the
same populations.

Simulations of a block share their cluster sizes, which differ between blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import skew

from mech.errors import InputError
from probes.stats.bootstrap import (
    MIN_CLUSTERS,
    RATE,
    Interval,
    RngFactory,
    cluster_median,
    cluster_ratios,
    cluster_sums,
    sign_flip,
)

ALPHA = 0.05
BLOCK = 250
FLIPS = 4999
ICC = 0.5
MEDIANS = 4
"""Medians have this many times fewer simulations: each is tested at every item."""


@dataclass(frozen=True)
class Block:
    """Simulations with the same cluster sizes; the statistic is Σ numerators / Σ denominators, or a median."""

    numerators: Float[np.ndarray, "item simulation"]
    denominators: Float[np.ndarray, "item simulation"]
    codes: np.ndarray


Draw = Callable[[np.random.Generator, int, int], Block]
"""Generator, clusters, simulations → a block."""
Shape = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""Generator, shape of the array → values with mean 0."""
Values = Callable[[np.random.Generator, np.ndarray, int], np.ndarray]
"""Generator, cluster of each item, simulations → values [item, simulation]."""


@dataclass(frozen=True)
class Population:
    """What simulations are drawn from; the null is "truth = 0"."""

    statistic: str
    name: str
    truth: float
    draw: Draw
    bounds: tuple[float, float] | None = None

    @property
    def tested(self) -> bool:
        """Whether the null of the test holds here."""
        return self.truth == 0 and self.bounds != RATE


def populations() -> list[Population]:
    """The made ones: lognormal 0.3 is as skewed as our differences are between clusters, 0.5 as between items."""
    made = []
    shapes: Mapping[str, Shape] = {
        "normal": lambda rng, shape: rng.normal(size=shape),
        "lognormal 0.3": _lognormal(0.3),
        "lognormal 0.5": _lognormal(0.5),
        "lognormal 1.0": _lognormal(1.0),
    }
    for name, shape in shapes.items():
        made.append(Population("mean", name, 0.0, _means(shape)))
    for name in ("normal", "lognormal 0.5"):
        made.append(Population("ratio", name, 0.5, _ratios(shapes[name])))
    for name in ("normal", "lognormal 0.5"):
        made.append(Population("median", name, 0.0, _medians(shapes[name])))
    for plus, minus in ((0.25, 0.25), (0.3, 0.1), (0.2, 0.0)):
        label = f"+1: {plus:g}, -1: {minus:g}"
        bounds = (-1.0, 1.0)
        made.append(Population("0/1 difference", label, plus - minus, _pairs(plus, minus), bounds))
    for rate in (0.1, 0.5, 0.9):
        made.append(Population("rate", f"{rate:g}", rate, _outcomes(rate), RATE))
    return made


def run_populations(measures: pd.DataFrame) -> list[Population]:
    """Those of a run: G, copy, sem and their like as means, copy / −G, the median of G, and rates; as far as measured.

    Args:
        measures: item_id, task_id, measure, value, of one model and environment.

    Raises:
        InputError: none of them was measured, or there are fewer than six tasks.
    """
    wide = measures.pivot(index=["task_id", "item_id"], columns="measure", values="value")
    found = []
    for name in ("G", "copy", "sem", "margin_shift"):
        if name in wide.columns:
            values = wide[name].dropna()
            found.append(Population("mean", f"run: {name}", 0.0, _drawn(values - values.mean())))
    if {"G", "copy"} <= set(wide.columns):
        both = wide[["G", "copy"]].dropna()
        truth = float(both["copy"].sum() / -both["G"].sum())
        found.append(Population("ratio", "run: copy / −G", truth, _drawn(both["copy"], -both["G"])))
    if "G" in wide.columns:
        values = wide["G"].dropna()
        found.append(Population("median", "run: G", 0.0, _drawn(values - values.median())))
    for name in ("p_repeat_fail", "greedy_repeat_fail"):
        if name in wide.columns:
            values = wide[name].dropna()
            found.append(Population("rate", f"run: {name}", float(values.mean()), _drawn(values), RATE))
    if not found:
        raise InputError("The run has none of the measures G, copy, sem: there is nothing to draw from.")
    if wide.index.get_level_values("task_id").nunique() < MIN_CLUSTERS:
        raise InputError(f"The run has fewer than {MIN_CLUSTERS} tasks: too few to draw from.")
    return found


def calibrate(
    population: Population, n_clusters: int, simulations: int, n_draws: int, rng_for: RngFactory
) -> dict[str, object]:
    """One line of calibrate.csv.

    Args:
        population: what is simulated.
        n_clusters: of each simulation, at least 6.
        simulations: how many; medians have a quarter of them.
        n_draws: bootstrap draws of each interval.
        rng_for: gives the streams `STATISTIC/POPULATION/CLUSTERS/BLOCK`.

    Returns:
        error and flips are NaN where the null does not hold or there is no test; `attainable` is the share of all sign
        patterns that an exact test at .05 can reject, of which it may fall short in discrete data.
    """
    wanted = simulations if population.statistic != "median" else -(-simulations // MEDIANS)
    name = f"{population.statistic}/{population.name}/{n_clusters}"
    found: list[Interval] = []
    spreads, shapes, flips = [], [], []
    for block, start in enumerate(range(0, wanted, BLOCK)):
        rng = rng_for(f"{name}/{block}")
        data = population.draw(rng, n_clusters, min(BLOCK, wanted - start))
        found += list(_estimates(population, data, n_draws, rng))
        spreads.append(_plain_errors(data, n_clusters))
        shapes.append(_skewness(data, n_clusters))
        if population.tested:
            signs = np.sign(data.numerators) if population.statistic == "median" else data.numerators
            flips.append(sign_flip(cluster_sums(signs, data.codes, n_clusters), rng, n_flips=FLIPS) <= ALPHA)
    lo, hi = np.array([one.lo for one in found]), np.array([one.hi for one in found])
    below, above = population.truth < lo, population.truth > hi
    rejected = np.array([one.p for one in found]) <= ALPHA  # NaN: not tested, so not rejected
    held = (lo <= population.truth) & (population.truth <= hi)
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = (hi - lo) / (2 * 1.96 * np.concatenate(spreads))
    width = math.nan if population.statistic == "median" else float(np.nanmedian(widths))
    error = alone = math.nan
    if population.tested:
        error, alone = float(rejected.mean()), float(np.concatenate(flips).mean())
    skew_items, skew_clusters = np.nanmean(shapes, axis=0).tolist()
    return {
        **{"statistic": population.statistic, "population": population.name},
        **{"n_clusters": n_clusters, "simulations": len(found)},
        **{"skew_items": skew_items, "skew_clusters": skew_clusters},
        **{"error": error, "flips": alone, "attainable": attainable(n_clusters)},
        **{"coverage": float(held.mean()), "below": float(below.mean()), "above": float(above.mean())},
        "width": width,
    }


def attainable(n_clusters: int) -> float:
    """The largest share of the 2^C sign patterns, at most .05, that a two-sided exact test can reject."""
    return 2 * math.floor(ALPHA * 2**n_clusters / 2) / 2**n_clusters


def _estimates(
    population: Population, data: Block, n_draws: int, rng: np.random.Generator
) -> Iterator[Interval]:
    if population.statistic == "median":
        for column in data.numerators.T:
            yield cluster_median(column, data.codes, rng)
        return
    tops, bottoms = data.numerators, data.denominators
    yield from cluster_ratios(tops, bottoms, data.codes, rng, n_draws, bounds=population.bounds)


def _plain_errors(data: Block, n_clusters: int) -> Float[np.ndarray, " simulation"]:
    """The cluster-robust standard error of each simulation, without the factor for few clusters."""
    tops, bottoms = (
        cluster_sums(values, data.codes, n_clusters) for values in (data.numerators, data.denominators)
    )
    residuals = tops - tops.sum(0) / bottoms.sum(0) * bottoms
    return np.asarray(np.sqrt((residuals**2).sum(0)) / np.abs(bottoms.sum(0)))


def _skewness(data: Block, n_clusters: int) -> tuple[float, float]:
    """Skewness over all items, and over all clusters' sums of residuals, of the block's simulations together."""
    centre = data.numerators.sum() / data.denominators.sum()
    residuals = data.numerators - centre * data.denominators
    return float(skew(residuals, axis=None)), float(
        skew(cluster_sums(residuals, data.codes, n_clusters), axis=None)
    )


def _lognormal(sigma: float) -> Shape:
    return lambda rng, shape: np.exp(sigma * rng.normal(size=shape)) - math.exp(sigma**2 / 2)


def _values(shape: Shape, rng: np.random.Generator, codes: np.ndarray, size: int) -> np.ndarray:
    shared = shape(rng, (int(codes[-1]) + 1, size))[codes]
    return math.sqrt(ICC) * shared + math.sqrt(1 - ICC) * shape(rng, (len(codes), size))


def _made(values: Values, denominators: Values | None = None) -> Draw:
    """Blocks of these values, or of ratios; clusters have 1 to 4 items."""

    def draw(rng: np.random.Generator, n_clusters: int, size: int) -> Block:
        codes = np.repeat(np.arange(n_clusters), rng.integers(1, 5, size=n_clusters))
        if denominators is None:
            tops = values(rng, codes, size)
            return Block(tops, np.ones_like(tops), codes)
        bottoms = denominators(rng, codes, size)
        return Block(0.5 * bottoms + 0.3 * values(rng, codes, size), bottoms, codes)

    return draw


def _means(shape: Shape) -> Draw:
    return _made(lambda rng, codes, size: _values(shape, rng, codes, size))


def _medians(shape: Shape) -> Draw:
    """Values less the median of their distribution, which a large sample gives."""
    sample = _values(shape, np.random.Generator(np.random.PCG64(0)), np.repeat(np.arange(50_000), 4), 1)
    middle = float(np.median(sample))
    return _made(lambda rng, codes, size: _values(shape, rng, codes, size) - middle)


def _ratios(shape: Shape) -> Draw:
    """Half of a positive denominator, and values with mean 0; the denominators vary by a third of their mean."""

    def bottoms(rng: np.random.Generator, codes: np.ndarray, size: int) -> np.ndarray:
        return np.exp(_values(lambda r, s: 0.3 * r.normal(size=s), rng, codes, size))

    return _made(lambda rng, codes, size: _values(shape, rng, codes, size), bottoms)


def _pairs(plus: float, minus: float) -> Draw:
    weights = np.array([plus, minus, 1 - plus - minus]) * (1 - ICC) / ICC

    def values(rng: np.random.Generator, codes: np.ndarray, size: int) -> np.ndarray:
        shares = rng.gamma(np.maximum(weights, 1e-12), size=(int(codes[-1]) + 1, size, 3))
        shares = (shares / shares.sum(axis=2, keepdims=True))[codes]
        place = rng.random((len(codes), size))
        up, down = place < shares[..., 0], place >= 1 - shares[..., 1]
        return up.astype(float) - down.astype(float)

    return _made(values)


def _outcomes(rate: float) -> Draw:
    scale = (1 - ICC) / ICC

    def values(rng: np.random.Generator, codes: np.ndarray, size: int) -> np.ndarray:
        chance = rng.beta(rate * scale, (1 - rate) * scale, size=(int(codes[-1]) + 1, size))[codes]
        return (rng.random(chance.shape) < chance).astype(float)

    return _made(values)


def _drawn(values: pd.Series, below: pd.Series | None = None) -> Draw:
    """Clusters of a run with all their items: sizes first, then for each a cluster of that size."""
    under = pd.Series(1.0, index=values.index) if below is None else below
    tasks = values.index.get_level_values("task_id")
    pools: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for task in tasks.unique():
        pair = (values[tasks == task].to_numpy(float), under[tasks == task].to_numpy(float))
        pools.setdefault(len(pair[0]), []).append(pair)
    sizes = np.array([size for size, pool in pools.items() for _ in pool])

    def draw(rng: np.random.Generator, n_clusters: int, size: int) -> Block:
        drawn = rng.choice(sizes, size=n_clusters)
        tops, bottoms = [], []
        for one in drawn:
            pool = pools[int(one)]
            chosen = rng.integers(len(pool), size=size)
            tops.append(np.stack([pair[0] for pair in pool])[chosen].T)
            bottoms.append(np.stack([pair[1] for pair in pool])[chosen].T)
        codes = np.repeat(np.arange(n_clusters), drawn)
        return Block(np.concatenate(tops), np.concatenate(bottoms), codes)

    return draw
