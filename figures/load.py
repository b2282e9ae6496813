"""Tables of a run folder, read with their required columns checked; the only reader in this room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Heads = list[tuple[int, int]]

READS = {
    "heads.csv": ("layer", "head", "prefix_matching"),
    "patch.csv": (
        *("metric", "direction", "layer", "head", "effect_nats", "share", "n", "site", "at"),
        *("from", "to"),
    ),
    "direct.csv": (
        *("metric", "direction", "kind", "layer", "head", "total_share", "total_nats", "n", "from"),
        *("to",),
    ),
}
"""Table → the columns that are read of it."""
_TEXT = {
    *("model", "env", "measure", "item_id", "direction", "set", "kind", "by", "level", "condition", "axis"),
    *("group", "note", "site", "control", "quantity", "score", "statistic", "method", "controls"),
    *("criterion", "test_set", "at", "from", "to", "role", "how", "arm", "metric", "predictor", "ablation"),
    *("equivalent", "uses_task_data", "reached", "selected"),  # true, false or empty
    *("candidate", "unit", "found_in"),
}
_NAMES = {  # of these, the ones that tell rows apart: never empty
    *("model", "env", "measure", "item_id", "direction", "set", "kind", "condition", "axis", "site"),
    *("at", "from", "to", "method", "statistic", "quantity", "arm", "metric", "predictor", "test_set"),
}
_WHOLE = {
    "layer",
    "head",
    "kv_head",
    "k",
    "n",
    "n_controls",
    "n_heads",
    "n_models",
    "n_methods",
    "t",
    "at_risk",
    "events",
}
_LARGEST = 10**9
# Before pandas 3.1 reading floats exactly is an option; since then it is the default.
_OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
_READING: dict[str, Any] = {
    "dtype": dict.fromkeys(_TEXT, str),
    # An empty cell is missing and nothing else is: "None" may well be the name of a level.
    **{"keep_default_na": False, "na_values": [""]},
    **({"float_precision": "round_trip"} if _OLD_PANDAS else {}),
}
UNABLATED = "none"
"""The label of the unablated model in the column `ablation`."""
DIRECTIONS = ("denoise", "noise")


def first_way(table: pd.DataFrame, metric: str = "logprob") -> pd.DataFrame:
    """Of an ablation's table the rows of the first way (`how`) and of one metric, losses included."""
    if "how" in table.columns and len(table):
        table = table[table["how"] == table["how"].iloc[0]]
    return table[table["metric"].isin([metric, "loss"])] if "metric" in table.columns else table


class FigureError(ValueError):
    """A table that cannot be drawn, in one sentence that says what is wrong with it."""


class MissingTable(FigureError):
    """The run folder lacks the table or the rows that a figure needs: the study was not run."""


def read_table(run: Path, name: str, reads: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Read `run/name` with the columns `reads[name]` present and its numbers numeric.

    Raises:
        MissingTable: there is no such file, or it has no rows.
        FigureError: it is not a csv table, lacks a column, or holds text where a number belongs.
    """
    path = run / name
    if not path.is_file():
        raise MissingTable(f"{name} is not in {run}: run the study that writes it first.")
    try:
        table = pd.read_csv(path, **_READING)
    except (OSError, ValueError, OverflowError) as error:  # pandas' own errors are ValueErrors
        raise FigureError(f"{name} is not a readable csv table ({error}).") from error
    missing = [column for column in reads[name] if column not in table.columns]
    if missing:
        raise FigureError(f"{name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    if table.empty:
        raise MissingTable(f"{name} has no rows.")
    for column in reads[name]:
        if column in _TEXT:
            if column in _NAMES and table[column].isna().any():
                raise FigureError(f"{name} has an empty cell in the column {column}.")
            continue
        if not pd.api.types.is_numeric_dtype(table[column]) or pd.api.types.is_bool_dtype(table[column]):
            raise FigureError(f"{name} has text in the column {column}, where numbers belong.")
        _check_numbers(table[column].to_numpy(dtype=float), name, column)
    return table


DIFFERENCES = {
    "logprob": "Δcopy",
    "margin": "Δcopy of the margin",
    "diverging": "Δcopy of the diverging tokens",
    "logprob_per_token": "Δcopy per token",
    "margin_per_token": "Δcopy of the margin per token",
    "diverging_per_token": "Δcopy per diverging token",
}
"""What shares of pre → neut are shares of, by metric: of log p(a×), of its margin over the reference call, …"""


def of_metric(table: pd.DataFrame, name: str, metric: str) -> pd.DataFrame:
    """The rows of one metric of the table `name`.

    Raises:
        MissingTable: there are none.
    """
    rows = table[table["metric"] == metric]
    if rows.empty:
        raise MissingTable(f"{name} has no rows of the metric {metric}.")
    return rows


def read_arms(run: Path, name: str, reads: Mapping[str, Sequence[str]], named: str = "model") -> pd.DataFrame:
    """A table whose lines may be of several ablation arms, the label of each beside its name in the column `named`.

    So a figure draws arms as it draws models (or environments): side by side, or a panel each. Lines of the unablated
    model keep their name, as do all lines of a table without the column `ablation`.

    Raises:
        MissingTable, FigureError: as `read_table`.
    """
    table = read_table(run, name, reads)
    if "ablation" not in table.columns:
        return table
    whole = table["ablation"].isna() | (table["ablation"] == UNABLATED)
    return table.assign(
        **{named: table[named].where(whole, table[named] + ", " + table["ablation"] + " ablated")}
    )


def _check_numbers(values: np.ndarray, name: str, column: str) -> None:
    """Raise FigureError for numbers that are none (infinite), and for counts and indices that count nothing."""
    if np.isinf(values).any():
        raise FigureError(f"{name} has a number in the column {column} that is not finite.")
    if column == "n" and np.isnan(values).any():
        raise FigureError(f"{name} has an empty cell in the column {column}.")
    if column in _WHOLE:
        known = values[~np.isnan(values)]
        if ((known != np.round(known)) | (known < 0) | (known > _LARGEST)).any():
            raise FigureError(f"{name} has a {column} that is no whole number from 0.")


def refuse_doubles(table: pd.DataFrame, name: str, keys: list[str]) -> None:
    """Raise FigureError, naming the first, if two rows of the table `name` agree in all `keys`."""
    doubled = table[table.duplicated(keys)]
    if not doubled.empty:
        which = ", ".join(f"{key} {doubled[key].iloc[0]}" for key in keys)
        raise FigureError(f"{name} has two rows of {which}.")


def is_true(column: pd.Series) -> pd.Series:
    """Which cells say true (or 1), in any spelling of its letters; an empty cell does not."""
    return column.astype(str).str.lower().isin(["true", "1"])


def read_heads(run: Path) -> pd.DataFrame:
    """`heads.csv` with one row per head.

    Raises:
        FigureError: as `read_table`, or a head is listed twice.
    """
    table = read_table(run, "heads.csv", READS)
    if table.duplicated(["layer", "head"]).any():
        raise FigureError("heads.csv lists a head twice.")
    return table


def selected_heads(heads: pd.DataFrame) -> Heads:
    """The heads marked in the column `selected`, best prefix-matching first; none without the column."""
    if "selected" not in heads.columns:
        return []
    chosen = heads[is_true(heads["selected"])]
    ordered = chosen.sort_values("prefix_matching", ascending=False)
    return [(int(layer), int(head)) for layer, head in zip(ordered["layer"], ordered["head"], strict=True)]


def head_shares(run: Path, metric: str = "logprob") -> dict[str, pd.DataFrame]:
    """Direction → one row a head: layer, head, share of Δcopy (a ratio of sums over items), effect_nats, n (items).

    Of z at the action positions, from pre to neut: out of patch.csv (`backfire patch`), or, where that has none,
    the total effects of direct.csv (`backfire direct`), which are the same exact patches.

    Raises:
        FigureError: as `read_table`, or a head is listed twice; MissingTable where neither table has such rows.
    """
    try:
        table = of_metric(read_table(run, "patch.csv", READS), "patch.csv", metric)
        wanted = {"site": "z", "at": "candidate", "from": "pre", "to": "neut"}
        rows = _matching(table, "patch.csv", wanted)
    except MissingTable as reason:
        if not (run / "direct.csv").is_file():
            raise
        table = of_metric(read_table(run, "direct.csv", READS), "direct.csv", metric)
        rows = _matching(table, "direct.csv", {"kind": "head", "from": "pre", "to": "neut"}, reason)
        rows = rows.drop(columns=["share", "effect_nats"], errors="ignore")
        rows = rows.rename(columns={"total_share": "share", "total_nats": "effect_nats"})
    refuse_doubles(rows, "the table of head effects", ["direction", "layer", "head"])
    columns = ["layer", "head", "effect_nats", "share", "n"]
    found = {name: rows.loc[rows["direction"] == name, columns] for name in DIRECTIONS}
    return {name: part.astype({"layer": int, "head": int}) for name, part in found.items() if len(part)}


def _matching(
    table: pd.DataFrame, name: str, wanted: dict[str, str], reason: MissingTable | None = None
) -> pd.DataFrame:
    """The rows with these values; raises MissingTable where there are none."""
    rows = table[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
    if rows.empty:
        named = ", ".join(f"{column} {value}" for column, value in wanted.items())
        raise MissingTable(f"{name} has no rows of {named}.") from reason
    return rows
