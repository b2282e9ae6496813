"""The fast path: packed rows of token nodes over a prefix cache, through the stock bridge blocks.

1. the sequences below the prefix cache become a trie of token ids (`mech.engine.trie`), in depth-first order;
2. its nodes are laid out as one row: position ids = depth, a node sees the prefix cache and its own ancestors only;
3. the row goes through every block, hooks and all, so many nodes at a time: those that follow see the keys and values
   of those before, so that each distinct token is run once, however long the row; edits land on the nodes of the
   queries that asked for them;
4. log-probabilities are read at the nodes that need them, and nowhere else.

`mech.engine.reference` answers the same questions by one hooked full forward each; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.attention import listened
from mech.engine.blocks import RowCache, block_arguments, embed, read_out, run_block, soft_capped
from mech.engine.capture import capture_hooks
from mech.engine.layout import layout
from mech.engine.packing import insert, place, tagged, within
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query, Score, token_logprobs
from mech.engine.trie import Trie
from mech.interventions.hooks import EditLocation, HookMissed, edit_hooks, hooked
from mech.interventions.intervention import Intervention
from mech.models.model import Model

__all__ = ["EditLocation", "RowRun", "grow", "insert", "place", "read_scores", "run_row", "score_row"]

UNEMBED_ROWS = 128
"""Nodes unembedded at a time: 128 x 49k logits are 25 MB."""
VOCABULARY_PART = 2048
"""Tokens whose logits are taken at a time where nobody listens to all of them: 128 x 2048 stay in a core's cache."""


@dataclass(frozen=True)
class RowRun:
    """What a packed row leaves: the final residual stream, each layer's new keys and values, kept activations.

    `forwards` says in how many forwards it was run.
    """

    resid: Float[Tensor, "1 node d_model"]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    kept: dict[str, Tensor]
    forwards: int


@torch.no_grad()
def run_row(
    model: Model,
    trie: Trie,
    prefix_cache: PrefixCache,
    locations: Sequence[EditLocation] = (),
    keep: Sequence[str] = (),
    max_nodes: int | None = None,
) -> RowRun:
    """Push a packed row through all blocks.

    Args:
        model: the model, in eval mode.
        trie: the row, its nodes in depth-first order; its `prefix_length` must be the prefix cache's.
        prefix_cache: keys and values every node sees.
        locations: edits and the nodes they act on.
        keep: TransformerLens hook names whose activations (all nodes) are returned; the row is then one forward.
        max_nodes: nodes in one forward; None takes them all.

    Raises:
        HookMissed: an edit's or a kept hook did not fire exactly once a forward.
        ValueError: the nodes are not in depth-first order, or the prefix cache is of another length.
    """
    model.require_eval_mode()
    if trie.prefix_length != len(prefix_cache):
        raise ValueError("The row was laid out for a prefix cache of another length.")
    n = len(trie)
    step = n if max_nodes is None or keep else min(n, max_nodes)
    cache = RowCache(prefix_cache.keys, prefix_cache.values, room=None if step == n else n)
    kept: dict[str, Tensor] = {}
    resids = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        where = layout(model, trie.depths[:stop], trie.parents[:stop], len(prefix_cache), start)
        arguments = block_arguments(model, where, cache)
        here = within(locations, start, stop, len(prefix_cache)) if step < n else locations
        hooks = edit_hooks(model, here) + capture_hooks(model, keep, kept.__setitem__)
        with hooked(model, hooks, fires=1):
            resid = embed(model, torch.tensor(trie.tokens[start:stop], device=model.device), where.depths)
            for layer in range(model.n_layers):
                resid = run_block(model, layer, resid, arguments[layer])
        cache.used = stop
        resids.append(resid)
    layers = range(model.n_layers)
    if set(cache.keys) != set(layers):
        raise HookMissed(
            "The model's attention did not use the key/value cache it was given: no prefix cache can be shared."
        )
    keys, values = ([held[i] for i in layers] for held in (cache.keys, cache.values))
    return RowRun(torch.cat(resids, dim=1), tuple(keys), tuple(values), kept, len(resids))


def grow(
    model: Model,
    prefix_cache: PrefixCache,
    tokens: Sequence[int],
    intervention: Intervention,
    max_nodes: int | None = None,
) -> PrefixCache:
    """The prefix cache extended by these tokens, computed under the all-position part of the intervention.

    `max_nodes`: tokens in one forward; None takes them all.
    """
    everywhere = intervention.everywhere
    prefix_cache.require(prefix_cache.tokens, everywhere.fingerprint)
    trie = Trie(len(prefix_cache))
    trie.insert(list(tokens), [""] * len(tokens))
    locations = [EditLocation(edit, None) for edit in everywhere.edits]
    run = run_row(model, trie, prefix_cache, locations, max_nodes=max_nodes)
    return PrefixCache(
        prefix_cache.tokens, everywhere.fingerprint, prefix_cache.keys, prefix_cache.values
    ).extend(tokens, run.keys, run.values)


@torch.no_grad()
def score_row(
    model: Model, queries: Sequence[Query], prefix_cache: PrefixCache, max_nodes: int | None = None
) -> list[Score]:
    """Score queries that begin with the prefix cache and share its all-position edits, as `run_scores` does."""
    return run_scores(model, queries, prefix_cache, max_nodes)[0]


@torch.no_grad()
def run_scores(
    model: Model, queries: Sequence[Query], prefix_cache: PrefixCache, max_nodes: int | None = None
) -> tuple[list[Score], int]:
    """Score queries that begin with the prefix cache and share its all-position edits: one packed row.

    Returns:
        The scores, and in how many forwards of at most `max_nodes` nodes the row was run.

    Raises:
        ValueError: a query does not begin with the prefix cache, or has other all-position edits than prefix cache
        and row. FloatingPointError: a logit is not finite.
    """
    everywhere = queries[0].intervention.everywhere
    for query in queries:
        prefix_cache.require(query.tokens, query.intervention.everywhere.fingerprint)
        if query.intervention.everywhere.fingerprint != everywhere.fingerprint:
            raise ValueError("Queries of one row must share their all-position edits.")
        if len(prefix_cache) > query.untouched:
            raise ValueError("A prefix cache was offered that includes a position which the query edits.")
    trie = Trie(len(prefix_cache))
    locations = [EditLocation(edit, None) for edit in everywhere.edits]
    paths: dict[int, tuple[int, ...]] = {}
    placed: set[int] = set()
    below = [tagged(query, len(prefix_cache)) for query in queries]
    for index in sorted(
        range(len(queries)), key=below.__getitem__
    ):  # depth-first: what is shared is side by side
        path = trie.insert(*zip(*below[index], strict=True))
        locations += place(model, queries[index], path, len(prefix_cache), placed)
        placed.update(path)
        paths[index] = path
    run = run_row(model, trie, prefix_cache, locations, max_nodes=max_nodes)
    wanted = [
        [paths[index][i - len(prefix_cache)] for i in query.candidate] for index, query in enumerate(queries)
    ]
    return read_scores(model, run.resid, wanted, [query.action for query in queries]), run.forwards


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
        normed = model.bridge.ln_final(resid[:, chunk])[0]
        asked = [(row, *pair) for row, node in enumerate(chunk) for pair in targets[node]]
        rows = torch.tensor([row for row, _, _ in asked], device=model.device)
        tokens = torch.tensor([actions[which][at] for _, which, at in asked], device=model.device)
        values, best = _read(model, normed, tokens, rows)
        for (_, which, at), value, is_best in zip(asked, values.tolist(), best.tolist(), strict=True):
            logprobs[which][at], argmax[which][at] = value, is_best
    return [Score(values, best) for values, best in zip(logprobs, argmax, strict=True)]


def _read(model: Model, normed: Tensor, tokens: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """As `token_logprobs` of the logits of these rows, which are taken part by part of the vocabulary.

    Raises:
        FloatingPointError: a logit is not finite.
    """
    bridge = model.bridge.unembed
    inner: Any = bridge.original_component
    if type(inner) is not torch.nn.Linear or listened(bridge.hook_in) or listened(bridge.hook_out):
        return token_logprobs(read_out(model, normed), tokens, rows)
    wide = torch.float64 if normed.dtype == torch.float64 else torch.float32
    lse, top = (torch.full((len(normed),), -torch.inf, dtype=wide, device=normed.device) for _ in range(2))
    best = torch.zeros(len(normed), dtype=torch.long, device=normed.device)
    chosen = torch.full(tokens.shape, torch.nan, dtype=wide, device=normed.device)
    for start in range(0, len(inner.weight), VOCABULARY_PART):
        part = slice(start, start + VOCABULARY_PART)
        bias = None if inner.bias is None else inner.bias[part]
        logits = soft_capped(model, torch.nn.functional.linear(normed, inner.weight[part], bias)).to(wide)
        value, index = logits.max(dim=-1)
        best = torch.where(value > top, index + start, best)
        top = torch.maximum(top, value)
        lse = torch.logaddexp(lse, torch.logsumexp(logits, dim=-1))
        here = (tokens >= start) & (tokens < start + VOCABULARY_PART)
        chosen[here] = logits[rows[here], tokens[here] - start]
    logprobs = chosen - lse[rows]
    if not bool(torch.isfinite(logprobs).all()):
        raise FloatingPointError("The model's logits are not finite: nothing of this run may be recorded.")
    return logprobs, best[rows] == tokens
