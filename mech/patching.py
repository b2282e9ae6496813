"""Exact activation patching of heads at the candidate positions: single heads in one sweep, joint sets in one row.

    noising   (necessity):   run neut, z of head h from pre;   effect = logp(neut) − logp(patched)
    denoising (sufficiency): run pre,  z of head h from neut;  effect = logp(patched) − logp(pre)

The same action ends both runs, so its candidate positions correspond one to one and no corrupted prompt of equal length
is needed. Terms as in Heimersheim & Nanda 2024 (arXiv:2404.15255).

A sweep is one forward, not one a head: each head gets a copy of the candidate nodes that enters at the head's own layer
from the recipient's residual stream, with its slice of `hook_z` replaced; layers below are not recomputed, the
recipient's keys and values are not copied, and copies of neighbouring layers share one packed row. `sweep` does that
for single edits of any site; `mech.layer_patching` takes MLP outputs and the residual stream through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mech import packed, reference
from mech.blocks import Layout, RowCache, block_arguments, layout, run_block
from mech.capture import everything_names
from mech.engine import Engine, Run
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.hooks import Placement, edit_hooks, hooked
from mech.interventions import Edit, Intervention, replace_heads
from mech.model import Model
from mech.queries import Query, Score

SWEEP_NODES = 256
"""Nodes in one packed row of a sweep: many for large matrix products, few that copies do not attend in vain."""


def sweep_names(model: Model) -> list[str]:
    """The activations that both sides of a sweep must have kept."""
    return everything_names(model, "hook_resid_pre", "attn.hook_z")


def all_heads(model: Model) -> HeadSet:
    """Every query head of the model."""
    return HeadSet(Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads))


def stacked(run: Run, model: Model, kind: str) -> Tensor:
    """One kept activation of all layers: [layer, pos, …]; raises InputError when the run did not keep it."""
    return torch.stack(by_layer(run, model, kind))


def by_layer(run: Run, model: Model, kind: str) -> list[Tensor]:
    """One kept activation of all layers at the candidate positions, as a list; InputError as `stacked`."""
    names = everything_names(model, kind)
    missing = [name for name in names if name not in run.cache]
    if missing:
        raise InputError(f"The run did not keep '{missing[0]}': run it with keep=sweep_names(model).")
    return [run.cache[name] for name in names]


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
    chosen = (heads or all_heads(model)).check(model.n_layers, model.n_heads)
    z = _donor_z(model, recipient, donor)
    own = stacked(recipient, model, "attn.hook_z")
    changed = [h for h in chosen if not torch.equal(z[h.layer, :, h.head], own[h.layer, :, h.head])]
    scores = {head: recipient.score for head in chosen}
    edits = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in changed]
    scores.update(zip(changed, sweep(engine, recipient, edits), strict=True))
    return scores


@torch.no_grad()
def sweep(engine: Engine, recipient: Run, edits: Sequence[Edit]) -> list[Score]:
    """Score the recipient's action under each of these edits alone, in their order.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward an edit.
        recipient: a clean run that kept `hook_resid_pre`.
        edits: at the candidate positions, of any site inside a block.

    Raises:
        InputError: the recipient is not clean, an edit acts elsewhere, its layer does not exist, or its site does not
            feed the computation.
    """
    model, query = engine.model, recipient.query
    model.require_eval_mode()
    require_clean(recipient)
    for edit in edits:
        if edit.where != "candidate":
            raise InputError(f"A sweep edits the candidate positions only, not {edit.where}.")
        if not 0 <= edit.layer < model.n_layers:
            raise InputError(f"There is no layer {edit.layer}: the model has layers 0-{model.n_layers - 1}.")
    engine.require_sites({edit.site for edit in edits})
    if engine.slow:
        engine.meter.ran += len(edits)
        queries = [Query(query.prompt, query.action, Intervention((edit,))) for edit in edits]
        return reference.score(model, queries)
    order = sorted(range(len(edits)), key=lambda index: edits[index].layer)
    scores: dict[int, Score] = {}
    for group in _groups(order, len(query.action)):
        found = _sweep(model, recipient, [edits[index] for index in group])
        scores.update(zip(group, found, strict=True))
        engine.meter.ran += 1
    return [scores[index] for index in range(len(edits))]


@torch.no_grad()
def patch_sets(engine: Engine, recipient: Run, donor: Run, sets: Mapping[str, HeadSet]) -> dict[str, Score]:
    """Score the recipient's action with z of all heads of a set taken from the donor together, set by set."""
    model = engine.model
    z = _donor_z(model, recipient, donor)
    queries = [
        patched_query(recipient, heads.check(model.n_layers, model.n_heads), z) for heads in sets.values()
    ]
    return dict(zip(sets, score_over(engine, recipient, queries), strict=True))


@torch.no_grad()
def score_over(engine: Engine, recipient: Run, queries: Sequence[Query]) -> list[Score]:
    """Score queries of the recipient's tokens that edit its candidate positions only, over its trunk."""
    engine.require_sites({edit.site for query in queries for edit in query.intervention.without_cuts})
    if engine.slow:
        engine.meter.ran += len(queries)
        return reference.score(engine.model, queries)
    scores: list[Score] = []
    step = max(1, SWEEP_NODES // len(recipient.query.action))
    for start in range(0, len(queries), step):
        scores += packed.score_row(engine.model, queries[start : start + step], recipient.trunk)
        engine.meter.ran += 1
    return scores


def everything_from(model: Model, donor: Run) -> Intervention:
    """All that the candidate positions compute, from the donor: z and MLP output of every layer, the embedding.

    Under it a run must give the donor's log-probabilities (an identity, not a measurement). The embedding
    differs between runs only where positions are learned (GPT-2). The donor must have kept `hook_mlp_out` as well.
    """
    z, mlp = stacked(donor, model, "attn.hook_z"), stacked(donor, model, "hook_mlp_out")
    edits = list(replace_heads(all_heads(model), z, "candidate").edits)
    edits += [Edit("mlp_out", layer, None, "candidate", mlp[layer]) for layer in range(model.n_layers)]
    edits.append(Edit("resid_pre", 0, None, "candidate", by_layer(donor, model, "hook_resid_pre")[0]))
    return Intervention(tuple(edits))


def patched_query(recipient: Run, heads: HeadSet, z: Tensor) -> Query:
    """The recipient's query with z of these heads replaced at the candidate positions; z [layer, pos, head, d_head]."""
    query = recipient.query
    return Query(query.prompt, query.action, query.intervention + replace_heads(heads, z, "candidate"))


def require_pair(recipient: Run, donor: Run) -> None:
    """Raise InputError unless both runs end in one action and the recipient is clean."""
    if recipient.query.action != donor.query.action:
        raise InputError("Patching needs the same action tokens in both runs.")
    require_clean(recipient)


def require_clean(recipient: Run) -> None:
    """Raise InputError for a recipient that was run under an intervention."""
    if recipient.query.intervention.edits:
        raise InputError("Patching starts from a clean recipient run.")


def _donor_z(model: Model, recipient: Run, donor: Run) -> Tensor:
    require_pair(recipient, donor)
    return stacked(donor, model, "attn.hook_z")


def _groups(order: Sequence[int], n: int) -> Iterator[Sequence[int]]:
    """Edits in layer order, cut so that a group's copies (n nodes each) fit one row."""
    size = max(1, SWEEP_NODES // n)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _sweep(model: Model, recipient: Run, edits: Sequence[Edit]) -> list[Score]:
    """Scores under a few edits of ascending layers: one rolling packed row, which copies join at their own layer."""
    n = len(recipient.query.action)
    resid_pre = by_layer(recipient, model, "hook_resid_pre")
    cache = RowCache(recipient.trunk.keys, recipient.trunk.values)
    row = torch.empty(1, 0, model.d_model, dtype=model.dtype, device=model.device)
    arguments: list[dict[str, Any]] = []
    for layer in range(edits[0].layer, model.n_layers):
        joining = [index for index, edit in enumerate(edits) if edit.layer == layer]
        if joining:
            row = torch.cat([row, resid_pre[layer].repeat(len(joining), 1)[None]], dim=1)
            arguments = block_arguments(model, _copies(model, recipient, row.shape[1] // n), cache)
        placements = [
            Placement(edits[index], torch.arange(index * n, (index + 1) * n, device=model.device))
            for index in joining
        ]
        with hooked(model, edit_hooks(model, placements), fires=1):
            row = run_block(model, layer, row, arguments[layer])
    nodes = [range(index * n, (index + 1) * n) for index in range(len(edits))]
    return packed.read_scores(model, row, nodes, [recipient.query.action] * len(edits))


def _copies(model: Model, recipient: Run, copies: int) -> Layout:
    """The layout of that many copies of the candidate nodes over the recipient's trunk."""
    start, n = recipient.query.candidate.start, len(recipient.query.action)
    one = torch.tril(torch.ones(n, n, dtype=torch.bool, device=model.device))
    depths = torch.arange(start, start + n, device=model.device).repeat(copies)
    return layout(model, depths, torch.block_diag(*[one] * copies).bool(), len(recipient.trunk))
