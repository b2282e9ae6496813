"""Which nodes queries share under edits at given positions, and that no prefix cache reaches into what is edited."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mech.engine import packed
from mech.engine.engine import Engine
from mech.engine.packing import batches, insert, place
from mech.engine.queries import Query
from mech.engine.trie import Trie
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, Edit, Intervention, knock_out_edges, scale_heads
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    STEM,
    FolderFactory,
    assert_bits,
    assert_scores,
    noise,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.site_cases import RECORD
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
HEAD = HeadSet([Head(0, 1)])
PROMPT = tuple(range(10))
AT_RECORD = scale_heads(HEADS, 0.2, RECORD)


def shared_nodes(*interventions: Intervention, action: tuple[int, ...] = (50, 51)) -> int:
    """How many nodes the queries under these interventions have in common, counted from the start of the prompt."""
    trie = Trie(2)
    paths = [insert(trie, Query(PROMPT, action, kind)) for kind in interventions]
    together = [len(set(nodes)) == 1 for nodes in zip(*paths, strict=True)]
    assert together == sorted(together, reverse=True)
    return sum(together)


def test_queries_part_where_their_edits_differ_and_not_before() -> None:
    at_six, at_eight = scale_heads(HEAD, 0.5, (6,)), scale_heads(HEAD, 0.5, (8,))
    candidate, cut = scale_heads(HEAD, 0.5, "candidate"), knock_out_edges(HEAD, (1, 5), (7,))
    below = len(PROMPT) + 1 - 2
    assert shared_nodes(NOTHING, NOTHING) == shared_nodes(at_six, at_six) == shared_nodes(cut, cut) == below
    assert shared_nodes(NOTHING, at_six) == shared_nodes(at_six, at_eight) == 6 - 2
    assert shared_nodes(at_six, at_six + at_eight) == 8 - 2
    assert shared_nodes(at_six, at_six + candidate) == shared_nodes(NOTHING, candidate) == 9 - 2
    assert shared_nodes(NOTHING, cut) == shared_nodes(cut, knock_out_edges(HEAD, (1, 4), (7,))) == 7 - 2
    assert shared_nodes(candidate, knock_out_edges(HEAD, (1,))) == 9 - 2
    assert shared_nodes(scale_heads(HEAD, 0.5, "all"), scale_heads(HEAD, 0.5, "all")) == below


def test_a_shared_node_is_edited_once_and_by_its_own_row_of_values(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    value = noise(model, 3, model.d_head)
    kind = Intervention((Edit("z", 0, 1, (6, 9, 10), value),)) + knock_out_edges(HEAD, (1, 5), (6, 9, 10))
    queries = [Query(PROMPT, (50, *rest), kind) for rest in ((51,), (52,), (51,))]
    queries[1] = Query(PROMPT, (49, 52), kind)
    trie, placed, locations = Trie(4), set(), []
    for query in queries:
        path = insert(trie, query)
        locations.append(place(model, query, path, 4, placed))
        placed.update(path)
    # 4 5 6 7 8 9 10 and, behind 9, another action: nodes 0 1 2 3 4 5 6 and 7
    first, second, third = locations
    assert [p.rows.tolist() for p in first if p.rows is not None] == [[2, 5, 6], [2, 5, 6]]
    assert [p.rows.tolist() for p in second if p.rows is not None] == [[7], [7]]
    assert third == []
    edit = second[0].edit
    assert isinstance(edit, Edit) and edit.value is not None and torch.equal(edit.value, value[2:])
    # source 1 is the prefix cache's column 1; source 5 is node 1 of the row, behind the prefix cache's four columns
    assert first[1].columns is not None and first[1].columns.tolist() == [1, 4 + 1]


def test_batches_hold_as_many_nodes_as_they_may() -> None:
    queries = [Query(PROMPT, (50, 51), kind) for kind in (NOTHING, AT_RECORD, NOTHING, NOTHING)]
    assert batches(queries, 4, 100) == [[0, 1, 2, 3]]
    assert batches(queries, 4, 7) == [[0], [1], [2, 3]]
    assert batches(queries, 4, 1) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("kind", ["an edit at the record", "a cut behind it"])
def test_a_trunk_that_reaches_into_an_edit_is_refused(kind: str, tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    change = AT_RECORD if kind.startswith("an edit") else knock_out_edges(HEADS, RECORD, (4, 30))
    query = Query(LEFT, ACTION, change)
    assert query.untouched == RECORD[0] == 4
    with pytest.raises(ValueError, match="includes a position which the query edits"):
        packed.score_row(engine.model, [query], engine.prefix_cache(STEM))
    for call in (
        lambda: engine.score([Query(LEFT, ACTION), query], 5),
        lambda: engine.run(query, shared=5),
    ):
        with pytest.raises(InputError, match="acts from position 4 on: 5 tokens cannot be shared"):
            call()
    one, other = (Engine(engine.model).score([query], shared) for shared in (4, None))
    assert_bits(one, other)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_a_runs_trunk_ends_before_what_was_edited(
    family: str, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    """Keys computed under an edit are no one else's: offered under the all-position part, they would be wrong."""
    model = tiny_model(tiny_folder, family)
    for change in (
        AT_RECORD,
        AT_RECORD + scale_heads(HEADS, 0.7, "all"),
        knock_out_edges(HEADS, (1, 2), (4, 20)),
    ):
        query = Query(LEFT, ACTION, change)
        for engine in (Engine(model, tmp_path), Engine(model, tmp_path)):  # run, and read back
            run = engine.run(query, ["blocks.1.attn.hook_z"], shared=2, at={"record": RECORD})
            assert (
                run.prefix_cache.tokens == LEFT[:4]
                and run.prefix_cache.fingerprint == change.everywhere.fingerprint
            )
            assert_scores([run.score], Engine(model, slow=True).score([query]), FP64)
            clean = Query(LEFT, ACTION, change.everywhere)
            assert_scores(
                packed.score_row(model, [clean], run.prefix_cache), Engine(model).score([clean]), FP64
            )


def test_edited_queries_leave_the_clean_ones_as_they_are(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    clean, edited = Query(LEFT, ACTION), Query(LEFT, ACTION, AT_RECORD)
    [expected] = Engine(model).score([clean], 3)
    engine = Engine(model, tmp_path)
    [found] = engine.score([edited], 3)
    assert_bits(engine.score([clean], 3), [expected])
    assert_bits(Engine(model, tmp_path).score([clean], 3), [expected])
    assert_bits(Engine(model, tmp_path).score([edited], 3), [found])
    assert abs(found.total - expected.total) > 1e-3
    moved = scale_heads(HEADS, 0.2, (5, *RECORD[2:]))
    assert Engine(model, tmp_path).score([Query(LEFT, ACTION, moved)], 3)[0].total != found.total
