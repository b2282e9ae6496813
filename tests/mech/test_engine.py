"""A run keeps what TransformerLens would have kept, and a kept run is the run, bit for bit, without the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import einops
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mech.engine.capture import everything_names
from mech.engine.engine import Engine, ForwardCounter, Run
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, Edit, Intervention, scale_heads
from mech.models.model import Model
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
    assert_bits,
    assert_scores,
    noise,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.tiny_models import FAMILIES
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
QUERY = Query(LEFT, ACTION)
KINDS = (
    *(
        "attn.hook_z",
        "attn.hook_q",
        "attn.hook_k",
        "attn.hook_v",
        "attn.hook_pattern",
        "attn.hook_attn_scores",
    ),
    *("hook_resid_pre", "hook_resid_post", "hook_mlp_out", "hook_attn_out"),
)
SETS = {"record": [2, 3, 30], "first": [0], "nothing": []}
Z0, Z1, PATTERN1 = "blocks.0.attn.hook_z", "blocks.1.attn.hook_z", "blocks.1.attn.hook_pattern"
ABLATED = scale_heads(HEADS, 0.0, "all")


def stock_cache(model: Model, query: Query) -> dict[str, Tensor]:
    """TransformerLens's own cache, batch axis taken off."""
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(torch.tensor([query.tokens]))
    return {name: cache[name][0] for name in everything_names(model, *KINDS)}


def expected_rows(name: str, activation: Tensor, where: Sequence[int]) -> Tensor:
    rows = torch.tensor(list(where), dtype=torch.long)
    return activation[:, rows] if name.endswith(("pattern", "attn_scores")) else activation[rows]


def visible(model: Model, name: str, tensor: Tensor, where: Sequence[int]) -> Tensor:
    """Attention scores where the position may look: what is hidden is "very negative", by various numbers."""
    if not name.endswith("attn_scores"):
        return tensor
    floor = torch.finfo(model.dtype).min / 2
    return tensor.where(tensor > floor, torch.tensor(float("-inf"), dtype=model.dtype))


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_a_run_keeps_what_transformer_lens_keeps(family: str, dtype: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    stock, names = stock_cache(model, QUERY), everything_names(model, *KINDS)
    for shared in (0, len(STEM)):
        at = SETS if not shared else {"record": [len(STEM), 30]}
        run = Engine(model).run(QUERY, names, shared, at)
        assert set(run.cache) == set(names) and set(run.at) == {*at, "candidate"}
        for label, where in {"candidate": list(QUERY.candidate), **at}.items():
            for name in names:
                found, wanted = run.at[label][name], expected_rows(name, stock[name], where)
                assert found.dtype == model.dtype
                torch.testing.assert_close(
                    visible(model, name, found, where),
                    visible(model, name, wanted, where),
                    rtol=0,
                    atol=TOLERANCE[dtype],
                    msg=lambda text, name=name, label=label: f"{name} at {label}: {text}",
                )


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_activations_have_the_documented_shapes(family: str, tiny_folder: FolderFactory) -> None:
    model, n = tiny_model(tiny_folder, family), len(ACTION)
    cache = Engine(model).run(QUERY, [f"blocks.1.{kind}" for kind in KINDS]).cache
    by_head, by_kv_head = (n, model.n_heads, model.d_head), (n, model.n_kv_heads, model.d_head)
    by_source, wide = (model.n_heads, n, len(QUERY.tokens)), (n, model.d_model)
    shapes = [by_head, by_head, by_kv_head, by_kv_head, by_source, by_source, wide, wide, wide, wide]
    assert [tuple(tensor.shape) for tensor in cache.values()] == shapes
    rows = cache[PATTERN1].sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=FP64)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_heads_outputs_add_up_to_the_attention_output(
    family: str, tiny_folder: FolderFactory, tiny_hf_model: Any
) -> None:
    model = tiny_model(tiny_folder, family)
    weights = tiny_hf_model(family, "float64").state_dict()
    run = Engine(model).run(QUERY, everything_names(model, "attn.hook_z", "attn.hook_out"))
    for layer in range(model.n_layers):
        name = {"gpt2": "transformer.h.{}.attn.c_proj", "gpt_neox": "gpt_neox.layers.{}.attention.dense"}.get(
            family, "model.layers.{}.self_attn.o_proj"
        )
        weight = weights[f"{name.format(layer)}.weight"]
        weight = weight if family == "gpt2" else weight.T
        by_head = einops.rearrange(weight, "(head d_head) d_model -> head d_head d_model", head=model.n_heads)
        z = run.cache[f"blocks.{layer}.attn.hook_z"]
        total = torch.zeros(len(ACTION), model.d_model, dtype=torch.float64)
        for head in range(model.n_heads):
            total = total + z[:, head] @ by_head[head]
        total = total + weights.get(f"{name.format(layer)}.bias", 0.0)
        torch.testing.assert_close(total, run.cache[f"blocks.{layer}.attn.hook_out"], rtol=0, atol=FP64)


@pytest.mark.parametrize("family", SOME)
def test_a_run_scores_what_the_engine_scores(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    rows = noise(model, len(ACTION), model.d_model)
    edited = Intervention((Edit("mlp_out", 1, None, "candidate", rows), *ABLATED.edits))
    for kind in (NOTHING, edited, scale_heads(HEADS, 0.5, "candidate") + ABLATED):
        query = Query(LEFT, ACTION, kind)
        engine = Engine(model)
        runs = [engine.run(query, shared=shared) for shared in (0, len(LEFT) - 1)]
        assert_scores([run.score for run in runs], Engine(model, slow=True).score([query]) * 2, FP64)
        for run in runs:
            whole = engine.prefix_cache(LEFT[:-1], kind)
            assert (run.prefix_cache.tokens, run.prefix_cache.fingerprint) == (
                whole.tokens,
                whole.fingerprint,
            )
            for one, other in zip(
                run.prefix_cache.keys + run.prefix_cache.values, whole.keys + whole.values, strict=True
            ):
                torch.testing.assert_close(one, other, rtol=0, atol=FP64)


def test_a_kept_activation_is_the_edited_one(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    run = Engine(model).run(Query(LEFT, ACTION, scale_heads(HeadSet([Head(0, 1)]), 0.0, "candidate")), [Z0])
    assert not run.cache[Z0][:, 1].any() and run.cache[Z0][:, [0, 2, 3]].all()


@pytest.mark.parametrize(
    ("at", "shared"),
    [({"record": [-1]}, 0), ({"record": [len(QUERY.tokens)]}, 0), ({"record": [4]}, 5), (None, len(LEFT))],
)
def test_positions_that_the_run_does_not_have_are_refused(
    at: dict[str, list[int]] | None, shared: int, tiny_folder: FolderFactory
) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    with pytest.raises(InputError, match="positions lie outside"):
        engine.run(QUERY, [Z0], shared, at)


def test_the_candidate_positions_cannot_be_given_another_meaning(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    with pytest.raises(InputError, match="follow from the query"):
        engine.run(QUERY, [Z0], at={"candidate": [0, 1]})
    with pytest.raises(InputError, match="not negative"):
        engine.run(QUERY, [Z0], shared=-1)


def test_a_hook_that_does_not_exist_cannot_be_kept(tiny_folder: FolderFactory) -> None:
    with pytest.raises(
        InputError, match="no hook named 'blocks.0.attn.hook_zz'. Close names: blocks.0.attn.hook_z"
    ):
        Engine(tiny_model(tiny_folder, "llama")).run(QUERY, ["blocks.0.attn.hook_zz"])


# --- keeping on disk -----------------------------------------------------------------------------------------------


def kept_run(engine: Engine, keep: Sequence[str] = (Z0, PATTERN1), shared: int = 0) -> Run:
    return engine.run(QUERY, keep, shared, {"record": [25, 30], "nothing": []})


def assert_same_run(one: Run, other: Run) -> None:
    assert_bits([one.score], [other.score])
    assert {label: set(cache) for label, cache in one.at.items()} == {k: set(c) for k, c in other.at.items()}
    assert set(one.cache) == set(other.cache)
    for label, cache in one.at.items():
        for name, tensor in cache.items():
            assert torch.equal(tensor, other.at[label][name]), (label, name)
            assert tensor.dtype == other.at[label][name].dtype
    assert (one.prefix_cache.tokens, one.prefix_cache.fingerprint) == (
        other.prefix_cache.tokens,
        other.prefix_cache.fingerprint,
    )
    for ours, theirs in zip(
        one.prefix_cache.keys + one.prefix_cache.values,
        other.prefix_cache.keys + other.prefix_cache.values,
        strict=True,
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
@pytest.mark.parametrize("shared", [0, len(STEM)])
def test_a_kept_run_is_the_run_and_costs_no_forward(
    shared: int, family: str, dtype: str, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    first, second = Engine(model, tmp_path), Engine(model, tmp_path)
    runs = [kept_run(engine, shared=shared) for engine in (Engine(model), first, second)]
    assert_same_run(runs[0], runs[1])
    assert_same_run(runs[0], runs[2])
    assert second.forwards == ForwardCounter(ran=0, saved=first.forwards.ran)
    assert first.forwards == ForwardCounter(ran=1 + bool(shared), saved=0)


@pytest.mark.parametrize("slow", [False, True])
def test_kept_scores_are_the_scores_and_cost_no_forward(
    slow: bool, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    queries = [QUERY, Query(RIGHT, (5,)), Query(LEFT, ACTION, ABLATED)]
    first, second = Engine(model, tmp_path, slow), Engine(model, tmp_path, slow)
    scores = first.score(queries)
    assert first.forwards.saved == 0 < first.forwards.ran
    assert_bits(second.score(queries), scores)
    assert second.forwards == ForwardCounter(ran=0, saved=first.forwards.ran)
    assert_bits(scores, Engine(model, slow=slow).score(queries))


def test_a_prompt_of_one_or_two_tokens_can_be_kept(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    """Keys and values of one position may be views of one memory, which safetensors refuses to write."""
    for family in FAMILIES:
        model = tiny_model(tiny_folder, family)
        for query, shared in ((Query((9,), (5,)), 0), (Query((8, 9), (5,)), 0), (Query((8, 9), (5,)), 1)):
            first, second = Engine(model, tmp_path), Engine(model, tmp_path)
            assert_same_run(first.run(query, [Z0], shared), second.run(query, [Z0], shared))
            assert second.forwards.ran == 0 < first.forwards.ran


def test_another_question_is_not_answered_from_the_cache(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    model = tiny_model(tiny_folder, "llama")
    kept_run(Engine(model, tmp_path))
    Engine(model, tmp_path).score([QUERY])
    others = [
        Query(LEFT, (*ACTION[:-1], 5)),  # only a token that is scored but not run
        Query(LEFT, ACTION, ABLATED),
        Query(LEFT, ACTION, scale_heads(HEADS, 0.0, "candidate")),
        Query((*LEFT, ACTION[0]), ACTION[1:]),  # the same tokens, cut elsewhere
    ]
    for query in others:
        engine = Engine(model, tmp_path)
        run = engine.run(query, [Z0, PATTERN1], at={"record": [25, 30], "nothing": []})
        assert engine.forwards == ForwardCounter(ran=1, saved=0)
        # A kept pattern is computed by eager attention, whose last bits are not those of fused attention.
        assert_bits([run.score], [Engine(model).run(query, [PATTERN1]).score])
        scoring = Engine(model, tmp_path)
        assert_bits(scoring.score([query]), Engine(model).score([query]))
        assert scoring.forwards.ran > 0
    engine = Engine(model, tmp_path)
    moved = engine.run(QUERY, [Z0], at={"record": [24, 30], "nothing": []})
    assert engine.forwards.ran == 1 and not torch.equal(
        moved.at["record"][Z0][0], kept_run(engine).at["record"][Z0][0]
    )


def test_a_further_name_is_run_once_and_what_was_kept_stays(
    tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    model = tiny_model(tiny_folder, "llama")
    kept_run(Engine(model, tmp_path), [Z0])
    second = Engine(model, tmp_path)
    both = kept_run(second, [Z0, Z1])
    assert second.forwards == ForwardCounter(ran=1, saved=0)
    assert_same_run(both, kept_run(Engine(model), [Z0, Z1]))
    third = Engine(model, tmp_path)
    assert set(kept_run(third, [Z0]).cache) == {Z0}, "a run has the names it was asked for"
    assert_same_run(kept_run(third, [Z0, Z1]), both)
    assert_same_run(kept_run(third, []), kept_run(Engine(model), []))
    assert third.forwards == ForwardCounter(ran=0, saved=3)


def test_another_model_or_precision_finds_nothing(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    kept_run(Engine(tiny_model(tiny_folder, "llama"), tmp_path))
    for family, dtype in (("llama", "float32"), ("qwen2", "float64")):
        engine = Engine(tiny_model(tiny_folder, family, dtype), tmp_path)
        assert_same_run(kept_run(engine), kept_run(Engine(engine.model)))
        assert engine.forwards == ForwardCounter(ran=1, saved=0)


@pytest.mark.parametrize("field", ["model_sha256", "query", "dtype", "torch", "format", "kind"])
def test_an_entry_that_says_it_is_of_something_else_is_refused_by_name(
    field: str, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"), tmp_path)
    kept_run(engine)
    [path] = tmp_path.rglob("run-*.safetensors")
    with safe_open(path, framework="pt") as file:
        header = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    save_file(tensors, path, {**header, field: "other"})
    with pytest.raises(InputError, match=rf"{path.name} is stale or foreign \(its {field} differ"):
        kept_run(Engine(engine.model, tmp_path))
    save_file(tensors, path, header)
    fresh = Engine(engine.model, tmp_path)
    kept_run(fresh)
    assert fresh.forwards == ForwardCounter(ran=0, saved=1)


@pytest.mark.parametrize(("kept_bytes", "n_kept", "n_again"), [(0, 4, 5), (10**9, 5, 0)])
def test_trunks_in_memory_are_few_and_right(
    kept_bytes: int, n_kept: int, n_again: int, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four, or as many as fit: then no prefix cache is run twice."""
    monkeypatch.setattr("mech.engine.engine.KEPT_BYTES", kept_bytes)
    engine = Engine(tiny_model(tiny_folder, "llama"))
    kinds = [NOTHING, *(scale_heads(HEADS, alpha, "all") for alpha in (0.0, 0.2, 0.4, 0.6))]
    queries = [Query(LEFT, ACTION, kind) for kind in kinds]
    scores = [engine.score([query], len(STEM)) for query in queries]
    assert len(engine._prefixes) == n_kept
    before = engine.forwards.ran
    again = [engine.score([query], len(STEM)) for query in queries]
    for one, other in zip(scores, again, strict=True):
        assert_bits(one, other)
    assert engine.forwards.ran - before == len(kinds) + n_again
    assert len({score[0].total for score in scores}) == len(kinds)


def test_no_queries_have_no_scores(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"), tmp_path)
    for _ in ("answered", "read back"):
        assert engine.score([]) == []
    assert engine.forwards.ran == 0
