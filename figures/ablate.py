"""Dose and response: a measure against the number of ablated heads, selected heads against controls.

Reads ablate.csv, and ablate_controls.csv where ablate_off_target.csv is there too. Selected heads: mean and 95 %
interval. Controls (random heads of the same layers; heads of the same output norm; as many as cost as much): the
range, smallest to largest mean, over their draws, and the median. No ablation: the horizontal line. Below Δcopy,
size by size: the percentile of the selected set among its controls by the share of Δcopy removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from figures import style
from figures.load import FigureError, MissingTable, first_way, read_table

READS = {
    "ablate.csv": ("set", "kind", "k", "measure", "mean", "ci_lo", "ci_hi", "n"),
    "ablate_controls.csv": ("set", "k", "n_controls", "p", "control", "percentile"),
}
"""Table → the columns that are read of it."""
LABELS = {
    "copy": "Δcopy, nats",
    "G": "corrective gain G, nats",
    "sem": "Δsem, nats",
    "prose_loss": "loss on prose, nats per token",
}
_CONTROLS = {
    "random": ("random, layer-matched", style.SEM, style.RANDOM, "s"),
    "norm": ("same output norm", style.MUTED, style.OTHER, "D"),
    "damage": ("same damage to log p(reference)", style.DAMAGE, style.DAMAGE, "^"),
}
_KINDS = ("none", "selected", *_CONTROLS)
_UNDRAWN = ("previous_token", "sink", "complement")
"""Kinds of control of one set a size: in ablate_controls.csv, not in the picture."""


def dose_numbers(ablation: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Rows `measure, kind, k, mean, lo, hi, n_draws`; for controls the median and the range over draws.

    Raises:
        MissingTable: the measure has no rows of selected heads.
        FigureError: an unknown kind, k < 1 for ablated heads, or two selected sets of one size.
    """
    rows = ablation[ablation["measure"] == measure]
    rows = rows[~rows["kind"].isin(_UNDRAWN)]
    unknown = set(rows["kind"]) - set(_KINDS)
    if unknown:
        raise FigureError(
            f"ablate.csv has the unknown kind {sorted(unknown)[0]}: it is one of {', '.join(_KINDS)}."
        )
    if rows[rows["kind"] == "selected"].empty:
        raise MissingTable(f"ablate.csv has no selected heads for the measure {measure}.")
    if (rows.loc[rows["kind"] != "none", "k"] < 1).any():
        raise FigureError("ablate.csv has ablated sets of fewer than one head.")
    found = []
    for (kind, k), group in rows.groupby(["kind", "k"]):
        if kind in _CONTROLS:
            means = group["mean"]
            found.append((measure, kind, int(k), means.median(), means.min(), means.max(), len(means)))
            continue
        if len(group) > 1:
            raise FigureError(f"ablate.csv has {len(group)} rows of {measure} for kind {kind} and k = {k}.")
        row = group.iloc[0]
        found.append((measure, kind, int(k), row["mean"], row["ci_lo"], row["ci_hi"], 1))
    return pd.DataFrame(found, columns=["measure", "kind", "k", "mean", "lo", "hi", "n_draws"])


def draw_ablate(run: Path, measures: tuple[str, ...] = ("copy", "G")) -> list[Path]:
    """Write the figure `ablate`, a panel per measure in ablate.csv (Δcopy must be among them)."""
    ablation = first_way(read_table(run, "ablate.csv", READS))
    present = [measure for measure in measures if measure == "copy" or measure in set(ablation["measure"])]
    tables = [dose_numbers(ablation, measure) for measure in present]
    with style.styled():
        figure, panels = style.new_figure(height=3.2, n_columns=len(present))
        for axes, measure, table in zip(panels, present, tables, strict=True):
            _draw_panel(axes, table)
            axes.set_xlabel("number of ablated heads k (log scale)")
            axes.set_title(LABELS.get(measure, measure))
        if (run / "ablate_off_target.csv").is_file():  # older folders have controls without percentiles
            _write_percentiles(
                panels[present.index("copy")], first_way(read_table(run, "ablate_controls.csv", READS))
            )
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2 if len(names) > 3 else len(names))
        return style.save(figure, pd.concat(tables), run, "ablate")


def _draw_panel(axes: Axes, table: pd.DataFrame) -> None:
    style.zero_line(axes)
    parts = {kind: table[table["kind"] == kind].sort_values("k") for kind in _KINDS}
    for row in parts["none"].itertuples():
        axes.axhspan(row.lo, row.hi, color=style.OTHER, alpha=0.15, linewidth=0)
        axes.axhline(row.mean, color=style.TOTAL, linestyle=(0, (5, 3)), linewidth=1.1, label="no ablation")
    for kind, (name, line, band, marker) in _CONTROLS.items():
        controls = parts[kind]
        if controls.empty:
            continue
        arms = [controls["mean"] - controls["lo"], controls["hi"] - controls["mean"]]
        axes.fill_between(controls["k"], controls["lo"], controls["hi"], color=band, alpha=0.25, linewidth=0)
        axes.errorbar(
            controls["k"], controls["mean"], yerr=arms, color=line, marker=marker, markersize=4, linewidth=1.2,
            capsize=2, elinewidth=0.8, label=f"{name} (median, range of {controls['n_draws'].max()} draws)",
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


def _write_percentiles(axes: Axes, controls: pd.DataFrame) -> None:
    """A line a kind of control, inside the panel at its foot: its percentiles, each below its size."""
    kinds = [kind for kind in _CONTROLS if kind in set(controls["control"])]
    known = controls[controls["percentile"].notna()]
    if known.empty:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.09 * (len(kinds) + 1) * (high - low), high)
    looks: dict[str, Any] = {"fontsize": 7, "va": "center", "ha": "center"}
    for place, kind in enumerate(reversed(kinds)):
        height = 0.035 + 0.06 * place
        for row in known[known["control"] == kind].itertuples():
            axes.text(
                row.k, height, f"{row.percentile:.0f}", transform=axes.get_xaxis_transform(),
                color=_CONTROLS[kind][1], **looks,
            )  # fmt: skip
    axes.text(
        0.0, 0.035 + 0.06 * len(kinds), " percentile among its controls", transform=axes.transAxes,
        color=style.MUTED, fontsize=7, va="center", ha="left",
    )  # fmt: skip
