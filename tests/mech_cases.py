"""Cases the mechanism tests share: tiny models, prompts with common beginnings, interventions, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.engine.sweep import by_layer, stacked
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, Edit, Intervention, replace_heads, scale_heads
from mech.load import load_model
from mech.models.model import Model
from mech.patching.patch import all_heads
from tests.tiny_models import FAMILIES
from tests.tolerances import FP32, FP64

FolderFactory = Callable[..., Path]

TOLERANCE = {"float64": FP64, "float32": FP32}
# Every family where only a bug shows, and two in the precision of use.
MODELS = [(family, "float64") for family in FAMILIES] + [(family, "float32") for family in ("llama", "gpt2")]
# The two that differ most: grouped heads, windows, RMS norms and normalised queries; a parallel block, partial rotary
# positions, LayerNorms and biases. For what no part of an architecture has a case of its own in.
SOME = ("gemma3", "gpt_neox")
SOME_MODELS = [*((family, "float64") for family in SOME), ("llama", "float32")]
# Longer than the sliding window of the tiny Gemma 3 (8), in the shared part and below it.
STEM = tuple(range(20, 43))
LEFT, RIGHT = (*STEM, *range(60, 72), 9), (*STEM, *range(80, 90), 11, 9)
ACTION = (100, 101, 102, 103)
HEADS = HeadSet([Head(0, 1), Head(1, 0), Head(2, 3)])


def spread(kinds: Sequence[str]) -> list[tuple[str, str]]:
    """(family, kind): every kind on the first family and on another, and every family under some kind.

    A kind's code is one for all families and a family's one for all kinds, so that a fault is one's or the other's.
    """
    first, *others = FAMILIES
    n = max(len(kinds), len(others))
    crossed = [(others[i % len(others)], kinds[i % len(kinds)]) for i in range(n)]
    return [*((first, kind) for kind in kinds), *crossed]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny matrices on one thread: with two, threads that wait for each other take twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def two_runs(engine: Engine, names: Sequence[str], shared: int = 0) -> tuple[Run, Run]:
    """A recipient and a donor: one action in contexts of unequal length, with these activations kept."""
    recipient, donor = (engine.run(Query(prompt, ACTION), names, shared) for prompt in (LEFT, RIGHT))
    return recipient, donor


@cache
def tiny_model(tiny_folder: FolderFactory, family: str, dtype: str = "float64") -> Model:
    """A tiny model, loaded once for all tests: read-only."""
    model = load_model(str(tiny_folder(family, dtype)), dtype=dtype, check=False)
    if dtype == "float64":
        exact_norms(model.bridge.original_model)
    return model


def exact_norms(network: Any) -> Any:
    """Let the norms of a float64 model work in float64.

    transformers takes them in float32 whatever the dtype: a difference of 1e-16 before one is, now and then, one of
    1e-7 behind it, where only a bug should show.
    """
    for module in network.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_exact_norm, module)
    return network


def _exact_norm(norm: Any, x: Tensor) -> Tensor:
    epsilon = norm.eps if "eps" in vars(norm) else norm.variance_epsilon
    weight = norm.weight + 1 if type(norm).__name__.startswith("Gemma") else norm.weight
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def noise(model: Model, *shape: int, seed: int = 0) -> Tensor:
    """Standard normal values in the model's dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        model.dtype
    )


def interventions(model: Model, n: int) -> dict[str, Intervention]:
    """One intervention of every kind for an action of n tokens."""
    z = noise(model, model.n_layers, n, model.n_heads, model.d_head)
    rows, one = noise(model, n, model.d_model, seed=1), noise(model, model.d_model, seed=2)
    mean = noise(model, model.n_layers, model.n_heads, model.d_head, seed=3)
    return _interventions(z, rows, one, mean)


def _interventions(z: Tensor, rows: Tensor, one: Tensor, mean: Tensor) -> dict[str, Intervention]:
    patched = replace_heads(HEADS, z, "candidate")
    return {
        "z replaced at the candidate": patched,
        "z of one value at the candidate": replace_heads(HEADS, mean, "candidate"),
        "z scaled at the candidate": scale_heads(HEADS, 0.3, "candidate"),
        "z mean everywhere": replace_heads(HEADS, mean, "all"),
        "z zero everywhere": scale_heads(HEADS, 0.0, "all"),
        "mlp_out at the candidate": Intervention((Edit("mlp_out", 1, None, "candidate", rows),)),
        "mlp_out everywhere": Intervention((Edit("mlp_out", 0, None, "all", one),)),
        "resid_pre at the candidate": Intervention((Edit("resid_pre", 2, None, "candidate", rows),)),
        "resid_pre everywhere": Intervention((Edit("resid_pre", 1, None, "all", None, 0.5),)),
        "embedding at the candidate": Intervention((Edit("resid_pre", 0, None, "candidate", rows),)),
        "everywhere, and on top at the candidate": scale_heads(HEADS, 0.4, "all") + patched,
        "scaled everywhere, and again at the candidate": scale_heads(HEADS, 0.4, "candidate")
        + scale_heads(HEADS, 0.4, "all"),
    }


_ZERO = torch.zeros(3, 1, 4, 1)
KINDS = tuple(_interventions(_ZERO, _ZERO[0, :, 0], _ZERO[0, 0, 0], _ZERO[:, 0]))
"""The names that `interventions` gives."""


def family_of_queries(intervention: Intervention = NOTHING, few: bool = False) -> list[Query]:
    """Queries that share beginnings in every way, their actions of ACTION's length where an edit asks for that."""
    queries = [
        Query(LEFT, ACTION, intervention),
        Query(LEFT, (100, 101, 7, 8), intervention),  # shares the beginning of ACTION
        Query(RIGHT, ACTION, intervention),
        Query((*STEM, 9), ACTION, intervention),
    ][: 2 if few else None]
    if any(edit.value is not None and edit.value.ndim == 2 for edit in intervention.edits):
        return queries
    queries += [
        Query(LEFT, ACTION[:2], intervention),  # a prefix of ACTION
        Query((*LEFT, ACTION[0]), ACTION[1:], intervention),  # a prompt inside another's action
        Query(LEFT, (55,), intervention),
        Query(STEM, (*LEFT[len(STEM) :], 5), intervention),  # an action along another's prompt
        Query(RIGHT, tuple(range(110, 130)), intervention),
    ][: 2 if few else None]
    return queries


def assert_scores(found: Sequence[Score], expected: Sequence[Score], tolerance: float) -> None:
    """Equal log-probabilities, token by token, and equal argmax flags."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.n_tokens == other.n_tokens
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=tolerance)
        assert one.argmax.tolist() == other.argmax.tolist()


def assert_bits(found: Sequence[Score], expected: Sequence[Score]) -> None:
    """The same scores to the last bit."""
    assert [score.logprobs.tolist() for score in found] == [score.logprobs.tolist() for score in expected]
    assert [score.argmax.tolist() for score in found] == [score.argmax.tolist() for score in expected]


def n_torch_hooks(model: Model) -> int:
    """Forward hooks and pre-hooks registered anywhere in the model."""
    seen = {
        id(module): module
        for root in (model.bridge, model.bridge.original_model)
        for module in root.modules()
    }
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in seen.values())


def everything_from(model: Model, donor: Run) -> Intervention:
    """All that the action positions compute, from the donor: z and MLP output of every layer, the embedding.

    Under it a run must give the donor's log-probabilities (an identity, not a measurement). The embedding
    differs between runs only where positions are learned (GPT-2). The donor must have kept `hook_mlp_out` as well.
    """
    z, mlp = stacked(donor, model, "attn.hook_z"), stacked(donor, model, "hook_mlp_out")
    edits = list(replace_heads(all_heads(model), z, "candidate").edits)
    edits += [Edit("mlp_out", layer, None, "candidate", mlp[layer]) for layer in range(model.n_layers)]
    edits.append(Edit("resid_pre", 0, None, "candidate", by_layer(donor, model, "hook_resid_pre")[0]))
    return Intervention(tuple(edits))
