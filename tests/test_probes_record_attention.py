"""An item's record is found in its prompt, and heads are scored on it as on any transcript."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from mech.engine import Engine
from mech.errors import InputError
from mech.model import Model
from mech.transcript_induction import TRANSCRIPT_SCORES
from probes.record import RECORD_ATTENTION, mean_by_head, record_attention
from probes.scoring import asks
from probes.wording import load_wording
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

WORDING = load_wording()


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Model:
    """The tiny Llama in float64, where only a bug shows."""
    return tiny_model(tiny_folder, "llama")


@pytest.mark.parametrize("condition", ["neut", "fail", "fail_echo"])
def test_heads_are_scored_where_the_failed_call_is_written(condition: str, model: Model) -> None:
    item = ITEMS[0]
    found = record_attention(Engine(model), item, condition, WORDING)
    assert tuple(found.columns) == RECORD_ATTENTION and len(found) == model.n_layers * model.n_heads
    assert (found[["item_id", "task_id", "condition"]] == [item.item_id, item.task_id, condition]).all().all()
    [ask] = asks(model, item, [condition], WORDING, ["failed"])
    tokens = list(ask.query.tokens)
    # The byte tokenizer lets the call be found as text: its first mention behind the context is the record's.
    context = asks(model, item, ["pre"], WORDING, ["failed"])[0].query.prompt
    start = next(
        at
        for at in range(len(context) - 1, len(tokens))
        if tuple(tokens[at : at + len(ask.query.action)]) == ask.query.action
    )
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(torch.tensor([tokens]))
    asking = range(len(ask.query.prompt) - 1, len(tokens))
    assert (found["n_positions"] == len(asking)).all()  # the record's turn is opened as the new one is
    assert tokens[asking[0]] == tokens[start - 1]
    for row in found.itertuples():
        pattern = cache[f"blocks.{row.layer}.attn.hook_pattern"][0, row.head]
        after = [float(pattern[q, start + i]) for i, q in enumerate(asking)]
        match = [float(pattern[q, start + i - 1]) for i, q in enumerate(asking)]
        whole = [float(pattern[q, start : start + len(asking)].sum()) for q in asking]
        expected = [np.mean(after), np.mean(match), np.mean(whole)]
        np.testing.assert_allclose([getattr(row, n) for n in TRANSCRIPT_SCORES], expected, rtol=0, atol=FP64)


@pytest.mark.parametrize("family", ["gpt2", "gemma3"])
def test_both_engines_agree_on_an_item(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    fast, slow = (
        record_attention(Engine(model, slow=s), ITEMS[1], "neut", WORDING).select_dtypes("number")
        for s in (False, True)
    )
    np.testing.assert_allclose(fast, slow, rtol=0, atol=FP64)


@pytest.mark.parametrize("condition", ["pre", "abstract", "fail_k2"])
def test_a_condition_without_a_record_of_the_call_is_refused(condition: str, model: Model) -> None:
    with pytest.raises(InputError, match="it has no record|times, where once"):
        record_attention(Engine(model), ITEMS[0], condition, WORDING)


def test_items_weigh_the_same_in_a_heads_mean() -> None:
    rows = pd.DataFrame(
        [
            ("a", "t", "neut", 1, 0, 0.2, 0.4, 0.6, 3),
            ("b", "t", "neut", 1, 0, 0.4, 0.0, 0.8, 30),
            ("a", "t", "neut", 0, 1, 0.1, 0.1, 0.1, 3),
        ],
        columns=list(RECORD_ATTENTION),
    )
    found = mean_by_head(rows)
    assert found[["layer", "head"]].values.tolist() == [[0, 1], [1, 0]]
    np.testing.assert_allclose(found.loc[1, list(TRANSCRIPT_SCORES)].astype(float), [0.3, 0.2, 0.7])
