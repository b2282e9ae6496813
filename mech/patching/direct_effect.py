"""Direct effects (path patching to the logits): only what a head or MLP writes itself reaches the logits changed.

    Δ(h)     = what head h writes at the action positions with the donor's z, less with the recipient's
    logits'  = W_U [ N(r) + N_frozen(Δ) ]        r: the recipient's final residual stream; N_frozen: the final norm, its
                                                 scale held at the recipient's (`mech.patching.frozen_norm`); soft-cap
                                                 as in the model
    direct   = log p'(a) − log p(a)              later layers do not react to the change
    total    = the same with everything downstream recomputed (`mech.patching.patch`, `mech.patching.patch`)
    indirect = total − direct                    what later heads and MLPs make of the change, the norm's scale included

Values are changes of the recipient's log-probability, in nats: denoising effects as they stand, noising effects with
their sign turned. No block is run: one unembedding of all heads' copies of the action positions. The slow path
(`engine.slow`) is one hooked full forward a head that freezes z and MLP output everywhere else. Path patching: Wang et
al. 2022 (arXiv:2211.00593), Goldowsky-Dill et al. 2023 (arXiv:2304.05969).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine import reference
from mech.engine.blocks import read_out
from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.packed import UNEMBED_ROWS
from mech.engine.queries import Score, token_logprobs
from mech.engine.sweep import by_layer, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.hooks import HookFunction, hooked
from mech.interventions.intervention import Edit, Intervention
from mech.models.model import Model
from mech.patching.frozen_norm import (
    FrozenNorm,
    attention_norm,
    final_norm,
    head_outputs,
    hold_scale,
    require_additive,
)
from mech.patching.patch import all_heads, final_resid, layer_names, patch_heads, patch_layers, require_pair

TokenChanges = Float[np.ndarray, " token"]
"""Changes of the log-probability (nats) of each token of the action."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A patch's total and direct effect, both changes of the recipient's log-probability in nats, token by token."""

    total_by_token: TokenChanges
    direct_by_token: TokenChanges

    @property
    def total(self) -> float:
        """Of the whole action."""
        return float(np.sum(self.total_by_token))

    @property
    def direct(self) -> float:
        """Of the whole action."""
        return float(np.sum(self.direct_by_token))

    @property
    def indirect(self) -> float:
        """What goes through later heads and MLPs."""
        return self.total - self.direct


def direct_names(model: Model) -> list[str]:
    """The activations that both sides must have kept."""
    return [*everything_names(model, "attn.hook_z"), *layer_names(model)]


@torch.no_grad()
def direct_changes(
    engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None
) -> dict[Head, TokenChanges]:
    """The change of the recipient's log p, token by token, when only what one head writes comes from the donor.

    Args:
        engine: its model unembeds; `engine.slow` takes one hooked full forward a head instead.
        recipient: a clean run that kept `direct_names(model)`.
        donor: a run of the same action that kept them too.
        heads: which; None means all.

    Returns:
        Head → direct effect on each token; exactly 0 for a head whose z is bit for bit the donor's.

    Raises:
        InputError: the actions differ, the recipient is not clean, a head does not exist, or the model's blocks do more
            than add what heads and MLPs write.
    """
    model = engine.model
    chosen = (heads or all_heads(model)).check(model.n_layers, model.n_heads)
    z = _checked(model, recipient, donor)
    theirs = stacked(donor, model, "attn.hook_z")
    changed = HeadSet(h for h in chosen if not torch.equal(z[h.layer, :, h.head], theirs[h.layer, :, h.head]))
    effects = {head: np.zeros(len(recipient.query.action)) for head in chosen}
    if engine.slow:
        clean, hooks = _everything_held(model, recipient, z)
        swaps = [Edit("z", h.layer, h.head, "candidate", theirs[h.layer, :, h.head].clone()) for h in changed]
        found = _slowly(engine, recipient, clean, swaps, hooks)
    else:
        parts = [
            head_outputs(model, layer, own, z[layer], theirs[layer])
            for layer, own in changed.per_layer().items()
        ]
        found = _read(model, recipient, final_norm(model, final_resid(model, recipient)), parts)
    effects.update(zip(changed, _changes(recipient, found), strict=True))
    return effects


@torch.no_grad()
def direct_changes_mlp(
    engine: Engine, recipient: Run, donor: Run, layers: Sequence[int] | None = None
) -> dict[int, TokenChanges]:
    """The change of the recipient's log p, token by token, when only what one MLP writes comes from the donor."""
    model = engine.model
    chosen = list(range(model.n_layers)) if layers is None else list(layers)
    for layer in chosen:
        if not 0 <= layer < model.n_layers:
            raise InputError(f"There is no layer {layer}: the model has layers 0-{model.n_layers - 1}.")
    z = _checked(model, recipient, donor)
    own, theirs = (by_layer(run, model, "hook_mlp_out") for run in (recipient, donor))
    changed = [layer for layer in chosen if not torch.equal(own[layer], theirs[layer])]
    effects = {layer: np.zeros(len(recipient.query.action)) for layer in chosen}
    if engine.slow:
        clean, hooks = _everything_held(model, recipient, z)
        swaps = [Edit("mlp_out", layer, None, "candidate", theirs[layer]) for layer in changed]
        found = _slowly(engine, recipient, clean, swaps, hooks)
    else:
        parts = [(theirs[layer] - own[layer])[None] for layer in changed]
        found = _read(model, recipient, final_norm(model, final_resid(model, recipient)), parts)
    effects.update(zip(changed, _changes(recipient, found), strict=True))
    return effects


def direct_effects(
    engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None
) -> dict[Head, float]:
    """`direct_changes` summed over the action's tokens: differences first, so that no effect drowns in log p."""
    return {head: float(np.sum(one)) for head, one in direct_changes(engine, recipient, donor, heads).items()}


def head_parts(engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None) -> dict[Head, Parts]:
    """Total and direct effect of each head; arguments and errors as `direct_changes`."""
    direct = direct_changes(engine, recipient, donor, heads)
    total = patch_heads(engine, recipient, donor, heads)
    own = recipient.score.logprobs
    return {head: Parts(total[head].logprobs - own, direct[head]) for head in direct}


def mlp_parts(
    engine: Engine, recipient: Run, donor: Run, layers: Sequence[int] | None = None
) -> dict[int, Parts]:
    """Total and direct effect of each layer's MLP; arguments and errors as `direct_changes_mlp`."""
    direct = direct_changes_mlp(engine, recipient, donor, layers)
    total = patch_layers(engine, recipient, donor, "mlp_out", layers)
    own = recipient.score.logprobs
    return {layer: Parts(total[layer].logprobs - own, direct[layer]) for layer in direct}


def _checked(model: Model, recipient: Run, donor: Run) -> Float[Tensor, "layer pos head d_head"]:
    """The recipient's z, after both runs and the model have been found fit."""
    model.require_eval_mode()
    require_pair(recipient, donor)
    z, mlp = stacked(recipient, model, "attn.hook_z"), by_layer(recipient, model, "hook_mlp_out")
    resid = [*by_layer(recipient, model, "hook_resid_pre"), final_resid(model, recipient)]
    require_additive(model, resid, z, mlp)
    return z


def _read(model: Model, recipient: Run, norm: FrozenNorm, parts: Iterable[Tensor]) -> list[Score]:
    """Scores of the recipient's action for changes [copies, pos, d_model] of its final residual stream, in order."""
    action = recipient.query.action
    tokens = torch.tensor(action, device=model.device)
    step = max(1, UNEMBED_ROWS // len(action))
    scores = []
    for part in parts:
        for chunk in part.split(step):
            logits = read_out(model, (norm.out + norm.change(chunk)).flatten(0, 1))
            values, best = token_logprobs(logits, tokens.repeat(len(chunk)))
            rows = zip(values.reshape(len(chunk), -1), best.reshape(len(chunk), -1), strict=True)
            scores += [Score(one.double().cpu().numpy(), flags.cpu().numpy()) for one, flags in rows]
    return scores


def _changes(recipient: Run, scores: Sequence[Score]) -> list[TokenChanges]:
    return [score.logprobs - recipient.score.logprobs for score in scores]


def _everything_held(
    model: Model, recipient: Run, z: Tensor
) -> tuple[list[Edit], list[tuple[str, HookFunction]]]:
    """What the slow path freezes at the action positions: all z and MLP outputs, and the norms behind them."""
    rows = torch.tensor(list(recipient.query.candidate), device=model.device)
    edits = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in all_heads(model)]
    for layer, value in enumerate(by_layer(recipient, model, "hook_mlp_out")):
        edits.append(Edit("mlp_out", layer, None, "candidate", value))
    hooks = hold_scale(model, "ln_final", final_norm(model, final_resid(model, recipient)).scale, rows)
    for layer in range(model.n_layers):
        norm = attention_norm(model, layer, z[layer])
        if norm is not None:
            hooks += hold_scale(model, f"blocks.{layer}.ln1_post", norm.scale, rows)
    return edits, hooks


def _slowly(
    engine: Engine,
    recipient: Run,
    clean: Sequence[Edit],
    swaps: Sequence[Edit],
    hooks: Sequence[tuple[str, HookFunction]],
) -> list[Score]:
    """One full forward a swap: everything as `clean` holds it, but for the one activation that the swap edits."""
    scores = []
    for swap in swaps:
        target = (swap.site, swap.layer, swap.head)
        others = tuple(edit for edit in clean if (edit.site, edit.layer, edit.head) != target)
        query = replace(recipient.query, intervention=Intervention((*others, swap)))
        with hooked(engine.model, hooks, fires=1):
            scores += reference.score(engine.model, [query])
        engine.forwards.ran += 1
    return scores
