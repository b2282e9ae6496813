"""Fused attention of a row: the parts of its layout one by one, merged by their log-sum-exp, no pattern in memory.

    o, l   = softmax(q Kᵀ / √d) V,  log Σ exp(q Kᵀ / √d)           of each part, from one fused kernel
    out    = Σ_parts o · exp(l − L),   L = log Σ_parts exp(l)      exact: the softmax over all keys together

The prefix cache's keys and values are read where they are: all nodes are one part's queries, without a mask, and
nothing is repeated for the query heads of a group (Juravsky et al. 2024, arXiv:2402.05099). Scores and patterns do
not exist then: a layer in which anybody listens to them, or to a gradient, takes the stock attention (`fusible`).

Projections, norms, rotations and hooks are those of the bridge, called in its order; `supports` names the kinds of
bridge whose order this is. That nothing was missed is checked at load (packed row against full forward).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.joint_qkv_attention import JointQKVAttentionBridge
from transformer_lens.model_bridge.generalized_components.joint_qkv_position_embeddings_attention import (
    JointQKVPositionEmbeddingsAttentionBridge,
)
from transformer_lens.model_bridge.generalized_components.position_embeddings_attention import (
    PositionEmbeddingsAttentionBridge,
)

from mech.engine.layout import Part

_ROTARY = (PositionEmbeddingsAttentionBridge, JointQKVPositionEmbeddingsAttentionBridge)
_KINDS = (*_ROTARY, JointQKVAttentionBridge)
_UNKNOWN_SETTINGS = (
    *("use_split_qkv_input", "use_attn_in", "use_attn_result", "gated_q_proj"),
    *("qk_norm_after_rope", "rotary_adjacent_pairs", "rotary_interleaved_cos_sin"),
)
_UNKNOWN_PARTS = ("attn_logit_softcapping", "sinks", "key_multiplier")


def supports(attention: Any) -> bool:
    """Whether `attend` does all that this bridge of an attention layer does; the others keep their own attention."""
    if type(attention) not in _KINDS or attention.compatibility_mode or not attention.is_causal:
        return False
    inner, settings = attention.original_component, getattr(attention.original_component, "config", None)
    rotation = getattr(settings, "rope_parameters", None) or {}
    return not (
        any(getattr(attention.config, name, False) for name in _UNKNOWN_SETTINGS)
        or any(getattr(inner, name, None) is not None for name in _UNKNOWN_PARTS)
        or getattr(settings, "clip_qkv", None) is not None
        or rotation.get("llama_4_scaling_beta") is not None
        or "gate" in attention.submodules
        or getattr(attention, "_qk_norm_per_head", False)
        or getattr(attention, "_reorder_and_upcast_attn", False)
    )


def fusible(attention: Any) -> bool:
    """Whether nobody listens to what fused attention does not compute: scores, pattern, gradients."""
    return not torch.is_grad_enabled() and not any(
        map(listened, (attention.hook_attn_scores, attention.hook_pattern))
    )


def listened(point: HookPoint) -> bool:
    """Whether a hook of any kind is registered on a hook point."""
    return bool(point._forward_hooks or point._forward_pre_hooks or point._backward_hooks)


def attend(
    attention: Any,
    hidden: Float[Tensor, "1 node d_model"],
    position_embeddings: tuple[Tensor, Tensor] | None,
    cache: Any,
    layer: int,
    parts: Sequence[Part],
) -> tuple[Float[Tensor, "1 node d_model"], None]:
    """The attention layer's output, as the block expects it of the bridge; every hook but scores and pattern fires.

    Args:
        attention: a bridge that `supports` and `fusible` accept.
        hidden: the layer's input.
        position_embeddings: cosines and sines of the nodes' positions, where the model rotates.
        cache: takes the nodes' keys and values, gives them with the prefix cache's (`mech.engine.blocks.RowCache`).
        layer: of the cache.
        parts: who attends to what.
    """
    hidden = attention.hook_in(hidden)
    q, k, v = _projected(attention, hidden, position_embeddings)
    z = merged(q, cache.write(k, v, layer), parts, _scale(attention, q.shape[-1]))
    output = attention.o(z.to(hidden.dtype))
    if isinstance(attention, JointQKVAttentionBridge):
        output = attention.hook_hidden_states(output)
    return attention.hook_out(output), None


def _projected(
    attention: Any, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [1, n_heads, node, d_head], keys and values [1, n_kv_heads, node, d_head], normalised and rotated."""
    flat = [attention.q(hidden), attention.k(hidden), attention.v(hidden)]
    phase = getattr(attention, "_qk_norm_phase", None)
    inner: Any = attention.original_component
    rotary = isinstance(attention, PositionEmbeddingsAttentionBridge)
    d_head = inner.head_dim if rotary else flat[0].shape[-1] // attention.config.n_heads
    if phase == "pre_reshape":
        flat[0], flat[1] = _normed(attention, flat[0], flat[1])
    q, k, v = (one.unflatten(-1, (-1, d_head)).transpose(1, 2) for one in flat)
    if phase == "post_reshape":
        q, k = _normed(attention, q, k)
    if position_embeddings is not None and isinstance(attention, _ROTARY):
        cos, sin = attention._apply_position_embedding_hooks(position_embeddings)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    if isinstance(attention, PositionEmbeddingsAttentionBridge) and hasattr(attention, "hook_rot_q"):
        q, k = attention.hook_rot_q(q), attention.hook_rot_k(k)
    return q, k, v


def _normed(attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    q = attention.hook_q_normed(attention.q_norm(q))
    return q, attention.hook_k_normed(attention.k_norm(k)) if "k_norm" in attention.submodules else k


def _rotated(x: Float[Tensor, "1 head node d_head"], cos: Tensor, sin: Tensor) -> Tensor:
    """The first dimensions of each head turned by [1, node, rotated] angles, as `rotate_half` pairs them."""
    cos, sin = cos[:, None], sin[:, None]
    turned = x[..., : cos.shape[-1]]
    low, high = turned.chunk(2, dim=-1)
    out = turned * cos + torch.cat((-high, low), dim=-1) * sin
    return out if out.shape == x.shape else torch.cat((out, x[..., cos.shape[-1] :]), dim=-1)


def _scale(attention: Any, d_head: int) -> float:
    """What scores are multiplied by."""
    if isinstance(attention, PositionEmbeddingsAttentionBridge):
        return float(getattr(attention.original_component, "scaling", d_head**-0.5))
    by_layer = type(attention) is JointQKVAttentionBridge and getattr(
        attention.config, "scale_attn_by_inverse_layer_idx", False
    )
    return d_head**-0.5 / (attention._layer_idx + 1 if by_layer else 1)


def merged(
    q: Float[Tensor, "1 n_heads node d_head"],
    seen: Sequence[tuple[Tensor, Tensor]],
    parts: Sequence[Part],
    scale: float,
) -> Float[Tensor, "1 node width"]:
    """Attention over all parts together, heads side by side: what `hook_z` has.

    Args:
        q: rotated queries.
        seen: keys and values [1, n_kv_heads, pos, d_head] of the prefix cache, if there is one, and of the row.
        parts: each node sees a key, itself, in one of them.
        scale: of the scores.
    """
    one_part = _kernel if q.device.type == "cpu" else _plain
    n_kv_heads = seen[-1][0].shape[1]
    grouped = q[0].unflatten(0, (n_kv_heads, -1)).transpose(0, 1)  # [group, kv_head, node, d_head], a view
    out: Tensor | None = None
    lse: Tensor | None = None
    for part in parts:
        keys, values = (
            one[:, :, part.keys].expand(len(grouped), -1, -1, -1) for one in seen[0 if part.of_prefix else -1]
        )
        own, own_lse = one_part(grouped[:, :, part.queries], keys, values, part, scale)
        if out is None or lse is None:
            if own.shape == grouped.shape:
                out, lse = own.to(own_lse.dtype), own_lse
                continue
            out = torch.zeros(grouped.shape, dtype=own_lse.dtype, device=q.device)
            lse = torch.full(grouped.shape[:-1], -torch.inf, dtype=own_lse.dtype, device=q.device)
        there = lse[:, :, part.queries]
        weight = torch.sigmoid(own_lse - there)  # exp(own − log(exp(own) + exp(there)))
        out[:, :, part.queries].lerp_(own.to(out.dtype), weight[..., None])
        torch.logaddexp(there, own_lse, out=there)
    if out is None:
        raise ValueError("A row without nodes attends to nothing.")
    return out.permute(2, 1, 0, 3).flatten(1)[None]


def _kernel(
    q: Float[Tensor, "group kv_head query d_head"], k: Tensor, v: Tensor, part: Part, scale: float
) -> tuple[Tensor, Float[Tensor, "group kv_head query"]]:
    """Attention over one part's keys, and the log of the sum of its exponentials, at least in float32: the CPU's."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, part.causal, attn_mask=part.mask, scale=scale
    )
    return out, lse


def _plain(
    q: Float[Tensor, "group kv_head query d_head"], k: Tensor, v: Tensor, part: Part, scale: float
) -> tuple[Tensor, Float[Tensor, "group kv_head query"]]:
    """The same by matrix products, on any device."""
    scores = (q @ k.transpose(-2, -1)) * scale
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if part.causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(ahead, -torch.inf)
    elif part.mask is not None:
        scores += part.mask
    lse = torch.logsumexp(scores, dim=-1)
    return torch.exp(scores - lse[..., None]).to(v.dtype) @ v, lse
