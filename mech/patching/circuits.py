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

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from mech.engine.engine import Engine, Run
from mech.engine.queries import Score
from mech.engine.sweep import score_interventions
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import replace_heads
from mech.models.model import Model
from mech.patching.patch import all_heads, donor_z

Kind = Literal["necessity", "sufficiency", "faithfulness"]
KINDS: tuple[Kind, ...] = ("necessity", "sufficiency", "faithfulness")


def circuit_effects(
    engine: Engine, without: Run, with_it: Run, sets: Sequence[HeadSet], kind: Kind
) -> list[float]:
    """What each set carries of L(with_it) − L(without), in nats; arguments and errors as `token_effects`."""
    return [math.fsum(effect.tolist()) for effect in token_effects(engine, without, with_it, sets, kind)]


def token_effects(
    engine: Engine, without: Run, with_it: Run, sets: Sequence[HeadSet], kind: Kind
) -> list[Float[np.ndarray, " pos"]]:
    """What each set carries of L(with_it) − L(without), token by token of the action, in nats.

    A metric that is linear in the log-probabilities of tokens has the same metric of these for its effect.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a set.
        without: a clean run that kept `mech.patching.patch.sweep_names(model)`.
        with_it: a clean run of the same action that kept them too.
        sets: any; a set that patches no head has the recipient's own score.
        kind: necessity, sufficiency or faithfulness.

    Raises:
        InputError: an unknown kind, the actions differ, a run is not clean, a head does not exist.
    """
    if kind not in KINDS:
        raise InputError(f"'{kind}' is not asked of a circuit: choose one of {', '.join(KINDS)}.")
    low, high = _wide(without.score), _wide(with_it.score)
    if kind == "necessity":
        return [high - _wide(score) for score in joint_scores(engine, with_it, without, sets)]
    if kind == "sufficiency":
        return [_wide(score) - low for score in joint_scores(engine, without, with_it, sets)]
    others = [complement(engine.model, heads) for heads in sets]
    return [_wide(score) - low for score in joint_scores(engine, with_it, without, others)]


def _wide(score: Score) -> Float[np.ndarray, " pos"]:
    return score.logprobs.astype(np.float64)


def complement(model: Model, heads: HeadSet) -> HeadSet:
    """Every head of the model that is not in the set; InputError for one that does not exist."""
    inside = set(heads.check(model.n_layers, model.n_heads))
    return HeadSet(head for head in all_heads(model) if head not in inside)


@torch.no_grad()
def joint_scores(engine: Engine, recipient: Run, donor: Run, sets: Sequence[HeadSet]) -> list[Score]:
    """Score the recipient's action with z of all heads of a set from the donor, for each set, in their order.

    Raises:
        InputError: as `circuit_effects`.
    """
    model = engine.model
    z = donor_z(model, recipient, donor)
    changes = [replace_heads(heads.check(model.n_layers, model.n_heads), z, "candidate") for heads in sets]
    return score_interventions(engine, recipient, changes)
