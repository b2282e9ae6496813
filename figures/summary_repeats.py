"""How likely the failed action is to be taken again: before the failure, after it, and after an abstract of it.

Reads summary.csv. Left: p_repeat_pre → p_repeat_fail, the share of a× in the softmax over its candidates.
Right: greedy_repeat_pre, _fail, _abstract, the share of items where greedy decoding begins with a×. Means over
items with 95 % intervals; a row per model or ablation arm, a pair of panels per
environment.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from figures import style
from figures.layout import LINE, arms, fold, handles_of, row_height, rows_of, side_column, span
from figures.load import MissingTable, read_arms, refuse_doubles

READS = {
    "summary.csv": ("model", "env", "measure", "mean", "ci_lo", "ci_hi", "n"),
}
"""Table → the columns that are read of it."""
QUANTITIES = {"p_repeat": "normalised probability of a× among its candidates",
              "greedy_repeat": "share of items where greedy decoding begins with a×"}  # fmt: skip
# condition → name, colour, marker, filled, place within the row
CONDITIONS = {
    "pre": ("before the failure (pre)", style.MUTED, "o", False, -0.2),
    "fail": ("after a× and its error (fail)", style.COPY, "D", True, 0.0),
    "abstract": ("after a description of the failure without a× (abstract)", style.SEM, "^", True, 0.2),
}
_NEEDED = {"p_repeat_pre", "p_repeat_fail"}
_LABEL_WIDTH = 24


def repeat_numbers(summary: pd.DataFrame) -> pd.DataFrame:
    """Rows `model, env, quantity, condition, mean, ci_lo, ci_hi, n` of those measures that the table has.

    Raises:
        MissingTable: no model has p_repeat_pre and p_repeat_fail in any environment.
        FigureError: two rows of one measure.
    """
    wanted = {f"{quantity}_{name}": (quantity, name) for quantity in QUANTITIES for name in CONDITIONS}
    rows = summary[summary["measure"].isin(list(wanted))]
    refuse_doubles(rows, "summary.csv", ["model", "env", "measure"])
    cells = {cell for cell, part in rows.groupby(["model", "env"]) if {*part["measure"]} >= _NEEDED}
    rows = rows[[pair in cells for pair in zip(rows["model"], rows["env"], strict=True)]]
    if rows.empty:
        raise MissingTable("summary.csv has no model with both of p_repeat_pre and p_repeat_fail.")
    split = rows["measure"].map(wanted)
    found = rows.assign(quantity=[pair[0] for pair in split], condition=[pair[1] for pair in split])
    columns = ["model", "env", "quantity", "condition", "mean", "ci_lo", "ci_hi", "n"]
    return found[columns].reset_index(drop=True)


def draw_summary_repeats(run: Path) -> list[Path]:
    """Write the figure `summary_repeats`; returns its three files."""
    numbers = repeat_numbers(read_arms(run, "summary.csv", READS))
    envs = list(dict.fromkeys(numbers["env"]))
    each = row_height((fold(model, _LABEL_WIDTH) for model in numbers["model"]), 0.4)
    heights = [0.62 + each * numbers.loc[numbers["env"] == env, "model"].nunique() for env in envs]
    with style.styled():
        figure, panels = style.new_figure(
            sum(heights) + 0.8, len(envs), len(QUANTITIES), gridspec_kw={"height_ratios": heights}
        )
        for row, env in enumerate(envs):
            here = numbers[numbers["env"] == env]
            models = list(dict.fromkeys(here["model"]))
            for column, quantity in enumerate(QUANTITIES):
                axes = panels[row * len(QUANTITIES) + column]
                _draw_panel(axes, here[here["quantity"] == quantity], models, named=column == 0)
                if row == len(envs) - 1:
                    axes.set_xlabel(fold(QUANTITIES[quantity], 34))
            panels[row * len(QUANTITIES)].set_title(env)
        handles = handles_of(panels)
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=3, columnspacing=1.2
        )
        return style.save(figure, numbers, run, "summary_repeats")


def _draw_panel(axes: Axes, rows: pd.DataFrame, models: list[str], named: bool) -> None:
    for place, model in enumerate(models):
        ends = rows[rows["model"] == model].set_index("condition")["mean"]
        if {"pre", "fail"} <= set(ends.index):
            axes.plot(
                [ends["pre"], ends["fail"]], [place + CONDITIONS[name][4] for name in ("pre", "fail")],
                color=style.OTHER, alpha=0.55, linewidth=2.6, solid_capstyle="round", zorder=2,
            )  # fmt: skip
    for condition, (label, colour, marker, filled, offset) in CONDITIONS.items():
        part = rows[rows["condition"] == condition]
        if part.empty:
            continue
        axes.errorbar(
            part["mean"], part["model"].map(models.index) + offset, xerr=arms(part), linestyle="none", color=colour,
            marker=marker, markersize=4.8, markerfacecolor=colour if filled else "white", label=label, zorder=3,
            **LINE,
        )  # fmt: skip
    rows_of(axes, [fold(model, _LABEL_WIDTH) for model in models], named)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    counts = {model: span(group["n"]) for model, group in rows.groupby("model")}
    side_column(axes, "n", [counts.get(model, "–") for model in models])
