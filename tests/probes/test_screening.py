"""What a screen by attribution finds and misses, on frames small enough for ranks done by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.patching.attribution import Attribution, attribute, attribution_names
from mech.patching.patch import all_heads, patch_heads, patch_layers
from probes.effects import attribution as screening
from probes.effects.attribution import ATTRIBUTION, compared, units_of
from probes.stats.bootstrap import cluster_bootstrap, percentile_ends
from probes.stats.ranks import places, rank_statistics, spearman
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
        (item, TASKS[item], direction, 10.0, site, head.layer, head.head, effect, estimate)
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


def recall(exact: np.ndarray, guess: np.ndarray, k: int) -> np.ndarray:
    found: np.ndarray = rank_statistics(exact, guess, [k], by_magnitude=True)["recall", k]
    return found


def test_ranks_are_by_magnitude_and_ties_go_to_the_first() -> None:
    values = np.array([[0.0, -3.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
    assert places(np.abs(values)).tolist() == [[3, 0, 2, 1], [0, 1, 2, 3]]
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
    found = screening.screen_agreement(rows(), _rng, top=(2, 4, 5, 9), n_draws=500)
    assert tuple(found.columns) == screening.SCREENING
    each = ["spearman", "spearman_within_layer", "recall", "recall"]
    assert found["statistic"].tolist() == [*each, *each, "reliability", "reliability_within_layer"]
    assert found["k"].dropna().tolist() == [2, 4] * 2, "recall of all units is no finding"
    assert found.loc[found["statistic"] == "reliability", "estimate"].isna().all(), "two tasks have no halves"
    sums = np.mean([sum(pair[0]) for pair in VALUES.values()])
    assert found["with"].iloc[0] == f"exact single-head denoising, sum of effects {sums:.1f} of 10.0 nats"
    assert found["effects_nats"].tolist() == pytest.approx([sums] * len(found))
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
    assert found[["ci_lo", "ci_hi"]].isna().all(axis=None), "two tasks have no interval"


def many(n_tasks: int, noise: float = 0.5) -> pd.DataFrame:
    """Two items a task, heads of three layers, estimates near the effects."""
    rng = _rng("many tasks")
    true = rng.normal(size=12)
    lines = []
    for i in range(2 * n_tasks):
        exact = true + noise * rng.normal(size=12)
        for h, guess in enumerate(exact + 0.3 * rng.normal(size=12)):
            lines.append((f"i{i:02d}", f"t{i // 2:02d}", "noise", 4.0, "z", h // 4, h % 4, exact[h], guess))
    return pd.DataFrame(lines, columns=list(ATTRIBUTION))


def test_the_pooled_interval_is_that_of_draws_of_whole_tasks() -> None:
    table = many(7)
    found = screening.screen_agreement(table, _rng, top=(4,), n_draws=300)
    line = found[found["scope"] == "pooled"].set_index("statistic")
    wide = {
        name: table.pivot(index="item_id", columns=["layer", "head"], values=name).to_numpy()
        for name in ("effect_nats", "estimate_nats")
    }
    exact, guess = wide["effect_nats"], wide["estimate_nats"]
    taken = _rng("screening/z/noise/pooled").multinomial(7, [1 / 7] * 7, size=300)
    rhos, recalls = [], []
    for counts in taken:
        own = [i for task, times in enumerate(counts) for _ in range(times) for i in (2 * task, 2 * task + 1)]
        sides = exact[own].mean(0), guess[own].mean(0)
        rhos.append(spearmanr(*sides).statistic)
        recalls.append(recall(sides[0][None], sides[1][None], 4)[0])
    for name, values in (("spearman", rhos), ("recall", recalls)):
        ends = line.loc[name, ["ci_lo", "ci_hi"]].tolist()
        assert ends == pytest.approx(percentile_ends(np.array(values), 7))
    per_item = recall(exact, guess, 4)
    same = cluster_bootstrap(
        per_item, [f"t{i // 2}" for i in range(14)], _rng("screening/z/noise/item/recall4"), n_draws=300
    )
    ends = found[(found["scope"] == "item") & (found["k"] == 4)].iloc[0]
    assert (ends["ci_lo"], ends["ci_hi"]) == pytest.approx((same.lo, same.hi))
    own = line.loc["reliability"]
    assert own["ci_lo"] < own["estimate"] < own["ci_hi"] and own["with"].startswith("the other half: ")
    assert (
        line.loc["spearman_within_layer", "ci_lo"]
        <= line.loc["spearman_within_layer", "estimate"]
        <= line.loc["spearman_within_layer", "ci_hi"]
    )
    alone = screening.screen_agreement(many(5), _rng, n_draws=100)
    kept = alone[~alone["statistic"].str.startswith("reliability")]
    assert kept[["ci_lo", "ci_hi"]].isna().all().all() and kept["estimate"].notna().all()


def test_estimates_that_are_the_effects_agree_wholly_and_shuffled_ones_do_not() -> None:
    table = rows().assign(estimate_nats=lambda frame: frame["effect_nats"])
    found = screening.screen_agreement(table, _rng, top=(1, 2), n_draws=100)
    found = found[~found["statistic"].str.startswith("reliability")]
    assert found["estimate"].dropna().to_numpy() == pytest.approx(1.0)
    within = found["statistic"] == "spearman_within_layer"
    assert found["estimate"].isna().equals(within), "no layer has three heads"
    rng = _rng("many")
    effects = rng.normal(size=(40, 60)) + 3 * rng.normal(size=60)
    lines = [
        (f"i{i}", f"t{i // 2}", "noise", 9.0, "z", h // 6, h % 6, effects[i, h], effects[i, (h * 7 + 3) % 60])
        for i in range(40)
        for h in range(60)
    ]
    found = screening.screen_agreement(pd.DataFrame(lines, columns=list(ATTRIBUTION)), _rng, n_draws=200)
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
    found = screening.screen_agreement(table, _rng, top=(2,), n_draws=100)
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
        found, screening.screen_agreement(shuffled, _rng, top=(2,), n_draws=100), check_exact=True
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
        ({"layer": 1, "head": 1}, "occurs twice"),
    ],
)
def test_rows_that_could_only_give_a_wrong_comparison_are_refused(
    change: dict[str, Any], sentence: str
) -> None:
    table = rows().astype({"layer": float, "head": float})
    table.loc[0, list(change)] = list(change.values())
    for scoring in (
        lambda: screening.screen_agreement(table, _rng, n_draws=10),
        lambda: screening.false_negatives(table, 2, 2),
        lambda: screening.misses(table, 2, _rng, n_draws=10),
    ):
        with pytest.raises(InputError, match=sentence):
            scoring()
    with pytest.raises(InputError, match="lack the columns site"):
        screening.screen_agreement(rows().drop(columns="site"), _rng)
    with pytest.raises(InputError, match="Item c has no effect_nats for layer 2, head 0"):
        screening.screen_agreement(rows().iloc[:-1], _rng)


def test_compared_puts_an_estimate_beside_every_exact_effect() -> None:
    exact, estimates = {"L1H0": 2.5, "MLP0": -0.25}, {"L0H1": -2.0, "L1H0": 3.0, "MLP0": -0.5}
    found = pd.DataFrame(compared("i", "t", "noise", 7.0, exact, estimates), columns=list(ATTRIBUTION))
    assert found["estimate_nats"].tolist() == [3.0, -0.5] and found["effect_nats"].tolist() == [2.5, -0.25]
    assert found["site"].tolist() == ["z", "mlp_out"] and found["head"].isna().tolist() == [False, True]
    assert (found["delta"] == 7.0).all()
    for name in ("L3H3", "MLP4"):
        with pytest.raises(InputError, match=f"{name} was patched and not attributed"):
            compared("i", "t", "noise", 7.0, {name: 1.0}, estimates)
    with pytest.raises(InputError, match="'both' is not a direction"):
        compared("i", "t", "both", 7.0, {}, estimates)


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
        exact = {str(h): s.total for h, s in patch_heads(engine, recipient, donor).items()}
        exact |= {f"MLP{i}": s.total for i, s in patch_layers(engine, recipient, donor).items()}
        exact = {unit: sign * (total - base) for unit, total in exact.items()}
        heads = all_heads(model)
        alone = [attribute(engine, recipient, donor, 6, HeadSet([head]), ("z",)).heads for head in heads]
        found = Attribution(
            {head: value for one in alone for head, value in one.items()},
            attribute(engine, recipient, donor, 6, sites=("mlp_out",)).mlps,
            6,
        )
        estimates = units_of(found.signed(sign))
        lines = compared("i", "t", direction, sign * (base - donor.score.total), exact, estimates)
        parts.append(pd.DataFrame(lines, columns=list(ATTRIBUTION)))
    table = pd.concat(parts)
    assert len(table) == 2 * (model.n_layers * model.n_heads + model.n_layers)
    np.testing.assert_allclose(table["estimate_nats"], table["effect_nats"], rtol=0.05, atol=0.03)
    assert table["effect_nats"].abs().median() > 0.2
    found_agreement = screening.screen_agreement(table, _rng, top=(4,), n_draws=10)
    for direction in ("noise", "denoise"):
        at = {"site": "z", "direction": direction, "scope": "item"}
        assert cell(found_agreement, **at, k=4) == 1.0
        assert cell(found_agreement, **at, statistic="spearman") > 0.98
