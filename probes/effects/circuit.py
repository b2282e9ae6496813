"""A found set of heads tested where it was not found: shares, controls, completeness, minimality.

    share(S)            Σ effect of S / Σ delta over items: a ratio of means, tasks as clusters
                        (`probes.effects.shares`)
    completeness(K)     |F(C ∖ K) − F(M ∖ K)| for a subset K of the circuit C, M being all heads: if C is all there is,
                        ablating K leaves the same of the circuit and of the model. F is faithfulness as a share.
                        As F(M ∖ K) = 1 − N(K) (`mech.patching.circuits`), N being necessity, no further runs are
                        needed. K = ∅ gives |F(C) − 1|; the worst K is what a circuit is judged by.
    minimality(h)       share(C) − share(C ∖ h), by the criterion the circuit was found with
    p against random    (b + 1) / (m + 1): b of the m random sets have as large a share or larger

Completeness and minimality follow Wang et al. 2022 (arXiv:2211.00593, section 4), with random K only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mech.errors import InputError
from mech.heads import Head, HeadSet
from probes.effects.dose import among
from probes.stats.bootstrap import N_DRAWS, Interval, cluster_bootstrap, cluster_ratios
from probes.stats.frame_checks import MIN_DELTA

SMALL_COST = 0.01
"""A head whose ablation costs less than this share is one that the circuit hardly needs."""


@dataclass(frozen=True)
class Against:
    """A set's share beside those of random sets of its size; NaN where a share is unknown or there is none."""

    random_mean: float
    percentile: float
    p: float
    n_controls: int


def require_delta(deltas: Sequence[float], tasks: Sequence[str], rng: np.random.Generator, what: str) -> None:
    """Raise InputError where the mean difference is too small, or too unsure, to be divided by.

    Args:
        deltas: one an item, nats.
        tasks: the item's clusters.
        rng: for the bootstrap.
        what: the difference's name in the sentence.
    """
    found = cluster_bootstrap(deltas, tasks, rng)
    unsure = not math.isnan(found.lo) and found.lo <= 0 <= found.hi
    if abs(found.mean) < MIN_DELTA or unsure:
        raise InputError(
            f"{what} is {found.mean:.3f} nats on the mean of {found.n} training items (95 % interval {found.lo:.3f} "
            f"to {found.hi:.3f}): too small to divide by, so no head has a share of it."
        )


def shares(
    effects: Float[np.ndarray, "item set"],
    deltas: Float[np.ndarray, " item"],
    tasks: Sequence[str],
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    min_delta: float = MIN_DELTA,
) -> list[Interval]:
    """Each set's share of the mean delta with its cluster interval; all sets see the same draws.

    NaN throughout where the mean delta is below `min_delta` (nats; absolute): too small to divide by.
    """
    bottoms = np.repeat(deltas[:, None], effects.shape[1], axis=1)
    found = cluster_ratios(effects, bottoms, list(tasks), rng, n_draws)
    if len(deltas) and abs(float(deltas.mean())) >= min_delta:
        return found
    return [Interval.unknown(*one.counts) for one in found]


def pooled(effects: Float[np.ndarray, "item set"], deltas: Float[np.ndarray, " item"]) -> list[float]:
    """The shares alone; InputError where the deltas sum to zero."""
    total = float(deltas.sum())
    if not total:
        raise InputError("The differences of these items sum to zero: shares are undefined.")
    return [float(share) for share in effects.sum(axis=0) / total]


def against_random(share: float, controls: Sequence[float]) -> Against:
    """A share against those of random sets: the percentage of them below it, and the one-sided p."""
    mean, _, _, n, p, percentile = among(share, np.asarray(controls, dtype=float))
    return Against(mean, percentile, p, n)


def random_subsets(heads: HeadSet, n: int, rng: np.random.Generator) -> list[HeadSet]:
    """The empty set, then up to n different random subsets of the heads, sizes from 1 to all evenly likely."""
    subsets = [HeadSet([])]
    members = list(heads)
    for _ in range(4 * n):  # small sets have fewer than n subsets, and draws repeat
        size = int(rng.integers(1, len(members) + 1))
        drawn = HeadSet(members[at] for at in rng.choice(len(members), size=size, replace=False))
        if drawn not in subsets and len(subsets) <= n:
            subsets.append(drawn)
    return subsets


def without(heads: HeadSet, others: HeadSet) -> HeadSet:
    """The heads that are not among the others."""
    return HeadSet(head for head in heads if head not in others)


def completeness_gaps(
    circuit_left: Sequence[float], subset_necessity: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Per subset K: F(C ∖ K), F(M ∖ K) = 1 − N(K), and |F(C ∖ K) − F(M ∖ K)|."""
    return [
        (left, 1 - removed, abs(left - (1 - removed)))
        for left, removed in zip(circuit_left, subset_necessity, strict=True)
    ]


def minimality(
    share: float, left: Mapping[Head, float], small: float = SMALL_COST
) -> dict[Head, tuple[float, bool]]:
    """Head → what its ablation costs the circuit, and whether that is less than `small`.

    Args:
        share: the circuit's.
        left: head → the share of the circuit without it.
        small: a cost below this is marked.
    """
    return {head: (share - rest, share - rest < small) for head, rest in left.items()}
