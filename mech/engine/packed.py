"""The fast path: one forward of a packed row of token nodes over a prefix cache, through the stock bridge blocks.

1. the sequences below the prefix cache become a trie of token ids (`mech.engine.trie`);
2. its nodes are laid out as one row: position ids = depth, a node sees the prefix cache and its own ancestors only;
3. the row goes through every block once, hooks and all; edits land on the nodes of the queries that asked for them;
4. log-probabilities are read at the nodes that need them, and nowhere else.

`mech.engine.reference` answers the same questions by one hooked full forward each; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.blocks import RowCache, block_arguments, embed, layout, run_block, unembed
from mech.engine.capture import capture_hooks
from mech.engine.packing import insert, place
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query, Score, token_logprobs
from mech.engine.trie import Trie
from mech.interventions.hooks import EditLocation, HookMissed, edit_hooks, hooked
from mech.interventions.intervention import Intervention
from mech.models.model import Model

__all__ = ["EditLocation", "RowRun", "grow", "insert", "place", "read_scores", "run_row", "score_row"]

UNEMBED_ROWS = 128
"""Nodes unembedded at a time: 128 x 49k logits are 25 MB."""


@dataclass(frozen=True)
class RowRun:
    """What one packed forward leaves: the final residual stream, each layer's new keys and values, kept activations."""

    resid: Float[Tensor, "1 node d_model"]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    kept: dict[str, Tensor]


@torch.no_grad()
def run_row(
    model: Model,
    trie: Trie,
    prefix_cache: PrefixCache,
    locations: Sequence[EditLocation] = (),
    keep: Sequence[str] = (),
) -> RowRun:
    """Push a packed row through all blocks.

    Args:
        model: the model, in eval mode.
        trie: the row; its `prefix_length` must be the prefix cache's.
        prefix_cache: keys and values every node sees.
        locations: edits and the nodes they act on.
        keep: TransformerLens hook names whose activations (all nodes) are returned.

    Raises:
        HookMissed: an edit's or a kept hook did not fire exactly once.
    """
    model.require_eval_mode()
    if trie.prefix_length != len(prefix_cache):
        raise ValueError("The row was laid out for a prefix cache of another length.")
    tokens = torch.tensor(trie.tokens, device=model.device)
    depths = torch.tensor(trie.depths, device=model.device)
    ancestry = torch.from_numpy(trie.ancestry()).to(model.device)
    cache = RowCache(prefix_cache.keys, prefix_cache.values)
    arguments = block_arguments(model, layout(model, depths, ancestry, len(prefix_cache)), cache)
    kept: dict[str, Tensor] = {}
    hooks = edit_hooks(model, locations) + capture_hooks(model, keep, kept.__setitem__)
    with hooked(model, hooks, fires=1):
        resid = embed(model, tokens, depths)
        for layer in range(model.n_layers):
            resid = run_block(model, layer, resid, arguments[layer])
    layers = range(model.n_layers)
    if set(cache.keys) != set(layers):
        raise HookMissed(
            "The model's attention did not use the key/value cache it was given: no prefix cache can be shared."
        )
    return RowRun(resid, tuple(cache.keys[i] for i in layers), tuple(cache.values[i] for i in layers), kept)


def grow(
    model: Model, prefix_cache: PrefixCache, tokens: Sequence[int], intervention: Intervention
) -> PrefixCache:
    """The prefix cache extended by these tokens, computed under the all-position part of the intervention."""
    everywhere = intervention.everywhere
    prefix_cache.require(prefix_cache.tokens, everywhere.fingerprint)
    trie = Trie(len(prefix_cache))
    trie.insert(list(tokens), [""] * len(tokens))
    run = run_row(model, trie, prefix_cache, [EditLocation(edit, None) for edit in everywhere.edits])
    return PrefixCache(
        prefix_cache.tokens, everywhere.fingerprint, prefix_cache.keys, prefix_cache.values
    ).extend(tokens, run.keys, run.values)


@torch.no_grad()
def score_row(model: Model, queries: Sequence[Query], prefix_cache: PrefixCache) -> list[Score]:
    """Score queries that begin with the prefix cache and share its all-position edits: one packed forward.

    Raises:
        ValueError: a query does not begin with the prefix cache, or has other all-position edits than prefix cache
        and row. FloatingPointError: a logit is not finite.
    """
    everywhere = queries[0].intervention.everywhere
    trie = Trie(len(prefix_cache))
    paths, locations = [], [EditLocation(edit, None) for edit in everywhere.edits]
    placed: set[int] = set()
    for query in queries:
        prefix_cache.require(query.tokens, query.intervention.everywhere.fingerprint)
        if query.intervention.everywhere.fingerprint != everywhere.fingerprint:
            raise ValueError("Queries of one row must share their all-position edits.")
        if len(prefix_cache) > query.untouched:
            raise ValueError("A prefix cache was offered that includes a position which the query edits.")
        path = insert(trie, query)
        paths.append(path)
        locations += place(model, query, path, len(prefix_cache), placed)
        placed.update(path)
    run = run_row(model, trie, prefix_cache, locations)
    wanted = [
        [path[i - len(prefix_cache)] for i in query.candidate]
        for query, path in zip(queries, paths, strict=True)
    ]
    return read_scores(model, run.resid, wanted, [query.action for query in queries])


def read_scores(
    model: Model, resid: Tensor, nodes: Sequence[Sequence[int]], actions: Sequence[Sequence[int]]
) -> list[Score]:
    """Log-probabilities of each action's tokens at its candidate nodes; each node is unembedded once.

    Args:
        model: for the final norm and the unembedding.
        resid: [1, node, d_model], the residual stream after the last block.
        nodes: for each action, the nodes whose logits predict its tokens.
        actions: for each action, its tokens.
    """
    targets: dict[int, list[tuple[int, int]]] = {}
    for which, (path, action) in enumerate(zip(nodes, actions, strict=True)):
        for place_in_action, (node, _) in enumerate(zip(path, action, strict=True)):
            targets.setdefault(node, []).append((which, place_in_action))
    logprobs = [np.empty(len(action)) for action in actions]
    argmax = [np.empty(len(action), dtype=bool) for action in actions]
    order = sorted(targets)
    for start in range(0, len(order), UNEMBED_ROWS):
        chunk = order[start : start + UNEMBED_ROWS]
        logits = unembed(model, resid[:, chunk])
        asked = [(row, *pair) for row, node in enumerate(chunk) for pair in targets[node]]
        rows = torch.tensor([row for row, _, _ in asked], device=model.device)
        tokens = torch.tensor([actions[which][at] for _, which, at in asked], device=model.device)
        values, best = token_logprobs(logits, tokens, rows)
        for (_, which, at), value, is_best in zip(asked, values.tolist(), best.tolist(), strict=True):
            logprobs[which][at], argmax[which][at] = value, is_best
    return [Score(values, best) for values, best in zip(logprobs, argmax, strict=True)]
