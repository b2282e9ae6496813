"""Total against direct effect of every head: what it writes itself, and what later heads and MLPs make of it.

Reads direct.csv (pre → neut), shares of Δcopy. On the diagonal all of an effect is direct; a head off it works through
others; one left of zero suppresses copying by itself. Coloured: the direct effect's interval is on one side of 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.labels import name_points
from figures.layout import count
from figures.load import DIFFERENCES, DIRECTIONS, MissingTable, of_metric, read_table, refuse_doubles

READS = {
    "direct.csv": (
        *("metric", "direction", "kind", "layer", "head", "total_share", "direct_share", "role"),
        *("n", "from", "to"),
    ),
}
"""Table → the columns that are read of it."""
TITLES = {"denoise": "Denoising (sufficiency)", "noise": "Noising (necessity)"}
_LOOKS = {
    "": ("not distinguished from 0 (Holm over heads)", style.OTHER, "o", 9),
    "copying": ("copying: direct effect above 0", style.SELECTED, "D", 20),
    "suppression": ("suppression: direct effect below 0", style.SEM, "v", 24),
}
_N_LABELS = 7


def direct_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The heads' rows of pre → neut: direction, layer, head, total_share, direct_share, role, n.

    Raises:
        MissingTable: there are none.
        FigureError: two rows of one head and direction.
    """
    rows = table[(table["kind"] == "head") & (table["from"] == "pre") & (table["to"] == "neut")]
    rows = rows.dropna(subset=["total_share", "direct_share"])
    if rows.empty:
        raise MissingTable("direct.csv has no heads with shares of pre to neut.")
    refuse_doubles(rows, "direct.csv", ["direction", "layer", "head"])
    kept = rows[["direction", "layer", "head", "total_share", "direct_share", "role", "n"]]
    return kept.assign(role=kept["role"].fillna("")).reset_index(drop=True)


def draw_direct(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `direct`, a panel per direction; returns its three files."""
    numbers = direct_numbers(of_metric(read_table(run, "direct.csv", READS), "direct.csv", metric))
    present = [name for name in DIRECTIONS if name in set(numbers["direction"])]
    with style.styled():
        figure, panels = style.new_figure(3.6, n_columns=len(present))
        for axes, direction in zip(panels, present, strict=True):
            part = numbers[numbers["direction"] == direction]
            _draw(axes, part, DIFFERENCES[metric])
            axes.set_title(f"{TITLES[direction]}, {count(part['n'])}")
        found = dict(
            pair for axes in panels for pair in zip(*axes.get_legend_handles_labels()[::-1], strict=True)
        )
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=len(found))
        for axes, direction in zip(panels, present, strict=True):
            _name(figure, axes, numbers[numbers["direction"] == direction])
        return style.save(figure, numbers, run, "direct")


def _draw(axes: Axes, part: pd.DataFrame, what: str) -> None:
    style.zero_line(axes)
    style.zero_line(axes, vertical=True)
    for place, (role, (label, colour, marker, size)) in enumerate(_LOOKS.items()):
        rows = part[part["role"] == role]
        if rows.empty:
            continue
        axes.scatter(
            100 * rows["direct_share"], 100 * rows["total_share"], s=size, color=colour, marker=marker,
            alpha=0.85, linewidths=0, label=label, zorder=2 + place,
        )  # fmt: skip
    axes.margins(x=0.12, y=0.12)
    axes.autoscale_view()
    across, up = axes.get_xlim(), axes.get_ylim()
    axes.axline((0, 0), slope=1, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axes.set(xlim=across, ylim=up, xlabel=f"direct effect, % of {what}", ylabel=f"total effect, % of {what}")


def _name(figure: Figure, axes: Axes, part: pd.DataFrame) -> None:
    """Name the heads that are farthest out."""
    points = 100 * part[["direct_share", "total_share"]].to_numpy(float)
    scale = np.abs(points).max(axis=0)
    far = np.argsort(-np.abs(points / np.where(scale > 0, scale, 1)).max(axis=1), kind="stable")[:_N_LABELS]
    names = {int(i): f"L{int(part['layer'].iloc[i])}H{int(part['head'].iloc[i])}" for i in far}
    name_points(figure, axes, points, names)
