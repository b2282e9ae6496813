"""Δcopy and Δsem by kind of failure: error family, operator, task template, step, whether the error quotes a×.

Reads breakdown.csv: mean over the items of a level, nats per action, with its 95 % interval. A figure per
environment (their levels have nothing in common), a row of panels per grouping, a column per model or ablation arm.
Levels are sorted by Δcopy (mean over models), largest on top; steps by number. A grouping with a single level says what
`summary` says and is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from figures import style
from figures.layout import LINE, arms, fold, foot, limits, page_name, pages, row_height, rows_of, side_column
from figures.load import MissingTable, read_arms, refuse_doubles

READS = {
    "breakdown.csv": ("model", "env", "by", "level", "measure", "mean", "ci_lo", "ci_hi", "n"),
}
"""Table → the columns that are read of it."""
MEASURES = {"copy": ("Δcopy: a× is in the transcript", style.COPY, "o", -0.15),
            "sem": ("Δsem: the message says it failed", style.SEM, "s", 0.15)}  # fmt: skip
GROUPINGS = {
    "error_type": "error family",
    "operator": "operator (how a× was spoilt)",
    "template": "task template",
    "step": "step of the decision",
    "quotes_source": "does the error quote the submission?",
}
_QUOTES = {"true": "yes", "false": "no"}
_LABEL_WIDTH = 28
_PER_PAGE = 3  # models across


def family_numbers(breakdown: pd.DataFrame, env: str) -> pd.DataFrame:
    """Rows of one environment in the order drawn: model, env, by, level, measure, mean, ci_lo, ci_hi, n, place.

    Empty where no grouping has two levels.

    Raises:
        FigureError: two rows of one model, grouping, level and measure.
    """
    keys = ["model", "by", "level", "measure"]
    rows = breakdown[(breakdown["env"] == env) & breakdown["measure"].isin(list(MEASURES))]
    rows = rows[rows["by"].isin(list(GROUPINGS)) & rows["level"].notna()]
    refuse_doubles(rows, "breakdown.csv", keys)
    rows = rows[rows.groupby("by")["level"].transform("nunique") > 1]
    parts = [_ordered(rows[rows["by"] == by], by) for by in GROUPINGS if by in set(rows["by"])]
    columns = ["model", "env", "by", "level", "measure", "mean", "ci_lo", "ci_hi", "n", "place"]
    return pd.concat(parts or [rows.assign(place=0)], ignore_index=True)[columns]


def _ordered(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """The rows of one grouping with the place of their level, from the top."""
    levels = list(dict.fromkeys(rows["level"]))
    if by == "step":
        levels.sort(key=lambda level: (not re.fullmatch(r"\d+", level), level.zfill(9)))
    else:
        copies = rows[rows["measure"] == "copy"].groupby("level")["mean"].mean()
        levels.sort(key=lambda level: -float(copies.get(level, float("-inf"))))
    return rows.assign(place=rows["level"].map(levels.index)).sort_values("place", kind="stable")


def draw_breakdown(run: Path) -> list[Path]:
    """Write the figure `breakdown_ENV` of each environment (and `…_2`, … for more than three models).

    Raises:
        MissingTable: no grouping of Δcopy or Δsem has two levels in any environment.
    """
    breakdown = read_arms(run, "breakdown.csv", READS)
    written: list[Path] = []
    for env in dict.fromkeys(breakdown["env"]):
        numbers = family_numbers(breakdown, env)
        name = "breakdown_" + re.sub(r"[^A-Za-z0-9_-]+", "-", env)
        # An environment without rows has no models, and so no page.
        for index, page in enumerate(pages(list(dict.fromkeys(numbers["model"])), _PER_PAGE)):
            shown = numbers[numbers["model"].isin(page)]
            written += _draw_page(run, shown, page, page_name(name, index))
    if not written:
        raise MissingTable("breakdown.csv has no grouping of copy or sem with two levels to compare.")
    return written


def _draw_page(run: Path, shown: pd.DataFrame, models: list[str], name: str) -> list[Path]:
    groupings = list(dict.fromkeys(shown["by"]))
    sizes = []
    for by in groupings:
        levels = shown.loc[shown["by"] == by, "level"].unique()
        sizes.append(0.3 + len(levels) * row_height((fold(level, _LABEL_WIDTH) for level in levels), 0.2))
    with style.styled():
        figure, panels = style.new_figure(
            sum(sizes) + 1.3, len(groupings), len(models), gridspec_kw={"height_ratios": sizes}
        )
        for index, axes in enumerate(panels):
            row, column = divmod(index, len(models))
            by, model = groupings[row], models[column]
            _draw_panel(axes, shown[shown["by"] == by], model, named=column == 0, headed=row == 0)
            axes.set_xlim(limits(shown))
            if row < len(groupings) - 1:
                axes.tick_params(axis="x", labelbottom=False, length=0)
            above = [fold(model, 60 // len(models))] if row == 0 else []
            below = [GROUPINGS[by]] if column == 0 else [""] if row == 0 else []
            axes.set_title("\n".join(above + below), fontsize=9)
        env = shown["env"].iloc[0]
        figure.suptitle(f"{env}: Δcopy and Δsem by kind of failure", x=0.01, ha="left", fontsize=9.5)
        foot(
            figure, "change of log p(a×), nats per action; whiskers: 95 % interval",
            *panels[0].get_legend_handles_labels(), n_across=2,
        )  # fmt: skip
        return style.save(figure, shown, run, name)


def _draw_panel(axes: Axes, rows: pd.DataFrame, model: str, named: bool, headed: bool) -> None:
    levels = rows.drop_duplicates("level").sort_values("place")["level"].tolist()
    part = rows[rows["model"] == model]
    style.zero_line(axes, vertical=True)
    for measure, (label, colour, marker, offset) in MEASURES.items():
        these = part[part["measure"] == measure]
        axes.errorbar(
            these["mean"], these["level"].map(levels.index).astype(float) + offset, xerr=arms(these),
            linestyle="none", color=colour, marker=marker, markersize=4.2, label=label, zorder=3, **LINE,
        )  # fmt: skip
    quotes = rows["by"].iloc[0] == "quotes_source"
    shown = [_QUOTES.get(level.lower(), level) if quotes else level for level in levels]
    rows_of(axes, [fold(level, _LABEL_WIDTH) for level in shown], named)
    counts = {level: _count(group["n"]) for level, group in part.groupby("level")}
    side_column(axes, "n" if headed else "", [counts.get(level, "") for level in levels])


def _count(n: pd.Series) -> str:
    """The number of items; both, if those of Δcopy and Δsem differ."""
    return "/".join(str(int(one)) for one in dict.fromkeys(n))
