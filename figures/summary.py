"""Δcopy and Δsem side by side, with intervals, and their sum −G: how much of the inversion is the string.

Reads summary.csv: mean and 95 % interval of the measures copy, sem and G, nats per action; −G = Δcopy + Δsem. A row
a model, and one for each of its ablation arms.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from figures import style
from figures.layout import fold, foot
from figures.load import MissingTable, read_arms

READS = {
    "summary.csv": ("model", "env", "measure", "mean", "ci_lo", "ci_hi", "n"),
}
"""Table → the columns that are read of it."""
MEASURES = ("copy", "sem", "G")
_BAR = 0.30
_TITLE = "How a recorded failure changes the log-probability of the failed action a×"
_AXIS = "change of log p(a×), nats per action (whiskers: 95 % interval)"


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


def draw_summary(run: Path) -> list[Path]:
    """Write the figure `summary`; returns its three files."""
    numbers = split_numbers(read_arms(run, "summary.csv", READS))
    envs = list(dict.fromkeys(numbers["env"]))
    models = list(dict.fromkeys(numbers["model"]))
    n_across = min(2, len(envs))
    n_down = -(-len(envs) // n_across)
    with style.styled():
        figure, panels = style.new_figure((1.35 + 0.72 * len(models)) * n_down, n_down, n_across)
        for index, (axes, env) in enumerate(zip(panels, envs, strict=False)):
            named = index % n_across == 0
            _draw_panel(axes, numbers[numbers["env"] == env], models, named, with_env=len(envs) == 1)
            axes.set_title(env if len(envs) > 1 else _TITLE)
        for axes in panels[len(envs) :]:
            axes.set_axis_off()
        handles = _legend()
        if len(envs) == 1:
            panels[0].set_xlabel(_AXIS)
            figure.legend(
                handles=handles, loc="outside lower left", ncols=3, handletextpad=0.6, columnspacing=1.8
            )
        else:
            figure.suptitle(_TITLE, x=0.01, ha="left", fontsize=9.5)
            foot(figure, _AXIS, handles, [str(handle.get_label()) for handle in handles], n_across=3)
        return style.save(figure, numbers, run, "summary")


def _draw_panel(axes: Axes, rows: pd.DataFrame, models: list[str], named: bool, with_env: bool) -> None:
    """One environment; `models` are the rows of every panel, named where the panel is the first across."""
    labels = []
    for place, model in enumerate(models):
        group = rows[rows["model"] == model].set_index("quantity")
        about = ["not measured"]
        if len(group):
            _draw_group(axes, float(place), group)
            about = [f"{group['env'].iloc[0]}, " * with_env + f"n = {group['n'].iloc[0]}"]
        labels.append("\n".join([fold(model, 26), *about] if named else about))
    style.zero_line(axes, vertical=True)
    axes.set_yticks(range(len(models)), labels)
    axes.set_ylim(len(models) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="#E3E5E8", linewidth=0.6)


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
        Patch(color=style.COPY, label="Δcopy: a× is in the transcript"),
        Patch(color=style.SEM, label="Δsem: the message says it failed"),
        Line2D(
            [], [], color=style.TOTAL, marker="D", markersize=4.8, linewidth=1.1, label="−G = Δcopy + Δsem"
        ),
    ]
