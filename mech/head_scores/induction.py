"""Head scores on synthetic sequences of repeated random tokens; no task text is ever seen.

    [bos] r1 r2 … rL r1 r2 … rL        r drawn from the vocabulary without special tokens

For a position t of the second half, whose token first occurred at t − L:

    prefix_matching   attention from t to t − L + 1, the token after the first occurrence
    previous_token    attention from t to t − 1
    duplicate_token   attention from t to t − L, the first occurrence itself
    attention_sink    attention from t to the sequence's first position
    copying           the head's direct effect, the final norm frozen, on the logit of the token to copy (r at
                      t − L + 1), minus its mean over all r of the sequence; in logits
    ov_copying        the same of the OV circuit alone: the effect of the value of a first-half token s, with attention
                      1, on the logit of the token at s, minus its mean over all r; logits per unit of attention
    copy_suppression  minus that, weighted by the attention the head pays: how far it lowers the logits of the r it
                      attends to, in logits; above 0 for a negative head, below 0 for a copying one

Attention scores are means of probabilities over second-half positions and sequences, each in [0, 1]. Definitions as in
Olsson et al. 2022 ("In-context Learning and Induction Heads") and Elhage et al. 2021 (direct logit attribution, the OV
circuit W_U W_O W_V; here on the values computed in the sequence, with their norms, not on W_E alone); negative heads
as in McDougall et al. 2023 ("Copy Suppression"), whose sign is that of the OV circuit on the attended token; the sink
as in Xiao et al. 2023 ("Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453). `copying` is
small where a head attends elsewhere; `ov_copying` does not depend on where it attends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import einops
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mech.engine.capture import capture_hooks, everything_names
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import hook_name
from mech.interventions.hooks import HookFunction, hooked
from mech.models.model import Model
from mech.results import Result, head_map

ATTENTION_SCORES = ("prefix_matching", "previous_token", "duplicate_token", "attention_sink")
CIRCUIT_SCORES = ("copying", "ov_copying", "copy_suppression")
SCORES = (*ATTENTION_SCORES, *CIRCUIT_SCORES)


@dataclass(frozen=True)
class RepeatedTokens:
    """`tokens` [batch, lead + 2 L]: an optional BOS (`lead` is 0 or 1), then L random tokens twice."""

    tokens: Int[Tensor, "batch pos"]
    lead: int
    length: int


def repeated_tokens(model: Model, rng: np.random.Generator, n_sequences: int, length: int) -> RepeatedTokens:
    """Random sequences, repeated once, without special tokens (chat markers included) and no token twice in a half.

    Raises:
        InputError: fewer than two tokens a half, or more than the vocabulary has.
    """
    special = set(model.tokenizer.all_special_ids) | {
        index
        for index, token in getattr(model.tokenizer, "added_tokens_decoder", {}).items()
        if token.special
    }
    usable = np.array(
        [index for index in range(min(model.d_vocab, len(model.tokenizer))) if index not in special]
    )
    if length < 2:
        raise InputError("A repeated sequence needs two tokens at least for a copy to be predicted.")
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
        InputError: the sequences are longer than the model's may be.
        HookMissed: a pattern or z hook did not fire exactly once.
    """
    model.require_eval_mode()
    model.require_room(sequences.tokens.shape[1])
    found: dict[str, Tensor] = {}
    dest = list(_second_half(sequences))
    length = sequences.length
    offsets = {"prefix_matching": 1 - length, "previous_token": -1, "duplicate_token": -length}

    def attention(layer: int) -> HookFunction:
        def function(pattern: Tensor, hook: Any) -> None:
            for name, offset in offsets.items():
                source = [place + offset for place in dest]
                found[f"{name}.{layer}"] = pattern[:, :, dest, source].mean(dim=(0, 2))
            found[f"attention_sink.{layer}"] = pattern[:, :, dest, 0].mean(dim=(0, 2))
            found[f"pattern.{layer}"] = pattern[:, :, dest, sequences.lead :]

        return function

    hooks = [(hook_name("pattern", layer), attention(layer)) for layer in range(model.n_layers)]
    names = [*everything_names(model, "attn.hook_z", "attn.hook_v"), "ln_final.hook_in"]
    names += [
        f"blocks.{layer}.ln1_post.hook_in" for layer in range(model.n_layers) if _ln1_post(model, layer)
    ]
    hooks += capture_hooks(model, names, found.__setitem__)
    with hooked(model, hooks, fires=1):
        model.bridge(sequences.tokens)
    rows = []
    for layer in range(model.n_layers):
        circuit = _circuit_scores(model, layer, found, sequences)
        for head in range(model.n_heads):
            row: dict[str, float] = {"layer": layer, "head": head}
            row |= {name: float(found[f"{name}.{layer}"][head]) for name in ATTENTION_SCORES}
            rows.append(row | {name: float(circuit[name][head]) for name in CIRCUIT_SCORES})
    return pd.DataFrame(rows)


@dataclass(frozen=True, repr=False)
class HeadScores(Result):
    """Scores of every head on repeated random tokens: one row a head, columns layer, head and SCORES."""

    rows: pd.DataFrame
    n_sequences: int
    length: int

    @property
    def headline(self) -> str:
        """What the scores were taken on."""
        return f"Head scores on {self.n_sequences} sequences of {self.length} random tokens, repeated once"

    def to_dataframe(self) -> pd.DataFrame:
        """Columns layer, head and SCORES, highest prefix matching first."""
        return self.rows.sort_values("prefix_matching", ascending=False, kind="stable", ignore_index=True)

    def plot(self, ax: Any = None, by: str = "prefix_matching") -> Any:
        """A map of one score by layer and head."""
        values = {Head(int(row["layer"]), int(row["head"])): row[by] for _, row in self.rows.iterrows()}
        return head_map(values, by, ax)

    def top(self, k: int, by: str = "prefix_matching") -> HeadSet:
        """The k heads of highest score; errors as `top_heads`."""
        return top_heads(self.rows, k, by)


def induction_scores(
    model: Model, rng: np.random.Generator, n_sequences: int = 10, length: int = 50
) -> HeadScores:
    """Score every head on random tokens repeated once: prefix matching, previous token, copying and the other SCORES.

    Args:
        model: the model.
        rng: draws the tokens.
        n_sequences: how many sequences; the scores are means over them.
        length: tokens in each half.

    Raises:
        InputError: as `repeated_tokens`, or the sequences are longer than the model's may be.
    """
    scores = head_scores(model, repeated_tokens(model, rng, n_sequences, length))
    return HeadScores(scores, n_sequences, length)


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
    """Positions whose next token is known from the first half (the last one has none after it)."""
    start = sequences.lead + sequences.length
    return range(start, start + sequences.length - 1)


def _circuit_scores(
    model: Model, layer: int, found: Mapping[str, Tensor], sequences: RepeatedTokens
) -> dict[str, Float[Tensor, " head"]]:
    """CIRCUIT_SCORES of one layer: direct effects on the logits of the sequence's tokens, over their mean."""
    dest = list(_second_half(sequences))
    half = sequences.tokens[:, sequences.lead : sequences.lead + sequences.length]
    original: Any = model.bridge.original_model
    directions = original.get_output_embeddings().weight[half]
    scale = _frozen_scale(model, layer, found, dest)

    def logits(by_head: Tensor) -> Float[Tensor, "batch head pos tok"]:
        """Direct effect of [batch, pos, head, d_head] at the input of W_O on the logits of `half`, before `scale`."""
        out = einops.einsum(
            by_head, model.w_o(layer), "batch pos head d_head, head d_head d_model -> batch pos head d_model"
        )
        return einops.einsum(
            _through_norms(model, layer, out),
            directions,
            "batch pos head d_model, batch tok d_model -> batch head pos tok",
        )

    z = _by_head(found[hook_name("z", layer)][:, dest], model.n_heads)
    direct = logits(z) * scale[:, None, :, None]
    steps = torch.arange(len(dest), device=z.device)
    copying = (direct[:, :, steps, steps + 1] - direct.mean(dim=-1)).mean(dim=(0, 2))
    # A value's own token, over the mean: [batch, head, source], of every source after the BOS.
    v = _by_head(found[hook_name("v", layer)][:, sequences.lead :], model.n_kv_heads)
    of_values = logits(v.repeat_interleave(model.n_heads // model.n_kv_heads, dim=2))
    sources = torch.arange(2 * sequences.length, device=v.device)
    own = of_values[:, :, sources, sources % sequences.length] - of_values.mean(dim=-1)
    unattended = own[:, :, : sequences.length].mean(dim=-1) * scale.mean(dim=-1)[:, None]
    attended = einops.einsum(
        found[f"pattern.{layer}"],
        own,
        scale,
        "batch head dest src, batch head src, batch dest -> batch head dest",
    )
    return {
        "copying": copying,
        "ov_copying": unattended.mean(dim=0),
        "copy_suppression": -attended.mean(dim=(0, 2)),
    }


def _by_head(flat: Float[Tensor, "batch pos width"], n_heads: int) -> Float[Tensor, "batch pos head d_head"]:
    return einops.rearrange(flat, "batch pos (head d_head) -> batch pos head d_head", head=n_heads)


def _ln1_post(model: Model, layer: int) -> Any:
    """The norm between attention output and residual stream (Gemma 3), or None where there is none."""
    return model.bridge.blocks[layer].submodules.get("ln1_post")


def _frozen_scale(
    model: Model, layer: int, found: Mapping[str, Tensor], dest: Sequence[int]
) -> Float[Tensor, "batch pos"]:
    """The factor of the norms between a head and the logits, frozen at the activations of this run."""
    scale = _inverse_size(model.bridge.ln_final, found["ln_final.hook_in"][:, dest])
    post = _ln1_post(model, layer)
    if post is not None:
        scale = scale * _inverse_size(post, found[f"blocks.{layer}.ln1_post.hook_in"][:, dest])
    return scale


def _inverse_size(norm: Any, at: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
    if not norm.uses_rms_norm:
        at = at - at.mean(-1, keepdim=True)
    return at.pow(2).mean(-1).add(_epsilon(norm)).rsqrt()


def _through_norms(
    model: Model, layer: int, out: Float[Tensor, "*any d_model"]
) -> Float[Tensor, "*any d_model"]:
    """The linear part of those norms: centring for LayerNorm, and the weights."""
    for norm in (_ln1_post(model, layer), model.bridge.ln_final):
        if norm is not None:
            if not norm.uses_rms_norm:
                out = out - out.mean(-1, keepdim=True)
            out = out * (norm.weight + 1 if norm.uses_weight_offset else norm.weight)
    return out


def _epsilon(norm: Any) -> float:
    module = norm.original_component
    for name in ("variance_epsilon", "eps"):
        if name in vars(module):
            return float(vars(module)[name])
    raise InputError("A norm does not say its epsilon, so direct logit effects cannot be computed.")
