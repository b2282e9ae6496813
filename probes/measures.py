"""From score rows to measures per item: every definition of what this package measures, each written once.

Notation: L(c) is the log-probability (nats, summed over tokens) of the failed action a× under condition c,
and Lref(c) that of the reference action ("gold").

    G = L(pre) − L(fail)              corrective gain; negative = the failure makes a× more likely
    copy = L(neut) − L(pre),  sem = L(fail) − L(neut),  so that −G = copy + sem
    …_per_token                       the same, divided by the number of tokens of a×
    p_repeat_c                        a× in the softmax over the item's candidates; c = pre, fail
    greedy_repeat_c                   1 if every token of a× is the argmax at its position, else 0
    G_abstract = L(pre) − L(abstract),  delta_abstract = L(abstract) − L(fail)
    repair = Lref(fail) − Lref(pre)
    margin_shift = [Lref − L](fail) − [Lref − L](pre) = repair + G

A measure whose scores are not all there is left out for that item. Nothing missing counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mech.errors import InputError

KEYS = ("model", "env", "item_id", "task_id")
VALUES = ("logprob", "n_tokens", "is_greedy")
COLUMNS = (*KEYS, "measure", "value")
CANDIDATES = ("failed", "gold", "distractor0", "distractor1")
IDENTITY_TOLERANCE = 1e-5  # nats


@dataclass(frozen=True)
class Scores:
    """Score rows laid out by item.

    `logprob` and `greedy` have one line per item (and ablation) and columns (condition, candidate), NaN where
    nothing was scored; `n_tokens` is the length of each item's failed action.
    """

    logprob: pd.DataFrame
    greedy: pd.DataFrame
    n_tokens: pd.Series

    def logp(self, condition: str, candidate: str = "failed") -> pd.Series:
        """L(condition) of each item, NaN where it was not scored."""
        return _column(self.logprob, condition, candidate)


def corrective_gain(scores: Scores) -> pd.Series:
    """G = L(pre) − L(fail)."""
    return scores.logp("pre") - scores.logp("fail")


def copy_part(scores: Scores) -> pd.Series:
    """Δcopy = L(neut) − L(pre): what the mere presence of a× in the record does."""
    return scores.logp("neut") - scores.logp("pre")


def semantic_part(scores: Scores) -> pd.Series:
    """Δsem = L(fail) − L(neut): what the record's saying that it failed does."""
    return scores.logp("fail") - scores.logp("neut")


def abstract_gain(scores: Scores) -> pd.Series:
    """G_abstract = L(pre) − L(abstract)."""
    return scores.logp("pre") - scores.logp("abstract")


def abstraction_effect(scores: Scores) -> pd.Series:
    """delta_abstract = L(abstract) − L(fail)."""
    return scores.logp("abstract") - scores.logp("fail")


def repair(scores: Scores) -> pd.Series:
    """Recovery = Lref(fail) − Lref(pre)."""
    return scores.logp("fail", "gold") - scores.logp("pre", "gold")


def margin_shift(scores: Scores) -> pd.Series:
    """Change from pre to fail of Lref − L."""
    fail = scores.logp("fail", "gold") - scores.logp("fail")
    return fail - (scores.logp("pre", "gold") - scores.logp("pre"))


def repeat_probability(scores: Scores, condition: str) -> pd.Series:
    """Share of a× in the softmax of the summed log-probabilities over the item's candidate set.

    The set is what was scored for the item under pre or fail, the same for both, and holds a× and the
    reference at least. An item one of whose candidates has no score under `condition` has no value.
    """
    here = _candidates(scores, condition)
    members = _candidates(scores, "pre").notna() | _candidates(scores, "fail").notna()
    complete = (here.notna() == members).all(axis=1) & members["failed"] & members["gold"]
    logits = here[complete]
    peak = logits.max(axis=1)  # skips what is not in the set, as does the sum below
    total = np.exp(logits.sub(peak, axis=0)).sum(axis=1)
    return (np.exp(logits["failed"] - peak) / total).reindex(here.index)


def greedy_repeat(scores: Scores, condition: str) -> pd.Series:
    """1 where greedy decoding would begin with a× under the condition, else 0."""
    return _column(scores.greedy, condition, "failed")


DEFINITIONS: dict[str, Callable[[Scores], pd.Series]] = {
    "G": corrective_gain,
    "copy": copy_part,
    "sem": semantic_part,
    "G_per_token": lambda scores: corrective_gain(scores) / scores.n_tokens,
    "copy_per_token": lambda scores: copy_part(scores) / scores.n_tokens,
    "sem_per_token": lambda scores: semantic_part(scores) / scores.n_tokens,
    "p_repeat_pre": lambda scores: repeat_probability(scores, "pre"),
    "p_repeat_fail": lambda scores: repeat_probability(scores, "fail"),
    "greedy_repeat_pre": lambda scores: greedy_repeat(scores, "pre"),
    "greedy_repeat_fail": lambda scores: greedy_repeat(scores, "fail"),
    "G_abstract": abstract_gain,
    "delta_abstract": abstraction_effect,
    "margin_shift": margin_shift,
    "repair": repair,
}


def measure(rows: pd.DataFrame) -> pd.DataFrame:
    """All measures of all items, in long form.

    Args:
        rows: one line per score with the columns model, env, item_id, task_id, condition, candidate,
            logprob (nats), n_tokens, is_greedy; a column `ablation` (a label) is optional.

    Returns:
        Columns model, env, item_id, task_id, measure, value (and ablation, if given), sorted by item
        and then in the order of `DEFINITIONS`, whatever the order of the rows.

    Raises:
        InputError: a column or a key is missing, a score stands twice, a log-probability is positive
            or not finite, or an item's failed action has two lengths.
        RuntimeError: −G = copy + sem fails on an item.
    """
    keys = [*KEYS, *(["ablation"] if "ablation" in rows.columns else [])]
    _check(rows, keys)
    scores = _by_item(rows, keys)
    wide = pd.DataFrame({name: define(scores) for name, define in DEFINITIONS.items()})
    wide.columns.name = "measure"
    long = (
        wide.reset_index().melt(id_vars=keys, var_name="measure", value_name="value").dropna(subset=["value"])
    )
    long["measure"] = pd.Categorical(long["measure"], list(DEFINITIONS))
    long = long.sort_values([*keys, "measure"], ignore_index=True).astype({"measure": str})
    check_identity(long)
    return long[[*COLUMNS, *keys[len(KEYS) :]]]


def check_identity(long: pd.DataFrame) -> None:
    """Raise RuntimeError, naming the item, unless −G = copy + sem wherever an item has all three."""
    keys = [column for column in long.columns if column not in ("measure", "value")]
    parts = long[long["measure"].isin(["G", "copy", "sem"])]
    if parts["measure"].nunique() < 3:
        return
    wide = parts.pivot(index=keys, columns="measure", values="value").dropna()
    gap = (wide["G"] + wide["copy"] + wide["sem"]).abs()
    if (gap > IDENTITY_TOLERANCE).any():
        worst = dict(zip(keys, gap.idxmax(), strict=True))
        raise RuntimeError(
            f"-G = copy + sem is off by {gap.max():.3g} nats on item {worst['item_id']} ({worst})."
        )


def _candidates(scores: Scores, condition: str) -> pd.DataFrame:
    """L of each candidate under a condition: items down, candidates across."""
    columns = [scores.logp(condition, candidate) for candidate in CANDIDATES]
    return pd.concat(columns, axis=1, keys=CANDIDATES)


def _column(wide: pd.DataFrame, condition: str, candidate: str) -> pd.Series:
    """One column, all NaN if no item has it."""
    if (condition, candidate) in wide.columns:
        return wide[(condition, candidate)]
    return pd.Series(np.nan, index=wide.index)


def _by_item(rows: pd.DataFrame, keys: list[str]) -> Scores:
    """Lay checked rows out by item."""
    place = {"index": keys, "columns": ["condition", "candidate"]}
    plain = rows.astype({"logprob": float, "is_greedy": float})
    lengths = rows[rows["candidate"] == "failed"].groupby(keys)["n_tokens"].agg(["min", "max"])
    mixed = lengths.index[lengths["min"] != lengths["max"]]
    if len(mixed):
        raise InputError(f"The failed action of {mixed[0][2]} has two lengths: two tokenizers are mixed.")
    logprob = plain.pivot(values="logprob", **place)
    greedy = plain.pivot(values="is_greedy", **place)
    return Scores(logprob, greedy, lengths["min"].reindex(logprob.index))


def _check(rows: pd.DataFrame, keys: list[str]) -> None:
    """Refuse rows that could only give wrong numbers."""
    needed = [*keys, "condition", "candidate"]
    missing = [column for column in [*needed, *VALUES] if column not in rows.columns]
    if missing:
        raise InputError(f"The score rows lack the columns {', '.join(missing)}.")
    for column in [*needed, *VALUES]:
        if rows[column].isna().any():
            raise InputError(f"Score row {_first(rows, rows[column].isna())} has no {column}.")
    stranger = ~rows["candidate"].isin(CANDIDATES)
    if stranger.any():
        raise InputError(
            f"Score row {_first(rows, stranger)} has a candidate other than {', '.join(CANDIDATES)}."
        )
    logprob = rows["logprob"].astype(float)
    wrong = ~np.isfinite(logprob) | (logprob > 0)
    if wrong.any():
        raise InputError(f"Score row {_first(rows, wrong)} has a log-probability that is not finite and ≤ 0.")
    if (rows["n_tokens"] < 1).any():
        raise InputError(f"Score row {_first(rows, rows['n_tokens'] < 1)} has no tokens.")
    unclear = ~rows["is_greedy"].isin([True, False])
    if unclear.any():
        raise InputError(
            f"Score row {_first(rows, unclear)} has an is_greedy that is neither true nor false."
        )
    doubled = rows.duplicated([column for column in needed if column != "task_id"])
    if doubled.any():
        raise InputError(f"Score row {_first(rows, doubled)} stands twice.")
    items = [column for column in keys if column not in ("task_id", "ablation")]
    tasks = rows.groupby(items)["task_id"].nunique()
    if (tasks > 1).any():
        raise InputError(f"Item {tasks.idxmax()[2]} belongs to two tasks.")


def _first(rows: pd.DataFrame, where: pd.Series) -> str:
    """The first row selected, as item/condition/candidate."""
    row = rows[where].iloc[0]
    return f"{row['item_id']}/{row['condition']}/{row['candidate']}"
