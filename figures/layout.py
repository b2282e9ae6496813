"""What figures of several models and environments share: whiskers, pages, limits, columns of text, short lines.

Everything is drawn in data units; a missing interval (an empty cell of the table) has a point and no whisker.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style

LINE: dict[str, Any] = {"linewidth": 1.1, "elinewidth": 1.1, "capsize": 2.2}
_SMALL = 7.5  # points of type


def arms(table: pd.DataFrame, middle: str = "mean") -> np.ndarray:
    """Lengths [2, row] of the whiskers below and above `middle`, to the columns ci_lo and ci_hi.

    0 where the point lies outside by rounding; NaN, which draws no whisker, where a bound is missing.
    """
    values = table[[middle, "ci_lo", "ci_hi"]].to_numpy(float)
    lengths = np.stack([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]])
    return np.where(np.isnan(values).any(axis=1), np.nan, np.maximum(lengths, 0.0))


def limits(table: pd.DataFrame, middle: str = "mean", margin: float = 0.06) -> tuple[float, float]:
    """Ends of an axis that shows all points, whiskers and zero, with a margin as a share of its length."""
    values = table[[middle, "ci_lo", "ci_hi"]].to_numpy(float)
    finite = [0.0, *values[np.isfinite(values)]]
    low, high = min(finite), max(finite)
    room = margin * ((high - low) or 1.0)
    return low - room, high + room


def pages(names: Sequence[str], size: int) -> list[list[str]]:
    """The names in order, on as few pages of at most `size` as there must be, as evenly as can be."""
    n_pages = -(-len(names) // size)
    ends = [len(names) * page // n_pages for page in range(n_pages + 1)] if n_pages else []
    return [list(names[start:end]) for start, end in itertools.pairwise(ends)]


def page_name(name: str, index: int) -> str:
    """`name`, `name_2`, `name_3`, …: the file of page `index`, counted from 0."""
    return name if index == 0 else f"{name}_{index + 1}"


def fold(name: str, width: int) -> str:
    """The name in lines of at most `width` letters, broken after - _ / or a space; a longer piece stays whole."""
    lines = [""]
    for piece in re.findall(r"[^-_/ ]*[-_/ ]|[^-_/ ]+", name):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.strip(" ") for line in lines)


def span(n: pd.Series) -> str:
    """`60`, or `35–60` where rows differ."""
    low, high = int(n.min()), int(n.max())
    return f"{low}" if low == high else f"{low}–{high}"


def count(n: pd.Series) -> str:
    """`n = 60` or `n = 35–60`, with spaces that `fold` does not break."""
    return f"n\u00a0=\u00a0{span(n)}"


def row_height(labels: Iterable[str], least: float) -> float:
    """Inches for a row of a list, so that the tallest of its (folded) labels does not touch the next."""
    return max(least, *(0.125 * (label.count("\n") + 1) + 0.06 for label in labels))


def rows_of(axes: Axes, labels: Sequence[str], named: bool = True) -> None:
    """Make the y axis a list, first label on top, with faint lines across; unnamed beside a named panel."""
    axes.set_yticks(range(len(labels)), list(labels) if named else [""] * len(labels))
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="both", color="#E3E5E8", linewidth=0.6)


def handles_of(panels: Sequence[Axes]) -> dict[str, Any]:
    """Label → what stands for it in a legend, each label once, over all panels."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def foot(figure: Figure, axis: str, handles: Sequence[Any], names: Sequence[str], n_across: int) -> None:
    """Below all panels: the one label of their common axis, and the legend under it."""
    # As the legend's title: a label of the figure would not make room for a legend, nor a legend for it.
    figure.legend(
        list(handles), list(names), title=axis, title_fontsize=9, loc="outside lower center", ncols=n_across,
        columnspacing=1.6, handletextpad=0.6,
    )  # fmt: skip


def side_column(axes: Axes, header: str, texts: Sequence[str], offset: float = 6.0) -> None:
    """Write one text per row to the right of the panel, `offset` points away, under a header."""
    looks: dict[str, Any] = {"fontsize": _SMALL, "color": style.MUTED, "annotation_clip": False}
    for place, text in enumerate(texts):
        axes.annotate(
            text, xy=(1.0, place), xycoords=axes.get_yaxis_transform(), xytext=(offset, 0),
            textcoords="offset points", va="center", ha="left", **looks,
        )  # fmt: skip
    axes.annotate(
        header, xy=(1.0, 1.0), xycoords="axes fraction", xytext=(offset, 3), textcoords="offset points",
        va="bottom", ha="left", **looks,
    )  # fmt: skip
