"""Overlap of two differences' heads: equal, opposite, unrelated and unreliable effects, known before."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.effects.overlap import OVERLAP, overlap

N_ITEMS, N_HEADS, DRAWS = 12, 40, 200


def rng_for(name: str) -> np.random.Generator:
    return np.random.default_rng(len(name))


def effects(
    heads: np.ndarray, noise: float, seed: int, directions: tuple[str, ...] = ("noise",)
) -> pd.DataFrame:
    """One effect a head, and noise of this size on every item of its own."""
    rng = np.random.default_rng(seed)
    parts = []
    for direction in directions:
        for i in range(N_ITEMS):
            table = pd.DataFrame({"layer": np.arange(N_HEADS) // 4, "head": np.arange(N_HEADS) % 4})
            values = heads + noise * rng.normal(size=N_HEADS)
            about = {"item_id": f"i{i}", "task_id": f"t{i}", "direction": direction}
            parts.append(table.assign(**about, effect_nats=values, delta=10.0))
    return pd.concat(parts, ignore_index=True)


def cells(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    table = overlap(one, other, ("copy", "sem"), rng_for, (4, 8), DRAWS)
    assert tuple(table.columns) == OVERLAP and ("metric", *OVERLAP) == TABLES["overlap"]
    return table.assign(k=table["k"].fillna(0)).set_index(["direction", "statistic", "of", "k"])


HEADS = np.random.default_rng(5).normal(size=N_HEADS)


def test_the_same_heads_overlap_wholly_and_opposite_ones_not_at_all() -> None:
    one = effects(HEADS, 0.01, 0)
    same, against = cells(one, effects(2 * HEADS, 0.01, 1)), cells(one, effects(-HEADS, 0.01, 2))
    assert same.loc[("noise", "spearman", "", 0), "estimate"] > 0.99
    assert same.loc[("noise", "jaccard", "", 8), "estimate"] == 1.0
    assert same.loc[("noise", "recall", "", 8), "estimate"] == 1.0
    assert same.loc[("noise", "spearman_within_layer", "", 0), "estimate"] > 0.9
    across = same.loc[("noise", "across_halves", "", 0)]
    assert 0.9 < across["ci_lo"] <= across["estimate"] <= across["ci_hi"] <= 1
    assert "copy: exact single-head noising, sum of effects" in across["with"] and "; sem: " in across["with"]
    assert (across["effects_nats"], across["delta_nats"]) == pytest.approx((2 * HEADS.sum(), 10), abs=0.2)
    assert against.loc[("noise", "spearman", "", 0), "estimate"] < -0.99
    assert against.loc[("noise", "jaccard", "", 8), "estimate"] == 0.0
    assert same.loc[("noise", "reliability", "sem", 0), "estimate"] > 0.99


def test_noise_has_no_reliability_and_few_heads_beyond_zero() -> None:
    table = cells(effects(HEADS, 0.01, 0), effects(np.zeros(N_HEADS), 1.0, 3))
    assert abs(table.loc[("noise", "reliability", "sem", 0), "estimate"]) < 0.2
    assert table.loc[("noise", "reliability", "copy", 0), "estimate"] > 0.99
    assert table.loc[("noise", "beyond_zero", "sem", 0), "estimate"] < 0.25
    assert table.loc[("noise", "beyond_zero", "copy", 0), "estimate"] > 0.9
    assert 0 < table.loc[("noise", "jaccard", "", 8), "chance"] < 0.2
    assert abs(table.loc[("noise", "across_halves", "", 0), "estimate"]) < 0.2


def test_each_direction_is_told_apart_and_other_items_or_heads_are_an_error() -> None:
    both = effects(HEADS, 0.01, 0, ("noise", "denoise"))
    assert set(cells(both, both).index.get_level_values(0)) == {"noise", "denoise"}
    with pytest.raises(InputError, match="same items and heads under denoise"):
        cells(both, effects(HEADS, 0.01, 0))
    with pytest.raises(InputError, match="same items and heads under noise"):
        cells(effects(HEADS, 0.01, 0), effects(HEADS, 0.01, 0).query("layer > 0"))
