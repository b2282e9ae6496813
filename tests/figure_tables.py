"""What the pictures read, out of their modules: (module, table) → columns."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pandas as pd

import figures
from figures import load

_MODULES = {
    one.name: importlib.import_module(f"figures.{one.name}")
    for one in pkgutil.iter_modules(figures.__path__)
    if one.name != "__main__"
}
READS: dict[tuple[str, str], tuple[str, ...]] = {
    (name, table): columns
    for name, module in _MODULES.items()
    for table, columns in vars(module).get("READS", {}).items()
}


def read_table(run: Path, name: str) -> pd.DataFrame:
    """A table with every column that any picture reads of it."""
    columns = [column for (_, table), listed in READS.items() if table == name for column in listed]
    return load.read_table(run, name, {name: list(dict.fromkeys(columns))})
