"""Where Δcopy arises: the same head sets patched at their queries, keys, values, pattern or z, side by side.

Reads patch_redundancy.csv (joint share of a set with its interval) and patch.csv (keys and values by key/value head).
One panel per place, pair of conditions and direction; k and v are those of the key/value heads that a set's heads
read, which other query heads of the group read too. The second figure: layer × key/value head, the share of each
alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from figures.layout import LINE, arms, count, handles_of
from figures.load import MissingTable, of_metric, read_table, refuse_doubles

READS = {
    "patch_redundancy.csv": (
        *("metric", "direction", "set", "joint_share", "share_lo", "share_hi", "n", "site", "at"),
        *("from", "to"),
    ),
    "patch.csv": (
        *("metric", "direction", "layer", "share", "ci_lo", "ci_hi", "n", "site", "at", "from"),
        *("to", "kv_head"),
    ),
}
"""Table → the columns that are read of it."""
SITES = ("q", "k", "pattern", "v", "z")
PLACES = {
    "candidate": "where the call would be repeated",
    "record": "at the recorded call",
    "observation": "at the observation",
}
_COLOURS = ("#F0C9A8", style.COPY, "#7A3300")
_KEYS = ["at", "from", "to", "direction"]
_MAX_SETS, _MAX_PANELS, _MAX_GRIDS = 3, 6, 4


def site_numbers(redundancy: pd.DataFrame) -> pd.DataFrame:
    """Joint shares of the sets at the sites drawn, of those pairs and places that have two sites at least.

    Raises:
        MissingTable: nowhere were two sites patched.
        FigureError: a set is there twice.
    """
    rows = redundancy[redundancy["site"].isin(SITES)].dropna(subset=["joint_share"])
    refuse_doubles(rows, "patch_redundancy.csv", [*_KEYS, "site", "set"])
    rows = rows[rows.groupby(_KEYS)["site"].transform("nunique") > 1]
    if rows.empty:
        raise MissingTable(
            "patch_redundancy.csv has no two sites of one pair and place: run `backfire patch --site …`."
        )
    size = rows["set"].str.extract(r"(\d+)$")[0].astype(float)
    columns = [*_KEYS, "site", "set", "joint_share", "share_lo", "share_hi", "n"]
    order = rows.assign(size=size, place=rows["site"].map(list(SITES).index))
    return order.sort_values([*_KEYS, "place", "size"], kind="stable")[columns].reset_index(drop=True)


def draw_patch_sites(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `patch_sites`, and `patch_kv_heads` where keys or values were patched; returns their files."""
    numbers = site_numbers(
        of_metric(read_table(run, "patch_redundancy.csv", READS), "patch_redundancy.csv", metric)
    )
    cells = [group for _, group in numbers.groupby(_KEYS, sort=False)][:_MAX_PANELS]
    n_columns = min(2, len(cells))
    n_rows = -(-len(cells) // n_columns)
    with style.styled():
        figure, panels = style.new_figure(0.6 + 2.35 * n_rows, n_rows, n_columns)
        for axes, cell in zip(panels, cells, strict=False):
            _draw(axes, cell, metric)
        for axes in panels[len(cells) :]:
            axes.set_axis_off()
        handles = handles_of(panels)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
        return style.save(figure, numbers, run, "patch_sites")


def draw_patch_kv_heads(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `patch_kv_heads`: the share of each key/value head alone, a grid per site, place and pair."""
    shares = of_metric(read_table(run, "patch.csv", READS), "patch.csv", metric)
    rows = shares[shares["site"].isin(["k", "v"])].dropna(subset=["kv_head", "share"])
    if rows.empty:
        raise MissingTable("patch.csv has no keys or values: run `backfire patch --site v` first.")
    refuse_doubles(rows, "patch.csv", ["site", *_KEYS, "layer", "kv_head"])
    cells = [group for _, group in rows.groupby(["site", *_KEYS], sort=False)][:_MAX_GRIDS]
    with style.styled():
        heads = int(rows["kv_head"].max()) + 1
        figure, panels = style.new_figure((0.75 + 0.17 * heads) * len(cells) + 0.25, n_rows=len(cells))
        for axes, cell in zip(panels, cells, strict=True):
            _grid(figure, axes, cell, metric)
        panels[-1].set_xlabel("layer")
        columns = ["site", *_KEYS, "layer", "kv_head", "share", "ci_lo", "ci_hi", "n"]
        return style.save(figure, rows[columns], run, "patch_kv_heads")


def share_of(metric: str) -> str:
    """The axis' words: the pair of conditions is the panel's, so that this says the metric alone."""
    what = {"logprob": "the difference", "margin": "the margin's difference"}
    return f"share of {what.get(metric, f'the difference ({metric})')}, %"


def _draw(axes: Axes, cell: pd.DataFrame, metric: str) -> None:
    style.zero_line(axes)
    sets = list(dict.fromkeys(cell["set"]))[-_MAX_SETS:]
    sites = [site for site in SITES if site in set(cell["site"])]
    width = 0.8 / len(sets)
    for index, name in enumerate(sets):
        part = cell[cell["set"] == name]
        part = part.assign(**{key: 100 * part[key] for key in ("joint_share", "share_lo", "share_hi")})
        part = part.rename(columns={"share_lo": "ci_lo", "share_hi": "ci_hi"})
        places = part["site"].map(sites.index) + (index - (len(sets) - 1) / 2) * width
        colour = _COLOURS[-len(sets) :][index] if len(sets) > 1 else style.COPY
        axes.bar(
            places,
            part["joint_share"],
            width=0.9 * width,
            color=colour,
            label=name.replace("top", "top "),
            zorder=2,
        )
        axes.errorbar(
            places, part["joint_share"], yerr=arms(part, "joint_share"), linestyle="none", color=style.TOTAL,
            zorder=3, **LINE,
        )  # fmt: skip
    axes.set_xticks(range(len(sites)), [f"{site} (kv heads)" if site in "kv" else site for site in sites])
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.6, len(sites) - 0.4), ylabel=share_of(metric))
    first = cell.iloc[0]
    axes.set_title(
        f"{PLACES.get(first['at'], first['at']).capitalize()}\n{first['from']} → {first['to']}, "
        f"{first['direction']}, {count(cell['n'])}"
    )
    axes.grid(axis="y", color="#E3E5E8", linewidth=0.6)


def _grid(figure: Figure, axes: Axes, cell: pd.DataFrame, metric: str) -> None:
    grid = np.full((int(cell["kv_head"].max()) + 1, int(cell["layer"].max()) + 1), np.nan)
    grid[cell["kv_head"].astype(int), cell["layer"].astype(int)] = 100 * cell["share"]
    limit = float(np.nanmax(np.abs(grid))) or 1.0
    image = axes.imshow(grid, cmap=style.DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
    first = cell.iloc[0]
    what = {"k": "Keys", "v": "Values"}[first["site"]]
    axes.set_title(
        f"{what} {PLACES.get(first['at'], first['at'])}: {first['from']} → {first['to']}, {first['direction']}, "
        f"{count(cell['n'])}"
    )
    axes.set_yticks(range(len(grid)))
    axes.set_ylabel("kv head")
    for side in axes.spines.values():
        side.set_visible(False)
    bar = figure.colorbar(
        image,
        ax=axes,
        label=share_of(metric).replace(" of the", "\nof the"),
        fraction=0.05,
        pad=0.015,
        aspect=7,
    )
    bar.outline.set_visible(False)
