"""How far a result agrees with itself: found on one half of the clusters, and again on the other half.

A result compared with one that contains it (a half against the whole, a subset against all) agrees with itself by
construction; two halves share no cluster. Clusters are split at random; where there are no more distinct splits than
are asked for, each is taken once (four clusters have three, five have ten). A half holds half of the data: the whole is
more reliable (Spearman 1910, Brown 1910).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int

from probes.stats.ranks import layer_spearman, places_by_value, spearman

N_SPLITS = 100
FEWEST = 4
"""Clusters below which there are no halves of two clusters each."""

Half = Int[np.ndarray, " _"]


@dataclass(frozen=True)
class SplitHalves:
    """A statistic over splits: its mean, its range, and how many splits there were (NaN and 0 where there are none)."""

    mean: float
    lowest: float
    highest: float
    n_splits: int


def halves(n_clusters: int, rng: np.random.Generator, n_splits: int = N_SPLITS) -> list[tuple[Half, Half]]:
    """Pairs of disjoint halves of 0 … n_clusters − 1, all clusters used; of an odd number the second has one more.

    Returns:
        `n_splits` distinct splits drawn at random, or every one where there are no more; none below FEWEST clusters.
    """
    if n_clusters < FEWEST:
        return []
    size = n_clusters // 2
    # Of an even number each split is met twice, once from either side.
    distinct = math.comb(n_clusters, size) // (2 if n_clusters % 2 == 0 else 1)
    if distinct <= n_splits:
        chosen = [np.array(one) for one in combinations(range(n_clusters), size)][:distinct]
    else:
        drawn: dict[tuple[int, ...], Half] = {}
        while len(drawn) < n_splits:
            one = np.sort(rng.permutation(n_clusters)[:size])
            if n_clusters % 2 == 0 and 0 not in one:  # the same split from its other side
                one = np.setdiff1d(np.arange(n_clusters), one)
            drawn.setdefault(tuple(one.tolist()), one)
        chosen = list(drawn.values())
    return [(one, np.setdiff1d(np.arange(n_clusters), one)) for one in chosen]


def ranking_reliability(
    clusters: Float[np.ndarray, "cluster unit"],
    rng: np.random.Generator,
    layers: Int[np.ndarray, " unit"] | None = None,
    top: tuple[int, ...] = (),
    n_splits: int = N_SPLITS,
) -> dict[tuple[str, int], SplitHalves]:
    """How well two halves of the clusters rank units (heads, MLPs) alike.

    Args:
        clusters: sums over the items of each cluster; every unit has the same items.
        rng: its stream.
        layers: layer of each unit, for the correlation within layers; None leaves it out.
        top: the k of recall: the share of one half's k units of highest value that is among the other's.
        n_splits: as `halves`.

    Returns:
        (statistic, k) → its mean and range: ("spearman", 0), ("spearman_within_layer", 0), ("recall", k).
    """
    pairs = halves(len(clusters), rng, n_splits)
    width = clusters.shape[1]
    sides = [
        np.array([clusters[pair[side]].sum(axis=0) for pair in pairs]).reshape(-1, width) for side in (0, 1)
    ]
    one, other = sides
    found = {("spearman", 0): spearman(one, other)}
    if layers is not None:
        found["spearman_within_layer", 0] = layer_spearman(one, other, layers)
    for k in (k for k in top if 1 <= k < width):
        common = ((places_by_value(one) < k) & (places_by_value(other) < k)).sum(axis=1)
        found["recall", k] = common / k
    return {key: _summary(values) for key, values in found.items()}


def _summary(values: Float[np.ndarray, " split"]) -> SplitHalves:
    known = values[~np.isnan(values)]
    if not len(known):
        return SplitHalves(math.nan, math.nan, math.nan, 0)
    return SplitHalves(float(known.mean()), float(known.min()), float(known.max()), len(known))
