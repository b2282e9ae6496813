"""Fused attention gives what eager attention and full forwards give, and is left where somebody listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mech.engine import attention, blocks, engine, layout, packed, reference
from mech.engine.attention import merged, supports
from mech.engine.engine import Engine
from mech.engine.layout import Layout, chain
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query
from mech.engine.trie import Trie
from mech.heads import Head, HeadSet
from mech.interventions.edits import HEAD_SITES, SITES, Edit, Where, hook_name
from mech.interventions.hooks import HookMissed, hooked
from mech.interventions.intervention import NOTHING, Intervention, knock_out_edges
from mech.models.model import Model
from tests.mech_cases import (
    ACTION,
    LEFT,
    RIGHT,
    STEM,
    FolderFactory,
    assert_scores,
    family_of_queries,
    noise,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.tiny_models import FAMILIES
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The layers in which attention was fused, in order."""
    fused: list[int] = []
    stock = attention.attend

    def counted(*args: Any) -> Any:
        fused.append(args[4])
        return stock(*args)

    with monkeypatch.context() as patch:
        patch.setattr(blocks, "attend", counted)
        yield fused


def edits_at_every_site(model: Model, where: Where, n: int) -> Intervention:
    """One edit of each site, in layers of their own as far as there are layers."""
    edits = []
    for at, site in enumerate(SITES):
        layer = at % model.n_layers
        if site in HEAD_SITES:
            shape = (model.d_head,) if where == "all" else (n, model.d_head)
            edits.append(Edit(site, layer, 1, where, noise(model, *shape, seed=at)))
        else:
            edits.append(Edit(site, layer, None, where, alpha=0.6))
    return Intervention(tuple(edits))


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_is_eager_is_the_full_forward_under_edits_of_every_site(
    family: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, family)
    places = tuple(range(len(STEM) - 2, len(STEM) + 2))
    queries = family_of_queries()
    for where in ("candidate", "all", places):
        change = edits_at_every_site(model, where, len(ACTION))
        queries += [Query(prompt, ACTION, change) for prompt in (LEFT, RIGHT)]
    with counting(monkeypatch) as fused:
        found = Engine(model).score(queries)
        assert fused and len(fused) % model.n_layers == 0, "every layer of every row is fused"
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "fusible", lambda bridge: False)
        with counting(monkeypatch) as fused:
            eager = Engine(model).score(queries)
            assert not fused
    assert_scores(found, eager, FP64)
    assert_scores(found, reference.score(model, queries), FP64)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_parts_and_in_small_blocks_give_the_same(
    family: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches of different lengths, some longer than a block, run some nodes at a time; a knockout among them."""
    model = tiny_model(tiny_folder, family)
    cut = knock_out_edges(HeadSet([Head(1, 0), Head(1, 2)]), range(3, 9))
    longer = (*range(110, 150),)
    queries = [*family_of_queries(), Query(LEFT, longer), Query(RIGHT, (*longer[:17], 3, 4))]
    queries += [Query(LEFT, ACTION, cut), Query(RIGHT, longer[:9], cut)]
    queries += [Query(LEFT, longer, edits_at_every_site(model, "candidate", len(longer)))]
    expected = reference.score(model, queries)
    for nodes, block in ((640, 5), (7, 5), (31, 96)):
        monkeypatch.setattr(engine, "MAX_NODES", nodes)
        monkeypatch.setattr(layout, "BLOCK", block)
        for shared in (0, 5):
            assert_scores(Engine(model).score(queries, shared), expected, FP64)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_layer_whose_scores_or_pattern_are_hooked_is_eager(
    family: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, family)
    others = [layer for layer in range(model.n_layers) if layer != 1]
    cut = Query(LEFT, ACTION, knock_out_edges(HeadSet([Head(1, 0)]), range(3, 9)))
    with counting(monkeypatch) as fused:
        found = Engine(model).score([cut])
    assert fused[-len(others) :] == others and 1 not in fused[-len(others) :]
    assert_scores(found, reference.score(model, [cut]), FP64)
    kept = Engine(model)
    with counting(monkeypatch) as fused:
        run = kept.run(Query(LEFT, ACTION), [hook_name("pattern", 1), hook_name("z", 2)])
    assert fused == others
    seen: dict[str, torch.Tensor] = {}

    def keep(activation: torch.Tensor, point: Any) -> None:
        seen["pattern"] = activation

    with hooked(model, [(hook_name("pattern", 1), keep)], fires=1):
        reference.full_forward(model, Query(LEFT, ACTION))
    wanted = seen["pattern"][0, :, run.query.candidate.start :]
    torch.testing.assert_close(run.activation(hook_name("pattern", 1)), wanted, rtol=0, atol=FP64)


def test_a_hook_of_the_users_own_on_a_pattern_is_not_passed_by(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama")
    with hooked(model, [(hook_name("pattern", 0), lambda value, point: value * 0)], fires=None):
        changed = Engine(model).score([Query(LEFT, ACTION)])
        assert_scores(changed, reference.score(model, [Query(LEFT, ACTION)]), FP64)
    with pytest.raises(HookMissed), monkeypatch.context() as patch:
        patch.setattr(blocks, "fusible", lambda bridge: True)
        Engine(model).run(Query(LEFT, ACTION), [hook_name("pattern", 0)])
    for block in model.bridge.blocks:
        assert "forward" not in vars(block.attn) and "forward" not in vars(block.ln1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_hook_but_scores_and_pattern_sees_the_same(
    family: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hook points of a block that fire in the eager row fire once in the fused one, with the same values."""
    model = tiny_model(tiny_folder, family)
    trie = Trie(0)
    trie.insert(LEFT, [""] * len(LEFT))
    prefix = PrefixCache((), NOTHING.fingerprint)
    names = [name for name in model.bridge.hook_dict if name.startswith("blocks.1.")]
    rows: list[dict[str, list[torch.Tensor]]] = []
    for fusible in (False, True):
        seen: dict[str, list[torch.Tensor]] = {}

        def listener(name: str, seen: dict[str, list[torch.Tensor]] = seen) -> Any:
            def hook(module: Any, args: Any, output: torch.Tensor) -> None:
                seen.setdefault(name, []).append(output)

            return hook

        with monkeypatch.context() as patch:
            patch.setattr(blocks, "fusible", lambda bridge, fusible=fusible: fusible)
            points = model.bridge.hook_dict
            handles = [points[name].register_forward_hook(listener(name)) for name in names]
            packed.run_row(model, trie, prefix)
            for handle in handles:
                handle.remove()
        rows.append(seen)
    eager, fused = rows
    unheard = {name for name in eager if name.endswith(("hook_attn_scores", "hook_pattern"))}
    assert len(unheard) == 2 and set(fused) == set(eager) - unheard
    for name, values in fused.items():
        assert len(values) == len(eager[name])
        torch.testing.assert_close(values, eager[name], rtol=0, atol=FP64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_kernel_and_plain_products_give_the_softmax_over_all_parts(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 6, 40, 12, generator=generator, dtype=torch.float64).to(dtype)
    kv = [
        torch.randn(1, 2, n, 12, generator=generator, dtype=torch.float64).to(dtype) for n in (30, 30, 40, 40)
    ]
    where = Layout(*chain(30, 10, 4), 30, 0, 17, dtype, torch.device("cpu"))
    for parts, mask in ((where.parts, where.mask), (where.sliding_parts, where.sliding_mask)):
        keys, values = (torch.cat(kv[i::2], dim=2).double().repeat_interleave(3, dim=1) for i in (0, 1))
        scores = q.double() @ keys.transpose(-2, -1) * 0.3 + mask.double()
        expected = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        limit = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}[dtype]
        for kernel in (attention._kernel, attention._plain):
            with monkeypatch.context() as patch:
                patch.setattr(attention, "_kernel", kernel)
                found = merged(q, [(kv[0], kv[1]), (kv[2], kv[3])], parts, 0.3)
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=limit)


def test_kinds_of_attention_that_do_more_stay_eager(tiny_folder: FolderFactory) -> None:
    bridge = tiny_model(tiny_folder, "llama").bridge.blocks[0].attn
    assert supports(bridge)
    for name, value in (("attn_logit_softcapping", 30.0), ("sinks", torch.zeros(4))):
        object.__setattr__(bridge.original_component, name, value)
        try:
            assert not supports(bridge)
        finally:
            object.__delattr__(bridge.original_component, name)
    assert supports(bridge)
