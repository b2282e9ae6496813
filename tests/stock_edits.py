"""Edits and cuts in plain transformers, by forward hooks on its own modules: no code of ours or of TransformerLens.

The families name and cut their projections differently; what is a site here is read off their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mech.engine.queries import Query
from mech.interventions.intervention import Edit, Knockout

Hook = Callable[..., Any]


def stock_logprobs(family: str, network: Any, query: Query) -> np.ndarray:
    """The log-probabilities of the query's action under its intervention, [n action tokens]."""
    with torch.no_grad(), _edited(family, network, query):
        logits = network(torch.tensor([query.tokens]), use_cache=False).logits[0]
    at = torch.tensor(list(query.candidate))
    return logits[at].log_softmax(-1)[torch.arange(len(at)), torch.tensor(query.action)].numpy()


@contextmanager
def _edited(family: str, network: Any, query: Query) -> Iterator[None]:
    handles = []
    for edit in query.intervention.edits:
        rows = torch.tensor(list(query.positions(edit)))
        if isinstance(edit, Knockout):
            module = _attention(_layer(family, network, edit.layer))
            hook = _masking(edit, rows, network.config.num_attention_heads)
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        elif edit.site in ("z", "resid_pre"):
            module = _module(family, network, edit)
            handles.append(module.register_forward_pre_hook(_before(network, edit, rows)))
        else:
            module = _module(family, network, edit)
            handles.append(module.register_forward_hook(_behind(family, network, edit, rows)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer(family: str, network: Any, layer: int) -> Any:
    layers = {"gpt2": lambda: network.transformer.h, "gpt_neox": lambda: network.gpt_neox.layers}
    return layers.get(family, lambda: network.model.layers)()[layer]


def _attention(layer: Any) -> Any:
    named = dict(layer.named_children())
    return next(named[name] for name in ("self_attn", "attention", "attn") if name in named)


def _module(family: str, network: Any, edit: Edit) -> Any:
    """The module whose output (input, for z and resid_pre) is the site."""
    layer = _layer(family, network, edit.layer)
    attention = _attention(layer)
    if edit.site in ("resid_pre", "resid_post"):
        return layer
    if edit.site == "attn_out":
        return layer.post_attention_layernorm if family == "gemma3" else attention
    if edit.site == "mlp_out":
        return layer.post_feedforward_layernorm if family == "gemma3" else layer.mlp
    if family == "gpt2":
        return attention.c_proj if edit.site == "z" else attention.c_attn
    if family == "gpt_neox":
        return attention.dense if edit.site == "z" else attention.query_key_value
    return getattr(attention, "o_proj" if edit.site == "z" else f"{edit.site}_proj")


def _columns(family: str, network: Any, edit: Edit) -> slice:
    """The head's columns in what that module carries."""
    if edit.head is None:
        return slice(None)
    config = network.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    start = edit.head * size
    part = ("q", "k", "v").index(edit.site) if edit.site != "z" else 0
    if family == "gpt2":  # all queries, then all keys, then all values
        start += part * config.hidden_size
    if family == "gpt_neox" and edit.site != "z":  # head by head, its query, key and value
        start = (3 * edit.head + part) * size
    return slice(start, start + size)


def _changed(activation: Tensor, edit: Edit, rows: Tensor, columns: slice) -> Tensor:
    out = activation.clone()
    out[0, rows, columns] = edit.alpha * out[0, rows, columns] if edit.value is None else edit.value
    return out


def _before(network: Any, edit: Edit, rows: Tensor) -> Hook:
    def hook(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return _changed(inputs[0], edit, rows, _columns("", network, edit)), *inputs[1:]

    return hook


def _behind(family: str, network: Any, edit: Edit, rows: Tensor) -> Hook:
    def hook(module: Any, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return _changed(output[0], edit, rows, slice(None)), *output[1:]
        return _changed(output, edit, rows, _columns(family, network, edit))

    return hook


def _masking(cut: Knockout, rows: Tensor, n_heads: int) -> Hook:
    """The layer's own mask, one copy a head, with the cut's edges hidden as the others are."""

    def hook(module: Any, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = named["attention_mask"].expand(-1, n_heads, -1, -1).clone()
        heads, sources = torch.tensor(cut.heads), torch.tensor(cut.sources)
        mask[0, heads[:, None, None], rows[:, None], sources] = torch.finfo(mask.dtype).min
        return inputs, {**named, "attention_mask": mask}

    return hook
