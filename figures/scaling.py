"""Corrective gain against model size: does the backfiring shrink as models grow, and where would it end?

Reads scaling.csv (mean of G per model and environment, with its 95 % interval) and, where it is there,
scaling_fit.csv (least squares of G on log10 of the number of parameters). A line is drawn for a fit of at
least three models: solid over the sizes that were measured, dashed from there to where it crosses zero. The
bar on the zero line is the range of that crossing when each model is left out in turn. Ablation arms have panels of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import offset_copy

from figures import style
from figures.layout import LINE, arms, count, fold, foot, limits
from figures.load import MissingTable, read_arms, refuse_doubles

READS = {
    "scaling.csv": ("model", "n_parameters", "env", "measure", "mean", "ci_lo", "ci_hi", "n"),
    "scaling_fit.csv": (
        *("env", "group", "n_models", "slope", "intercept", "crossing_parameters", "loo_lo"),
        *("loo_hi", "note"),
    ),
}
"""Table → the columns that are read of it."""
MIN_MODELS = 3
COLUMNS = ("env", "model", "n_parameters", "mean", "ci_lo", "ci_hi", "n")
FIT = ("env", "group", "n_models", "slope", "intercept", "crossing_parameters", "loo_lo", "loo_hi", "note")
# Okabe and Ito's colours but for yellow, which is too light for a point; the shape tells the same.
_COLOURS = ("#111111", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8F98")
_SHAPES = "osD^vPX*"
_LINES = (style.TOTAL, style.SEM, style.COPY)  # all models, then families
_REACH = 100.0  # how many times beyond the measured sizes the axis goes to show a crossing
_EDGE = 1.6  # room beside the outermost points, as a factor


def scaling_numbers(scaling: pd.DataFrame) -> pd.DataFrame:
    """The columns `COLUMNS` of the measure G, by size within an environment.

    Raises:
        MissingTable: there are no rows of G with a number of parameters.
        FigureError: two rows of one model and environment.
    """
    rows = scaling[(scaling["measure"] == "G") & (scaling["n_parameters"] > 0)]
    if rows.empty:
        raise MissingTable("scaling.csv has no rows of the measure G with a number of parameters.")
    refuse_doubles(rows, "scaling.csv", ["model", "env"])
    parts = [group.sort_values(["n_parameters", "model"]) for _, group in rows.groupby("env", sort=False)]
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def drawn_fits(fits: pd.DataFrame) -> pd.DataFrame:
    """The fits that may be drawn, those of all models first: of three models or more, with a slope."""
    usable = fits[(fits["n_models"] >= MIN_MODELS) & fits["slope"].notna() & fits["intercept"].notna()]
    return usable.sort_values("group", key=lambda group: group != "all", kind="stable")[list(FIT)]


def draw_scaling(run: Path) -> list[Path]:
    """Write the figure `scaling`, a panel per environment; its csv has the points, then the drawn fits."""
    points = scaling_numbers(read_arms(run, "scaling.csv", READS, "env"))
    fitted = (run / "scaling_fit.csv").is_file()
    fits = read_arms(run, "scaling_fit.csv", READS, "env") if fitted else pd.DataFrame(columns=list(FIT))
    lines = drawn_fits(fits)
    groups = [(env, group) for env, group in points.groupby("env", sort=False)]
    looks = _looks(points)
    n_across = min(2, len(groups))
    n_down = -(-len(groups) // n_across)
    with style.styled():
        figure, panels = style.new_figure(3.7 * n_down + 0.17 * len(looks) / 3, n_down, n_across)
        for axes, (env, rows) in zip(panels, groups, strict=False):
            here = lines[lines["env"] == env]
            _draw_panel(axes, rows, here, looks)
            _legend(axes, _about(here, fits[fits["env"] == env], len(rows)), len(here), 92 // n_across)
            axes.set_title(f"{env}, {count(rows['n'])} items per model")
        for axes in panels[len(groups) :]:
            axes.set_axis_off()
        handles = [Line2D([], [], linewidth=LINE["linewidth"], **look) for look in looks.values()]
        about = "models by size; whiskers: 95 % interval"
        foot(figure, about, handles, list(looks), n_across=_names_across(looks))
        return style.save(figure, pd.concat([points, *([lines] if len(lines) else [])]), run, "scaling")


def _looks(points: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Colour and shape of each model, by size; after eight, colours meet other shapes."""
    models = points.sort_values("n_parameters", kind="stable")["model"].unique()
    n = len(_SHAPES)
    return {
        model: {"color": _COLOURS[(i + i // n) % n], "marker": _SHAPES[i % n], "markersize": 5.5}
        for i, model in enumerate(models)
    }


def _names_across(names: Iterable[str]) -> int:
    """How many names of this length fit side by side."""
    return int(np.clip(100 // (max(map(len, names)) + 8), 1, 4))


def _draw_panel(
    axes: Axes, rows: pd.DataFrame, lines: pd.DataFrame, looks: dict[str, dict[str, Any]]
) -> None:
    style.zero_line(axes)
    for model, look in looks.items():
        point = rows[rows["model"] == model]
        axes.errorbar(
            point["n_parameters"], point["mean"], yerr=arms(point), linestyle="none", zorder=4, **look, **LINE
        )
    axes.set_xscale("log")
    left, right = _ends(rows, lines)
    for place, fit in enumerate(lines.itertuples()):
        _draw_line(axes, rows, fit, (left, right), place)
    decades = np.log10(right / left)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlim=(left, right), ylim=limits(rows, margin=0.1))
    axes.set(xlabel="parameters (log scale)", ylabel="corrective gain G, nats per action")
    axes.grid(axis="y", color="#E3E5E8", linewidth=0.6)


def _ends(rows: pd.DataFrame, lines: pd.DataFrame) -> tuple[float, float]:
    """Ends of the size axis: the models, and as much of the crossings as is within reach."""
    low, high = float(rows["n_parameters"].min()), float(rows["n_parameters"].max())
    crossings = lines[["crossing_parameters", "loo_lo", "loo_hi"]].to_numpy(float)
    shown = crossings[np.isfinite(crossings) & (crossings > 0)].clip(low / _REACH, high * _REACH)
    return min([low, *shown]) / _EDGE, max([high, *shown]) * _EDGE


def _draw_line(axes: Axes, rows: pd.DataFrame, fit: Any, ends: tuple[float, float], place: int) -> None:
    """The fitted line, its crossing and the range of it; several fits' ranges lie one under the other."""
    colour = _LINES[place % len(_LINES)]
    sizes = _members(rows, fit.group)["n_parameters"]
    low, high = float(sizes.min()), float(sizes.max())
    parts: list[tuple[float, float, Any]] = [(low, high, "-")]
    crossing = float(np.clip(fit.crossing_parameters, *ends))
    if crossing > high or crossing < low:  # neither for NaN
        parts.append((high if crossing > high else low, crossing, (0, (4, 3))))
    for start, end, dashes in parts:
        values = [fit.intercept + fit.slope * np.log10(size) for size in (start, end)]
        axes.plot([start, end], values, color=colour, linestyle=dashes, linewidth=1.3, zorder=2)
    below = offset_copy(axes.transData, axes.get_figure(root=True), y=-5.0 * place, units="points")
    # A range without an upper end: the line without some model never reaches zero.
    reach = [fit.loo_lo, np.inf if np.isnan(fit.loo_hi) else fit.loo_hi]
    if not np.isnan(fit.loo_lo):
        axes.plot(
            np.clip(reach, *ends), [0, 0], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt",
            transform=below, zorder=2,
        )  # fmt: skip
        for beyond, end, marker in ((reach[0] < ends[0], ends[0], "<"), (reach[1] > ends[1], ends[1], ">")):
            if beyond:
                axes.plot(
                    [end], [0], color=colour, marker=marker, markersize=5, transform=below, clip_on=False, zorder=3
                )  # fmt: skip
    if ends[0] < fit.crossing_parameters < ends[1]:
        axes.plot(
            [crossing], [0], color=colour, marker="D", markersize=4.5, markerfacecolor="white",
            transform=below, zorder=3,
        )  # fmt: skip


def _members(rows: pd.DataFrame, group: str) -> pd.DataFrame:
    """The models that a line was fitted to: a family's names begin with its name, after the owner's."""
    names = rows["model"].str.rsplit("/", n=1).str[-1].str.lower()
    own = names.str.fullmatch(rf"{re.escape(group.lower())}([-_]\d+(\.\d+)?[mb]([^a-z0-9].*)?)?")
    return rows if group == "all" or not own.any() else rows[own]


def size_text(size: float) -> str:
    """A number of parameters as people write it: 135 M, 1.71 B."""
    for unit, name in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " K")):
        if unit <= size < 1000 * unit:
            return f"{size / unit:.3g}{name}"
    return f"{size:.3g}" if size < 1e3 else f"{size:.0e}"


def _about(lines: pd.DataFrame, fits: pd.DataFrame, n_models: int) -> list[str]:
    """One sentence per drawn line, or one that says why there is none."""
    if lines.empty:
        notes = fits.loc[fits["group"] == "all", "note"].dropna()
        few = f"{n_models} model{'s' * (n_models != 1)}: a line needs {MIN_MODELS}."
        return [few if n_models < MIN_MODELS else notes.iloc[0] if len(notes) else "No line was fitted."]
    return [_sentence(fit) for fit in lines.itertuples()]


def _sentence(fit: Any) -> str:
    """What a drawn line says: its slope, where it crosses zero, and between which sizes if one model is left out."""
    text = f"{fit.group} ({int(fit.n_models)} models): {fit.slope:+.1f} nats per decade".replace("-", "−")
    if not np.isnan(fit.crossing_parameters):
        text += f", zero at {size_text(fit.crossing_parameters)}"
    if not np.isnan(fit.loo_lo):
        end = "never" if np.isnan(fit.loo_hi) else size_text(fit.loo_hi)
        text += f" (one left out: {size_text(fit.loo_lo)} to {end})"
    return text if pd.isna(fit.note) else f"{text}; {fit.note}"


def _legend(axes: Axes, texts: list[str], drawn: int, width: int) -> None:
    """Under the panel: the sentences, each beside the look of its line if lines are drawn."""
    bare = drawn == 0
    handles = [
        Line2D([], [], linestyle="none" if bare else "-", linewidth=1.3, color=_LINES[i % len(_LINES)],
               label=fold(text, width))
        for i, text in enumerate(texts)
    ]  # fmt: skip
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, -0.17), borderaxespad=0, fontsize=7.5,
        **({"handlelength": 0, "handletextpad": 0} if bare else {"handlelength": 1.6}),
    )  # fmt: skip
