"""Stock bridge blocks, called one by one on a packed row, with every argument that the bridge's own forward passes.

The bridge's own forward runs all blocks from the embedding on (`start_at_layer` saves nothing); a sweep needs to
enter at a layer. What a block is passed is read off the model, never off its name: a rotary module gives
position embeddings, `layer_types` and `sliding_window` give the masks, the block's signature names its cache argument.
Whether that is all the architecture needs is checked at load (packed row against full forward).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mech.errors import InputError
from mech.models.model import Model

CACHE_ARGUMENTS = ("past_key_values", "layer_past")


@runtime_checkable
class KeysAndValues(Protocol):
    """What a block takes for its key/value cache."""

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All keys and values that the row sees, given its own, [1, n_kv_heads, node, d_head]."""


@dataclass
class RowCache:
    """What a block takes for its key/value cache: hands out prefix cache + row, keeps the row's own keys and values.

    The prefix cache is never written (a transformers cache object is mutated by every forward: traps, 11).
    """

    prefix_keys: Sequence[Tensor]
    prefix_values: Sequence[Tensor]
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by the attention bridge with the row's rotated keys and its values, [1, n_kv_heads, node, d_head]."""
        self.keys[layer], self.values[layer] = keys, values
        if not self.prefix_keys:
            return keys, values
        return (
            torch.cat([self.prefix_keys[layer], keys], dim=-2),
            torch.cat([self.prefix_values[layer], values], dim=-2),
        )


@dataclass(frozen=True)
class Layout:
    """Where each node of a row stands and what it sees; the arguments of every block follow from it."""

    depths: Int[Tensor, " node"]
    mask: Float[Tensor, "1 1 node seen"]
    sliding_mask: Float[Tensor, "1 1 node seen"] | None


def layout(model: Model, depths: Tensor, ancestry: Tensor, prefix_length: int) -> Layout:
    """Additive masks (0 or the dtype's minimum) over prefix + row; the sliding one only where such layers exist.

    Args:
        model: for its dtype, device and sliding window.
        depths: [node], the position of each node in its own sequence.
        ancestry: [node, node] bool, true where the column is the row's node or its ancestor.
        prefix_length: number of prefix cache tokens, all of which every node sees.

    Raises:
        InputError: a node stands further back than the model's sequences may reach.
    """
    if model.n_positions is not None:
        model.require_room(int(depths.max()) + 1)
    prefix_cache = torch.ones(len(depths), prefix_length, dtype=torch.bool, device=ancestry.device)
    seen = torch.cat([prefix_cache, ancestry], dim=1)
    hidden = torch.finfo(model.dtype).min

    def additive(visible: Tensor) -> Tensor:
        return torch.zeros(visible.shape, dtype=model.dtype, device=visible.device).masked_fill(
            ~visible, hidden
        )[None, None]

    window = sliding_window(model)
    sliding = None
    if window is not None:
        places = torch.cat([torch.arange(prefix_length, device=depths.device), depths])
        sliding = additive(seen & (depths[:, None] - places[None, :] < window))
    return Layout(depths, additive(seen), sliding)


def sliding_window(model: Model) -> int | None:
    """How many positions, itself included, a position of a sliding-attention layer sees; None without such layers."""
    window = getattr(model.hf_config, "sliding_window", None)
    return int(window) if window and any(_slides(model, layer) for layer in range(model.n_layers)) else None


def _slides(model: Model, layer: int) -> bool:
    kinds = getattr(model.hf_config, "layer_types", None)
    if kinds is None:
        return getattr(model.hf_config, "sliding_window", None) is not None
    if kinds[layer] not in ("full_attention", "sliding_attention"):
        raise InputError(
            f"Layer {layer} is of kind '{kinds[layer]}', which this package cannot patch exactly."
        )
    return bool(kinds[layer] == "sliding_attention")


def embed(
    model: Model, tokens: Int[Tensor, " node"], depths: Int[Tensor, " node"]
) -> Float[Tensor, "1 node d_model"]:
    """The residual stream before block 0: token embedding, plus the learned position where the model has one."""
    bridge = model.bridge
    resid = bridge.embed(tokens[None])
    if "pos_embed" in bridge.real_components:
        resid = resid + bridge.pos_embed(depths[None])
    return resid


def block_arguments(model: Model, where: Layout, cache: KeysAndValues) -> list[dict[str, Any]]:
    """The keyword arguments of each block, layer by layer."""
    bridge, ids = model.bridge, where.depths[None]
    cache_name = cache_argument(model)  # read off a signature: once a row, not once a layer
    rotary: dict[str | None, Any] = {}
    arguments = []
    for layer in range(model.n_layers):
        slides = where.sliding_mask is not None and _slides(model, layer)
        named: dict[str, Any] = {
            "attention_mask": where.sliding_mask if slides else where.mask,
            "position_ids": ids,
            "use_cache": True,
            cache_name: cache,
        }
        if "rotary_emb" in bridge.real_components:
            kind = _rotary_kind(model, layer)
            if kind not in rotary:
                like = torch.empty(0, dtype=model.dtype, device=model.device)
                rotary[kind] = bridge.rotary_emb(like, ids, *([kind] if kind else []))
            named["position_embeddings"] = rotary[kind]
        arguments.append(named)
    return arguments


def _rotary_kind(model: Model, layer: int) -> str | None:
    """The layer type that the rotary module asks for (Gemma 3 has two rotary bases), or None where it asks for none."""
    module = model.bridge.rotary_emb.original_component
    if "layer_type" not in inspect.signature(module.forward).parameters:
        return None
    return str(model.hf_config.layer_types[layer])


def cache_argument(model: Model) -> str:
    """The name under which the model's blocks take a key/value cache; InputError when it is none we know."""
    block = model.bridge.blocks[0].original_component
    names = inspect.signature(block.forward).parameters
    for name in CACHE_ARGUMENTS:
        if name in names:
            return name
    raise InputError(
        f"The blocks of {model.identity.architecture} take no key/value cache under a known name "
        f"({' or '.join(CACHE_ARGUMENTS)}): this package cannot score it exactly."
    )


def run_block(
    model: Model, layer: int, resid: Tensor, arguments: dict[str, Any]
) -> Float[Tensor, "1 node d_model"]:
    """One stock block, hooks and all."""
    output = model.bridge.blocks[layer](resid, **arguments)
    return output[0] if isinstance(output, tuple) else output


def unembed(model: Model, resid: Float[Tensor, "1 node d_model"]) -> Float[Tensor, "node d_vocab"]:
    """Final norm and unembedding of chosen nodes, with the model's logit soft-cap where it has one."""
    return read_out(model, model.bridge.ln_final(resid)[0])


def read_out(model: Model, normed: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
    """Logits of what the final norm gave, soft-capped where the model does so."""
    logits: Tensor = model.bridge.unembed(normed[None])[0]
    cap = getattr(model.hf_config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap
