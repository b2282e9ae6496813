"""Δcopy and Δsem side by side, with intervals, and their sum −G: how much of the inversion is the string.

Reads summary.csv: mean and 95 % interval of the measures copy, sem and G, nats per action; −G = Δcopy + Δsem.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from figures import style
from figures.load import MissingTable, read_table

MEASURES = ("copy", "sem", "G")
_BAR = 0.30


def split_numbers(summary: pd.DataFrame) -> pd.DataFrame:
    """Rows `model, env, quantity, mean, ci_lo, ci_hi, n`; −G has its sign turned and its bounds swapped.

    Raises:
        MissingTable: no model and environment has all three measures.
    """
    rows = []
    for (model, env), group in summary.groupby(["model", "env"], sort=False):
        by_measure = group.drop_duplicates("measure").set_index("measure")
        if not set(MEASURES) <= set(by_measure.index):
            continue
        for measure, quantity in zip(MEASURES, ("Δcopy", "Δsem", "−G"), strict=True):
            row = by_measure.loc[measure]
            mean, low, high = float(row["mean"]), float(row["ci_lo"]), float(row["ci_hi"])
            if measure == "G":
                mean, low, high = -mean, -high, -low
            rows.append((model, env, quantity, mean, low, high, int(row["n"])))
    if not rows:
        raise MissingTable("summary.csv has no model with all of the measures copy, sem and G.")
    return pd.DataFrame(rows, columns=["model", "env", "quantity", "mean", "ci_lo", "ci_hi", "n"])


def draw_split_bars(run: Path) -> list[Path]:
    """Write the figure `split_bars`; returns its three files."""
    numbers = split_numbers(read_table(run, "summary.csv"))
    groups = list(numbers.groupby(["model", "env"], sort=False))
    with style.styled():
        figure, (axes,) = style.new_figure(height=1.35 + 0.72 * len(groups))
        for place, (_, group) in enumerate(groups):
            _draw_group(axes, float(place), group.set_index("quantity"))
        style.zero_line(axes, vertical=True)
        axes.set_yticks(
            range(len(groups)),
            [f"{model}\n{env}, n = {group['n'].iloc[0]}" for (model, env), group in groups],
        )
        axes.set_ylim(len(groups) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color="#E3E5E8", linewidth=0.6)
        axes.set_xlabel("change of log p(a×), nats per action (whiskers: 95 % interval)")
        axes.set_title("How a recorded failure changes the log-probability of the failed action a×")
        figure.legend(
            handles=_legend(), loc="outside lower left", ncols=3, handletextpad=0.6, columnspacing=1.8
        )
        return style.save(figure, numbers, run, "split_bars")


def _draw_group(axes: Axes, place: float, rows: pd.DataFrame) -> None:
    for quantity, colour, offset in (("Δcopy", style.COPY, -_BAR / 2), ("Δsem", style.SEM, _BAR / 2)):
        row = rows.loc[quantity]
        axes.barh(place + offset, row["mean"], height=_BAR * 0.92, color=colour, zorder=2)
        axes.errorbar(
            row["mean"],
            place + offset,
            xerr=_arms(row),
            color=style.TOTAL,
            linewidth=1.1,
            capsize=2.5,
            zorder=3,
        )
    total = rows.loc["−G"]
    axes.errorbar(
        total["mean"], place + 1.28 * _BAR, xerr=_arms(total), fmt="D", markersize=4.8,
        color=style.TOTAL, linewidth=1.1, capsize=2.5, zorder=3,
    )  # fmt: skip


def _arms(row: pd.Series) -> np.ndarray:
    """Error-bar arms [[below], [above]]; an interval may exclude the mean by rounding, the arm is then 0."""
    return np.maximum([[row["mean"] - row["ci_lo"]], [row["ci_hi"] - row["mean"]]], 0.0)


def _legend() -> list[Patch | Line2D]:
    return [
        Patch(color=style.COPY, label="Δcopy: a× stands in the transcript"),
        Patch(color=style.SEM, label="Δsem: the message says it failed"),
        Line2D(
            [], [], color=style.TOTAL, marker="D", markersize=4.8, linewidth=1.1, label="−G = Δcopy + Δsem"
        ),
    ]
