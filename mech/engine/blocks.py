"""Stock bridge blocks, called one by one on a packed row, with every argument that the bridge's own forward passes.

The bridge's own forward runs all blocks from the embedding on (`start_at_layer` saves nothing); a sweep needs to
enter at a layer. What a block is passed is read off the model, never off its name: a rotary module gives
position embeddings, `layer_types` and `sliding_window` give the masks, the block's signature names its cache argument.
Whether that is all the architecture needs is checked at load (packed row against full forward).

Hooks that nobody listens to cost nothing: a layer whose scores and pattern have no hook takes fused attention
(`mech.engine.attention`), and a norm without hooks inside is not computed a second time for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge.generalized_components.normalization import NormalizationBridge

from mech.engine.attention import attend, fusible, listened, supports
from mech.engine.layout import Layout, slides
from mech.errors import InputError
from mech.models.model import Model

CACHE_ARGUMENTS = ("past_key_values", "layer_past")
ROOM = 256
"""Nodes by which the memory of a row that grows is enlarged at the least."""


@dataclass
class RowCache:
    """What a block takes for its key/value cache: hands out prefix cache + row, keeps the row's own keys and values.

    The prefix cache is never written (a transformers cache object is mutated by every forward: traps, 11).

    Attributes:
        prefix_keys, prefix_values: the prefix cache's, layer by layer; none without one.
        room: for a row of several forwards, the nodes to take memory for; None for a row of one.
        used: nodes of earlier forwards that count: those of the next are written after them.
        keys, values: layer → [1, n_kv_heads, node, d_head] of all nodes so far.
    """

    prefix_keys: Sequence[Tensor]
    prefix_values: Sequence[Tensor]
    room: int | None = None
    used: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    _memory: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by the stock attention with this forward's rotated keys and its values; gives all that it sees."""
        seen = self.write(keys, values, layer)
        if len(seen) == 1:
            return seen[0]
        (prefix_keys, prefix_values), (own_keys, own_values) = seen
        return torch.cat([prefix_keys, own_keys], dim=-2), torch.cat([prefix_values, own_values], dim=-2)

    def write(self, keys: Tensor, values: Tensor, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Keep this forward's [1, n_kv_heads, node, d_head]; the prefix cache's, if there is one, and the row's."""
        self.keys[layer], self.values[layer] = self._put("k", keys, layer), self._put("v", values, layer)
        own = (self.keys[layer], self.values[layer])
        return [(self.prefix_keys[layer], self.prefix_values[layer]), own] if self.prefix_keys else [own]

    def _put(self, which: str, new: Tensor, layer: int) -> Tensor:
        if self.room is None:
            return new
        end = self.used + new.shape[-2]
        memory = self._memory.get((which, layer))
        if memory is None or memory.shape[-2] < end:
            size = self.room if end <= self.room else end + ROOM
            grown = new.new_empty(*new.shape[:-2], size, new.shape[-1])
            if memory is not None:
                grown[:, :, : self.used] = memory[:, :, : self.used]
            self._memory[which, layer] = memory = grown
        memory[:, :, self.used : end] = new
        return memory[:, :, :end]


@dataclass(frozen=True)
class BlockArguments:
    """What one block is passed, besides the residual stream.

    Attributes:
        named: keyword arguments, without the mask.
        where: who sees what.
        slides: by its sliding window.
        cache: of keys and values.
        fused: the kind of attention is one that may be fused.
    """

    named: dict[str, Any]
    where: Layout
    slides: bool
    cache: RowCache
    fused: bool


def embed(
    model: Model, tokens: Int[Tensor, " node"], depths: Int[Tensor, " node"]
) -> Float[Tensor, "1 node d_model"]:
    """The residual stream before block 0: token embedding, plus the learned position where the model has one."""
    bridge = model.bridge
    resid = bridge.embed(tokens[None])
    if "pos_embed" in bridge.real_components:
        resid = resid + bridge.pos_embed(depths[None])
    return resid


def block_arguments(model: Model, where: Layout, cache: RowCache) -> list[BlockArguments]:
    """The arguments of each block, layer by layer."""
    bridge, ids = model.bridge, where.depths[None]
    cache_name = cache_argument(model)  # read off a signature: once a row, not once a layer
    rotary: dict[str | None, Any] = {}
    arguments = []
    for layer in range(model.n_layers):
        named: dict[str, Any] = {"position_ids": ids, "use_cache": True, cache_name: cache}
        if "rotary_emb" in bridge.real_components:
            kind = _rotary_kind(model, layer)
            if kind not in rotary:
                like = torch.empty(0, dtype=model.dtype, device=model.device)
                rotary[kind] = bridge.rotary_emb(like, ids, *([kind] if kind else []))
            named["position_embeddings"] = rotary[kind]
        sliding = where.window is not None and slides(model, layer)
        fused = supports(bridge.blocks[layer].attn)
        arguments.append(BlockArguments(named, where, sliding, cache, fused))
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
    model: Model, layer: int, resid: Tensor, arguments: BlockArguments
) -> Float[Tensor, "1 node d_model"]:
    """One stock block, hooks and all; its attention fused unless somebody listens to scores, pattern or gradients."""
    block, where = model.bridge.blocks[layer], arguments.where
    instead: list[tuple[Any, Callable[..., Any]]] = [(norm, _quiet(norm)) for norm in _quiet_norms(block)]
    mask = None
    if arguments.fused and fusible(block.attn):
        parts = where.sliding_parts if arguments.slides else where.parts

        def forward(*args: Tensor, **named: Any) -> Any:
            hidden = args[0] if args else named["hidden_states"]
            turns = named.get("position_embeddings")
            return attend(block.attn, hidden, turns, arguments.cache, layer, parts)

        instead.append((block.attn, forward))
    else:
        mask = where.sliding_mask if arguments.slides else where.mask
    with _forwards(instead):
        output = block(resid, attention_mask=mask, **arguments.named)
    return output[0] if isinstance(output, tuple) else output


def _quiet_norms(block: Any) -> list[NormalizationBridge]:
    """The block's norms whose inner values are computed for hooks alone, and listened to by none."""
    holders = (block, block.attn)
    norms = [
        one
        for holder in holders
        for one in holder.submodules.values()
        if isinstance(one, NormalizationBridge)
    ]
    return [
        norm
        for norm in norms
        if norm.use_native_layernorm_autograd
        and not any(map(listened, (norm.hook_scale, norm.hook_normalized)))
    ]


def _quiet(norm: NormalizationBridge) -> Callable[..., Tensor]:
    """A norm's forward without those values: the stock module between its own hooks."""
    inner: Any = norm.original_component

    def forward(hidden_states: Tensor, **_: Any) -> Tensor:
        hidden = norm.hook_in(hidden_states)
        output: Tensor = norm.hook_out(inner(hidden).to(hidden.dtype))
        return output

    return forward


@contextmanager
def _forwards(instead: Sequence[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Other forwards for these modules while the body runs; hooks on the modules fire as ever."""
    try:
        for module, forward in instead:
            object.__setattr__(module, "forward", forward)  # a bridge's own would set it on what it wraps
        yield
    finally:
        for module, _ in instead:
            vars(module).pop("forward", None)


def unembed(model: Model, resid: Float[Tensor, "1 node d_model"]) -> Float[Tensor, "node d_vocab"]:
    """Final norm and unembedding of chosen nodes, with the model's logit soft-cap where it has one."""
    return read_out(model, model.bridge.ln_final(resid)[0])


def read_out(model: Model, normed: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
    """Logits of what the final norm gave, soft-capped where the model does so."""
    return soft_capped(model, model.bridge.unembed(normed[None])[0])


def soft_capped(model: Model, logits: Tensor) -> Tensor:
    """Logits as the model gives them, where it caps them."""
    cap = getattr(model.hf_config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap
