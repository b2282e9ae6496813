"""The circuit: share of the difference against the number of heads, by search, and where the heads found are.

Reads circuit.csv, circuit_curve.csv and circuit_ranking.csv. A line is a method's order of heads cut at size k, in the
metric of the search: solid on held-out items, thin and dashed on the training items that chose the heads. A ring with a
95 % interval (none with few clusters) is at the size that was found (open where no set reached the target), and a
cross at the same set's share in the other metric on the held-out items: margin beside log-probability. The band is the
range of random layer-matched sets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from figures import style
from figures.head_map import finish_map, head_grid, panel_height
from figures.layout import arms
from figures.load import FigureError, MissingTable, is_true, read_table, refuse_doubles

READS = {
    "circuit.csv": (
        *("method", "criterion", "target", "k", "reached", "test_set", "metric", "necessity"),
        *("necessity_lo", "necessity_hi", "sufficiency", "sufficiency_lo", "sufficiency_hi"),
        *("faithfulness", "faithfulness_lo", "faithfulness_hi", "n"),
    ),
    "circuit_curve.csv": ("method", "test_set", "metric", "k", "share", "ci_lo", "ci_hi", "n"),
    "circuit_ranking.csv": ("layer", "head", "n_methods", "selected"),
}
"""Table → the columns that are read of it."""
LOOKS: dict[str, tuple[str, str, str]] = {
    "score": ("#0072B2", "o", "by score on random tokens"),
    "attribution": ("#E69F00", "s", "by attribution"),
    "greedy": ("#009E73", "^", "greedy, pruned"),
    "elimination": ("#CC79A7", "D", "attribution, pruned"),
}
RANDOM, TRAINING, OUTSIDE = "random", "training", "held-out"
METRICS = {"logprob": "log p(a×)", "margin": "a× − reference", "diverging": "diverging tokens of a×"}
TICKS = (1, 2, 4, 8, 16, 32, 64, 128)


def circuit_numbers(curve: pd.DataFrame, circuit: pd.DataFrame) -> pd.DataFrame:
    """The curve with `found` (this is the size that the method found) and `reached` (the target, on training items).

    Below it the found sets' shares in the other metric on held-out items (`other_metric`), where there are any.

    Raises:
        MissingTable: no rows of held-out items.
        FigureError: an unknown method, curves of two metrics, a row that is there twice, or a found size that the curve
            lacks.
    """
    unknown = set(curve["method"]) - {*LOOKS, RANDOM}
    if unknown:
        raise FigureError(f"circuit_curve.csv has the unknown method {sorted(unknown)[0]}.")
    if OUTSIDE not in set(curve["test_set"]):
        raise MissingTable("circuit_curve.csv has no rows of held-out items.")
    refuse_doubles(curve, "circuit_curve.csv", ["method", "test_set", "k"])
    refuse_doubles(circuit, "circuit.csv", ["method", "test_set", "metric"])
    nameless = [one for one in circuit["criterion"].unique() if str(one) not in circuit.columns]
    if nameless:
        raise FigureError(f"circuit.csv has the criterion {nameless[0]}, of which it has no column.")
    [*metrics] = curve["metric"].unique()
    if len(metrics) != 1 or metrics[0] not in METRICS:
        raise FigureError(
            f"circuit_curve.csv is of one metric out of {', '.join(METRICS)}, not of {metrics}."
        )
    here = circuit[(circuit["test_set"] == OUTSIDE) & (circuit["metric"] == metrics[0])]
    sizes = dict(zip(here["method"], here["k"], strict=True))
    reached = dict(zip(here["method"], is_true(here["reached"]), strict=True))
    for method, size in sizes.items():
        if not ((curve["method"] == method) & (curve["k"] == size)).any():
            raise FigureError(f"circuit_curve.csv lacks the size {size} that {method} found by circuit.csv.")
    found = curve["method"].map(sizes) == curve["k"]
    numbers = curve.assign(found=found, reached=curve["method"].map(reached), other_metric=False)
    beside = "logprob" if metrics[0] != "logprob" else "margin"
    others = circuit[(circuit["test_set"] == OUTSIDE) & (circuit["metric"] == beside)]
    if others.empty:
        return numbers
    criterion = str(circuit["criterion"].iloc[0])
    crosses = others[["method", "test_set", "metric", "k", "n"]].assign(
        share=others[criterion],
        ci_lo=others[f"{criterion}_lo"],
        ci_hi=others[f"{criterion}_hi"],
        found=True,
        reached=is_true(others["reached"]),
        other_metric=True,
    )
    return pd.concat([numbers, crosses[numbers.columns]], ignore_index=True)


def draw_circuit(run: Path) -> list[Path]:
    """Write the figure `circuit`; returns its three files."""
    circuit, ranking = read_table(run, "circuit.csv", READS), read_table(run, "circuit_ranking.csv", READS)
    numbers = circuit_numbers(read_table(run, "circuit_curve.csv", READS), circuit)
    criterion, target = str(circuit["criterion"].iloc[0]), float(circuit["target"].iloc[0])
    grid = head_grid(ranking, "n_methods")
    with style.styled():
        height = panel_height(grid)
        figure, (above, below) = style.new_figure(4.6 + height, n_rows=2, height_ratios=[3.1, height + 0.2])
        handles = _draw_shares(above, numbers, criterion, target)
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
        _draw_map(figure, below, grid, ranking)
        return style.save(figure, numbers, run, "circuit")


def _draw_shares(axes: Axes, numbers: pd.DataFrame, criterion: str, target: float) -> list[Any]:
    """Draw the upper panel; returns what its legend lists."""
    style.zero_line(axes)
    crosses, numbers = numbers[numbers["other_metric"]], numbers[~numbers["other_metric"]]
    axes.axhline(target, color=style.TOTAL, linestyle=(0, (5, 3)), linewidth=1.0, zorder=2)
    axes.annotate(
        f"{target:.0%}", xy=(1.0, target), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", va="center", fontsize=8, annotation_clip=False,
    )  # fmt: skip
    drawn = numbers[numbers["method"] == RANDOM].sort_values("k")
    if not drawn.empty:
        axes.fill_between(
            drawn["k"], drawn["ci_lo"], drawn["ci_hi"], color=style.OTHER, alpha=0.3, linewidth=0, zorder=1
        )
    handles: list[Any] = []
    for method, (colour, marker, name) in LOOKS.items():
        own = numbers[numbers["method"] == method].sort_values("k")
        if own.empty:
            continue
        outside, training = (own[own["test_set"] == side] for side in (OUTSIDE, TRAINING))
        axes.plot(training["k"], training["share"], color=colour, linestyle=(0, (3, 2)), linewidth=0.9)
        axes.plot(
            outside["k"],
            outside["share"],
            color=colour,
            marker=marker,
            markersize=3.2,
            linewidth=1.5,
            zorder=3,
        )
        chosen = outside[outside["found"]]
        axes.errorbar(
            chosen["k"], chosen["share"], yerr=arms(chosen, "share"), color=colour, marker=marker, markersize=9,
            markerfacecolor=colour if chosen["reached"].all() else "white", markeredgecolor=style.TOTAL,
            elinewidth=1.2, capsize=2.5, zorder=5, linestyle="none",
        )  # fmt: skip
        across = crosses[crosses["method"] == method]
        axes.plot(
            across["k"],
            across["share"],
            color=style.TOTAL,
            marker="x",
            markersize=7,
            linestyle="none",
            zorder=6,
        )
        size = int(chosen["k"].iloc[0])
        note = f"{name}: {size} heads" if chosen["reached"].all() else f"{name}: not found"
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5, linewidth=1.5, label=note))
    handles += [
        Line2D([], [], color=style.MUTED, linewidth=1.5, label=f"held-out items (n = {_n(numbers, OUTSIDE)})"),
        Line2D(
            [], [], color=style.MUTED, linewidth=0.9, linestyle=(0, (3, 2)),
            label=f"training items (n = {_n(numbers, TRAINING)})",
        ),
        Patch(color=style.OTHER, alpha=0.3, linewidth=0, label="random, same layers (range)"),
    ]  # fmt: skip
    for metric in crosses["metric"].unique()[:1]:
        label = f"the set found, in {METRICS[metric]}"
        handles.append(
            Line2D([], [], color=style.TOTAL, marker="x", markersize=6, linestyle="none", label=label)
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([k for k in TICKS if k <= numbers["k"].max()]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set(xlabel="number of heads k (log scale)", ylabel="share of the difference")
    metric = METRICS[str(numbers["metric"].iloc[0])]
    axes.set_title(f"{criterion.capitalize()} of the first k heads together, {metric}")
    return handles


def _n(numbers: pd.DataFrame, side: str) -> int:
    return int(numbers.loc[numbers["test_set"] == side, "n"].max())


def _draw_map(figure: Any, axes: Axes, grid: np.ndarray, ranking: pd.DataFrame) -> None:
    chosen = ranking[is_true(ranking["selected"])]
    selected = [(int(layer), int(head)) for layer, head in zip(chosen["layer"], chosen["head"], strict=True)]
    top = len(LOOKS)
    shades = matplotlib.colormaps["YlOrBr"](np.linspace(0.2, 0.85, top))
    image = axes.imshow(
        grid, cmap=ListedColormap([to_rgba("#F1F2F4"), *shades]), vmin=-0.5, vmax=top + 0.5, aspect="auto"
    )
    bar = finish_map(figure, axes, image, grid, selected, "searches that chose it")
    bar.set_ticks(range(top + 1))
    title = "Heads that the searches chose"
    axes.set_title(f"{title}; outlined: the smallest set, {len(selected)} heads" if selected else title)
