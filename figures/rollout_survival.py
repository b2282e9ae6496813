"""How long rollouts go without repeating a failed action: the Kaplan-Meier curve of each arm, with pointwise intervals.

Reads rollout_survival.csv. Up to eight arms have a colour and a marker of their own, and dashes if they have a ban;
of more, those that differ in the harness come first, then the others in the order of the table, and the rest are thin
grey lines. Intervals are bands, and whiskers where more than four bands would lie on each other. Curves are a
little to the left or right of their step, so that none hides another. A page a model and environment.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from figures import style
from figures.layout import arms as whiskers
from figures.layout import page_name
from figures.load import FigureError, read_table, refuse_doubles

READS = {
    "rollout_survival.csv": (
        *("model", "env", "arm", "t", "at_risk", "events", "survival", "ci_lo", "ci_hi"),
    ),
}
"""Table → the columns that are read of it."""
_LOOKS = (
    *((style.TOTAL, "o"), (style.COPY, "s"), (style.SEM, "^"), ("#009E73", "D")),
    *(("#CC79A7", "v"), ("#E69F00", "P"), (style.RANDOM, "X"), (style.MUTED, "*")),
)
_LIGHT = "#C9CDD2"
_SHIFT = 0.035  # of a step, between neighbours
_MAX_BANDS = 4


def survival_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """model, env, arm, t, at_risk, events, survival, ci_lo, ci_hi, with t ascending in each arm.

    Raises:
        FigureError: an arm has two rows of one t, or its curve rises.
    """
    keys = ["model", "env", "arm"]
    refuse_doubles(table, "rollout_survival.csv", [*keys, "t"])
    rows = table.sort_values("t", kind="stable")
    rising = rows.groupby(keys, sort=False)["survival"].diff() > 1e-9
    if rising.any():
        raise FigureError(
            f"rollout_survival.csv has a curve that rises: arm {rows.loc[rising, 'arm'].iloc[0]}."
        )
    columns = [*keys, "t", "at_risk", "events", "survival", "ci_lo", "ci_hi"]
    return rows[columns].sort_index().reset_index(drop=True)


def coloured(arms: list[str]) -> list[str]:
    """The arms, at most eight, that are told apart: one a harness first (unchanged where there is one)."""
    unchanged = [arm for arm in arms if "/" not in arm]
    first = {arm.partition("/")[0]: arm for arm in reversed([*unchanged, *arms])}
    heads = [arm for arm in arms if arm in first.values()]
    chosen = [*heads, *(arm for arm in arms if arm not in heads)][: len(_LOOKS)]
    return [arm for arm in arms if arm in chosen]


def draw_rollout_survival(run: Path) -> list[Path]:
    """Write the figure `rollout_survival`, a page a model and environment."""
    numbers = survival_numbers(read_table(run, "rollout_survival.csv", READS))
    written = []
    for index, ((model, env), rows) in enumerate(numbers.groupby(["model", "env"], sort=False)):
        written += _draw_page(rows, f"{model}, {env}", run, page_name("rollout_survival", index))
    return written


def _draw_page(rows: pd.DataFrame, title: str, run: Path, name: str) -> list[Path]:
    arms = list(dict.fromkeys(rows["arm"]))
    bright = coloured(arms)
    n_lines = -(-(len(bright) + (len(arms) > len(bright))) // 2)
    with style.styled():
        figure, (axes,) = style.new_figure(3.4 + 0.17 * n_lines)
        for place, arm in enumerate(one for one in arms if one not in bright):
            curve = rows[rows["arm"] == arm].sort_values("t")
            label = f"{len(arms) - len(bright)} other arms" if place == 0 else None
            axes.step(
                curve["t"],
                curve["survival"],
                where="post",
                color=_LIGHT,
                linewidth=0.9,
                label=label,
                zorder=1,
            )
        for place, (arm, look) in enumerate(zip(bright, _LOOKS, strict=False)):
            shift = _SHIFT * (place - (len(bright) - 1) / 2)
            curve = rows[rows["arm"] == arm].sort_values("t")
            _draw_arm(axes, curve, arm, look, shift, band=len(bright) <= _MAX_BANDS)
        axes.set_ylim(-0.03, 1.04)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("the model's own steps since the first failure")
        axes.set_ylabel("share not yet repeating a failed action")
        axes.set_title(title)
        handles, names = axes.get_legend_handles_labels()
        if len(bright) < len(arms):  # the grey lines were drawn first and are named last
            handles, names = [*handles[1:], handles[0]], [*names[1:], names[0]]
        figure.legend(
            handles, names, title="arm (rollouts that repeat, of those with a chance to)", title_fontsize=8,
            loc="outside lower center", ncols=2, columnspacing=1.4,
        )  # fmt: skip
        return style.save(figure, rows, run, name)


def _draw_arm(
    axes: Axes, curve: pd.DataFrame, arm: str, look: tuple[str, str], shift: float, band: bool
) -> None:
    colour, marker = look
    at_start = curve.loc[curve["t"] == 1, "at_risk"]
    label = f"{arm} ({int(curve['events'].sum())} of {int(at_start.sum())})"
    dashes = (0, (4, 2)) if "+ban" in arm.partition("/")[0] else "-"
    x = curve["t"] + shift
    if band:
        axes.fill_between(
            x, curve["ci_lo"], curve["ci_hi"], step="post", color=colour, alpha=0.12, linewidth=0
        )
    else:
        axes.errorbar(
            x, curve["survival"], yerr=whiskers(curve, "survival"), linestyle="none", color=colour, elinewidth=0.9,
            capsize=1.6, alpha=0.7, zorder=2,
        )  # fmt: skip
    axes.step(
        x, curve["survival"], where="post", color=colour, linestyle=dashes, marker=marker, markersize=4.5,
        linewidth=1.4, label=label, zorder=3,
    )  # fmt: skip
