"""Items → attention from the failed call's candidate tokens to its record: `mech.transcript_induction` on items."""

from __future__ import annotations

import pandas as pd

from mech.engine import Engine
from mech.transcript_induction import (
    TRANSCRIPT_SCORES,
    candidate_patterns,
    copy_in_record,
    transcript_scores,
)
from probes.items import Item
from probes.scoring import asks, spans, system_length
from probes.wording import Wording

RECORD_ATTENTION = ("item_id", "task_id", "condition", "layer", "head", *TRANSCRIPT_SCORES, "n_positions")


def record_attention(engine: Engine, item: Item, condition: str, wording: Wording) -> pd.DataFrame:
    """Scores of every head on one item under a condition that writes the failed call: columns RECORD_ATTENTION.

    Raises:
        InputError: the condition has no record, or the record does not hold the call token for token.
    """
    [ask] = asks(engine.model, item, [condition], wording, ["failed"])
    record = spans(engine.model, item, condition, wording)["record"]
    copy = copy_in_record(ask.query, record)
    shared = min(system_length(engine.model, item), len(ask.query.prompt) - 1)
    scores = transcript_scores(candidate_patterns(engine, ask.query, shared), ask.query, copy)
    named = scores.assign(item_id=item.item_id, task_id=item.task_id, condition=condition)
    return named[list(RECORD_ATTENTION)]


def mean_by_head(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean over items, each weighing the same: layer, head, TRANSCRIPT_SCORES, a table of head scores like others."""
    return rows.groupby(["layer", "head"], sort=True)[list(TRANSCRIPT_SCORES)].mean().reset_index()
