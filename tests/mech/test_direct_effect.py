"""A direct effect is what one hooked full forward gives that freezes all the rest; the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.engine.sweep import by_layer, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import scale_heads
from mech.models.model import Model
from mech.patching import direct_effect
from mech.patching import frozen_norm as writes
from mech.patching.direct_effect import (
    Parts,
    direct_changes,
    direct_changes_mlp,
    direct_names,
    head_parts,
    mlp_parts,
)
from mech.patching.frozen_norm import (
    attention_norm,
    attention_output,
    final_norm,
    head_outputs,
    require_additive,
)
from mech.patching.patch import all_heads, final_resid, patch_heads
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    MODELS,
    RIGHT,
    SOME_MODELS,
    STEM,
    TOLERANCE,
    FolderFactory,
    n_torch_hooks,
    tiny_model,
    two_runs,
)
from tests.mech_cases import one_thread as one_thread
from tests.tiny_models import FAMILIES
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def direct_effects(*arguments: Any) -> dict[Head, float]:
    return {head: float(one.sum()) for head, one in direct_changes(*arguments).items()}


def direct_effects_mlp(*arguments: Any) -> dict[int, float]:
    return {layer: float(one.sum()) for layer, one in direct_changes_mlp(*arguments).items()}


def pair(engine: Engine, shared: int = 0) -> tuple[Run, Run]:
    """A recipient and a donor: one action in contexts of unequal length."""
    names = direct_names(engine.model)
    return two_runs(engine, names, shared)


def all_changes(model: Model, recipient: Run, donor: Run) -> Tensor:
    """What every head, every MLP and the embedding change in the recipient's final residual stream, summed."""
    own, theirs = (stacked(run, model, "attn.hook_z") for run in (recipient, donor))
    total = by_layer(donor, model, "hook_resid_pre")[0] - by_layer(recipient, model, "hook_resid_pre")[0]
    for layer in range(model.n_layers):
        total = total + head_outputs(model, layer, range(model.n_heads), own[layer], theirs[layer]).sum(0)
    for one, other in zip(*(by_layer(run, model, "hook_mlp_out") for run in (donor, recipient)), strict=True):
        total = total + one - other
    return total


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_the_fast_path_equals_a_hooked_forward_that_freezes_all_the_rest(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine, slow = Engine(model), Engine(model, slow=True)
    recipient, donor = pair(engine, shared=len(STEM) if family == "llama" else 0)
    heads = HeadSet([Head(0, 3), Head(1, 0), Head(model.n_layers - 1, 2)])
    before = engine.forwards.ran
    fast = direct_effects(engine, recipient, donor)
    assert engine.forwards.ran == before, "no block is run"
    assert list(fast) == list(all_heads(model))
    hooks = n_torch_hooks(model)
    for one, other in (
        (fast, direct_effects(slow, recipient, donor, heads)),
        (direct_effects_mlp(engine, recipient, donor), direct_effects_mlp(slow, recipient, donor)),
    ):
        for key, effect in other.items():
            assert one[key] == pytest.approx(effect, abs=4 * TOLERANCE[dtype])
        assert max(map(abs, other.values())) > 1e-2, "parts without effect cannot show that they were patched"
    # In a parallel block the first MLP reads the embedding only: nothing changes, but for rounding on some processors,
    # and what does not change at all is not run.
    parts = len(heads) + model.n_layers
    assert slow.forwards.ran in ((parts - 1, parts) if family == "gpt_neox" else (parts,))
    assert n_torch_hooks(model) == hooks


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_mlps_and_embedding_make_the_whole_difference_under_the_frozen_norms(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    recipient, donor = pair(Engine(model))
    final, other = final_resid(model, recipient), final_resid(model, donor)
    total = all_changes(model, recipient, donor)
    expected = other - final
    if family == "gemma3":  # the donor's attention under the recipient's scales of the norm behind it
        for layer in range(model.n_layers):
            mine, its = (
                attention_norm(model, layer, stacked(run, model, "attn.hook_z")[layer])
                for run in (recipient, donor)
            )
            assert mine is not None and its is not None
            expected = expected + its.out * (its.scale / mine.scale - 1)
        assert float((expected - (other - final)).abs().max()) > 1e-2, "freezing it would not be tested"
    torch.testing.assert_close(total, expected, rtol=0, atol=FP64)
    norm, live = final_norm(model, final), model.bridge.ln_final(other[None])[0]
    if family != "gemma3":  # the donor's final residual stream, under the recipient's scale
        bias = getattr(model.bridge.ln_final.original_component, "bias", None)
        offset = 0.0 if bias is None else bias
        scaled = (live - offset) * final_norm(model, other).scale / norm.scale + offset
        torch.testing.assert_close(norm.out + norm.change(total), scaled, rtol=0, atol=FP64)
        assert float((scaled - live).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_norm_is_linear_and_at_its_own_input_the_norm(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    recipient, donor = pair(Engine(model))
    x, y = final_resid(model, recipient), final_resid(model, donor)
    norm = final_norm(model, x)
    assert torch.equal(norm.out, model.bridge.ln_final(x[None])[0])
    assert float(norm.change(torch.zeros_like(x)).abs().max()) == 0.0
    torch.testing.assert_close(
        norm.change(2 * x + y), 2 * norm.change(x) + norm.change(y), rtol=0, atol=10 * FP64
    )
    # the whole norm's derivative is that of the frozen one plus what the scale does
    step = 1e-6 * y
    moved = model.bridge.ln_final((x + step)[None])[0]
    other = final_norm(model, x + step)
    bias = getattr(model.bridge.ln_final.original_component, "bias", None)
    offset = 0.0 if bias is None else bias
    torch.testing.assert_close(
        (moved - offset) * other.scale / norm.scale + offset, norm.out + norm.change(step), rtol=0, atol=FP64
    )


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_a_patch_that_changes_nothing_is_exactly_zero(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine = Engine(model)
    recipient, donor = pair(engine)
    assert set(direct_effects(engine, recipient, recipient).values()) == {0.0}
    assert set(direct_effects_mlp(engine, recipient, recipient).values()) == {0.0}
    parts: list[Parts] = list(head_parts(engine, recipient, recipient).values())
    assert {(one.total, one.direct, one.indirect) for one in parts} == {(0.0, 0.0, 0.0)}
    z = stacked(recipient, model, "attn.hook_z")
    assert float(head_outputs(model, 0, [0, 1], z[0], z[0]).abs().max()) == 0.0
    assert max(map(abs, direct_effects(engine, recipient, donor, HEADS).values())) > 1e-3


def test_an_independent_computation_agrees(tiny_folder: FolderFactory, tiny_hf_model: Any) -> None:
    """Plain torch on the transformers model: the head's slice of o_proj, the final norm by hand, the logits."""
    model, stock = tiny_model(tiny_folder, "llama"), tiny_hf_model("llama", "float64")
    engine = Engine(model)
    recipient, donor = pair(engine)
    found = direct_effects(engine, recipient, donor)
    inputs: list[list[Tensor]] = []
    finals = []
    for run in (recipient, donor):
        seen: list[Tensor] = []
        handles = [
            layer.self_attn.o_proj.register_forward_pre_hook(
                lambda _, args, seen=seen: seen.append(args[0][0])
            )
            for layer in stock.model.layers
        ]
        handles.append(
            stock.model.norm.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0][0]))
        )
        with torch.no_grad():
            stock(torch.tensor([run.query.tokens]))
        for handle in handles:
            handle.remove()
        rows = list(run.query.candidate)
        finals.append(seen.pop()[rows])
        inputs.append([z[rows] for z in seen])
    scale = (finals[0].pow(2).mean(-1, keepdim=True) + stock.config.rms_norm_eps).sqrt()
    d_head = stock.config.hidden_size // stock.config.num_attention_heads

    def logp(final: Tensor) -> float:
        logits = (final / scale * stock.model.norm.weight) @ stock.lm_head.weight.T
        return float(logits.log_softmax(-1)[range(len(ACTION)), list(ACTION)].sum())

    for head, effect in found.items():
        own = slice(head.head * d_head, (head.head + 1) * d_head)
        delta = inputs[1][head.layer][:, own] - inputs[0][head.layer][:, own]
        weight = stock.model.layers[head.layer].self_attn.o_proj.weight[:, own]
        with torch.no_grad():
            expected = logp(finals[0] + delta @ weight.T) - logp(finals[0])
        assert effect == pytest.approx(expected, abs=FP32)  # transformers keeps its rotary table in float32


def test_in_the_last_layer_a_heads_indirect_effect_is_the_norms_and_the_mlps(
    tiny_folder: FolderFactory,
) -> None:
    for family in ("gpt_neox", "gpt2"):
        model = tiny_model(tiny_folder, family)
        engine = Engine(model)
        recipient, donor = pair(engine)
        parts = head_parts(engine, recipient, donor)
        total = patch_heads(engine, recipient, donor)
        for head, part in parts.items():
            assert part.total == pytest.approx(total[head].total - recipient.score.total, abs=1e-12)
            assert part.total == pytest.approx(part.direct + part.indirect)
        last = model.n_layers - 1
        own, theirs = (stacked(run, model, "attn.hook_z") for run in (recipient, donor))
        [delta] = head_outputs(model, last, [1], own[last], theirs[last])
        if (
            family == "gpt_neox"
        ):  # parallel block: nothing reads the last heads but the final norm, here let live
            moved = model.bridge.unembed(model.bridge.ln_final((final_resid(model, recipient) + delta)[None]))
            logprobs = moved[0].log_softmax(-1)[range(len(ACTION)), list(ACTION)]
            live = float(logprobs.detach().sum()) - recipient.score.total
            assert parts[Head(last, 1)].total == pytest.approx(live, abs=FP64)
            assert abs(parts[Head(last, 1)].indirect) > 1e-4, "the scale does react"
        else:
            assert abs(parts[Head(last, 1)].indirect) > 1e-3, "the last MLP reacts"
        mlp = mlp_parts(engine, recipient, donor)
        assert list(mlp) == list(range(model.n_layers)) and abs(mlp[1].indirect) > 1e-3


def test_a_logit_soft_cap_is_applied(tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tiny_folder, "gemma3")
    plain = direct_effects(Engine(model), *pair(Engine(model)))
    monkeypatch.setattr(model.hf_config, "final_logit_softcapping", 2.0, raising=False)
    engine, slow = Engine(model), Engine(model, slow=True)
    recipient, donor = pair(engine)
    fast, reference = (direct_effects(one, recipient, donor, HEADS) for one in (engine, slow))
    for head in HEADS:
        assert fast[head] == pytest.approx(reference[head], abs=FP64)
        assert abs(fast[head] - plain[head]) > 1e-3


def test_a_model_whose_parts_do_not_add_up_is_refused_by_name(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama")
    recipient, donor = pair(Engine(model))
    resid = [*by_layer(recipient, model, "hook_resid_pre"), final_resid(model, recipient)]
    z, mlp = stacked(recipient, model, "attn.hook_z"), by_layer(recipient, model, "hook_mlp_out")
    require_additive(model, resid, z, mlp)
    with pytest.raises(InputError, match="Layer 1 of LlamaForCausalLM adds to the residual stream more than"):
        require_additive(model, resid, z, [mlp[0], 1.1 * mlp[1], mlp[2]])
    residual_multiplier: Any = lambda *args: 0.5 * attention_output(*args)  # noqa: E731 - as in Granite
    monkeypatch.setattr(writes, "attention_output", residual_multiplier)
    for measure in (direct_effects, direct_effects_mlp):
        with pytest.raises(InputError, match="Layer 0 of LlamaForCausalLM"):
            measure(Engine(model), recipient, donor)


def test_a_norm_that_is_not_affine_is_refused_by_name(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama")
    recipient, donor = pair(Engine(model))
    stock = model.bridge.ln_final.original_component
    monkeypatch.setattr(stock, "forward", lambda x: torch.tanh(x) * stock.weight)
    with pytest.raises(InputError, match="The norm 'ln_final' of LlamaForCausalLM is not weight times"):
        direct_effects(Engine(model), recipient, donor)


def test_what_cannot_be_measured_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine, names = Engine(model), direct_names(model)
    recipient, donor = pair(engine)
    other = engine.run(Query(RIGHT, (*ACTION[:-1], 5)), names)
    dirty = engine.run(Query(LEFT, ACTION, scale_heads(HEADS, 0.0)), names)
    no_final = engine.run(Query(LEFT, ACTION), names[:-1])
    for to, source, words in (
        (recipient, other, "same action"),
        (dirty, donor, "clean recipient"),
        (no_final, donor, "did not keep 'blocks.2.hook_resid_post'"),
        (engine.run(Query(LEFT, ACTION), names[:3]), donor, "did not keep 'blocks.0.hook_mlp_out'"),
    ):
        for measure in (direct_effects, direct_effects_mlp):
            with pytest.raises(InputError, match=words):
                measure(engine, to, source)
    with pytest.raises(InputError, match="L3H0 does not exist"):
        direct_effects(engine, recipient, donor, HeadSet([Head(3, 0)]))
    with pytest.raises(InputError, match="There is no layer 3"):
        direct_effects_mlp(engine, recipient, donor, [3])


def test_the_batch_may_be_cut_anywhere(tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny_model(tiny_folder, "qwen2"))
    recipient, donor = pair(engine)
    whole = direct_effects(engine, recipient, donor)
    for rows in (1, 9, 1000):
        monkeypatch.setattr(direct_effect, "UNEMBED_ROWS", rows)
        cut: Sequence[float] = list(direct_effects(engine, recipient, donor).values())
        np.testing.assert_allclose(cut, list(whole.values()), rtol=0, atol=FP64)
