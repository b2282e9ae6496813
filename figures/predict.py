"""Does what the probe measures before a step predict whether the step repeats: calibration, and AUC by predictor.

Reads predict_calibration.csv and predict.csv. Left: observed share of repeats against the mean predicted probability,
in bins of equal numbers of decision points, with 95 % intervals; the diagonal is perfect calibration. Right: area
under the ROC curve of every predictor as it is; ½ is chance, and below it the predictor is low before repeats. A
page a model, environment, arm and ablation under which the steps were scored.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from figures import style
from figures.layout import LINE, arms, fold, page_name, row_height, rows_of, side_column
from figures.load import MissingTable, read_arms, refuse_doubles

READS = {
    "predict.csv": ("model", "env", "arm", "predictor", "auc", "ci_lo", "ci_hi", "n"),
    "predict_calibration.csv": (
        *("model", "env", "arm", "predictor", "predicted", "observed", "ci_lo", "ci_hi", "n"),
    ),
}
"""Table → the columns that are read of it."""
_LOOKS = ((style.COPY, "o"), (style.SEM, "s"), ("#009E73", "^"), (style.TOTAL, "D"))
_CELL = ["model", "env", "arm"]
_LABEL_WIDTH = 18


def calibration_numbers(bins: pd.DataFrame, areas: pd.DataFrame) -> pd.DataFrame:
    """One frame of both panels: panel (calibration | auc), model, env, arm, predictor, x, mean, ci_lo, ci_hi, n.

    x is the mean predicted probability, and empty for areas.

    Raises:
        FigureError: a bin or an area is there twice.
    """
    refuse_doubles(bins, "predict_calibration.csv", [*_CELL, "predictor", "predicted"])
    refuse_doubles(areas, "predict.csv", [*_CELL, "predictor"])
    left = bins.rename(columns={"predicted": "x", "observed": "mean"}).assign(panel="calibration")
    right = areas.rename(columns={"auc": "mean"}).assign(panel="auc", x=float("nan"))
    columns = ["panel", *_CELL, "predictor", "x", "mean", "ci_lo", "ci_hi", "n"]
    return pd.concat([left[columns], right[columns]], ignore_index=True)


def draw_predict(run: Path) -> list[Path]:
    """Write the figure `predict`, a page a model, environment and arm with a calibration curve.

    Raises:
        MissingTable: a table is missing, or no arm has both an area and a curve.
    """
    numbers = calibration_numbers(
        read_arms(run, "predict_calibration.csv", READS, "arm"), read_arms(run, "predict.csv", READS, "arm")
    )
    pages = [
        (key, rows)
        for key, rows in numbers.groupby(_CELL, sort=False)
        if set(rows["panel"]) == {"calibration", "auc"}
    ]
    if not pages:
        raise MissingTable("No arm has its rows both in predict_calibration.csv and in predict.csv.")
    written = []
    for index, (key, rows) in enumerate(pages):
        written += _draw_page(rows, ", ".join(map(str, key)), run, page_name("predict", index))
    return written


def _draw_page(rows: pd.DataFrame, title: str, run: Path, name: str) -> list[Path]:
    areas = rows[rows["panel"] == "auc"]
    labels = [fold(predictor, _LABEL_WIDTH) for predictor in areas["predictor"]]
    height = max(3.7, 1.1 + row_height(labels, 0.26) * len(labels))
    with style.styled():
        figure, (left, right) = style.new_figure(height, n_columns=2, gridspec_kw={"width_ratios": [1.25, 1]})
        _draw_bins(left, rows[rows["panel"] == "calibration"])
        _draw_areas(right, areas, labels)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return style.save(figure, rows, run, name)


def _draw_bins(axes: Axes, bins: pd.DataFrame) -> None:
    axes.plot([0, 1], [0, 1], color=style.OTHER, linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
    for place, (predictor, part) in enumerate(bins.groupby("predictor", sort=False)):
        colour, marker = _LOOKS[place % len(_LOOKS)]
        axes.errorbar(
            part["x"], part["mean"], yerr=arms(part), color=colour, marker=marker, markersize=4.5, zorder=3,
            label=f"{predictor} ({int(part['n'].sum())} steps)", **LINE,
        )  # fmt: skip
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.set_aspect("equal")
    axes.set_xlabel("predicted probability of a repeat")
    axes.set_ylabel("observed share of repeats")
    axes.legend(loc="upper left", borderaxespad=0.2)
    axes.set_title("calibration")


def _draw_areas(axes: Axes, areas: pd.DataFrame, labels: list[str]) -> None:
    axes.axvline(0.5, color=style.OTHER, linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
    axes.errorbar(
        areas["mean"], range(len(areas)), xerr=arms(areas), linestyle="none", color=style.TOTAL, marker="o",
        markersize=4.5, zorder=3, **LINE,
    )  # fmt: skip
    rows_of(axes, labels)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_xlabel("AUC")
    axes.set_title("repeats distinguished from other steps")
    side_column(axes, "n", [str(int(n)) for n in areas["n"]])
