"""Which tokens of a× account for Δcopy and Δsem: by place in a×, and by part relative to the reference action.

Reads profiles.csv, nats per item summed over the tokens of a level, with 95 % intervals. Left: the ten tenths
of a×. Right: the tokens that a× shares with the reference action as a common prefix (before), the differing
middle (error) and the common suffix (after). A row per model (or ablation arm)
and environment.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from figures import style
from figures.layout import LINE, arms, count, handles_of, limits, page_name, pages
from figures.load import FigureError, MissingTable, read_arms, refuse_doubles

READS = {
    "profiles.csv": ("model", "env", "measure", "axis", "level", "mean", "ci_lo", "ci_hi", "n"),
}
"""Table → the columns that are read of it."""
MEASURES = {"copy": ("Δcopy: a× is in the transcript", style.COPY, "o", "-", ""),
            "sem": ("Δsem: the message says it failed", style.SEM, "s", "--", "///")}  # fmt: skip
PARTS = {"before": "shared\nbeginning", "error": "where\nit errs", "after": "shared\nend"}
N_TENTHS = 10
_PER_PAGE = 4  # models and environments down
_BAR = 0.36


def profile_numbers(profiles: pd.DataFrame) -> pd.DataFrame:
    """Rows `model, env, measure, axis, level, place, mean, ci_lo, ci_hi, n` of Δcopy and Δsem, in drawn order.

    Raises:
        MissingTable: there are no rows of copy or sem.
        FigureError: an unknown axis or level, or two rows of one level.
    """
    rows = profiles[profiles["measure"].isin(list(MEASURES))]
    if rows.empty:
        raise MissingTable("profiles.csv has no rows of the measures copy or sem.")
    levels = {"position": {str(tenth): tenth for tenth in range(N_TENTHS)},
              "part": {name: place for place, name in enumerate(PARTS)}}  # fmt: skip
    places = [
        levels.get(axis, {}).get(level) for axis, level in zip(rows["axis"], rows["level"], strict=True)
    ]
    if None in places:
        strange = rows.iloc[places.index(None)]
        raise FigureError(f"profiles.csv has the unknown level {strange['level']} of {strange['axis']}.")
    keys = ["model", "env", "axis", "measure", "level"]
    refuse_doubles(rows, "profiles.csv", keys)
    columns = ["model", "env", "measure", "axis", "level", "place", "mean", "ci_lo", "ci_hi", "n"]
    found = rows.assign(place=places)[columns]
    parts = [
        group.sort_values(["axis", "measure", "place"], ascending=[False, True, True])
        for _, group in found.groupby(["model", "env"], sort=False)
    ]
    return pd.concat(parts, ignore_index=True)


def draw_profiles(run: Path) -> list[Path]:
    """Write the figure `profiles` (and `profiles_2`, … for more than four pairs of model and environment)."""
    numbers = profile_numbers(read_arms(run, "profiles.csv", READS))
    cells = [group for _, group in numbers.groupby(["model", "env"], sort=False)]
    written: list[Path] = []
    for index, page in enumerate(pages([str(i) for i in range(len(cells))], _PER_PAGE)):
        written += _draw_page(run, [cells[int(i)] for i in page], page_name("profiles", index))
    return written


def _draw_page(run: Path, cells: list[pd.DataFrame], name: str) -> list[Path]:
    with style.styled():
        figure, panels = style.new_figure(
            0.75 + 1.95 * len(cells), len(cells), 2, gridspec_kw={"width_ratios": [1.9, 1]}
        )
        for row, cell in enumerate(cells):
            left, right = panels[2 * row : 2 * row + 2]
            where, which = (cell[cell["axis"] == axis] for axis in ("position", "part"))
            for axes, rows, draw in ((left, where, _draw_positions), (right, which, _draw_parts)):
                if rows.empty:
                    axes.set_axis_off()
                    axes.text(0.5, 0.5, "not measured", ha="center", color=style.MUTED)
                else:
                    draw(axes, rows)
            left.set_title(f"{cell['model'].iloc[0]} · {cell['env'].iloc[0]}, {count(cell['n'])}")
        for axes, label in zip(panels[-2:], ("place of the token in a×", "part of a×"), strict=True):
            axes.set_xlabel(label)
        handles = handles_of(panels)
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=2, columnspacing=1.8
        )
        return style.save(figure, pd.concat(cells), run, name)


def _draw_positions(axes: Axes, rows: pd.DataFrame) -> None:
    style.zero_line(axes)
    for measure, (label, colour, marker, line, _) in MEASURES.items():
        part = rows[rows["measure"] == measure].set_index("place").reindex(range(N_TENTHS))
        if part["mean"].isna().all():
            continue
        centres = (np.arange(N_TENTHS) + 0.5) * 100 / N_TENTHS
        axes.fill_between(centres, part["ci_lo"], part["ci_hi"], color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            centres, part["mean"], color=colour, marker=marker, markersize=3.8, linestyle=line, linewidth=1.4,
            label=label, zorder=3,
        )  # fmt: skip
    axes.set_xticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)])
    axes.set(xlim=(0, 100), ylim=limits(rows), ylabel="nats per tenth of a×")
    axes.grid(axis="y", color="#E3E5E8", linewidth=0.6)


def _draw_parts(axes: Axes, rows: pd.DataFrame) -> None:
    style.zero_line(axes)
    for index, (measure, (label, colour, _, _, hatch)) in enumerate(MEASURES.items()):
        part = rows[rows["measure"] == measure]
        places = part["place"] + (index - 0.5) * _BAR
        axes.bar(
            places, part["mean"], width=0.92 * _BAR, color=colour, hatch=hatch, edgecolor="white", linewidth=0,
            label=label, zorder=2,
        )  # fmt: skip
        axes.errorbar(
            places, part["mean"], yerr=arms(part), linestyle="none", color=style.TOTAL, zorder=3, **LINE
        )
    axes.set_xticks(range(len(PARTS)), list(PARTS.values()))
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.6, len(PARTS) - 0.4), ylim=limits(rows), ylabel="nats per action")
    axes.grid(axis="y", color="#E3E5E8", linewidth=0.6)
