"""Score rows, checked and laid out by item.

One line per item (and ablation), one column per (condition, candidate); NaN where nothing was scored.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Float

from mech.errors import InputError
from probes.stats.frame_checks import require_columns

KEYS = ("model", "env", "item_id", "task_id")
VALUES = ("logprob", "n_tokens", "is_greedy")
UNABLATED = "none"
"""The label of the unablated model in the column `ablation`."""
CANDIDATES = ("failed", "gold", "distractor0", "distractor1")
_WIDE = ("logprob", "is_greedy", "end_logprob", "end_is_argmax")  # in the order of the fields of Scores


@dataclass(frozen=True)
class Scores:
    """Score rows laid out by item.

    `logprob`, `greedy`, `end_logprob` and `end_argmax` have one line per item (and ablation) and columns
    (condition, candidate), NaN where nothing was scored; the last two are of the token that ends the turn. `n_tokens`
    is the length of each item's failed action, `step_index` how many steps precede it (NaN where the rows do not say).
    """

    logprob: pd.DataFrame
    greedy: pd.DataFrame
    end_logprob: pd.DataFrame
    end_argmax: pd.DataFrame
    n_tokens: pd.Series
    step_index: pd.Series

    def logp(self, condition: str, candidate: str = "failed", exact: bool = False) -> pd.Series:
        """L(condition) of each item, NaN where it was not scored; `exact` adds the end of the turn."""
        begins = self._column("logprob", condition, candidate)
        return begins + self._column("end_logprob", condition, candidate) if exact else begins

    @cached_property
    def _columns(self) -> dict[str, dict[Hashable, pd.Series]]:
        """Each frame by column, which a lookup in the frame itself takes longer for."""
        names = ("logprob", "greedy", "end_logprob", "end_argmax")
        return {name: dict(getattr(self, name).items()) for name in names}

    def _column(self, name: str, condition: str, candidate: str) -> pd.Series:
        """One column, all NaN if no item has it."""
        found = self._columns[name].get((condition, candidate))
        return pd.Series(np.nan, index=self.logprob.index) if found is None else found

    @cached_property
    def known(self) -> dict[str, pd.Series]:
        """Candidate → whether each item has it: it was scored under some condition."""
        scored = self.logprob.notna()
        names = scored.columns.get_level_values("candidate")
        return {name: scored.loc[:, names == name].any(axis=1) for name in CANDIDATES}

    @cached_property
    def margins(self) -> dict[str, pd.Series]:
        """Condition → margin, of those taken already: many measures ask for the same."""
        return {}

    def is_greedy(self, condition: str, exact: bool = False) -> pd.Series:
        """1 where greedy decoding would begin with a× under the condition (`exact`: and stop there), else 0."""
        begins = self._column("greedy", condition, "failed")
        return begins * self._column("end_argmax", condition, "failed") if exact else begins

    def candidates(self, condition: str, exact: bool = False) -> Float[np.ndarray, "item candidate"]:
        """L of each of `CANDIDATES` under a condition, NaN where it was not scored."""
        columns = [self.logp(condition, candidate, exact).to_numpy(float) for candidate in CANDIDATES]
        return np.stack(columns, axis=1)


def lay_out(rows: pd.DataFrame, keys: list[str]) -> Scores:
    """Lay checked rows out by item; InputError where an item's failed action has two lengths."""
    place = {"index": keys, "columns": ["condition", "candidate"]}
    plain = rows.astype({"logprob": float, "is_greedy": float})
    for name in ("end_logprob", "end_is_argmax", "step_index"):
        plain[name] = plain[name].astype(float) if name in plain else np.nan
    lengths = rows[rows["candidate"] == "failed"].groupby(keys)["n_tokens"].agg(["min", "max"])
    mixed = lengths.index[lengths["min"] != lengths["max"]]
    if len(mixed):
        raise InputError(f"The failed action of {mixed[0][2]} has two lengths: two tokenizers are mixed.")
    logprob, greedy, ends, stops = (plain.pivot(values=name, **place) for name in _WIDE)
    steps = plain.groupby(keys)["step_index"].first()
    return Scores(
        logprob, greedy, ends, stops, lengths["min"].reindex(logprob.index), steps.reindex(logprob.index)
    )


def check_rows(rows: pd.DataFrame, keys: list[str]) -> None:
    """Refuse rows that could only give wrong numbers."""
    needed = [*keys, "condition", "candidate"]
    require_columns(rows, [*needed, *VALUES], "The score rows lack")

    def refuse(where: pd.Series, what: str) -> None:
        if where.any():
            row = rows[where].iloc[0]
            raise InputError(f"Score row {row['item_id']}/{row['condition']}/{row['candidate']} {what}.")

    for column in [*needed, *VALUES]:
        refuse(rows[column].isna(), f"has no {column}")
    refuse(~rows["candidate"].isin(CANDIDATES), f"has a candidate other than {', '.join(CANDIDATES)}")
    for name, what in (("logprob", "a log-probability"), ("end_logprob", "an end_logprob")):
        if name in rows.columns:
            values = rows[name].astype(float)
            wrong = values.notna() & (~np.isfinite(values) | (values > 0))
            refuse(wrong, f"has {what} that is not finite and ≤ 0")
    refuse(rows["n_tokens"] < 1, "has no tokens")
    refuse(~rows["is_greedy"].isin([True, False]), "has an is_greedy that is neither true nor false")
    refuse(rows.duplicated([column for column in needed if column != "task_id"]), "occurs twice")
    items = [column for column in keys if column not in ("task_id", "ablation", "draw")]
    tasks = rows.groupby(items)["task_id"].nunique()
    if (tasks > 1).any():
        raise InputError(f"Item {tasks.idxmax()[2]} belongs to two tasks.")
