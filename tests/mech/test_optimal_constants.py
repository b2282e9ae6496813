"""Fitted constants cost no more than the mean; the packed loss is that of full forwards, its gradient a slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mech.engine import reference
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import replace_heads, scale_heads
from mech.models.model import Model
from mech.patching.means import mean_z
from mech.patching.optimal_constants import fit_constants
from tests.mech_cases import (  # noqa: F401 - a fixture
    ACTION,
    HEADS,
    LEFT,
    RIGHT,
    SOME,
    FolderFactory,
    n_torch_hooks,
    one_thread,
    tiny_model,
)
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
QUESTIONS = [[Query(LEFT, ACTION), Query(LEFT, (7, 8))], [Query(RIGHT, ACTION[:3])]]


def plain_loss(model: Model, z: Tensor, heads: HeadSet = HEADS) -> float:
    """Nats a token, a full forward a question."""
    losses = []
    for query in (query for group in QUESTIONS for query in group):
        [score] = reference.score(
            model, [Query(query.prompt, query.action, replace_heads(heads, z, "candidate"))]
        )
        losses.append(-score.total / score.n_tokens)
    return math.fsum(losses) / len(losses)


def mean_of(model: Model) -> Tensor:
    return mean_z(Engine(model), [LEFT, RIGHT]).z


@pytest.mark.parametrize("family", SOME)
def test_losses_before_and_after_are_those_of_full_forwards(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    mean = mean_of(model)
    hooks = n_torch_hooks(model)  # some bridges have a few of their own
    fit = fit_constants(Engine(model), QUESTIONS, HEADS, mean, steps=5)
    assert n_torch_hooks(model) == hooks
    assert fit.before == pytest.approx(plain_loss(model, mean), abs=FP64)
    assert fit.after == pytest.approx(plain_loss(model, fit.z), abs=FP64)
    assert fit.after < fit.before - 100 * FP64  # a random model leaves something to gain
    others = [
        (layer, head)
        for layer in range(model.n_layers)
        for head in range(model.n_heads)
        if Head(layer, head) not in HEADS
    ]
    assert all(torch.equal(fit.z[at], mean[at]) for at in others)
    assert all(one.requires_grad for one in model.bridge.original_model.parameters())


def test_more_steps_are_never_worse_and_no_step_is_the_mean(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    mean, engine = mean_of(model), Engine(model)
    losses = [fit_constants(engine, QUESTIONS, HEADS, mean, steps).after for steps in (0, 1, 4, 12)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    none = fit_constants(engine, QUESTIONS, HEADS, mean, steps=0)
    assert torch.equal(none.z, mean) and none.before == none.after


def test_the_first_step_goes_down_the_slope_of_full_forwards(tiny_folder: FolderFactory) -> None:
    """Adam's first step is ± its rate in every number, against the sign of the gradient."""
    model = tiny_model(tiny_folder, "llama")
    mean, one = mean_of(model), HeadSet([Head(1, 0)])
    fit = fit_constants(Engine(model), QUESTIONS, one, mean, steps=1)
    step = (fit.z - mean)[1, 0]
    assert step.abs().min() == pytest.approx(float(step.abs().max()), rel=1e-4)
    for at in range(model.d_head):
        moved = mean.clone()
        moved[1, 0, at] += 1e-6
        slope = (plain_loss(model, moved, one) - plain_loss(model, mean, one)) / 1e-6
        assert abs(slope) < 1e-7 or (slope > 0) == (float(step[at]) < 0)


def bad(heads: HeadSet, questions: Sequence[Sequence[Query]], model: Model) -> None:
    fit_constants(Engine(model), questions, heads, mean_of(model), 1)


def test_bad_input_is_one_sentence(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    with pytest.raises(InputError, match="there are none"):
        bad(HEADS, [], model)
    with pytest.raises(InputError, match="does not exist"):
        bad(HeadSet([Head(9, 0)]), QUESTIONS, model)
    under = Query(LEFT, ACTION, scale_heads(HEADS, 0.0, "candidate"))
    with pytest.raises(InputError, match="clean"):
        bad(HEADS, [[under]], model)
    with pytest.raises(ValueError, match="share their prompt"):
        bad(HEADS, [[Query(LEFT, ACTION), Query(RIGHT, ACTION)]], model)
