"""Rankings of units (heads, MLPs) by magnitude, and how two of them agree, row by row."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import hypergeom, rankdata


def places(values: Float[np.ndarray, "row unit"]) -> Int[np.ndarray, "row unit"]:
    """Place of each unit in its row by magnitude, 0 the largest; ties go to the first."""
    return places_by_value(np.abs(values))


def places_by_value(values: Float[np.ndarray, "row unit"]) -> Int[np.ndarray, "row unit"]:
    """Place of each unit in its row, 0 the highest; ties go to the first."""
    order = np.argsort(-values, axis=1, kind="stable")
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.broadcast_to(np.arange(values.shape[1]), order.shape), axis=1)
    return found


def spearman(
    one: Float[np.ndarray, "row unit"], other: Float[np.ndarray, "row unit"]
) -> Float[np.ndarray, " row"]:
    """Correlation of the signed values' ranks, ties at their mean rank; NaN where either does not vary."""
    a, b = (rankdata(values, axis=1) for values in (one, other))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    return ratio((a * b).sum(axis=1), np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1)))


def layer_spearman(
    one: Float[np.ndarray, "row unit"], other: Float[np.ndarray, "row unit"], layers: Int[np.ndarray, " unit"]
) -> Float[np.ndarray, " row"]:
    """Spearman's correlation within each layer, pooled: the mean over layers, weighted by their units less one.

    Two rankings may agree over all units for no more than that both find the same layers; this one is blind to that.
    Layers of fewer than three units are left out, as a layer in which a side does not vary is from its row; NaN where
    none is left.
    """
    total, weight = np.zeros(len(one)), np.zeros(len(one))
    for layer in np.unique(layers):
        own = np.flatnonzero(layers == layer)
        if len(own) < 3:
            continue
        found = spearman(one[:, own], other[:, own])
        known = ~np.isnan(found)
        total[known] += (len(own) - 1) * found[known]
        weight[known] += len(own) - 1
    return ratio(total, weight)


def recall(
    exact: Float[np.ndarray, "row unit"], guess: Float[np.ndarray, "row unit"], k: int
) -> Float[np.ndarray, " row"]:
    """Of the k units of largest exact magnitude, the share that is among the k of largest guessed magnitude."""
    return ((places(exact) < k) & (places(guess) < k)).sum(axis=1) / k


def ratio(top: Float[np.ndarray, "*row"], bottom: Float[np.ndarray, "*row"]) -> Float[np.ndarray, "*row"]:
    """Elementwise top / bottom, NaN where bottom is not above 0."""
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)


def chance_jaccard(k: int, n_units: int) -> float:
    """Expected |A ∩ B| / |A ∪ B| of two random sets of k among n_units."""
    common = np.arange(k + 1)
    return float((hypergeom.pmf(common, n_units, k, k) * common / (2 * k - common)).sum())
