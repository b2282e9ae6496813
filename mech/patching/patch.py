"""Exact activation patching of heads at the action positions: single heads in one sweep, joint sets in one row.

    noising   (necessity):   run neut, z of head h from pre;   effect = logp(neut) − logp(patched)
    denoising (sufficiency): run pre,  z of head h from neut;  effect = logp(patched) − logp(pre)

The same action ends both runs, so its action positions correspond one to one and no corrupted prompt of equal length
is needed. Terms as in Heimersheim & Nanda 2024 (arXiv:2404.15255).

How a sweep is one forward and not one a head: `mech.engine.sweep`, which does the same for single edits of any site;
`mech.patching.layers` takes MLP outputs and the residual stream through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mech.engine import reference
from mech.engine.capture import capture_hooks, everything_names, shape_rows
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.engine.sweep import by_layer, require_clean, score_interventions, stacked, sweep
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.hooks import EditLocation, edit_hooks, hooked
from mech.interventions.intervention import Edit, Intervention, replace_heads
from mech.models.model import Model


def sweep_names(model: Model) -> list[str]:
    """The activations that both sides of a sweep must have kept."""
    return everything_names(model, "hook_resid_pre", "attn.hook_z")


def all_heads(model: Model) -> HeadSet:
    """Every query head of the model."""
    return HeadSet(Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads))


@torch.no_grad()
def patch_heads(
    engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None
) -> dict[Head, Score]:
    """Score the recipient's action with z of one head after another taken from the donor.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a head instead of the sweep.
        recipient: a clean run that kept `sweep_names(model)`.
        donor: a run of the same action that kept them too.
        heads: which; None means all.

    Returns:
        Head → score of the patched run. A head whose z is bit for bit the donor's needs no run: its score is the
        recipient's own.

    Raises:
        InputError: the actions differ, the recipient is not clean, a head does not exist.
    """
    model = engine.model
    model.require_eval_mode()
    chosen = (all_heads(model) if heads is None else heads).check(model.n_layers, model.n_heads)
    z = donor_z(model, recipient, donor)
    own = stacked(recipient, model, "attn.hook_z")
    changed = [h for h in chosen if not torch.equal(z[h.layer, :, h.head], own[h.layer, :, h.head])]
    scores = {head: recipient.score for head in chosen}
    edits = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in changed]
    scores.update(zip(changed, sweep(engine, recipient, edits), strict=True))
    return scores


def patch_sets(engine: Engine, recipient: Run, donor: Run, sets: Mapping[str, HeadSet]) -> dict[str, Score]:
    """Score the recipient's action with z of all heads of a set taken from the donor together, set by set."""
    model = engine.model
    z = donor_z(model, recipient, donor)
    changes = [
        replace_heads(heads.check(model.n_layers, model.n_heads), z, "candidate") for heads in sets.values()
    ]
    return dict(zip(sets, score_interventions(engine, recipient, changes), strict=True))


class FullPatch(NamedTuple):
    """The recipient's score, its score under the patch, and how often the hooks that patched it fired."""

    clean: Score
    patched: Score
    fired: int


def patch_in_full(model: Model, recipient: Query, donor: Query) -> FullPatch:
    """Patch all heads' z together by three full forwards: nothing is kept, shared between runs, or skipped as equal.

    With the recipient as its own donor the two scores must be equal to the bit, on a device that is deterministic.

    Raises:
        InputError: the actions differ in length, or a sequence is longer than the model's may be.
        HookMissed: a hook did not fire once a forward.
    """
    if len(recipient.action) != len(donor.action):
        raise InputError("Patching needs as many action tokens in both runs.")
    seen: dict[str, Tensor] = {}
    names = everything_names(model, "attn.hook_z")
    with hooked(model, capture_hooks(model, names, seen.__setitem__), fires=1):
        reference.score(model, [donor])
    places = list(donor.candidate)
    z = torch.stack([shape_rows(model, name, seen[name], places, [], len(donor.tokens)) for name in names])
    [clean] = reference.score(model, [recipient])
    rows = torch.tensor(list(recipient.candidate), device=model.device)
    edits = replace_heads(all_heads(model), z, "candidate").edits
    with hooked(model, edit_hooks(model, [EditLocation(edit, rows) for edit in edits]), fires=1) as count:
        [patched] = reference.score(model, [recipient])
    return FullPatch(clean, patched, sum(count.counts))


def everything_from(model: Model, donor: Run) -> Intervention:
    """All that the action positions compute, from the donor: z and MLP output of every layer, the embedding.

    Under it a run must give the donor's log-probabilities (an identity, not a measurement). The embedding
    differs between runs only where positions are learned (GPT-2). The donor must have kept `hook_mlp_out` as well.
    """
    z, mlp = stacked(donor, model, "attn.hook_z"), stacked(donor, model, "hook_mlp_out")
    edits = list(replace_heads(all_heads(model), z, "candidate").edits)
    edits += [Edit("mlp_out", layer, None, "candidate", mlp[layer]) for layer in range(model.n_layers)]
    edits.append(Edit("resid_pre", 0, None, "candidate", by_layer(donor, model, "hook_resid_pre")[0]))
    return Intervention(tuple(edits))


def patched_query(recipient: Run, heads: HeadSet, z: Tensor) -> Query:
    """The recipient's query with z of these heads replaced at the action positions; z [layer, pos, head, d_head]."""
    query = recipient.query
    return Query(query.prompt, query.action, query.intervention + replace_heads(heads, z, "candidate"))


def require_pair(recipient: Run, donor: Run) -> None:
    """Raise InputError unless both runs end in one action and the recipient is clean."""
    if recipient.query.action != donor.query.action:
        raise InputError("Patching needs the same action tokens in both runs.")
    require_clean(recipient)


def donor_z(model: Model, recipient: Run, donor: Run) -> Tensor:
    """What the donor kept of z, [layer, pos, head, d_head]; InputError as `require_pair` and `stacked`."""
    require_pair(recipient, donor)
    return stacked(donor, model, "attn.hook_z")
