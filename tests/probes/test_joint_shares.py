"""Joint shares and off-target changes, on numbers done by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.effects.joint import OFF_ROW, ROW, joint_shares, off_target
from probes.effects.joint_effects import kind_and_size, long_joint

DRAWS = 500


def rng_for(name: str) -> np.random.Generator:
    return np.random.default_rng(len(name))


def rows(deltas: tuple[float, ...] = (10.0, 30.0)) -> pd.DataFrame:
    """Two items (two tasks), one method; the set removes 5 and 25, its controls 0 and 4, 2 and 6."""
    effects = {
        ("top4", "selected"): (5.0, 25.0),
        ("top4/random0", "random"): (0.0, 4.0),
        ("top4/random1", "random"): (2.0, 6.0),
        ("top4/norm0", "norm"): (8.0, 28.0),
    }
    lines = [
        (
            "shed",
            "pre",
            "neut",
            "logprob",
            f"item{i}",
            f"task{i}",
            "noise",
            label,
            kind,
            4,
            values[i],
            deltas[i],
        )
        for (label, kind), values in effects.items()
        for i in range(2)
    ]
    return pd.DataFrame(lines, columns=list(ROW))


def test_a_share_is_a_ratio_of_sums_and_controls_stand_beside_it_by_kind() -> None:
    table = joint_shares(rows(), rng_for, DRAWS).set_index("controls")
    assert {*table.reset_index().columns, "family_size", "excess_p_holm"} == set(TABLES["joint"])
    random, norm = table.loc["random"], table.loc["norm"]
    assert random["share"] == norm["share"] == pytest.approx(30 / 40)
    assert random["effect_nats"] == pytest.approx(15.0) and random["direction"] == "necessity"
    # Controls: 4/40 and 8/40; mean 6/40.
    assert (random["control_mean"], random["control_lo"], random["control_hi"]) == pytest.approx(
        (0.15, 0.1, 0.2)
    )
    assert random["excess"] == pytest.approx(24 / 40)
    assert random["percentile"] == 100.0 and np.isnan(random["p"])  # two sets: .05 is out of reach
    assert norm["control_mean"] == pytest.approx(36 / 40)
    assert norm["percentile"] == 0.0
    assert np.isnan(random["ci_lo"]) and random["n_clusters"] == 2  # too few for an interval


def test_a_set_without_controls_has_its_share_and_nothing_beside_it() -> None:
    [line] = joint_shares(rows()[lambda t: t["kind"] == "selected"], rng_for, DRAWS).to_dict("records")
    assert line["share"] == pytest.approx(0.75) and line["n_controls"] == 0 and line["controls"] == ""
    assert all(np.isnan(line[name]) for name in ("control_mean", "p", "percentile", "excess", "excess_lo"))


def test_a_vanishing_difference_has_no_share_and_still_has_its_effect() -> None:
    table = joint_shares(rows((0.001, -0.001)), rng_for, DRAWS)
    assert table[["share", "ci_lo", "excess", "control_mean", "p"]].isna().all(axis=None)
    assert table["effect_nats"].tolist() == [15.0, 15.0]


def test_a_set_that_lacks_an_item_is_an_error() -> None:
    with pytest.raises(InputError, match="item0"):
        joint_shares(rows().iloc[1:], rng_for, DRAWS)
    with pytest.raises(InputError, match="twice"):
        joint_shares(pd.concat([rows(), rows().iloc[:1]]), rng_for, DRAWS)


def test_off_target_changes_are_paired_and_equivalent_only_inside_the_bound() -> None:
    lines = [
        ("shed", "pre", "neut", f"i{i}", f"t{i}", "zero", "top4", 4, quantity, whole, whole + change)
        for quantity, changes in {"sem": (0.1, 0.2, 0.3), "reference": (-4.0, 0.0, 4.0)}.items()
        for i, (whole, change) in enumerate(zip((1.0, 5.0, -2.0) * 4, changes * 4, strict=True))
    ]
    table = off_target(pd.DataFrame(lines, columns=list(OFF_ROW)), 0.5, rng_for, DRAWS)
    assert set(table.columns) == set(TABLES["joint_off_target"])
    by = table.set_index("quantity")
    assert by.loc["sem", "change"] == pytest.approx(0.2) and by.loc["sem", "equivalent"]
    # A mean of exactly zero is no equivalence when the interval is wide.
    assert by.loc["reference", "change"] == pytest.approx(0.0) and not by.loc["reference", "equivalent"]
    assert by.loc["sem", "whole"] == pytest.approx(4 / 3) and by.loc["sem", "under"] == pytest.approx(
        4 / 3 + 0.2
    )
    with pytest.raises(InputError, match="above 0"):
        off_target(pd.DataFrame(lines, columns=list(OFF_ROW)), 0.0, rng_for, DRAWS)


def test_controls_belong_to_the_set_they_are_named_after() -> None:
    """`top1` is no beginning of `top16/random0` that counts; nor does an equal share count as less."""
    few = rows().query("kind != 'norm'")
    more = few.assign(set=few["set"].str.replace("top4", "top44"), k=44, effect_nats=few["effect_nats"] - 1)
    table = joint_shares(pd.concat([few, more]), rng_for, DRAWS).set_index("set")
    assert (table["n_controls"] == 2).all() and table.loc["top4", "control_hi"] == pytest.approx(0.2)
    equal = few.assign(effect_nats=5.0)
    [line] = joint_shares(equal, rng_for, DRAWS).to_dict("records")
    assert line["percentile"] == 0.0


def test_a_rank_among_controls_has_a_p_from_nineteen_sets_on() -> None:
    own = [4.0, 5.0, 6.0, 7.0, 5.0, 6.0]

    def p(n: int, better: int) -> float:
        sets = {f"top16/random{i}": [9.0 if i < better else 1.0] * 6 for i in range(n)}
        [line] = joint_shares(many({"top16": own, **sets}), rng_for, DRAWS).to_dict("records")
        return float(line["p"])

    assert np.isnan(p(18, 0)) and p(19, 0) == pytest.approx(1 / 20) and p(19, 3) == pytest.approx(4 / 20)


def test_controls_of_fewer_draws_are_compared_with_the_same_draws_of_the_set() -> None:
    rows = many({"top16": [6.0] * 6, "top16/random0": [2.0] * 6})
    rows["paired_nats"] = rows["effect_nats"].where(rows["set"] != "top16", 3.0)
    [line] = joint_shares(rows, rng_for, DRAWS).to_dict("records")
    assert line["share"] == pytest.approx(0.6) and line["excess"] == pytest.approx(0.1)


def many(effects: dict[str, list[float]], delta: float = 10.0) -> pd.DataFrame:
    """One item a task; a set is of the kind that its label says."""
    lines = [
        (
            "shed",
            "pre",
            "neut",
            "margin",
            f"i{i}",
            f"t{i}",
            "resample",
            label,
            *kind_and_size(label),
            value,
            delta,
        )
        for label, values in effects.items()
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(lines, columns=list(ROW))


def test_of_a_kind_with_one_set_there_is_a_share_with_its_interval_and_no_p() -> None:
    own, other = [4.0, 5.0, 6.0, 7.0, 5.0, 6.0, 8.0, 3.0], [1.0, 2.0, 1.5, 2.5, 2.0, 1.0, 3.0, 0.5]
    table = joint_shares(many({"top16": own, "top16/sink0": other, "top16/random0": other}), rng_for, DRAWS)
    sink, random = (table[table["controls"] == kind].iloc[0] for kind in ("sink", "random"))
    assert sink["control_mean"] == pytest.approx(sum(other) / 80) == random["control_mean"]
    assert sink["control_lo"] < sink["control_mean"] < sink["control_hi"] and sink["n_controls"] == 1
    assert np.isnan(sink["p"]) and np.isnan(sink["percentile"]) and np.isnan(random["p"])
    assert random["control_lo"] == random["control_hi"] == random["control_mean"]  # extremes over one draw
    # All eight clusters are above their controls: 2 of 256 flips are as extreme (p is the interval's, if that is more).
    assert 2 / 256 <= sink["excess_p"] == random["excess_p"] < 0.012
    assert sink["excess_lo"] > 0


def test_the_spread_over_draws_is_that_of_shares_that_one_draw_of_every_item_gives() -> None:
    rows = many({"top4": [3.0, 5.0]}).assign(draws=[[2.0, 4.0], [4.0, 6.0]])
    [line] = joint_shares(rows, rng_for, DRAWS).to_dict("records")
    # One draw of both items: (2 + 4) / 20 and (4 + 6) / 20.
    assert line["n_draws"] == 2 and line["draw_sd"] == pytest.approx(np.std([0.3, 0.5], ddof=1))
    with pytest.raises(InputError, match="1 to 2 draws"):
        joint_shares(rows.assign(draws=[[2.0], [4.0, 6.0]]), rng_for, DRAWS)


def test_pairs_and_metrics_are_tables_of_their_own() -> None:
    other = rows().assign(metric="margin", effect_nats=1.0)
    third = rows().assign(**{"from": "neut_other"})
    table = joint_shares(pd.concat([rows(), other, third]), rng_for, DRAWS).query("controls == 'random'")
    assert table["share"].tolist() == pytest.approx([0.75, 0.05, 0.75])
    assert list(zip(table["from"], table["metric"], strict=True)) == [
        ("pre", "logprob"), ("pre", "margin"), ("neut_other", "logprob"),
    ]  # fmt: skip


def test_long_rows_hold_every_metric_of_the_effects_and_what_changes_off_target() -> None:
    row = {
        "env": "shed", "from": "pre", "to": "neut", "item_id": "i", "task_id": "t", "method": "mean",
        "n_tokens": {"failed": 4, "gold": 2, "diverging": 1},
        "whole": {
            "failed|pre": -9.0, "failed|neut": -1.0, "gold|pre": -3.0, "gold|neut": -2.0,
            "diverging|pre": -5.0, "diverging|neut": -1.0, "failed|fail": -2.0,
        },
        "under": {
            "failed|pre": {"top1": -8.0}, "failed|neut": {"top1": -5.0}, "failed|fail": {"top1": -5.5},
            "gold|pre": {"top1": -4.0}, "gold|neut": {"top1": -4.0},
            "diverging|pre": {"top1": -4.0}, "diverging|neut": {"top1": -2.0},
        },
        "draws": {},
    }  # fmt: skip
    effects, off = long_joint(pd.DataFrame([row]))
    found = effects.set_index("metric")[["effect_nats", "delta"]]
    # log p: 8 less 3. The reference gains 1, and nothing under the set: the margin is 7, less 3.
    assert tuple(found.loc["logprob"]) == (5.0, 8.0) and tuple(found.loc["margin"]) == (4.0, 7.0)
    assert tuple(found.loc["diverging"]) == (2.0, 4.0) and tuple(found.loc["diverging_per_token"]) == (
        2.0,
        4.0,
    )
    assert tuple(found.loc["logprob_per_token"]) == (1.25, 2.0)
    assert tuple(found.loc["margin_per_token"]) == (1.25 - 0.5, 2.0 - 0.5)
    assert off.set_index("quantity")[["whole", "under"]].to_dict("index") == {
        "reference": {"whole": -3.0, "under": -4.0}, "sem": {"whole": -1.0, "under": -0.5},
    }  # fmt: skip
    assert effects["draws"].isna().all()
