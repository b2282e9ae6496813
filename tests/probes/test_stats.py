"""The bootstrap against a slow one, against theory and against answers known beforehand."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.stats import bootstrap as stats
from probes.stats.bootstrap import (
    Interval,
    cluster_bootstrap,
    cluster_median,
    cluster_rate,
    cluster_ratios,
    equivalent,
    percentile_ends,
    sign_flip,
    summarise,
)
from probes.stats.families import family_size, holm


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _clustered(
    rng: np.random.Generator, n_clusters: int, size: int, between: float
) -> tuple[np.ndarray, np.ndarray]:
    clusters = np.repeat(np.arange(n_clusters), size)
    values = rng.normal(size=n_clusters * size) + between * rng.normal(size=n_clusters)[clusters]
    return values, clusters.astype(str)


def test_the_interval_of_normal_data_is_the_clustered_standard_error() -> None:
    values, clusters = _clustered(_rng(1), n_clusters=400, size=3, between=2.0)
    found = cluster_bootstrap(values, clusters, _rng())
    means = values.reshape(400, 3).mean(axis=1)
    error = means.std() / math.sqrt(400)
    assert found.mean == pytest.approx(values.mean(), abs=1e-12)
    assert found.hi - found.lo == pytest.approx(2 * 1.96 * error, rel=0.03)
    assert (found.n, found.n_clusters, found.degenerate) == (1200, 400, False)
    # Items taken for independent would have an interval far too narrow.
    assert error > 1.4 * values.std() / math.sqrt(1200)


def _slow_studentised(
    values: np.ndarray, clusters: np.ndarray, draws: np.ndarray
) -> tuple[float, float, float]:
    """Ends and p of the bootstrap-t, a draw at a time: items are pooled as drawn, and its own error taken."""
    groups = [values[clusters == name] for name in np.unique(clusters)]
    n_clusters = len(groups)

    def error(parts: list[np.ndarray]) -> float:
        pooled = np.concatenate(parts)
        squares = sum((part - pooled.mean()).sum() ** 2 for part in parts)
        return math.sqrt(n_clusters / (n_clusters - 1) * squares) / len(pooled)

    mean, own = values.mean(), error(groups)
    t = []
    for counts in draws:
        parts = [groups[i] for i in range(n_clusters) for _ in range(int(counts[i]))]
        t.append((np.concatenate(parts).mean() - mean) / max(error(parts), stats.FLOOR * own))
    ordered = np.sort(t)
    place = math.floor(0.025 * (len(t) + 1)) - 1
    reach = scipy.stats.t.ppf(0.975, n_clusters - 1)
    lo = mean - max(ordered[len(t) - 1 - place], reach) * own
    hi = mean + max(-ordered[place], reach) * own
    side = math.copysign(1, mean)
    beyond = int((np.array(t) * side >= abs(mean) / own).sum())
    tails = 2 * (beyond + 1) / (len(t) + 1) if beyond else 0.0
    return lo, hi, max(tails, 2 * scipy.stats.t.sf(abs(mean) / own, n_clusters - 1))


@pytest.mark.parametrize("shift", [0.0, 0.4, 30.0])
def test_matrix_products_are_the_bootstrap_t_done_draw_by_draw(shift: float) -> None:
    rng = _rng(2)
    clusters = np.repeat([f"t{i:02d}" for i in range(12)], rng.integers(1, 9, size=12))
    values = rng.exponential(size=len(clusters)) * 10 - 10 + shift
    found = cluster_bootstrap(values, clusters, _rng(3), n_draws=2000)
    lo, hi, p = _slow_studentised(values, clusters, stats.draw_clusters(12, _rng(3), 2000))
    assert (found.lo, found.hi) == (pytest.approx(lo, rel=1e-9), pytest.approx(hi, rel=1e-9))
    sums = np.array([values[clusters == name].sum() for name in np.unique(clusters)])
    assert found.p == pytest.approx(min(1, max(p, _enumerated(sums))), rel=1e-6)
    assert (found.p <= 0.05) == (not found.lo <= 0 <= found.hi)


def _enumerated(sums: np.ndarray) -> float:
    """The sign-flip p over all patterns, one at a time."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(sums))))
    return float((np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9).mean())


@pytest.mark.parametrize("n_clusters", [6, 7, 11, 14])
def test_the_exact_flips_are_those_of_all_patterns(n_clusters: int) -> None:
    rng = _rng(n_clusters)
    sums = np.concatenate([rng.normal(0.5, 1, size=(n_clusters, 6)), np.zeros((2, 6))])
    sums[:, 1] = np.round(sums[:, 1] * 2)  # ties
    sums[:, 2] = np.abs(sums[:, 2])
    found = sign_flip(sums, _rng())
    for column in range(6):
        filled = sums[sums[:, column] != 0, column]
        expected = _enumerated(filled) if len(filled) >= 6 else math.nan
        np.testing.assert_allclose(found[column], expected, rtol=1e-12)
    assert found[2] == 2 / 2**n_clusters


def test_many_clusters_are_flipped_at_random_and_agree_with_all_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums = _rng(3).normal(0.3, 1, size=(20, 4))
    exact = sign_flip(sums, _rng())
    monkeypatch.setattr(stats, "EXACT", 10)
    drawn = sign_flip(sums, _rng(), n_flips=40_000)
    assert (drawn != exact).all()
    np.testing.assert_allclose(drawn, exact, atol=0.01)
    assert sign_flip(np.ones((20, 1)), _rng(), n_flips=999)[0] == 1 / 1000  # never 0


@pytest.mark.parametrize(
    ("plus", "minus", "same"), [(6, 0, 18), (7, 1, 0), (9, 3, 12), (5, 5, 2), (20, 8, 5)]
)
def test_differences_of_outcomes_with_an_item_a_cluster_are_mcnemars_test(
    plus: int, minus: int, same: int
) -> None:
    differences = [1.0] * plus + [-1.0] * minus + [0.0] * same
    found = cluster_bootstrap(differences, list(range(len(differences))), _rng())
    expected = scipy.stats.binomtest(plus, plus + minus).pvalue
    exact = plus + minus <= stats.EXACT
    assert found.p == pytest.approx(expected, rel=1e-9 if exact else 0.1)
    assert -1 <= found.lo <= found.mean <= found.hi <= 1


def test_a_p_that_could_not_reach_five_percent_is_none() -> None:
    for n_nonzero, tested in ((5, False), (6, True)):
        values = [2.5] * n_nonzero + [0.0] * (12 - n_nonzero)
        p = cluster_bootstrap(values, list(range(12)), _rng()).p
        assert math.isnan(p) is not tested
    # Zero by cancellation is zero: 0.1 + 0.2 - 0.3 is 5e-17.
    sums = np.array([[0.1 + 0.2 - 0.3]] * 4 + [[1.0]] * 5)
    assert math.isnan(sign_flip(sums, _rng(), np.array([[0.6]] * 4 + [[1.0]] * 5))[0])
    # 6 against 0 of 24 pairs in a family of five: Holm's p is .16, not .04.
    six = cluster_bootstrap([1.0] * 6 + [0.0] * 18, list(range(24)), _rng()).p
    assert holm([six, 0.5, 0.6, 0.7, 0.8])[0] == pytest.approx(5 / 32)


def test_shares_and_rates_have_intervals_inside_their_range_and_no_p() -> None:
    for values in ([0.0] * 12, [1.0] * 12, [0.0, 1.0] * 6, [0.99] * 11 + [1.0]):
        found = cluster_rate(values, list(range(12)))
        assert 0 <= found.lo <= found.mean <= found.hi <= 1 and found.lo < found.hi
        assert math.isnan(found.p) and not found.degenerate
    # Twelve items and the two that are added: mean 1/14, t(13), by hand.
    added = np.array([0.0] * 13 + [1.0])
    reach = scipy.stats.t.ppf(0.975, 13) * added.std(ddof=1) / math.sqrt(14)
    assert cluster_rate([0.0] * 12, list(range(12))).hi == pytest.approx(1 / 14 + reach)
    with pytest.raises(InputError, match="outside the range 0 to 1"):
        cluster_rate([0.5, 1.5], ["a", "b"])
    with pytest.raises(InputError, match="Only means have bounds"):
        cluster_ratios(np.ones((8, 1)), np.full((8, 1), 2.0), np.arange(8), _rng(), bounds=(0.0, 1.0))


def test_the_design_effect_is_the_variance_of_clusters_over_that_of_items() -> None:
    values, clusters = _clustered(_rng(1), n_clusters=400, size=3, between=1.0)
    # ICC ½ and three items a cluster: 1 + 2 · ½.
    assert cluster_bootstrap(values, clusters, _rng(), 200).deff == pytest.approx(2.0, rel=0.1)
    assert cluster_bootstrap(values, np.arange(1200), _rng(), 200).deff == pytest.approx(1.0)
    pairs = np.repeat(_rng(2).normal(size=50), 2)  # every item stands twice
    found = cluster_bootstrap(pairs, np.repeat(np.arange(50), 2), _rng(), 200)
    assert found.deff == pytest.approx(50 / 49 * 2 * 99 / 100)


def test_nineteen_of_twenty_intervals_hold_the_truth_and_p_is_uniform_under_the_null() -> None:
    rng = _rng(4)
    clusters = np.repeat(np.arange(30), 2)
    values = rng.normal(size=(60, 1000)) + rng.normal(size=(30, 1000))[clusters]
    found = cluster_ratios(values, np.ones_like(values), clusters, rng, n_draws=800)
    held = np.mean([one.lo <= 0 <= one.hi for one in found])
    p = np.array([one.p for one in found])
    assert 0.93 <= held <= 0.975
    assert 0.02 <= np.mean(p <= 0.05) <= 0.065
    assert 0.42 <= np.mean(p <= 0.5) <= 0.54


def test_p_counts_the_estimate_among_the_draws_and_is_never_zero() -> None:
    values, clusters = _clustered(_rng(6), 40, 2, 0.5)
    assert cluster_bootstrap(values + 100, clusters, _rng(), n_draws=99).p == 1 / (stats.N_FLIPS + 1)
    assert cluster_bootstrap(values - 100, clusters, _rng(), n_draws=99).p == 1 / (stats.N_FLIPS + 1)


def test_p_of_few_clusters_is_known() -> None:
    assert math.isnan(cluster_bootstrap([1.0, 3.0], ["a", "b"], _rng()).p)
    for n_clusters in (6, 8, 16):  # all of one sign: 2 of 2^C sign patterns are as extreme
        values = 10 + np.linspace(1, 2, n_clusters)
        assert cluster_bootstrap(values, list(map(str, range(n_clusters))), _rng()).p == 2.0 ** (
            1 - n_clusters
        )
    balanced = cluster_bootstrap([-1.5, 1.5] * 3, list("abcdef"), _rng())
    assert balanced.p == 1.0 and balanced.mean == 0


def test_a_p_below_five_percent_never_stands_beside_an_interval_that_holds_zero() -> None:
    rng = _rng(17)
    values = np.exp(rng.normal(size=(13, 400))) - rng.uniform(0.2, 1.6, size=400)
    found = cluster_ratios(values, np.ones_like(values), np.arange(13), rng, n_draws=999)
    excluded = np.array([not one.lo <= 0 <= one.hi for one in found])
    small = np.array([one.p <= 0.05 for one in found])
    assert not (small & ~excluded).any() and 50 < small.sum() < 350
    flips = sign_flip(values, rng)
    assert all(one.p >= alone - 1e-12 for one, alone in zip(found, flips, strict=True))


def test_the_order_of_the_items_does_not_matter() -> None:
    values, clusters = _clustered(_rng(7), 30, 4, 1.0)
    order = _rng(8).permutation(len(values))
    assert cluster_bootstrap(values, clusters, _rng()) == cluster_bootstrap(
        values[order], clusters[order], _rng()
    )


def test_one_cluster_has_no_interval_and_says_so() -> None:
    found = cluster_bootstrap([1.0, 2.0, 6.0], ["t", "t", "t"], _rng())
    assert (found.mean, found.n, found.n_clusters, found.degenerate) == (3.0, 3, 1, True)
    assert all(map(math.isnan, (found.lo, found.hi, found.p)))


@pytest.mark.parametrize("n_clusters", [2, 5])
def test_below_six_clusters_there_is_no_interval(n_clusters: int) -> None:
    values = _rng(n_clusters).normal(3, 1, size=20)
    clusters = [f"t{i % n_clusters}" for i in range(20)]
    for found in (
        cluster_bootstrap(values, clusters, _rng()),
        cluster_median(values, clusters, _rng()),
        cluster_rate(values > 3, clusters),
    ):
        assert math.isfinite(found.mean) and found.degenerate
        assert all(map(math.isnan, (found.lo, found.hi, found.p)))
        assert not equivalent(found, 100.0)
    assert all(map(math.isnan, percentile_ends(values, n_clusters)))


def test_an_expanded_percentile_interval_is_as_much_wider_as_that_of_t() -> None:
    draws = np.sort(_rng(5).normal(size=200_000))
    for n_clusters in (6, 24, 1000):
        lo, hi = percentile_ends(draws, n_clusters)
        reach = math.sqrt(n_clusters / (n_clusters - 1)) * scipy.stats.t.ppf(0.975, n_clusters - 1)
        assert -lo == pytest.approx(reach, rel=0.04) and hi == pytest.approx(reach, rel=0.04)


@pytest.mark.parametrize("constant", [0.0, 0.1, -23.9])
def test_constant_data_are_flagged(constant: float) -> None:
    found = cluster_bootstrap([constant] * 30, [f"t{i % 7}" for i in range(30)], _rng())
    assert found.lo == found.hi == found.mean == pytest.approx(constant)
    assert found.degenerate and math.isnan(found.deff)
    assert math.isnan(found.p) if constant == 0 else found.p == 2 / 2**7


def test_nan_stays_nan_and_nothing_stays_nothing() -> None:
    found = cluster_bootstrap([1.0, math.nan, 2.0], ["a", "b", "c"], _rng())
    assert all(map(math.isnan, (found.mean, found.lo, found.hi, found.p))) and found.degenerate
    empty = cluster_bootstrap([], [], _rng())
    assert math.isnan(empty.mean) and (empty.n, empty.n_clusters, empty.degenerate) == (0, 0, True)


def test_items_without_a_cluster_are_refused() -> None:
    for clusters in (["a", "b"], ["a", None, "b"], ["a", math.nan, "b"]):
        with pytest.raises(InputError, match="cluster label"):
            cluster_bootstrap([1.0, 2.0, 3.0], clusters, _rng())


def test_ten_thousand_draws_over_three_hundred_items_take_less_than_a_second() -> None:
    values, clusters = _clustered(_rng(9), 100, 3, 1.0)
    times = []
    for _ in range(3):  # the best of three: other processes may be running
        start = time.perf_counter()
        cluster_bootstrap(values, clusters, _rng())
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0


def test_a_ratio_of_means_is_bootstrapped_as_a_ratio() -> None:
    rng = _rng(10)
    base = rng.uniform(1, 9, size=(80, 1))
    noise = rng.normal(size=(80, 1)) * 0.2
    clusters = np.arange(80)
    exact, noisy = cluster_ratios(
        np.hstack([0.25 * base, 0.25 * base + noise]), np.hstack([base, base]), clusters, _rng()
    )
    assert exact.mean == exact.lo == exact.hi == pytest.approx(0.25) and exact.degenerate
    # The delta method for a ratio: se = sd(a - r b) / (mean(b) sqrt(n)).
    ratio = 0.25 + noise.sum() / base.sum()
    error = (0.25 * base + noise - ratio * base).std() / (base.mean() * math.sqrt(80))
    assert noisy.mean == pytest.approx(ratio)
    assert noisy.hi - noisy.lo == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_a_ratio_whose_denominator_may_vanish_has_no_interval() -> None:
    top = np.ones((4, 1))
    found = cluster_ratios(top, np.array([[1.01], [-1.3], [2.1], [1.19]]), ["a", "b", "c", "d"], _rng())[0]
    assert found.mean == pytest.approx(4 / 3.0) and math.isnan(found.lo) and found.degenerate
    zero = cluster_ratios(top, np.zeros((4, 1)), ["a", "b", "c", "d"], _rng())[0]
    assert math.isnan(zero.mean) and zero.degenerate


@pytest.mark.parametrize(
    ("raw", "adjusted"),
    [
        ([0.01, 0.011], [0.02, 0.02]),
        ([0.01, 0.04, 0.03, 0.5], [0.04, 0.09, 0.09, 0.5]),
        ([0.5, 0.01, 0.03, 0.04], [0.5, 0.04, 0.09, 0.09]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([0.02, math.nan, 0.01], [0.02, math.nan, 0.02]),
        ([math.nan], [math.nan]),
        ([], []),
    ],
)
def test_holm_gives_the_known_answers(raw: list[float], adjusted: list[float]) -> None:
    np.testing.assert_allclose(holm(raw), adjusted, atol=1e-15)
    assert family_size(raw) == sum(not math.isnan(p) for p in raw)


def test_holm_is_monotone_and_never_below_the_raw_p() -> None:
    raw = _rng(11).uniform(size=40) ** 4
    adjusted = holm(raw)
    assert (np.diff(adjusted[np.argsort(raw)]) >= 0).all()
    assert (adjusted >= raw).all() and (adjusted <= np.minimum(raw * 40, 1)).all()


def test_unchanged_needs_the_whole_interval_inside() -> None:
    def interval(lo: float, hi: float) -> Interval:
        return Interval((lo + hi) / 2, lo, hi, 10, 10, 0.5, False)

    assert equivalent(interval(-0.4, 0.3), 0.5)
    assert not equivalent(interval(-0.6, 0.3), 0.5) and not equivalent(interval(0.3, 0.6), 0.5)
    assert not equivalent(interval(-9.0, 9.0), 0.5)  # p > .05, and nothing shown
    assert not equivalent(interval(math.nan, math.nan), 0.5)


def _measures(n: int = 40) -> pd.DataFrame:
    rng = _rng(12)
    lines = [
        {
            "model": model,
            "env": "toolshed",
            "item_id": f"i{i}",
            "task_id": f"t{i // 2}",
            "measure": name,
            "value": v,
        }
        for model, gain in (("a", -3.0), ("b", 0.02))
        for i in range(n)
        for name, v in (("G", gain + float(rng.normal())), ("copy", 2.0 + float(rng.normal())))
    ]
    return pd.DataFrame(lines)


def test_the_summary_corrects_the_declared_family_and_nothing_else() -> None:
    summary = summarise(_measures(), lambda name: _rng(len(name)), n_draws=999)
    assert set(summary.columns) == set(TABLES["summary"])
    assert summary[["model", "measure"]].agg("/".join, axis=1).tolist() == ["a/G", "a/copy", "b/G", "b/copy"]
    gains = summary[summary["measure"] == "G"]
    np.testing.assert_allclose(gains["p_holm"], holm(gains["p"]))
    assert gains["p_holm"].iloc[0] == 2 * gains["p"].iloc[0] < 1e-4 and gains["family_size"].tolist() == [
        2,
        2,
    ]
    assert gains["p"].iloc[1] > 0.05
    assert summary[summary["measure"] == "copy"]["p_holm"].isna().all()
    assert (summary["n"] == 40).all() and (summary["n_clusters"] == 20).all()


def test_each_line_of_the_summary_has_a_stream_of_its_own() -> None:
    names: list[str] = []

    def rng_for(name: str) -> np.random.Generator:
        names.append(name)
        return _rng(sum(name.encode()))

    both = summarise(_measures(), rng_for, n_draws=200)
    assert names == [f"bootstrap/{m}/toolshed/{x}" for m in ("a", "b") for x in ("G", "copy")]
    alone = summarise(_measures().query("model == 'b' and measure == 'copy'"), rng_for, n_draws=200)
    assert (
        alone.iloc[0][["mean", "ci_lo", "ci_hi", "p"]].tolist()
        == both.iloc[3][["mean", "ci_lo", "ci_hi", "p"]].tolist()
    )


def test_a_summary_of_nothing_is_empty() -> None:
    summary = summarise(_measures().iloc[:0], lambda name: _rng())
    assert summary.empty
