"""Rankings of units (heads, MLPs): how two of them agree, and how one of them agrees between halves of the clusters.

spearman               correlation of the ranks of the signed values, ties at their mean rank
spearman_within_layer  the same within each layer: the mean over layers, weighted by their units less one
recall                 |top k of the one ∩ top k of the other| / k; ties go to the first unit
jaccard                |top k of the one ∩ top k of the other| / |their union|
split halves           the statistic of two disjoint halves of the clusters, over random splits. A result compared
                       with one that contains it agrees with itself by construction; two halves share no cluster.
                       A half has half of the data: all of it is more reliable (Spearman 1910, Brown 1910)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import hypergeom, rankdata

N_SPLITS = 100
FEWEST = 4
"""Clusters below which there are no halves of two clusters each."""
NO_K = 0
"""The k of a statistic that takes all units."""

Rankings = Float[np.ndarray, "*#row unit"]
PerRow = Float[np.ndarray, "..."]
Half = Int[np.ndarray, " _"]


def places(values: Rankings) -> Int[np.ndarray, "*#row unit"]:
    """Place of each unit in its row, 0 the highest; ties go to the first."""
    return np.argsort(np.argsort(-values, axis=-1, kind="stable"), axis=-1)


def spearman(one: Rankings, other: Rankings) -> PerRow:
    """Spearman's correlation row by row; NaN where either side does not vary."""
    ranks = (rankdata(values, axis=-1) for values in (one, other))
    a, b = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    norms = (a * a).sum(axis=-1) * (b * b).sum(axis=-1)
    return ratio(np.asarray(np.einsum("...u,...u->...", a, b)), np.sqrt(norms))


def layer_spearman(one: Rankings, other: Rankings, layers: Int[np.ndarray, " unit"]) -> PerRow:
    """Spearman's correlation within each layer: blind to an agreement only on which layers matter.

    Layers of fewer than three units are left out, as a layer in which a side does not vary is from its row; NaN where
    none is left.
    """
    total, weight = np.zeros((2, *np.broadcast_shapes(one.shape[:-1], other.shape[:-1])))
    for layer in np.unique(layers):
        own = np.flatnonzero(layers == layer)
        if len(own) > 2:
            found = spearman(one[..., own], other[..., own])
            known = ~np.isnan(found)
            total[known] += (len(own) - 1) * found[known]
            weight[known] += len(own) - 1
    return ratio(total, weight)


def rank_statistics(
    one: Rankings,
    other: Rankings,
    top: Sequence[int] = (),
    layers: Int[np.ndarray, " unit"] | None = None,
    by_magnitude: bool = False,
) -> dict[tuple[str, int], PerRow]:
    """(statistic, k) → its value row by row; the statistics are those of the module.

    Args:
        one: rows of values; its leading axes broadcast against those of `other`.
        other: likewise.
        top: the k of recall and jaccard; those above the number of units are left out.
        layers: layer of each unit; None leaves the correlation within layers out.
        by_magnitude: the top k are those of largest |value|.
    """
    found = {("spearman", NO_K): spearman(one, other)}
    if layers is not None:
        found["spearman_within_layer", NO_K] = layer_spearman(one, other, layers)
    a, b = (places(np.abs(values) if by_magnitude else values) for values in (one, other))
    for k in (k for k in top if 1 <= k <= one.shape[-1]):
        common = ((a < k) & (b < k)).sum(axis=-1)
        found["recall", k] = common / k
        found["jaccard", k] = common / (2 * k - common)
    return found


def ratio(top: PerRow, bottom: PerRow) -> PerRow:
    """Elementwise top / bottom, NaN where bottom is not above 0."""
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)


def chance(statistic: str, k: int, n_units: int) -> float:
    """Expectation of a statistic for two unrelated rankings: that of jaccard is over a hypergeometric overlap."""
    if statistic == "jaccard":
        return chance_jaccard(k, n_units)
    return k / n_units if statistic == "recall" else 0.0


def chance_jaccard(k: int, n_units: int) -> float:
    """Expected |A ∩ B| / |A ∪ B| of two random sets of k among n_units."""
    common = np.arange(k + 1)
    return float((hypergeom.pmf(common, n_units, k, k) * common / (2 * k - common)).sum())


@dataclass(frozen=True)
class SplitHalves:
    """A statistic over splits: its mean, its range, and how many splits there were (NaN and 0 where there are none)."""

    mean: float
    lowest: float
    highest: float
    n_splits: int

    @classmethod
    def of(cls, values: PerRow) -> SplitHalves:
        """From one value a split, NaN where it is undefined."""
        known = values[~np.isnan(values)]
        if not len(known):
            return cls(math.nan, math.nan, math.nan, 0)
        return cls(float(known.mean()), float(known.min()), float(known.max()), len(known))


def halves(n_clusters: int, rng: np.random.Generator, n_splits: int = N_SPLITS) -> list[tuple[Half, Half]]:
    """Pairs of disjoint halves of 0 … n_clusters − 1, all clusters used; of an odd number the second has one more.

    Returns:
        `n_splits` distinct splits drawn at random, or every one where there are no more (four clusters have three,
        five have ten); none below FEWEST clusters.
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
    top: Sequence[int] = (),
    n_splits: int = N_SPLITS,
) -> dict[tuple[str, int], SplitHalves]:
    """How well two halves of the clusters rank units alike.

    Args:
        clusters: sums over the items of each cluster; every unit has the same items.
        rng: draws the splits.
        layers: layer of each unit; None leaves the correlation within layers out.
        top: the k of recall; those that are not fewer than the units are left out.
        n_splits: as `halves`.

    Returns:
        (statistic, k) → its mean and range: ("spearman", 0), ("spearman_within_layer", 0), ("recall", k).
    """
    pairs, width = halves(len(clusters), rng, n_splits), clusters.shape[1]
    one, other = (
        np.array([clusters[pair[side]].sum(axis=0) for pair in pairs]).reshape(-1, width) for side in (0, 1)
    )
    found = rank_statistics(one, other, [k for k in top if k < width], layers)
    return {key: SplitHalves.of(values) for key, values in found.items() if key[0] != "jaccard"}
