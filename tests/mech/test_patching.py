"""A sweep gives what one hooked full forward per head gives; patching what the donor has is the donor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mech.engine import reference
from mech.engine import sweep as changes
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.engine.sweep import score_edits, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, replace_heads, scale_heads
from mech.patching.patch import (
    all_heads,
    patch_heads,
    patch_sets,
    patched_query,
    sweep_names,
)
from tests.mech.test_packed import ANSWERS, PROMPT
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    MODELS,
    RIGHT,
    SOME,
    SOME_MODELS,
    STEM,
    TOLERANCE,
    FolderFactory,
    assert_bits,
    assert_scores,
    everything_from,
    tiny_model,
    two_runs,
)
from tests.mech_cases import one_thread as one_thread
from tests.reference_forward import llama_forward
from tests.tolerances import FP32, FP64, NATS

MLP_OUT = [f"blocks.{layer}.hook_mlp_out" for layer in range(3)]
pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def pair(engine: Engine, shared: int = 0) -> tuple[Run, Run]:
    """A recipient and a donor: one action in contexts of unequal length."""
    names = sweep_names(engine.model)
    names += [f"blocks.{layer}.hook_mlp_out" for layer in range(engine.model.n_layers)]
    return two_runs(engine, names, shared)


def largest(one: float, other: float) -> float:
    return abs(one - other)


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_the_sweep_equals_a_hooked_forward_per_head(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine = Engine(model)
    recipient, donor = pair(engine, shared=len(STEM) if family == "llama" else 0)
    heads = all_heads(model)
    assert len(heads) == model.n_layers * model.n_heads
    fast = patch_heads(engine, recipient, donor)
    slow = patch_heads(Engine(model, slow=True), recipient, donor, heads)
    assert list(fast) == list(slow) == list(heads)
    assert_scores(list(fast.values()), list(slow.values()), TOLERANCE[dtype])
    effects = [abs(score.total - recipient.score.total) for score in slow.values()]
    assert min(effects) > 10 * TOLERANCE[dtype], "a head without effect cannot show that it was patched"


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_sweep_in_small_rows_is_the_sweep(
    family: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, family)
    engine = Engine(model)
    recipient, donor = pair(engine)
    whole = patch_heads(engine, recipient, donor)
    for nodes, rows in ((1, len(whole)), (len(ACTION) * 5, -(-len(whole) // 5))):
        monkeypatch.setattr(changes, "SWEEP_NODES", nodes)
        before = engine.forwards.ran
        assert_scores(list(patch_heads(engine, recipient, donor).values()), list(whole.values()), FP64)
        assert engine.forwards.ran - before == rows


def test_a_sweep_of_some_heads_is_that_part_of_the_sweep_and_changes_no_run(
    tiny_folder: FolderFactory,
) -> None:
    for family in ("qwen2", "gpt_neox"):
        engine = Engine(tiny_model(tiny_folder, family))
        recipient, donor = pair(engine)
        tensors = [
            *recipient.cache.values(),
            *donor.cache.values(),
            *recipient.prefix_cache.keys,
            *recipient.prefix_cache.values,
        ]
        before = [tensor.clone() for tensor in tensors]
        whole = patch_heads(engine, recipient, donor)
        some = patch_heads(engine, recipient, donor, HEADS)
        assert list(some) == list(HEADS)
        assert_scores(list(some.values()), [whole[head] for head in HEADS], FP64)
        assert_bits(list(patch_heads(engine, recipient, donor).values()), list(whole.values()))
        assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_a_patch_that_changes_nothing_is_exactly_zero(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    recipient, _ = pair(Engine(model))
    z = stacked(recipient, model, "attn.hook_z")
    engine = Engine(model)
    assert_bits(
        list(patch_heads(engine, recipient, recipient).values()), [recipient.score] * len(all_heads(model))
    )
    assert engine.forwards.ran == 0
    # without that short cut: the same numbers through both routes
    edits = [
        edit for head in all_heads(model) for edit in replace_heads(HeadSet([head]), z, "candidate").edits
    ]
    forced = score_edits(engine, recipient, edits)
    assert_scores(forced, [recipient.score] * len(edits), TOLERANCE[dtype])


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_on_the_slow_path_a_patch_with_its_own_z_is_exactly_zero(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    query, z = Query(LEFT, ACTION), {}
    for layer in range(model.n_layers):  # z as it flows in the stock forward, not as the packed row has it
        model.bridge.hook_dict[f"blocks.{layer}.attn.hook_z"].add_hook(
            lambda tensor, hook, layer=layer: z.__setitem__(layer, tensor.detach().clone())
        )
    try:
        [clean] = reference.score(model, [query])
    finally:
        model.bridge.reset_hooks()
    own = torch.stack(
        [z[layer][0].reshape(-1, model.n_heads, model.d_head) for layer in range(model.n_layers)]
    )
    recipient, _ = pair(Engine(model))
    for heads in (*(HeadSet([head]) for head in HEADS), all_heads(model)):
        patched = patched_query(recipient, heads, own[:, list(query.candidate)])
        assert patched.intervention.edits
        assert_bits(reference.score(model, [patched]), [clean])


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_everything_from_the_donor_gives_the_donors_score(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    recipient, donor = pair(Engine(model))
    query = replace(recipient.query, intervention=everything_from(model, donor))
    for engine in (Engine(model), Engine(model, slow=True)):
        assert_scores(engine.score([query]), [donor.score], TOLERANCE[dtype])
    assert largest(recipient.score.total, donor.score.total) > 1e-2
    if family == "gpt2":  # learned positions are part of what the action positions compute
        partial = [edit for edit in query.intervention.edits if edit.site != "resid_pre"]
        [score] = Engine(model).score([replace(query, intervention=replace(NOTHING, edits=tuple(partial)))])
        assert largest(score.total, donor.score.total) > 1e-3


@pytest.mark.parametrize("family", SOME)
def test_joint_sets_equal_their_hooked_forwards(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    engine = Engine(model)
    recipient, donor = pair(engine)
    sets = {"one": HeadSet([Head(1, 2)]), "some": HEADS, "all": all_heads(model), "none": HeadSet([])}
    fast = patch_sets(engine, recipient, donor, sets)
    slow = patch_sets(Engine(model, slow=True), recipient, donor, sets)
    assert list(fast) == list(slow) == list(sets)
    assert_scores(list(fast.values()), list(slow.values()), FP64)
    assert_scores([fast["none"]], [recipient.score], FP64)
    [single] = patch_heads(engine, recipient, donor, sets["one"]).values()
    assert_scores([fast["one"]], [single], FP64)
    singles = patch_heads(engine, recipient, donor, HEADS)
    summed = sum(score.total - recipient.score.total for score in singles.values())
    assert largest(fast["some"].total - recipient.score.total, summed) > 1e-3, "heads interact"


def test_a_patched_head_is_what_an_independent_forward_says(
    tiny_folder: FolderFactory, tiny_hf_model: Any
) -> None:
    model, stock = tiny_model(tiny_folder, "llama"), tiny_hf_model("llama", "float64")
    weights = {name: tensor.detach() for name, tensor in stock.state_dict().items()}
    short, other, action = (9, 41, 7, 8, 41), (5, 6, 7, 9, 41, 7), ACTION[:3]
    engine = Engine(model)
    queries = [Query(short, action), Query(other, action)]
    recipient, donor = (engine.run(query, sweep_names(model)) for query in queries)
    _, z = llama_forward(weights, stock.config, queries[1].tokens)
    for head, score in patch_heads(engine, recipient, donor, HEADS).items():
        places = {
            (head.layer, head.head, to): z[head.layer, head.head, source]
            for to, source in zip(queries[0].candidate, queries[1].candidate, strict=True)
        }
        logits, _ = llama_forward(weights, stock.config, queries[0].tokens, places)
        logprobs = logits.log_softmax(-1)
        expected = [
            float(logprobs[at, token]) for at, token in zip(queries[0].candidate, action, strict=True)
        ]
        # transformers keeps its table of rotary angles in float32, in a float64 model too
        np.testing.assert_allclose(score.logprobs, expected, rtol=0, atol=FP32)
        assert largest(score.total, recipient.score.total) > 1e-2


def test_what_cannot_be_patched_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine, names = Engine(model), sweep_names(model)
    recipient, donor = pair(engine)
    other = engine.run(Query(RIGHT, (*ACTION[:-1], 5)), names)
    dirty = engine.run(Query(LEFT, ACTION, scale_heads(HEADS, 0.0)), names)
    bare = engine.run(Query(LEFT, ACTION))
    z_only = engine.run(Query(LEFT, ACTION), names[1::2])
    for to, source, words in (
        (recipient, other, "same action"),
        (dirty, donor, "clean recipient"),
        (recipient, bare, "did not keep 'blocks.0.attn.hook_z'.*sweep_names"),
        (bare, donor, "did not keep 'blocks.0.attn.hook_z'"),
        (z_only, donor, "did not keep 'blocks.0.hook_resid_pre'"),
    ):
        with pytest.raises(InputError, match=words):
            patch_heads(engine, to, source)
    for source, words in ((other, "same action"), (bare, "did not keep")):
        with pytest.raises(InputError, match=words):
            patch_sets(engine, recipient, source, {"some": HEADS})
    for head, name in ((Head(3, 0), "L3H0"), (Head(0, 4), "L0H4")):
        with pytest.raises(InputError, match=f"{name} does not exist"):
            patch_heads(engine, recipient, donor, HeadSet([Head(0, 0), head]))
        with pytest.raises(InputError, match=f"{name} does not exist"):
            patch_sets(engine, recipient, donor, {"some": HeadSet([head])})
    for kept, lacking in ((names, "hook_mlp_out"), ([*names[1::2], *MLP_OUT], "hook_resid_pre")):
        with pytest.raises(InputError, match=f"did not keep 'blocks.0.{lacking}'"):
            everything_from(model, engine.run(Query(LEFT, ACTION), kept))


@pytest.mark.real_model
def test_the_sweep_equals_hooked_forwards_on_the_real_model(smollm2: Any) -> None:
    tokens = [tuple(smollm2.tokenizer(text)["input_ids"]) for text in (PROMPT, ANSWERS[0])]
    names = [*sweep_names(smollm2), *(f"blocks.{layer}.hook_mlp_out" for layer in range(smollm2.n_layers))]
    engine = Engine(smollm2)
    lines = PROMPT.splitlines()
    without = tuple(smollm2.tokenizer("\n".join([*lines[:3], "> "]))["input_ids"])
    assert len(tokens[0]) - len(without) > 10
    recipient, donor = (engine.run(Query(prompt, tokens[1]), names) for prompt in (tokens[0], without))
    heads = HeadSet([Head(0, 2), Head(9, 5), Head(18, 6), Head(29, 8)])
    fast = patch_heads(engine, recipient, donor, heads)
    slow = patch_heads(Engine(smollm2, slow=True), recipient, donor, heads)
    for head in heads:
        assert fast[head].total == pytest.approx(slow[head].total, abs=NATS)
    query = replace(recipient.query, intervention=everything_from(smollm2, donor))
    [score] = engine.score([query])
    assert score.total == pytest.approx(donor.score.total, abs=NATS)
    assert recipient.score.total - donor.score.total > 5, (
        "the failed call was not made likelier by standing there"
    )
