"""Our per-item scores beside published ones: whether two measurements of the same items are the same measurement.

    difference            ours − theirs, of a summed log-probability (nats) or of a measure that follows from it, where
                          both sides have the item, condition and candidate (or the item and the measure)

A published file is recognised by its column names; each of these is enough:

    scores, one a row     item_id, condition, candidate, logprob; also n_tokens and ctx_tokens, where it has them
    scores, one a column  item_id, lp__CONDITION__CANDIDATE; also ntok__CONDITION__CANDIDATE, ctx__CONDITION
    measures              item_id and columns named like measures of `probes.measures.measures`: G, copy, sem,
                          p_repeat_pre, …

Where scores are given, G, copy and sem follow from them too (a file's own columns of these names come first). Equal
prompts show in equal context lengths and equal tokenizers in equal token counts, so both are counted. Where every score
of every item agrees, so does all that follows from them; means over items can agree although the items do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.measures.measures import DEFINITIONS, measure
from probes.stats.ranks import spearman

NO_CONDITION = "-"
"""Condition and candidate of a measure, which is of several; a score's measure is `logprob`."""
_SCORE = ["item_id", "condition", "candidate"]
_MEASURE = ["item_id", "measure", "value"]
_COUNTS = ("n_tokens", "ctx_tokens")
_FOLLOWING = {"G": ("fail", "pre"), "copy": ("pre", "neut"), "sem": ("neut", "fail")}
_WIDE = re.compile(r"(lp|ntok)__(.+)__([A-Za-z0-9]+)")
FORMS = (
    "item_id, condition, candidate and logprob; or item_id and columns lp__CONDITION__CANDIDATE; or item_id and "
    "measures such as G, copy and sem"
)


@dataclass(frozen=True)
class Items:
    """What one side says of single items.

    scores: item_id, condition, candidate, logprob, n_tokens, ctx_tokens (NaN where unknown); measures: item_id,
    measure, value; env: item_id → environment, empty where unknown; repeated: rows that a later one of the same item,
    condition and candidate replaced; elsewhere: rows of other models or environments, which are left out.
    """

    scores: pd.DataFrame
    measures: pd.DataFrame
    env: Mapping[str, str]
    repeated: int = 0
    elsewhere: int = 0


def our_items(rows: pd.DataFrame) -> Items:
    """The score rows of a run (unablated ones) and all measures that follow from them.

    Raises:
        InputError: as `probes.measures.measures.measure`.
    """
    plain = unablated(rows)
    scores = plain[[*_SCORE, "logprob"]].assign(
        **{name: _numbers(plain, name, "The run") for name in _COUNTS}
    )
    measures = measure(plain)[["item_id", "measure", "value"]]
    return Items(
        scores.reset_index(drop=True), measures, dict(zip(plain["item_id"], plain["env"], strict=True))
    )


def unablated(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows scored with the unablated model: all, if there is no column `ablation`."""
    if "ablation" not in rows.columns:
        return rows
    return rows[rows["ablation"].isna() | rows["ablation"].isin(["", "none"])]


def published_items(
    table: pd.DataFrame, what: str, model: str | None = None, envs: set[str] | None = None
) -> Items:
    """What a published table says of single items; see the module for the columns that are recognised.

    Args:
        table: its rows, in the order of the file: of two that say the same thing, the later counts.
        what: its name in a refusal.
        model: take rows of this model, if the table has a column `model`.
        envs: take rows of these environments, if it has a column `env`.

    Raises:
        InputError: no column is recognised (the sentence lists what is), a number is none, or no row is left.
    """
    if "item_id" not in table.columns or not _recognised(table):
        lacking = "has no column item_id" if "item_id" not in table.columns else "has no per-item numbers"
        raise InputError(f"{what} {lacking}: it must have {FORMS}.")
    chosen = table[table["item_id"].notna()]
    for column, wanted in (("model", {model} if model else None), ("env", envs)):
        if column in table.columns and wanted:
            known = sorted(chosen[column].dropna().astype(str).unique())
            chosen = chosen[chosen[column].astype(str).isin(wanted)]
            if chosen.empty:
                raise InputError(
                    f"{what} has no row whose {column} is {' or '.join(sorted(wanted))}; it has {', '.join(known)}."
                )
    chosen = chosen.assign(item_id=chosen["item_id"].astype(str)).reset_index(drop=True)
    scores = _long(chosen, what) if "logprob" in chosen.columns else _from_wide(chosen, what)
    last = scores.drop_duplicates(_SCORE, keep="last", ignore_index=True)
    measures = _measures(chosen, what)
    named = set(measures["measure"])
    measures = pd.concat([measures, _following(last, set(_FOLLOWING) - named)], ignore_index=True)
    once = measures.drop_duplicates(["item_id", "measure"], keep="last", ignore_index=True)
    env = (
        dict(zip(chosen["item_id"], chosen["env"].astype(str), strict=True))
        if "env" in chosen.columns
        else {}
    )
    return Items(last, once, env, len(scores) - len(last), len(table) - len(chosen))


def item_pairs(ours: Items, published: Items, model: str = "") -> pd.DataFrame:
    """Every score and measure of either side, side by side, one row an item and score (kind `score`) or measure.

    found_in is both, ours or published; the other columns are those of compare_item_pairs.csv.

    Measures that only we have are left out, and so are our scores where only measures are published: the published
    table does not speak of them.
    """
    own = ours.scores if len(published.scores) else ours.scores.iloc[:0]
    scores = own.merge(published.scores, on=_SCORE, how="outer", suffixes=("", "_published"), indicator=True)
    scores = scores.rename(columns={"logprob": "ours", "logprob_published": "published"})
    scores = scores.assign(kind="score", unit="nats", measure="logprob")
    mine = ours.measures[ours.measures["measure"].isin(set(published.measures["measure"]))]
    measures = mine.merge(
        published.measures,
        on=["item_id", "measure"],
        how="outer",
        suffixes=("", "_published"),
        indicator=True,
    )
    measures = measures.rename(columns={"value": "ours", "value_published": "published"})
    tokens = ours.scores[ours.scores["candidate"] == "failed"].groupby("item_id")["n_tokens"].first()
    measures = measures.assign(
        kind="measure", unit=measures["measure"].map(unit), n_tokens=measures["item_id"].map(tokens),
        condition=NO_CONDITION, candidate=NO_CONDITION,
    )  # fmt: skip
    both = pd.concat([scores, measures], ignore_index=True)
    envs = set(ours.env.values())
    only_env = envs.pop() if len(envs) == 1 else ""  # an item that only a table without environments has
    difference = both["ours"].astype(float) - both["published"].astype(float)
    both = both.assign(
        model=model,
        env=[ours.env.get(item, published.env.get(item, only_env)) for item in both["item_id"]],
        found_in=both["_merge"].astype(str).replace({"left_only": "ours", "right_only": "published"}),
        difference=difference,
        per_token=(difference / both["n_tokens"]).where(both["unit"] == "nats"),
    )
    ordered = both.sort_values(
        ["kind", "item_id", "condition", "candidate", "measure"], ascending=[False, *[True] * 4]
    )
    return ordered.drop(columns="_merge").reset_index(drop=True)


def unit(name: str) -> str:
    """Of a measure: nats, nats a token, or a probability (or share)."""
    if name.startswith(("p_repeat", "greedy")) or name == "G_negative":
        return "probability"
    return "nats per token" if name.endswith("_per_token") else "nats"


def summary(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a condition and candidate and one a measure, scores first; columns as in compare_items.csv.

    same_…: share of the rows in which both sides have the number.
    """
    keys = ["model", "env", "kind", "condition", "candidate", "measure", "unit"]
    lines = []
    for key, rows in pairs.groupby(keys, sort=False):
        met = rows[rows["found_in"] == "both"]
        apart, per_token = met["difference"].abs(), met["per_token"].abs()
        only = {f"n_only_{side}": int((rows["found_in"] == side).sum()) for side in ("ours", "published")}
        pearson, rank = _correlations(met)
        lines.append(
            {
                **{**dict(zip(keys, key, strict=True)), "n": len(met), **only},
                **{"median_abs": apart.median(), "max_abs": apart.max()},
                **{"median_abs_per_token": per_token.median(), "max_abs_per_token": per_token.max()},
                "item_of_max": met.loc[apart.idxmax(), "item_id"] if len(met) else None,
                **{f"same_{name}": _same(met, name) for name in _COUNTS},
                **{"pearson": pearson, "spearman": rank},
            }
        )
    return pd.DataFrame(lines)


def largest(pairs: pd.DataFrame) -> pd.Series | None:
    """The row whose difference in nats is largest; None where no row is matched."""
    met = pairs[(pairs["found_in"] == "both") & (pairs["unit"] == "nats")]
    return None if met.empty else met.loc[met["difference"].abs().idxmax()]


def _recognised(table: pd.DataFrame) -> bool:
    return (
        {"condition", "candidate", "logprob"} <= set(table.columns)
        or any(_wide(column) for column in table.columns)
        or bool(set(DEFINITIONS) & set(table.columns))
    )


def _wide(column: str) -> tuple[str, str] | None:
    """(condition, candidate) of a column lp__CONDITION__CANDIDATE."""
    found = _WIDE.fullmatch(str(column))
    return (found[2], found[3]) if found and found[1] == "lp" else None


def _long(table: pd.DataFrame, what: str) -> pd.DataFrame:
    lacking = [name for name in ("condition", "candidate") if name not in table.columns]
    if lacking:
        raise InputError(f"{what} has scores without the columns {', '.join(lacking)}.")
    numbers = {name: _numbers(table, name, what) for name in ("logprob", *_COUNTS)}
    scores = table[_SCORE].astype(str).assign(**numbers)
    return scores[scores["logprob"].notna()].reset_index(drop=True)


def _from_wide(table: pd.DataFrame, what: str) -> pd.DataFrame:
    parts = []
    for column in table.columns:
        place = _wide(column)
        if place is not None:
            condition, candidate = place
            names = {
                "logprob": column,
                "n_tokens": f"ntok__{condition}__{candidate}",
                "ctx_tokens": f"ctx__{condition}",
            }
            numbers = {name: _numbers(table, source, what) for name, source in names.items()}
            found = table[["item_id"]].assign(condition=condition, candidate=candidate, **numbers)
            parts.append(found[found["logprob"].notna()])
    return _under(parts, [*_SCORE, "logprob", *_COUNTS])


def _measures(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """The columns that are measures of ours, in long form; a table with a score a row has none."""
    names = [] if "logprob" in table.columns else [name for name in DEFINITIONS if name in table.columns]
    parts = [table[["item_id"]].assign(measure=name, value=_numbers(table, name, what)) for name in names]
    return _under([part[part["value"].notna()] for part in parts], _MEASURE)


def _following(scores: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """G, copy and sem of the items whose scores of a× allow them."""
    failed = scores[scores["candidate"] == "failed"].pivot(
        index="item_id", columns="condition", values="logprob"
    )
    parts = []
    for name, (before, after) in _FOLLOWING.items():
        if name in names and {before, after} <= set(failed.columns):
            value = (failed[after] - failed[before]).astype(float).dropna()
            parts.append(value.rename("value").reset_index().assign(measure=name)[_MEASURE])
    return _under(parts, _MEASURE)


def _under(parts: Sequence[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """The parts one under the other; without parts an empty frame with these columns."""
    return pd.concat(parts or [pd.DataFrame(columns=columns)], ignore_index=True)


def _numbers(table: pd.DataFrame, column: str, what: str) -> pd.Series:
    """A column as finite numbers or NaN; NaN where there is no such column."""
    if column not in table.columns:
        return pd.Series(np.nan, index=table.index)
    found = pd.to_numeric(table[column], errors="coerce").astype(float)
    wrong = (found.isna() & table[column].notna()) | np.isinf(found)
    if wrong.any():
        raise InputError(
            f"{what} has a {column} that is no number on line {int(wrong.to_numpy().argmax()) + 1} of its rows."
        )
    return found


def _same(met: pd.DataFrame, name: str) -> float:
    """Share of equal counts where both sides have one; NaN where none has."""
    known = met[met[name].notna() & met[f"{name}_published"].notna()]
    return float((known[name] == known[f"{name}_published"]).mean()) if len(known) else math.nan


def _correlations(met: pd.DataFrame) -> tuple[float, float]:
    """Pearson's and Spearman's; NaN of fewer than three pairs or where a side does not vary."""
    ours, published = (met[name].to_numpy(dtype=float) for name in ("ours", "published"))
    if len(met) < 3 or np.ptp(ours) == 0 or np.ptp(published) == 0:
        return math.nan, math.nan
    return float(np.corrcoef(ours, published)[0, 1]), float(spearman(ours[None], published[None])[0])
