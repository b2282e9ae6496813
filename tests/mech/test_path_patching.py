"""Patched keys are those of a forward in which only that path is changed; only the receivers see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mech.engine import reference
from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.hooks import hooked
from mech.interventions.intervention import Edit, Intervention, scale_heads
from mech.models.model import Model
from mech.patching.frozen_norm import attention_norm, hold_scale
from mech.patching.patch import all_heads
from mech.patching.paths import keys_without, patch_keys, patch_path, path_names, sharing_keys
from tests.mech_cases import (
    ACTION,
    LEFT,
    MODELS,
    SOME,
    TOLERANCE,
    FolderFactory,
    assert_bits,
    assert_scores,
    n_torch_hooks,
    noise,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

# Within the sliding window of the tiny Gemma 3 as seen from the first action position, and out of it.
RECORD = (12, 13, 14, 30, 31, 33)
SENDERS = HeadSet([Head(0, 1), Head(0, 2), Head(1, 3)])
RECEIVERS = HeadSet([Head(1, 0), Head(2, 1), Head(2, 3)])


def clean_run(engine: Engine, *further: str, shared: int = 0) -> Run:
    """A run that kept what path patching takes, at the action positions and at the record's."""
    names = [*path_names(engine.model), *further]
    return engine.run(Query(LEFT, ACTION), names, shared, {"record": RECORD})


def other_z(model: Model) -> Tensor:
    return noise(model, model.n_layers, model.n_heads, model.d_head)


def moved(one: float, other: float) -> float:
    return abs(one - other)


@pytest.mark.parametrize(("family", "dtype"), MODELS)
@pytest.mark.parametrize("by_position", [False, True])
def test_patched_keys_are_those_of_a_forward_that_freezes_all_else(
    by_position: bool, family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    run = clean_run(Engine(model), *everything_names(model, "hook_mlp_out", "attn.hook_k"))
    kept = run.at["record"]
    value = (
        noise(model, model.n_layers, len(RECORD), model.n_heads, model.d_head)
        if by_position
        else other_z(model)
    )
    keys = keys_without(model, run, RECEIVERS, SENDERS, value)
    edits, hooks, found = [], [], {}
    for layer in range(model.n_layers):
        z = kept[f"blocks.{layer}.attn.hook_z"]
        for head in range(model.n_heads):
            own = value[layer, ..., head, :] if Head(layer, head) in SENDERS else z[:, head]
            edits.append(Edit("z", layer, head, RECORD, own))
        edits.append(Edit("mlp_out", layer, None, RECORD, kept[f"blocks.{layer}.hook_mlp_out"]))
        norm = attention_norm(model, layer, z)
        if norm is not None:
            hooks += hold_scale(model, f"blocks.{layer}.ln1_post", norm.scale, torch.tensor(RECORD))
        hooks.append(
            (f"blocks.{layer}.attn.hook_k", lambda k, _, layer=layer: found.__setitem__(layer, k.clone()))
        )
    with hooked(model, hooks, fires=1):
        reference.full_forward(model, replace(run.query, intervention=Intervention(tuple(edits))))
    assert list(keys) == [1, 2]
    for layer, patched in keys.items():
        expected = found[layer][0, list(RECORD)].reshape(patched.shape)
        torch.testing.assert_close(patched, expected, rtol=0, atol=TOLERANCE[dtype])
        assert float((patched - kept[f"blocks.{layer}.attn.hook_k"]).abs().max()) > 1e-2


def test_patched_keys_are_what_plain_torch_says(tiny_folder: FolderFactory, tiny_hf_model: Any) -> None:
    model, stock = tiny_model(tiny_folder, "llama"), tiny_hf_model("llama", "float64")
    run, value = clean_run(Engine(model)), other_z(model)
    keys = keys_without(model, run, HeadSet([Head(1, 0)]), HeadSet([Head(0, 1)]), value)
    seen: dict[str, Tensor] = {}
    first, second = stock.model.layers[0].self_attn.o_proj, stock.model.layers[1]
    handles = [
        first.register_forward_pre_hook(lambda _, args: seen.__setitem__("z", args[0][0])),
        second.register_forward_pre_hook(lambda _, args: seen.__setitem__("resid", args[0][0])),
    ]
    with torch.no_grad():
        stock(torch.tensor([run.query.tokens]))
        for handle in handles:
            handle.remove()
        own = slice(model.d_head, 2 * model.d_head)
        resid = seen["resid"][list(RECORD)]
        resid = resid + (value[0, 1] - seen["z"][list(RECORD)][:, own]) @ first.weight[:, own].T
        normed = resid * (resid.pow(2).mean(-1, keepdim=True) + stock.config.rms_norm_eps).rsqrt()
        expected = (normed * second.input_layernorm.weight) @ second.self_attn.k_proj.weight.T
    torch.testing.assert_close(keys[1].flatten(1), expected, rtol=0, atol=FP32)


def test_a_sender_reaches_the_layers_above_its_own_only(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "qwen3")
    run = clean_run(Engine(model), *everything_names(model, "attn.hook_k"))
    keys = keys_without(model, run, RECEIVERS, HeadSet([Head(1, 3)]), other_z(model))
    clean = [run.at["record"][f"blocks.{layer}.attn.hook_k"] for layer in (1, 2)]
    torch.testing.assert_close(keys[1], clean[0], rtol=0, atol=FP64)
    assert float((keys[2] - clean[1]).abs().max()) > 1e-2
    both, one, other = (
        keys_without(model, run, HeadSet([Head(2, 0)]), HeadSet(heads), other_z(model))[2]
        for heads in ([Head(0, 1), Head(1, 3)], [Head(0, 1)], [Head(1, 3)])
    )
    # changes add up before the norm, not behind it
    assert float((both - one - other + clean[1]).abs().max()) > 1e-3


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_the_packed_path_equals_hooked_full_forwards(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine, slow = Engine(model), Engine(model, slow=True)
    run, value = clean_run(engine, shared=10), other_z(model)
    hooks = n_torch_hooks(model)
    ran = engine.forwards.ran
    fast = patch_path(engine, run, RECEIVERS, SENDERS, value, RECORD)
    assert engine.forwards.ran == ran + 1
    assert_scores([fast], [patch_path(slow, run, RECEIVERS, SENDERS, value, RECORD)], TOLERANCE[dtype])
    assert slow.forwards.ran == 3
    assert moved(fast.total, run.score.total) > 10 * TOLERANCE[dtype]
    assert n_torch_hooks(model) == hooks


@pytest.mark.parametrize("family", SOME)
def test_a_path_that_is_not_changed_has_exactly_no_effect(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    run = clean_run(Engine(model), *everything_names(model, "attn.hook_k"))
    own = torch.stack([run.at["record"][name] for name in everything_names(model, "attn.hook_z")])
    engine, slow = Engine(model), Engine(model, slow=True)
    for one in (engine, slow):
        assert_bits([patch_path(one, run, RECEIVERS, SENDERS, own, RECORD)], [run.score])
        assert one.forwards.ran == 0
    keys = {layer: run.at["record"][f"blocks.{layer}.attn.hook_k"] for layer in range(model.n_layers)}
    for one in (engine, slow):  # without that short cut: their own keys, turned to their own positions
        assert_scores([patch_keys(one, run, all_heads(model), keys, RECORD)], [run.score], FP64)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_the_receivers_see_the_keys_and_by_the_arithmetic_of_attention(
    family: str, tiny_folder: FolderFactory
) -> None:
    """score[h, dest, p] = q[h, dest] · k'[p] / √d_head for the receivers, from the action positions alone."""
    model = tiny_model(tiny_folder, family)
    engine = Engine(model)
    run, value = clean_run(engine), other_z(model)
    receivers = HeadSet([Head(2, 1)])
    keys = keys_without(model, run, receivers, SENDERS, value)
    found = patch_keys(engine, run, receivers, keys, RECORD)
    rotary = family == "llama"
    new = keys[2][:, 1 // (model.n_heads // model.n_kv_heads)]
    if rotary:
        half = model.d_head // 2
        theta = model.hf_config.rope_parameters["rope_theta"]
        angles = torch.tensor(RECORD)[:, None] / theta ** (torch.arange(half) / half)
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        new = new * cos + torch.cat([-new[:, half:], new[:, :half]], -1) * sin
    start, seen = run.query.candidate.start, {}

    def keep(q: Tensor, hook: Any) -> None:
        seen["q"] = q[0, 1] if rotary else q[0].reshape(-1, model.n_heads, model.d_head)[:, 1]

    def replace_scores(scores: Tensor, hook: Any) -> Tensor:
        edited = scores.clone()
        edited[0, 1, start:, list(RECORD)] = seen["q"][start:] @ new.T / model.d_head**0.5
        return edited

    hooks = [
        (f"blocks.2.attn.hook_{'rot_q' if rotary else 'q'}", keep),
        ("blocks.2.attn.hook_attn_scores", replace_scores),
    ]
    with hooked(model, hooks, fires=1):
        [expected] = reference.score(model, [run.query])
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=0, atol=FP32)
    assert moved(found.total, run.score.total) > 1e-3


def test_heads_that_share_a_receivers_keys_are_named_and_left_alone(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "qwen2")
    engine = Engine(model)
    run, value = clean_run(engine), other_z(model)
    assert sharing_keys(model, RECEIVERS) == HeadSet([Head(1, 1), Head(2, 0), Head(2, 2)])
    assert not sharing_keys(model, all_heads(model)).heads
    assert not sharing_keys(tiny_model(tiny_folder, "gpt2"), RECEIVERS).heads
    one, other, both = (
        patch_path(engine, run, HeadSet(heads), SENDERS, value, RECORD).total
        for heads in ([Head(2, 0)], [Head(2, 1)], [Head(2, 0), Head(2, 1)])
    )
    assert min(moved(one, other), moved(one, both), moved(other, both)) > 1e-4
    assert min(moved(total, run.score.total) for total in (one, other, both)) > 1e-4


def test_what_is_no_path_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    run, value = clean_run(engine), other_z(model)
    low, high = HeadSet([Head(1, 0)]), HeadSet([Head(2, 1)])
    for receivers, senders in (
        (low, high),
        (low, HeadSet([Head(1, 2)])),
        (HeadSet([]), low),
        (low, HeadSet([])),
    ):
        with pytest.raises(InputError, match="there is no path"):
            keys_without(model, run, receivers, senders, value)
    for heads in ((HeadSet([Head(3, 0)]), low), (high, HeadSet([Head(0, 4)]))):
        with pytest.raises(InputError, match="does not exist"):
            keys_without(model, run, *heads, value)
    with pytest.raises(
        InputError, match="did not keep 'blocks.0.hook_resid_pre' at its observation positions"
    ):
        keys_without(model, run, high, low, value, "observation")
    for wrong in (value[0], value[1:], value[:, None].expand(-1, 5, -1, -1), value[..., 1:]):
        with pytest.raises(InputError, match="The senders' replacement is"):
            keys_without(model, run, high, low, wrong)
    keys = keys_without(model, run, high, low, value)
    for positions in ((), (3, 2), (3, 3), (-1, 3), (run.query.candidate.start,)):
        with pytest.raises(InputError, match="Keys are replaced at positions 0-"):
            patch_keys(engine, run, high, keys, positions)
    with pytest.raises(InputError, match="The keys of layer 2 are"):
        patch_keys(engine, run, high, keys, RECORD[1:])
    with pytest.raises(InputError, match="The keys of layer 1 are None"):
        patch_keys(engine, run, low, keys, RECORD)
    dirty = engine.run(Query(LEFT, ACTION, scale_heads(low, 0.0)), path_names(model), 0, {"record": RECORD})
    with pytest.raises(InputError, match="clean recipient"):
        patch_keys(engine, dirty, high, keys, RECORD)
