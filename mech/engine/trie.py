"""Token sequences that share prefixes → one packed row of nodes: pure integers, no model.

    sequences          the row (a node = one token at one depth, seen by its own descendants only)
    T a b c            index   0 1 2 3 4
    T a b d     →      token   a b c d e        T, the prefix cache, is a prefix of all and is not in the row:
    T a e              parent -1 0 1 1 0        its keys and values are kept from an earlier run
                       depth   1 2 3 3 2

A node is the same for two sequences when its parent, its token and its *tag* are: the tag keeps apart copies of a
path that differ in an intervention only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int


@dataclass
class Trie:
    """A growing packed row. Nodes are numbered in the order of insertion, which is depth-first for sorted paths."""

    prefix_length: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _index: dict[tuple[int, int, str], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def insert(self, tokens: Sequence[int], tags: Sequence[str]) -> tuple[int, ...]:
        """Add one path below the prefix cache; return its node numbers, one a token.

        Args:
            tokens: the sequence's tokens after the prefix cache.
            tags: one a token; equal paths with unequal tags are kept apart from there on.
        """
        parent, path = -1, []
        for token, tag in zip(tokens, tags, strict=True):
            key = (parent, token, tag)
            node = self._index.get(key)
            if node is None:
                node = self._index[key] = len(self.tokens)
                self.depths.append(self.prefix_length if parent < 0 else self.depths[parent] + 1)
                self.tokens.append(token)
                self.parents.append(parent)
            parent = node
            path.append(node)
        return tuple(path)

    def counts(self, paths: Sequence[Sequence[int]]) -> Int[np.ndarray, " node"]:
        """How many of the paths go through each node."""
        through = np.zeros(len(self), dtype=np.int64)
        for path in paths:
            through[list(path)] += 1
        return through


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Length of the longest prefix that all sequences share."""
    shortest = min(len(sequence) for sequence in sequences)
    first = sequences[0]
    for position in range(shortest):
        if any(sequence[position] != first[position] for sequence in sequences):
            return position
    return shortest
