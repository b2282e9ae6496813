"""Shares, redundancy and dose curves on frames small enough for fractions done by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mech.errors import InputError
from probes.effects import dose
from probes.effects import shares as effects
from probes.stats.bootstrap import cluster_bootstrap


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


# --- patched heads

DELTAS = {"a": 10.0, "b": 30.0, "c": 0.001}  # item → Δcopy; item c has nothing to share


def _patch(effect: dict[tuple[int, int], list[float]], direction: str = "noise") -> pd.DataFrame:
    """Single patches: head → its effect on items a, b, c."""
    lines = [
        {
            **{"item_id": item, "task_id": f"task-{item}", "direction": direction},
            **{"layer": layer, "head": head, "effect_nats": nats, "delta": delta},
        }
        for (layer, head), values in effect.items()
        for (item, delta), nats in zip(DELTAS.items(), values, strict=True)
    ]
    return pd.DataFrame(lines)


def _joint(label: str, values: list[float]) -> pd.DataFrame:
    return _patch({(0, 0): values}).assign(layer=np.nan, head=np.nan, set=label)


HEADS = _patch({(18, 6): [1.0, 9.0, 0.0], (17, 3): [-1.0, 0.0, 0.001]})


def test_an_items_share_is_of_its_own_delta_and_undefined_where_there_is_none() -> None:
    shares = effects.item_shares(HEADS)
    assert tuple(shares.columns) == effects.EFFECTS
    assert shares["share"].tolist()[:2] == [0.1, 0.3] and shares["share"].tolist()[3:5] == [-0.1, 0.0]
    assert shares["share"].isna().tolist() == [False, False, True, False, False, True]
    assert shares["layer"].tolist() == [18, 18, 18, 17, 17, 17]


def test_a_heads_share_is_a_ratio_of_means() -> None:
    found = effects.head_shares(HEADS, _rng, n_draws=2000).set_index(["layer", "head"])
    assert found.loc[(18, 6), "share"] == pytest.approx(10 / 40.001)
    assert found.loc[(17, 3), "share"] == pytest.approx(-0.999 / 40.001)
    assert found.loc[(18, 6), "effect_nats"] == pytest.approx(10 / 3)
    assert (found["n"] == 3).all() and (found["n_clusters"] == 3).all()


def test_the_interval_of_a_share_covers_a_head_that_does_its_share_on_every_item() -> None:
    rng = np.random.default_rng(0)
    delta = rng.uniform(5, 40, size=200)
    rows = pd.DataFrame({"item_id": [f"i{i:03d}" for i in range(200)], "delta": delta})
    rows = rows.assign(task_id=[f"t{i // 4}" for i in range(200)], direction="denoise", layer=1)
    noisy = rows.assign(head=0, effect_nats=0.3 * delta + rng.normal(size=200))
    exact = rows.assign(head=1, effect_nats=0.3 * delta)
    none = rows.assign(head=2, effect_nats=0.0)
    found = effects.head_shares(pd.concat([noisy, exact, none]), _rng).set_index("head")
    assert found.loc[0, "ci_lo"] < 0.3 < found.loc[0, "ci_hi"] and not found.loc[0, "flagged"]
    assert found.loc[0, "ci_hi"] - found.loc[0, "ci_lo"] < 0.04
    assert found.loc[1, "ci_lo"] == found.loc[1, "ci_hi"] == pytest.approx(0.3) and found.loc[1, "flagged"]
    assert found.loc[2, "share"] == 0.0 and found.loc[2, "flagged"]


def test_shares_of_almost_nothing_are_nan_and_flagged() -> None:
    rows = HEADS.assign(delta=1e-4)
    found = effects.head_shares(rows, _rng, n_draws=100)
    assert found[["share", "ci_lo", "ci_hi"]].isna().all().all() and found["flagged"].all()
    assert effects.item_shares(rows)["share"].isna().all()
    # Large deltas that cancel are as little to divide by.
    found = effects.head_shares(
        HEADS[HEADS["item_id"] != "c"].assign(delta=[5.0, -5.0] * 2), _rng, n_draws=100
    )
    assert found["share"].isna().all() and found["flagged"].all()


def test_directions_are_kept_apart_and_joint_patches_left_aside() -> None:
    rows = pd.concat(
        [HEADS.assign(set=None), _patch({(18, 6): [5.0, 5.0, 5.0]}, "denoise"), _joint("top", [9.0] * 3)]
    )
    found = effects.head_shares(rows, _rng, n_draws=100)
    assert found["direction"].tolist() == ["denoise", "noise", "noise"]
    assert found["share"].iloc[0] == pytest.approx(15 / 40.001)
    shares = effects.item_shares(rows)
    assert shares["set"].eq("top").sum() == 3
    assert shares.loc[shares["set"].eq("top"), "layer"].isna().all()


def test_redundancy_is_the_joint_effect_minus_the_single_ones() -> None:
    rows = pd.concat([HEADS.assign(set=None), _joint("top", [4.0, 15.0, 0.5])])
    found = effects.redundancy(rows, {"top": [(18, 6), (17, 3)]}, _rng, n_draws=4000).iloc[0]
    gaps = [4.0 - 0.0, 15.0 - 9.0, 0.5 - 0.001]
    assert found["joint_nats"] == pytest.approx(19.5 / 3) and found["singles_nats"] == pytest.approx(
        9.001 / 3
    )
    assert found["redundancy_nats"] == pytest.approx(sum(gaps) / 3)
    assert found["joint_share"] == pytest.approx(19.5 / 40.001)
    same = cluster_bootstrap(gaps, ["task-a", "task-b", "task-c"], _rng("redundancy/noise/top"), n_draws=4000)
    assert (found["ci_lo"], found["ci_hi"]) == pytest.approx((same.lo, same.hi), nan_ok=True)
    assert math.isnan(found["ci_lo"]) and found["n"] == found["n_clusters"] == 3


def test_heads_that_add_up_have_no_redundancy() -> None:
    singles = [1.0 - 1.0, 9.0 + 0.0, 0.0 + 0.001]
    rows = pd.concat([HEADS.assign(set=None), _joint("top", singles)])
    found = effects.redundancy(rows, {"top": [(18, 6), (17, 3)]}, _rng, n_draws=100)
    assert found["redundancy_nats"].iloc[0] == pytest.approx(0.0, abs=1e-12)


def test_redundancy_needs_every_head_alone() -> None:
    rows = pd.concat([HEADS.assign(set=None), _joint("top", [4.0, 15.0, 0.5])])
    with pytest.raises(InputError, match="L2H2 was not patched alone"):
        effects.redundancy(rows, {"top": [(18, 6), (2, 2)]}, _rng)
    with pytest.raises(InputError, match="'top' are not given"):
        effects.redundancy(rows, {}, _rng)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"direction": "sideways"}, "sideways"),
        ({"effect_nats": math.nan}, "no effect_nats"),
        ({"layer": math.nan}, "no layer"),
        ({"delta": 11.0}, "two deltas"),
        ({"layer": 17, "head": 3}, "occurs twice"),
    ],
)
def test_patch_rows_that_could_only_give_wrong_shares_are_refused(
    change: dict[str, Any], sentence: str
) -> None:
    rows = HEADS.astype({"layer": float})
    rows.loc[0, list(change)] = list(change.values())
    for scoring in (effects.item_shares, lambda frame: effects.head_shares(frame, _rng)):
        with pytest.raises(InputError, match=sentence):
            scoring(rows)


def test_heads_patched_on_different_items_are_not_compared() -> None:
    with pytest.raises(InputError, match="Item c has no effect_nats for layer 17, head 3"):
        effects.head_shares(HEADS.iloc[:-1], _rng)


# --- ablated sets


def _ablated(means: dict[tuple[str, str, int], float], measure: str = "copy", n: int = 30) -> pd.DataFrame:
    """(set, kind, k) → mean Δcopy; items are 10 above and below it in turns."""
    lines = [
        {
            **{
                "set": label,
                "kind": kind,
                "k": k,
                "measure": measure,
                "value": mean + (10 if i % 2 else -10),
            },
            **{"item_id": f"i{i:02d}", "task_id": f"t{i // 2}" if measure == "copy" else f"t{i}"},
        }
        for (label, kind, k), mean in means.items()
        for i in range(n)
    ]
    return pd.DataFrame(lines)


CURVE = {
    ("none", "none", 0): 20.0,
    ("top:4", "selected", 4): 15.0,
    ("top:16", "selected", 16): 3.0,
    **{(f"random:4/{i}", "random", 4): 20.0 + i for i in range(3)},
    **{(f"random:16/{i}", "random", 16): 18.0 + i for i in range(4)},
}


def test_a_dose_curve_has_the_mean_and_the_interval_of_each_set() -> None:
    rows = pd.concat([_ablated(CURVE), _ablated(CURVE, measure="G")])
    curve = dose.dose_curve(rows, _rng, n_draws=4000)
    assert tuple(curve.columns) == dose.ABLATION
    assert len(curve) == 2 * len(CURVE) and (curve["n"] == 30).all()
    for (label, kind, k), mean in CURVE.items():
        line = curve[(curve["set"] == label) & (curve["measure"] == "G")].iloc[0]
        assert (line["kind"], line["k"]) == (kind, k) and line["mean"] == pytest.approx(mean)
        assert line["ci_hi"] - line["ci_lo"] == pytest.approx(2 * 1.96 * 10 / math.sqrt(30), rel=0.1)
    order = curve[curve["measure"] == "copy"]["k"].tolist()
    assert order == sorted(order) and order[0] == 0
    # Under copy the two items of a task cancel: every draw is the same.
    copies = curve[curve["measure"] == "copy"]
    np.testing.assert_allclose(copies["ci_lo"], copies["mean"])


def test_the_order_of_ablation_rows_does_not_matter() -> None:
    rows = _ablated(CURVE, measure="G")
    shuffled = rows.sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(
        dose.dose_curve(rows, _rng), dose.dose_curve(shuffled, _rng), check_exact=True
    )


def test_the_share_removed_is_of_the_whole_models_mean() -> None:
    found = dose.share_removed(_ablated(CURVE), _rng, n_draws=500).set_index("set")
    assert found.loc["top:16", "share"] == pytest.approx(17 / 20)
    assert found.loc["top:4", "share"] == pytest.approx(5 / 20)
    assert found.loc["random:4/2", "share"] == pytest.approx(-2 / 20)
    assert found.loc["top:16", "effect_nats"] == pytest.approx(17.0)
    assert "none" not in found.index and (found["n_clusters"] == 15).all()


def test_a_share_of_almost_nothing_removed_is_nan_and_flagged() -> None:
    found = dose.share_removed(_ablated({**CURVE, ("none", "none", 0): 0.001}), _rng, n_draws=100)
    assert found["share"].isna().all() and found["flagged"].all()
    assert dose.against_controls(found)["p"].isna().all()


def test_a_paired_share_is_narrower_than_its_parts() -> None:
    rows = _ablated({("none", "none", 0): 40.0, ("top", "selected", 4): 40.0}, measure="G")
    ablated = rows["kind"] == "selected"
    rows.loc[ablated, "value"] *= 0.2
    found = dose.share_removed(rows, _rng, measure="G", n_draws=1000).iloc[0]
    assert found["share"] == found["ci_lo"] == pytest.approx(0.8) and found["ci_hi"] == pytest.approx(0.8)


@pytest.mark.usefixtures("few_control_sets")
def test_a_selected_set_is_ranked_among_the_random_ones_of_its_size() -> None:
    found = dose.against_controls(dose.share_removed(_ablated(CURVE), _rng, n_draws=100)).set_index("set")
    assert found.loc["top:4", "p"] == 1 / 4 and found.loc["top:16", "p"] == 1 / 5
    assert found.loc["top:16", "random_hi"] == pytest.approx(2 / 20)
    assert found.loc["top:16", "random_mean"] == pytest.approx(0.5 / 20)
    weak = {**CURVE, ("top:16", "selected", 16): 19.0}  # two of the four random sets remove as much or more
    found = dose.against_controls(dose.share_removed(_ablated(weak), _rng, n_draws=100)).set_index("set")
    assert found.loc["top:16", "p"] == 3 / 5


def test_without_controls_there_is_no_p() -> None:
    alone = {key: mean for key, mean in CURVE.items() if key[1] != "random"}
    found = dose.against_controls(dose.share_removed(_ablated(alone), _rng, n_draws=100))
    assert found["p"].isna().all() and (found["n_controls"] == 0).all() and len(found) == 2


def test_a_curve_without_the_unablated_model_has_no_shares() -> None:
    rows = _ablated({key: mean for key, mean in CURVE.items() if key[1] != "none"})
    with pytest.raises(InputError, match="one set of kind none, not 0"):
        dose.share_removed(rows, _rng)
    with pytest.raises(InputError, match="one set of kind none, not 0"):
        dose.share_removed(_ablated(CURVE), _rng, measure="sem")


def test_ablation_rows_that_could_only_give_a_wrong_curve_are_refused() -> None:
    rows = _ablated(CURVE)
    with pytest.raises(InputError, match="'best' is not a kind"):
        dose.dose_curve(rows.assign(kind="best"), _rng)
    with pytest.raises(InputError, match="occurs twice"):
        dose.dose_curve(pd.concat([rows, rows.iloc[:1]]), _rng)
    with pytest.raises(InputError, match="i29 has no value for k 16"):
        dose.dose_curve(rows.iloc[:-1], _rng)
    with pytest.raises(InputError, match="lack the columns kind, k"):
        dose.dose_curve(rows.drop(columns=["kind", "k"]), _rng)
