"""One look for all figures, and the one way to write one: PNG, PDF and the csv of the numbers it shows.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; shape or place always tells the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COPY = "#D55E00"  # vermilion: the string being present
SEM = "#0072B2"  # blue: what the message says
TOTAL = "#111111"
SELECTED = "#D55E00"
OTHER = "#8A8F98"
RANDOM = "#56B4E9"
MUTED = "#5A5F66"
DAMAGE = "#009E73"  # controls that cost as much as the selected heads
DIVERGING = "RdBu_r"  # centred at zero: red raises log p(a×), blue lowers it
SEQUENTIAL = "cividis"
WIDTH = 7.0  # inches: the text width of a paper page

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # real letters in the PDF, which journals ask for
    "savefig.dpi": 220,
}


def styled() -> Any:
    """A context in which figures are drawn and saved in this look; matplotlib's own settings return."""
    return matplotlib.rc_context(_SETTINGS)


def new_figure(
    height: float, n_rows: int = 1, n_columns: int = 1, **sharing: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of page width and its panels in reading order; no global state, no window."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False, **sharing)
    return figure, list(panels.flat)


def save(figure: Figure, numbers: pd.DataFrame, run: Path, name: str) -> list[Path]:
    """Write `run/figures/name` as .png, .pdf and .csv (the plotted numbers, unrounded); return the paths."""
    folder = run / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in ("png", "pdf", "csv")]
    figure.savefig(paths[0], metadata={"Software": None})
    figure.set_layout_engine("none")  # the PDF keeps the places of the PNG, and is not laid out again
    figure.savefig(paths[1], metadata={"CreationDate": None})  # equal tables give equal bytes
    numbers.to_csv(paths[2], index=False)
    return paths


def zero_line(axes: Axes, vertical: bool = False) -> None:
    """A thin line at zero, behind the data."""
    (axes.axvline if vertical else axes.axhline)(0, color=MUTED, linewidth=0.7, zorder=1)
