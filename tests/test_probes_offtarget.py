"""The off-target loss is the plain loss of the model on plain prose, and an ablation moves it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from mech.engine import Engine
from mech.heads import Head, HeadSet
from mech.interventions import scale_heads
from mech.patching import all_heads
from probes import offtarget
from probes.offtarget import passages, prose_losses
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.tolerances import FP64, NATS

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

SHORT = ["Rain fell on the hill all day.", "We ate soup.", "Rain fell on the town."]
HEADS = HeadSet([Head(0, 1), Head(2, 0)])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three short passages, two of which begin alike."""
    monkeypatch.setattr(offtarget, "passages", lambda: SHORT)


def test_the_bundled_prose_is_prose_and_repeats_nothing() -> None:
    found = passages()
    assert len(found) >= 3 and all(len(text.split()) > 40 for text in found)
    words = [re.findall(r"[a-z']+", text.lower()) for text in found]
    runs = [tuple(text[i : i + 5]) for text in words for i in range(len(text) - 4)]
    assert len(set(runs)) == len(runs)  # a repeated run of words would call for the heads that are ablated
    assert not any(mark in text for text in found for mark in "<>{}[]_=")


def test_the_loss_is_that_of_transformers(tiny_hf_model: Any, tiny_folder: FolderFactory) -> None:
    model, stock = tiny_model(tiny_folder, "llama", "float32"), tiny_hf_model("llama")
    losses = prose_losses(Engine(model))
    assert len(losses) == len(passages())
    for loss, text in list(zip(losses, passages(), strict=True))[:2]:
        ids = model.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            assert loss == pytest.approx(float(stock(ids, labels=ids).loss), abs=NATS)


def test_a_passage_is_scored_by_itself(tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    monkeypatch.setattr(offtarget, "passages", lambda: SHORT)
    together = prose_losses(engine)
    for text, loss in zip(SHORT, together, strict=True):
        monkeypatch.setattr(offtarget, "passages", lambda text=text: [text])
        np.testing.assert_allclose(prose_losses(engine), [loss], rtol=0, atol=FP64)


@pytest.mark.usefixtures("short")
def test_an_ablation_at_all_positions_is_felt_at_every_token(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    clean, ablated = prose_losses(engine), prose_losses(engine, scale_heads(HEADS, 0.0, "all"))
    assert np.abs(np.subtract(clean, ablated)).min() > NATS
    # Every token but the last is a candidate position, so the two ways of saying it are one.
    candidate = prose_losses(engine, scale_heads(HEADS, 0.0, "candidate"))
    np.testing.assert_allclose(ablated, candidate, rtol=0, atol=FP64)
    slow = prose_losses(Engine(model, slow=True), scale_heads(HEADS, 0.0, "all"))
    np.testing.assert_allclose(ablated, slow, rtol=0, atol=FP64)


@pytest.mark.usefixtures("short")
def test_scaling_by_one_costs_nothing(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    assert prose_losses(Engine(model), scale_heads(all_heads(model), 1.0, "all")) == prose_losses(
        Engine(model)
    )
