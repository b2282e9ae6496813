"""Layer × head maps: prefix-matching scores, and each head's share of Δcopy by noising and by denoising.

Scores are on a sequential scale from 0; shares on a diverging one centred at 0 with symmetric limits, because
a head may also hold copying back. Selected heads are outlined. Layers and heads count from 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from figures import style
from figures.load import (
    DIFFERENCES,
    FigureError,
    Heads,
    head_shares,
    read_heads,
)

TITLES = {
    "denoise": "Denoising (sufficiency): run without the record, the head's z taken from the run with it",
    "noise": "Noising (necessity): run with the record, the head's z taken from the run without it",
}


def head_grid(table: pd.DataFrame, column: str) -> np.ndarray:
    """The column as an array [head, layer]; a head without a row is NaN and stays blank.

    Raises:
        FigureError: a layer or head number is negative.
    """
    if (table[["layer", "head"]] < 0).any(axis=None):
        raise FigureError("A layer or head number is negative: they count from 0.")
    grid = np.full((int(table["head"].max()) + 1, int(table["layer"].max()) + 1), np.nan)
    grid[table["head"].astype(int), table["layer"].astype(int)] = table[column]
    return grid


def draw_head_scores(run: Path, selected: Heads) -> list[Path]:
    """Write the figure `head_scores` (prefix-matching score per head); returns its three files."""
    heads = read_heads(run)
    grid = head_grid(heads, "prefix_matching")
    with style.styled():
        figure, (axes,) = style.new_figure(height=0.75 + panel_height(grid))
        image = axes.imshow(grid, cmap=style.SEQUENTIAL, vmin=0.0, vmax=_top(grid), aspect="auto")
        finish_map(figure, axes, image, grid, selected, "prefix-matching score")
        axes.set_title(_with_outline("Prefix-matching score on repeated random tokens", selected))
        return style.save(
            figure, _numbers(heads[["layer", "head", "prefix_matching"]], selected), run, "head_scores"
        )


def draw_head_effects(run: Path, selected: Heads, metric: str = "logprob") -> list[Path]:
    """Write the figure `head_effects` (share of Δcopy per head, a panel per direction); returns its files."""
    shares = head_shares(run, metric)
    present = list(shares)
    grids = {direction: 100 * head_grid(table, "share") for direction, table in shares.items()}
    height = sum(0.72 + panel_height(grid) for grid in grids.values())
    with style.styled():
        figure, panels = style.new_figure(height, n_rows=len(present))
        for axes, direction in zip(panels, present, strict=True):
            grid = grids[direction]
            limit = _top(np.abs(grid))
            image = axes.imshow(grid, cmap=style.DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
            finish_map(figure, axes, image, grid, selected, share_label(metric))
            axes.set_title(TITLES[direction])
        figure.supxlabel(
            _outline_note(selected, int(shares[present[0]]["n"].iloc[0])), fontsize=8, color=style.MUTED
        )
        tables = [
            _numbers(table, selected).assign(direction=direction) for direction, table in shares.items()
        ]
        return style.save(figure, pd.concat(tables), run, "head_effects")


def share_label(metric: str) -> str:
    """The colour bar's words, in two lines where the metric takes many."""
    what = DIFFERENCES[metric]
    return (
        f"share of {what}, %" if len(what) < 10 else f"share of {what.replace(' of ', chr(10) + 'of ', 1)}, %"
    )


def _numbers(table: pd.DataFrame, selected: Heads) -> pd.DataFrame:
    chosen = set(selected)
    marks = [(layer, head) in chosen for layer, head in zip(table["layer"], table["head"], strict=True)]
    return table.assign(selected=marks)


def _top(grid: np.ndarray) -> float:
    """The largest value, as the end of the scale; 1 where all are zero, so that there is a scale."""
    finite = grid[np.isfinite(grid)]
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def panel_height(grid: np.ndarray) -> float:
    """Inches, so that cells are near squares on the page width, between legible and half a page."""
    n_heads, n_layers = grid.shape
    return float(np.clip(5.6 * n_heads / n_layers, 1.1, 3.6))


def finish_map(
    figure: Figure, axes: Axes, image: AxesImage, grid: np.ndarray, selected: Heads, label: str
) -> Colorbar:
    """Axes, outlines of the selected heads and the colour bar, which is returned.

    Raises:
        FigureError: a selected head is not in the grid.
    """
    n_heads, n_layers = grid.shape
    for layer, head in selected:
        if layer >= n_layers or head >= n_heads:
            raise FigureError(f"The selected head L{layer}H{head} is not in the table.")
        for colour, width in (("white", 2.4), ("black", 1.2)):  # a black line on white shows on every colour
            box = Rectangle((layer - 0.5, head - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width)
            box.set_clip_on(False)
            axes.add_patch(box)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 4, 5], integer=True))
    axes.set(xlabel="layer", ylabel="head", xlim=(-0.5, n_layers - 0.5), ylim=(n_heads - 0.5, -0.5))
    axes.set_facecolor("#E3E5E8")
    for side in axes.spines.values():
        side.set_visible(False)
    bar = figure.colorbar(image, ax=axes, label=label, fraction=0.05, pad=0.015, aspect=14)
    bar.outline.set_visible(False)
    return bar


def _with_outline(title: str, selected: Heads) -> str:
    return f"{title}; outlined: the {len(selected)} selected heads" if selected else title


def _outline_note(selected: Heads, n_items: int) -> str:
    note = f"Ratio of sums over {n_items} items; each panel has its own scale."
    return note + (f" Outlined: the {len(selected)} selected heads." if selected else "")
