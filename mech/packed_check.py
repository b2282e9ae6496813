"""The load-time check of the engine itself: a packed row over a trunk against full hooked forwards, on this model.

What a block must be passed is read off the model (`mech.blocks`); here it is shown that nothing was missed. Two actions
share a row, one of them under an edit of z, so that masks, positions, trunk and edit placement all have to be right.
"""

from __future__ import annotations

import torch

from mech import packed, reference
from mech.checks import LIMITS, CheckResult, Trace
from mech.heads import Head, HeadSet
from mech.interventions import NOTHING, scale_heads
from mech.model import Model
from mech.queries import Query
from mech.trunk import Trunk


def check_packed_row(model: Model, run: Trace) -> CheckResult:
    """Packed scores equal those of full forwards, with and without an edit at the candidate positions."""
    ids = tuple(run.ids[0].tolist())
    middle = len(ids) // 2
    edit = scale_heads(HeadSet([Head(model.n_layers // 2, model.n_heads - 1)]), 0.0, "candidate")
    queries = [
        Query(ids[: middle + 1], ids[middle + 1 :]),
        Query(ids[: middle + 1], ids[middle + 1 :], edit),
        Query(ids[:-1], ids[-2:]),
    ]
    trunk = packed.grow(model, Trunk((), NOTHING.fingerprint), ids[:middle], NOTHING)
    pairs = zip(packed.score_row(model, queries, trunk), reference.score(model, queries), strict=True)
    worst = max(float(abs(fast.logprobs - slow.logprobs).max()) for fast, slow in pairs)
    limit = LIMITS.get(model.dtype, LIMITS[torch.float32])
    sentence = "a packed row over a trunk scores as full forwards do"
    if worst > limit:
        sentence = f"a packed row is off by {worst:.3g} nats: this architecture cannot be scored exactly"
    return CheckResult("packed_row", worst <= limit, worst, limit, sentence)
