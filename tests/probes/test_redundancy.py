"""Redundancy of named parts on frames small enough for sums done by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from mech.errors import InputError
from probes.effects import shares as effects
from probes.effects.redundancy import REDUNDANCY, part_redundancy

DELTA = {"a": 10.0, "b": 30.0, "c": 20.0}
MEMBERS = {"both": ["mlp1", "L2H3"]}


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def _rows(direction: str, **effect: list[float]) -> pd.DataFrame:
    """Each of the three items as three, of a task each: nine clusters."""
    lines = [
        (f"{item}{copy}", f"task-{item}{copy}", direction, part, nats, delta)
        for part, values in effect.items()
        for (item, delta), nats in zip(DELTA.items(), values, strict=True)
        for copy in range(3)
    ]
    return pd.DataFrame(lines, columns=["item_id", "task_id", "direction", "part", "effect_nats", "delta"])


OR_GATE = pd.concat(
    [
        _rows("noise", mlp1=[0, 1, 0], L2H3=[1, 0, 0], both=[9.0, 28.0, 17.0]),
        _rows("denoise", mlp1=[9, 27, 16], L2H3=[8, 26, 17], both=[9.0, 28.0, 17.0]),
    ]
)


def test_an_or_is_redundant_in_both_directions_and_an_and_cooperates() -> None:
    found = part_redundancy(OR_GATE, MEMBERS, _rng, n_draws=500).set_index("direction")
    assert ["direction", *found.columns] == list(REDUNDANCY)
    assert found.loc["noise", "redundancy_nats"] == pytest.approx((8 + 27 + 17) / 3)
    assert found.loc["denoise", "redundancy_nats"] == pytest.approx(-(8 + 25 + 16) / 3)
    assert found.loc["noise", "redundancy_share"] == pytest.approx(52 / 60)
    assert found.loc["noise", "joint_nats"] == 18.0
    assert found.loc["noise", "singles_nats"] == pytest.approx(2 / 3)
    assert (found["reading"] == "redundant").all() and (found["n_parts"] == 2).all()
    turned = OR_GATE.assign(direction=OR_GATE["direction"].map({"noise": "denoise", "denoise": "noise"}))
    assert (part_redundancy(turned, MEMBERS, _rng, n_draws=500)["reading"] == "cooperating").all()
    for _, row in found.iterrows():
        assert row["ci_lo"] <= row["redundancy_nats"] <= row["ci_hi"]
        assert row["share_lo"] <= row["redundancy_share"] <= row["share_hi"]
        assert row["n"] == row["n_clusters"] == 9


def test_a_sum_is_additive_and_what_does_not_vary_has_no_reading() -> None:
    near = _rows("noise", mlp1=[1, 2, 3], L2H3=[4, 5, 6], both=[6.0, 6.5, 8.0])
    assert part_redundancy(near, MEMBERS, _rng, n_draws=500)["reading"].tolist() == ["additive"]
    exact = _rows("noise", mlp1=[1, 2, 3], L2H3=[4, 5, 6], both=[5.0, 7.0, 9.0])
    [row] = part_redundancy(exact, MEMBERS, _rng, n_draws=500).to_dict("records")
    assert row["redundancy_nats"] == 0.0 and row["reading"] == ""


def test_the_gap_of_heads_is_that_of_the_heads_table() -> None:
    named = OR_GATE[OR_GATE["direction"] == "noise"].replace({"part": {"mlp1": "L1H0"}})
    mine = part_redundancy(named, {"both": ["L1H0", "L2H3"]}, _rng, n_draws=500).iloc[0]
    by_head = named.assign(
        layer=named["part"].map({"L1H0": 1, "L2H3": 2}),
        head=named["part"].map({"L1H0": 0, "L2H3": 3}),
        set=named["part"].where(named["part"] == "both", None),
    )
    theirs = effects.redundancy(by_head, {"both": [(1, 0), (2, 3)]}, _rng, n_draws=500).iloc[0]
    for column in ("joint_nats", "singles_nats", "redundancy_nats", "ci_lo", "ci_hi", "n", "n_clusters"):
        assert mine[column] == pytest.approx(theirs[column])


def test_a_share_of_nothing_is_not_given() -> None:
    rows = OR_GATE.assign(delta=0.001)
    found = part_redundancy(rows, MEMBERS, _rng, n_draws=500)
    assert found[["redundancy_share", "share_lo", "share_hi"]].isna().all(axis=None)
    assert not math.isnan(found["redundancy_nats"].iloc[0])


def test_rows_that_could_only_give_wrong_numbers_are_refused() -> None:
    noise = OR_GATE[OR_GATE["direction"] == "noise"]
    for rows, members, words in (
        (OR_GATE.drop(columns="delta"), MEMBERS, "lack the columns delta"),
        (pd.concat([OR_GATE, OR_GATE]), MEMBERS, "stands twice"),
        (noise.assign(direction="up"), MEMBERS, "'up' is not a direction"),
        (noise[noise["part"] != "mlp1"], MEMBERS, "'mlp1' of the set 'both' was not patched under noise"),
        (
            noise[(noise["part"] != "mlp1") | (noise["item_id"] != "b0")],
            MEMBERS,
            "Item b0 has no effect of mlp1",
        ),
        (noise, {"both": ["mlp1"]}, "at least two parts"),
        (noise, {"both": ["mlp1", "mlp1"]}, "each once"),
        (noise, {"both": ["mlp1", "both"]}, "not itself"),
    ):
        with pytest.raises(InputError, match=words):
            part_redundancy(rows, members, _rng, n_draws=50)
