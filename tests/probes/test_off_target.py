"""The off-target loss is the plain loss of the model on plain prose, and an ablation moves it."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np
import pytest
import torch

from mech.engine.engine import Engine
from mech.head_scores.induction import repeated_tokens
from mech.heads import Head, HeadSet
from mech.interventions.intervention import scale_heads
from mech.patching.patch import all_heads
from probes.scoring import text_loss as offtarget
from probes.scoring.text_loss import LOSSES, code_passages, off_target_losses, passages, prose_losses
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


def test_the_bundled_code_is_python_and_calls_nothing_twice() -> None:
    found = code_passages()
    assert len(found) >= 6 and all(8 < len(text.split()) and len(text.splitlines()) >= 7 for text in found)
    calls: list[str] = []
    for text in found:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        calls += [ast.unparse(node) for node in nodes if ast.unparse(node.func) != "len"]
    assert len(calls) > 15 and len(set(calls)) == len(calls)


def test_losses_on_random_tokens_are_those_of_the_two_halves(
    tiny_hf_model: Any, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offtarget, "passages", lambda: SHORT)
    monkeypatch.setattr(offtarget, "code_passages", lambda: ["x = 1", "del y"])
    model, stock = tiny_model(tiny_folder, "llama", "float32"), tiny_hf_model("llama")
    sequences = repeated_tokens(model, np.random.default_rng(0), 3, 9)
    found = off_target_losses(Engine(model), sequences)
    assert tuple(found) == LOSSES and [len(values) for values in found.values()] == [3, 2, 3, 3]
    with torch.no_grad():
        logprobs = stock(sequences.tokens).logits.log_softmax(-1)[:, :-1]
    losses = -logprobs.gather(-1, sequences.tokens[:, 1:, None])[..., 0]
    first = losses[:, sequences.lead : sequences.lead + 8].mean(1)  # r2 … rL, met for the first time
    again = losses[:, sequences.lead + 9 : sequences.lead + 17].mean(1)
    np.testing.assert_allclose(found["random_first_loss"], first, rtol=0, atol=NATS)
    np.testing.assert_allclose(found["random_repeat_loss"], again, rtol=0, atol=NATS)
    moved = off_target_losses(Engine(model), sequences, scale_heads(HEADS, 0.0, "all"))
    slow = off_target_losses(Engine(model, slow=True), sequences, scale_heads(HEADS, 0.0, "all"))
    for name in LOSSES:
        assert np.abs(np.subtract(moved[name], found[name])).min() > NATS
        np.testing.assert_allclose(moved[name], slow[name], rtol=0, atol=NATS)


@pytest.mark.usefixtures("short")
def test_an_ablation_at_all_positions_is_felt_at_every_token(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    clean, ablated = prose_losses(engine), prose_losses(engine, scale_heads(HEADS, 0.0, "all"))
    assert np.abs(np.subtract(clean, ablated)).min() > NATS
    # Every token but the last is a action position, so the two ways of saying it are one.
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
