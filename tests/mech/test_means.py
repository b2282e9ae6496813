"""The reference mean of z is the plain average over every position of every sequence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mech.engine.engine import Engine
from mech.models.model import Model
from mech.patching.means import mean_z
from tests.mech_cases import LEFT, RIGHT, SOME, STEM, FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

SEQUENCES = (LEFT, RIGHT, (*STEM, 9), LEFT[:-3])
"""They share STEM; one is a prefix of another."""


@torch.no_grad()
def plain_mean(model: Model, sequences: Sequence[Sequence[int]]) -> Tensor:
    """[layer, head, d_head], by TransformerLens alone: one cached forward a sequence, all positions averaged."""
    layers: list[list[Tensor]] = [[] for _ in range(model.n_layers)]
    for sequence in sequences:
        _, cache = model.bridge.run_with_cache(torch.tensor([sequence]))
        for layer, parts in enumerate(layers):
            z = cache[f"blocks.{layer}.attn.hook_z"][0]
            parts.append(z.reshape(len(sequence), model.n_heads, model.d_head))
    return torch.stack([torch.cat(parts).mean(0) for parts in layers])


@pytest.mark.parametrize("family", SOME)
def test_mean_z_is_the_average_over_all_positions(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    found = mean_z(Engine(model), SEQUENCES)
    torch.testing.assert_close(found.z, plain_mean(model, SEQUENCES), rtol=0, atol=FP64)
    assert found.n_positions == sum(map(len, SEQUENCES))
    assert found.z.dtype == model.dtype


def test_mean_z_in_the_precision_of_use(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    found = mean_z(Engine(model), SEQUENCES).z
    torch.testing.assert_close(found, plain_mean(model, SEQUENCES), rtol=0, atol=FP32)
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    "sequences",
    [(LEFT,), (LEFT, LEFT), (LEFT, LEFT[:5]), (LEFT, RIGHT[1:])],
    ids=["one", "twice the same", "a sequence and its beginning", "nothing shared"],
)
def test_sequences_of_every_kind_are_averaged(
    sequences: tuple[tuple[int, ...], ...], tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, "llama")
    found = mean_z(Engine(model), sequences)
    torch.testing.assert_close(found.z, plain_mean(model, sequences), rtol=0, atol=FP64)


def test_a_shared_beginning_weighs_once_for_each_sequence(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    shared, alone = mean_z(Engine(model), [(*STEM, 9), (*STEM, 8)]), mean_z(Engine(model), [(*STEM, 9)])
    assert shared.n_positions == 2 * len(STEM) + 2
    parts = plain_mean(model, [(*STEM, 9)]), plain_mean(model, [(*STEM, 8)])
    torch.testing.assert_close(shared.z, (parts[0] + parts[1]) / 2, rtol=0, atol=FP64)
    assert (shared.z - alone.z).abs().max() > FP32


def test_two_forwards_serve_all_sequences(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    mean_z(engine, SEQUENCES)
    assert engine.forwards.ran == 2


def test_the_hash_names_the_sequences(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    hashes = [mean_z(engine, part).sha256 for part in ([LEFT, RIGHT], [LEFT], [LEFT, (*RIGHT[:-1], 10)])]
    assert len(set(hashes)) == 3
    assert mean_z(engine, [list(LEFT), list(RIGHT)]).sha256 == hashes[0]


def test_many_tokens_take_more_rows_and_give_the_same_mean(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama")
    whole = mean_z(Engine(model), SEQUENCES)
    monkeypatch.setattr("mech.patching.means.MEAN_NODES", 5)
    engine = Engine(model)
    torch.testing.assert_close(mean_z(engine, SEQUENCES).z, whole.z, rtol=0, atol=FP64)
    assert engine.forwards.ran > 2 and mean_z(engine, SEQUENCES).sha256 == whole.sha256


def test_sequences_with_several_beginnings_are_run_by_beginning_and_give_the_same_mean(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mech.patching.means.MEAN_NODES", 12)
    model = tiny_model(tiny_folder, "llama")
    other = tuple(reversed(STEM))
    sequences = [(*STEM, 9), (*other, 7, 8), (*STEM, 11, 12), (*other, 3), (5, 6)]
    engine = Engine(model)
    found = mean_z(engine, sequences)
    torch.testing.assert_close(found.z, plain_mean(model, sequences), rtol=0, atol=FP64)
    assert engine.forwards.ran == 5  # two beginnings with what follows them, and a sequence alone
