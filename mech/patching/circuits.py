"""A set of heads as a circuit: what it carries of a difference between two runs, exactly, in three ways.

With L(run) = logp(a), the runs `without` and `with_it` (such as pre and neut), and z at the action positions only:

    necessity     L(with_it) − L(with_it, z of S from without)                     noising the set
    sufficiency   L(without, z of S from with_it) − L(without)                     denoising the set
    faithfulness  L(with_it, z of all heads but S from without) − L(without)       the circuit alone

in nats; divided by L(with_it) − L(without) they are shares, which may pass 1. The three differ in what the other heads
do: in necessity they see with_it and may stand in for S, in sufficiency they see without and may add to what S brings,
in faithfulness they are held at without.

Identities, which tests hold: all three of all heads are the whole difference, of none 0, and necessity(S) +
faithfulness(the others) = the difference. With z of every head from the other run, all that the action positions
compute is the other run's, as MLPs follow from the residual stream; not so where positions are learned (GPT-2): there
the embedding, which no head writes, tells the runs apart as well.

Terms: Heimersheim & Nanda 2024 (arXiv:2404.15255); faithfulness as Wang et al. 2022 (arXiv:2211.00593), with resampled
z in place of mean ablation.

Many sets cost less than a forward each, and sets that are equal up to a layer less still (`mech.engine.sweep`).
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
    """What each set carries of L(with_it) − L(without), token by token of the action, in nats.

    A metric that is linear in the log-probabilities of tokens has the same metric of these for its effect.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a set.
        without: a clean run that kept `mech.patching.patch.sweep_names(model)`.
        with_it: a clean run of the same action that kept them too.
        sets: any; a set that patches no head has the recipient's own score.
        criterion: necessity, sufficiency or faithfulness.

    Raises:
        InputError: an unknown criterion, the actions differ, a run is not clean, a head does not exist.
    """
    if criterion not in CRITERIA:
        raise InputError(f"'{criterion}' is not asked of a circuit: choose one of {', '.join(CRITERIA)}.")
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
