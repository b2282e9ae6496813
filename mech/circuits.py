"""A set of heads as a circuit: what it carries of a difference between two runs, exactly, in three ways.

With L(run) = logp(a), the runs `without` and `with_it` (such as pre and neut), and z at the candidate positions only:

    necessity     L(with_it) − L(with_it, z of S from without)                     noising the set
    sufficiency   L(without, z of S from with_it) − L(without)                     denoising the set
    faithfulness  L(with_it, z of all heads but S from without) − L(without)       the circuit alone

in nats; divided by L(with_it) − L(without) they are shares, which may pass 1. The three differ in what the other heads
do: in necessity they see with_it and may stand in for S, in sufficiency they see without and may add to what S brings,
in faithfulness they are held at without.

Identities, which tests hold: all three of all heads are the whole difference, of none 0, and necessity(S) +
faithfulness(the others) = the difference. With z of every head from the other run, all that the candidate positions
compute is the other run's, as MLPs follow from the residual stream; not so where positions are learned (GPT-2): there
the embedding, which no head writes, tells the runs apart as well.

Terms: Heimersheim & Nanda 2024 (arXiv:2404.15255); faithfulness as Wang et al. 2022 (arXiv:2211.00593), with resampled
z in place of mean ablation.

Many sets cost less than one forward each. Copies of the candidate nodes run side by side in one packed row; a copy
joins at the first layer in which its set differs from the clean run, and sets that are equal up to a layer share one
copy below it: S and S with one head more part at that head's layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mech import packed
from mech.blocks import RowCache, block_arguments, run_block
from mech.engine import Engine, Run
from mech.errors import InputError
from mech.heads import HeadSet
from mech.hooks import Placement, edit_hooks, hooked
from mech.interventions import Edit
from mech.model import Model
from mech.patching import SWEEP_NODES, all_heads, by_layer, copies, donor_z, patch_sets
from mech.queries import Score

Kind = Literal["necessity", "sufficiency", "faithfulness"]
KINDS: tuple[Kind, ...] = ("necessity", "sufficiency", "faithfulness")

_CLEAN = -1  # the slot of a set that has changed nothing yet: it needs no copy


def circuit_effects(
    engine: Engine, without: Run, with_it: Run, sets: Sequence[HeadSet], kind: Kind
) -> list[float]:
    """What each set carries of L(with_it) − L(without), in nats.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a set.
        without: a clean run that kept `mech.patching.sweep_names(model)`.
        with_it: a clean run of the same action that kept them too.
        sets: any; a set that patches no head has the recipient's own score.
        kind: necessity, sufficiency or faithfulness.

    Raises:
        InputError: an unknown kind, the actions differ, a run is not clean, a head does not exist.
    """
    if kind not in KINDS:
        raise InputError(f"'{kind}' is not asked of a circuit: choose one of {', '.join(KINDS)}.")
    low, high = without.score.total, with_it.score.total
    if kind == "necessity":
        return [high - score.total for score in joint_scores(engine, with_it, without, sets)]
    if kind == "sufficiency":
        return [score.total - low for score in joint_scores(engine, without, with_it, sets)]
    others = [complement(engine.model, heads) for heads in sets]
    return [score.total - low for score in joint_scores(engine, with_it, without, others)]


def complement(model: Model, heads: HeadSet) -> HeadSet:
    """Every head of the model that is not in the set; InputError for one that does not exist."""
    inside = set(heads.check(model.n_layers, model.n_heads))
    return HeadSet(head for head in all_heads(model) if head not in inside)


@torch.no_grad()
def joint_scores(engine: Engine, recipient: Run, donor: Run, sets: Sequence[HeadSet]) -> list[Score]:
    """Score the recipient's action with z of all heads of a set from the donor, for each set, in their order.

    The numbers of `mech.patching.patch_sets`, which is the slow path, at less cost.

    Raises:
        InputError: as `circuit_effects`.
    """
    model = engine.model
    model.require_eval_mode()
    z = donor_z(model, recipient, donor)
    for heads in sets:
        heads.check(model.n_layers, model.n_heads)
    if engine.slow:
        found = patch_sets(engine, recipient, donor, {str(index): heads for index, heads in enumerate(sets)})
        return list(found.values())
    scores = {index: recipient.score for index, heads in enumerate(sets) if not len(heads)}
    patched = [index for index in range(len(sets)) if index not in scores]
    patched.sort(key=lambda index: _by_depth(model, sets[index]))
    step = max(1, SWEEP_NODES // len(recipient.query.action))
    for start in range(0, len(patched), step):
        group = patched[start : start + step]
        rows = _side_by_side(model, recipient, z, [sets[index] for index in group])
        scores.update(zip(group, rows, strict=True))
        engine.meter.ran += 1
    return [scores[index] for index in range(len(sets))]


def _by_depth(model: Model, heads: HeadSet) -> tuple[tuple[int, ...], ...]:
    """A key under which sets that are equal up to a layer are neighbours."""
    layers = heads.per_layer()
    return tuple(tuple(layers.get(layer, ())) for layer in range(model.n_layers))


def _side_by_side(model: Model, recipient: Run, z: Tensor, sets: Sequence[HeadSet]) -> list[Score]:
    """Scores of a few sets from one rolling row: a copy for each different history of changes so far."""
    n = len(recipient.query.action)
    resid_pre = by_layer(recipient, model, "hook_resid_pre")
    cache = RowCache(recipient.trunk.keys, recipient.trunk.values)
    layers = [heads.per_layer() for heads in sets]
    slots = [_CLEAN] * len(sets)
    row = resid_pre[0].new_empty(1, 0, model.d_model)
    arguments: list[dict[str, Any]] = []
    for layer in range(model.n_layers):
        histories: dict[tuple[int, tuple[int, ...]], int] = {(_CLEAN, ()): _CLEAN}
        for slot, own in zip(slots, layers, strict=True):
            histories.setdefault((slot, tuple(own.get(layer, ()))), len(histories) - 1)
        slots = [histories[slot, tuple(own.get(layer, ()))] for slot, own in zip(slots, layers, strict=True)]
        joined = list(histories)[1:]
        if not joined:
            continue
        before, parts = row.shape[1], row[0].split(n)
        row = torch.cat([resid_pre[layer] if slot == _CLEAN else parts[slot] for slot, _ in joined])[None]
        if row.shape[1] != before:
            arguments = block_arguments(model, copies(model, recipient, len(joined)), cache)
        placements = [
            Placement(
                Edit("z", layer, head, "candidate", z[layer, :, head]),
                torch.arange(at * n, (at + 1) * n, device=model.device),
            )
            for at, (_, heads) in enumerate(joined)
            for head in heads
        ]
        with hooked(model, edit_hooks(model, placements), fires=1):
            row = run_block(model, layer, row, arguments[layer])
    nodes = [range(slot * n, (slot + 1) * n) for slot in slots]
    return packed.read_scores(model, row, nodes, [recipient.query.action] * len(sets))
