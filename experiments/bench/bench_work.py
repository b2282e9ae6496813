"""The floating-point operations (multiplications and additions) that scoring and a head sweep cannot do without.

    a token in a layer    2 · (entries of the layer's matrices)  +  4 · n_heads · d_head · (keys it sees)
    a position read       2 · d_model · d_vocab

Keys are the prefix cache, the ancestors and the token itself; the factor 4 is the scores and the weighted values. A
token's keys that a row computes and masks, norms, rotations, softmaxes and the prefix cache itself are not counted:
the first is waste, the others small or done once. Sliding layers count as full ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mech.engine.packed import insert
from mech.engine.queries import Query
from mech.engine.trie import Trie
from mech.heads import Head
from mech.models.model import Model


def matrix_entries(model: Model, layer: int) -> int:
    """Entries of a block's weight matrices (biases and norms have one axis and are not counted)."""
    block = model.bridge.blocks[layer].original_component
    return sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 2)


def layer_flop(model: Model, layer: int, positions: Iterable[int]) -> int:
    """One layer for tokens at these positions (from 0) of their own sequences."""
    linear = 2 * matrix_entries(model, layer)
    return sum(linear + 4 * model.n_heads * model.d_head * (position + 1) for position in positions)


def read_flop(model: Model, n_positions: int) -> int:
    """The unembedding of so many positions."""
    return 2 * model.d_model * model.d_vocab * n_positions


def scoring_flop(model: Model, queries: Sequence[Query], shared: int) -> int:
    """Scoring these queries over the cache of their first `shared` tokens: each distinct token once, each read once."""
    trie = Trie(shared)
    read: set[int] = set()
    for query in queries:
        path = insert(trie, query)
        read.update(path[position - shared] for position in query.candidate)
    layers = sum(layer_flop(model, layer, trie.depths) for layer in range(model.n_layers))
    return layers + read_flop(model, len(read))


def sweep_flop(model: Model, query: Query, heads: Iterable[Head]) -> int:
    """Patching one head after another: the action positions from the head's own layer on, then read."""
    layers = [layer_flop(model, layer, query.candidate) for layer in range(model.n_layers)]
    read = read_flop(model, len(query.action))
    return sum(sum(layers[head.layer :]) + read for head in heads)
