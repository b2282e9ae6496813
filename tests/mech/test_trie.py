"""The packed row is the sequences, no more and no less: pure integers, for any sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mech.engine.trie import Trie, common_prefix

# Few tokens and few tags: shared beginnings are the rule.
SEQUENCES = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["", "x", "y"])), max_size=6),
    min_size=1,
    max_size=8,
)
TRUNKS = st.integers(0, 5)


def filled(prefix_cache: int, sequences: list[list[tuple[int, str]]]) -> tuple[Trie, list[tuple[int, ...]]]:
    trie = Trie(prefix_cache)
    return trie, [trie.insert([t for t, _ in one], [tag for _, tag in one]) for one in sequences]


@given(TRUNKS, SEQUENCES)
def test_every_path_reads_back_its_tokens_at_its_depths(
    prefix_cache: int, sequences: list[list[tuple[int, str]]]
) -> None:
    trie, paths = filled(prefix_cache, sequences)
    for one, path in zip(sequences, paths, strict=True):
        assert [trie.tokens[node] for node in path] == [token for token, _ in one]
        assert [trie.depths[node] for node in path] == list(range(prefix_cache, prefix_cache + len(one)))
        assert [trie.parents[node] for node in path] == [-1, *path][: len(path)]


@given(TRUNKS, SEQUENCES)
def test_the_row_has_one_node_for_each_distinct_tagged_beginning(
    prefix_cache: int, sequences: list[list[tuple[int, str]]]
) -> None:
    trie, paths = filled(prefix_cache, sequences)
    beginnings = {tuple(one[: end + 1]) for one in sequences for end in range(len(one))}
    assert len(trie) == len(beginnings)
    node_of = {}
    for one, path in zip(sequences, paths, strict=True):
        for end, node in enumerate(path):
            assert node_of.setdefault(tuple(one[: end + 1]), node) == node
    assert len(set(node_of.values())) == len(beginnings)


@given(TRUNKS, SEQUENCES)
def test_inserting_again_adds_nothing_and_gives_the_same_path(
    prefix_cache: int, sequences: list[list[tuple[int, str]]]
) -> None:
    trie, paths = filled(prefix_cache, sequences)
    size = len(trie)
    assert [trie.insert([t for t, _ in one], [tag for _, tag in one]) for one in sequences] == paths
    assert len(trie) == size


@given(SEQUENCES)
def test_counts_are_the_number_of_sequences_with_that_beginning(
    sequences: list[list[tuple[int, str]]],
) -> None:
    trie, paths = filled(0, sequences)
    counts = trie.counts(paths)
    assert counts.sum() == sum(map(len, sequences))
    for one, path in zip(sequences, paths, strict=True):
        for end, node in enumerate(path):
            assert counts[node] == sum(other[: end + 1] == one[: end + 1] for other in sequences)


def test_tags_keep_copies_apart_from_where_they_differ() -> None:
    trie = Trie(2)
    clean, edited = trie.insert([5, 6, 7], ["", "", ""]), trie.insert([5, 6, 7], ["", "e", "e"])
    assert clean == (0, 1, 2) and edited == (0, 3, 4)
    assert trie.parents == [-1, 0, 1, 0, 3]


def test_a_tag_is_needed_for_every_token() -> None:
    with pytest.raises(ValueError):
        Trie(0).insert([1, 2], [""])


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=5))
def test_the_common_prefix_is_shared_and_cannot_be_longer(sequences: list[list[int]]) -> None:
    length = common_prefix(sequences)
    assert len({tuple(one[:length]) for one in sequences}) == 1
    longer = {tuple(one[: length + 1]) for one in sequences}
    assert len(longer) > 1 or any(len(one) == length for one in sequences)
