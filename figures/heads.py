"""Layer × head map of the prefix-matching scores, on a sequential scale from 0. Selected heads are outlined."""

from __future__ import annotations

from pathlib import Path

from figures import style
from figures.head_map import finish_map, head_grid, marked, panel_height, top
from figures.load import Heads, read_heads


def draw_heads(run: Path, selected: Heads) -> list[Path]:
    """Write the figure `heads` (prefix-matching score per head); returns its three files."""
    heads = read_heads(run)
    grid = head_grid(heads, "prefix_matching")
    title = "Prefix-matching score on repeated random tokens"
    with style.styled():
        figure, (axes,) = style.new_figure(height=0.75 + panel_height(grid))
        image = axes.imshow(grid, cmap=style.SEQUENTIAL, vmin=0.0, vmax=top(grid), aspect="auto")
        finish_map(figure, axes, image, grid, selected, "prefix-matching score")
        axes.set_title(f"{title}; outlined: the {len(selected)} selected heads" if selected else title)
        return style.save(figure, marked(heads[["layer", "head", "prefix_matching"]], selected), run, "heads")
