"""What a free-running agent does under each harness, ban and change: one row an arm, one panel a measure.

Reads rollout_rates.csv: means over rollouts with 95 % intervals, arms in the order of the table. The share of readable
calls comes first, since repeats of an agent that writes no calls say little. A square is an arm with a ban; colour
tells whether the model was changed (ablate, knockout, …) or changed at random. The dashed line is the first arm's
mean. n is a range where a measure is undefined for some rollouts (no failure: no repeat rate). A page a model and
environment.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from figures import style
from figures.layout import LINE, arms, fold, page_name, row_height, rows_of, side_column, span
from figures.load import MissingTable, read_table, refuse_doubles

READS = {
    "rollout_rates.csv": ("model", "env", "arm", "metric", "mean", "ci_lo", "ci_hi", "n"),
}
"""Table → the columns that are read of it."""
# title → its metrics; of two, the second is hollow
PANELS = {
    "readable\ncalls": ("parseable_share",),
    "solved": ("solved",),
    "repeats\nper chance": ("repeat_per_chance",),
    "repeats among\nfailures": ("canonical_repeat_rate", "exact_repeat_rate"),
    "ended\nin a loop": ("stuck",),
}
_SHARED = PANELS["repeats among\nfailures"]
_LABEL_WIDTH = 24
_KINDS = {"none": ("unchanged model", style.TOTAL), "changed": ("changed model", style.COPY),
          "random": ("random control", style.SEM)}  # fmt: skip


def rollout_numbers(rates: pd.DataFrame) -> pd.DataFrame:
    """The rows of the drawn metrics: model, env, arm, metric, mean, ci_lo, ci_hi, n.

    Raises:
        MissingTable: none of the drawn metrics is there.
        FigureError: an arm has two rows of one metric.
    """
    drawn = [metric for panel in PANELS.values() for metric in panel]
    rows = rates[rates["metric"].isin(drawn)]
    refuse_doubles(rows, "rollout_rates.csv", ["model", "env", "arm", "metric"])
    if rows.empty:
        raise MissingTable("rollout_rates.csv has none of the metrics that are drawn.")
    columns = ["model", "env", "arm", "metric", "mean", "ci_lo", "ci_hi", "n"]
    return rows[columns].reset_index(drop=True)


def draw_rollout(run: Path) -> list[Path]:
    """Write the figure `rollout`, a page a model and environment."""
    numbers = rollout_numbers(read_table(run, "rollout_rates.csv", READS))
    written = []
    for index, ((model, env), rows) in enumerate(numbers.groupby(["model", "env"], sort=False)):
        written += _draw_page(rows, f"{model}, {env}", run, page_name("rollout", index))
    return written


def kind_of(arm: str) -> str:
    """none, changed or random: what was done to the model, from the arm's name HARNESS/CHANGE."""
    change = arm.partition("/")[2]
    return "random" if "random" in change else "changed" if change else "none"


def _draw_page(rows: pd.DataFrame, title: str, run: Path, name: str) -> list[Path]:
    names = list(dict.fromkeys(rows["arm"]))
    present = {head: metrics for head, metrics in PANELS.items() if rows["metric"].isin(metrics).any()}
    labels = [fold(arm, _LABEL_WIDTH) for arm in names]
    height = 1.45 + row_height(labels, 0.24) * len(names)
    with style.styled():
        figure, panels = style.new_figure(height, n_columns=len(present))
        for place, (axes, (head, metrics)) in enumerate(zip(panels, present.items(), strict=True)):
            for metric in metrics:
                _draw_metric(axes, rows[rows["metric"] == metric], names, metric)
            rows_of(axes, labels, named=place == 0)
            axes.set_xlim(-0.06, 1.06)
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            axes.set_title(head, fontsize=8.5)
        counts = [rows.loc[rows["arm"] == arm, "n"] for arm in names]
        side_column(panels[-1], "n", [span(n) for n in counts])
        figure.suptitle(f"{title}: rollouts", x=0.01, ha="left", fontsize=10)
        handles = _handles(names, has_pair=set(_SHARED) <= set(rows["metric"]))
        figure.legend(
            handles=handles, loc="outside lower center", ncols=4, columnspacing=1.2, handletextpad=0.4
        )
        return style.save(figure, rows, run, name)


def _draw_metric(axes: Axes, rows: pd.DataFrame, names: list[str], metric: str) -> None:
    """Dots with intervals; of two metrics in one panel, one above and one below the middle of its row."""
    offset = {_SHARED[0]: -0.16, _SHARED[1]: 0.16}.get(metric, 0.0)
    first = rows.loc[rows["arm"] == names[0], "mean"]
    if offset <= 0 and len(first):
        axes.axvline(first.iloc[0], color=style.OTHER, linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
    for row, (_, line) in zip(rows.itertuples(), rows.iterrows(), strict=True):
        place, colour = names.index(row.arm), _KINDS[kind_of(row.arm)][1]
        if pd.isna(row.mean):
            axes.text(0.5, place, "undefined", color=style.MUTED, fontsize=7, ha="center", va="center")
            continue
        axes.errorbar(
            [row.mean], [place + offset], xerr=arms(line.to_frame().T), linestyle="none", color=colour,
            marker="s" if _banned(row.arm) else "o", markersize=4.2, zorder=3,
            markerfacecolor="white" if metric == _SHARED[1] else colour, **LINE,
        )  # fmt: skip


def _banned(arm: str) -> bool:
    return "+ban" in arm.partition("/")[0]


def _handles(names: list[str], has_pair: bool) -> list[Line2D]:
    kinds = [kind for kind in _KINDS if kind in {kind_of(arm) for arm in names}]
    handles = [_handle(_KINDS[kind][1], "o", True, _KINDS[kind][0]) for kind in kinds]
    if any(map(_banned, names)):
        handles.append(_handle(style.TOTAL, "s", True, "with a ban"))
    if has_pair:
        handles.append(_handle(style.TOTAL, "o", False, "hollow: exact repeats; filled: canonical"))
    handles.append(Line2D([], [], color=style.OTHER, linestyle=(0, (4, 3)), linewidth=0.9, label=names[0]))
    return handles


def _handle(colour: str, marker: str, filled: bool, label: str) -> Line2D:
    face = colour if filled else "white"
    return Line2D(
        [],
        [],
        color=colour,
        marker=marker,
        markersize=4.2,
        markerfacecolor=face,
        linestyle="none",
        label=label,
    )
