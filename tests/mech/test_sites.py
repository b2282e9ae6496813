"""Edits of every site at every kind of place, in every family: packed, by full forward, and by plain transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from mech.engine import reference
from mech.engine.capture import everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import HEAD_SITES, HOOKS, Site, hook_name
from mech.interventions.intervention import NOTHING, Edit, Intervention, scale_heads
from mech.interventions.site_check import CHECKED_AT_LOAD, require_causal
from mech.interventions.sites import KV_SITES, kv_head_of
from mech.load import load_model
from mech.models.model import Model
from mech.patching.patch import all_heads
from tests.mech_cases import (
    ACTION,
    LEFT,
    RIGHT,
    SOME,
    FolderFactory,
    assert_bits,
    assert_scores,
    exact_norms,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.site_cases import PLACES, SITES, WHERES, site_edits
from tests.stock_edits import stock_logprobs
from tests.tiny_models import FAMILIES
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
VISIBLE = 1e-3
NORMED = ("qwen3", "gemma3")
# As long as LEFT, and other from the second token on.
OTHER = (LEFT[0], *range(120, 120 + len(LEFT) - 2), LEFT[-1])


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_packed_by_full_forward_and_by_plain_transformers(
    family: str, where: str, tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]
) -> None:
    model, stock = tiny_model(tiny_folder, family), exact_norms(tiny_hf_model(family, "float64"))
    kinds = site_edits(model, WHERES[where])
    queries = [Query(LEFT, ACTION)] + [Query(LEFT, ACTION, kind) for kind in kinds.values()]
    found = Engine(model).score(queries)
    assert_scores(found, reference.score(model, queries), FP64)
    for site, query, score in zip(("clean", *kinds), queries, found, strict=True):
        np.testing.assert_allclose(
            score.logprobs, stock_logprobs(family, stock, query), rtol=0, atol=FP64, err_msg=site
        )
    for site, score in zip(kinds, found[1:], strict=True):
        assert np.abs(score.logprobs - found[0].logprobs).max() > VISIBLE, site
    assert len({query.key for query in queries}) == len(queries)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_queries_under_one_edit_at_given_places_share_what_they_may(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    edits = [*site_edits(model, PLACES).values(), *site_edits(model, PLACES, by_position=False).values()]
    queries = [
        Query(prompt, action, kind)
        for kind in (NOTHING, *edits)
        for prompt, action in (
            (LEFT, (100, 5, 7)),
            (LEFT, (6, 101, 8, 7)),
            ((*LEFT, ACTION[0]), ACTION[1:]),
            (RIGHT, (*ACTION, 5)),
        )
    ]
    assert_scores(Engine(model).score(queries), reference.score(model, queries), FP64)


@pytest.mark.parametrize("factor", [0.0, 0.3])
@pytest.mark.parametrize("family", SOME)
def test_factors_at_every_site(
    family: str, factor: float, tiny_folder: FolderFactory, tiny_hf_model: Callable[..., Any]
) -> None:
    model, stock = tiny_model(tiny_folder, family), exact_norms(tiny_hf_model(family, "float64"))
    normed = ("q", "k") if family in NORMED and factor > 0 else ()
    queries = []
    for site in SITES:
        edit = Edit(site, 1, 1 if site in HEAD_SITES else None, PLACES, None, factor)
        if site in normed:
            with pytest.raises(InputError, match=f"hook_{site} is normalised after the hook"):
                Engine(model).score([Query(LEFT, ACTION, Intervention((edit,)))])
        else:
            queries.append(Query(LEFT, ACTION, Intervention((edit,))))
    found = Engine(model).score(queries)
    assert_scores(found, reference.score(model, queries), FP64)
    for query, score in zip(queries, found, strict=True):
        np.testing.assert_allclose(score.logprobs, stock_logprobs(family, stock, query), rtol=0, atol=FP64)


@pytest.mark.parametrize("family", SOME)
def test_a_factor_of_one_at_every_site_changes_no_bit(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family, "float32" if family in ("llama", "gpt2") else "float64")
    kind = Intervention(
        tuple(
            Edit(site, layer, 1 if site in HEAD_SITES else None, where, None, 1.0)
            for where in WHERES.values()
            for site in SITES
            for layer in range(model.n_layers)
        )
    )
    for route in (Engine(model), Engine(model, slow=True)):
        same = route.score([Query(LEFT, ACTION, kind)], 0)
        assert_bits(same, route.score([Query(LEFT, ACTION)], 0))


def own_values(model: Model, kept: Mapping[str, torch.Tensor], sites: tuple[Site, ...]) -> Intervention:
    """Edits that put the kept activations of all positions back, every layer and head of these sites."""
    places = tuple(range(len(LEFT) + len(ACTION) - 1))
    edits = []
    for site in sites:
        layers = range(1) if site == "resid_pre" else range(model.n_layers)
        for layer in layers:
            value = kept[hook_name(site, layer)]
            heads = range(value.shape[1]) if site in HEAD_SITES else (None,)
            edits += [
                Edit(site, layer, head, places, value if head is None else value[:, head].contiguous())
                for head in heads
            ]
    return Intervention(tuple(edits))


@pytest.mark.parametrize("family", SOME)
def test_all_that_is_computed_taken_from_oneself_or_from_a_donor(
    family: str, tiny_folder: FolderFactory
) -> None:
    """From oneself no bit changes; from a donor of equal length it is the donor's run, whichever sites carry it."""
    model, engine = tiny_model(tiny_folder, family), Engine(tiny_model(tiny_folder, family))
    names = everything_names(model, *(HOOKS[site] for site in SITES))
    places = {"every": range(len(LEFT) + len(ACTION) - 1)}
    recipient, donor = (engine.run(Query(prompt, ACTION), names, at=places) for prompt in (LEFT, OTHER))
    carriers: tuple[tuple[Site, ...], ...] = (
        ("resid_pre", "q", "k", "v", "mlp_out"),
        ("resid_pre", "attn_out", "mlp_out"),
        ("resid_pre", "z", "mlp_out"),
        ("resid_post",),
    )
    for sites in carriers:
        same = own_values(model, recipient.at["every"], sites)
        assert_bits([engine.run(Query(LEFT, ACTION, same)).score], [recipient.score])
        query = Query(LEFT, ACTION, own_values(model, donor.at["every"], sites))
        assert query.untouched == 0
        assert_scores(engine.score([query]), [donor.score], FP64)
    assert abs(donor.score.total - recipient.score.total) > VISIBLE


@pytest.mark.parametrize("family", SOME)
def test_the_stream_behind_a_block_is_the_stream_before_the_next(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    for where in WHERES.values():
        behind, before = (
            Edit(site, at, None, where, None, 0.5) for site, at in (("resid_post", 0), ("resid_pre", 1))
        )
        queries = [Query(LEFT, ACTION, Intervention((edit,))) for edit in (behind, before)]
        one, other = (Engine(model).score([query]) for query in queries)
        assert_bits(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_query_heads_read_their_groups_values(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    group = model.n_heads // model.n_kv_heads
    readers: dict[int, list[Head]] = {}
    for head in range(model.n_heads):
        readers.setdefault(kv_head_of(model, Head(1, head)), []).append(Head(1, head))
    assert sorted(readers) == list(range(model.n_kv_heads))
    assert all(len(heads) == group for heads in readers.values())
    for kv_head, heads in readers.items():
        silent = Intervention((Edit("v", 1, kv_head, "all", None, 0.0),))
        queries = [Query(LEFT, ACTION, kind) for kind in (silent, scale_heads(HeadSet(heads), 0.0, "all"))]
        one, other = Engine(model).score(queries)
        assert_scores([one], [other], FP64)
    with pytest.raises(InputError, match="L1H4 does not exist"):
        kv_head_of(model, Head(1, model.n_heads))


def test_heads_that_a_site_does_not_have_are_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    assert model.n_kv_heads == 2 < model.n_heads == 4
    for route in (Engine(model), Engine(model, slow=True)):
        for site in HEAD_SITES:
            count, kind = (2, "key/value heads") if site in KV_SITES else (4, "has heads")
            for head, words in ((count, f"L0H{count} does not exist: .*{kind} 0-{count - 1}"), (-1, "L0H-1")):
                with pytest.raises(InputError, match=words):
                    route.score([Query(LEFT, ACTION, Intervention((Edit(site, 0, head, PLACES),)))])
        with pytest.raises(InputError, match="no hook named 'blocks.3.hook_resid_post'"):
            route.score([Query(LEFT, ACTION, Intervention((Edit("resid_post", 3, None, PLACES),)))])
        with pytest.raises(InputError, match="must be 8 wide, this one is 32"):
            wide = torch.zeros(model.d_model)
            route.score([Query(LEFT, ACTION, Intervention((Edit("k", 0, 0, "all", wide),)))])


# --- whether a site feeds the computation ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_feeds_the_computation(family: str, tiny_folder: FolderFactory) -> None:
    require_causal(tiny_model(tiny_folder, family), SITES)


def test_a_site_that_moves_no_logit_is_refused_by_name(tiny_folder: FolderFactory) -> None:
    model = load_model(str(tiny_folder("llama", "float64")), dtype="float64", check=False)
    attention = model.bridge.blocks[1].attn
    with torch.no_grad():
        attention.o.original_component.weight.zero_()
    for site in ("q", "k", "v"):
        with pytest.raises(InputError, match=f"blocks.1.attn.hook_{site} moves no logit of LlamaForCausalLM"):
            Engine(model).score([Query(LEFT, ACTION, Intervention((Edit(site, 0, 0, "candidate"),)))])
        with pytest.raises(InputError, match=f"'{site}' cannot be edited"):
            Engine(model).run(Query(LEFT, ACTION, Intervention((Edit(site, 0, 0, "candidate"),))))
    engine = Engine(model)
    engine.require_sites(["attn_out", "resid_post"])
    assert engine.score([Query(LEFT, ACTION, Intervention((Edit("attn_out", 0, None, "candidate"),)))])


def test_a_site_is_asked_about_once_an_engine(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine, fired = Engine(model), []
    edited = Query(LEFT, ACTION, Intervention((Edit("v", 0, 0, "candidate"),)))
    name = hook_name("v", 0)
    handle = model.bridge.hook_dict[name].register_forward_hook(lambda *_: fired.append(1))
    try:
        engine.score([edited])
        assert len(fired) == 3  # the question, the prefix cache, the row
        engine.score([edited])
        assert len(fired) == 4
        Engine(model).require_sites(CHECKED_AT_LOAD)
        assert len(fired) == 4
    finally:
        handle.remove()


def test_all_positions_by_number_are_all_positions(tiny_folder: FolderFactory) -> None:
    for family in ("llama", "gemma3"):
        model = tiny_model(tiny_folder, family)
        heads = all_heads(model)
        every = tuple(range(len(LEFT) + len(ACTION) - 1))
        queries = [Query(LEFT, ACTION, scale_heads(heads, 0.2, where)) for where in ("all", every)]
        one, other = Engine(model).score(queries)
        assert_scores([one], [other], FP64)


@pytest.mark.real_model
def test_every_site_on_the_real_model(smollm2: Any) -> None:
    prompt = tuple(
        smollm2.tokenizer("The rye flour is out. Please order the rye flour, and then the")["input_ids"]
    )
    action = tuple(smollm2.tokenizer(" rye flour")["input_ids"])
    queries = [
        Query(
            prompt,
            action,
            Intervention((Edit(site, 18, 2 if site in HEAD_SITES else None, (5,), None, 0.0),)),
        )
        for site in SITES
    ]
    assert_scores(Engine(smollm2).score(queries), reference.score(smollm2, queries), FP32 * 4)
