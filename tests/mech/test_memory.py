"""A bound on memory makes rows smaller and changes no score."""

from __future__ import annotations

import pytest

from mech.engine.engine import Engine
from mech.engine.memory import BASE, MemoryBound
from mech.engine.queries import Query
from mech.engine.sweep import score_interventions
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import knock_out_edges, scale_heads
from mech.patching.patch import all_heads, sweep_names
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    STEM,
    FolderFactory,
    assert_scores,
    family_of_queries,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def least(engine: Engine, context: int, most: int) -> int:
    """The smallest bound under which a forward is possible, found by halves."""
    low, high = 0, 2 * BASE
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            MemoryBound(engine.model, middle).forward_nodes(context, most)
            high = middle
        except InputError:
            low = middle
    return high


def test_scores_and_sweeps_are_the_same_under_a_bound_and_take_more_forwards(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "llama")
    cut = knock_out_edges(HeadSet([Head(1, 0)]), range(3, 9))
    queries = [*family_of_queries(), *family_of_queries(scale_heads(HEADS, 0.4, "all"), few=True)]
    queries.append(Query(LEFT, ACTION, cut))
    free = Engine(model)
    bound = Engine(model, memory=least(free, len(STEM) + 40, 640))
    for one, other in ((free.score(queries, 5), bound.score(queries, 5)),):
        assert_scores(other, one, FP64)
    assert bound.forwards.ran > free.forwards.ran
    assert len(bound._prefixes) <= len(free._prefixes)
    changes = [scale_heads(HeadSet([head]), 0.0, "candidate") for head in all_heads(model)]
    run = free.run(Query(LEFT, ACTION), sweep_names(model))
    assert_scores(score_interventions(bound, run, changes), score_interventions(free, run, changes), FP64)


def test_a_bound_that_holds_no_forward_is_refused_with_the_least_that_would(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "llama")
    with pytest.raises(
        InputError, match=r"0\.38 GiB is too little for \S+: it takes 0\.7\d GiB at the least"
    ):
        Engine(model, memory=BASE // 2)  # whatever is asked of it
    engine = Engine(model, memory=least(Engine(model), 0, 640))
    with pytest.raises(InputError, match=r"over contexts of \d+ tokens"):
        engine.score(family_of_queries())


def test_a_larger_bound_leaves_room_for_more_and_none_for_what_the_engine_takes(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "llama")
    nodes = [MemoryBound(model, BASE + n * 2**20).forward_nodes(500, 640) for n in (40, 80, 10_000)]
    rows = [MemoryBound(model, BASE + n * 2**20).row_nodes(16_384) for n in (40, 80, 10_000)]
    assert nodes == sorted(nodes) and nodes[0] < nodes[1] <= 640 and nodes[2] == 640
    assert rows == sorted(rows) and rows[2] == 16_384
    assert MemoryBound(model).forward_nodes(10**6, 640) == 640 and MemoryBound(model).row_nodes(7) == 7
    longer = MemoryBound(model, BASE + 40 * 2**20).forward_nodes(5000, 640)
    assert longer < nodes[0]
