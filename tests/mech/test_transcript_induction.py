"""Attention from a candidate token to the token after its match in the record: by hand, by both paths, by others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.head_scores.transcript_induction import (
    TRANSCRIPT_SCORES,
    candidate_patterns,
    copy_in_record,
    transcript_scores,
)
from mech.heads import Head
from mech.models.model import Model
from tests.induction_model import hand_built  # noqa: F401 - a fixture
from tests.mech_cases import (  # noqa: F401 - a fixture
    MODELS,
    SOME_MODELS,
    TOLERANCE,
    FolderFactory,
    exact_norms,
    n_torch_hooks,
    one_thread,
    tiny_model,
)
from tests.tiny_models import DTYPES, FAMILIES
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

# A transcript: opened by TURN, the call stands in the record at 10-14, and is about to be written again.
TURN, CALL = 50, (60, 61, 62, 63, 64)
QUERY = Query((*range(20, 29), TURN, *CALL, 51, 52, 53, 54, TURN), CALL)
RECORD, COPY = range(9, 16), range(10, 15)


def scored(engine: Engine, query: Query = QUERY, copy: range = COPY, shared: int = 0) -> pd.DataFrame:
    return transcript_scores(candidate_patterns(engine, query, shared), query, copy)


def test_the_hand_built_induction_head_reads_the_record(hand_built: Model) -> None:
    found = {str(Head(int(row.layer), int(row.head))): row for row in scored(Engine(hand_built)).itertuples()}
    assert {row.n_positions for row in found.values()} == {5}  # the turn's opening is matched too
    assert found["L1H0"].transcript_induction == pytest.approx(1, abs=1e-3)
    assert found["L1H0"].record_attention == pytest.approx(1, abs=1e-3)
    assert found["L1H0"].transcript_duplicate < 1e-3
    # Half on the record's copy of the token, half on the token itself; the opening's copy is not part of the call.
    assert found["L0H1"].transcript_duplicate == pytest.approx(0.5, abs=1e-3)
    assert found["L0H1"].record_attention == pytest.approx(0.5 * 4 / 5, abs=1e-3)
    assert found["L0H0"].transcript_induction < 1e-3  # it looks one token back
    even = [1 / (t + 1) for t in QUERY.candidate]
    assert found["L1H1"].transcript_induction == pytest.approx(np.mean(even), abs=1e-4)
    assert found["L1H1"].transcript_duplicate == pytest.approx(np.mean(even), abs=1e-4)
    assert found["L1H1"].record_attention == pytest.approx(5 * np.mean(even), abs=1e-4)


def pattern_of(query: Query, weights: dict[tuple[int, int], float]) -> Tensor:
    """One head's pattern from (candidate index, source position) → weight."""
    pattern = torch.zeros(1, len(query.action), len(query.tokens))
    for (place, source), weight in weights.items():
        pattern[0, place, source] = weight
    return pattern


def test_a_pattern_by_hand_gives_fractions_by_hand() -> None:
    # prompt: 7 [1 2 3] 9 7, action 1 2 3: action positions 5, 6, 7 with tokens 7, 1, 2; the copy stands at 1-3.
    query = Query((7, 1, 2, 3, 9, 7), (1, 2, 3))
    weights = {(0, 1): 0.5, (0, 0): 0.25, (1, 2): 0.1, (1, 1): 0.6, (2, 3): 0.3, (2, 2): 0.2, (2, 1): 0.4}
    [row] = transcript_scores([pattern_of(query, weights)], query, range(1, 4)).itertuples()
    assert row.n_positions == 3
    assert row.transcript_induction == pytest.approx((0.5 + 0.1 + 0.3) / 3)
    assert row.transcript_duplicate == pytest.approx((0.25 + 0.6 + 0.2) / 3)
    assert row.record_attention == pytest.approx((0.5 + 0.7 + 0.9) / 3)


@pytest.mark.parametrize("prompt", [(8, 1, 2, 3, 9, 7), (1, 2, 3, 9, 7)])
def test_a_first_token_opened_in_another_way_has_no_match(prompt: tuple[int, ...]) -> None:
    query = Query(prompt, (1, 2, 3))
    copy = copy_in_record(query, range(len(prompt)))
    first = copy.start
    weights = {
        (0, first): 0.5,
        (1, first + 1): 0.1,
        (1, first): 0.6,
        (2, first + 2): 0.3,
        (2, first + 1): 0.2,
    }
    [row] = transcript_scores([pattern_of(query, weights)], query, copy).itertuples()
    assert row.n_positions == 2
    assert row.transcript_induction == pytest.approx((0.1 + 0.3) / 2)
    assert row.transcript_duplicate == pytest.approx((0.6 + 0.2) / 2)
    assert row.record_attention == pytest.approx((0.5 + 0.7 + 0.5) / 3)  # over all of them


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_packed_over_any_trunk_and_one_full_forward_agree(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    slow = Engine(model, slow=True)
    expected = scored(slow)
    before = n_torch_hooks(model)  # the bridge puts in some of its own at its first forward
    assert slow.forwards.ran == 1 and len(expected) == model.n_layers * model.n_heads
    for shared in (
        0,
        9,
        12,
        len(QUERY.prompt) - 1,
    ):  # a prefix cache that ends before, in and behind the record
        found = scored(Engine(model), shared=shared)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype])
    assert n_torch_hooks(model) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_attentions_that_transformers_gives(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    network: Any = AutoModelForCausalLM.from_pretrained(
        tiny_folder(family, "float64"), attn_implementation="eager", dtype=DTYPES["float64"]
    )
    exact_norms(network.eval())
    with torch.no_grad():
        attentions = network(torch.tensor([QUERY.tokens]), output_attentions=True).attentions
    found = scored(Engine(model)).set_index(["layer", "head"])
    asking = range(len(QUERY.prompt) - 1, len(QUERY.tokens))
    for layer, attention in enumerate(attentions):
        for head in range(model.n_heads):
            after = [float(attention[0, head, q, COPY[i]]) for i, q in enumerate(asking)]
            match = [float(attention[0, head, q, COPY[i] - 1]) for i, q in enumerate(asking)]
            whole = [float(attention[0, head, q, list(COPY)].sum()) for q in asking]
            expected = [np.mean(after), np.mean(match), np.mean(whole)]
            row = found.loc[(layer, head), list(TRANSCRIPT_SCORES)]
            np.testing.assert_allclose(row, expected, rtol=0, atol=FP64)
    if family != "gemma3":  # a random head looks at the token after the match as at any other
        chance = np.mean([1 / (q + 1) for q in asking])
        assert found["transcript_induction"].median() == pytest.approx(chance, rel=0.8)
        assert found["transcript_induction"].max() < 0.5
    else:  # the match is 10 tokens back, and the windows of layers 0 and 2 have 8
        assert (found.loc[[0, 2], list(TRANSCRIPT_SCORES[:2])] == 0).all().all()
        assert (found.loc[[1, 3], list(TRANSCRIPT_SCORES)] > 0).all().all()


def test_the_copy_is_found_by_its_tokens() -> None:
    assert copy_in_record(QUERY, RECORD) == COPY
    assert copy_in_record(Query((1, 2, 1, 2, 1), (1, 2)), range(2, 4)) == range(2, 4)


@pytest.mark.parametrize(
    ("query", "record", "said"),
    [
        (QUERY, range(9, 14), "has the action's tokens 0 times"),
        (Query((1, 2, 1, 2, 1), (1, 2)), range(0, 5), "has the action's tokens 2 times"),
        (Query((1, 1, 1), (1, 1)), range(0, 3), "2 times"),
        (QUERY, range(9, 99), "is not inside the prompt"),
        (QUERY, range(0), "is not inside the prompt"),
        (QUERY, range(-1, 14), "is not inside the prompt"),
    ],
)
def test_a_record_that_does_not_hold_the_call_is_refused(query: Query, record: range, said: str) -> None:
    with pytest.raises(InputError, match=said):
        copy_in_record(query, record)


def test_copies_that_are_none_are_refused() -> None:
    blank = [torch.zeros(1, 5, len(QUERY.tokens))]
    for copy in (range(10, 14), range(18, 23)):
        with pytest.raises(InputError, match="have its length, and lie in the prompt"):
            transcript_scores(blank, QUERY, copy)
    query = Query((8, 1, 7), (1,))
    with pytest.raises(InputError, match="No action token has a match"):
        transcript_scores([torch.zeros(1, 1, 3)], query, range(1, 2))
