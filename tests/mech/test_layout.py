"""What nodes of a row see: masks and parts against the paths they were made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mech.engine import layout as module
from mech.engine.layout import Layout, Part, chain
from mech.engine.trie import Trie

# Two tokens, so that most sequences share a beginning; long tails, so that some subtrees are larger than a block.
SEQUENCES = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=4).map(lambda head: [*head, *[2] * (7 * len(head))]),
    min_size=1,
    max_size=6,
)


def row(prefix: int, sequences: list[list[int]], first: float = 0.0, window: int | None = None) -> Layout:
    """The layout of these sequences' row, the nodes before a share of it run before."""
    trie = Trie(prefix)
    for sequence in sorted(sequences):
        trie.insert(sequence, [""] * len(sequence))
    start = int(first * len(trie))
    places, parents = np.array(trie.depths), np.array(trie.parents)
    return Layout(places, parents, prefix, start, window, torch.float64, torch.device("cpu"))


def expected(where: Layout, window: int | None) -> np.ndarray:
    """[node of this forward, prefix + row]: 1 where it is seen, by following parents one by one."""
    seen = np.zeros((len(where) - where.first, where.prefix_length + len(where)), dtype=int)
    for at, line in enumerate(seen):
        node = at + where.first
        place = where.positions[node]
        line[: where.prefix_length] = 1
        while node >= 0:
            line[where.prefix_length + node] = 1
            node = where.parents[node]
        if window is not None:
            places = np.concatenate([np.arange(where.prefix_length), where.positions])
            line[place - places >= window] = 0
    return seen


def counted(where: Layout, parts: tuple[Part, ...]) -> np.ndarray:
    """The same shape: in how many parts each pair is."""
    count = np.zeros((len(where) - where.first, where.prefix_length + len(where)), dtype=int)
    for part in parts:
        offset = 0 if part.of_prefix else where.prefix_length
        columns = slice(part.keys.start + offset, part.keys.stop + offset)
        block = np.ones((part.queries.stop - part.queries.start, columns.stop - columns.start), dtype=int)
        if part.causal:
            block = np.tril(block)
        if part.mask is not None:
            block = (part.mask == 0).numpy().astype(int)
        count[part.queries, columns] += block
    return count


@given(st.integers(0, 5), SEQUENCES, st.floats(0, 0.9), st.sampled_from([1, 4, 9, 1000]), st.integers(1, 60))
def test_masks_and_parts_have_each_pair_that_is_seen_once(
    prefix: int, sequences: list[list[int]], first: float, block: int, window: int
) -> None:
    where = row(prefix, sequences, first, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        full, sliding = where.parts, where.sliding_parts
    assert (counted(where, full) == expected(where, None)).all()
    assert (counted(where, sliding) == expected(where, window)).all()
    assert ((where.mask[0, 0] == 0).numpy() == expected(where, None)).all()
    assert ((where.sliding_mask[0, 0] == 0).numpy() == expected(where, window)).all()
    assert torch.isfinite(where.mask).all() and torch.isfinite(where.sliding_mask).all()


def test_a_long_prefix_is_attended_once_and_copies_do_not_attend_to_one_another() -> None:
    copies = Layout(*chain(700, 11, 23), 700, 0, None, torch.float32, torch.device("cpu"))
    prefix, *own = copies.parts
    assert prefix.of_prefix and prefix.mask is None and prefix.queries == slice(0, 253)
    pairs = sum(one.mask.numel() for one in own if one.mask is not None)
    assert len(own) < 4 and pairs < 253 * module.BLOCK


def test_one_more_token_of_a_sequence_is_two_parts_without_masks() -> None:
    token = Layout(*chain(500, 200), 500, 199, None, torch.float32, torch.device("cpu"))
    assert [(part.queries, part.keys, part.mask) for part in token.parts] == [
        (slice(0, 1), slice(0, 500), None),
        (slice(0, 1), slice(0, 200), None),
    ]


def test_nodes_out_of_order_are_refused() -> None:
    where = Layout(np.arange(4), np.array([-1, 0, 0, 1]), 0, 0, None, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="depth-first"):
        _ = where.parts
