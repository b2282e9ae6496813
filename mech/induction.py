"""Head scores on synthetic sequences of repeated random tokens; no task text is ever seen.

    [bos] r1 r2 … rL r1 r2 … rL        r drawn from the vocabulary without special tokens

For a position t of the second half, whose token first stood at t − L:

    prefix_matching   attention from t to t − L + 1, the token after the first occurrence
    previous_token    attention from t to t − 1
    duplicate_token   attention from t to t − L, the first occurrence itself
    copying           what the head's output through W_O, the final norm frozen, adds to the logit of the token it
                      should copy (r at t − L + 1), minus its mean over all r of the sequence; in logits

Attention scores are means of probabilities over second-half positions and sequences, each in [0, 1]. Definitions as in
Olsson et al. 2022 ("In-context Learning and Induction Heads") and Elhage et al. 2021 (direct logit attribution).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import einops
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mech.capture import capture_hooks, everything_names
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.hooks import HookFunction, hooked
from mech.model import Model

SCORES = ("prefix_matching", "previous_token", "duplicate_token", "copying")


@dataclass(frozen=True)
class RepeatedTokens:
    """`tokens` [batch, lead + 2 L]: an optional BOS (`lead` is 0 or 1), then L random tokens twice."""

    tokens: Int[Tensor, "batch pos"]
    lead: int
    length: int


def repeated_tokens(model: Model, rng: np.random.Generator, n_sequences: int, length: int) -> RepeatedTokens:
    """Random sequences repeated once; special tokens (chat markers among them) excluded, no token twice in a half."""
    special = set(model.tokenizer.all_special_ids) | {
        index
        for index, token in getattr(model.tokenizer, "added_tokens_decoder", {}).items()
        if token.special
    }
    usable = np.array(
        [index for index in range(min(model.d_vocab, len(model.tokenizer))) if index not in special]
    )
    if len(usable) < length:
        raise InputError(f"The vocabulary has {len(usable)} plain tokens, too few for sequences of {length}.")
    half = np.stack([rng.choice(usable, size=length, replace=False) for _ in range(n_sequences)])
    bos = model.tokenizer.bos_token_id
    lead = [] if bos is None else [np.full((n_sequences, 1), bos)]
    tokens = np.concatenate([*lead, half, half], axis=1)
    return RepeatedTokens(torch.from_numpy(tokens).to(model.device), len(lead), length)


@torch.no_grad()
def head_scores(model: Model, sequences: RepeatedTokens) -> pd.DataFrame:
    """Score every head: one row a head with columns layer, head and SCORES.

    Raises:
        HookMissed: a pattern or z hook did not fire exactly once.
    """
    model.require_eval_mode()
    found: dict[str, Tensor] = {}

    def attention(layer: int) -> HookFunction:
        def function(pattern: Tensor, hook: Any) -> None:
            for name, offset in (("prefix_matching", -sequences.length + 1), ("previous_token", -1)):
                found[f"{name}.{layer}"] = _mean_attention(pattern, sequences, offset)
            found[f"duplicate_token.{layer}"] = _mean_attention(pattern, sequences, -sequences.length)

        return function

    hooks = [(f"blocks.{layer}.attn.hook_pattern", attention(layer)) for layer in range(model.n_layers)]
    hooks += capture_hooks(
        model, [*everything_names(model, "attn.hook_z"), "ln_final.hook_in"], found.__setitem__
    )
    with hooked(model, hooks, fires=1):
        model.bridge(sequences.tokens)
    rows = []
    for layer in range(model.n_layers):
        copying = _copying(
            model, layer, found[f"blocks.{layer}.attn.hook_z"], found["ln_final.hook_in"], sequences
        )
        for head in range(model.n_heads):
            row: dict[str, float] = {"layer": layer, "head": head}
            row |= {name: float(found[f"{name}.{layer}"][head]) for name in SCORES[:3]}
            rows.append(row | {"copying": float(copying[head])})
    return pd.DataFrame(rows)


def top_heads(scores: pd.DataFrame, k: int, by: str = "prefix_matching") -> HeadSet:
    """The k heads with the highest score; ties go to the lower layer, then head.

    Raises:
        InputError: no such score column, or k is not between 1 and the number of heads.
    """
    if by not in scores.columns or by in ("layer", "head"):
        raise InputError(f"'{by}' is not a head score: choose one of {', '.join(SCORES)}.")
    if not 1 <= k <= len(scores):
        raise InputError(f"The model has {len(scores)} heads: the top {k} cannot be taken.")
    ordered = scores.sort_values([by, "layer", "head"], ascending=[False, True, True])
    return HeadSet(Head(int(row.layer), int(row.head)) for row in ordered.head(k).itertuples())


def _second_half(sequences: RepeatedTokens) -> range:
    """Positions whose next token the first half foretells (the last one has none after it)."""
    start = sequences.lead + sequences.length
    return range(start, start + sequences.length - 1)


def _mean_attention(
    pattern: Float[Tensor, "batch head dest_pos src_pos"], sequences: RepeatedTokens, offset: int
) -> Float[Tensor, " head"]:
    dest = torch.tensor(list(_second_half(sequences)), device=pattern.device)
    return pattern[:, :, dest, dest + offset].mean(dim=(0, 2))


def _copying(
    model: Model, layer: int, z: Tensor, resid: Tensor, sequences: RepeatedTokens
) -> Float[Tensor, " head"]:
    """Direct logit effect of each head on the token to copy, over the mean of the sequence's tokens."""
    dest = torch.tensor(list(_second_half(sequences)), device=z.device)
    by_head = einops.rearrange(
        z[:, dest], "batch pos (head d_head) -> batch pos head d_head", head=model.n_heads
    )
    out = einops.einsum(
        by_head, w_o(model, layer), "batch pos head d_head, head d_head d_model -> batch pos head d_model"
    )
    # The final norm, frozen at what it does to the real residual stream: centred for LayerNorm, scaled for both.
    norm = model.bridge.ln_final
    at = resid[:, dest]
    if not norm.uses_rms_norm:
        out, at = out - out.mean(-1, keepdim=True), at - at.mean(-1, keepdim=True)
    weight = norm.weight + 1 if norm.uses_weight_offset else norm.weight
    scaled = out / at.pow(2).mean(-1, keepdim=True).add(_epsilon(model)).sqrt()[:, :, None] * weight
    half = sequences.tokens[:, sequences.lead : sequences.lead + sequences.length]
    original: Any = model.bridge.original_model
    directions = original.get_output_embeddings().weight[half]
    logits = einops.einsum(
        scaled, directions, "batch pos head d_model, batch tok d_model -> batch head pos tok"
    )
    steps = torch.arange(len(dest), device=z.device)
    return (logits[:, :, steps, steps + 1] - logits.mean(dim=-1)).mean(dim=(0, 2))


def _epsilon(model: Model) -> float:
    module = model.bridge.ln_final.original_component
    for name in ("variance_epsilon", "eps"):
        if name in vars(module):
            return float(vars(module)[name])
    raise InputError("The final norm does not say its epsilon, so direct logit effects cannot be computed.")


def w_o(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """The output projection by query head; its input, not its output, is what has heads."""
    attention = model.bridge.blocks[layer].attn
    weight = attention.o.original_component.weight
    if (
        type(attention.o.original_component).__name__ != "Conv1D"
    ):  # GPT-2 keeps [in, out], everyone else [out, in]
        weight = weight.T
    return einops.rearrange(weight, "(head d_head) d_model -> head d_head d_model", head=model.n_heads)
