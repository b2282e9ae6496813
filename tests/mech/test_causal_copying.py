"""Ablating a head takes from repeated tokens what it gave them: by the sweep, one forward a head, and plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.head_scores.causal_copying import (
    CAUSAL_SCORES,
    ablation_drops,
    causal_scores,
    occurrence_query,
    sequence_mean,
)
from mech.head_scores.induction import RepeatedTokens, repeated_tokens
from mech.heads import Head, HeadSet
from mech.interventions.intervention import scale_heads
from mech.models.model import Model
from tests.induction_model import LENGTH, hand_built  # noqa: F401 - a fixture
from tests.mech_cases import (  # noqa: F401 - a fixture
    MODELS,
    SOME_MODELS,
    TOLERANCE,
    FolderFactory,
    exact_norms,
    one_thread,
    tiny_model,
)
from tests.tiny_models import DTYPES, FAMILIES
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def sequences_of(model: Model, n_sequences: int = 2, length: int = 6, seed: int = 0) -> RepeatedTokens:
    return repeated_tokens(model, np.random.default_rng(seed), n_sequences, length)


def test_the_hand_built_induction_head_carries_the_copy_and_the_heads_before_it_do_not(
    hand_built: Model,
) -> None:
    scores = causal_scores(Engine(hand_built), sequences_of(hand_built, 2, LENGTH))
    found = {str(Head(int(row.layer), int(row.head))): row for row in scores.itertuples()}
    assert list(scores.columns) == ["layer", "head", *CAUSAL_SCORES] and len(scores) == 4
    assert found["L1H0"].causal_copying > 5
    assert found["L1H0"].causal_first < 0  # where nothing repeats it had guessed at copies
    # The previous-token head did its part in the first half, whose keys this leaves alone.
    assert abs(found["L0H0"].causal_copying) < 0.02 * found["L1H0"].causal_copying
    for head in ("L0H1", "L1H1"):  # they write nothing
        assert abs(found[head].causal_copying) < FP32 and abs(found[head].causal_first) < FP32


def test_a_query_asks_for_the_tokens_that_the_other_half_foretells() -> None:
    tokens = torch.tensor([[0, 7, 8, 9, 7, 8, 9], [0, 5, 6, 4, 5, 6, 4]])
    sequences = RepeatedTokens(tokens, 1, 3)
    second, first = (occurrence_query(sequences, 1, occurrence) for occurrence in ("second", "first"))
    assert second == Query((0, 5, 6, 4, 5), (6, 4)) and list(second.candidate) == [4, 5]
    assert first == Query((0, 5), (6, 4)) and list(first.candidate) == [1, 2]
    bare = RepeatedTokens(tokens[:, 1:], 0, 3)
    assert occurrence_query(bare, 0, "first") == Query((7,), (8, 9))
    assert occurrence_query(bare, 0, "second") == Query((7, 8, 9, 7), (8, 9))


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_the_sweep_is_one_hooked_full_forward_a_head(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    sequences = sequences_of(model, 1)
    fast, slow = Engine(model), Engine(model, slow=True)
    found, expected = causal_scores(fast, sequences), causal_scores(slow, sequences)
    n_heads = model.n_layers * model.n_heads
    assert len(found) == n_heads and found[["layer", "head"]].equals(expected[["layer", "head"]])
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype])
    assert found["causal_copying"].abs().min() > TOLERANCE[dtype]  # every head of a random model matters
    assert slow.forwards.ran - fast.forwards.ran >= 2 * (n_heads - 2)  # a row or two a query, not one a head


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_plain_transformers(family: str, tiny_folder: FolderFactory) -> None:
    """No bridge, no packed row: torch hooks on the output projections of the transformers model."""
    model = tiny_model(tiny_folder, family)
    sequences = sequences_of(model)
    scores = causal_scores(Engine(model), sequences, HeadSet([Head(0, 1), Head(1, 3), Head(2, 0)]))
    network = AutoModelForCausalLM.from_pretrained(
        tiny_folder(family, "float64"), attn_implementation="eager", dtype=DTYPES["float64"]
    )
    exact_norms(network.eval())
    second = range(1 + 6, 1 + 2 * 6 - 1)
    first = range(1, 1 + 6 - 1)
    for row in scores.itertuples():
        projection = projections(network)[row.layer]
        own = slice(row.head * model.d_head, (row.head + 1) * model.d_head)
        seen: list[Tensor] = []
        with torch.no_grad():
            handle = projection.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
            clean = network(sequences.tokens).logits.log_softmax(-1)
            handle.remove()
            mean = seen[0][:, :, own].mean(dim=(0, 1))
            for name, places in (("causal_copying", second), ("causal_first", first)):
                handle = projection.register_forward_pre_hook(replacing(places, own, mean))
                ablated = network(sequences.tokens).logits.log_softmax(-1)
                handle.remove()
                drops = [
                    float(clean[i, t, token] - ablated[i, t, token])
                    for i in range(2)
                    for t in places
                    for token in [sequences.tokens[i, t + 1]]
                ]
                assert getattr(row, name) == pytest.approx(np.mean(drops), abs=FP64)


def replacing(places: range, own: slice, mean: Tensor) -> Callable[[Any, Any], Any]:
    """A pre-hook that puts the mean into one head's slice at these positions."""

    def hook(_: Any, args: Any) -> Any:
        z = args[0].clone()
        z[:, list(places), own] = mean
        return (z, *args[1:])

    return hook


def projections(network: Any) -> list[Any]:
    """The output projection of each layer, in any of the families."""
    ends = ("self_attn.o_proj", "attention.dense", "attn.c_proj")
    return [module for name, module in network.named_modules() if name.endswith(ends)]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_mean_is_over_every_position_of_every_sequence(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    sequences = sequences_of(model, 3)
    mean = sequence_mean(Engine(model), sequences)
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(sequences.tokens)
    for layer in range(model.n_layers):
        z = cache[f"blocks.{layer}.attn.hook_z"].reshape(-1, model.n_heads, model.d_head)
        torch.testing.assert_close(mean[layer], z.mean(dim=0), rtol=0, atol=FP64)


@pytest.mark.parametrize("slow", [False, True])
def test_a_head_replaced_by_its_own_z_loses_exactly_nothing(slow: bool, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    query = occurrence_query(
        sequences_of(model, 1, 2), 0, "second"
    )  # one token to foretell: one value a head
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    run = Engine(model).run(query, names)
    own = torch.stack([run.cache[name][0] for name in names])
    assert set(ablation_drops(Engine(model, slow=slow), query, own).values()) == {0.0}


def test_sequences_without_a_beginning_are_scored_too(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "gpt_neox")
    bare = RepeatedTokens(sequences_of(model).tokens[:, 1:], 0, 6)
    found, expected = (causal_scores(Engine(model, slow=slow), bare) for slow in (False, True))
    np.testing.assert_allclose(found, expected, rtol=0, atol=FP64)


def test_scores_are_means_over_sequences(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "qwen2")
    engine, sequences, head = Engine(model), sequences_of(model, 3), Head(1, 2)
    mean, one = sequence_mean(engine, sequences), HeadSet([Head(1, 2)])
    each = [
        ablation_drops(engine, occurrence_query(sequences, i, "second"), mean, one)[head] for i in range(3)
    ]
    [row] = causal_scores(engine, sequences, one).itertuples()
    assert (row.layer, row.head) == (1, 2) and len(set(each)) == 3
    assert row.causal_copying == pytest.approx(math.fsum(each) / 3, abs=FP64)


def test_what_cannot_be_scored_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine, sequences = Engine(model), sequences_of(model)
    with pytest.raises(InputError, match="needs two tokens at least"):
        causal_scores(engine, RepeatedTokens(torch.tensor([[0, 7, 7]]), 1, 1))
    with pytest.raises(InputError, match="L9H0 does not exist"):
        causal_scores(engine, sequences, HeadSet([Head(9, 0)]))
    query = occurrence_query(sequences, 0, "second")
    ablated = Query(query.prompt, query.action, scale_heads(HeadSet([Head(0, 0)]), 0.0, "candidate"))
    with pytest.raises(InputError, match="clean recipient"):
        ablation_drops(engine, ablated, sequence_mean(engine, sequences))
