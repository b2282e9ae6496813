"""On the reference items, in the reference wording: our rows against an independent program's and published ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mech.engine.engine import Engine
from mech.models.model import Model
from probes.items.item import Item, load_items
from probes.measures.measures import measure
from probes.prompts.conditions import CORE
from probes.prompts.wording import Wording, load_wording
from probes.scoring.score import build_queries, score_item
from tests.tolerances import IDENTITY, NATS, ROW_NATS

ITEM = "toolshed-0000-s0-hallucinated_entity-2"
"""One of the sample; the one with the longest history is added."""


@pytest.fixture(scope="module")
def items(reference_dir: Path) -> dict[str, Item]:
    return {item.item_id: item for item in load_items(reference_dir / "toolshed_items.jsonl")}


@pytest.fixture(scope="module")
def wording(reference_dir: Path) -> Wording:
    return load_wording(reference_dir / "condition_strings.json")


@pytest.fixture(scope="module")
def sample(reference_dir: Path) -> pd.DataFrame:
    """25 items scored on the bundled checkpoint by a program that shares no code with ours."""
    return pd.read_csv(reference_dir / "q4_core_sample.csv").set_index("item_id")


def test_rows_agree_with_an_independent_program(
    smollm2: Model, items: dict[str, Item], wording: Wording, sample: pd.DataFrame
) -> None:
    longest = max(sample.index, key=lambda name: (len(items[name].prefix_actions), name))
    chosen = [ITEM, longest]
    assert len(set(chosen)) == 2
    engine = Engine(smollm2)
    rows = [row for name in chosen for row in score_item(engine, items[name], CORE, wording)]
    found = measure(pd.DataFrame(rows)).pivot(index="item_id", columns="measure", values="value")
    assert list(found.index) == sorted(chosen)
    for name in ("G", "copy", "sem", "G_abstract", "p_repeat_pre", "p_repeat_fail"):
        expected = sample.loc[found.index, name]
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=ROW_NATS, err_msg=name)
    assert found["greedy_repeat_fail"].tolist() == sample.loc[found.index, "greedy_repeat_fail"].tolist()
    assert (found["G"] + found["copy"] + found["sem"]).abs().max() <= IDENTITY


@pytest.mark.parametrize("env", ["toolshed", "coderepair"])
def test_token_counts_are_the_published_ones(
    env: str, smollm2: Model, wording: Wording, reference_dir: Path
) -> None:
    items = {item.item_id: item for item in load_items(reference_dir / f"{env}_items.jsonl")}
    published = pd.read_csv(reference_dir / "ref_scores_smollm2-135m_sample.csv")
    published = published[(published["env"] == env) & published["item_id"].isin(items)]
    ours = {
        (name, scoring.condition, scoring.candidate): (len(scoring.query.action), len(scoring.query.prompt))
        for name in published["item_id"].unique()
        for scoring in build_queries(smollm2, items[name], list(published["condition"].unique()), wording)
    }
    assert len(published) >= 60
    for row in published.itertuples():
        assert ours[row.item_id, row.condition, row.candidate] == (row.n_tokens, row.ctx_tokens), row


def test_packed_scores_are_those_of_full_forwards_on_the_real_model(
    smollm2: Model, items: dict[str, Item], wording: Wording
) -> None:
    item, names, candidates = items[ITEM], ("pre", "fail"), ["failed", "gold"]
    fast = score_item(Engine(smollm2), item, names, wording, candidates)
    slow = score_item(Engine(smollm2, slow=True), item, names, wording, candidates)
    assert len(fast) == 4
    for one, other in zip(fast, slow, strict=True):
        assert abs(one["logprob"] - other["logprob"]) <= NATS
        np.testing.assert_allclose(one["token_logprobs"], other["token_logprobs"], rtol=0, atol=NATS)
        assert (one["is_greedy"], one["ctx_tokens"]) == (other["is_greedy"], other["ctx_tokens"])


def test_the_published_items_are_all_scored_with_four_candidates(
    items: dict[str, Item], reference_dir: Path
) -> None:
    core = json.loads((reference_dir / "core_ids_toolshed.json").read_text())
    assert len(core) == 100
    assert all(
        list(items[name].candidates()) == ["failed", "gold", "distractor0", "distractor1"] for name in core
    )
