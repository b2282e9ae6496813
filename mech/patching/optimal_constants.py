"""Optimal ablation: z replaced by the constant of lowest loss, one a head, fitted for a set of heads together.

    c* = argmin_c  mean over questions of −logp(a | X; z_h = c_h at the action positions) / (tokens of a)

A mean of z may be a value that later layers never meet; the optimal constant has the least loss of all constants, so
the remaining loss is due to z no longer varying with the question. Li & Janson 2024, "Optimal ablation for
interpretability" (arXiv:2409.09951) fit it on the task's own distribution; here the questions are a reference set's.

Fitted by Adam, with all questions in every step, from the mean; the best step is taken, the mean included, so the loss
on these questions is never above the mean's. The action nodes of all actions of one prompt run in one row over its
frozen prefix cache, from the first edited layer on; `mech.engine.reference` with `replace_heads` is the slow path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.blocks import RowCache, block_arguments, run_block, unembed
from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.layout import Layout, layout
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query, token_logprobs
from mech.engine.sweep import require_clean
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.edits import hook_name
from mech.interventions.hooks import HookFunction, hooked
from mech.models.model import Model
from mech.patching.gradients import leaves_only

STEPS = 30
RATE = 0.1
"""Adam's step, as a share of the root mean square of the set's z at the action positions."""


@dataclass(frozen=True, eq=False)
class Fit:
    """`z` [layer, head, d_head]: the constants (of heads outside the set, the mean); losses in nats a token."""

    z: Float[Tensor, "layer head d_head"]
    before: float
    after: float
    steps: int


@dataclass(frozen=True, eq=False)
class _Row:
    """The actions after one prompt, as action nodes over its cache, from the first edited layer on."""

    actions: tuple[tuple[int, ...], ...]
    prefix_cache: PrefixCache
    resid: Float[Tensor, "1 node d_model"]
    where: Layout


def fit_constants(
    engine: Engine,
    questions: Sequence[Sequence[Query]],
    heads: HeadSet,
    mean: Float[Tensor, "layer head d_head"],
    steps: int = STEPS,
    runs: Sequence[Sequence[Run]] | None = None,
) -> Fit:
    """Fit the constants of a set of heads.

    The questions are clean queries; those of one list have one prompt. Adam starts at `mean`; `runs` are the
    `clean_runs` of the questions, None runs them now.

    Raises:
        InputError: no questions, one under an intervention, or a head does not exist.
        FloatingPointError: a logit or gradient is not finite.
    """
    model = engine.model
    heads.check(model.n_layers, model.n_heads)
    if not questions or not all(questions):
        raise InputError("Constants are fitted on questions: there are none.")
    model.require_eval_mode()
    first = min(head.layer for head in heads)
    rows, scale = _rows(model, clean_runs(engine, questions) if runs is None else runs, heads, first)
    constants = torch.stack([mean[head.layer, head.head] for head in heads]).to(model.dtype).clone()
    best, losses = constants.clone(), list[float]()
    with leaves_only(model):
        constants.requires_grad_(True)
        adam = torch.optim.Adam([constants], lr=RATE * scale)
        for step in range(steps + 1):
            loss, gradient = _loss(engine, rows, heads, constants, first, differentiate=step < steps)
            if not losses or loss < min(losses):
                best = constants.detach().clone()
            losses.append(loss)
            if gradient is not None:
                constants.grad = gradient
                adam.step()
    fitted = mean.clone()
    for at, head in enumerate(heads):
        fitted[head.layer, head.head] = best[at]
    return Fit(fitted, losses[0], min(losses), steps)


@torch.no_grad()
def clean_runs(engine: Engine, questions: Sequence[Sequence[Query]]) -> list[list[Run]]:
    """Clean runs of the questions with the activations that `fit_constants` needs, for any set of heads.

    The questions of one list share the prefix cache of their prompt.

    Raises:
        InputError: a question is under an intervention.
        ValueError: the questions of a list have several prompts.
    """
    names = everything_names(engine.model, "hook_resid_pre", "attn.hook_z")
    found = []
    for group in questions:
        if len({query.prompt for query in group}) > 1:
            raise ValueError("The questions of one row share their prompt.")
        runs = [engine.run(query, names, len(query.prompt) - 1) for query in group]
        for run in runs:
            require_clean(run)
        found.append(runs)
    return found


def _rows(
    model: Model, clean: Sequence[Sequence[Run]], heads: HeadSet, first: int
) -> tuple[list[_Row], float]:
    """The rows that every step runs, and the root mean square of the set's z."""
    entering = hook_name("resid_pre", first)
    rows, squares, count = [], 0.0, 0
    for runs in clean:
        for run in runs:
            for layer, own_heads in heads.per_layer().items():
                own = run.cache[hook_name("z", layer)][:, own_heads].double()
                squares, count = squares + float(own.square().sum()), count + own.numel()
        start = runs[0].query.candidate.start
        sizes = [len(run.query.action) for run in runs]
        depths = [start + i for n in sizes for i in range(n)]
        parents = [at - 1 if depth > start else -1 for at, depth in enumerate(depths)]
        resid = torch.cat([run.cache[entering] for run in runs])[None]
        actions = tuple(run.query.action for run in runs)
        rows.append(_Row(actions, runs[0].prefix_cache, resid, layout(model, depths, parents, start)))
    return rows, math.sqrt(squares / count)


def _loss(
    engine: Engine,
    rows: Sequence[_Row],
    heads: HeadSet,
    constants: Float[Tensor, "chosen d_head"],
    first: int,
    differentiate: bool,
) -> tuple[float, Tensor | None]:
    """The mean loss over all questions, and its gradient by the constants, if asked for."""
    n_questions = sum(len(row.actions) for row in rows)
    total, gradient = 0.0, torch.zeros_like(constants) if differentiate else None
    for row in rows:
        with torch.set_grad_enabled(differentiate):
            loss = _row_loss(engine.model, row, heads, constants, first) / n_questions
        engine.forwards.ran += 1
        total += float(loss.detach())
        if gradient is not None:
            [own] = torch.autograd.grad(loss, [constants])
            gradient += own
    if not math.isfinite(total) or (gradient is not None and not bool(torch.isfinite(gradient).all())):
        raise FloatingPointError("A loss or gradient is not finite: no constant can be fitted.")
    return total, gradient


def _row_loss(model: Model, row: _Row, heads: HeadSet, constants: Tensor, first: int) -> Tensor:
    """The sum over the row's actions of their loss a token."""
    arguments = block_arguments(model, row.where, RowCache(row.prefix_cache.keys, row.prefix_cache.values))
    resid = row.resid
    with hooked(model, _putting(model, heads, constants), fires=1):
        for layer in range(first, model.n_layers):
            resid = run_block(model, layer, resid, arguments[layer])
    logits = unembed(model, resid)
    targets = torch.tensor([token for action in row.actions for token in action], device=model.device)
    logprobs, _ = token_logprobs(logits, targets)
    losses = [-part.mean() for part in logprobs.split([len(action) for action in row.actions])]
    return torch.stack(losses).sum()


def _putting(model: Model, heads: HeadSet, constants: Tensor) -> list[tuple[str, HookFunction]]:
    """Hooks that replace z by the constants at every node, differentiably."""

    def putter(layer: int) -> HookFunction:
        def function(activation: Tensor, hook: Any) -> Tensor:
            by_head = list(activation.split(model.d_head, dim=-1))
            for constant, head in zip(constants, heads, strict=True):
                if head.layer == layer:
                    by_head[head.head] = constant.expand_as(by_head[head.head])
            return torch.cat(by_head, dim=-1)

        return function

    return [(hook_name("z", layer), putter(layer)) for layer in heads.per_layer()]
