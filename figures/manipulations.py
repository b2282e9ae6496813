"""What each manipulation of the record does to the failed action, against the standard failure record.

Reads manipulations.csv: delta = mean over items of the paired L(condition) − L(fail), nats per action, with its
95 % interval; p after Holm's correction over all conditions of one model and environment; G of the condition
itself. Equivalent means that the interval lies inside ±δ; δ is in equivalence.csv, where that is there.

A panel per environment (down) and model or ablation arm (across). The conditions of an environment have one order in
all its panels: by the mean of their deltas over models, the one that lowers log p(a×) most on top.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from figures import style
from figures.layout import (
    LINE,
    arms,
    count,
    fold,
    foot,
    limits,
    page_name,
    pages,
    row_height,
    rows_of,
    side_column,
    span,
)
from figures.load import is_true, read_arms, read_table, refuse_doubles

READS = {
    "manipulations.csv": (
        *("model", "env", "condition", "delta", "ci_lo", "ci_hi", "n", "p_holm", "G", "equivalent"),
    ),
    "equivalence.csv": ("delta",),
}
"""Table → the columns that are read of it."""
ALPHA = 0.05
_PER_PAGE = 3  # models across
_LABEL_WIDTH = 26


def manipulation_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The table's columns that are drawn, and `place` (row from the top), `significant`, `equivalent`.

    Raises:
        FigureError: two rows of one condition, model and environment.
    """
    keys = ["model", "env", "condition"]
    refuse_doubles(table, "manipulations.csv", keys)
    numbers = table[[*keys, "delta", "ci_lo", "ci_hi", "n", "p_holm", "G"]].assign(
        significant=table["p_holm"] < ALPHA, equivalent=is_true(table["equivalent"])
    )
    parts = [_placed(group) for _, group in numbers.groupby("env", sort=False)]
    return pd.concat(parts, ignore_index=True)


def _placed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one environment, model by model, each from the top down."""
    order = rows.groupby("condition", sort=False)["delta"].mean().sort_values(kind="stable").index
    placed = rows.assign(place=rows["condition"].map(list(order).index))
    return pd.concat([group.sort_values("place") for _, group in placed.groupby("model", sort=False)])


def margin_text(run: Path) -> str:
    """How the legend names the margin of equivalence: its size, if equivalence.csv is there and has one only."""
    if not (run / "equivalence.csv").is_file():
        return "±δ"
    sizes = read_table(run, "equivalence.csv", READS)["delta"].dropna().unique()
    return f"±{sizes[0]:g} nats" if len(sizes) == 1 else "±δ"


def draw_manipulations(run: Path) -> list[Path]:
    """Write the figure `manipulations` (and `manipulations_2`, … for more than three models)."""
    numbers = manipulation_numbers(read_arms(run, "manipulations.csv", READS))
    written: list[Path] = []
    for index, page in enumerate(pages(list(dict.fromkeys(numbers["model"])), _PER_PAGE)):
        shown = numbers[numbers["model"].isin(page)]
        written += _draw_page(run, shown, page, page_name("manipulations", index))
    return written


def _draw_page(run: Path, shown: pd.DataFrame, models: list[str], name: str) -> list[Path]:
    envs = list(dict.fromkeys(shown["env"]))
    labels = {
        env: rows.drop_duplicates("condition").sort_values("place")["condition"].tolist()
        for env, rows in shown.groupby("env", sort=False)
    }
    heights = [
        0.8 + len(names) * row_height((fold(name, _LABEL_WIDTH) for name in names), 0.175)
        for names in labels.values()
    ]
    with style.styled():
        figure, panels = style.new_figure(
            sum(heights) + 0.75, len(envs), len(models), gridspec_kw={"height_ratios": heights}
        )
        for index, axes in enumerate(panels):
            row, column = divmod(index, len(models))
            env, model = envs[row], models[column]
            here = shown[shown["env"] == env]
            part = here[here["model"] == model]
            _draw_panel(axes, part, labels[env], named=column == 0)
            axes.set_xlim(limits(here, "delta"))
            about = f"{env}, {count(part['n']) if len(part) else 'not measured'}"
            axes.set_title(f"{fold(model, 66 // len(models))}\n{fold(about, 54 // len(models))}", fontsize=9)
        tests = shown[shown["p_holm"].notna()].groupby(["model", "env"]).size()
        family = f"{span(tests)} test{'s' * bool(tests.max() > 1)}" if len(tests) else "no tests"
        looks = _looks(family, margin_text(run))
        axis = "L(condition) − L(fail), nats per action; whiskers: 95 % interval"
        foot(figure, axis, list(looks.values()), list(looks), n_across=3)
        return style.save(figure, shown, run, name)


def _draw_panel(axes: Axes, part: pd.DataFrame, labels: list[str], named: bool) -> None:
    places = part["condition"].map(labels.index)
    style.zero_line(axes, vertical=True)
    for (significant, equivalent), rows in part.groupby(["significant", "equivalent"]):
        axes.errorbar(
            rows["delta"], places[rows.index], xerr=arms(rows, "delta"), linestyle="none", zorder=3,
            **_look(significant, equivalent), **LINE,
        )  # fmt: skip
    rows_of(axes, [fold(label, _LABEL_WIDTH) for label in labels], named)
    gains = dict(zip(part["condition"], part["G"], strict=True))
    side_column(axes, "G", [_signed(gains[label]) if label in gains else "" for label in labels])


def _look(significant: bool, equivalent: bool) -> dict[str, Any]:
    colour = style.SEM if equivalent else style.TOTAL
    return {
        "color": colour,
        "marker": "s" if equivalent else "o",
        "markersize": 4.6,
        "markerfacecolor": colour if significant else "white",
    }


def _signed(value: float) -> str:
    """One decimal with a true minus sign; a dash where there is no number."""
    return "–" if pd.isna(value) else f"{value:.1f}".replace("-", "−")


def _looks(family: str, margin: str) -> dict[str, Line2D]:
    looks = {
        f"p < .05 (Holm over a panel's {family})": _look(True, False),
        "p ≥ .05": _look(False, False),
        f"square: equivalent to fail (interval within {margin})": _look(False, True),
    }
    return {label: Line2D([], [], linewidth=1.1, **look) for label, look in looks.items()}
