"""What a screen by attribution finds and misses, on frames small enough for ranks done by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from mech.attribution import Attribution, attribute, attribution_names
from mech.engine import Engine
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.layer_patching import patch_layers
from mech.patching import patch_heads
from mech.queries import Query
from probes import screening
from probes.attributed import ATTRIBUTION, compared
from probes.ranks import places, recall, spearman
from probes.stats import cluster_bootstrap
from tests.mech_cases import ACTION, LEFT, RIGHT, FolderFactory, tiny_model
from tests.mech_cases import one_thread as one_thread

HEADS = [Head(0, 0), Head(0, 1), Head(1, 0), Head(1, 1), Head(2, 0)]
# per item: exact effects, and estimates
VALUES = {
    "a": ([5.0, -4.0, 0.5, 0.1, 0.0], [4.0, -0.2, 1.0, 0.3, 0.0]),
    "b": ([6.0, -4.0, 0.5, 0.1, 0.2], [5.0, -7.0, 1.0, 0.3, 0.0]),
    "c": ([1.0, -9.0, 0.5, 0.1, 0.3], [2.0, -0.1, 0.3, 0.2, 3.0]),
}
TASKS = {"a": "t1", "b": "t1", "c": "t2"}


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def rows(direction: str = "denoise", site: str = "z") -> pd.DataFrame:
    lines = [
        (item, TASKS[item], direction, site, head.layer, head.head, effect, estimate)
        for item, (effects, estimates) in VALUES.items()
        for head, effect, estimate in zip(HEADS, effects, estimates, strict=True)
    ]
    return pd.DataFrame(lines, columns=list(ATTRIBUTION))


def cell(found: pd.DataFrame, **where: Any) -> float:
    """The estimate of the one line that is so."""
    part = found
    for name, value in where.items():
        part = part[(part[name] == value).fillna(False)]
    assert len(part) == 1
    return float(part["estimate"].iloc[0])


def test_ranks_are_by_magnitude_and_ties_go_to_the_first() -> None:
    values = np.array([[0.0, -3.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
    assert places(values).tolist() == [[3, 0, 2, 1], [0, 1, 2, 3]]
    guess = np.array([[9.0, -3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert recall(values, guess, 2).tolist() == [0.5, 0.5]
    rng = _rng("ranks")
    one, other = rng.integers(0, 6, (4, 30)).astype(float), rng.normal(size=(4, 30))
    expected = [spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(spearman(one, other), expected)
    assert math.isnan(spearman(values, guess)[1])


def test_the_screen_takes_the_largest_estimates_of_either_sign() -> None:
    found = Attribution({Head(2, 1): -3.0, Head(0, 0): 2.0, Head(1, 0): -2.0, Head(1, 1): 0.5}, {}, 1)
    assert screening.screened(found, 1) == HeadSet([Head(2, 1)])
    assert screening.screened(found, 2) == HeadSet([Head(2, 1), Head(0, 0)]), "ties go to the lower layer"
    assert len(screening.screened(found, 4)) == 4
    for k in (0, 5):
        with pytest.raises(InputError, match=f"screen of {k} heads is asked for, and 4"):
            screening.screened(found, k)


def test_agreement_is_per_item_and_of_the_means() -> None:
    found = screening.agreement(rows(), _rng, top=(2, 4, 5, 9), n_draws=500)
    assert tuple(found.columns) == screening.SCREENING
    assert found["statistic"].tolist() == ["spearman", "recall", "recall"] * 2
    assert found["k"].dropna().tolist() == [2, 4] * 2, "recall of all units is no finding"
    assert (found["n"] == 3).all() and (found["n_clusters"] == 2).all() and (found["n_units"] == 5).all()
    # exact top 2 is {0, 1} in each item; estimated: {0, 2}, {1, 0}, {4, 0}
    per_item = [0.5, 1.0, 0.5]
    assert cell(found, scope="item", k=2) == pytest.approx(np.mean(per_item))
    exact, guess = (np.array([pair[i] for pair in VALUES.values()]) for i in (0, 1))
    rhos = [spearmanr(a, b).statistic for a, b in zip(exact, guess, strict=True)]
    assert cell(found, scope="item", statistic="spearman") == pytest.approx(np.mean(rhos))
    assert cell(found, scope="pooled", statistic="spearman") == pytest.approx(
        spearmanr(exact.mean(0), guess.mean(0)).statistic
    )
    # means: exact 4, -17/3, .5, .1, .17; estimated 11/3, -2.43, .77, .27, 1: the top two are the same
    assert cell(found, scope="pooled", k=2) == 1.0
    same = cluster_bootstrap(
        per_item, ["t1", "t1", "t2"], _rng("screening/z/denoise/item/recall2"), n_draws=500
    )
    ends = found[(found["scope"] == "item") & (found["k"] == 2)].iloc[0]
    assert ends["estimate"] == same.mean and np.isnan([ends["ci_lo"], ends["ci_hi"], same.lo]).all()


def test_the_pooled_interval_spans_what_drawing_tasks_can_give() -> None:
    assert screening.agreement(rows(), _rng, top=(2,))[["ci_lo", "ci_hi"]].isna().all(axis=None)  # two tasks
    many = pd.concat(
        [rows().assign(**{c: rows()[c] + str(n) for c in ("item_id", "task_id")}) for n in range(3)]
    )
    found = screening.agreement(many, _rng, top=(2,), n_draws=500)
    line = found[found["scope"] == "pooled"].set_index("statistic")
    # Draws of six tasks lie between those of one kind alone: t1 has {0, 1} of {0, 1}, t2 {0, 1} against {4, 0}.
    assert 0.5 <= line.loc["recall", "ci_lo"] <= line.loc["recall", "ci_hi"] == 1.0
    exact, guess = (np.array([pair[i] for pair in VALUES.values()]) for i in (0, 1))
    alone = [spearmanr(exact[some].mean(0), guess[some].mean(0)).statistic for some in ([0, 1], [2])]
    assert min(alone) - 1e-9 <= line.loc["spearman", "ci_lo"] <= line.loc["spearman", "estimate"]


def test_estimates_that_are_the_effects_agree_wholly_and_shuffled_ones_do_not() -> None:
    table = rows().assign(estimate_nats=lambda frame: frame["effect_nats"])
    found = screening.agreement(table, _rng, top=(1, 2), n_draws=100)
    assert found["estimate"].to_numpy() == pytest.approx(1.0)
    rng = _rng("many")
    effects = rng.normal(size=(40, 60)) + 3 * rng.normal(size=60)
    lines = [
        (f"i{i}", f"t{i // 2}", "noise", "z", h // 6, h % 6, effects[i, h], effects[i, (h * 7 + 3) % 60])
        for i in range(40)
        for h in range(60)
    ]
    found = screening.agreement(pd.DataFrame(lines, columns=list(ATTRIBUTION)), _rng, n_draws=200)
    assert abs(cell(found, scope="pooled", statistic="spearman")) < 0.3
    assert cell(found, scope="pooled", k=8) < 0.5


def test_false_negatives_are_named_with_both_ranks() -> None:
    found = screening.false_negatives(rows(), k=2, screen=2)
    assert tuple(found.columns) == screening.NEGATIVES
    lines = found[
        ["scope", "item_id", "layer", "head", "effect_nats", "estimate_nats", "exact_rank", "estimate_rank"]
    ]
    assert lines.iloc[:2].to_numpy().tolist() == [
        ["item", "a", 0, 1, -4.0, -0.2, 2, 4],
        ["item", "c", 0, 1, -9.0, -0.1, 1, 5],
    ]
    assert len(found) == 2, "of the means, the screen misses none"
    assert len(screening.false_negatives(rows(), k=2, screen=4)) == 1
    assert screening.false_negatives(rows(), k=2, screen=5).empty
    pooled = screening.false_negatives(rows(), k=3, screen=2)
    pooled = pooled[pooled["scope"] == "pooled"]
    assert pooled[["layer", "head", "exact_rank"]].to_numpy().tolist() == [[1, 0, 3]]
    assert pooled["item_id"].isna().all() and pooled["effect_nats"].iloc[0] == 0.5
    for sizes in ({"k": 0, "screen": 2}, {"k": 2, "screen": 0}):
        with pytest.raises(InputError, match="must be at least 1, not 0"):
            screening.false_negatives(rows(), **sizes)


def test_misses_say_how_many_how_large_and_what_share() -> None:
    found = screening.misses(rows(), 2, _rng, top=(1, 2, 9), n_draws=500)
    assert tuple(found.columns) == screening.MISSES
    assert found["quantity"].tolist() == ["missed_top", "missed_top", "largest_nats", "magnitude_share"]
    by = found.set_index("quantity")
    # left out: a {1, 3, 4}, b {2, 3, 4}, c {1, 2, 3}
    assert by.loc["missed_top", "k"].tolist() == [1, 2]
    assert by.loc["missed_top", "mean"].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert by.loc["missed_top", "worst"].tolist() == [1.0, 1.0]
    assert by.loc["largest_nats", ["mean", "worst"]].tolist() == pytest.approx([(4 + 0.5 + 9) / 3, 9.0])
    shares = [(4.1, 9.6), (0.8, 10.8), (9.6, 10.9)]
    whole = sum(gone for gone, _ in shares) / sum(total for _, total in shares)
    assert by.loc["magnitude_share", "mean"] == pytest.approx(whole)
    assert by.loc["magnitude_share", "worst"] == pytest.approx(9.6 / 10.9)
    sentence = screening.miss_sentence(found, "z", "denoise", k=2)
    assert sentence == (
        "denoise: on 3 fully patched items a screen of 2 heads left out 0.7 of the exact top 2 (at most 1), effects "
        "of up to 9.00 nats and 46 % of all effects by magnitude."
    )
    for site, direction, k in (("z", "noise", 2), ("mlp_out", "denoise", 2), ("z", "denoise", 3)):
        with pytest.raises(InputError, match="is not known for"):
            screening.miss_sentence(found, site, direction, k)
    whole_screen = screening.misses(rows(), 40, _rng, top=(2,), n_draws=100)
    assert (whole_screen["screen"] == 5).all() and (whole_screen["mean"] == 0).all()


def test_sites_and_directions_are_kept_apart_and_the_order_of_rows_does_not_matter() -> None:
    noise = rows("noise").assign(estimate_nats=lambda frame: frame["effect_nats"])
    mlps = rows(site="mlp_out").assign(layer=np.tile(range(5), 3), head=np.nan)
    table = pd.concat([rows(), noise, mlps])
    found = screening.agreement(table, _rng, top=(2,), n_draws=100)
    keys = found[["site", "direction"]].drop_duplicates().to_numpy().tolist()
    assert keys == [["mlp_out", "denoise"], ["z", "denoise"], ["z", "noise"]]
    by = found.set_index(["site", "direction", "scope", "statistic"])["estimate"]
    assert by["z", "noise", "item", "spearman"] == pytest.approx(1.0)
    assert (
        by["mlp_out", "denoise", "item", "recall"]
        == by["z", "denoise", "item", "recall"]
        == pytest.approx(2 / 3)
    )
    shuffled = table.sample(frac=1, random_state=2)
    pd.testing.assert_frame_equal(
        found, screening.agreement(shuffled, _rng, top=(2,), n_draws=100), check_exact=True
    )
    missed = screening.false_negatives(table, 2, 2)
    assert missed["head"].isna().equals(missed["site"] == "mlp_out") and set(missed["site"]) == {
        "z",
        "mlp_out",
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"direction": "sideways"}, "'sideways' is not a direction"),
        ({"estimate_nats": math.nan}, "item a has no estimate_nats"),
        ({"head": math.nan}, "item a has no head"),
        ({"layer": 1, "head": 1}, "stands twice"),
    ],
)
def test_rows_that_could_only_give_a_wrong_comparison_are_refused(
    change: dict[str, Any], sentence: str
) -> None:
    table = rows().astype({"layer": float, "head": float})
    table.loc[0, list(change)] = list(change.values())
    for ask in (
        lambda: screening.agreement(table, _rng, n_draws=10),
        lambda: screening.false_negatives(table, 2, 2),
        lambda: screening.misses(table, 2, _rng, n_draws=10),
    ):
        with pytest.raises(InputError, match=sentence):
            ask()
    with pytest.raises(InputError, match="lack the columns site"):
        screening.agreement(rows().drop(columns="site"), _rng)
    with pytest.raises(InputError, match="Item c has no effect_nats for layer 2, head 0"):
        screening.agreement(rows().iloc[:-1], _rng)


def test_compared_puts_the_sign_of_the_direction_on_the_estimates() -> None:
    found = Attribution({Head(0, 1): 2.0, Head(1, 0): -3.0}, {0: 0.5}, 1)
    noise = compared("i", "t", "noise", found, {Head(1, 0): 2.5}, {0: -0.25})
    assert tuple(noise.columns) == ATTRIBUTION
    assert noise["estimate_nats"].tolist() == [3.0, -0.5] and noise["effect_nats"].tolist() == [2.5, -0.25]
    assert noise["site"].tolist() == ["z", "mlp_out"] and noise["head"].isna().tolist() == [False, True]
    assert compared("i", "t", "denoise", found, {Head(0, 1): 1.0})["estimate_nats"].tolist() == [2.0]
    for heads, mlps, name in (({Head(3, 3): 1.0}, {}, "L3H3"), ({}, {4: 1.0}, "MLP4")):
        with pytest.raises(InputError, match=f"{name} was patched and not attributed"):
            compared("i", "t", "noise", found, heads, mlps)
    with pytest.raises(InputError, match="'both' is not a direction"):
        compared("i", "t", "both", found, {})


@pytest.mark.usefixtures("one_thread")
def test_with_one_head_moving_alone_the_estimates_are_the_exact_sweep_in_both_directions(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    engine, names = Engine(model), attribution_names(model)
    low, high = (engine.run(Query(prompt, ACTION), names) for prompt in (LEFT, RIGHT))
    parts = []
    for direction, recipient, donor in (("noise", high, low), ("denoise", low, high)):
        sign, base = -1.0 if direction == "noise" else 1.0, recipient.score.total
        heads = {h: sign * (s.total - base) for h, s in patch_heads(engine, recipient, donor).items()}
        mlps = {i: sign * (s.total - base) for i, s in patch_layers(engine, recipient, donor).items()}
        alone = [attribute(engine, recipient, donor, 6, HeadSet([head]), ("z",)).heads for head in heads]
        found = Attribution(
            {head: value for one in alone for head, value in one.items()},
            attribute(engine, recipient, donor, 6, sites=("mlp_out",)).mlps,
            6,
        )
        parts.append(compared("i", "t", direction, found, heads, mlps))
    table = pd.concat(parts)
    assert len(table) == 2 * (model.n_layers * model.n_heads + model.n_layers)
    np.testing.assert_allclose(table["estimate_nats"], table["effect_nats"], rtol=0.05, atol=0.03)
    assert table["effect_nats"].abs().median() > 0.2
    found = screening.agreement(table, _rng, top=(4,), n_draws=10)
    for direction in ("noise", "denoise"):
        assert cell(found, site="z", direction=direction, scope="item", k=4) == 1.0
        assert cell(found, site="z", direction=direction, scope="item", statistic="spearman") > 0.98
