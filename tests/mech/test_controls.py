"""A control set shares no head with the selected one and as many layers as can be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mech.errors import InputError
from mech.head_scores.controls import distinct_controls, layer_matched
from mech.heads import Head, HeadSet

LAYERS, HEADS = 4, 5
ALL = [Head(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
AT_MOST_HALF = st.sets(st.sampled_from(ALL), min_size=1, max_size=len(ALL) // 2)


def draw(selected: HeadSet, seed: int = 0) -> tuple[HeadSet, int]:
    control = layer_matched(selected, LAYERS, HEADS, np.random.default_rng(seed))
    return control.heads, control.displaced


@given(heads=AT_MOST_HALF, seed=st.integers(0, 2**32))
def test_a_control_is_disjoint_and_of_the_same_size(heads: set[Head], seed: int) -> None:
    selected = HeadSet(heads)
    control, displaced = draw(selected, seed)
    assert len(control) == len(selected) and not set(control) & set(selected)
    control.check(LAYERS, HEADS)
    wanted, found = Counter(h.layer for h in selected), Counter(h.layer for h in control)
    # As many as fit in each layer, and what could not is what was counted.
    fit = {layer: min(n, HEADS - n) for layer, n in wanted.items()}
    assert all(found[layer] >= n for layer, n in fit.items())
    assert displaced == len(selected) - sum(fit.values())
    if displaced == 0:
        assert found == wanted


def test_a_full_layer_overflows_into_its_nearest_neighbours() -> None:
    control, displaced = draw(HeadSet([Head(1, head) for head in range(HEADS)]))
    assert displaced == HEADS
    assert Counter(head.layer for head in control) == {0: HEADS}  # the nearest, the lower of two equally near
    selected = HeadSet([Head(3, head) for head in range(4)] + [Head(2, 0), Head(2, 1)])
    control, displaced = draw(selected)
    # Layer 3 has one other head, layer 2 gives its own two and the one left, layer 1 the last two.
    assert displaced == 3
    assert Counter(head.layer for head in control) == {3: 1, 2: 3, 1: 2}


def test_one_stream_gives_one_control_and_others_give_others() -> None:
    selected = HeadSet([Head(0, 0), Head(2, 1), Head(2, 2)])
    assert draw(selected, 7) == draw(selected, 7)
    assert len({draw(selected, seed)[0] for seed in range(20)}) > 6  # of 4 · 3


def test_every_other_head_of_the_layer_is_drawn_equally_often() -> None:
    selected = HeadSet([Head(2, 1)])
    times = Counter(head for seed in range(400) for head in draw(selected, seed)[0])
    assert set(times) == {Head(2, 0), Head(2, 2), Head(2, 3), Head(2, 4)}
    assert min(times.values()) > 60  # 100 expected


def test_half_of_the_heads_can_be_matched_and_no_more() -> None:
    half = HeadSet(ALL[:10])
    assert set(draw(half)[0]) == set(ALL[10:])
    with pytest.raises(InputError, match="11 of 20 heads are selected: no control set of that size is left"):
        draw(HeadSet(ALL[:11]))


def test_a_head_that_does_not_exist_has_no_control() -> None:
    with pytest.raises(InputError, match="L9H0 does not exist"):
        draw(HeadSet([Head(9, 0)]))


def test_controls_of_a_set_differ_and_there_are_fewer_where_the_model_has_no_more() -> None:
    selected = HeadSet([Head(0, 0), Head(0, 1)])
    found = distinct_controls(
        selected, 1, 5, 20, lambda name: np.random.default_rng(len(name) + ord(name[-1]))
    )
    # Three heads are left in the layer: three pairs of them.
    assert len({control.heads for control in found}) == len(found) == 3
    assert distinct_controls(selected, 1, 5, 2, lambda name: np.random.default_rng(0))[:1] == [
        layer_matched(selected, 1, 5, np.random.default_rng(0))
    ]
