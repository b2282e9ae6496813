"""Attribution is the derivative of the exact patched score; integrated, it is the exact effect of what moves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.engine.reference import score
from mech.engine.sweep import stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import Edit, Intervention, scale_heads
from mech.models.model import Model
from mech.patching import attribution
from mech.patching.attribution import Attribution, attribute, attribution_names
from mech.patching.gradients import Shifted, full_gradients, shifted_gradients
from mech.patching.patch import all_heads, direction_sign, patch_heads, patch_layers, patch_sets, sweep_names
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    RIGHT,
    SOME,
    SOME_MODELS,
    STEM,
    TOLERANCE,
    FolderFactory,
    exact_norms,
    n_torch_hooks,
    tiny_model,
    two_runs,
)
from tests.mech_cases import one_thread as one_thread
from tests.tiny_models import FAMILIES
from tests.tolerances import FP64

STEP = 1e-4
DERIVATIVE = FP64 / STEP  # a difference quotient magnifies the noise of its values by one over its step
pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def pair(model: Model, shared: int = 0) -> tuple[Run, Run]:
    """A recipient and a donor: one action in contexts of unequal length."""
    engine, names = Engine(model), attribution_names(model)
    return two_runs(engine, names, shared)


def flat(found: Attribution) -> Tensor:
    return torch.tensor([*found.heads.values(), *found.mlps.values()], dtype=torch.float64)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def patched(model: Model, recipient: Run, edit: Callable[[float], Edit], alpha: float) -> float:
    """Exact score by a full hooked forward, with the activation at this point of its line."""
    query = recipient.query
    return score(model, [Query(query.prompt, query.action, Intervention((edit(alpha),)))])[0].total


def lines(model: Model, recipient: Run, donor: Run) -> list[Callable[[float], Edit]]:
    """The straight line of every head, then of every MLP output, in the order of `flat`."""
    z, mlp = (
        (stacked(recipient, model, kind), stacked(donor, model, kind))
        for kind in ("attn.hook_z", "hook_mlp_out")
    )

    def head_line(layer: int, head: int) -> Callable[[float], Edit]:
        ours, theirs = (side[layer, :, head] for side in z)
        return lambda alpha: Edit("z", layer, head, "candidate", ours + alpha * (theirs - ours))

    def mlp_line(layer: int) -> Callable[[float], Edit]:
        ours, theirs = (side[layer] for side in mlp)
        return lambda alpha: Edit("mlp_out", layer, None, "candidate", ours + alpha * (theirs - ours))

    return [head_line(head.layer, head.head) for head in all_heads(model)] + [
        mlp_line(layer) for layer in range(model.n_layers)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_estimate_is_the_derivative_of_the_exact_patched_score(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    recipient, donor = pair(model)
    slopes = [
        (patched(model, recipient, line, STEP) - patched(model, recipient, line, -STEP)) / (2 * STEP)
        for line in lines(model, recipient, donor)
    ]
    found = attribute(Engine(model), recipient, donor)
    assert list(found.heads) == list(all_heads(model)) and list(found.mlps) == list(range(model.n_layers))
    assert_close(flat(found), torch.tensor(slopes, dtype=torch.float64), DERIVATIVE)
    if family == "gpt_neox":
        # The first MLP of parallel blocks reads the embedding alone, so no context reaches it; the two runs lay their
        # rows out differently, and a processor may round their products differently in the last bit.
        assert slopes.pop(len(found.heads)) == 0.0 and abs(found.mlps[0]) <= FP64
    assert min(map(abs, slopes)) > 10 * DERIVATIVE, "a slope of zero cannot tell right from wrong"


def test_of_the_later_tokens_the_estimate_is_the_derivative_of_their_part_of_the_score(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "gemma3")
    recipient, donor = pair(model)

    def tail(edit: Edit, first: int) -> float:
        query = recipient.query
        [found] = score(model, [Query(query.prompt, query.action, Intervention((edit,)))])
        return float(found.logprobs[first:].sum())

    whole = flat(attribute(Engine(model), recipient, donor))
    for first in (1, len(ACTION) - 1):
        slopes = [
            (tail(line(STEP), first) - tail(line(-STEP), first)) / (2 * STEP)
            for line in lines(model, recipient, donor)
        ]
        found = flat(attribute(Engine(model), recipient, donor, first=first))
        assert_close(found, torch.tensor(slopes, dtype=torch.float64), DERIVATIVE)
        assert float((found - whole).abs().max()) > 1e-3
        slow = flat(attribute(Engine(model, slow=True), recipient, donor, first=first))
        assert_close(found, slow, 10 * FP64)
        few = [
            flat(attribute(engine, recipient, donor, 3, first=first))
            for engine in (Engine(model), Engine(model, slow=True))
        ]
        assert_close(few[0], few[1], 10 * FP64)
    for wrong in (-1, len(ACTION)):
        with pytest.raises(InputError, match=f"no token {wrong} of an action of {len(ACTION)}"):
            attribute(Engine(model), recipient, donor, first=wrong)


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
@pytest.mark.parametrize("steps", [1, 2])
def test_packed_rows_give_what_full_forwards_give(
    family: str, dtype: str, steps: int, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    recipient, donor = pair(model, shared=len(STEM) if family == "llama" else 0)
    fast = attribute(Engine(model), recipient, donor, steps)
    slow = attribute(Engine(model, slow=True), recipient, donor, steps)
    assert list(fast.heads) == list(slow.heads) and fast.steps == slow.steps == steps
    # an estimate sums up products of gradients and differences, of which there are a few dozen
    assert_close(flat(fast), flat(slow), 10 * TOLERANCE[dtype])
    changed = [value for value in flat(slow).tolist() if abs(value) > TOLERANCE[dtype]]
    assert len(changed) >= len(flat(slow)) - 1 and min(map(abs, changed)) > 100 * TOLERANCE[dtype]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_what_transformers_and_torch_say(
    family: str, tiny_folder: FolderFactory, tiny_hf_model: Any
) -> None:
    model, stock = tiny_model(tiny_folder, family), exact_norms(tiny_hf_model(family, "float64"))
    projections, mlps = stock_modules(stock)
    sides = []
    for prompt in (LEFT, RIGHT):
        kept: dict[tuple[str, int], Tensor] = {}
        handles = []
        for layer, (projection, mlp) in enumerate(zip(projections, mlps, strict=True)):
            handles.append(projection.register_forward_pre_hook(keeper(kept, ("z", layer))))
            handles.append(mlp.register_forward_hook(keeper(kept, ("mlp_out", layer))))
        logits = stock(torch.tensor([[*prompt, *ACTION[:-1]]])).logits[0, -len(ACTION) :]
        for handle in handles:
            handle.remove()
        total = logits.log_softmax(-1)[range(len(ACTION)), ACTION].sum()
        gradients = torch.autograd.grad(total, list(kept.values()))
        tail = {key: tensor.detach()[0, -len(ACTION) :] for key, tensor in kept.items()}
        sides.append((tail, {key: one[0, -len(ACTION) :] for key, one in zip(kept, gradients, strict=True)}))
    (ours, slope), (theirs, _) = sides
    products = {key: (theirs[key] - ours[key]) * slope[key] for key in ours}
    found = attribute(Engine(model), *pair(model))
    for head, estimate in found.heads.items():
        own = slice(head.head * model.d_head, (head.head + 1) * model.d_head)
        expected = float(products["z", head.layer][:, own].sum())
        assert estimate == pytest.approx(expected, abs=10 * FP64, rel=0)
    for layer, estimate in found.mlps.items():
        assert estimate == pytest.approx(float(products["mlp_out", layer].sum()), abs=10 * FP64, rel=0)


def keeper(kept: dict[tuple[str, int], Tensor], key: tuple[str, int]) -> Callable[..., None]:
    """A torch hook that keeps the last tensor it is given: the output, or the input of a pre-hook."""

    def hook(module: Any, *given: Any) -> None:
        last = given[-1]
        kept[key] = last[0] if isinstance(last, tuple) else last

    return hook


def stock_modules(stock: Any) -> tuple[list[Any], list[Any]]:
    """Output projections of the attention, and what gives the MLPs' part of the stream, of a transformers model."""
    named = dict(stock.named_modules())
    ends = ("self_attn.o_proj", "attention.dense", "attn.c_proj")
    projections = [module for name, module in named.items() if name.endswith(ends)]
    normed = [
        module for name, module in named.items() if name.endswith(".post_feedforward_layernorm")
    ]  # Gemma 3
    return projections, normed or [module for name, module in named.items() if name.endswith(".mlp")]


@pytest.mark.parametrize("family", SOME)
def test_integrated_over_many_steps_what_moves_alone_gets_its_exact_effect(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    recipient, donor = pair(model)
    engine, base = Engine(model), recipient.score.total
    exact_heads = patch_heads(engine, recipient, donor, HEADS)
    exact_mlps = patch_layers(engine, recipient, donor, "mlp_out")
    for head in list(HEADS)[:2]:
        exact = exact_heads[head].total - base
        errors = [
            abs(attribute(engine, recipient, donor, steps, HeadSet([head]), ("z",)).heads[head] - exact)
            for steps in (1, 4, 16)
        ]
        # the midpoint rule: four times the steps leave a sixteenth of the error
        assert errors[2] < errors[1] / 8 and errors[2] < errors[0] / 50
    found = attribute(engine, recipient, donor, 16, sites=("mlp_out",))
    once = attribute(engine, recipient, donor, 1, sites=("mlp_out",))
    assert not found.heads
    for layer, score_ in exact_mlps.items():
        exact = score_.total - base
        if abs(exact) > FP64:
            assert abs(found.mlps[layer] - exact) < abs(once.mlps[layer] - exact) / 50
        else:
            assert (family, layer) == ("gpt_neox", 0) and abs(found.mlps[layer]) <= FP64


@pytest.mark.parametrize("family", SOME)
def test_integrated_estimates_of_a_layer_sum_up_to_its_exact_joint_effect(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    recipient, donor = pair(model)
    engine = Engine(model)
    layers = {str(i): HeadSet(Head(i, j) for j in range(model.n_heads)) for i in range(model.n_layers)}
    joint = patch_sets(engine, recipient, donor, layers)
    few, many = (attribute(engine, recipient, donor, steps, sites=("z",)) for steps in (8, 32))
    for name, heads in layers.items():
        exact = joint[name].total - recipient.score.total
        gaps = [abs(sum(found.heads[head] for head in heads) - exact) for found in (few, many)]
        assert gaps[1] < gaps[0] / 8 and gaps[1] < abs(exact) / 100


def test_some_heads_are_that_part_of_all_and_move_without_the_others(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "qwen2")
    recipient, donor = pair(model)
    engine = Engine(model)
    two = HeadSet([Head(1, 0), Head(1, 3)])
    whole, some = attribute(engine, recipient, donor), attribute(engine, recipient, donor, heads=two)
    assert list(some.heads) == list(two) and some.mlps == whole.mlps
    assert some.heads == {head: whole.heads[head] for head in two}
    before = engine.forwards.ran
    some = attribute(engine, recipient, donor, 4, two, ("z",))
    assert engine.forwards.ran == before + 1, "layers in which nothing moves are not run"
    whole = attribute(engine, recipient, donor, 4, sites=("z",))
    assert abs(some.heads[two.heads[0]] - whole.heads[two.heads[0]]) > 100 * FP64
    joint = patch_sets(engine, recipient, donor, {"two": two})["two"].total - recipient.score.total
    found = attribute(engine, recipient, donor, 64, two, ("z",))
    assert sum(found.heads.values()) == pytest.approx(joint, rel=1e-2)
    none = attribute(engine, recipient, donor, 2, HeadSet([]), ("z",))
    assert none.heads == {} and none.mlps == {}


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_a_donor_that_is_the_recipient_has_estimates_of_exactly_zero(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    recipient, _ = pair(model)
    for engine in (Engine(model), Engine(model, slow=True)):
        for steps in (1, 2):
            found = attribute(engine, recipient, recipient, steps)
            assert set(found.heads.values()) == {0.0} and set(found.mlps.values()) == {0.0}
            assert len(found.heads) == len(all_heads(model)) and len(found.mlps) == model.n_layers


def test_a_shift_of_zero_leaves_the_run_as_it_is_and_small_rows_are_the_same(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for family in ("llama", "gemma3"):
        model = tiny_model(tiny_folder, family)
        recipient, donor = pair(model)
        engine = Engine(model)
        whole = flat(attribute(engine, recipient, donor, 3))
        before = engine.forwards.ran
        with monkeypatch.context() as patch:
            patch.setattr(attribution, "GRADIENT_NODES", 2 * len(ACTION))
            assert_close(flat(attribute(engine, recipient, donor, 3)), whole, FP64)
        assert engine.forwards.ran - before == model.n_layers * 3  # z and MLP output, two copies a row
        # at the recipient itself, the integrated path's first point is the plain gradient
        resid = [recipient.cache[name] for name in everything_names(model, "hook_resid_pre")]
        none = torch.zeros(len(ACTION), model.n_heads * model.d_head, dtype=model.dtype)
        runs = [Shifted("z", layer, none) for layer in range(model.n_layers)]
        packed = shifted_gradients(model, recipient.query, recipient.prefix_cache, resid, runs)
        for run, gradient in zip(runs, packed, strict=True):
            [alone] = full_gradients(model, recipient.query, [run])
            assert_close(gradient, alone, FP64)
        with pytest.raises(ValueError, match="layer order"):
            shifted_gradients(model, recipient.query, recipient.prefix_cache, resid, runs[::-1])


def test_the_directions_differ_by_the_sign(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    found = attribute(Engine(model), *pair(model))
    assert found.signed(direction_sign("denoise")) == found
    noise = found.signed(direction_sign("noise"))
    assert noise.steps == found.steps and torch.equal(flat(noise), -flat(found))
    with pytest.raises(InputError, match="'sideways' is not a direction"):
        direction_sign("sideways")


def test_parameters_keep_no_gradient_and_flags_and_hooks_are_as_before_whatever_happens(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "llama")
    recipient, donor = pair(model)
    parameters = list(model.bridge.original_model.parameters())
    tensors = [
        *recipient.cache.values(),
        *donor.cache.values(),
        *recipient.prefix_cache.keys,
        *recipient.prefix_cache.values,
    ]
    values = [tensor.clone() for tensor in tensors]
    parameters[1].requires_grad_(False)  # as a user may have done
    flags, hooks = [one.requires_grad for one in parameters], n_torch_hooks(model)
    assert set(flags) == {True, False}
    last = model.bridge.hook_dict[f"blocks.{model.n_layers - 1}.hook_mlp_out"]

    def fail(activation: Tensor, hook: Any) -> None:
        raise RuntimeError("a hook of the user's")

    try:
        for engine in (Engine(model), Engine(model, slow=True)):
            for steps in (1, 2):
                with torch.no_grad():  # as inside an evaluation loop
                    attribute(engine, recipient, donor, steps)
                last.add_hook(fail)
                with pytest.raises(RuntimeError, match="a hook of the user's"):
                    attribute(engine, recipient, donor, steps)
                model.bridge.reset_hooks()
                assert [one.requires_grad for one in parameters] == flags
                assert all(one.grad is None for one in parameters)
                assert n_torch_hooks(model) == hooks
    finally:
        model.bridge.reset_hooks()
        parameters[1].requires_grad_(True)
    assert all(map(torch.equal, tensors, values)) and not any(one.requires_grad for one in tensors)


def test_what_cannot_be_attributed_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine, names = Engine(model), attribution_names(model)
    recipient, donor = pair(model)
    other = engine.run(Query(RIGHT, (*ACTION[:-1], 5)), names)
    dirty = engine.run(Query(LEFT, ACTION, scale_heads(HEADS, 0.0)), names)
    z_only, bare = engine.run(Query(LEFT, ACTION), sweep_names(model)), engine.run(Query(LEFT, ACTION))
    for to, source, more, words in (
        (recipient, other, {}, "same action"),
        (dirty, donor, {}, "clean recipient"),
        (recipient, bare, {}, "did not keep 'blocks.0.attn.hook_z'.*attribution_names"),
        (z_only, donor, {}, "did not keep 'blocks.0.hook_mlp_out'"),
        (recipient, donor, {"steps": 0}, "at least one step, not 0"),
        (recipient, donor, {"sites": ("z", "q")}, "no attribution to 'q': choose from z, mlp_out"),
        (recipient, donor, {"heads": HeadSet([Head(3, 0)])}, "L3H0 does not exist"),
    ):
        with pytest.raises(InputError, match=words):
            attribute(engine, to, source, **more)
    assert attribute(engine, z_only, donor, sites=("z",)).heads == attribute(engine, recipient, donor).heads
    model.bridge.train()
    try:
        with pytest.raises(InputError, match="training mode"):
            attribute(engine, recipient, donor)
    finally:
        model.bridge.eval()
