"""Paired deltas against `fail` by hand; the family of the correction; equivalence stated apart from p."""

from __future__ import annotations

import math
import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures.manipulations import manipulations
from probes.stats.families import family_size, holm

CONDITIONS = ("abstract", "fail_echo", "fail_k2", "fail_terse")


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def _measures(shifts: dict[str, float], model: str = "m", n: int = 40, noise: float = 1.0) -> pd.DataFrame:
    """n items of n / 2 tasks; every X has delta_X = shift + noise, and G_X = -20 - delta_X."""
    rng = np.random.default_rng(len(model))
    lines = []
    for index in range(n):
        for name, shift in shifts.items():
            delta = shift + noise * float(rng.normal())
            base = {"model": model, "env": "e", "item_id": f"i{index}", "task_id": f"t{index // 2}"}
            lines += [
                {**base, "measure": f"delta_{name}", "value": delta},
                {**base, "measure": f"G_{name}", "value": -20.0 - delta},
            ]
    return pd.DataFrame(lines)


SHIFTS = dict(zip(CONDITIONS, (-21.0, 1.3, 0.4, 0.0), strict=True))


def test_each_manipulation_is_a_paired_mean_beside_its_own_gain() -> None:
    hand = pd.DataFrame(
        [
            ("m", "e", item, task, name, value)
            for item, task, values in (
                ("a", "t1", (1.0, -21.0)),
                ("b", "t1", (2.0, -22.0)),
                ("c", "t2", (6.0, -29.0)),
            )
            for name, value in zip(("delta_fail_k2", "G_fail_k2"), values, strict=True)
        ],
        columns=["model", "env", "item_id", "task_id", "measure", "value"],
    )
    table = manipulations(hand, _rng, n_draws=999)
    assert set(table.columns) == set(TABLES["manipulations"])
    line = table.iloc[0]
    assert (line["condition"], line["delta"], line["G"], line["n"], line["n_clusters"]) == (
        "fail_k2",
        3,
        -24,
        3,
        2,
    )
    assert np.isnan([line["ci_lo"], line["ci_hi"], line["p"]]).all()  # two tasks allow neither


def test_the_family_is_every_manipulation_of_one_model_and_environment() -> None:
    both = pd.concat([_measures(SHIFTS), _measures({"fail_k2": 0.4}, model="other")])
    table = manipulations(both, _rng, n_draws=2000)
    assert table[table["model"] == "m"]["condition"].tolist() == list(CONDITIONS)
    for model, size in (("m", 4), ("other", 1)):
        family = table[table["model"] == model]
        assert family_size(family["p"]) == size
        np.testing.assert_array_equal(family["p_holm"], holm(family["p"]))
    alone = table[table["model"] == "other"].iloc[0]
    assert alone["p_holm"] == alone["p"]
    strongest = table[(table["model"] == "m") & (table["condition"] == "abstract")].iloc[0]
    assert (
        strongest["p"] < 1e-3 and strongest["p_holm"] == 4 * strongest["p"] and strongest["family_size"] == 4
    )


def test_unchanged_is_shown_by_the_interval_and_not_by_a_large_p() -> None:
    table = manipulations(_measures({"fail_terse": 0.0}), _rng, n_draws=2000)
    noisy = manipulations(_measures({"fail_terse": 0.0}, noise=30.0), _rng, n_draws=2000)
    assert table["equivalent"].tolist() == [True] and noisy["equivalent"].tolist() == [False]
    assert noisy["p"].iloc[0] > 0.05
    assert manipulations(_measures({"fail_terse": 0.0}), _rng, delta=0.05, n_draws=2000)[
        "equivalent"
    ].tolist() == [False]
    assert manipulations(_measures({"fail_other": -21.0}), _rng, delta=30.0, n_draws=500)[
        "equivalent"
    ].tolist() == [True]


def test_an_early_failure_is_measured_where_a_step_follows_and_counted_once() -> None:
    early = _measures({"fail_early": 0.0})
    paired = early[early["measure"] == "delta_fail_early"]
    some = paired["item_id"].isin(paired["item_id"].unique()[:6])
    moved = paired[some].assign(measure="delta_fail_early_moved")
    both = pd.concat([early, moved, _measures({"fail_k2": 1.0})], ignore_index=True)
    table = manipulations(both, _rng, n_draws=500).set_index("condition")
    assert list(table.index) == ["fail_early", "fail_k2"] and table.loc["fail_early", "n"] == 6
    assert manipulations(early, _rng).empty  # no item has a step: it would be fail itself
    assert manipulations(_measures({"no_such_way": 1.0}), _rng).empty


def test_a_delta_that_never_varies_is_not_tested_and_not_in_the_family() -> None:
    same = _measures(SHIFTS)
    same.loc[same["measure"] == "delta_fail_terse", "value"] = 0.0
    table = manipulations(same, _rng, n_draws=500).set_index("condition")
    assert math.isnan(table.loc["fail_terse", "p"]) and math.isnan(table.loc["fail_terse", "p_holm"])
    assert family_size(table["p"]) == 3 and table.loc["fail_terse", "equivalent"]
    assert table.loc["abstract", "p_holm"] == 3 * table.loc["abstract", "p"]


def test_other_measures_are_no_manipulations_and_a_gain_is_over_the_same_items() -> None:
    measures = _measures({"fail_echo": 1.0})
    more = measures.assign(measure=measures["measure"] + "_per_token")
    plain = measures.assign(measure=measures["measure"].str.replace("delta_fail_echo", "copy"))
    table = manipulations(pd.concat([measures, more, plain[plain["measure"] == "copy"]]), _rng, n_draws=50)
    assert table["condition"].tolist() == ["fail_echo"]
    torn = measures[(measures["measure"] != "delta_fail_echo") | (measures["item_id"] != "i3")]
    kept = measures[(measures["measure"] == "G_fail_echo") & (measures["item_id"] != "i3")]
    assert manipulations(torn, _rng, n_draws=50)["G"].iloc[0] == pytest.approx(kept["value"].mean())
    lost = measures[(measures["measure"] != "G_fail_echo") | (measures["item_id"] != "i3")]
    assert math.isnan(manipulations(lost, _rng, n_draws=50)["G"].iloc[0])


def test_no_manipulation_gives_an_empty_table() -> None:
    measures = _measures({"fail_echo": 1.0}).query("measure == 'G_fail_echo'")
    for some in (measures, measures.iloc[:0]):
        table = manipulations(some, _rng)
        assert table.empty


@pytest.mark.parametrize("delta", [0.0, -0.5, math.nan])
def test_a_half_width_must_be_above_zero(delta: float) -> None:
    with pytest.raises(InputError, match="must be above 0 nats"):
        manipulations(_measures(SHIFTS), _rng, delta=delta)


def test_a_value_that_stands_twice_is_refused() -> None:
    with pytest.raises(InputError, match="occurs twice"):
        manipulations(pd.concat([_measures(SHIFTS)] * 2), _rng)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.sampled_from([-2.0, 0.25, 64.0]))
def test_the_table_forgets_the_order_and_scales_with_the_values(mix: random.Random, factor: float) -> None:
    measures = _measures(SHIFTS, n=8)
    order = mix.sample(range(len(measures)), len(measures))
    table = manipulations(measures, _rng, n_draws=60)
    pd.testing.assert_frame_equal(table, manipulations(measures.iloc[order], _rng, n_draws=60))
    scaled = manipulations(measures.assign(value=measures["value"] * factor), _rng, n_draws=60)
    np.testing.assert_allclose(scaled[["delta", "G"]], table[["delta", "G"]] * factor)
    np.testing.assert_array_equal(scaled["p"], table["p"])
