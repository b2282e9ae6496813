"""Head scores on repeated random tokens: read from a run folder's heads.csv, else computed once for a loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd

from experiments.run.run_folder import numeric, read_frame
from experiments.run.seeds import stream
from mech.errors import InputError
from mech.head_scores.causal_copying import CAUSAL_SCORES
from mech.head_scores.induction import SCORES, RepeatedTokens, head_scores, repeated_tokens
from mech.models.model import Model

ALL_SCORES = (*SCORES, *CAUSAL_SCORES)

_Scored = dict[tuple[int, int, int], pd.DataFrame]
_SCORED: WeakKeyDictionary[Any, _Scored] = WeakKeyDictionary()
"""A loaded model → its head scores so far: a study of several sets asks for one ranking many times."""


def score_heads(model: Model, seed: int, n_sequences: int = 8, length: int = 48) -> pd.DataFrame:
    """Scores of all heads, once for a loaded model; the sequences depend on the seed and the vocabulary only."""
    scored = _SCORED.setdefault(model.bridge, {})
    key = (seed, n_sequences, length)
    if key not in scored:
        scored[key] = head_scores(model, random_sequences(model, seed, n_sequences, length))
    return scored[key].copy()


def random_sequences(model: Model, seed: int, n_sequences: int, length: int) -> RepeatedTokens:
    """The repeated random tokens of a seed."""
    return repeated_tokens(model, stream(seed, "repeated tokens"), n_sequences, length)


def ranking(model: Model, path: Path, seed: int, by: str = "prefix_matching") -> tuple[pd.DataFrame, str]:
    """Head scores of a run folder where `heads` was run, else scored here under the seed; and which of the two.

    Raises:
        InputError: the folder's table is not of a model of this size, or lacks the score.
    """
    table = path / "heads.csv"
    if not table.is_file():
        if by in CAUSAL_SCORES:
            raise InputError(f"There is no {table}: run `backfire heads --scores all` first to rank by {by}.")
        return score_heads(model, seed), f"scored under seed {seed}"
    try:
        scores = read_frame(table)
    except InputError as error:
        raise InputError(f"{table} is not a table of head scores: run `backfire heads` again.") from error
    every = {(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)}
    complete = {"layer", "head", by} <= set(scores.columns)
    if (
        not complete
        or set(zip(scores["layer"], scores["head"], strict=True)) != every
        or len(scores) != len(every)
    ):
        raise InputError(f"{table} does not score {by} for the {len(every)} heads of this model.")
    numeric(scores, table, [name for name in scores.columns if name != "selected"])
    if scores[by].isna().any():
        raise InputError(f"{table} has a head without {by}: run `backfire heads` again.")
    return scores.astype({"layer": int, "head": int}), str(table.name)
