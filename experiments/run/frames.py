"""Tables that are read back: csv with floats exact, and every fault one sentence that names the file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.run.schema import TABLES
from mech.errors import InputError

# Before pandas 3.1 reading floats exactly is an option; since then it is the default.
_OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT_FLOATS: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}


def in_schema(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as NAME.csv has it: the schema's columns first, in its order, then those that it has beyond them.

    A frame without rows need not have columns.

    Raises:
        InputError: a column of the schema is missing.
    """
    required = TABLES.get(name, ())
    missing = [column for column in required if column not in frame.columns]
    if missing and len(frame):
        raise InputError(f"Table '{name}' lacks the columns {', '.join(missing)}.")
    return frame.reindex(columns=list(dict.fromkeys([*required, *frame.columns])))


def csv_text(frame: pd.DataFrame) -> str:
    """The frame as csv that `read_frame` reads back: text quoted where needed, all of it where one has a return."""
    texts = frame.select_dtypes(exclude="number")
    returns = any("\r" in str(cell) for column in texts for cell in frame[column].unique())
    quoting = (
        csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    )  # the latter leaves "\r", a line's end to readers
    return str(frame.to_csv(index=False, lineterminator="\n", quoting=quoting))


def read_frame(path: Path) -> pd.DataFrame:
    """A csv table, floats read exactly; an empty cell is NaN and nothing else is.

    Raises:
        InputError: there is no such file, it cannot be read, or it is no csv table.
    """
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False, **EXACT_FLOATS)
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror or error}).") from error
    except (ValueError, OverflowError) as error:  # torn, empty, or not text
        raise InputError(f"{path} is not a csv table.") from error


def numeric(table: pd.DataFrame, path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The table, if these columns hold finite numbers (or nothing).

    Raises:
        InputError: a column is missing or holds text; the sentence names file and column.
    """
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise InputError(f"{path} lacks the columns {', '.join(missing)}.")
    for column in columns:
        values = table[column]
        if not (pd.api.types.is_numeric_dtype(values) or values.isna().all()) or pd.api.types.is_bool_dtype(
            values
        ):
            raise InputError(f"{path} has text in the column {column}, where numbers belong.")
        if np.isinf(values.to_numpy(dtype=float)).any():
            raise InputError(f"{path} has a number in the column {column} that is not finite.")
    return table
