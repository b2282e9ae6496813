"""Direct effects (path patching to the logits): only what a head or MLP adds to the residual stream is changed.

    Δ(h)     = head h's output at the action positions with the donor's z, minus that with the recipient's
    logits'  = W_U [ N(r) + N_frozen(Δ) ]        r: the recipient's final residual stream; N_frozen: the final norm, its
                                                 scale held at the recipient's (`mech.patching.frozen_norm`); soft-cap
                                                 as in the model
    direct   = log p'(a) − log p(a)              later layers do not react to the change
    total    = the same with everything downstream recomputed (`mech.patching.patch`)
    indirect = total − direct                    the reaction of later heads, MLPs and the norm's scale

Values are changes of the recipient's log-probability, in nats; a noising effect is minus that. No block is run: one
unembedding of all heads' copies of the action positions. The slow path (`engine.slow`) is one hooked full forward a
head that freezes z and MLP output everywhere else. Path patching: Wang et al. 2022 (arXiv:2211.00593), Goldowsky-Dill
et al. 2023 (arXiv:2304.05969).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

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
from mech.interventions.hooks import hooked
from mech.interventions.intervention import Edit, Intervention
from mech.models.model import Model
from mech.patching.frozen_norm import attention_norm, final_norm, head_outputs, hold_scale, require_additive
from mech.patching.patch import all_heads, final_resid, layer_names, patch_heads, patch_layers, require_pair

_Key = TypeVar("_Key", Head, int)
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
    """The change of the recipient's log p, token by token, when the direct output of one head is the donor's.

    Both runs kept `direct_names(model)`. Exactly 0 for a head whose z equals the donor's bit for bit; heads None: all.

    Raises:
        InputError: the actions differ, the recipient is not clean, a head does not exist, or a block of the model adds
            more to the residual stream than the outputs of its heads and MLP.
    """
    model = engine.model
    chosen = (all_heads(model) if heads is None else heads).check(model.n_layers, model.n_heads)
    z, theirs = _checked_z(model, recipient, donor), stacked(donor, model, "attn.hook_z")
    swaps = {
        head: Edit("z", head.layer, head.head, "candidate", theirs[head.layer, :, head.head].clone())
        for head in chosen
        if not torch.equal(z[head.layer, :, head.head], theirs[head.layer, :, head.head])
    }
    outputs = (
        head_outputs(model, layer, own, z[layer], theirs[layer])
        for layer, own in HeadSet(swaps).per_layer().items()
    )
    return _direct(engine, recipient, z, chosen, swaps, outputs)


@torch.no_grad()
def direct_changes_mlp(
    engine: Engine, recipient: Run, donor: Run, layers: Sequence[int] | None = None
) -> dict[int, TokenChanges]:
    """As `direct_changes`, when the output of one layer's MLP is the donor's."""
    model = engine.model
    chosen = list(range(model.n_layers)) if layers is None else list(layers)
    for layer in chosen:
        if not 0 <= layer < model.n_layers:
            raise InputError(f"There is no layer {layer}: the model has layers 0-{model.n_layers - 1}.")
    z = _checked_z(model, recipient, donor)
    own, theirs = (by_layer(run, model, "hook_mlp_out") for run in (recipient, donor))
    swaps = {
        layer: Edit("mlp_out", layer, None, "candidate", theirs[layer])
        for layer in chosen
        if not torch.equal(own[layer], theirs[layer])
    }
    outputs = ((theirs[layer] - own[layer])[None] for layer in swaps)
    return _direct(engine, recipient, z, chosen, swaps, outputs)


def head_parts(engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None) -> dict[Head, Parts]:
    """Total and direct effect of each head; arguments and errors as `direct_changes`."""
    direct = direct_changes(engine, recipient, donor, heads)
    total = patch_heads(engine, recipient, donor, heads)
    return {head: Parts(_change(recipient, total[head]), direct[head]) for head in direct}


def mlp_parts(
    engine: Engine, recipient: Run, donor: Run, layers: Sequence[int] | None = None
) -> dict[int, Parts]:
    """Total and direct effect of each layer's MLP; arguments and errors as `direct_changes_mlp`."""
    direct = direct_changes_mlp(engine, recipient, donor, layers)
    total = patch_layers(engine, recipient, donor, "mlp_out", layers)
    return {layer: Parts(_change(recipient, total[layer]), direct[layer]) for layer in direct}


def _change(recipient: Run, score: Score) -> TokenChanges:
    return score.logprobs - recipient.score.logprobs


def _checked_z(model: Model, recipient: Run, donor: Run) -> Float[Tensor, "layer pos head d_head"]:
    """The recipient's z; InputError unless both runs and the model allow the measurement."""
    model.require_eval_mode()
    require_pair(recipient, donor)
    z, mlp = stacked(recipient, model, "attn.hook_z"), by_layer(recipient, model, "hook_mlp_out")
    resid = [*by_layer(recipient, model, "hook_resid_pre"), final_resid(model, recipient)]
    require_additive(model, resid, z, mlp)
    return z


def _direct(
    engine: Engine,
    recipient: Run,
    z: Tensor,
    chosen: Iterable[_Key],
    swaps: Mapping[_Key, Edit],
    outputs: Iterable[Tensor],
) -> dict[_Key, TokenChanges]:
    """Direct effects of what changes (`swaps`, or `outputs` in the same order, [copies, pos, d_model]); else 0."""
    if engine.slow:
        found = _slowly(engine, recipient, z, list(swaps.values()))
    else:
        found = _read(engine.model, recipient, outputs)
    effects = {key: np.zeros(len(recipient.query.action)) for key in chosen}
    return effects | {key: _change(recipient, score) for key, score in zip(swaps, found, strict=True)}


def _read(model: Model, recipient: Run, outputs: Iterable[Tensor]) -> list[Score]:
    """Scores of the recipient's action for changes [copies, pos, d_model] of its final residual stream, in order."""
    norm = final_norm(model, final_resid(model, recipient))
    action = recipient.query.action
    tokens = torch.tensor(action, device=model.device)
    scores = []
    for part in outputs:
        for chunk in part.split(max(1, UNEMBED_ROWS // len(action))):
            logits = read_out(model, (norm.out + norm.change(chunk)).flatten(0, 1))
            values, best = token_logprobs(logits, tokens.repeat(len(chunk)))
            rows = zip(values.reshape(len(chunk), -1), best.reshape(len(chunk), -1), strict=True)
            scores += [Score(one.double().cpu().numpy(), flags.cpu().numpy()) for one, flags in rows]
    return scores


def _slowly(engine: Engine, recipient: Run, z: Tensor, swaps: Sequence[Edit]) -> list[Score]:
    """One full forward a swap, in which all other z, MLP outputs and norm scales of the action positions are held."""
    model = engine.model
    rows = torch.tensor(list(recipient.query.candidate), device=model.device)
    held = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in all_heads(model)]
    for layer, value in enumerate(by_layer(recipient, model, "hook_mlp_out")):
        held.append(Edit("mlp_out", layer, None, "candidate", value))
    hooks = hold_scale(model, "ln_final", final_norm(model, final_resid(model, recipient)).scale, rows)
    for layer in range(model.n_layers):
        norm = attention_norm(model, layer, z[layer])
        if norm is not None:
            hooks += hold_scale(model, f"blocks.{layer}.ln1_post", norm.scale, rows)
    scores = []
    for swap in swaps:
        target = (swap.site, swap.layer, swap.head)
        others = tuple(edit for edit in held if (edit.site, edit.layer, edit.head) != target)
        query = replace(recipient.query, intervention=Intervention((*others, swap)))
        with hooked(model, hooks, fires=1):
            scores += reference.score(model, [query])
        engine.forwards.ran += 1
    return scores
