"""The slow path, kept as the truth: one stock hooked forward of the whole sequence per question."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mech.engine.queries import Query, Score, token_logprobs
from mech.interventions.edits import Knockout
from mech.interventions.hooks import EditLocation, edit_hooks, hooked
from mech.models.model import Model


def score(model: Model, queries: Sequence[Query]) -> list[Score]:
    """Score each query by a full forward of the bridge with the intervention's hooks at absolute positions.

    Raises:
        HookMissed: a hook did not fire exactly once.
        FloatingPointError: a logit is not finite.
    """
    return [_score_one(model, query) for query in queries]


@torch.no_grad()
def _score_one(model: Model, query: Query) -> Score:
    logits = full_forward(model, query)
    values, best = token_logprobs(
        logits[query.candidate.start :], torch.tensor(query.action, device=model.device)
    )
    return Score(values.double().cpu().numpy(), best.cpu().numpy())


@torch.no_grad()
def full_forward(model: Model, query: Query) -> Tensor:
    """Logits [pos, d_vocab] of the query's whole sequence under its intervention, by the stock forward."""
    model.require_eval_mode()
    model.require_room(len(query.tokens))
    locations = [EditLocation(edit, None) for edit in query.intervention.everywhere.edits]
    for edit in query.intervention.local.edits:
        sources = torch.tensor(edit.sources, device=model.device) if isinstance(edit, Knockout) else None
        rows = torch.tensor(list(query.positions(edit)), device=model.device)
        locations.append(EditLocation(edit, rows, sources))
    tokens = torch.tensor([query.tokens], device=model.device)
    with hooked(model, edit_hooks(model, locations), fires=1):
        logits: Tensor = model.bridge(tokens)
    return logits[0]
