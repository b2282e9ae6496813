"""How a difference between two conditions is distributed over the tokens of a×.

The same tokens end every condition, so a difference of two sums is the sum of the tokens' differences:

    G = Σ_t [l_t(pre) − l_t(fail)],   copy = Σ_t [l_t(neut) − l_t(pre)],   sem = Σ_t [l_t(fail) − l_t(neut)]

with l_t the log-probability (nats) of token t given all before it. The tokens are pooled along an axis:

    position   level 0 … 9: the tenth of the action that the middle of the token lies in
    part       before: the longest beginning that a× shares with the reference action, in tokens;
               after: the longest end that they share after the error;
               error: what lies between, at least the first token that differs

Levels partition the tokens, so on every axis the levels of a measure sum to the measure, and −G = copy + sem in each;
both are asserted. A level that an item has no token in counts as 0 nats there, so a level's mean is per item, not per
token: an action of under ten tokens leaves tenths empty. Where an action only omits a part of the reference, its error
is the first token that differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from mech.engine.trie import common_prefix
from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_means
from probes.stats.frame_checks import require

DIFFERENCES = {"G": ("pre", "fail"), "copy": ("neut", "pre"), "sem": ("fail", "neut")}
"""Measure → the condition it is a difference of, and the one that is subtracted."""
N_TENTHS = 10
PARTS = ("before", "error", "after")
LEVELS = {"position": tuple(map(str, range(N_TENTHS))), "part": PARTS}
SUM_TOLERANCE = 1e-6  # nats

_ROW = (
    *("model", "env", "item_id", "task_id", "condition", "candidate"),
    *("logprob", "token_ids", "token_logprobs"),
)


@dataclass(frozen=True)
class TokenScores:
    """The failed action of one item: its tokens, and by condition their log-probabilities and its own score."""

    item_id: str
    task_id: str
    action: tuple[int, ...]
    reference: tuple[int, ...] | None
    logprobs: Mapping[str, Float[np.ndarray, " token"]]
    totals: Mapping[str, float]

    def has(self, measure: str) -> bool:
        """Whether both conditions of the measure were scored."""
        return set(DIFFERENCES[measure]) <= set(self.logprobs)

    def difference(self, measure: str) -> Float[np.ndarray, " token"]:
        """The measure, token by token."""
        one, other = DIFFERENCES[measure]
        return self.logprobs[one] - self.logprobs[other]


def profiles(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Mean nats per item of G, copy and sem at the tokens of each level; clusters are tasks.

    Args:
        rows: score rows: model, env, item_id, task_id, condition, candidate, logprob, token_ids, token_logprobs. Only
            candidate `failed` under pre, neut and fail is read, and `gold` for its token ids.
        rng_for: gives the stream of `profile/MODEL/ENV/MEASURE/AXIS`; all levels of an axis see the same draws.
        n_draws: bootstrap draws.

    Returns:
        model, env, measure, axis, level, mean, ci_lo, ci_hi, n, n_clusters, levels in the order of `LEVELS`. A
        measure is over the items scored under both of its conditions; for `part`, which needs a reference action, over
        the items that have one.

    Raises:
        InputError: a column or value is missing, a row occurs twice, an item has two tokenisations of an action, or
            not one log-probability per token.
        RuntimeError: the levels do not sum to the measure, or −G = copy + sem fails in one.
    """
    require(rows, _ROW, ["model", "env", "item_id", "condition", "candidate"])
    lines = []
    for (model, env), group in rows.groupby(["model", "env"], sort=True):
        items = list(token_scores(group))
        levels: dict[str, list[Int[np.ndarray, " token"] | None]] = {
            "position": [tenths(len(item.action)) for item in items],
            "part": [
                None if item.reference is None else parts(item.action, item.reference) for item in items
            ],
        }
        for axis, names in LEVELS.items():
            sums = [
                (item, level_sums(item, level, len(names)))
                for item, level in zip(items, levels[axis], strict=True)
                if level is not None
            ]
            for measure in DIFFERENCES:
                scored = [(item.task_id, one[measure]) for item, one in sums if measure in one]
                if not scored:
                    continue
                tasks, values = [task for task, _ in scored], [value for _, value in scored]
                rng = rng_for(f"profile/{model}/{env}/{measure}/{axis}")
                found = cluster_means(np.stack(values), tasks, rng, n_draws)
                about = {"model": model, "env": env, "measure": measure, "axis": axis}
                for name, one in zip(names, found, strict=True):
                    lines.append({**about, "level": name, **one.columns()})
    return pd.DataFrame(lines)


def tenths(n_tokens: int) -> Int[np.ndarray, " token"]:
    """The tenth of the action, 0 to 9, in which the middle of each token lies."""
    return (2 * np.arange(n_tokens) + 1) * N_TENTHS // (2 * n_tokens)


def parts(action: Sequence[int], reference: Sequence[int]) -> Int[np.ndarray, " token"]:
    """0 for the tokens before the error, 1 for the error, 2 for those after it: indices into `PARTS`."""
    before = common_prefix([action, reference])
    shared_end = common_prefix([action[::-1], reference[::-1]])
    after = min(shared_end, min(len(action), len(reference)) - before, max(len(action) - before - 1, 0))
    return np.repeat([0, 1, 2], [before, len(action) - before - after, after])


def level_sums(
    item: TokenScores, level: Int[np.ndarray, " token"], n_levels: int
) -> dict[str, Float[np.ndarray, " level"]]:
    """Nats of each measure the item has at the tokens of each level; sums and identity are checked.

    Raises:
        RuntimeError: as `profiles`.
    """
    sums = {
        measure: np.bincount(level, weights=item.difference(measure), minlength=n_levels)
        for measure in DIFFERENCES
        if item.has(measure)
    }
    for measure, values in sums.items():
        one, other = DIFFERENCES[measure]
        gap = abs(float(values.sum()) - (item.totals[one] - item.totals[other]))
        if not gap <= SUM_TOLERANCE:
            raise RuntimeError(f"The tokens of {item.item_id} miss its {measure} by {gap:.3g} nats.")
    if len(sums) == len(DIFFERENCES):
        worst = float(np.abs(sum(sums.values())).max())
        if not worst <= SUM_TOLERANCE:
            raise RuntimeError(f"-G = copy + sem is off by {worst:.3g} nats in a level of {item.item_id}.")
    return sums


def token_scores(rows: pd.DataFrame) -> Iterator[TokenScores]:
    """The failed actions of one model and environment, by item id.

    Raises:
        InputError: as `profiles`.
    """
    conditions = {name for pair in DIFFERENCES.values() for name in pair}
    scored = rows[rows["condition"].isin(conditions) & rows["candidate"].isin(["failed", "gold"])]
    for item_id, group in scored.groupby("item_id", sort=True):
        failed, gold = (group[group["candidate"] == name] for name in ("failed", "gold"))
        if len(failed) == 0:
            continue
        if group["task_id"].nunique() > 1:
            raise InputError(f"Item {item_id} belongs to two tasks.")
        action = _one_tokenisation(failed)
        reference = _one_tokenisation(gold) if len(gold) else None
        logprobs = {
            str(row.condition): np.asarray(row.token_logprobs, dtype=float) for row in failed.itertuples()
        }
        if any(len(values) != len(action) for values in logprobs.values()):
            raise InputError(
                f"Item {item_id} has not one log-probability for each token of its failed action."
            )
        totals = {str(row.condition): float(row.logprob) for row in failed.itertuples()}
        yield TokenScores(str(item_id), str(failed["task_id"].iloc[0]), action, reference, logprobs, totals)


def _one_tokenisation(rows: pd.DataFrame) -> tuple[int, ...]:
    """The token ids that all rows of an action have."""
    found = {tuple(map(int, ids)) for ids in rows["token_ids"]}
    if len(found) != 1 or not all(found):
        first = rows.iloc[0]
        raise InputError(
            f"The {first['candidate']} action of {first['item_id']} is tokenised in more than one way (or has no "
            "tokens): its tokens do not correspond between conditions."
        )
    return found.pop()
