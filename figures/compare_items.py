"""Our per-item scores against published ones: a panel of single scores and one of G, Δcopy and Δsem, with the identity.

Reads compare_item_pairs.csv, rows that both sides have and that are in nats. Points on the line are items on which two
measurements agree; the largest difference is written above each panel.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from figures import style
from figures.load import MissingTable, read_table

READS = {
    "compare_item_pairs.csv": (
        *("kind", "item_id", "condition", "candidate", "measure", "unit", "found_in", "ours"),
        *("published", "difference"),
    ),
}
"""Table → the columns that are read of it."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_COLOURS = (style.TOTAL, style.COPY, style.SEM, "#009E73", "#CC79A7", "#E69F00", style.RANDOM, style.MUTED)
_MEASURES = {"G": style.TOTAL, "copy": style.COPY, "sem": style.SEM}
_NAMES = {"G": "G", "copy": "Δcopy", "sem": "Δsem"}


def pair_numbers(pairs: pd.DataFrame) -> pd.DataFrame:
    """The drawn rows: kind, item_id, condition, candidate, measure, ours, published, difference.

    Raises:
        MissingTable: no score and none of G, copy and sem is on both sides.
    """
    met = pairs[(pairs["found_in"] == "both") & (pairs["unit"] == "nats")]
    rows = met[(met["kind"] == "score") | met["measure"].isin(_MEASURES)]
    if rows.empty:
        raise MissingTable("compare_item_pairs.csv has no score, G, copy or sem that both sides have.")
    columns = ["kind", "item_id", "condition", "candidate", "measure", "ours", "published", "difference"]
    return rows[columns].reset_index(drop=True)


def draw_compare_items(run: Path) -> list[Path]:
    """Write the figure `compare_items`."""
    rows = pair_numbers(read_table(run, "compare_item_pairs.csv", READS))
    parts = [(kind, rows[rows["kind"] == kind]) for kind in ("score", "measure")]
    parts = [(kind, part) for kind, part in parts if len(part)]
    with style.styled():
        figure, panels = style.new_figure(height=4.0, n_columns=len(parts))
        for axes, (kind, part) in zip(panels, parts, strict=True):
            if kind == "score":
                _draw_scores(axes, part)
            else:
                _draw_measures(axes, part)
            _identity(axes, part)
            what = "log-probabilities of single actions" if kind == "score" else "what follows for each item"
            axes.set_title(
                f"{what}\n{len(part)} pairs, largest difference {part['difference'].abs().max():.2g} nats"
            )
            axes.set(xlabel="published, nats", ylabel="ours, nats")
            axes.legend(loc="upper left", fontsize=7, handletextpad=0.2)
        return style.save(figure, rows, run, "compare_items")


def _draw_scores(axes: Axes, part: pd.DataFrame) -> None:
    """A colour and marker a condition; filled: the failed action, hollow: other candidates."""
    for place, (condition, rows) in enumerate(part.groupby("condition", sort=True)):
        colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
        for failed, of in rows.groupby(rows["candidate"] == "failed"):
            axes.scatter(
                of["published"], of["ours"], s=16, marker=marker, linewidths=0.8, edgecolors=colour,
                facecolors=colour if failed else "none", label=str(condition) if failed else None, zorder=3,
            )  # fmt: skip


def _draw_measures(axes: Axes, part: pd.DataFrame) -> None:
    for (measure, colour), marker in zip(_MEASURES.items(), _MARKERS, strict=False):
        rows = part[part["measure"] == measure]
        if len(rows):
            axes.scatter(
                rows["published"], rows["ours"], s=16, marker=marker, color=colour, linewidths=0,
                label=_NAMES[measure], zorder=3,
            )  # fmt: skip


def _identity(axes: Axes, part: pd.DataFrame) -> None:
    """The line on which both are equal, over the range of the points."""
    values = part[["ours", "published"]].to_numpy(float)
    low, high = float(values.min()), float(values.max())
    room = 0.05 * ((high - low) or 1.0)
    ends = [low - room, high + room]
    axes.plot(ends, ends, color=style.OTHER, linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
