"""Effects on every metric of `probes.scoring.contrast` from the sums and token counts of a row.

    sums      "failed": Σ log p over the tokens of a×; "diverging": over those from the first on that is not the
              reference's; and Σ log p over the tokens of each reference candidate, by its name
    metric    Σ over sums of weight · sum (`weights`)

Metrics are linear in the sums, and so is every effect (a difference of two runs of one action) and every first-order
estimate. A candidate's effect is measured on runs of that candidate: what it is patched from is a run of the same
action under the other condition. Rows of items without a reference hold "failed" alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from mech.engine.queries import Score
from mech.errors import InputError
from probes.scoring.contrast import FORMS, Contrast

FAILED, DIVERGING = "failed", "diverging"

Sums = dict[str, float]
_Value = TypeVar("_Value")


def sums_of(contrast: Contrast, candidate: str, score: Score) -> Sums:
    """The sums (nats) that one candidate's score gives: its total, and of a× that of the diverging tokens."""
    found = {candidate: score.total}
    if candidate == FAILED and contrast.references:
        found[DIVERGING] = math.fsum(score.logprobs[contrast.diverging_from :].tolist())
    return found


def changes_of(contrast: Contrast, candidate: str, tokens: Float[np.ndarray, " token"]) -> Sums:
    """As `sums_of`, of a candidate's changes token by token."""
    found = {candidate: float(np.sum(tokens))}
    if candidate == FAILED and contrast.references:
        found[DIVERGING] = float(np.sum(tokens[contrast.diverging_from :]))
    return found


def effects_of(contrast: Contrast, candidate: str, sign: float, under: Score, base: Score) -> Sums:
    """The effect of a change of one candidate's run on its sums: sign · (under − base)."""
    after, before = (sums_of(contrast, candidate, score) for score in (under, base))
    return {name: sign * (after[name] - before[name]) for name in after}


def token_counts(contrast: Contrast, lengths: Mapping[str, int]) -> dict[str, int]:
    """Sum → number of its tokens, from the number of each candidate's."""
    counts = {name: lengths[name] for name in contrast.candidates}
    if contrast.references:
        counts[DIVERGING] = lengths[FAILED] - contrast.diverging_from
    return counts


def weights(n_tokens: Mapping[str, int]) -> dict[str, Sums]:
    """Metric → sum → its weight, of every metric that is defined, in the order of FORMS.

    Raises:
        InputError: a sum has no token count: the row is damaged.
    """
    references = [name for name in n_tokens if name not in (FAILED, DIVERGING)]
    n = _of(n_tokens, FAILED)
    found: dict[str, Sums] = {"logprob": {FAILED: 1.0}, "logprob_per_token": {FAILED: 1 / n}}
    if references:
        share = 1 / len(references)
        found["margin"] = {FAILED: 1.0, **dict.fromkeys(references, -share)}
        found["margin_per_token"] = {FAILED: 1 / n, **{name: -share / n_tokens[name] for name in references}}
        found["diverging"] = {DIVERGING: 1.0}
        found["diverging_per_token"] = {DIVERGING: 1 / _of(n_tokens, DIVERGING)}
    return {metric: found[metric] for metric in FORMS if metric in found}


def metrics_of(n_tokens: Mapping[str, int], sums: Mapping[str, float]) -> dict[str, float]:
    """Metric → its value, of one value for each sum; InputError for a damaged row, as `weights`."""
    return {
        metric: math.fsum(weight * _of(sums, name) for name, weight in own.items())
        for metric, own in weights(n_tokens).items()
    }


def metrics_by_part(
    n_tokens: Mapping[str, int], sums: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Metric → part → its value, of sum → part → value; parts in the order of "failed".

    Raises:
        InputError: a part lacks a value of some sum: the row is damaged.
    """
    return {
        metric: {
            part: math.fsum(w * _of(_of(sums, name), part) for name, w in own.items())
            for part in _of(sums, FAILED)
        }
        for metric, own in weights(n_tokens).items()
    }


def _of(values: Mapping[str, _Value], name: str) -> _Value:
    if name not in values:
        raise InputError(f"A row has no value of '{name}', which its other values ask for: it is damaged.")
    return values[name]


def by_metric(
    rows: pd.DataFrame, derive: Callable[[pd.DataFrame], pd.DataFrame], metrics: Sequence[str] = FORMS
) -> pd.DataFrame:
    """What `derive` makes of the rows of each metric, one under the other, with a column `metric` in front.

    All metrics are given the same streams of random numbers, so that they see the same draws where they are of the same
    items.
    """
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    tables: list[pd.DataFrame] = []
    for metric in present:
        table = derive(rows[rows["metric"] == metric].drop(columns="metric"))
        tables.append(table.assign(metric=metric)[["metric", *table.columns]])
    # An empty part has no types, and would take those of the others.
    filled = [table for table in tables if len(table)] or tables[:1]
    return pd.concat(filled, ignore_index=True) if filled else rows[["metric"]].head(0)


def reference_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes on items whose margin is not against a reference action, one sentence a kind.

    Args:
        rows: with item_id and references (gold, distractors or none).
    """
    kinds = {row["item_id"]: row["references"] for row in rows}
    n = len(kinds)
    few = {kind: sum(one == kind for one in kinds.values()) for kind in ("distractors", "none")}
    found = []
    if few["distractors"]:
        found.append(
            f"{few['distractors']} of {n} items have no reference action: their margin is against the mean of their "
            "distractors."
        )
    if few["none"]:
        found.append(
            f"{few['none']} of {n} items have neither a reference action nor distractors: they are in logprob alone."
        )
    return found
