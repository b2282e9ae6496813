"""Dose and response: a measure against the number of ablated heads, selected against random, layer-matched.

Reads ablation.csv. Selected heads: mean and 95 % interval. Random heads: the range (smallest to largest mean)
over the control draws, and their median. No ablation: the horizontal line.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from figures import style
from figures.load import FigureError, MissingTable, read_table

LABELS = {
    "copy": "Δcopy, nats",
    "G": "corrective gain G, nats",
    "sem": "Δsem, nats",
    "prose_loss": "loss on prose, nats per token",
}
_KINDS = {"none", "selected", "random"}


def dose_numbers(ablation: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Rows `measure, kind, k, mean, lo, hi, n_draws`; for random heads the median and the range over draws.

    Raises:
        MissingTable: the measure has no rows of selected heads.
        FigureError: an unknown kind, k < 1 for ablated heads, or two selected sets of one size.
    """
    rows = ablation[ablation["measure"] == measure]
    unknown = set(rows["kind"]) - _KINDS
    if unknown:
        raise FigureError(
            f"ablation.csv has the unknown kind {sorted(unknown)[0]}: it is none, selected or random."
        )
    if rows[rows["kind"] == "selected"].empty:
        raise MissingTable(f"ablation.csv has no selected heads for the measure {measure}.")
    if (rows.loc[rows["kind"] != "none", "k"] < 1).any():
        raise FigureError("ablation.csv has ablated sets of fewer than one head.")
    found = []
    for (kind, k), group in rows.groupby(["kind", "k"]):
        if kind == "random":
            means = group["mean"]
            found.append((measure, kind, int(k), means.median(), means.min(), means.max(), len(means)))
            continue
        if len(group) > 1:
            raise FigureError(f"ablation.csv has {len(group)} rows of {measure} for kind {kind} and k = {k}.")
        row = group.iloc[0]
        found.append((measure, kind, int(k), row["mean"], row["ci_lo"], row["ci_hi"], 1))
    return pd.DataFrame(found, columns=["measure", "kind", "k", "mean", "lo", "hi", "n_draws"])


def draw_dose_curve(run: Path, measures: tuple[str, ...] = ("copy", "G")) -> list[Path]:
    """Write the figure `dose_curve`, a panel per measure in ablation.csv (Δcopy must be among them)."""
    ablation = read_table(run, "ablation.csv")
    present = [measure for measure in measures if measure == "copy" or measure in set(ablation["measure"])]
    tables = [dose_numbers(ablation, measure) for measure in present]
    with style.styled():
        figure, panels = style.new_figure(height=3.2, n_columns=len(present))
        for axes, measure, table in zip(panels, present, tables, strict=True):
            _draw_panel(axes, table)
            axes.set_xlabel("number of ablated heads k (log scale)")
            axes.set_title(LABELS.get(measure, measure))
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
        return style.save(figure, pd.concat(tables), run, "dose_curve")


def _draw_panel(axes: Axes, table: pd.DataFrame) -> None:
    style.zero_line(axes)
    parts = {kind: table[table["kind"] == kind].sort_values("k") for kind in _KINDS}
    for row in parts["none"].itertuples():
        axes.axhspan(row.lo, row.hi, color=style.OTHER, alpha=0.15, linewidth=0)
        axes.axhline(row.mean, color=style.TOTAL, linestyle=(0, (5, 3)), linewidth=1.1, label="no ablation")
    controls = parts["random"]
    if not controls.empty:
        draws = f"{controls['n_draws'].max()} draws"
        arms = [controls["mean"] - controls["lo"], controls["hi"] - controls["mean"]]
        axes.fill_between(
            controls["k"], controls["lo"], controls["hi"], color=style.RANDOM, alpha=0.3, linewidth=0
        )
        axes.errorbar(
            controls["k"], controls["mean"], yerr=arms,
            color=style.SEM, marker="s", markersize=4, linewidth=1.2, capsize=2, elinewidth=0.8,
            label=f"random, layer-matched (median, range of {draws})",
        )  # fmt: skip
    chosen = parts["selected"]
    arms = [(chosen["mean"] - chosen["lo"]).clip(lower=0), (chosen["hi"] - chosen["mean"]).clip(lower=0)]
    axes.errorbar(
        chosen["k"], chosen["mean"], yerr=arms, color=style.SELECTED, marker="o", markersize=5, linewidth=1.6,
        capsize=2.5, label="selected (95 % interval)", zorder=4,
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(table.loc[table["kind"] != "none", "k"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
