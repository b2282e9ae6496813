"""What an ablation changes beside its target, against the number of ablated heads: a panel a quantity.

Reads ablate_off_target.csv. Selected heads: mean change from the unablated model with its 95 % interval, filled where
the interval lies inside ±delta ("shown to be unchanged"), hollow where it does not. Controls: the range of their mean
changes. The grey band is ±delta, which is in the quantity's own unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from figures import style
from figures.layout import arms, foot
from figures.load import FigureError, MissingTable, first_way, is_true, read_table, refuse_doubles

READS = {
    "ablate_off_target.csv": (
        *("set", "kind", "k", "quantity", "change", "ci_lo", "ci_hi", "delta", "equivalent", "n"),
    ),
}
"""Table → the columns that are read of it."""
_SUM, _PER_TOKEN = "change, nats", "change, nats per token"
LABELS = {
    "sem": ("Δsem", _SUM),
    "reference_logprob": ("log p(reference action)", _SUM),
    "prose_loss": ("loss on prose", _PER_TOKEN),
    "code_loss": ("loss on code", _PER_TOKEN),
    "random_first_loss": ("loss, random tokens", _PER_TOKEN),
    "random_repeat_loss": ("loss, repeated tokens", _PER_TOKEN),
}
_CONTROLS = {
    "random": ("random, layer-matched", style.RANDOM),
    "norm": ("same output norm", style.OTHER),
    "damage": ("same damage", style.DAMAGE),
}


def off_target_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """One row a quantity, kind and k: mean with interval (selected), or middle and range over draws (controls).

    Raises:
        MissingTable: there are no selected heads.
        FigureError: two selected sets of one size.
    """
    chosen = table[table["kind"] == "selected"]
    if chosen.empty:
        raise MissingTable("ablate_off_target.csv has no selected heads.")
    refuse_doubles(chosen, "ablate_off_target.csv", ["quantity", "k"])
    unknown = set(table["quantity"]) - set(LABELS)
    if unknown:
        raise FigureError(f"ablate_off_target.csv has the unknown quantity {sorted(unknown)[0]}.")
    columns = ["quantity", "kind", "k", "change", "ci_lo", "ci_hi", "delta"]
    found = [chosen[columns].assign(equivalent=is_true(chosen["equivalent"]))]
    for kind in _CONTROLS:
        rows = table[table["kind"] == kind]
        groups = rows.groupby(["quantity", "k"])["change"]
        spread = groups.agg(["median", "min", "max"]).reset_index()
        spread = spread.rename(columns={"median": "change", "min": "ci_lo", "max": "ci_hi"})
        found.append(spread.assign(kind=kind))
    return pd.concat([part for part in found if len(part)], ignore_index=True)


def draw_ablate_off_target(run: Path) -> list[Path]:
    """Write the figure `ablate_off_target` from ablate_off_target.csv; returns its three files."""
    table = off_target_numbers(first_way(read_table(run, "ablate_off_target.csv", READS)))
    present = [name for name in LABELS if name in set(table["quantity"])]
    with style.styled():
        figure, panels = style.new_figure(height=4.7, n_rows=2, n_columns=3)
        for axes, name in zip(panels, present, strict=False):
            _draw_panel(axes, table[table["quantity"] == name])
            axes.set_title(LABELS[name][0])
            axes.set_ylabel(LABELS[name][1])
        for axes in panels[len(present) :]:
            axes.set_axis_off()
        handles = _handles(set(table["kind"]))
        axis = "number of ablated heads k (log scale)"
        foot(figure, axis, handles, [str(handle.get_label()) for handle in handles], 3)
        return style.save(figure, table, run, "ablate_off_target")


def _draw_panel(axes: Axes, table: pd.DataFrame) -> None:
    chosen = table[table["kind"] == "selected"].sort_values("k")
    delta = float(chosen["delta"].iloc[0])
    axes.axhspan(-delta, delta, color=style.OTHER, alpha=0.18, linewidth=0)
    style.zero_line(axes)
    for kind, (_, colour) in _CONTROLS.items():
        rows = table[table["kind"] == kind].sort_values("k")
        axes.fill_between(rows["k"], rows["ci_lo"], rows["ci_hi"], color=colour, alpha=0.35, linewidth=0)
        axes.errorbar(
            rows["k"], rows["change"], yerr=arms(rows, "change"), color=colour, linewidth=1.0, capsize=2,
            elinewidth=1.0,
        )  # fmt: skip
    axes.errorbar(
        chosen["k"], chosen["change"], yerr=arms(chosen, "change"), color=style.SELECTED, linewidth=1.4,
        capsize=2.5, zorder=4,
    )  # fmt: skip
    for inside, fill in ((True, style.SELECTED), (False, "white")):
        rows = chosen[chosen["equivalent"].astype(bool) == inside]
        axes.plot(
            rows["k"],
            rows["change"],
            "o",
            markersize=5.5,
            color=style.SELECTED,
            markerfacecolor=fill,
            zorder=5,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(chosen["k"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0.12)


def _handles(kinds: set[str]) -> list[Line2D | Patch]:
    line: dict[str, Any] = {"color": style.SELECTED, "marker": "o", "markersize": 5.5, "linewidth": 1.4}
    handles: list[Line2D | Patch] = [
        Line2D([], [], **line, label="selected: inside ±δ"),
        Line2D([], [], **line, markerfacecolor="white", label="selected: not shown to be"),
    ]
    handles += [
        Patch(color=colour, alpha=0.5, linewidth=0, label=f"{name} (range)")
        for kind, (name, colour) in _CONTROLS.items()
        if kind in kinds
    ]
    return [*handles, Patch(color=style.OTHER, alpha=0.18, linewidth=0, label="±δ: counts as no change")]
