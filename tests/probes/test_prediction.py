"""AUC against all pairs by hand, its interval against a slow bootstrap, calibration on answers known beforehand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run import schema
from mech.errors import InputError
from probes.rollouts.prediction import (
    auc,
    brier,
    calibration,
    calibration_table,
    clustered_auc,
    expected_calibration_error,
    predict_table,
)
from tests.step_cases import rng


def naive_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    won = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high, one in zip(scores, labels, strict=True) if one
        for low, other in zip(scores, labels, strict=True) if not other
    ]  # fmt: skip
    return float(np.mean(won)) if won else math.nan


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=25))
def test_the_area_is_the_share_of_pairs_that_are_in_order_and_ties_are_half_a_pair(
    points: list[tuple[int, bool]],
) -> None:
    scores, labels = np.array([float(score) for score, _ in points]), np.array([label for _, label in points])
    np.testing.assert_allclose(auc(scores, labels), naive_auc(scores, labels), atol=1e-12)


def test_known_areas() -> None:
    assert auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == 0.75
    assert auc([1, 2, 3], [0, 0, 1]) == 1 and auc([1, 2, 3], [1, 0, 0]) == 0
    assert auc([5, 5, 5], [0, 1, 1]) == 0.5
    assert math.isnan(auc([1, 2], [1, 1])) and math.isnan(auc([1, 2], [0, 0])) and math.isnan(auc([], []))
    assert math.isnan(auc([1, math.nan], [0, 1]))
    assert auc([1, math.inf], [0, 1]) == 1
    for labels, sentence in (([0, 2], "0 or 1"), ([0, math.nan], "0 or 1"), ([0], "each point needs both")):
        with pytest.raises(InputError, match=sentence):
            auc([1, 2], labels)


def _points(n_tasks: int = 20, size: int = 6, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n_tasks), size)
    often = draw.choice(
        [0.1, 0.8], size=n_tasks
    )  # a task's points are alike, in their outcomes and their scores
    labels = draw.random(len(tasks)) < often[tasks]
    scores = np.round(draw.normal(size=len(tasks)) + 2 * labels + 2 * draw.normal(size=n_tasks)[tasks], 1)
    return scores, labels, tasks


def test_the_interval_of_an_area_draws_tasks_and_not_points() -> None:
    scores, labels, tasks = _points()
    found = clustered_auc(scores, labels, tasks, rng(), n_draws=4000)
    assert found.auc == pytest.approx(naive_auc(scores, labels))
    assert (found.n, found.n_repeats, found.n_clusters, found.n_dropped, found.flagged) == (
        120, int(labels.sum()), 20, 0, False,
    )  # fmt: skip
    draw = np.random.default_rng(2)
    where = [np.flatnonzero(tasks == task) for task in range(20)]
    taken = [np.concatenate([where[i] for i in draw.integers(20, size=20)]) for _ in range(4000)]
    lo, hi = np.quantile([auc(scores[one], labels[one]) for one in taken], [0.025, 0.975])
    assert found.lo == pytest.approx(lo, abs=0.05 * (hi - lo) + 0.002)
    assert found.hi == pytest.approx(hi, abs=0.05 * (hi - lo) + 0.002)
    alone = clustered_auc(scores, labels, np.arange(120), rng(), n_draws=4000)
    assert alone.auc == found.auc and alone.hi - alone.lo < 0.85 * (found.hi - found.lo)
    order = np.random.default_rng(3).permutation(120)
    assert clustered_auc(scores[order], labels[order], tasks[order], rng(), n_draws=4000) == found


def test_draws_without_a_class_are_dropped_and_counted_and_too_many_leave_no_interval() -> None:
    draw = np.random.default_rng(4)
    scores, tasks = draw.normal(size=40), np.arange(40) // 2
    few = np.isin(tasks, [0, 1, 2, 3])  # repeats in 4 of 20 tasks: (16/20)^20, 1.2 %, of the draws have none
    found = clustered_auc(scores, few, tasks, rng(), n_draws=5000)
    assert 0.005 < found.n_dropped / 5000 < 0.02 and not found.flagged and found.lo < found.auc < found.hi
    one = clustered_auc(scores, tasks == 0, tasks, rng(), n_draws=5000)
    assert one.n_dropped / 5000 == pytest.approx((19 / 20) ** 20, abs=0.03)
    assert one.flagged and math.isnan(one.lo) and math.isnan(one.hi) and one.auc == auc(scores, tasks == 0)


def test_an_area_without_a_pair_an_interval_or_any_variation_is_flagged() -> None:
    scores, labels, tasks = _points()
    none = clustered_auc(scores, np.zeros(120), tasks, rng())
    assert math.isnan(none.auc) and none.flagged and none.n_repeats == 0
    single = clustered_auc(scores, labels, np.zeros(120), rng())
    assert single.auc == auc(scores, labels) and math.isnan(single.lo) and single.flagged
    perfect = clustered_auc(labels, labels, tasks, rng())
    assert (perfect.auc, perfect.lo, perfect.hi, perfect.flagged) == (1, 1, 1, True)
    with pytest.raises(InputError, match="no cluster label"):
        clustered_auc([1, 2], [0, 1], ["t", None], rng())


def test_nineteen_of_twenty_intervals_hold_the_true_area() -> None:
    draw, held = np.random.default_rng(5), 0
    true = 0.7602  # P(N(1, 1) > N(0, 1)) = Φ(1 / √2)
    for _ in range(150):
        labels = np.tile([0, 0, 1], 40)
        found = clustered_auc(draw.normal(size=120) + labels, labels, np.arange(120) // 3, draw, n_draws=500)
        held += found.lo <= true <= found.hi
    assert 0.88 <= held / 150 <= 0.99


def test_bins_hold_equal_numbers_and_never_divide_equal_probabilities() -> None:
    values = np.linspace(0, 1, 50) ** 3
    outcomes = np.arange(50) % 2
    table = calibration(values, outcomes, np.arange(50), rng(), bins=5, n_draws=200)
    assert table["n"].tolist() == [10] * 5 and table["bin"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(table["predicted"], values.reshape(5, 10).mean(axis=1))
    assert table["observed"].tolist() == [0.5] * 5 and table["n_clusters"].tolist() == [10] * 5
    assert ((table["ci_lo"] < 0.5) & (0.5 < table["ci_hi"])).all()
    tied = calibration([0.2] * 7 + [0.9] * 3, [0, 1] * 5, np.arange(10), rng(), bins=5, n_draws=50)
    assert tied["n"].tolist() == [7, 3] and tied["predicted"].tolist() == pytest.approx([0.2, 0.9])
    assert tied["bin"].tolist() == [0, 1] and tied["observed"].tolist() == pytest.approx([3 / 7, 2 / 3])


def test_the_observed_share_has_the_interval_of_its_own_tasks() -> None:
    values, outcomes = np.repeat([0.1, 0.8], 12), np.tile([0, 1, 1, 1], 6)
    tasks = np.repeat(np.arange(6), 4)
    table = calibration(values, outcomes, tasks, rng(), bins=2, n_draws=100)
    assert table["n_clusters"].tolist() == [3, 3]
    assert table[["ci_lo", "ci_hi"]].isna().all(axis=None)  # three tasks a bin are too few
    points = calibration(values, outcomes, np.arange(24), rng(), bins=2, n_draws=500)
    assert (points["ci_hi"] - points["ci_lo"] > 0.2).all()


def test_brier_score_and_calibration_error_on_known_answers() -> None:
    assert brier([0.5, 0.5], [0, 1]) == 0.25 and brier([1, 0], [1, 0]) == 0 and brier([0, 1], [1, 0]) == 1
    assert brier([0.9, 0.2], [1, 0]) == pytest.approx((0.01 + 0.04) / 2)
    assert expected_calibration_error([0.25] * 4 + [0.75] * 4, [0, 0, 0, 1, 1, 1, 1, 0], bins=2) == 0
    # One bin 0.9 against 1/2 (two points), the other 0.2 against 0 (two points).
    assert expected_calibration_error([0.9, 0.9, 0.2, 0.2], [1, 0, 0, 0], bins=2) == pytest.approx(0.3)
    # Unequal bins weigh by their points: 3 × |0.1 − 0| and 1 × |0.6 − 1|.
    error = expected_calibration_error([0.1, 0.1, 0.1, 0.6], [0, 0, 0, 1], bins=2)
    assert error == pytest.approx((3 * 0.1 + 0.4) / 4)
    assert math.isnan(brier([], [])) and math.isnan(expected_calibration_error([], []))
    values, outcomes = np.random.default_rng(6).random(200), np.random.default_rng(7).random(200) < 0.3
    table = calibration(values, outcomes, np.arange(200), rng(), n_draws=20)
    by_bins = (table["n"] * (table["predicted"] - table["observed"]).abs()).sum() / 200
    assert expected_calibration_error(values, outcomes) == pytest.approx(by_bins)
    for bad in ([1.2, 0.1], [math.nan, 0.1], [-0.1, 0.1]):
        with pytest.raises(InputError, match="between 0 and 1"):
            brier(bad, [0, 1])
    with pytest.raises(InputError, match="at least one bin"):
        calibration([0.5], [1], ["t"], rng(), bins=0)


def _frame() -> pd.DataFrame:
    scores, labels, tasks = _points()
    frame = pd.DataFrame(
        {"model": "m", "env": "e", "arm": "verbatim", "task_id": tasks, "repeats": labels.astype(int)}
    )
    frame["G"] = -scores
    frame["p_repeat"] = 1 / (1 + np.exp(-scores))
    frame.loc[:9, "p_repeat"] = np.nan
    return pd.concat([frame, frame.assign(arm="drop", G=0.0)], ignore_index=True)


def test_every_predictor_is_judged_in_every_arm_on_the_points_that_have_it() -> None:
    points = _frame()
    table = predict_table(points, ["G", "p_repeat"], ["p_repeat"], rng, n_draws=300)
    assert set(table.columns) == set(schema.TABLES["predict"])
    assert list(zip(table["arm"], table["predictor"], strict=True)) == [
        (arm, name) for arm in ("verbatim", "drop") for name in ("G", "p_repeat")
    ]
    gain, repeat, flat, _ = table.itertuples()
    assert gain.auc == pytest.approx(auc(points["G"][:120], points["repeats"][:120])) and gain.auc < 0.5
    assert (gain.n, gain.n_undefined, repeat.n, repeat.n_undefined) == (120, 0, 110, 10)
    assert math.isnan(gain.brier) and math.isnan(gain.ece) and not gain.flagged
    known = points[:120].dropna()
    assert repeat.brier == pytest.approx(brier(known["p_repeat"], known["repeats"]))
    assert repeat.ece == pytest.approx(expected_calibration_error(known["p_repeat"], known["repeats"]))
    assert (flat.auc, flat.ci_lo, flat.ci_hi) == (0.5, 0.5, 0.5) and flat.flagged
    with pytest.raises(InputError, match="lack the columns copy"):
        predict_table(points, ["copy"], [], rng)


def test_the_calibration_table_has_the_bins_of_every_arm() -> None:
    points = _frame()
    table = calibration_table(points, ["p_repeat"], rng, bins=4, n_draws=100)
    assert set(table.columns) == set(schema.TABLES["predict_calibration"])
    assert (
        table["bin"].tolist() == [0, 1, 2, 3] * 2 and table["arm"].tolist() == ["verbatim"] * 4 + ["drop"] * 4
    )
    assert table.groupby("arm")["n"].sum().to_dict() == {"verbatim": 110, "drop": 110}
    assert calibration_table(points, [], rng).empty
    undefined = points.assign(p_repeat=np.nan)
    assert calibration_table(undefined, ["p_repeat"], rng).empty
