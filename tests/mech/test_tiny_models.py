"""The tiny models are what other tests take them for: TransformerLens runs each as transformers does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.mech_cases import MODELS
from tests.tiny_models import FAMILIES, SLIDING_WINDOW
from tests.tolerances import FP32, FP64

TEXT = "Hello, wörld!\n  call(x='a  b')\t日本 <turn>"
# transformers takes the softmax of GPT-NeoX in float32 whatever the dtype, the bridge takes it in the dtype.
ROUTE_FP64 = {"gpt_neox": FP32}


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_the_bridge_gives_the_logits_of_transformers(
    family: str, dtype: str, tiny_folder: Callable[..., Path], tiny_hf_model: Callable[..., Any]
) -> None:
    folder = tiny_folder(family, dtype)
    torch_dtype = getattr(torch, dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch_dtype, attn_implementation="eager")
    bridge = TransformerBridge.boot_transformers(
        str(folder), hf_model=loaded.eval(), tokenizer=tokenizer, dtype=torch_dtype
    ).eval()
    tokens = torch.tensor([[0, *tokenizer(TEXT)["input_ids"]]])
    assert tokens.shape[1] > 2 * SLIDING_WINDOW
    with torch.no_grad():
        found, expected = bridge(tokens), tiny_hf_model(family, dtype)(tokens).logits
    assert found.dtype == torch_dtype
    assert expected.std() > 0.5, "the logits are flat: a wrong head would go unnoticed"
    tolerance = FP32 if dtype == "float32" else ROUTE_FP64.get(family, FP64)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_text_tokenises_and_comes_back(family: str, tiny_folder: Callable[..., Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
    ids = tokenizer(TEXT)["input_ids"]
    assert tokenizer.decode(ids) == TEXT
    assert max(ids) < 272


def test_the_chat_template_writes_one_beginning_and_extends(
    tiny_tokenizer: Any, tiny_plain_tokenizer: Any
) -> None:
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "f(1)"}]
    short = tiny_tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False)
    long = tiny_tokenizer.apply_chat_template(turns, return_dict=False)
    assert long[: len(short)] == short
    assert long.count(tiny_tokenizer.bos_token_id) == 1
    assert tiny_plain_tokenizer.chat_template is None
    assert tiny_tokenizer.name_or_path and tiny_plain_tokenizer.name_or_path


@pytest.mark.parametrize("family", FAMILIES)
def test_with_the_exact_softmax_masked_keys_leave_float64_logits_alone(
    family: str, tiny_hf_model: Callable[..., Any], exact_softmax: None
) -> None:
    model = tiny_hf_model(family, "float64")
    tokens = torch.randint(5, 261, (1, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([torch.full((1, 13), 2), tokens], dim=1)  # 6 tokens: inside every sliding window
    mask = (torch.arange(padded.shape[1]) >= 13).long()[None]
    positions = (torch.arange(padded.shape[1]) - 13).clamp(min=0)[None]
    with torch.no_grad():
        expected = model(tokens).logits
        found = model(padded, attention_mask=mask, position_ids=positions).logits[:, 13:]
    torch.testing.assert_close(found, expected, rtol=0, atol=FP64)
