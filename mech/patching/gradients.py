"""Gradients of an action's summed log-probability with respect to z and MLP outputs at its action positions.

    g = ∂ logp(a) / ∂ x,    x: z or MLP output of one layer, [pos, width]

A hook adds a zero leaf to the activation, and the gradient is the leaf's: `retain_grad` on a hooked activation gives
none, since the hook returns another tensor. Action positions do not affect the prefix, so the packed functions run the
action nodes alone over the frozen prefix cache; `full_gradients` is the slow path, one plain forward and backward of
the whole sequence. Parameters take no gradients meanwhile, and get their `requires_grad` back also after an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.blocks import BlockArguments, RowCache, block_arguments, run_block, unembed
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query, token_logprobs
from mech.engine.sweep import copies
from mech.interventions.edits import hook_name
from mech.interventions.hooks import HookFunction, hooked
from mech.models.model import Model

GradientSite = Literal["z", "mlp_out"]
SITES: tuple[GradientSite, ...] = ("z", "mlp_out")


@dataclass(frozen=True, eq=False)
class Shifted:
    """The clean run with `shift` added to one activation, by which it is differentiated.

    Attributes:
        site: the activation.
        layer: its layer.
        shift: [pos, width], added at the action positions.
    """

    site: GradientSite
    layer: int
    shift: Float[Tensor, "pos width"]

    @property
    def hook_name(self) -> str:
        """The TransformerLens name of the activation."""
        return hook_name(self.site, self.layer)


def clean_gradients(
    model: Model,
    query: Query,
    prefix_cache: PrefixCache,
    resid_pre: Float[Tensor, "pos d_model"],
    sites: Sequence[GradientSite] = SITES,
    first: int = 0,
) -> dict[GradientSite, Float[Tensor, "layer pos width"]]:
    """Gradients by every layer's activation at the clean run: one forward and one backward of the action nodes.

    `prefix_cache` is of the query's prompt without the last token, `resid_pre` before block 0 at the action positions;
    `first` is the first token of the action that counts.

    Raises:
        FloatingPointError: a logit or a gradient is not finite.
        HookMissed: a hook did not fire exactly once.
    """
    _require(model, query, prefix_cache)
    n = len(query.action)
    rows = torch.arange(n, device=model.device)
    arguments = block_arguments(
        model, copies(model, query, 1), RowCache(prefix_cache.keys, prefix_cache.values)
    )
    layers = range(model.n_layers)
    with leaves_only(model):
        leaves = {hook_name(site, i): _leaf(model, n, site) for site in sites for i in layers}
        resid = resid_pre[None]
        with hooked(model, _adding(leaves, rows), fires=1):
            for layer in layers:
                resid = run_block(model, layer, resid, arguments[layer])
        found = dict(
            zip(leaves, _by_leaves(unembed(model, resid), query, list(leaves.values()), first), strict=True)
        )
    return {site: torch.stack([found[hook_name(site, i)] for i in layers]) for site in sites}


def shifted_gradients(
    model: Model,
    query: Query,
    prefix_cache: PrefixCache,
    resid_pre: Sequence[Float[Tensor, "pos d_model"]],
    runs: Sequence[Shifted],
    first: int = 0,
) -> list[Float[Tensor, "pos width"]]:
    """The gradient of each shifted run by its own shifted activation: all in one forward and one backward.

    Each run has a copy of the action nodes that enters at its own layer from the clean residual stream, as in a sweep.

    Arguments as `clean_gradients`, with `resid_pre` before every block, and the runs in layer order.

    Raises:
        ValueError: the runs are not in layer order.
        FloatingPointError: a logit or a gradient is not finite.
        HookMissed: a hook did not fire exactly once.
    """
    _require(model, query, prefix_cache)
    if [run.layer for run in runs] != sorted(run.layer for run in runs):
        raise ValueError("Shifted runs join their row in layer order.")
    n = len(query.action)
    cache = RowCache(prefix_cache.keys, prefix_cache.values)
    row = torch.empty(1, 0, model.d_model, dtype=model.dtype, device=model.device)
    arguments: list[BlockArguments] = []
    with leaves_only(model):
        leaves = [_leaf(model, n, run.site) for run in runs]
        for layer in range(runs[0].layer, model.n_layers):
            joining = [index for index, run in enumerate(runs) if run.layer == layer]
            if joining:
                row = torch.cat([row, resid_pre[layer].repeat(len(joining), 1)[None]], dim=1)
                arguments = block_arguments(model, copies(model, query, row.shape[1] // n), cache)
            hooks: list[tuple[str, HookFunction]] = []
            for index in joining:
                rows = torch.arange(index * n, (index + 1) * n, device=model.device)
                hooks += _adding({runs[index].hook_name: leaves[index] + runs[index].shift}, rows)
            with hooked(model, hooks, fires=1):
                row = run_block(model, layer, row, arguments[layer])
        return list(_by_leaves(unembed(model, row), query, leaves, first))


def full_gradients(
    model: Model, query: Query, runs: Sequence[Shifted], first: int = 0
) -> list[Float[Tensor, "pos width"]]:
    """The slow path: one plain forward and backward of the whole sequence with all these shifts together.

    One shift gives the gradient of `shifted_gradients`; zero shifts everywhere, those of `clean_gradients`.
    """
    model.require_eval_mode()
    model.require_room(len(query.tokens))
    rows = torch.tensor(list(query.candidate), device=model.device)
    with leaves_only(model):
        leaves = [_leaf(model, len(rows), run.site) for run in runs]
        hooks = [
            hook
            for run, leaf in zip(runs, leaves, strict=True)
            for hook in _adding({run.hook_name: leaf + run.shift}, rows)
        ]
        with hooked(model, hooks, fires=1):
            logits: Tensor = model.bridge(torch.tensor([query.tokens], device=model.device))[0]
        return list(_by_leaves(logits[query.candidate.start :], query, leaves, first))


def _require(model: Model, query: Query, prefix_cache: PrefixCache) -> None:
    model.require_eval_mode()
    prefix_cache.require(query.tokens, query.intervention.fingerprint)
    if len(prefix_cache) != query.candidate.start:
        raise ValueError("The prefix cache must be the query's prompt without its last token.")


@contextmanager
def leaves_only(model: Model) -> Iterator[None]:
    """Autograd on, for leaves alone: the graph stores nothing that only parameters' gradients need."""
    asked = [one for one in model.bridge.original_model.parameters() if one.requires_grad]
    try:
        for parameter in asked:
            parameter.requires_grad_(False)
        with torch.enable_grad():
            yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)


def _leaf(model: Model, rows: int, site: GradientSite) -> Tensor:
    width = model.n_heads * model.d_head if site == "z" else model.d_model
    return torch.zeros(rows, width, dtype=model.dtype, device=model.device, requires_grad=True)


def _adding(added: Mapping[str, Tensor], rows: Tensor) -> list[tuple[str, HookFunction]]:
    """Hooks that add to these rows of the named activations."""

    def adder(value: Tensor) -> HookFunction:
        def function(activation: Tensor, hook: Any) -> Tensor:
            return activation.index_add(1, rows, value[None])

        return function

    return [(name, adder(value)) for name, value in added.items()]


def _by_leaves(
    logits: Float[Tensor, "row d_vocab"], query: Query, leaves: Sequence[Tensor], first: int
) -> tuple[Tensor, ...]:
    """Gradients of log p of the action's tokens from `first` on, summed over copies, which are independent."""
    copies = len(logits) // len(query.action)
    targets = torch.tensor(query.action, device=logits.device).repeat(copies)
    logprobs, _ = token_logprobs(logits, targets)
    # autograd.grad raises for a leaf that the log-probability does not depend on.
    counted = logprobs.reshape(copies, len(query.action))[:, first:]
    gradients = torch.autograd.grad(counted.sum(), list(leaves))
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise FloatingPointError("A gradient is not finite: nothing of this run may be recorded.")
    return gradients
