"""Attention edges knocked out: packed, by full forward, and by plain transformers with a mask of its own a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mech.engine import reference
from mech.engine.capture import everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.engine.sweep import score_interventions
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.hooks import EditLocation, HookMissed, edit_hooks, hooked
from mech.interventions.intervention import NOTHING, Intervention, Knockout, knock_out_edges, scale_heads
from mech.patching.patch import all_heads, sweep_names
from tests.mech_cases import (
    ACTION,
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
    n_torch_hooks,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.site_cases import KNOCKOUTS, RECORD, knockouts
from tests.stock_edits import stock_logprobs
from tests.tiny_models import SLIDING_WINDOW
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
VISIBLE = 1e-3
QUERY = Query(LEFT, ACTION)


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_knockouts_packed_by_full_forward_and_by_plain_transformers(
    family: str, dtype: str, tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]
) -> None:
    model, kinds = tiny_model(tiny_folder, family, dtype), knockouts(tiny_model(tiny_folder, family, dtype))
    assert tuple(kinds) == KNOCKOUTS
    queries = [QUERY] + [Query(LEFT, ACTION, kind) for kind in kinds.values()]
    found = Engine(model).score(queries)
    assert_scores(found, reference.score(model, queries), TOLERANCE[dtype])
    for kind, score in zip(kinds, found[1:], strict=True):
        assert np.abs(score.logprobs - found[0].logprobs).max() > VISIBLE / 10, kind
    if dtype == "float64":
        stock = exact_norms(tiny_hf_model(family, dtype))
        for kind, query, score in zip(("clean", *kinds), queries, found, strict=True):
            expected = stock_logprobs(family, stock, query)
            np.testing.assert_allclose(score.logprobs, expected, rtol=0, atol=FP64, err_msg=kind)


@pytest.mark.parametrize("kind", ["some heads", "given destinations"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_queries_under_one_knockout_share_what_they_may_whatever_the_prefix_cache(
    kind: str, family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    knockout = knockouts(model)[kind]
    queries = [
        Query(prompt, action, change)
        for change in (knockout, NOTHING)
        for prompt, action in (
            (LEFT, ACTION),
            (LEFT, (100, 101, 7, 8)),
            ((*LEFT, ACTION[0]), ACTION[1:]),
            (RIGHT, (*ACTION, 5)),
        )
    ]
    expected = reference.score(model, queries)
    for shared in (None, 0, RECORD[0] + 1, len(STEM) - 1):
        assert_scores(Engine(model).score(queries, shared), expected, FP64)


@pytest.mark.parametrize("family", SOME)
def test_a_cut_edge_has_no_weight_and_the_rest_of_the_row_has_it_all(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    names = everything_names(model, "attn.hook_pattern")
    query = Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(0, 1)]), RECORD))
    for shared in (0, len(STEM)):
        engine = Engine(model)
        clean, cut = (engine.run(one, names, shared).cache[names[0]] for one in (QUERY, query))
        left = clean[1].clone()
        left[:, list(RECORD)] = 0
        assert torch.equal(cut[1][:, list(RECORD)], torch.zeros_like(cut[1][:, list(RECORD)]))
        torch.testing.assert_close(cut[1], left / left.sum(-1, keepdim=True), rtol=0, atol=FP64)
        others = [0, 2, 3]
        torch.testing.assert_close(cut[others], clean[others], rtol=0, atol=FP64)
    # all layers are eager where all patterns are kept, one where one is cut
    assert_scores([engine.run(query, names, len(STEM)).score], Engine(model).score([query], len(STEM)), FP64)


# --- what changes nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_an_edge_that_is_not_there_is_cut_without_a_bit_of_change(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    """A source behind every destination, or no source: 0.0, and not about 0."""
    model = tiny_model(tiny_folder, family, dtype)
    early = knock_out_edges(all_heads(model), range(20, 25), tuple(range(10, 15)))
    assert early.edits and not knock_out_edges(all_heads(model), ()).edits
    for route in (Engine(model), Engine(model, slow=True)):
        clean = route.score([QUERY], 0)
        assert_bits(route.score([Query(LEFT, ACTION, early)], 0), clean)
        assert_bits(route.score([Query(LEFT, ACTION, knock_out_edges(all_heads(model), ()))], 0), clean)


def test_an_edge_outside_a_sliding_window_stays_masked(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "gemma3")
    sliding, full = (HeadSet(Head(layer, head) for head in range(4)) for layer in (2, 1))
    far, near = range(RECORD[0], RECORD[-1] + 1), range(30, 33)
    for route in (Engine(model), Engine(model, slow=True)):
        [clean] = route.score([QUERY], 0)
        assert_bits(route.score([Query(LEFT, ACTION, knock_out_edges(sliding, far))], 0), [clean])
        for heads, sources in ((sliding, near), (full, far), (full, near)):
            [changed] = route.score([Query(LEFT, ACTION, knock_out_edges(heads, sources))], 0)
            assert np.abs(changed.logprobs - clean.logprobs).max() > VISIBLE / 10


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_row_without_an_edge_is_an_error_by_name(tiny_folder: FolderFactory) -> None:
    for family in ("llama", "gpt2"):
        model = tiny_model(tiny_folder, family)
        Engine(model).score([QUERY])  # the bridge registers hooks of its own at its first forward
        before = n_torch_hooks(model)
        whole = knock_out_edges(HeadSet([Head(1, 0), Head(1, 2)]), range(12), (11, 20))
        parts = [
            knock_out_edges(HeadSet([Head(1, 2)]), sources, (11,)) for sources in (range(6), range(6, 12))
        ]
        one_left = knock_out_edges(HeadSet([Head(1, 2)]), range(11), (11,))
        for route in (Engine(model), Engine(model, slow=True)):
            with pytest.raises(InputError, match="L1H0 has no edge left at 1 of its destination positions"):
                route.score([Query(LEFT, ACTION, whole)])
            with pytest.raises(InputError, match="L1H2 has no edge left"):
                route.score([Query(LEFT, ACTION, parts[0] + parts[1])])
            assert np.isfinite(route.score([Query(LEFT, ACTION, one_left)])[0].total)
        assert n_torch_hooks(model) == before


def test_a_row_whose_whole_window_is_knocked_out_is_an_error(tiny_folder: FolderFactory) -> None:
    model, last = tiny_model(tiny_folder, "gemma3"), len(LEFT) - 1
    window = range(last - SLIDING_WINDOW + 1, last + 1)
    for route in (Engine(model), Engine(model, slow=True)):
        with pytest.raises(InputError, match="L0H1 has no edge left at 1 "):
            route.score([Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(0, 1)]), window))])
        assert route.score([Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(0, 1)]), window[1:]))])
        assert route.score([Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(1, 1)]), window))])


def test_heads_and_layers_that_do_not_exist_are_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    for route in (Engine(model), Engine(model, slow=True)):
        with pytest.raises(InputError, match="L0H4 does not exist: the model has heads 0-3"):
            route.score([Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(0, 4), Head(0, 1)]), RECORD))])
        with pytest.raises(InputError, match="no hook named 'blocks.3.attn.hook_attn_scores'"):
            route.score([Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(3, 0)]), RECORD))])


def test_a_cut_meets_the_scores_of_one_sequence_only(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    cut = Knockout(0, (1,), (2,), (5,))
    hooks = edit_hooks(model, [EditLocation(cut, torch.tensor([5]), torch.tensor([2]))])
    with pytest.raises(HookMissed, match=r"where \[1, head, dest_pos, src_pos\] is expected"):
        with hooked(model, hooks):
            model.bridge(torch.tensor([LEFT, LEFT]))
    with pytest.raises(ValueError, match="needs the rows"):
        with hooked(model, edit_hooks(model, [EditLocation(cut, None)])):
            model.bridge(torch.tensor([LEFT]))


@pytest.mark.real_model
def test_knockouts_on_the_real_model(smollm2: Any) -> None:
    text = "The rye flour is out. Please order the rye flour, and then the"
    prompt = tuple(smollm2.tokenizer(text)["input_ids"])
    action = tuple(smollm2.tokenizer(" rye flour")["input_ids"])
    late = HeadSet(Head(layer, head) for layer in (16, 18, 20) for head in range(smollm2.n_heads))
    queries = [
        Query(prompt, action, kind)
        for kind in (
            NOTHING,
            knock_out_edges(all_heads(smollm2), range(1, 4)),
            knock_out_edges(late, range(1, 4), tuple(range(8, len(prompt)))) + scale_heads(late, 0.5, "all"),
            Intervention(knock_out_edges(late, (2,)).edits),
        )
    ]
    found = Engine(smollm2).score(queries)
    assert_scores(found, reference.score(smollm2, queries), FP32 * 4)
    assert abs(found[1].total - found[0].total) > VISIBLE


def test_changes_side_by_side_act_at_the_candidate_positions_and_hide_what_stands_before_them(
    tiny_folder: FolderFactory,
) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    run = engine.run(QUERY, sweep_names(engine.model), shared=0)
    heads, start = HeadSet([Head(1, 0)]), QUERY.candidate.start
    last = score_interventions(engine, run, [knock_out_edges(heads, (start - 1,))])
    assert last[0].total != run.score.total
    with pytest.raises(InputError, match="before the action positions"):
        score_interventions(engine, run, [knock_out_edges(heads, (start,))])
    for where in ("all", (start,)):
        with pytest.raises(InputError, match="action positions only"):
            score_interventions(engine, run, [scale_heads(heads, 0.5, where)])
