"""Searches find the known answer of hand-made set functions; shares, gaps and p-values are those done by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mech.engine.queries import Score
from mech.errors import InputError
from mech.heads import Head, HeadSet
from probes.effects.circuit import (
    against_random,
    completeness_gaps,
    minimality,
    pooled,
    random_subsets,
    require_delta,
    shares,
    without,
)
from probes.effects.circuit_search import Found, Value, by_ranking, eliminate, greedy, prune
from probes.effects.circuit_stability import (
    best_first,
    default_level,
    halves,
    jaccard,
    rank_correlations,
    recall,
    split_items,
    untouched,
    within_layers,
)
from probes.scoring.contrast import Contrast, Scored, metric_values, needed
from tests.study_cases import ITEMS

A, B, C, D, E = HEADS = [Head(layer, 0) for layer in range(5)]


def function(rule: Callable[[set[Head]], float], asked: list[int] | None = None) -> Value:
    """A set function as the searches take it; `asked` collects how many sets each call was about."""

    def value(sets: Sequence[HeadSet]) -> list[float]:
        if asked is not None:
            asked.append(len(sets))
        return [rule(set(heads)) for heads in sets]

    return value


WEIGHTS = {A: 0.5, B: 0.3, C: 0.15, D: 0.04, E: 0.01}


def additive(heads: set[Head]) -> float:
    return math.fsum(WEIGHTS[head] for head in heads)


def either(heads: set[Head]) -> float:
    """Noising an OR: only with both of A and B gone does 0.9 go; C alone is worth 0.1."""
    return 0.9 * ({A, B} <= heads) + 0.1 * (C in heads)


def test_a_ranking_is_cut_at_the_first_prefix_that_reaches_the_target() -> None:
    found = by_ranking(HEADS, function(additive), 0.9, 5)
    assert found.heads == (A, B, C) and found.reached and found.falls == 0
    assert found.share == pytest.approx(0.95)
    assert [size for size, _ in found.curve] == [1, 2, 3]
    assert by_ranking(HEADS[::-1], function(additive), 0.9, 5).heads == (E, D, C, B, A)


def test_a_target_out_of_reach_is_not_found_with_the_best_share() -> None:
    found = by_ranking(HEADS, function(lambda heads: additive(heads) - 0.4 * (C in heads)), 0.9, 4)
    assert not found.reached and found.heads == (A, B) and found.share == pytest.approx(0.8)
    assert found.falls == 1 and len(found.curve) == 4
    best = greedy(HEADS, function(either), 1.1, 5)
    assert not best.reached and best.share == 1.0 and set(best.heads) == {A, B, C}


def test_a_fall_on_the_way_is_counted_and_the_first_size_still_counts() -> None:
    shares_by_size = {1: 0.5, 2: 0.3, 3: 0.6, 4: 0.95, 5: 0.7}
    found = by_ranking(HEADS, function(lambda heads: shares_by_size[len(heads)]), 0.9, 5)
    assert (len(found.heads), found.falls, found.reached) == (4, 1, True)


def test_prefixes_are_asked_for_in_blocks_and_not_beyond_the_one_that_reaches() -> None:
    many = [Head(0, index) for index in range(40)]
    asked: list[int] = []
    found = by_ranking(many, function(lambda heads: len(heads) / 10, asked), 0.9, 30)
    assert len(found.heads) == 9 and asked == [8, 8]
    asked.clear()
    assert len(by_ranking(many, function(lambda heads: 0.0, asked), 0.9, 20).curve) == 20
    assert asked == [8, 8, 4]


def test_greedy_takes_the_largest_gain_first_and_finds_an_and_in_sufficiency() -> None:
    found = greedy(HEADS[::-1], function(additive), 0.9, 5)
    assert found.heads == (A, B, C)
    assert [share for _, share in found.curve] == pytest.approx([0.5, 0.8, 0.95])

    def both(heads: set[Head]) -> float:
        """An AND that shows itself by halves."""
        return 0.1 * (A in heads) + 0.1 * (B in heads) + 0.8 * ({A, B} <= heads)

    assert set(greedy(HEADS, function(both), 0.9, 5).heads) == {A, B}


def test_greedy_prunes_what_later_heads_made_needless() -> None:
    def rule(heads: set[Head]) -> float:
        """A looks best alone; B and C together are worth more than all."""
        return 1.0 if {B, C} <= heads else 0.4 * (A in heads) + 0.3 * (B in heads) + 0.2 * (C in heads)

    found = greedy(HEADS, function(rule), 0.9, 5)
    assert found.heads == (B, C) and len(found.curve) == 3


def test_an_or_hides_from_a_forward_search_and_not_from_elimination() -> None:
    # All first gains but C's are 0: the tie goes to A, then B, which happens to be right; order decides.
    blind = greedy([D, E, Head(5, 0), A, B], function(either), 0.85, 2)
    assert blind.heads == (A, B)
    hidden = greedy([Head(0, 1), Head(0, 2), *[B, E]], function(lambda h: 0.9 * ({B, E} <= h)), 0.85, 2)
    assert not hidden.reached
    found = eliminate([C, D, A, E, B], function(either), 0.85, 5)
    assert set(found.heads) == {A, B} and found.heads == (A, B) and found.reached
    assert len(found.curve) == 5


def test_a_narrow_greedy_checks_the_heads_of_largest_last_gain_only() -> None:
    asked: list[int] = []
    found = greedy(HEADS, function(additive, asked), 1.0, 5, width=2)
    assert found.heads == (A, B, C, D, E) and asked[:5] == [5, 2, 2, 2, 1]


@pytest.mark.parametrize("rule", [additive, either])
def test_no_head_of_a_pruned_set_can_be_taken_out(rule: Callable[[set[Head]], float]) -> None:
    kept, share = prune(HEADS, rule(set(HEADS)), function(rule), 0.9)
    assert share == pytest.approx(rule(set(kept))) and share >= 0.9
    assert all(rule(set(kept) - {head}) < 0.9 for head in kept)


def test_pruning_takes_many_at_once_where_it_can() -> None:
    many = [Head(0, index) for index in range(64)]
    asked: list[int] = []
    kept, _ = prune(many, 1.0, function(lambda heads: float(many[7] in heads), asked), 0.9)
    assert kept == (many[7],) and sum(asked) < 150  # one at a time it would be 64 + 63 + … = 2079


def test_searches_refuse_what_they_cannot_search() -> None:
    value = function(additive)
    for search in (
        lambda: by_ranking([], value, 0.9, 3),
        lambda: greedy([], value, 0.9, 3),
        lambda: by_ranking(HEADS, value, 0.9, 0),
        lambda: greedy(HEADS, value, 0.9, 3, 0),
    ):
        with pytest.raises(InputError):
            search()


def test_shares_are_ratios_of_means_and_undefined_where_the_delta_is_small() -> None:
    effects, deltas = np.array([[9.0, 1.0], [0.0, 1.0]]), np.array([10.0, 2.0])
    rng = np.random.default_rng(0)
    assert [one.mean for one in shares(effects, deltas, ["a", "b"], rng)] == pytest.approx([9 / 12, 2 / 12])
    assert pooled(effects, deltas) == pytest.approx([9 / 12, 2 / 12])
    tiny = shares(effects, np.array([1.0, -1.0]), ["a", "b"], rng)
    assert all(math.isnan(one.mean) and one.degenerate for one in tiny)
    with pytest.raises(InputError, match="sum to zero"):
        pooled(effects, np.array([1.0, -1.0]))


def test_a_difference_that_may_be_zero_is_refused_in_one_sentence() -> None:
    rng = np.random.default_rng(0)
    require_delta([5.0, 6.0, 7.0], ["a", "b", "c"], rng, "Δ")
    require_delta([-5.0], ["a"], rng, "Δ")  # one task has no interval
    with pytest.raises(InputError, match=r"Δ is 0\.500 nats on the mean of 6 training items"):
        require_delta([5.0, -6.0, 2.0, 4.0, -5.0, 3.0], list("abcdef"), rng, "Δ")
    with pytest.raises(InputError, match="too small to divide by"):
        require_delta([0.001, 0.002], ["a", "b"], rng, "Δ")


def test_a_share_beside_random_ones() -> None:
    found = against_random(0.9, [0.1, 0.5, 0.9, 1.2])
    assert (found.random_mean, found.percentile, found.n_controls) == (pytest.approx(0.675), 50.0, 4)
    assert math.isnan(found.p)  # of four sets .05 is out of reach
    assert against_random(0.9, [0.1] * 19).p == 1 / 20
    assert math.isnan(against_random(0.9, []).p) and math.isnan(against_random(math.nan, [0.1]).p)


def test_completeness_compares_circuit_and_model_without_the_same_heads() -> None:
    # C = {A, B} of a model in which A, B and C add up: K = ∅ and K = {A}.
    gaps = completeness_gaps([0.8, 0.3], [0.0, 0.5])
    assert gaps[0] == pytest.approx((0.8, 1.0, 0.2))
    assert gaps[1] == pytest.approx((0.3, 0.5, 0.2))
    subsets = random_subsets(HeadSet(HEADS), 6, np.random.default_rng(0))
    assert len(subsets) == len(set(subsets)) == 7 and not len(subsets[0])
    assert all(set(one) <= set(HEADS) for one in subsets)
    assert len(random_subsets(HeadSet([A]), 6, np.random.default_rng(0))) == 2
    assert without(HeadSet([A, B]), HeadSet([B, C])) == HeadSet([A])


def test_a_head_whose_removal_costs_nothing_is_named() -> None:
    costs = minimality(0.9, {A: 0.4, B: 0.895, C: 0.95})
    assert {head: spare for head, (_, spare) in costs.items()} == {A: False, B: True, C: True}
    assert costs[A][0] == pytest.approx(0.5) and costs[C][0] == pytest.approx(-0.05)


def test_no_task_stands_on_both_sides_of_a_split() -> None:
    items = [replace(ITEMS[0], item_id=str(at), task_id=f"t{at // 2}", goal=f"g{at}") for at in range(20)]
    sides = {}
    for seed in range(5):
        training, outside = split_items(items, "task", 0.4, np.random.default_rng(seed))
        assert len(training) == 12 and len(outside) == 8
        assert not {item.task_id for item in training} & {item.task_id for item in outside}
        assert sorted([*training, *outside], key=lambda item: int(item.item_id)) == items
        sides[seed] = tuple(item.item_id for item in training)
    assert len(set(sides.values())) > 1
    for share in (0.01, 0.99):
        training, outside = split_items(items[:4], "task", share, np.random.default_rng(0))
        assert len(training) == len(outside) == 2
    for bad, words in ((0.0, "between 0 and 1"), (1.0, "between 0 and 1")):
        with pytest.raises(InputError, match=words):
            split_items(items, "task", bad, np.random.default_rng(0))
    with pytest.raises(InputError, match="1 task"):
        split_items(items[:2], "task", 0.5, np.random.default_rng(0))


def test_items_of_a_training_task_or_goal_are_no_test_items() -> None:
    trained = [ITEMS[0]]
    same_goal = replace(ITEMS[2], task_id="elsewhere", goal=ITEMS[0].goal)
    other_env = replace(ITEMS[1], env="toolshed", goal="Another goal.")
    assert untouched([ITEMS[0], ITEMS[1], ITEMS[2], same_goal, other_env], trained) == [ITEMS[2], other_env]


TEMPLATED = [
    replace(ITEMS[0], item_id=f"{name}{at}", template=name, task_id=f"{name}{at}", goal=f"{name}{at}")
    for name in "abcdef"
    for at in range(3)
]


def test_a_split_by_template_keeps_templates_tasks_and_goals_on_one_side() -> None:
    assert default_level(TEMPLATED) == "template" and default_level(TEMPLATED[:15]) == "task"
    joined = [*TEMPLATED, replace(TEMPLATED[0], item_id="again", task_id="again", template="f")]
    sides = set()
    for seed in range(8):
        training, outside = split_items(joined, "template", 0.5, np.random.default_rng(seed))
        for key in (lambda item: item.template, lambda item: item.task_id, lambda item: item.goal):
            assert not {key(item) for item in training} & {key(item) for item in outside}
        assert len(training) + len(outside) == len(joined)
        sides.add(frozenset(item.template for item in training))
        assert ("a" in {item.template for item in training}) == ("f" in {item.template for item in training})
    assert len(sides) > 1
    with pytest.raises(InputError, match="1 template cannot be split"):
        split_items(TEMPLATED[:3], "template", 0.5, np.random.default_rng(0))
    left = untouched(TEMPLATED, TEMPLATED[:1], "template")
    assert left == TEMPLATED[3:] and untouched(TEMPLATED, TEMPLATED[:1]) == TEMPLATED[1:]


def test_halves_share_nothing_are_all_different_and_no_more_than_there_are() -> None:
    for level, most in (("template", 10), ("task", 12)):
        found = halves(TEMPLATED, level, 12, np.random.default_rng(0))
        assert len(found) == most
        parts = set()
        for one, other in found:
            key = [item.template if level == "template" else item.task_id for item in TEMPLATED]
            names = [{key[TEMPLATED.index(item)] for item in side} for side in (one, other)]
            assert not names[0] & names[1] and abs(len(names[0]) - len(names[1])) <= 1
            assert sorted(item.item_id for item in (*one, *other)) == sorted(
                item.item_id for item in TEMPLATED
            )
            parts |= {frozenset(names[0]), frozenset(names[1])}
        assert len(parts) == 2 * most
    assert halves(TEMPLATED[:3], "template", 4, np.random.default_rng(0)) == []
    assert len(halves(TEMPLATED[:9], "template", 9, np.random.default_rng(0))) == 3


def test_within_layers_a_scoring_that_only_knows_layers_is_worth_nothing() -> None:
    heads = [Head(layer, head) for layer in range(4) for head in range(5)]
    rng = np.random.default_rng(0)
    layered = [{head: 10.0 * head.layer + rng.normal() for head in heads} for _ in range(2)]
    assert rank_correlations(*layered)[1] > 0.85 and abs(within_layers(*layered)) < 0.5
    assert within_layers(layered[0], layered[0]) == pytest.approx(1)
    turned = {head: -value if head.layer < 2 else value for head, value in layered[0].items()}
    assert within_layers(layered[0], turned) == pytest.approx(0)
    assert math.isnan(within_layers({A: 1.0, B: 2.0}, {A: 1.0, B: 2.0}))  # a head a layer
    one = {A: 5.0, B: 4.0, C: 3.0, D: 2.0, E: 1.0}
    assert (
        recall(one, one | {B: 0.0}, 2) == 0.5 and recall(one, one, 3) == 1 and math.isnan(recall(one, one, 5))
    )


def test_metrics_of_sums_are_those_of_tokens_and_of_effects_those_of_the_difference() -> None:
    rng = np.random.default_rng(0)
    lengths = {"failed": 5, "distractor0": 3, "distractor1": 4}
    contrast = Contrast(("distractor0", "distractor1"), 2)
    before, after = (
        {name: Score(-rng.random(n), np.zeros(n, dtype=bool)) for name, n in lengths.items()}
        for _ in range(2)
    )

    def sums(logprobs: dict[str, np.ndarray]) -> Scored:
        totals = {name: float(values.sum()) for name, values in logprobs.items()}
        return Scored(totals, lengths, float(logprobs["failed"][2:].sum()), 3)

    assert metric_values(sums({n: s.logprobs for n, s in after.items()})) == pytest.approx(
        contrast.values(after)
    )
    effects = metric_values(sums({name: after[name].logprobs - before[name].logprobs for name in after}))
    high, low = contrast.values(after), contrast.values(before)
    assert effects == pytest.approx({name: high[name] - low[name] for name in high}) and len(effects) == 6
    alone = metric_values(Scored({"failed": -3.0}, {"failed": 5}, 0.0, 5))
    assert alone == {"logprob": -3.0, "logprob_per_token": -0.6}
    assert needed(contrast, "margin") == contrast.candidates and needed(contrast, "diverging") == ("failed",)


def test_overlap_and_rank_agreement_are_those_done_by_hand() -> None:
    assert jaccard(HeadSet([A, B]), HeadSet([B, C])) == 1 / 3 and math.isnan(
        jaccard(HeadSet([]), HeadSet([]))
    )
    one, other = {A: 3.0, B: 2.0, C: 1.0}, {A: 2.0, B: 3.0, C: 1.0}
    assert rank_correlations(one, other) == pytest.approx((1 / 3, 0.5))  # one of three pairs turned
    assert rank_correlations(one, one) == pytest.approx((1.0, 1.0))
    with pytest.raises(InputError, match="same heads"):
        rank_correlations(one, {A: 1.0})
    assert best_first({B: 1.0, A: 1.0, C: 2.0}) == [C, A, B]


def test_a_found_set_is_its_heads() -> None:
    assert Found((B, A), 0.9, True, (), 0).set == HeadSet([A, B])
