"""How much of a difference of two conditions the best heads account for, by method: share against the number of heads.

Reads joint.csv. Selected heads: share of log p(a×) and of the margin over the reference, with 95 % intervals.
Layer-matched random heads: mean, and the range over draws; other kinds of controls: their means, all of log p(a×). One
page an environment and pair of conditions. Dashed: all of the difference. With a single number of heads there is no
curve: the two shares and every kind of control (mean, range over draws) are side by side.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from figures import style
from figures.layout import LINE, arms, handles_of, page_name, span
from figures.load import MissingTable, read_table

READS = {
    "joint.csv": (
        *("env", "from", "to", "metric", "method", "direction", "set", "k", "share", "ci_lo"),
        *("ci_hi", "controls", "n_controls", "control_mean", "control_lo", "control_hi", "n"),
    ),
}
"""Table → the columns that are read of it."""
TITLES = {
    "noise": "noising: z from {from}",
    "denoise": "denoising: z from {to}",
    "mean": "mean ablation",
    "mean-role": "mean ablation, by role",
    "resample": "resample ablation",
    "zero": "zero ablation",
    "optimal": "optimal ablation",
    "knockout": "attention to the call knocked out",
}
MARKS = {
    "norm": ("equal output norm", "v"),
    "damage": ("equal damage", "D"),
    "direction": ("random direction", "x"),
    "previous_token": ("previous-token heads", "<"),
    "sink": ("sink heads", "P"),
    "complement": ("all other heads", "*"),
}
"""Kinds of controls drawn as points: name and mark."""
LOOKS = (
    ("logprob", "log p(a×), highest on repeated random tokens", style.SELECTED, "o"),
    ("margin", "margin over the reference, the same heads", style.TOTAL, "^"),
)
_DIRECTIONS = {"necessity": "share removed", "sufficiency": "share restored"}


def draw_joint(run: Path) -> list[Path]:
    """Write the figure `joint`, a panel a method, a page an environment.

    Raises:
        MissingTable: there is no joint.csv, or it is empty.
    """
    table = read_table(run, "joint.csv", READS)
    if table.empty:
        raise MissingTable("joint.csv has no rows.")
    written = []
    pages = table.groupby(["env", "from", "to"], sort=False)
    for index, ((env, low, high), rows) in enumerate(sorted(pages, key=lambda page: page[0][0])):
        written += _draw_page(rows, str(env), (str(low), str(high)), run, page_name("joint", index))
    return written


def _draw_page(rows: pd.DataFrame, env: str, pair: tuple[str, str], run: Path, name: str) -> list[Path]:
    methods = [method for method in TITLES if method in set(rows["method"])]
    n_rows = -(-len(methods) // 3)
    single = rows["k"].nunique() == 1
    with style.styled():
        figure, panels = style.new_figure(
            (2.6 if single else 2.1) * n_rows + 1.1, n_rows, 3, sharex=not single
        )
        for axes, method in zip(panels, methods, strict=False):
            draw = _draw_one_size if single else _draw_curves
            draw(axes, rows[rows["method"] == method])
            _label_panel(axes, rows[rows["method"] == method], method, pair)
        for axes in panels[len(methods) :]:
            axes.set_visible(False)
        for axes in panels[-3:] if not single else ():
            axes.set_xlabel("heads k (log scale)")
        handles = handles_of(panels[: len(methods)])
        size = f", {int(rows['k'].max())} heads" if single else ""
        title = f"{env}, {pair[0]} → {pair[1]}, {int(rows['n'].max())} items{size}: share of the difference"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3, fontsize=7)
        return style.save(figure, rows, run, name)


def _draw_curves(axes: Axes, part: pd.DataFrame) -> None:
    """Shares against the number of heads."""
    own = part[part["metric"] == "logprob"]
    controls = own[own["controls"] == "random"].sort_values("k")
    if not controls.empty:
        axes.fill_between(
            controls["k"], controls["control_lo"], controls["control_hi"], color=style.RANDOM, alpha=0.3, lw=0
        )
        axes.plot(
            controls["k"],
            controls["control_mean"],
            color=style.SEM,
            marker="s",
            markersize=3,
            lw=1.1,
            label=f"random, layer-matched (mean, range of {span(controls['n_controls'])} draws)",
        )
    for kind, (label, mark) in MARKS.items():
        beside = own[own["controls"] == kind]
        axes.plot(
            beside["k"], beside["control_mean"], color=style.MUTED, marker=mark, markersize=4, lw=0,
            label=label if len(beside) else None,
        )  # fmt: skip
    for metric, label, color, mark in LOOKS:
        chosen = part[part["metric"] == metric].drop_duplicates("k").sort_values("k")
        if not chosen.empty:
            axes.errorbar(
                chosen["k"], chosen["share"], yerr=arms(chosen, "share"), color=color, marker=mark,
                markersize=4, zorder=4, label=label, **{**LINE, "linewidth": 1.5},
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(part["k"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")


def _draw_one_size(axes: Axes, part: pd.DataFrame) -> None:
    """The shares of one set, and beside them those of its controls."""
    names: list[str] = []
    for metric, label, color, mark in LOOKS:
        chosen = part[part["metric"] == metric].head(1)
        if not chosen.empty:
            axes.errorbar(
                [len(names)], chosen["share"], yerr=arms(chosen, "share"), color=color, marker=mark, markersize=5,
                zorder=4, label=label, **{**LINE, "linewidth": 0},
            )  # fmt: skip
            names.append("log p" if metric == "logprob" else metric)
    own = part[part["metric"] == "logprob"].drop_duplicates("controls")
    own = own.assign(ci_lo=own["control_lo"], ci_hi=own["control_hi"])
    kinds = {"random": ("random, layer-matched", "s"), **MARKS}
    for kind, (label, mark) in kinds.items():
        beside = own[own["controls"] == kind]
        if beside.empty:
            continue
        axes.errorbar(
            [len(names)], beside["control_mean"], yerr=arms(beside, "control_mean"),
            color=style.SEM if kind == "random" else style.MUTED, marker=mark, markersize=4,
            label=label, **{**LINE, "linewidth": 0},
        )  # fmt: skip
        names.append(label.split(",")[0])
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=6.5)
    axes.set_xlim(-0.6, len(names) - 0.4)


def _label_panel(axes: Axes, part: pd.DataFrame, method: str, pair: tuple[str, str]) -> None:
    style.zero_line(axes)
    axes.axhline(1, color=style.TOTAL, linestyle=(0, (4, 3)), linewidth=0.8, zorder=1)
    title = TITLES[method].format(**{"from": pair[0], "to": pair[1]})
    axes.set_title(f"{title}\n{_DIRECTIONS[str(part['direction'].iloc[0])]}", fontsize=8.5)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
