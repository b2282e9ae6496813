"""Rank agreement against scipy, sets by hand, and a bootstrap done draw by draw."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau, spearmanr

from mech.errors import InputError
from probes.effects.agreement import AGREEMENT, BETWEEN, agreement, between_scores
from probes.stats.bootstrap import percentile_ends

N_LAYERS, N_HEADS = 4, 3
HEADS = [(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS)]


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def scores_of(**columns: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"layer": [h[0] for h in HEADS], "head": [h[1] for h in HEADS], **columns})


def effects_of(values: np.ndarray, direction: str = "noise", tasks: list[str] | None = None) -> pd.DataFrame:
    """Effects [item, head] as a long frame; an item's task is its own unless given."""
    lines = [
        (
            f"i{item:02d}",
            tasks[item] if tasks else f"t{item:02d}",
            direction,
            *head,
            values[item, place],
            math.nan,
            10.0,
        )
        for item in range(len(values))
        for place, head in enumerate(HEADS)
    ]
    columns = ["item_id", "task_id", "direction", "layer", "head", "effect_nats", "share", "delta"]
    return pd.DataFrame(lines, columns=columns)


def draws(seed: int = 0, n_items: int = 7) -> np.ndarray:
    """Effects that differ by head, with ties at zero among their means."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(1, len(HEADS))) + rng.normal(size=(n_items, len(HEADS)))
    values[:, [2, 5, 9]] = 0.0
    return values


X = [0.3, 0.1, 0.1, 0.9, 0.5, 0.2, 0.1, 0.8, 0.05, 0.4, 0.4, 0.6]  # with ties
SCORES = scores_of(prefix_matching=X, copying=[-x for x in X], even=[1.0] * 12).assign(selected=True)


def by_key(found: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str, int], pd.Series]]:
    for _, row in found[found["score"] != ""].iterrows():
        k = 0 if math.isnan(row["k"]) else int(row["k"])
        yield (row["direction"], row["score"], row["statistic"], k), row


def test_estimates_are_those_of_scipy_and_of_sets() -> None:
    noise, denoise = draws(1), draws(2)
    effects = pd.concat([effects_of(noise), effects_of(denoise, "denoise")])
    found = agreement(SCORES, effects, _rng, top=(1, 4, 8, 99), n_draws=50)
    assert tuple(found.columns) == AGREEMENT
    rows = dict(by_key(found))
    assert len(rows) == 2 * 3 * (3 + 2 * 3)  # 99 heads there are not
    assert len(found) == len(rows) + 2 * (2 + 3)  # of the effects with themselves
    for direction, values in (("noise", noise), ("denoise", denoise)):
        mean = values.mean(axis=0)
        for score in ("prefix_matching", "copying"):
            own = SCORES[score].to_numpy()
            assert rows[direction, score, "spearman", 0]["estimate"] == pytest.approx(spearmanr(own, mean)[0])
            assert rows[direction, score, "kendall", 0]["estimate"] == pytest.approx(kendalltau(own, mean)[0])
            for k in (1, 4, 8):
                one, other = top(own, k), top(mean, k)
                row = rows[direction, score, "jaccard", k]
                assert row["estimate"] == pytest.approx(len(one & other) / len(one | other))
                assert rows[direction, score, "recall", k]["estimate"] == pytest.approx(len(one & other) / k)
                assert rows[direction, score, "recall", k]["chance"] == k / 12
            within = [spearmanr(own[at : at + 3], mean[at : at + 3])[0] for at in range(0, 12, 3)]
            line = rows[direction, score, "spearman_within_layer", 0]
            assert line["estimate"] == pytest.approx(np.nanmean(within))
            sums = values.sum(axis=1).mean()
            assert (line["effects_nats"], line["delta_nats"]) == pytest.approx((sums, 10.0))
            way = {"noise": "noising", "denoise": "denoising"}[direction]
            assert line["with"] == f"exact single-head {way}, sum of effects {sums:.1f} of 10.0 nats"
    assert (found[["n", "n_clusters", "n_heads"]] == [7, 7, 12]).all().all()


def top(values: np.ndarray, k: int) -> set[tuple[int, int]]:
    return set(sorted(HEADS, key=lambda head: (-values[HEADS.index(head)], head))[:k])


def test_a_score_that_is_the_effect_agrees_wholly_and_its_negative_not_at_all() -> None:
    effects = np.tile(np.arange(12.0), (6, 1))
    scores = scores_of(same=list(np.arange(12.0) ** 3), opposite=list(-np.arange(12.0)))
    found = dict(by_key(agreement(scores, effects_of(effects), _rng, top=(4,), n_draws=20)))
    for statistic in ("spearman", "kendall"):
        row = found["noise", "same", statistic, 0]
        assert row["estimate"] == pytest.approx(1) and row["flagged"]  # all items say the same: no width
        assert row["ci_lo"] == row["ci_hi"] == row["estimate"]
        assert found["noise", "opposite", statistic, 0]["estimate"] == pytest.approx(-1)
    assert found["noise", "same", "jaccard", 4]["estimate"] == 1
    assert found["noise", "opposite", "jaccard", 4]["estimate"] == 0


def test_a_score_that_is_the_same_for_all_heads_ranks_nothing() -> None:
    rows = dict(by_key(agreement(SCORES, effects_of(draws()), _rng, n_draws=20)))
    for statistic in ("spearman", "kendall"):
        row = rows["noise", "even", statistic, 0]
        assert row[["estimate", "ci_lo", "ci_hi"]].isna().all() and row["flagged"]


def test_the_interval_is_that_of_draws_of_whole_tasks() -> None:
    values, tasks = draws(4, 9), ["b", "a", "a", "c", "b", "a", "d", "d", "d"]
    tasks = [*tasks[:7], "e", "f"]
    n_draws = 400
    found = dict(by_key(agreement(SCORES, effects_of(values, tasks=tasks), _rng, top=(4,), n_draws=n_draws)))
    names = sorted(set(tasks))
    taken = _rng("agreement/noise").multinomial(6, [1 / 6] * 6, size=n_draws)
    own = SCORES["prefix_matching"].to_numpy()
    each: dict[str, list[float]] = {"spearman": [], "kendall": [], "jaccard": [], "recall": []}
    for counts in taken:
        drawn = [i for name, times in zip(names, counts, strict=True) for _ in range(times)
                 for i, task in enumerate(tasks) if task == name]  # fmt: skip
        mean = values[drawn].mean(axis=0)
        each["spearman"].append(spearmanr(own, mean)[0])
        each["kendall"].append(kendalltau(own, mean)[0])
        each["jaccard"].append(len(top(own, 4) & top(mean, 4)) / len(top(own, 4) | top(mean, 4)))
        each["recall"].append(len(top(own, 4) & top(mean, 4)) / 4)
    for statistic, drawn_values in each.items():
        row = found["noise", "prefix_matching", statistic, 4 if statistic in ("jaccard", "recall") else 0]
        assert row[["ci_lo", "ci_hi"]].tolist() == pytest.approx(
            percentile_ends(np.array(drawn_values), 6), abs=1e-12
        )
        assert not row["flagged"] and row["n"] == 9 and row["n_clusters"] == 6


@pytest.mark.parametrize("tasks", [list("ttttttt"), list("abcdeee")])
def test_fewer_than_six_tasks_have_no_interval(tasks: list[str]) -> None:
    found = agreement(SCORES, effects_of(draws(), tasks=tasks), _rng, n_draws=20)
    found = found[found["score"] != ""]
    assert found[["ci_lo", "ci_hi"]].isna().all().all() and found["flagged"].all()
    assert found.loc[found["score"] == "prefix_matching", "estimate"].notna().all()


def test_the_effects_agree_with_themselves_by_halves_that_share_no_task() -> None:
    noise = np.random.default_rng(8).normal(size=(12, 12))
    found = agreement(SCORES, effects_of(noise), _rng, top=(4,), n_draws=5)
    own = found[found["score"] == ""].set_index("statistic")
    assert set(own.index) == {"reliability", "reliability_within_layer", "reliability_recall"}
    assert abs(own.loc["reliability", "estimate"]) < 0.3
    assert (
        own.loc["reliability", "ci_lo"] < own.loc["reliability", "estimate"] < own.loc["reliability", "ci_hi"]
    )
    assert own["with"].str.startswith("the other half: exact single-head noising").all()
    true = agreement(SCORES, effects_of(noise + 9 * np.arange(12)), _rng, n_draws=5)
    assert true.loc[true["statistic"] == "reliability", "estimate"].iloc[0] > 0.95
    few = agreement(SCORES, effects_of(noise[:3]), _rng, n_draws=5)
    assert few.loc[few["score"] == "", ["estimate", "ci_lo"]].isna().all(axis=None)


def test_chance_is_the_mean_over_all_sets_of_that_size() -> None:
    found = dict(by_key(agreement(SCORES, effects_of(draws()), _rng, top=(3,), n_draws=5)))
    one = set(range(3))
    every = [len(one & set(other)) / len(one | set(other)) for other in combinations(range(12), 3)]
    assert found["noise", "copying", "jaccard", 3]["chance"] == pytest.approx(np.mean(every))
    assert found["noise", "copying", "spearman", 0]["chance"] == 0


def test_neither_the_order_of_rows_nor_more_scores_change_a_number() -> None:
    effects = effects_of(draws(5), tasks=["a", "b", "c", "a", "b", "c", "a"])
    one = agreement(SCORES, effects, _rng, ["copying"], n_draws=100)
    mixed = agreement(
        SCORES.sample(frac=1, random_state=1), effects.sample(frac=1, random_state=2), _rng, n_draws=100
    )
    pd.testing.assert_frame_equal(mixed[mixed["score"].isin(["copying", ""])].reset_index(drop=True), one)


def test_many_draws_at_once_are_those_of_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = agreement(SCORES, effects_of(draws(6)), _rng, n_draws=100)
    monkeypatch.setattr("probes.effects.agreement._MAX_CELLS", 1)
    pd.testing.assert_frame_equal(agreement(SCORES, effects_of(draws(6)), _rng, n_draws=100), whole)


def test_joint_patches_are_left_aside_and_a_screen_compares_what_it_patched() -> None:
    values = draws(7)
    effects = effects_of(values).assign(set=None)
    joint = effects[effects["head"] == 0].assign(layer=math.nan, head=math.nan, set="top4", effect_nats=99.0)
    joint = joint.drop_duplicates("item_id")
    plain = agreement(SCORES, effects_of(values), _rng, n_draws=20)
    pd.testing.assert_frame_equal(agreement(SCORES, pd.concat([effects, joint]), _rng, n_draws=20), plain)
    screened = effects_of(values).query("layer < 2")
    found = agreement(SCORES, screened, _rng, top=(4, 6, 8), n_draws=20)
    assert (found["n_heads"] == 6).all() and set(found["k"].dropna()) == {4, 6}
    [row] = found[(found["score"] == "copying") & (found["statistic"] == "spearman")].itertuples()
    assert row.estimate == pytest.approx(spearmanr(SCORES["copying"][:6], values.mean(0)[:6])[0])


def test_scores_are_compared_with_each_other() -> None:
    rng = np.random.default_rng(3)
    scores = scores_of(a=X, b=list(rng.normal(size=12)), c=[x**3 for x in X])
    found = between_scores(scores.sample(frac=1, random_state=0), "a").set_index("other")
    assert (*found.reset_index().columns,) == ("other", *(name for name in BETWEEN if name != "other"))
    assert (
        list(found.index) == ["b", "c"] and (found["score"] == "a").all() and (found["n_heads"] == 12).all()
    )
    assert found.loc["b", "spearman"] == pytest.approx(spearmanr(scores["a"], scores["b"])[0])
    assert found.loc["b", "kendall"] == pytest.approx(kendalltau(scores["a"], scores["b"])[0])
    assert found.loc["c", ["spearman", "kendall"]].tolist() == pytest.approx([1, 1])


EFFECTS = effects_of(draws())


@pytest.mark.parametrize(
    ("scores", "effects", "said"),
    [
        (SCORES, EFFECTS.drop(columns="task_id"), "lack the columns task_id"),
        (SCORES.drop(columns="layer"), EFFECTS, "lack the column layer"),
        (SCORES[1:], EFFECTS, "L0H0 was patched and has no score"),
        (pd.concat([SCORES, SCORES[:1]]), EFFECTS, "L0H0 occurs twice"),
        (SCORES.assign(copying=[math.nan, *X[1:]]), EFFECTS, "copying of L0H0 is no finite number"),
        (SCORES.assign(copying=[*X[1:], math.inf]), EFFECTS, "copying of L3H2 is no finite number"),
        (SCORES, EFFECTS[1:], "Item i00 has no effect_nats for layer 0, head 0"),
        (SCORES, pd.concat([EFFECTS, EFFECTS[:1]]), "A row occurs twice"),
        (
            SCORES,
            EFFECTS.assign(effect_nats=[math.nan, *EFFECTS["effect_nats"][1:]]),
            "i00 has no effect_nats",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(scores: pd.DataFrame, effects: pd.DataFrame, said: str) -> None:
    with pytest.raises(InputError, match=said):
        agreement(scores, effects, _rng, n_draws=5)


def test_a_score_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="lack the column beauty"):
        agreement(SCORES, EFFECTS, _rng, ["beauty"], n_draws=5)
    with pytest.raises(InputError, match="no score 'beauty'"):
        between_scores(SCORES, "beauty")
