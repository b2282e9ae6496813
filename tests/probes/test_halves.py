"""Halves share nothing, hold everything, and tell a ranking from noise."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import spearmanr

from probes.stats.ranks import halves, layer_spearman, ranking_reliability


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("n", "expected"), [(2, 0), (3, 0), (4, 3), (5, 10), (6, 10), (7, 20), (15, 20)])
def test_halves_are_disjoint_hold_all_and_are_no_more_than_there_are(n: int, expected: int) -> None:
    found = halves(n, rng(), 20)
    assert len(found) == min(expected, 20)
    for one, other in found:
        assert not set(one) & set(other) and {*one, *other} == set(range(n)) and len(one) == n // 2
    splits = {frozenset((tuple(one), tuple(other))) for one, other in found}
    assert len(splits) == len(found)


def test_noise_has_no_reliability_even_though_a_half_resembles_the_whole() -> None:
    noise = rng(1).normal(size=(12, 60))
    layers = np.repeat(np.arange(10), 6)
    found = ranking_reliability(noise, rng(), layers, (8,))
    whole = spearmanr(noise[:6].sum(0), noise.sum(0)).statistic
    assert whole > 0.5  # what a comparison with the whole would have called agreement
    for key in (("spearman", 0), ("spearman_within_layer", 0)):
        assert abs(found[key].mean) < 0.2 and found[key].n_splits == 100
    assert found["recall", 8].mean < 0.35
    true = ranking_reliability(noise + 5 * rng(2).normal(size=60), rng(), layers, (8,))
    assert true["spearman", 0].mean > 0.9 and true["recall", 8].mean > 0.7
    none = ranking_reliability(noise[:3], rng(), layers)
    assert none["spearman", 0].n_splits == 0 and math.isnan(none["spearman", 0].mean)


def test_within_layers_a_common_profile_of_layers_is_no_agreement() -> None:
    layers = np.repeat(np.arange(20), 5)
    one, other = (10.0 * layers + rng(seed).normal(size=100) for seed in (3, 4))
    assert spearmanr(one, other).statistic > 0.95
    assert abs(layer_spearman(one[None], other[None], layers)[0]) < 0.2
    same = layer_spearman(one[None], one[None] + 1, layers)[0]
    assert same == pytest.approx(1)
    # By hand, with layers of three, four and two units: weights two, three and none.
    uneven = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
    a, b = rng(5).normal(size=9), rng(6).normal(size=9)
    parts = [spearmanr(a[lo:hi], b[lo:hi]).statistic for lo, hi in pairwise((0, 3, 7))]
    expected = (2 * parts[0] + 3 * parts[1]) / 5
    assert layer_spearman(a[None], b[None], uneven)[0] == pytest.approx(expected)
    assert math.isnan(layer_spearman(a[None, :2], b[None, :2], uneven[:2])[0])
