"""Keeping named activations of chosen positions, shaped as TransformerLens shapes them but without the batch axis.

hook                                  shape here                        (n positions of one sequence)
hook_z, hook_q, hook_rot_q            [n, n_heads, d_head]
hook_k, hook_v, hook_rot_k            [n, n_kv_heads, d_head]           grouped-query: fewer heads than z
hook_pattern, hook_attn_scores        [n_heads, n, seq]                 columns are the sequence's own positions
hook_resid_pre / _mid / _post,        [n, d_model]
hook_attn_out, hook_mlp_out, others   [n, width]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import einops
import torch
from torch import Tensor

from mech.errors import InputError
from mech.interventions.hooks import HookFunction, hook_point
from mech.models.model import Model

BY_HEAD = ("hook_z", "hook_q")
BY_KV_HEAD = ("hook_k", "hook_v")
BY_SOURCE = ("hook_pattern", "hook_attn_scores")
ROTATED = ("hook_rot_q", "hook_rot_k")


def capture_hooks(
    model: Model, names: Sequence[str], keep: Callable[[str, Tensor], None]
) -> list[tuple[str, HookFunction]]:
    """Read-only hooks that hand (name, activation) to `keep`; raises InputError for an unknown name."""

    def reader(name: str) -> HookFunction:
        def function(activation: Tensor, hook: Any) -> None:
            keep(name, activation.detach())

        return function

    known = model.bridge.hook_dict if names else {}
    for name in names:
        hook_point(known, name)
    return [(name, reader(name)) for name in names]


def shape_rows(
    model: Model,
    name: str,
    activation: Tensor,
    rows: Sequence[int],
    columns: Sequence[Sequence[int]],
    seq: int,
) -> Tensor:
    """The activation of one sequence's positions, in the module's documented shape, copied out of the packed row.

    Args:
        model: for the head counts.
        name: the TransformerLens name the activation was kept under.
        activation: as it flowed, batch axis first.
        rows: the packed row's node of each wanted position.
        columns: for patterns, the columns (prefix cache + row) each wanted position may see, in sequence order.
        seq: the sequence's length, the last axis of a pattern.
    """
    kind = name.rsplit(".", 1)[-1]
    index = torch.as_tensor(list(rows), dtype=torch.long, device=activation.device)
    if kind in BY_SOURCE:
        picked = activation[0][:, index]
        fill = 0.0 if kind == "hook_pattern" else torch.finfo(activation.dtype).min
        out = torch.full((*picked.shape[:2], seq), fill, dtype=activation.dtype, device=activation.device)
        for place, seen in enumerate(columns):
            out[:, place, : len(seen)] = picked[
                :, place, torch.as_tensor(list(seen), device=activation.device)
            ]
        return out
    if kind in ROTATED:
        return activation[0][:, index].transpose(0, 1).contiguous()
    if activation.ndim != 3:
        raise InputError(
            f"'{name}' carries {tuple(activation.shape)}; only [batch, pos, width] activations can be kept."
        )
    flat = activation[0][index]
    if kind in BY_HEAD:
        return einops.rearrange(flat, "pos (head d_head) -> pos head d_head", head=model.n_heads)
    if kind in BY_KV_HEAD:
        return einops.rearrange(flat, "pos (head d_head) -> pos head d_head", head=model.n_kv_heads)
    return flat.clone()


def everything_names(model: Model, *kinds: str) -> list[str]:
    """Full hook names of these kinds in every layer: `everything_names(m, "attn.hook_z")`."""
    return [f"blocks.{layer}.{kind}" for layer in range(model.n_layers) for kind in kinds]
