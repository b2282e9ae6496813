"""Exact activation patching by layer, at the action positions: the output of one MLP, or the residual stream itself.

    site        what is taken from the donor                      how it reads over layers
    mlp_out     what the MLP of layer l adds (`hook_mlp_out`)     which MLPs carry the difference
    resid_pre   all that stands before block l                    where it has arrived at the action positions
                                                                  (l = number of layers: before the final norm)

Effects as in `mech.patching.patch`. Two ends of resid_pre are identities: before block 0 stand the same tokens (no
effect at all, unless positions are learned, as in GPT-2), behind the last block stands the donor's whole answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Score
from mech.engine.sweep import by_layer, sweep
from mech.errors import InputError
from mech.interventions.hooks import hooked
from mech.interventions.intervention import Edit
from mech.models.model import Model
from mech.patching.patch import require_pair

LayerSite = Literal["mlp_out", "resid_pre"]
KINDS: dict[LayerSite, str] = {"mlp_out": "hook_mlp_out", "resid_pre": "hook_resid_pre"}


def layer_names(model: Model) -> list[str]:
    """The activations that both sides of a layer sweep must have kept."""
    return [*everything_names(model, "hook_resid_pre", "hook_mlp_out"), final_name(model)]


def final_name(model: Model) -> str:
    """The residual stream behind the last block, which the final norm reads."""
    return f"blocks.{model.n_layers - 1}.hook_resid_post"


def final_resid(model: Model, run: Run) -> Tensor:
    """The residual stream behind the last block at the action positions, [pos, d_model]; InputError if not kept."""
    name = final_name(model)
    if name not in run.cache:
        raise InputError(f"The run did not keep '{name}': run it with keep=layer_names(model).")
    return run.cache[name]


@torch.no_grad()
def patch_layers(
    engine: Engine,
    recipient: Run,
    donor: Run,
    site: LayerSite = "mlp_out",
    layers: Sequence[int] | None = None,
) -> dict[int, Score]:
    """Score the recipient's action with one layer's activation after another taken from the donor.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a layer instead of the sweep.
        recipient: a clean run that kept `layer_names(model)`.
        donor: a run of the same action that kept them too.
        site: "mlp_out" or "resid_pre".
        layers: which; None means all. For resid_pre, the number of layers stands for the final residual stream.

    Returns:
        Layer → score of the patched run, in the order asked. A layer whose activation is bit for bit the donor's needs
        no run: its score is the recipient's own.

    Raises:
        InputError: the actions differ, the recipient is not clean, an unknown site, a layer does not exist.
    """
    model = engine.model
    if site not in KINDS:
        raise InputError(f"'{site}' is not a site of a layer sweep: choose one of {', '.join(KINDS)}.")
    require_pair(recipient, donor)
    end = model.n_layers + (site == "resid_pre")
    chosen = list(range(end)) if layers is None else list(layers)
    for layer in chosen:
        if not 0 <= layer < end:
            raise InputError(f"There is no {site} of layer {layer}: choose from 0-{end - 1}.")
    theirs, own = (_values(model, run, site) for run in (donor, recipient))
    changed = [layer for layer in chosen if not torch.equal(theirs[layer], own[layer])]
    inside = [layer for layer in changed if layer < model.n_layers]
    edits = [Edit(site, layer, None, "candidate", theirs[layer]) for layer in inside]
    scores = {layer: recipient.score for layer in chosen}
    scores.update(zip(inside, sweep(engine, recipient, edits), strict=True))
    if model.n_layers in changed:
        scores[model.n_layers] = _behind_the_last(engine, recipient, theirs[model.n_layers])
    return scores


def _values(model: Model, run: Run, site: LayerSite) -> list[Tensor]:
    values = by_layer(run, model, KINDS[site])
    return [*values, final_resid(model, run)] if site == "resid_pre" else values


def _behind_the_last(engine: Engine, recipient: Run, resid: Tensor) -> Score:
    """The recipient's action read off another final residual stream [pos, d_model]: no block is left to run."""
    model, query = engine.model, recipient.query
    if not engine.slow:
        [score] = packed.read_scores(model, resid[None], [range(len(query.action))], [query.action])
        return score

    def replace(activation: Tensor, hook: Any) -> Tensor:
        edited = activation.clone()
        edited[0, query.candidate.start :] = resid
        return edited

    with hooked(model, [(final_name(model), replace)], fires=1):
        [score] = reference.score(model, [query])
    engine.forwards.ran += 1
    return score
