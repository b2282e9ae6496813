"""Many changes of one run at its action positions, each scored alone, at less than a forward each.

Every change (edits and knockouts, made together) gets a copy of the candidate nodes. Copies run side by side in one
packed row over the run's own keys and values, which are not copied; a copy joins at the first layer in which its change
does anything, from the clean run's residual stream there: layers below are not recomputed. Changes that are equal up to
a layer share one copy below it, so that a set of heads and the same set with one head more part at that head's layer.

The slow path is one hooked full forward a change (`mech.engine.reference`); tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.blocks import BlockArguments, RowCache, block_arguments, run_block
from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.layout import Layout, chain, layout
from mech.engine.queries import Query, Score
from mech.errors import InputError
from mech.interventions.hooks import EditLocation, edit_hooks, hooked
from mech.interventions.intervention import Edit, Intervention, Knockout
from mech.models.model import Model

SWEEP_NODES = 512
"""Nodes in one packed row of copies: more make the matrix products no faster, and take more memory."""

_CLEAN = -1  # the slot of a change that has done nothing yet: it needs no copy
_ByLayer = dict[int, list[Edit | Knockout]]


def stacked(run: Run, model: Model, kind: str, at: str = "candidate") -> Tensor:
    """One kept activation of all layers: [layer, pos, …]; raises InputError when the run did not keep it."""
    return torch.stack(by_layer(run, model, kind, at))


def by_layer(run: Run, model: Model, kind: str, at: str = "candidate") -> list[Tensor]:
    """One kept activation of all layers at a position set, as a list; InputError as `stacked`."""
    return [run.activation(name, at) for name in everything_names(model, kind)]


@torch.no_grad()
def score_edits(engine: Engine, recipient: Run, edits: Sequence[Edit]) -> list[Score]:
    """Score the recipient's action under each of these edits alone, in their order; see `score_interventions`."""
    return score_interventions(engine, recipient, [Intervention((edit,)) for edit in edits])


@torch.no_grad()
def score_interventions(engine: Engine, run: Run, changes: Sequence[Intervention]) -> list[Score]:
    """Score a clean run's action under each of these interventions alone, in their order.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a change.
        run: a clean run that kept `hook_resid_pre`.
        changes: edits of any site inside a block, and knockouts, at the action positions; the sources of a
            knockout lie before them. A change without edits has the run's own score.

    Raises:
        InputError: the run is not clean, a change acts elsewhere, its layer does not exist, or its site does not feed
            the computation.
    """
    model, query = engine.model, run.query
    model.require_eval_mode()
    require_clean(run)
    for edit in (edit for change in changes for edit in change.edits):
        if edit.where != "candidate":
            raise InputError(f"These changes act at the action positions only, not at {edit.where}.")
        if not 0 <= edit.layer < model.n_layers:
            raise InputError(f"There is no layer {edit.layer}: the model has layers 0-{model.n_layers - 1}.")
        if isinstance(edit, Knockout) and edit.sources[-1] >= query.candidate.start:
            raise InputError(
                f"The sources of a knockout lie before the action positions, which begin at {query.candidate.start}."
            )
    engine.require_sites({edit.site for change in changes for edit in change.without_knockouts})
    scores = {index: run.score for index, change in enumerate(changes) if not change.edits}
    changed = [index for index in range(len(changes)) if index not in scores]
    if engine.slow:
        engine.forwards.ran += len(changed)
        queries = [Query(query.prompt, query.action, changes[index]) for index in changed]
        scores.update(zip(changed, reference.score(model, queries), strict=True))
        return [scores[index] for index in range(len(changes))]
    layers = {index: _by_layer(changes[index]) for index in changed}
    marks = {index: _marks(model, layers[index]) for index in changed}
    changed.sort(key=lambda index: marks[index])  # those that are equal up to a layer are neighbours
    nodes = engine.forward_nodes(len(query.tokens), SWEEP_NODES)
    step = max(1, nodes // len(query.action))
    for start in range(0, len(changed), step):
        group = changed[start : start + step]
        rows = _side_by_side(
            model, run, [layers[index] for index in group], [marks[index] for index in group]
        )
        scores.update(zip(group, rows, strict=True))
        engine.forwards.ran += 1
    return [scores[index] for index in range(len(changes))]


def require_clean(recipient: Run) -> None:
    """Raise InputError for a recipient that was run under an intervention."""
    if recipient.query.intervention.edits:
        raise InputError("Patching starts from a clean recipient run.")


def _by_layer(change: Intervention) -> _ByLayer:
    layers: _ByLayer = {}
    for edit in change.edits:
        layers.setdefault(edit.layer, []).append(edit)
    return layers


def _marks(model: Model, layers: _ByLayer) -> tuple[tuple[str, ...], ...]:
    """What a change does in each layer, as fingerprints; nothing sorts before something."""
    return tuple(
        tuple(sorted(edit.fingerprint for edit in layers.get(layer, ()))) for layer in range(model.n_layers)
    )


def _side_by_side(
    model: Model, run: Run, changes: Sequence[_ByLayer], marks: Sequence[tuple[tuple[str, ...], ...]]
) -> list[Score]:
    """Scores of a few changes from one rolling row: a copy for each different history of changes so far."""
    n = len(run.query.action)
    resid_pre = by_layer(run, model, "hook_resid_pre")
    cache = RowCache(run.prefix_cache.keys, run.prefix_cache.values)
    slots = [_CLEAN] * len(changes)
    row = resid_pre[0].new_empty(1, 0, model.d_model)
    arguments: list[BlockArguments] = []
    for layer in range(model.n_layers):
        histories: dict[tuple[int, tuple[str, ...]], int] = {(_CLEAN, ()): _CLEAN}
        edits: list[list[Edit | Knockout]] = []
        for index, (slot, mark) in enumerate(zip(slots, marks, strict=True)):
            history = (slot, mark[layer])
            if history not in histories:
                histories[history] = len(edits)
                edits.append(changes[index].get(layer, []))
            slots[index] = histories[history]
        if not edits:
            continue
        before, parts = row.shape[1], row[0].split(n)
        joined = [slot for slot, _ in list(histories)[1:]]
        row = torch.cat([resid_pre[layer] if slot == _CLEAN else parts[slot] for slot in joined])[None]
        if row.shape[1] != before:
            arguments = block_arguments(model, copies(model, run.query, len(joined)), cache)
        locations = [_place(model, edit, at * n, n) for at, here in enumerate(edits) for edit in here]
        with hooked(model, edit_hooks(model, locations), fires=1):
            row = run_block(model, layer, row, arguments[layer])
    nodes = [range(slot * n, (slot + 1) * n) for slot in slots]
    return packed.read_scores(model, row, nodes, [run.query.action] * len(changes))


def _place(model: Model, edit: Edit | Knockout, start: int, n: int) -> EditLocation:
    """A change on one copy's nodes; a knockout's sources are columns of the prefix cache."""
    rows = torch.arange(start, start + n, device=model.device)
    if isinstance(edit, Knockout):
        return EditLocation(edit, rows, torch.tensor(edit.sources, dtype=torch.long, device=model.device))
    return EditLocation(edit, rows)


def copies(model: Model, query: Query, count: int) -> Layout:
    """The layout of that many copies of a query's candidate nodes, which do not see each other, over its prompt."""
    start, n = query.candidate.start, len(query.action)
    return layout(model, *chain(start, n, count), start)
