"""The bootstrap median against a slow one; shares, medians, signs and equivalence by hand."""

from __future__ import annotations

import itertools
import math
import random
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures.decompose import decomposition_table, equivalences
from probes.stats.bootstrap import cluster_median, cluster_ratios

NUMBERS = st.lists(st.tuples(st.integers(-50, 50), st.sampled_from("abcdefgh")), min_size=1, max_size=30)


def _rng(name: str | int = 0) -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()) if isinstance(name, str) else name)


# --- the median


@settings(max_examples=15, deadline=None, derandomize=True)
@given(NUMBERS)
def test_the_ends_of_the_median_are_the_last_values_that_the_sign_test_keeps(
    pairs: list[tuple[int, str]],
) -> None:
    values, clusters = np.array([v for v, _ in pairs], float), np.array([c for _, c in pairs])
    names = np.unique(clusters)
    found = cluster_median(values, clusters, _rng())
    assert found.mean == np.median(values)
    assert (found.n, found.n_clusters) == (len(values), len(names))
    if len(names) < 6:
        assert math.isnan(found.lo) and found.degenerate
        return
    points = np.unique(values)
    tried = np.sort(np.concatenate([points, (points[1:] + points[:-1]) / 2]))
    kept = [
        m
        for m in tried
        if not _flips(np.array([np.sign(values[clusters == name] - m).sum() for name in names])) <= 0.05
    ]
    assert found.lo == points[points <= kept[0]][-1] and found.hi == points[points >= kept[-1]][0]


def _flips(sums: np.ndarray) -> float:
    filled = sums[sums != 0]
    if len(filled) < 6:
        return math.nan
    signs = np.array(list(itertools.product((1, -1), repeat=len(filled))))
    return float((np.abs(signs @ filled) >= abs(filled.sum()) - 1e-9).mean())


def test_with_an_item_a_task_the_median_has_the_order_statistic_interval() -> None:
    values = np.sort(_rng(4).normal(size=12))
    found = cluster_median(values, np.arange(12), _rng())
    # P(Bin(12, 1/2) <= 2) = .019 and <= 3 is .073: the third from either end.
    assert (found.lo, found.hi) == (values[2], values[9]) and not found.degenerate


@settings(max_examples=25, deadline=None, derandomize=True)
@given(NUMBERS, st.randoms(use_true_random=False))
def test_the_median_forgets_the_order_and_scales_with_the_values(
    pairs: list[tuple[int, str]], mix: random.Random
) -> None:
    shuffled = mix.sample(pairs, len(pairs))
    found, again, scaled = (
        cluster_median([factor * v for v, _ in some], [c for _, c in some], _rng())
        for some, factor in ((pairs, 1.0), (shuffled, 1.0), (pairs, -4.0))
    )
    np.testing.assert_equal(
        [again.mean, again.lo, again.hi, again.p], [found.mean, found.lo, found.hi, found.p]
    )
    np.testing.assert_allclose(
        [scaled.mean, scaled.lo, scaled.hi], np.multiply([found.mean, found.hi, found.lo], -4)
    )


def test_the_interval_of_a_median_is_that_of_theory() -> None:
    # The median of n normal numbers has the standard error sqrt(pi / 2n).
    found = cluster_median(_rng(3).normal(size=900), np.arange(900), _rng())
    assert found.hi - found.lo == pytest.approx(2 * 1.96 * math.sqrt(math.pi / 1800), rel=0.15)


def test_an_infinite_value_is_the_largest_and_an_infinite_median_has_no_interval() -> None:
    clusters = np.arange(40)
    far = np.concatenate([np.arange(37.0), [1e9, 1e9, 1e9]])
    inf = np.concatenate([np.arange(37.0), [math.inf] * 3])
    assert cluster_median(far, clusters, _rng()) == cluster_median(inf, clusters, _rng())
    found = cluster_median([1.0, math.inf, math.inf], ["a", "b", "c"], _rng())
    assert found.mean == math.inf and math.isnan(found.lo) and found.degenerate
    assert math.isnan(cluster_median([-math.inf, math.inf], ["a", "b"], _rng()).mean)


def test_a_median_of_nan_is_nan_and_of_nothing_is_nothing() -> None:
    found = cluster_median([1.0, math.nan], ["a", "b"], _rng())
    assert math.isnan(found.mean) and found.degenerate
    empty = cluster_median([], [], _rng())
    assert math.isnan(empty.mean) and (empty.n, empty.n_clusters) == (0, 0)


@pytest.mark.parametrize("statistic", ["ratio", "median"])
def test_ten_thousand_draws_over_three_hundred_items_take_less_than_a_second(statistic: str) -> None:
    values, clusters = _rng(9).normal(size=300), np.arange(300) // 3
    column = values[:, None]
    times = []
    for _ in range(3):  # the best of three: other processes may be running
        start = time.perf_counter()
        if statistic == "median":
            cluster_median(values, clusters, _rng())
        else:
            cluster_ratios(column, np.abs(column) + 1, clusters, _rng())
        times.append(time.perf_counter() - start)
    assert min(times) < 1.0


# --- the decomposition

# item → G, copy, sem, copy_pad. The last has no sem but for copy, and d no copy_pad.
HAND = {
    "a": (-10.0, 8.0, 2.0, 9.0),
    "b": (-20.0, 24.0, -4.0, 19.0),
    "c": (2.0, -1.0, -1.0, -1.0),
    "d": (-5.0, 5.0, 0.0, None),
}


def _measures(hand: dict[str, tuple[float | None, ...]], model: str = "m", env: str = "e") -> pd.DataFrame:
    lines = [
        {"model": model, "env": env, "item_id": item, "task_id": f"t-{item}", "measure": name, "value": value}
        for item, values in hand.items()
        for name, value in zip(("G", "copy", "sem", "copy_pad"), values, strict=True)
        if value is not None
    ]
    return pd.DataFrame(lines)


def _estimates(table: pd.DataFrame) -> dict[str, float]:
    return dict(zip(table["quantity"], table["estimate"], strict=True))


def test_every_quantity_is_the_one_done_by_hand() -> None:
    table = decomposition_table(_measures(HAND), _rng, n_draws=300)
    assert set(table.columns) == set(TABLES["decomposition"])
    # Ratios: 8/2 = 4, 24/4 = 6, -1/1 = -1 and 5/0, the largest of all: the middle two are 4 and 6.
    assert _estimates(table) == {
        "copy_share": pytest.approx(36 / 33),
        "copy_share_pad": pytest.approx(27 / 28),  # without d, in both sums
        "copy_sem_ratio_median": 5.0,
        "share_G_negative": 0.75,
        "share_copy_positive": 0.75,
        "share_sem_positive": 0.25,
    }
    assert dict(zip(table["quantity"], table["n"], strict=True))["copy_share_pad"] == 3


def test_an_item_without_either_part_has_no_ratio_and_its_zeros_are_no_signs() -> None:
    table = decomposition_table(_measures({**HAND, "z": (0.0, 0.0, 0.0, None)}), _rng, n_draws=100).set_index(
        "quantity"
    )
    assert table.loc["copy_sem_ratio_median", ["estimate", "n"]].tolist() == [5.0, 4]
    assert table.loc["share_G_negative", ["estimate", "n"]].tolist() == [0.6, 5]
    assert table.loc["share_sem_positive", "estimate"] == 0.2


def test_a_median_among_items_without_sem_is_not_a_number() -> None:
    table = decomposition_table(
        _measures({"a": (-1.0, 1.0, 0.0, None), "b": (-2.0, 2.0, 0.0, None)}), _rng, 50
    )
    cells = table.set_index("quantity").loc["copy_sem_ratio_median"]
    assert math.isnan(cells["estimate"]) and math.isnan(cells["ci_lo"]) and cells["n"] == 2


def test_the_interval_of_a_share_holds_the_share_it_was_made_with() -> None:
    rng = np.random.default_rng(0)
    hand = {}
    for index in range(150):
        whole = float(rng.uniform(5, 40))
        part = 0.9 * whole + float(rng.normal())
        hand[f"i{index:03d}"] = (-whole, part, whole - part, part)
    table = decomposition_table(_measures(hand), _rng).set_index("quantity")
    for name in ("copy_share", "copy_share_pad"):
        share = table.loc[name]
        assert share["ci_lo"] < 0.9 < share["ci_hi"] and share["ci_hi"] - share["ci_lo"] < 0.03
    assert table.loc["share_G_negative", ["estimate", "ci_lo", "ci_hi"]].tolist() == [
        1.0,
        pytest.approx(0.98, abs=0.01),
        1.0,
    ]
    ratio = table.loc["copy_sem_ratio_median"]
    assert 5 < ratio["ci_lo"] < ratio["estimate"] < ratio["ci_hi"]


def test_a_share_of_almost_nothing_is_nan_and_so_is_an_interval_over_a_changing_sign() -> None:
    tiny = decomposition_table(
        _measures({"a": (-1e-3, 1.0, -0.999, None), "b": (-2e-3, 1.0, -0.998, None)}), _rng, 50
    )
    assert math.isnan(_estimates(tiny)["copy_share"])
    table = decomposition_table(_measures(HAND), _rng).set_index(
        "quantity"
    )  # a draw of c alone has G above zero
    assert table.loc["copy_share", ["ci_lo", "ci_hi"]].isna().all()


def test_what_was_not_measured_has_no_line_and_each_model_has_its_own() -> None:
    plain = _measures(HAND)
    without = plain[~plain["measure"].isin(["sem", "copy_pad"])]
    both = pd.concat([without, without.assign(model="n", value=-without["value"])])
    table = decomposition_table(both, _rng, n_draws=50)
    assert table.groupby("model")["quantity"].apply(list).to_dict() == {
        name: ["copy_share", "share_G_negative", "share_copy_positive"] for name in ("m", "n")
    }
    shares = table[table["quantity"] == "share_G_negative"].set_index("model")["estimate"].to_dict()
    assert shares == {"m": 0.75, "n": 0.25}
    assert decomposition_table(plain.iloc[:0], _rng).empty


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.permutations(range(15)), st.sampled_from([0.5, 4.0, 1000.0]))
def test_ratios_and_signs_know_neither_order_nor_unit(order: list[int], factor: float) -> None:
    measures = _measures(HAND)
    assert len(measures) == 15
    table = decomposition_table(measures, _rng, n_draws=60)
    scaled = measures.assign(value=measures["value"] * factor).iloc[order]
    pd.testing.assert_frame_equal(table, decomposition_table(scaled, _rng, n_draws=60))


def test_a_value_that_stands_twice_is_refused() -> None:
    with pytest.raises(InputError, match="occurs twice: .*item_id a"):
        decomposition_table(pd.concat([_measures(HAND), _measures(HAND).iloc[:1]]), _rng)


# --- equivalence


def test_unchanged_needs_the_whole_interval_inside_the_stated_delta() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=80)
    hand = {f"i{i}": (0.1 + noise[i] - noise.mean(), 0.0, -3.0 + 0.1 * noise[i], None) for i in range(80)}
    measures = _measures(hand)
    wide, narrow, other = (
        equivalences(measures, {name: delta}, _rng).iloc[0]
        for name, delta in (("G", 0.5), ("G", 0.2), ("sem", 0.5))
    )
    assert set(wide.index) == set(TABLES["equivalence"])
    assert wide["mean"] == pytest.approx(0.1) and wide["ci_hi"] < 0.5 and bool(wide["equivalent"])
    assert narrow["ci_lo"] == wide["ci_lo"] and narrow["ci_hi"] > 0.2 and not narrow["equivalent"]
    assert not other["equivalent"] and other["delta"] == 0.5


def test_one_task_shows_nothing_and_an_unmeasured_measure_has_no_line() -> None:
    alone = _measures({"a": (0.0, 0.0, 0.0, None)})
    table = equivalences(alone, {"G": 1.0, "polarity": 1.0}, _rng)
    assert table["measure"].tolist() == ["G"] and not table["equivalent"].any()


@pytest.mark.parametrize("delta", [0.0, -1.0, math.nan])
def test_a_delta_must_be_above_zero(delta: float) -> None:
    with pytest.raises(InputError, match="delta of G must be above 0"):
        equivalences(_measures(HAND), {"G": delta}, _rng)
