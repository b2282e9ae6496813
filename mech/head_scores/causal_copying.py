"""Causal token-copying score: how far ablating one head lowers the log-probability of repeated random tokens.

    [bos] r1 r2 … rL r1 r2 … rL        the sequences of `mech.head_scores.induction`

    causal_copying   z of the head ← its mean, at the positions of the second r1 … r(L−1): the drop of the
                     log-probability of the second r2 … rL, known from the first half; nats per token, above 0 where
                     the head helps
    causal_first     z ← its mean at the positions of the first r1 … r(L−1): the drop for the first r2 … rL, which
                     cannot be predicted; the off-target side, in the same unit

A head is ablated at the positions that predict the copy: `causal_copying` does not measure a previous-token head, which
acts in the first half.

The mean is over every position of every sequence (`mech.patching.means`). The rest of the model is recomputed. After
the ablations of Olsson et al. 2022 ("In-context Learning and Induction Heads"); causal scores of copy heads as in
Feucht et al. 2025 ("The Dual-Route Model of Induction"). The sweep is that of `mech.patching.patch`, with the mean as
the donor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.capture import everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.head_scores.induction import RepeatedTokens
from mech.heads import Head, HeadSet
from mech.patching.means import mean_z
from mech.patching.patch import patch_heads, sweep_names

Occurrence = Literal["second", "first"]
CAUSAL_SCORES: dict[str, Occurrence] = {"causal_copying": "second", "causal_first": "first"}
"""Column → the occurrence of the tokens that are scored."""


def sequence_mean(engine: Engine, sequences: RepeatedTokens) -> Float[Tensor, "layer head d_head"]:
    """Mean z over every position of every sequence (they are equally long), one packed forward a sequence."""
    means = [mean_z(engine, [row]).z.double() for row in sequences.tokens.tolist()]
    return torch.stack(means).mean(dim=0).to(engine.model.dtype)


def occurrence_query(sequences: RepeatedTokens, index: int, occurrence: Occurrence) -> Query:
    """The tokens of one sequence as a query: its action is r2 … rL of one half, its prompt everything before them.

    Its action positions are those of r1 … r(L−1) of that half, whose logits predict the action.

    Raises:
        InputError: a sequence of one token has nothing to predict.
    """
    if sequences.length < 2:
        raise InputError("A repeated sequence needs two tokens at least for a copy to be predicted.")
    tokens = tuple(sequences.tokens[index].tolist())
    start = sequences.lead + (sequences.length if occurrence == "second" else 0)
    return Query(tokens[: start + 1], tokens[start + 1 : start + sequences.length])


def ablation_drops(
    engine: Engine, query: Query, mean: Float[Tensor, "layer head d_head"], heads: HeadSet | None = None
) -> dict[Head, float]:
    """Head → drop of the action's log-probability (nats per token) with its z at the mean at the action positions.

    Raises:
        InputError: the query has an intervention, a head does not exist.
    """
    model = engine.model
    clean = engine.run(query, sweep_names(model))
    names = everything_names(model, "attn.hook_z")
    z = {name: mean[layer].expand_as(clean.cache[name]) for layer, name in enumerate(names)}
    ablated = patch_heads(engine, clean, replace(clean, cache={**clean.cache, **z}), heads)
    n = len(query.action)
    return {head: (clean.score.total - score.total) / n for head, score in ablated.items()}


def causal_scores(engine: Engine, sequences: RepeatedTokens, heads: HeadSet | None = None) -> pd.DataFrame:
    """Score every head on every sequence: layer, head and CAUSAL_SCORES, means over sequences and tokens.

    Raises:
        InputError: the sequences have fewer than two tokens a half, a head does not exist.
    """
    mean = sequence_mean(engine, sequences)
    rows = [
        {"layer": head.layer, "head": head.head, "score": name, "drop": drop}
        for name, occurrence in CAUSAL_SCORES.items()
        for index in range(len(sequences.tokens))
        for head, drop in ablation_drops(
            engine, occurrence_query(sequences, index, occurrence), mean, heads
        ).items()
    ]
    return causal_table(pd.DataFrame(rows))


def causal_table(drops: pd.DataFrame) -> pd.DataFrame:
    """Long drops (layer, head, score, drop; one a sequence) as one row a head: layer, head, CAUSAL_SCORES."""
    wide = drops.pivot_table(index=["layer", "head"], columns="score", values="drop", aggfunc="mean")
    return wide[list(CAUSAL_SCORES)].reset_index().rename_axis(columns=None)
