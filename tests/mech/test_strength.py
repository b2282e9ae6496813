"""Head norms are those of the stock output by head; a strength control writes as much and does not copy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mech.engine.engine import Engine
from mech.errors import InputError
from mech.head_scores.controls import low_heads, strength_matched
from mech.head_scores.norms import HeadNorms, head_norms
from mech.heads import Head, HeadSet
from mech.models.model import Model
from tests.mech_cases import LEFT, RIGHT, FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.tiny_models import FAMILIES
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
SEQUENCES = (LEFT, RIGHT, (*LEFT[:9], 3))


def stock_norms(model: Model) -> Tensor:
    """The norm of each head's own output: the output projection of transformers, of one head's z at a time."""
    total = torch.zeros(model.n_layers, model.n_heads, dtype=torch.float64)
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    for sequence in SEQUENCES:
        with torch.no_grad():
            _, cache = model.bridge.run_with_cache(torch.tensor([sequence]), names_filter=names)
        for layer, name in enumerate(names):
            project = model.bridge.blocks[layer].attn.o.original_component
            z = cache[name].reshape(len(sequence), model.n_heads, model.d_head)
            with torch.no_grad():
                nothing = project(torch.zeros(1, model.n_heads * model.d_head, dtype=model.dtype))
                for head in range(model.n_heads):
                    alone = torch.zeros_like(z)
                    alone[:, head] = z[:, head]
                    total[layer, head] += (project(alone.flatten(1)) - nothing).double().norm(dim=-1).sum()
    return total / sum(map(len, SEQUENCES))


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_are_those_of_the_stock_output_projection_one_head_at_a_time(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    found, slow = head_norms(Engine(model), SEQUENCES), head_norms(Engine(model, slow=True), SEQUENCES)
    torch.testing.assert_close(found.norms, stock_norms(model), rtol=0, atol=FP64)
    torch.testing.assert_close(found.norms, slow.norms, rtol=0, atol=FP64)
    assert found.n_positions == slow.n_positions == sum(map(len, SEQUENCES))
    assert (found.norms > 100 * FP64).all() and found.of(Head(1, 2)) == float(found.norms[1, 2])


def test_norms_in_the_precision_of_use(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    found = head_norms(Engine(model), SEQUENCES).norms
    torch.testing.assert_close(found, stock_norms(model), rtol=0, atol=FP32)
    one = head_norms(Engine(model), SEQUENCES[:1]).norms
    assert (one - found).abs().max() > FP32


LAYERS, HEADS = 4, 6
ALL = [Head(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def norms_of(seed: int) -> HeadNorms:
    return HeadNorms(torch.from_numpy(np.random.default_rng(seed).lognormal(size=(LAYERS, HEADS))), 10)


@given(
    heads=st.sets(st.sampled_from(ALL), min_size=1, max_size=6),
    low=st.sets(st.sampled_from(ALL), min_size=12),
    seed=st.integers(0, 99),
)
def test_a_control_is_eligible_disjoint_of_the_same_size_and_layer_by_layer_where_that_can_be(
    heads: set[Head], low: set[Head], seed: int
) -> None:
    selected, norms = HeadSet(heads), norms_of(seed)
    control = strength_matched(selected, HeadSet(low), norms, np.random.default_rng(seed))
    assert len(control.heads) == len(selected) and set(control.heads) <= low - heads
    wanted, room = Counter(h.layer for h in selected), Counter(h.layer for h in low - heads)
    fit = {layer: min(n, room[layer]) for layer, n in wanted.items()}
    found = Counter(h.layer for h in control.heads)
    assert all(found[layer] >= n for layer, n in fit.items())
    assert control.displaced == len(selected) - sum(fit.values())
    total = sum(norms.of(head) for head in control.heads) / sum(norms.of(head) for head in selected)
    assert control.ratio == pytest.approx(total)


def test_the_match_is_among_the_three_nearest_in_norm_and_each_is_drawn() -> None:
    table = torch.tensor([[5.0, 1.0, 4.0, 6.0, 8.0, 30.0]], dtype=torch.float64)
    selected, eligible = HeadSet([Head(0, 0)]), HeadSet(Head(0, head) for head in range(6))
    drawn = [
        strength_matched(selected, eligible, HeadNorms(table, 1), np.random.default_rng(seed))
        for seed in range(40)
    ]
    assert {str(one.heads) for one in drawn} == {"L0H2", "L0H3", "L0H4"}
    assert {round(one.ratio, 9) for one in drawn} == {0.8, 1.2, 1.6}
    again = strength_matched(selected, eligible, HeadNorms(table, 1), np.random.default_rng(7))
    assert again == drawn[7]


def test_a_head_that_writes_nothing_is_the_last_choice() -> None:
    table = torch.tensor([[5.0, 0.0, 100.0, 90.0, 0.01]], dtype=torch.float64)
    for seed in range(10):
        control = strength_matched(
            HeadSet([Head(0, 0)]),
            HeadSet(Head(0, head) for head in (1, 2, 3, 4)),
            HeadNorms(table, 1),
            np.random.default_rng(seed),
        )
        assert Head(0, 1) not in control.heads


def test_low_heads_are_below_the_median_in_every_score() -> None:
    scores = pd.DataFrame(
        {"layer": 0, "head": range(5), "prefix_matching": [0, 1, 2, 3, 4], "copying": [9, 0, 1, 2, 3]}
    )
    assert str(low_heads(scores)) == "L0H0,L0H1"
    assert str(low_heads(scores, ["prefix_matching", "copying"])) == "L0H1"  # medians 2 and 2
    with pytest.raises(InputError, match="lack the column copying"):
        low_heads(scores.drop(columns="copying"), ["copying"])


def test_too_few_low_heads_are_one_sentence() -> None:
    with pytest.raises(InputError, match="1 heads score low enough to control 2 selected ones"):
        strength_matched(HeadSet(ALL[:2]), HeadSet([ALL[0], ALL[8]]), norms_of(0), np.random.default_rng(0))
