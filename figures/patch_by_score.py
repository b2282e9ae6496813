"""Prefix-matching score against share of Δcopy: do the heads that copy random tokens account for the repetition?

One panel per direction, one point per head; Spearman's rank correlation over all heads; largest shares named.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.labels import name_points
from figures.load import (
    DIFFERENCES,
    FigureError,
    Heads,
    head_shares,
    read_heads,
)

_TITLES = {"denoise": "Denoising (sufficiency)", "noise": "Noising (necessity)"}
_N_LABELS = 6


def spearman(x: pd.Series, y: pd.Series) -> float:
    """Spearman's rank correlation (ties get their mean rank); NaN where either is constant."""
    ranks_x, ranks_y = x.rank().to_numpy(), y.rank().to_numpy()
    if np.ptp(ranks_x) == 0 or np.ptp(ranks_y) == 0:
        return float("nan")
    return float(np.corrcoef(ranks_x, ranks_y)[0, 1])


def draw_patch_by_score(run: Path, selected: Heads, metric: str = "logprob") -> list[Path]:
    """Write the figure `patch_by_score` from heads.csv and patch.csv; returns its three files."""
    heads, shares = read_heads(run), head_shares(run, metric)
    present, tables = list(shares), [_joined(heads, table, selected) for table in shares.values()]
    with style.styled():
        figure, panels = style.new_figure(height=3.3, n_columns=len(present))
        for axes, direction, table in zip(panels, present, tables, strict=True):
            rho = spearman(table["prefix_matching"], table["share"])
            correlation = "Spearman ρ undefined" if np.isnan(rho) else f"Spearman ρ = {rho:.2f}"
            _draw_points(axes, table)
            axes.set_title(f"{_TITLES[direction]}\n{correlation} over {len(table)} heads")
            axes.set(
                xlabel="prefix-matching score (random tokens)", ylabel=f"share of {DIFFERENCES[metric]}, %"
            )
            axes.margins(x=0.09, y=0.12)
        if selected:
            handles, names = panels[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=2)
        for axes, table in zip(panels, tables, strict=True):
            _name_largest(figure, axes, table)
        numbers = pd.concat(table.assign(direction=name) for name, table in zip(present, tables, strict=True))
        return style.save(figure, numbers, run, "patch_by_score")


def _joined(heads: pd.DataFrame, shares: pd.DataFrame, selected: Heads) -> pd.DataFrame:
    table = heads[["layer", "head", "prefix_matching"]].merge(shares, on=["layer", "head"], how="inner")
    if table.empty:
        raise FigureError("heads.csv and patch.csv have no head in common: they come from different models.")
    chosen = set(selected)
    return table.assign(selected=[pair in chosen for pair in zip(table["layer"], table["head"], strict=True)])


def _draw_points(axes: Axes, table: pd.DataFrame) -> None:
    style.zero_line(axes)
    looks = {False: ("other heads", style.OTHER, "o", 11), True: ("selected heads", style.SELECTED, "D", 20)}
    for mark, (name, colour, marker, size) in looks.items():
        part = table[table["selected"] == mark]
        axes.scatter(
            part["prefix_matching"], 100 * part["share"], s=size, color=colour, marker=marker,
            alpha=0.9, linewidths=0, label=f"{name} ({len(part)})", zorder=2 + mark,
        )  # fmt: skip


def _name_largest(figure: Figure, axes: Axes, table: pd.DataFrame) -> None:
    """Name the heads of largest |share|, which are the ones a reader asks for."""
    points = np.column_stack([table["prefix_matching"], 100 * table["share"]])
    largest = np.argsort(-np.abs(points[:, 1]), kind="stable")[:_N_LABELS]
    names = {int(i): f"L{int(table['layer'].iloc[i])}H{int(table['head'].iloc[i])}" for i in largest}
    name_points(figure, axes, points, names)
