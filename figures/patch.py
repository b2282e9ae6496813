"""Layer × head maps of each head's share of Δcopy, by noising and by denoising.

The scale diverges from 0 with symmetric limits, because a head may also suppress copying. Selected heads are outlined.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from figures import style
from figures.head_map import finish_map, head_grid, marked, panel_height, top
from figures.load import DIFFERENCES, Heads, head_shares

TITLES = {
    "denoise": "Denoising (sufficiency): run without the record, the head's z taken from the run with it",
    "noise": "Noising (necessity): run with the record, the head's z taken from the run without it",
}


def draw_patch(run: Path, selected: Heads, metric: str = "logprob") -> list[Path]:
    """Write the figure `patch` (share of Δcopy per head, a panel per direction); returns its files."""
    shares = head_shares(run, metric)
    grids = {direction: 100 * head_grid(table, "share") for direction, table in shares.items()}
    height = sum(0.72 + panel_height(grid) for grid in grids.values())
    with style.styled():
        figure, panels = style.new_figure(height, n_rows=len(grids))
        for axes, (direction, grid) in zip(panels, grids.items(), strict=True):
            limit = top(np.abs(grid))
            image = axes.imshow(grid, cmap=style.DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
            finish_map(figure, axes, image, grid, selected, share_label(metric))
            axes.set_title(TITLES[direction])
        n_items = int(next(iter(shares.values()))["n"].iloc[0])
        note = f"Ratio of sums over {n_items} items; each panel has its own scale."
        outline = f" Outlined: the {len(selected)} selected heads." if selected else ""
        figure.supxlabel(note + outline, fontsize=8, color=style.MUTED)
        tables = [marked(table, selected).assign(direction=direction) for direction, table in shares.items()]
        return style.save(figure, pd.concat(tables), run, "patch")


def share_label(metric: str) -> str:
    """The colour bar's words, in two lines where the metric takes many."""
    what = DIFFERENCES[metric]
    return (
        f"share of {what}, %" if len(what) < 10 else f"share of {what.replace(' of ', chr(10) + 'of ', 1)}, %"
    )
