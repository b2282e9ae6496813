"""One packed row over a frozen prefix cache scores what full forwards score, whatever is shared, edited or split."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mech.engine import engine as engine_module
from mech.engine import packed, reference
from mech.engine.engine import Engine
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query
from mech.engine.trie import Trie
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, Edit, Intervention, replace_heads, scale_heads
from mech.load import load_model
from tests.mech_cases import (
    ACTION,
    HEADS,
    KINDS,
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
    exact_norms,
    family_of_queries,
    interventions,
    noise,
    spread,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.reference_forward import llama_forward
from tests.tiny_models import FAMILIES, SLIDING_WINDOW
from tests.tolerances import FP32, FP64, NATS

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
VISIBLE = 1e-3
"""A smaller effect than this (nats) would make a parity test say little."""


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_packed_equals_full_forwards(family: str, dtype: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    queries = family_of_queries()
    assert_scores(Engine(model).score(queries), reference.score(model, queries), TOLERANCE[dtype])


@pytest.mark.parametrize(("family", "kind"), spread(KINDS))
def test_packed_equals_full_forwards_under(family: str, kind: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    queries = family_of_queries(interventions(model, len(ACTION))[kind], few=True)
    found = Engine(model).score(queries)
    assert_scores(found, reference.score(model, queries), FP64)
    [clean] = reference.score(model, [Query(LEFT, ACTION)])
    assert np.abs(found[0].logprobs - clean.logprobs).max() > VISIBLE


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_interventions_of_one_row_do_not_touch_each_other(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    kinds = interventions(model, len(ACTION))
    queries = [Query(LEFT, ACTION, kind) for kind in (NOTHING, *kinds.values())]
    assert_scores(Engine(model).score(queries), reference.score(model, queries), TOLERANCE[dtype])


@pytest.mark.parametrize("family", SOME)
def test_any_length_of_the_shared_prefix_gives_the_same(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    queries = family_of_queries(few=True) + family_of_queries(scale_heads(HEADS, 0.4, "all"), few=True)
    queries.append(Query(STEM, ACTION))
    expected = reference.score(model, queries)
    longest = len(STEM) - 1  # the shortest prompt's last token is a action position
    for shared in (None, 0, 1, SLIDING_WINDOW + 3, longest):
        assert_scores(Engine(model).score(queries, shared), expected, FP64)


def test_a_prompt_of_one_token_has_no_trunk(tiny_folder: FolderFactory) -> None:
    for family in FAMILIES:
        model = tiny_model(tiny_folder, family)
        queries = [Query((9,), ACTION), Query((9,), (5,), scale_heads(HEADS, 0.0)), Query((8, 9), ACTION)]
        assert_scores(Engine(model).score(queries), reference.score(model, queries), FP64)


@pytest.mark.parametrize("shared", [-1, len(STEM), len(STEM) + 1])
def test_a_prefix_that_is_not_shared_is_refused(shared: int, tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    with pytest.raises(InputError, match=f"share {len(STEM) - 1} tokens, not {shared}"):
        engine.score(family_of_queries(), shared)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_splitting_rows_gives_the_same(
    family: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, family)
    patched = interventions(model, len(ACTION))["z replaced at the candidate"]
    queries = family_of_queries() + family_of_queries(patched, few=True)
    whole = Engine(model)
    expected = whole.score(queries)
    for nodes in (1, 30):  # one query may exceed the limit alone
        monkeypatch.setattr(engine_module, "MAX_NODES", nodes)
        split = Engine(model)
        assert_scores(split.score(queries), expected, FP64)
        assert split.forwards.ran > whole.forwards.ran == 2
    assert_scores(expected, reference.score(model, queries), FP64)


def test_unembedding_in_parts_gives_the_same(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama")
    expected = Engine(model).score(family_of_queries())
    monkeypatch.setattr(packed, "UNEMBED_ROWS", 3)
    assert_scores(Engine(model).score(family_of_queries()), expected, FP64)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_plain_transformers(
    family: str, tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]
) -> None:
    stock = exact_norms(tiny_hf_model(family, "float64"))
    queries = family_of_queries()
    for query, score in zip(queries, Engine(tiny_model(tiny_folder, family)).score(queries), strict=True):
        whole = query.prompt + query.action
        with torch.no_grad():
            logprobs = stock(torch.tensor([whole])).logits[0].log_softmax(-1)
        expected = [float(logprobs[at - 1, whole[at]]) for at in range(len(query.prompt), len(whole))]
        np.testing.assert_allclose(score.logprobs, expected, rtol=0, atol=FP64)
        assert score.total == pytest.approx(sum(expected), abs=FP64)
        best = [int(logprobs[at - 1].argmax()) == whole[at] for at in range(len(query.prompt), len(whole))]
        assert score.argmax.tolist() == best


def test_a_greedy_continuation_is_recognised(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    tokens = list(LEFT)
    for _ in range(3):
        with torch.no_grad():
            tokens.append(int(model.bridge(torch.tensor([tokens]))[0, -1].argmax()))
    greedy = tuple(tokens[len(LEFT) :])
    other = (*greedy[:2], (greedy[2] + 1) % model.d_vocab)
    scores = Engine(model).score([Query(LEFT, greedy), Query(LEFT, other)])
    assert scores[0].is_greedy and not scores[1].is_greedy
    assert (scores[0].n_argmax_match, scores[1].n_argmax_match) == (3, 2)


def test_replaced_z_gives_the_log_probability_of_an_independent_forward(
    tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]
) -> None:
    model, stock = tiny_model(tiny_folder, "llama"), tiny_hf_model("llama", "float64")
    weights = {name: tensor.detach() for name, tensor in stock.state_dict().items()}
    z = noise(model, model.n_layers, len(ACTION), model.n_heads, model.d_head)
    one = noise(model, model.d_head, seed=5)
    everywhere = Intervention((Edit("z", 1, 2, "all", one),))
    queries = [Query(LEFT, ACTION), Query(LEFT, ACTION, everywhere + replace_heads(HEADS, z, "candidate"))]
    places = {
        (head.layer, head.head, position): z[head.layer, at, head.head]
        for head in HEADS
        for at, position in enumerate(queries[1].candidate)
    }
    places |= {(1, 2, position): one for position in range(len(queries[1].tokens))}
    expected = []
    for query, replaced in zip(queries, ({}, places), strict=True):
        logits, _ = llama_forward(weights, stock.config, query.tokens, replaced)
        logprobs = logits.log_softmax(-1)
        expected.append([float(logprobs[at, t]) for at, t in zip(query.candidate, ACTION, strict=True)])
    for route in (Engine(model), Engine(model, slow=True)):
        for score, wanted in zip(route.score(queries), expected, strict=True):
            # transformers keeps its table of rotary angles in float32, in a float64 model too
            np.testing.assert_allclose(score.logprobs, wanted, rtol=0, atol=FP32)
    assert np.abs(np.subtract(*expected)).max() > VISIBLE


def test_a_soft_cap_on_the_logits_is_kept(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder("gemma3", "float64"), tmp_path / "capped"))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "final_logit_softcapping": 1.5}))
    model = load_model(str(folder), dtype="float64", check=False)
    found = Engine(model).score(family_of_queries())
    assert_scores(found, reference.score(model, family_of_queries()), FP64)
    [plain] = reference.score(tiny_model(tiny_folder, "gemma3"), family_of_queries()[:1])
    assert np.abs(found[0].logprobs - plain.logprobs).max() > VISIBLE


def test_a_trunk_of_another_intervention_or_other_tokens_is_refused(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    ablated = scale_heads(HEADS, 0.0, "all")
    clean = engine.prefix_cache(STEM)
    with pytest.raises(ValueError, match="another intervention"):
        packed.score_row(engine.model, [Query(LEFT, ACTION, ablated)], clean)
    with pytest.raises(ValueError, match="another intervention"):
        packed.score_row(engine.model, [Query(LEFT, ACTION)], engine.prefix_cache(STEM, ablated))
    with pytest.raises(ValueError, match="does not begin"):
        packed.score_row(engine.model, [Query((1, *LEFT), ACTION)], clean)
    with pytest.raises(ValueError, match="share their all-position edits"):
        queries = [Query(LEFT, ACTION), Query(LEFT, ACTION, ablated)]
        packed.score_row(engine.model, queries, PrefixCache((), "clean"))
    with pytest.raises(ValueError, match="another length"):
        packed.run_row(engine.model, Trie(2), clean)
    with pytest.raises(ValueError, match="another intervention"):
        packed.grow(engine.model, clean, (1,), ablated)


def test_a_trunk_grown_in_steps_is_the_trunk_grown_at_once(tiny_folder: FolderFactory) -> None:
    for family in FAMILIES:
        engine = Engine(tiny_model(tiny_folder, family))
        ablated = scale_heads(HEADS, 0.0, "all")
        steps = packed.grow(engine.model, engine.prefix_cache(STEM[:9], ablated), STEM[9:], ablated)
        whole = engine.prefix_cache(STEM, ablated)
        assert (steps.tokens, steps.fingerprint) == (whole.tokens, whole.fingerprint)
        for one, other in zip(steps.keys + steps.values, whole.keys + whole.values, strict=True):
            assert one.shape == (1, engine.model.n_kv_heads, len(STEM), engine.model.d_head)
            torch.testing.assert_close(one, other, rtol=0, atol=FP64)


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_using_a_trunk_does_not_change_it(family: str, dtype: str, tiny_folder: FolderFactory) -> None:
    """A transformers cache is mutated by every forward: the second suffix scored on one was off by 0.2."""
    engine = Engine(tiny_model(tiny_folder, family, dtype))
    prefix_cache = engine.prefix_cache(STEM)
    before = [tensor.clone() for tensor in prefix_cache.keys + prefix_cache.values]
    one, other = [Query(LEFT, ACTION)], [Query(RIGHT, (5, 6), scale_heads(HEADS, 0.0, "candidate"))]
    first = packed.score_row(engine.model, one, prefix_cache)
    packed.score_row(engine.model, other, prefix_cache)
    engine.run(other[0], shared=len(STEM))
    assert_bits(packed.score_row(engine.model, one, prefix_cache), first)
    assert all(map(torch.equal, prefix_cache.keys + prefix_cache.values, before))


def test_two_orders_of_calls_give_the_same_bits(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    queries = [*family_of_queries(), Query(LEFT, ACTION, scale_heads(HEADS, 0.4, "all"))]
    calls = [queries[:1], queries[-1:], queries[1:6], queries]
    forth, back = Engine(model), Engine(model)
    first = [forth.score(call, len(STEM) - 1) for call in calls]
    second = [back.score(call, len(STEM) - 1) for call in reversed(calls)]
    for one, other in zip(first, reversed(second), strict=True):
        assert_bits(one, other)


def test_a_factor_of_one_changes_no_bit(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    for route in (Engine(model), Engine(model, slow=True)):
        same = route.score([Query(LEFT, ACTION, scale_heads(HEADS, 1.0, "candidate"))])
        assert_bits(same, route.score([Query(LEFT, ACTION)]))


@pytest.mark.parametrize("route", ["packed", "slow", "run"])
def test_weights_that_are_not_finite_give_no_score(
    route: str, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    model = load_model(str(tiny_folder("llama")), check=False)
    with torch.no_grad():
        next(model.bridge.original_model.parameters())[ACTION[1]] = float("nan")
    engine = Engine(model, tmp_path / "kept", slow=route == "slow")
    query = Query(LEFT, ACTION)
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.run(query) if route == "run" else engine.score([query])
    kept = [path.name for path in (tmp_path / "kept").rglob("*.safetensors")]
    assert not any(name.startswith(("scores", "run")) for name in kept), kept


def test_a_head_beyond_the_last_is_an_error_and_not_no_effect(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    for route in (Engine(model), Engine(model, slow=True)):
        with pytest.raises(InputError, match="L0H4 does not exist"):
            route.score([Query(LEFT, ACTION, scale_heads(HeadSet([Head(0, 4)]), 0.0))])
        with pytest.raises(InputError, match="no hook named"):
            route.score([Query(LEFT, ACTION, scale_heads(HeadSet([Head(3, 0)]), 0.0))])
        with pytest.raises(InputError, match="must be 8 wide"):
            route.score([Query(LEFT, ACTION, Intervention((Edit("z", 0, 0, "all", torch.zeros(1)),)))])


PROMPT = """A pantry keeps a list of what it holds. Commands read the list or change one entry of it.
stock(item='oat flakes') answers with a number of grams; order(item, grams, day) asks for more by a date.
Please order two kilograms of rye flour for the ninth of March and then say how much is there.
> order(item='rye flour', grams='two', day='2031-03-09')
grams must be a whole number
> """
ANSWERS = (
    "order(item='rye flour', grams='two', day='2031-03-09')",
    "order(item='rye flour', grams=2000, day='2031-03-09')",
    "stock(item='rye flour')",
    "order",
)


@pytest.mark.real_model
def test_packed_equals_full_forwards_on_the_real_model(smollm2: Any) -> None:
    prompt = tuple(smollm2.tokenizer(PROMPT)["input_ids"])
    actions = [tuple(smollm2.tokenizer(text)["input_ids"]) for text in ANSWERS]
    heads = HeadSet([Head(4, 1), Head(18, 6), Head(25, 3)])
    z = noise(smollm2, smollm2.n_layers, smollm2.n_heads, smollm2.d_head)
    kinds = [NOTHING, NOTHING, scale_heads(heads, 0.0, "candidate"), replace_heads(heads, z, "all")]
    queries = [Query(prompt, *pair) for pair in zip(actions, kinds, strict=True)]
    assert len(prompt) > 90
    found, expected = Engine(smollm2).score(queries), reference.score(smollm2, queries)
    assert_scores(found, expected, FP32 * 4)
    for one, other in zip(found, expected, strict=True):
        assert one.total == pytest.approx(other.total, abs=NATS)
