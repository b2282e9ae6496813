"""A set of heads as a circuit: its share of the difference between two runs, exactly, by three criteria.

With L(run) = logp(a), the runs `without` and `with_it` (such as pre and neut), and z at the action positions only:

    necessity     L(with_it) − L(with_it, z of S from without)                     noising the set
    sufficiency   L(without, z of S from with_it) − L(without)                     denoising the set
    faithfulness  L(with_it, z of all heads but S from without) − L(without)       the circuit alone

in nats; divided by L(with_it) − L(without) they are shares, which may exceed 1. They differ in the other heads: in
necessity these run on with_it and may compensate for S, in sufficiency on without and may amplify S, in faithfulness
their z is that of without.

Identities, which tests check: all three are the full difference for all heads and 0 for none, and necessity(S) +
faithfulness(the others) = the difference. With z of every head from the other run, everything the action positions
compute is the other run's, except where positions are learned (GPT-2): there the embedding differs too.

Terms: Heimersheim & Nanda 2024 (arXiv:2404.15255); faithfulness as Wang et al. 2022 (arXiv:2211.00593), with resampled
z in place of mean ablation. Sets share forwards (`mech.engine.sweep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from mech.engine.engine import Engine, Run
from mech.engine.queries import Score
from mech.errors import InputError
from mech.heads import HeadSet
from mech.models.model import Model
from mech.patching.patch import all_heads, patch_sets

Criterion = Literal["necessity", "sufficiency", "faithfulness"]
CRITERIA: tuple[Criterion, ...] = ("necessity", "sufficiency", "faithfulness")


def token_effects(
    engine: Engine, without: Run, with_it: Run, sets: Sequence[HeadSet], criterion: Criterion
) -> list[Float[np.ndarray, " pos"]]:
    """Each set's effect, of L(with_it) − L(without), token by token of the action, in nats.

    The effect on a metric that is linear in token log-probabilities is that metric of these.

    Both runs are clean and kept `mech.patching.patch.sweep_names(model)`.

    Raises:
        InputError: an unknown criterion, the actions differ, a run is not clean, a head does not exist.
    """
    if criterion not in CRITERIA:
        raise InputError(
            f"'{criterion}' is not a criterion of circuits: choose one of {', '.join(CRITERIA)}."
        )
    low, high = _wide(without.score), _wide(with_it.score)
    patched = sets if criterion != "faithfulness" else [complement(engine.model, heads) for heads in sets]
    recipient, donor = (without, with_it) if criterion == "sufficiency" else (with_it, without)
    scores = patch_sets(engine, recipient, donor, dict(enumerate(patched))).values()
    if criterion == "necessity":
        return [high - _wide(score) for score in scores]
    return [_wide(score) - low for score in scores]


def _wide(score: Score) -> Float[np.ndarray, " pos"]:
    return score.logprobs.astype(np.float64)


def complement(model: Model, heads: HeadSet) -> HeadSet:
    """Every head of the model that is not in the set; InputError for one that does not exist."""
    inside = set(heads.check(model.n_layers, model.n_heads))
    return HeadSet(head for head in all_heads(model) if head not in inside)
