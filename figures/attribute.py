"""Attribution patching against the exact sweep: does one backward pass find the heads that exact patching finds?

Reads attribute.csv. One panel per site (heads, MLPs) and direction, one point per head or MLP: the exact effect over
the estimate, both averaged over items, with the line on which they are equal, Spearman's rank correlation and
recall@k: of the k largest exact effects by magnitude, the share that is among the k largest estimates. Those that are
not, the false negatives of a screen of k, are named; magnitude, because heads that hold copying back count as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures import style
from figures.labels import name_points
from figures.layout import handles_of
from figures.load import DIRECTIONS, FigureError, MissingTable, of_metric, read_table, refuse_doubles
from figures.patch_by_score import spearman

READS = {
    "attribute.csv": (
        *("metric", "item_id", "direction", "site", "layer", "head", "effect_nats"),
        *("estimate_nats",),
    ),
}
"""Table → the columns that are read of it."""
SITES = {"z": "heads", "mlp_out": "MLPs"}
_TITLES = {"denoise": "denoising (sufficiency)", "noise": "noising (necessity)"}
_TOP = 16  # k of recall where there are many units; a quarter of them where there are few
_LOOKS = {
    "both": ("top k of both", style.COPY, "D", 20),
    "missed": ("missed: exact top k only", style.SEM, "s", 22),
    "false": ("attribution's top k only", style.RANDOM, "^", 20),
    "neither": ("others", style.OTHER, "o", 10),
}


def attribution_numbers(table: pd.DataFrame, site: str, direction: str) -> pd.DataFrame:
    """One row per unit: layer, head (empty for MLPs), estimate_nats, effect_nats (means over items), n, k, kind.

    The kind says in which top k (by magnitude; ties go to the lower layer, then head) the unit is: of both, of the
    exact effects alone (missed), of the estimates alone (false) or of neither.

    Raises:
        MissingTable: no rows of this site and direction.
        FigureError: a unit has two rows for an item, some units lack some items, or a number is missing.
    """
    rows = table[(table["site"] == site) & (table["direction"] == direction)]
    if rows.empty:
        raise MissingTable(f"attribute.csv has no rows of {direction} at the site {site}.")
    if rows[["layer", "effect_nats", "estimate_nats"]].isna().any(axis=None):
        raise FigureError(f"attribute.csv lacks a number in the rows of {direction} at the site {site}.")
    refuse_doubles(rows, "attribute.csv", ["item_id", "direction", "site", "layer", "head"])
    units = rows.groupby(["layer", "head"], dropna=False)
    found = units[["estimate_nats", "effect_nats"]].mean().assign(n=units.size()).reset_index()
    if (found["n"] != rows["item_id"].nunique()).any():
        raise FigureError(f"attribute.csv has {direction} effects at the site {site} for some items only.")
    k = min(_TOP, max(1, len(found) // 4))
    exact, screen = (_largest(found[column], k) for column in ("effect_nats", "estimate_nats"))
    kinds = np.select([exact & screen, exact, screen], ["both", "missed", "false"], "neither")
    return found.assign(k=k, kind=kinds, site=site, direction=direction)


def _largest(values: pd.Series, k: int) -> np.ndarray:
    """Which are the k largest by magnitude."""
    chosen = np.zeros(len(values), dtype=bool)
    chosen[np.argsort(-values.abs().to_numpy(), kind="stable")[:k]] = True
    return chosen


def draw_attribute(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `attribute` from attribute.csv; returns its three files."""
    table = of_metric(read_table(run, "attribute.csv", READS), "attribute.csv", metric)
    there = set(zip(table["site"], table["direction"], strict=True))
    sites = [site for site in SITES if any((site, direction) in there for direction in DIRECTIONS)]
    directions = [name for name in DIRECTIONS if any((site, name) in there for site in SITES)]
    if not sites:
        raise MissingTable(f"attribute.csv has no rows of the directions {' or '.join(DIRECTIONS)}.")
    cells = [(site, direction) for site in sites for direction in directions]
    tables = [attribution_numbers(table, *cell) if cell in there else pd.DataFrame() for cell in cells]
    with style.styled():
        figure, panels = style.new_figure(0.5 + 3.1 * len(sites), len(sites), len(directions))
        for axes, (site, direction), numbers in zip(panels, cells, tables, strict=True):
            if numbers.empty:
                axes.set_axis_off()
                continue
            title = f"{len(numbers)} {SITES[site]}, {_TITLES[direction]}"
            _draw_panel(axes, numbers, title, site == sites[-1], metric)
        handles = handles_of(panels)
        names = ["equal", *(name for name, *_ in _LOOKS.values())]
        figure.legend(
            [handles[name] for name in names], names, loc="outside lower center", ncols=len(names),
            columnspacing=1.2, handletextpad=0.5, handlelength=1.6,
        )  # fmt: skip
        for axes, numbers in zip(panels, tables, strict=True):
            if not numbers.empty:
                _name_missed(figure, axes, numbers)
        return style.save(figure, pd.concat(tables), run, "attribute")


def _draw_panel(axes: Axes, numbers: pd.DataFrame, title: str, lowest: bool, metric: str) -> None:
    style.zero_line(axes)
    style.zero_line(axes, vertical=True)
    axes.axline(
        (0, 0), slope=1, color=style.TOTAL, linewidth=0.8, linestyle=(0, (4, 3)), label="equal", zorder=1
    )
    for place, (kind, (name, colour, marker, size)) in enumerate(reversed(_LOOKS.items())):
        part = numbers[numbers["kind"] == kind]
        axes.scatter(
            part["estimate_nats"], part["effect_nats"], s=size, color=colour, marker=marker,
            alpha=0.9, linewidths=0, label=name, zorder=2 + place,
        )  # fmt: skip
    rho = spearman(numbers["estimate_nats"], numbers["effect_nats"])
    correlation = "ρ undefined" if np.isnan(rho) else f"ρ = {rho:.2f}"
    k, hits = int(numbers["k"].iloc[0]), int((numbers["kind"] == "both").sum())
    axes.set_title(f"{title}\nSpearman {correlation}, recall@{k} = {hits / k:.2f}")
    on = "" if metric == "logprob" else f" on {metric.replace('_', ' ')}"
    axes.set(ylabel=f"exact effect{on}, nats", xlabel="attribution estimate, nats" if lowest else "")
    axes.margins(x=0.1, y=0.12)
    axes.set_aspect("equal", adjustable="datalim")  # a nat is as long on both axes
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6))


def _name_missed(figure: Figure, axes: Axes, numbers: pd.DataFrame) -> None:
    """Name the false negatives, largest exact effect first."""
    points = numbers[["estimate_nats", "effect_nats"]].to_numpy(float)
    order = np.argsort(-np.abs(points[:, 1]), kind="stable")
    missed = [int(i) for i in order if numbers["kind"].iloc[i] == "missed"]
    name_points(figure, axes, points, {i: _name(numbers.iloc[i]) for i in missed})


def _name(unit: pd.Series) -> str:
    if pd.isna(unit["head"]):
        return f"MLP{int(unit['layer'])}"
    return f"L{int(unit['layer'])}H{int(unit['head'])}"
