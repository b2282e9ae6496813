"""`load_model` gives raw weights, offline, or one sentence."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from mech import load as load_room
from mech.errors import InputError
from mech.load import examine_model, load_model
from mech.models.checkpoints import Checkpoint
from mech.models.gguf import read_metadata
from mech.models.hashes import file_sha256, tensors_sha256
from mech.models.model import Model
from tests.tiny_gguf import write_gguf

FolderFactory = Callable[..., Path]


@pytest.fixture
def copied(tiny_folder: FolderFactory, tmp_path: Path) -> Path:
    """A checkpoint folder that a test may damage."""
    return Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))


def test_identity_says_what_was_loaded(tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]) -> None:
    model = load_model(str(tiny_folder("llama")))
    assert model.identity.sha256 == file_sha256(tiny_folder("llama") / "model.safetensors")
    assert model.identity.architecture == "LlamaForCausalLM"
    assert model.identity.n_parameters == sum(p.numel() for p in tiny_hf_model("llama").parameters())
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.d_head) == (3, 4, 2, 8)
    assert model.dtype == torch.float32


def test_identity_holds_the_hash_of_the_tensors_in_memory(copied: Path, tmp_path: Path) -> None:
    model = load_model(str(copied), cache_dir=tmp_path / "cache")
    stored = load_file(copied / "model.safetensors")
    assert model.identity.tensors_sha256 == tensors_sha256(stored)
    double = load_model(str(copied), cache_dir=tmp_path / "cache", dtype="float64")
    assert double.identity.tensors_sha256 == tensors_sha256(
        {name: one.double() for name, one in stored.items()}
    )
    stored["model.norm.weight"][3] += 1e-3
    save_file(stored, copied / "model.safetensors", metadata={"format": "pt"})
    changed = load_model(str(copied), cache_dir=tmp_path / "cache")
    assert changed.identity.tensors_sha256 == tensors_sha256(stored) != model.identity.tensors_sha256
    assert changed.identity.sha256 == file_sha256(copied / "model.safetensors") != model.identity.sha256


def test_weights_that_change_while_they_are_loaded_are_refused(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashed before, read after: the identity must be that of the bytes that were read."""
    hashed = load_room.resolve

    def then_changed(*arguments: Any, **more: Any) -> Checkpoint:
        checkpoint = hashed(*arguments, **more)
        with (copied / "model.safetensors").open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")
        return checkpoint

    monkeypatch.setattr(load_room, "resolve", then_changed)
    with pytest.raises(InputError, match=r"model\.safetensors' changed while .* was loaded"):
        load_model(str(copied), cache_dir=tmp_path / "cache", check=False)


def test_later_changes_of_the_file_do_not_reach_the_model(copied: Path, tmp_path: Path) -> None:
    """transformers maps the file into memory, where a change in place would show at once."""

    def logits(model: Model) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model.bridge(torch.arange(5, 20)[None], return_type="logits")
        return found

    model, weights = (
        load_model(str(copied), cache_dir=tmp_path / "cache", check=False),
        copied / "model.safetensors",
    )
    before = logits(model)
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(bytes(weights.stat().st_size // 4))
    assert torch.equal(logits(model), before)
    damaged = load_model(str(copied), cache_dir=tmp_path / "cache", check=False)
    assert damaged.identity.tensors_sha256 != model.identity.tensors_sha256
    assert not torch.equal(logits(damaged), before)


def test_converted_weights_that_are_not_those_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = write_gguf(tmp_path / "tiny.gguf"), load_room._read_weights

    def one_bit(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
        model = read(checkpoint, dtype)
        next(model.parameters()).data.view(torch.int32)[0, 0] ^= 1
        return model

    load_model(str(file), cache_dir=tmp_path / "cache", check=False)
    monkeypatch.setattr(load_room, "_read_weights", one_bit)
    with pytest.raises(InputError, match="are not those that were converted"):
        load_model(str(file), cache_dir=tmp_path / "cache", check=False)


def test_doctor_hashes_every_byte_and_converts_damaged_weights_again(tmp_path: Path) -> None:
    file, cache = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "cache"
    before = load_model(str(file), cache_dir=cache, check=False).identity
    (weights,) = cache.glob("gguf-*/model.safetensors")
    written = weights.read_bytes()
    weights.write_bytes(written[:30_000] + bytes(10_000) + written[40_000:])
    model, results = examine_model(str(file), cache_dir=cache)
    assert weights.read_bytes() == written
    assert model.identity == before and all(result.passed for result in results)


def test_pre_tokenizer_said_by_hand_is_part_of_the_identity_and_shown(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", pre=None)
    with pytest.raises(InputError, match="--pre NAME"):
        load_model(str(file), cache_dir=tmp_path / "cache")
    model, results = examine_model(str(file), cache_dir=tmp_path / "cache", pre="smollm")
    shown = next(one for one in results if one.name == "pre_tokenizer")
    assert model.identity.pre == "smollm"
    assert shown.passed and shown.flagged and "'smollm' was given by hand" in shown.sentence


def test_tied_parameters_count_once(tiny_folder: FolderFactory) -> None:
    model = load_model(str(tiny_folder("gpt2")))
    stored = load_file(tiny_folder("gpt2") / "model.safetensors")
    assert model.identity.n_parameters == sum(tensor.numel() for tensor in stored.values())


def test_weights_are_raw(tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]) -> None:
    model = load_model(str(tiny_folder("qwen3")))
    ids = torch.arange(5, 20)[None]
    with torch.no_grad():
        assert torch.equal(model.bridge(ids, return_type="logits"), tiny_hf_model("qwen3")(ids).logits)


def test_dtype_is_the_asked_one_whatever_the_checkpoint_is(tiny_folder: FolderFactory) -> None:
    assert load_model(str(tiny_folder("llama", "float64"))).dtype == torch.float32
    assert load_model(str(tiny_folder("llama")), dtype="float64").dtype == torch.float64


@pytest.mark.parametrize("offline", [True, False])
def test_loading_a_folder_opens_no_socket(
    offline: bool, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_model(str(tiny_folder("qwen2")))


def test_gguf_loads_through_the_cache_folder(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    model = load_model(str(file), cache_dir=tmp_path / "cache")
    assert model.identity.source == str(file)
    assert (model.n_layers, model.n_kv_heads) == (2, 2)


def test_gguf_whose_header_contradicts_its_tokenizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    load_model(str(file), cache_dir=tmp_path / "cache", check=False)
    stated = {**read_metadata(file), "tokenizer.ggml.bos_token_id": 2}
    monkeypatch.setattr("mech.models.checkpoints.read_metadata", lambda path: stated)
    with pytest.raises(InputError, match="gguf_special_tokens: the BOS id is 2"):
        load_model(str(file), cache_dir=tmp_path / "cache")


def test_corrupted_weights_are_refused(copied: Path) -> None:
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match="weights of .* cannot be read"):
        load_model(str(copied))


def test_missing_weight_is_refused_and_not_invented(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 weights .* model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(str(copied))


def test_weights_of_another_shape_are_refused(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "intermediate_size": 50}))
    with pytest.raises(InputError, match="model"):
        load_model(str(copied))


def test_non_finite_model_is_refused(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.inf
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="finite_logits"):
        load_model(str(copied))


@pytest.mark.parametrize("config", ["{", "{}", '{"model_type": "no-such-family"}'])
def test_unreadable_configuration_is_refused(copied: Path, config: str) -> None:
    (copied / "config.json").write_text(config)
    with pytest.raises(InputError, match="cannot be read"):
        load_model(str(copied))


def test_missing_tokenizer_is_refused(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="tokenizer of .* cannot be read"):
        load_model(str(copied))


def test_unknown_dtype_and_device_are_refused(tiny_folder: FolderFactory) -> None:
    with pytest.raises(InputError, match="'fp8' is not a dtype: choose one of float32"):
        load_model(str(tiny_folder("llama")), dtype="fp8")
    with pytest.raises(InputError, match="'gpuu' cannot be used"):
        load_model(str(tiny_folder("llama")), device="gpuu")


def test_sentences_are_single(copied: Path) -> None:
    (copied / "config.json").write_text("{")
    with pytest.raises(InputError) as caught:
        load_model(str(copied))
    assert "\n" not in str(caught.value)


def test_two_loads_of_the_real_model_agree(smollm2: Any) -> None:
    assert smollm2.identity.name == "smollm2-135m-q4"
    assert smollm2.identity.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert smollm2.identity.n_parameters == 134_515_008


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt_neox", "gpt2"])
def test_a_model_or_bridge_in_memory_is_the_model_of_its_folder(
    family: str, tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any], tiny_tokenizer: Any
) -> None:
    named = load_model(str(tiny_folder(family)))
    taken = load_model(tiny_hf_model(family), tiny_tokenizer)
    again = load_model(taken.bridge)
    ids = torch.arange(5, 20)[None]
    for model in (taken, again):
        assert model.identity.sha256 == model.identity.tensors_sha256 == named.identity.tensors_sha256
        assert model.identity.n_parameters == named.identity.n_parameters
        assert model.identity.architecture == named.identity.architecture
        with torch.no_grad():
            assert torch.equal(model.bridge(ids), named.bridge(ids))
    assert again.bridge is taken.bridge and taken.identity.source == "memory"


def test_a_model_in_memory_goes_through_the_load_time_checks(
    tiny_hf_model: Callable[..., Any], tiny_tokenizer: Any
) -> None:
    damaged = tiny_hf_model("llama")
    damaged.model.norm.weight.data[0] = torch.inf
    with pytest.raises(InputError, match="finite_logits"):
        load_model(damaged, tiny_tokenizer)
    bridge = load_model(tiny_hf_model("llama"), tiny_tokenizer).bridge
    bridge.blocks[0].attn.W_O.data[0] += 1.0  # a bridge whose tensors were changed is another model
    assert (
        load_model(bridge).identity.sha256
        != load_model(tiny_hf_model("llama"), tiny_tokenizer).identity.sha256
    )


def test_what_cannot_be_taken_from_memory_is_refused(
    tiny_hf_model: Callable[..., Any], tiny_tokenizer: Any, tiny_folder: FolderFactory
) -> None:
    with pytest.raises(InputError, match="needs its tokenizer"):
        load_model(tiny_hf_model("llama"))
    with pytest.raises(InputError, match="used as it is"):
        load_model(tiny_hf_model("llama"), tiny_tokenizer, dtype="float64")
    with pytest.raises(InputError, match="one that is named has its own"):
        load_model(str(tiny_folder("llama")), tiny_tokenizer)
    bridge = load_model(tiny_hf_model("llama"), tiny_tokenizer).bridge
    bridge.add_hook("blocks.0.attn.hook_z", lambda z, hook: 0.5 * z)
    with pytest.raises(InputError, match=r"a hook on 'blocks\.0\.attn"):
        load_model(bridge)
    bridge.reset_hooks()
    load_model(bridge)
    bridge.enable_compatibility_mode()
    with pytest.raises(InputError, match="compatibility mode"):
        load_model(bridge)


def test_tokens_added_in_memory_are_not_dropped(
    tiny_hf_model: Callable[..., Any], tiny_folder: FolderFactory
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("llama"))
    tokenizer.add_tokens(["<call>"])
    with pytest.raises(InputError, match="has the token '<call>'"):
        load_model(tiny_hf_model("llama"), tokenizer)
