"""Shares carried and off-target changes, on numbers done by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.schema import TABLES
from mech.errors import InputError
from probes.carried import CARRIED, OFF_TARGET, carried, off_target

DRAWS = 500


def rng_for(name: str) -> np.random.Generator:
    return np.random.default_rng(len(name))


def rows(deltas: tuple[float, ...] = (10.0, 30.0)) -> pd.DataFrame:
    """Two items (two tasks), one method; the set removes 5 and 25, its controls 0 and 4, 2 and 6."""
    effects = {
        ("top4", "selected"): (5.0, 25.0),
        ("top4/random0", "random"): (0.0, 4.0),
        ("top4/random1", "random"): (2.0, 6.0),
        ("top4/strength0", "strength"): (8.0, 28.0),
    }
    lines = [
        ("shed", f"item{i}", f"task{i}", "noise", label, kind, 4, values[i], deltas[i])
        for (label, kind), values in effects.items()
        for i in range(2)
    ]
    names = ["env", "item_id", "task_id", "method", "set", "kind", "k", "effect_nats", "delta"]
    return pd.DataFrame(lines, columns=names)


def test_a_share_is_a_ratio_of_sums_and_controls_stand_beside_it_by_kind() -> None:
    table = carried(rows(), rng_for, DRAWS).set_index("controls")
    assert list(table.reset_index().columns.sort_values()) == sorted(CARRIED)
    random, strength = table.loc["random"], table.loc["strength"]
    assert random["share"] == strength["share"] == pytest.approx(30 / 40)
    assert random["effect_nats"] == pytest.approx(15.0) and random["direction"] == "necessity"
    # Controls: 4/40 and 8/40; mean 6/40.
    assert (random["control_mean"], random["control_lo"], random["control_hi"]) == pytest.approx(
        (0.15, 0.1, 0.2)
    )
    assert random["excess"] == pytest.approx(24 / 40)
    assert random["percentile"] == 100.0 and random["p"] == pytest.approx(1 / 3)
    assert strength["control_mean"] == pytest.approx(36 / 40)
    assert strength["percentile"] == 0.0 and strength["p"] == 1.0
    assert np.isnan([random["ci_lo"], random["ci_hi"]]).all()  # two tasks are too few


def test_a_set_without_controls_has_its_share_and_nothing_beside_it() -> None:
    [line] = carried(rows()[lambda t: t["kind"] == "selected"], rng_for, DRAWS).to_dict("records")
    assert line["share"] == pytest.approx(0.75) and line["n_controls"] == 0 and line["controls"] == ""
    assert all(np.isnan(line[name]) for name in ("control_mean", "p", "percentile", "excess", "excess_lo"))


def test_a_vanishing_difference_has_no_share_and_still_has_its_effect() -> None:
    table = carried(rows((0.001, -0.001)), rng_for, DRAWS)
    assert table[["share", "ci_lo", "excess", "control_mean", "p"]].isna().all(axis=None)
    assert table["effect_nats"].tolist() == [15.0, 15.0]


def test_a_set_that_lacks_an_item_is_an_error() -> None:
    with pytest.raises(InputError, match="item0"):
        carried(rows().iloc[1:], rng_for, DRAWS)
    with pytest.raises(InputError, match="twice"):
        carried(pd.concat([rows(), rows().iloc[:1]]), rng_for, DRAWS)


def test_off_target_changes_are_paired_and_equivalent_only_inside_the_bound() -> None:
    lines = [
        ("shed", f"i{i}", f"t{i}", "zero", "top4", 4, quantity, whole, whole + change)
        for quantity, changes in {"sem": (0.1, 0.2, 0.3), "reference": (-4.0, 0.0, 4.0)}.items()
        for i, (whole, change) in enumerate(zip((1.0, 5.0, -2.0) * 3, changes * 3, strict=True))
    ]
    names = ["env", "item_id", "task_id", "method", "set", "k", "quantity", "whole", "under"]
    table = off_target(pd.DataFrame(lines, columns=names), 0.5, rng_for, DRAWS)
    assert tuple(table.columns) == OFF_TARGET
    by = table.set_index("quantity")
    assert by.loc["sem", "change"] == pytest.approx(0.2) and by.loc["sem", "equivalent"]
    # A mean of exactly zero is no equivalence when the interval is wide.
    assert by.loc["reference", "change"] == pytest.approx(0.0) and not by.loc["reference", "equivalent"]
    assert by.loc["sem", "whole"] == pytest.approx(4 / 3) and by.loc["sem", "under"] == pytest.approx(
        4 / 3 + 0.2
    )
    with pytest.raises(InputError, match="above 0"):
        off_target(pd.DataFrame(lines, columns=names), 0.0, rng_for, DRAWS)


def test_the_columns_are_the_schemas() -> None:
    assert TABLES["carried"] == CARRIED and TABLES["carried_offtarget"] == OFF_TARGET


def test_controls_belong_to_the_set_they_are_named_after() -> None:
    """`top1` is no beginning of `top16/random0` that counts; nor does an equal share count as less."""
    few = rows().query("kind != 'strength'")
    more = few.assign(set=few["set"].str.replace("top4", "top44"), k=44, effect_nats=few["effect_nats"] - 1)
    table = carried(pd.concat([few, more]), rng_for, DRAWS).set_index("set")
    assert (table["n_controls"] == 2).all() and table.loc["top4", "control_hi"] == pytest.approx(0.2)
    equal = few.assign(effect_nats=5.0)
    [line] = carried(equal, rng_for, DRAWS).to_dict("records")
    assert line["percentile"] == 0.0 and line["p"] == 1.0
