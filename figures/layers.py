"""Which layers account for Δcopy: each layer's MLP output, and the residual stream before each layer, both directions.

Reads layers.csv (pre → neut): share of Δcopy with 95 % interval. The residual stream's profile says where the
difference has arrived at the action positions: 0 before layer 0, the whole answer after the last.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from figures import style
from figures.layout import count, handles_of
from figures.load import DIFFERENCES, DIRECTIONS, MissingTable, of_metric, read_table, refuse_doubles

READS = {
    "layers.csv": (*("metric", "site", "direction", "layer", "share", "ci_lo", "ci_hi", "n", "from", "to"),),
}
"""Table → the columns that are read of it."""
SITES = {
    "mlp_out": "MLP output of one layer",
    "resid_pre": "Residual stream before a layer",
}
_LOOKS = {
    "denoise": ("denoising (sufficiency)", style.COPY, "o", "-"),
    "noise": ("noising (necessity)", style.SEM, "s", "--"),
}


def layer_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of pre → neut, by site, direction and layer: share, ci_lo, ci_hi, n.

    Raises:
        MissingTable: there are none with a share.
        FigureError: two rows of one layer.
    """
    rows = table[(table["from"] == "pre") & (table["to"] == "neut")].dropna(subset=["share"])
    if rows.empty:
        raise MissingTable("layers.csv has no shares of pre to neut.")
    keys = ["site", "direction", "layer"]
    refuse_doubles(rows, "layers.csv", keys)
    return rows.sort_values(keys)[[*keys, "share", "ci_lo", "ci_hi", "n"]].reset_index(drop=True)


def draw_layers(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `layers`, a panel per site; returns its three files."""
    numbers = layer_numbers(of_metric(read_table(run, "layers.csv", READS), "layers.csv", metric))
    present = [site for site in SITES if site in set(numbers["site"])]
    with style.styled():
        figure, panels = style.new_figure(3.1, n_columns=len(present))
        for axes, site in zip(panels, present, strict=True):
            part = numbers[numbers["site"] == site]
            _draw(axes, part)
            axes.set_title(f"{SITES[site]}, {count(part['n'])}")
            axes.set_xlabel("layer" if site == "mlp_out" else "layer (last: before the final norm)")
        panels[0].set_ylabel(f"share of {DIFFERENCES[metric]}, %")
        handles = handles_of(panels)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
        return style.save(figure, numbers, run, "layers")


def _draw(axes: Axes, rows: pd.DataFrame) -> None:
    style.zero_line(axes)
    for direction in DIRECTIONS:
        part = rows[rows["direction"] == direction]
        if part.empty:
            continue
        label, colour, marker, line = _LOOKS[direction]
        axes.fill_between(
            part["layer"], 100 * part["ci_lo"], 100 * part["ci_hi"], color=colour, alpha=0.18, linewidth=0
        )
        axes.plot(
            part["layer"], 100 * part["share"], color=colour, marker=marker, markersize=3.4, linestyle=line,
            linewidth=1.3, label=label, zorder=3,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.grid(axis="y", color="#E3E5E8", linewidth=0.6)
