"""An independent forward of a Llama in plain torch, from a state dict: none of our code, none of any library's modules.

One position, one head at a time: slow on purpose, so that there is nothing clever in it to be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Place = tuple[int, int, int]
"""(layer, query head, position)."""


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.pow(2).mean() + epsilon).sqrt() * weight


def _rotate(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one head's vector: pairs (i, i + d/2) turned by position * theta^(-2i/d)."""
    half = len(x) // 2
    angles = position * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    first, second = x[:half], x[half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()]
    )


def llama_forward(
    weights: Mapping[str, Tensor],
    config: Any,
    tokens: Sequence[int],
    replaced: Mapping[Place, Tensor] | None = None,
) -> tuple[Tensor, dict[Place, Tensor]]:
    """Logits [pos, d_vocab] and the z that flowed, with z at the given places replaced."""
    z: dict[Place, Tensor] = {}
    stream = [weights["model.embed_tokens.weight"][token] for token in tokens]
    for layer in range(config.num_hidden_layers):
        stream = _block(weights, config, layer, stream, replaced or {}, z)
    logits = []
    for x in stream:
        final = _norm(x, weights["model.norm.weight"], config.rms_norm_eps)
        logits.append(weights["lm_head.weight"] @ final)
    return torch.stack(logits), z


def _block(
    weights: Mapping[str, Tensor],
    config: Any,
    layer: int,
    stream: list[Tensor],
    replaced: Mapping[Place, Tensor],
    z: dict[Place, Tensor],
) -> list[Tensor]:
    part = {
        name: weights[f"model.layers.{layer}.{name}.weight"]
        for name in (
            "input_layernorm", "post_attention_layernorm",
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        )
    }  # fmt: skip
    d_head = config.hidden_size // config.num_attention_heads
    sharing = config.num_attention_heads // config.num_key_value_heads
    theta = config.rope_parameters["rope_theta"]
    normed = [_norm(x, part["input_layernorm"], config.rms_norm_eps) for x in stream]
    keys: dict[int, list[Tensor]] = {}
    values: dict[int, list[Tensor]] = {}
    for group in range(config.num_key_value_heads):
        own = slice(group * d_head, (group + 1) * d_head)
        keys[group] = [_rotate(part["self_attn.k_proj"][own] @ x, at, theta) for at, x in enumerate(normed)]
        values[group] = [part["self_attn.v_proj"][own] @ x for x in normed]
    out = []
    for position, x in enumerate(stream):
        mixed = []
        for head in range(config.num_attention_heads):
            own, group = slice(head * d_head, (head + 1) * d_head), head // sharing
            query = _rotate(part["self_attn.q_proj"][own] @ normed[position], position, theta)
            scores = [query @ key / d_head**0.5 for key in keys[group][: position + 1]]
            weight = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            place = (layer, head, position)
            flowed = sum(w * value for w, value in zip(weight, values[group][: position + 1], strict=True))
            z[place] = replaced.get(place, flowed)
            mixed.append(z[place])
        x = x + part["self_attn.o_proj"] @ torch.cat(mixed)
        inner = _norm(x, part["post_attention_layernorm"], config.rms_norm_eps)
        gate = part["mlp.gate_proj"] @ inner
        out.append(x + part["mlp.down_proj"] @ (gate * torch.sigmoid(gate) * (part["mlp.up_proj"] @ inner)))
    return out
