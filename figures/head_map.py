"""What layer × head maps share: the grid, outlines of selected heads, the colour bar. Layers and heads count from 0."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from figures.load import FigureError, Heads


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


def marked(table: pd.DataFrame, selected: Heads) -> pd.DataFrame:
    """The table with the column `selected`."""
    chosen = set(selected)
    marks = [(layer, head) in chosen for layer, head in zip(table["layer"], table["head"], strict=True)]
    return table.assign(selected=marks)


def top(grid: np.ndarray) -> float:
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
