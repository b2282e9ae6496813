"""What the best heads carry of Δcopy, by method: share against the number of heads, beside random heads.

Reads carried.csv. Selected heads: share and 95 % interval. Layer-matched random heads: mean, and the range over draws.
One page an environment. Dashed: all of Δcopy.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from figures import style
from figures.layout import LINE, arms, handles_of, page_name, span
from figures.load import MissingTable, read_table

TITLES = {
    "noise": "noising: z from pre",
    "denoise": "denoising: z from neut",
    "mean": "mean ablation",
    "resample": "resample ablation",
    "zero": "zero ablation",
    "knockout": "attention to the call cut",
}
_DIRECTIONS = {"necessity": "share removed", "sufficiency": "share restored"}


def draw_carried(run: Path) -> list[Path]:
    """Write the figure `carried`, a panel a method, a page an environment.

    Raises:
        MissingTable: there is no carried.csv, or it is empty.
    """
    table = read_table(run, "carried.csv")
    if table.empty:
        raise MissingTable("carried.csv has no rows.")
    written = []
    for index, (env, rows) in enumerate(table.groupby("env", sort=True)):
        written += _draw_page(rows, str(env), run, page_name("carried", index))
    return written


def _draw_page(rows: pd.DataFrame, env: str, run: Path, name: str) -> list[Path]:
    methods = [method for method in TITLES if method in set(rows["method"])]
    n_rows = -(-len(methods) // 3)
    draws = (
        span(rows.loc[rows["controls"] == "random", "n_controls"])
        if "random" in set(rows["controls"])
        else ""
    )
    with style.styled():
        figure, panels = style.new_figure(2.1 * n_rows + 0.9, n_rows, 3, sharex=True)
        for axes, method in zip(panels, methods, strict=False):
            part = rows[rows["method"] == method]
            _draw_panel(axes, part, method, f"random, layer-matched (mean, range of {draws} draws)")
        for axes in panels[len(methods) :]:
            axes.set_visible(False)
        for axes in panels[-3:]:
            axes.set_xlabel("heads k (log scale)")
        handles = handles_of(panels[: len(methods)])
        title = f"{env}, {int(rows['n'].max())} items: share of Δcopy"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles))
        return style.save(figure, rows, run, name)


def _draw_panel(axes: Axes, part: pd.DataFrame, method: str, label: str) -> None:
    style.zero_line(axes)
    axes.axhline(1, color=style.TOTAL, linestyle=(0, (4, 3)), linewidth=0.8, zorder=1)
    controls = part[part["controls"] == "random"].sort_values("k")
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
            label=label,
        )
    chosen = part.drop_duplicates("k").sort_values("k")
    axes.errorbar(
        chosen["k"], chosen["share"], yerr=arms(chosen, "share"), color=style.SELECTED, marker="o", markersize=4,
        zorder=4, label="highest on repeated random tokens (95 % interval)", **{**LINE, "linewidth": 1.5},
    )  # fmt: skip
    axes.set_title(f"{TITLES[method]}\n{_DIRECTIONS[str(part['direction'].iloc[0])]}", fontsize=8.5)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(part["k"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
