"""An attention-only GPT-2 whose heads are built by hand: previous token, duplicate token, induction, everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from mech.load import load_model
from mech.models.model import Model
from tests.tiny_models import byte_tokenizer

# The hand-built model: the residual stream is [token one-hot | position one-hot | previous token one-hot].
VOCABULARY, PLACES, LENGTH = 261, 64, 20
TOKEN, PLACE, BEFORE = 0, VOCABULARY, VOCABULARY + PLACES
WIDTH = 2 * VOCABULARY + PLACES
D_HEAD = WIDTH // 2
SHARP = 3.0


def connect(weight: Tensor, source: int, target: int, size: int, gain: float = SHARP) -> None:
    """Copy `size` components from `source` to `target`; Conv1D weights are [in, out]."""
    at = torch.arange(size)
    weight[source + at, target + at] = gain


@torch.no_grad()
def built_by_hand(places: int = PLACES, mlps: float = 0.0) -> GPT2LMHeadModel:
    """An induction model with this many positions, its MLPs' weights drawn with this deviation.

    Layer 0: head 0 looks one token back and writes it down, head 1 looks at copies of the token.

    Layer 1: head 0 looks where the present token was the previous one, and copies what stands there: induction.
    Head 1 looks everywhere alike. There are no MLPs to speak of.
    """
    before, width = PLACE + places, 2 * VOCABULARY + places
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=places, n_embd=width, n_layer=2, n_head=2, n_inner=4,
        attn_implementation="eager", bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0)
        if mlps and name.endswith(("c_fc.weight", "mlp.c_proj.weight")):
            parameter.add_(mlps * torch.randn(parameter.shape, generator=draw))
    connect(model.transformer.wte.weight, 0, TOKEN, VOCABULARY, 1.0)
    connect(model.transformer.wpe.weight, 0, PLACE, places, 1.0)
    query, key, value = 0, width, 2 * width
    first, second = (block.attn for block in model.transformer.h)
    connect(first.c_attn.weight, PLACE + 1, query, places - 1)  # position p asks for what p − 1 offers
    connect(first.c_attn.weight, PLACE, key, places - 1)
    connect(first.c_attn.weight, TOKEN, value, VOCABULARY, 1.0)
    connect(first.c_proj.weight, 0, before, VOCABULARY, 0.1)
    connect(first.c_attn.weight, TOKEN, query + width // 2, VOCABULARY)
    connect(first.c_attn.weight, TOKEN, key + width // 2, VOCABULARY)
    connect(second.c_attn.weight, TOKEN, query, VOCABULARY)
    connect(second.c_attn.weight, before, key, VOCABULARY)
    connect(second.c_attn.weight, TOKEN, value, VOCABULARY, 1.0)
    connect(second.c_proj.weight, 0, TOKEN, VOCABULARY, 0.1)
    return model


@pytest.fixture(scope="module")
def hand_built(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The hand-built model, loaded as any checkpoint; the checks want MLPs that do something."""
    return saved(built_by_hand(), tmp_path_factory.mktemp("induction"))


def saved(network: GPT2LMHeadModel, folder: Path) -> Model:
    """The network loaded as any checkpoint, without the checks."""
    network.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return load_model(str(folder), check=False)
