"""A damage control costs what the selected set costs, whatever its size; all draws are measured side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mech.errors import InputError
from mech.head_scores.controls import damage_matched
from mech.heads import Head, HeadSet

EVERY = HeadSet(Head(layer, head) for layer in range(8) for head in range(8))
SELECTED = HeadSet([Head(0, 0), Head(0, 1), Head(0, 2)])


def rngs(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(count)]


def costs(sets: Sequence[HeadSet]) -> list[float]:
    """Selected heads cost 4 each, all others 1."""
    return [sum(4.0 if head in SELECTED else 1.0 for head in heads) for heads in sets]


def test_a_control_has_as_many_heads_as_cost_the_same() -> None:
    rounds: list[int] = []

    def measure(sets: Sequence[HeadSet]) -> list[float]:
        rounds.append(len(sets))
        return costs(sets)

    found = damage_matched(SELECTED, EVERY, measure, rngs(5))
    assert [len(one.heads) for one in found] == [12] * 5
    assert all(one.ratio == 1 and one.reached and not set(one.heads) & set(SELECTED) for one in found)
    assert len({one.heads.sha256 for one in found}) == 5
    assert rounds[0] == 1 and max(rounds) == 5 and len(rounds) <= 9  # bisection, a round for all draws


def test_the_nearest_prefix_is_taken_where_none_meets_the_cost() -> None:
    heavy = [sum(5.0 for head in heads if head not in SELECTED) or 12.0 for heads in [SELECTED]]
    assert heavy == [12.0]

    def measure(sets: Sequence[HeadSet]) -> list[float]:
        return [12.0 if heads == SELECTED else 5.0 * len(heads) for heads in sets]

    [one] = damage_matched(SELECTED, EVERY, measure, rngs(1))
    assert len(one.heads) == 2 and one.ratio == pytest.approx(10 / 12) and one.reached


def test_a_cost_that_no_other_heads_reach_is_said() -> None:
    def measure(sets: Sequence[HeadSet]) -> list[float]:
        return [100.0 if heads == SELECTED else float(len(heads)) for heads in sets]

    found = damage_matched(SELECTED, EVERY, measure, rngs(2))
    assert not any(one.reached for one in found)
    assert all(len(one.heads) == 61 and one.ratio == pytest.approx(0.61) for one in found)


def test_what_cannot_be_matched_is_one_sentence() -> None:
    with pytest.raises(InputError, match="none are left"):
        damage_matched(EVERY, EVERY, costs, rngs(1))


def test_what_costs_nothing_has_no_control() -> None:
    for value in (0.0, -2.0):
        assert damage_matched(SELECTED, EVERY, lambda sets, value=value: [value for _ in sets], rngs(2)) == []
