"""G against the number of parameters: one table of many models, a line through it, and where it would be zero.

    G = intercept + slope · log10(parameters)      least squares, unweighted; slope in nats per decade
    crossing = 10 ^ (−intercept / slope)           the number of parameters at which the line reaches G = 0

A crossing beyond the largest model is an extrapolation. It is refused for fewer than three models, does not exist
where the slope is not above zero (G then does not rise with size), and is never shown without its range when one
model is left out. With three models each of those lines has two, which the note says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import linregress

from mech.errors import InputError
from probes.stats.frame_checks import require_columns
from probes.stats.summaries import check_summary

ALL = "all"
MIN_MODELS = 3  # a line through two points fits any two models
MAX_DECADES = 300.0  # a crossing of more digits is no number a table can hold

_SIZE = re.compile(r"(?P<family>.+?)[-_]\d+(?:\.\d+)?[mb](?![a-z0-9])")


@dataclass(frozen=True)
class Line:
    """A least-squares line on log10(parameters); `r2` is NaN where it says nothing (two models, or equal means)."""

    n_models: int
    slope: float
    intercept: float
    r2: float

    @property
    def crossing(self) -> float:
        """The number of parameters at which the line reaches zero from below; NaN if it never does."""
        if not self.slope > 0:
            return math.nan
        decades = -self.intercept / self.slope
        return 10.0**decades if decades <= MAX_DECADES else math.nan


def scaling_table(summaries: Sequence[pd.DataFrame], parameters: Mapping[str, float]) -> pd.DataFrame:
    """All measures of all models in one table.

    Args:
        summaries: summary tables of one or more runs.
        parameters: model → its number of parameters.

    Returns:
        model, n_parameters, env, measure, mean, ci_lo, ci_hi, n, n_clusters, by environment, measure and size.

    Raises:
        InputError: a summary lacks a column or a number, two of them have the same model, environment and measure,
            or a model has no number of parameters.
    """
    checked = [check_summary(summary, "The summary") for summary in summaries]
    if not checked:
        return pd.DataFrame()
    table = check_summary(pd.concat(checked, ignore_index=True), "The summaries together")
    for model in table["model"].unique():
        if not (model in parameters and math.isfinite(parameters[model]) and parameters[model] > 0):
            raise InputError(f"The number of parameters of {model} is not known: give one above 0.")
    table["n_parameters"] = table["model"].map({name: float(count) for name, count in parameters.items()})
    return table.sort_values(["env", "measure", "n_parameters", "model"], ignore_index=True)


def fit_scaling(table: pd.DataFrame, measure: str = "G") -> pd.DataFrame:
    """A line through all models of each environment, and through each family that has two or more.

    Args:
        table: what `scaling_table` returns.
        measure: whose means are fitted.

    Returns:
        env, group, n_models, slope, intercept, r2, crossing_parameters, loo_lo, loo_hi, note; `note` says in words
        what is not there, and why.

    Raises:
        InputError: a column is missing.
    """
    require_columns(table, ("model", "n_parameters", "env", "measure", "mean"), "The scaling table lacks")
    lines = []
    for env, models in table[table["measure"] == measure].groupby("env", sort=True):
        lines.append(_fit(str(env), ALL, models))
        families = models.groupby(models["model"].map(family), sort=True)
        lines += [_fit(str(env), str(name), group) for name, group in families if len(group) >= 2]
    return pd.DataFrame(lines)


def family(model: str) -> str:
    """The part of a model's name before its size: `smollm2-135m-q4` is of the family `smollm2`."""
    name = model.rsplit("/", 1)[-1].lower()
    found = _SIZE.match(name)
    return found["family"] if found else name


def fit_line(parameters: Sequence[float], means: Sequence[float]) -> Line:
    """Least squares of means on log10(parameters).

    Raises:
        InputError: there are not two different sizes.
    """
    if len(set(parameters)) < 2:
        raise InputError("A line needs models of at least two sizes.")
    x, y = np.log10(np.asarray(parameters, dtype=float)), np.asarray(means, dtype=float)
    if np.ptp(y) == 0:
        return Line(len(y), 0.0, float(y[0]), math.nan)
    found = linregress(x, y)
    r2 = float(found.rvalue) ** 2 if len(y) > 2 else math.nan
    return Line(len(y), float(found.slope), float(found.intercept), r2)


def leave_one_out(parameters: Sequence[float], means: Sequence[float]) -> list[float]:
    """The crossing of the line through all models but one, for each; NaN where that line has none, or is none.

    Raises:
        InputError: there are fewer than three models.
    """
    if len(parameters) < MIN_MODELS:
        raise InputError(f"Leaving one out takes {MIN_MODELS} models or more, not {len(parameters)}.")
    crossings = []
    for at in range(len(parameters)):
        sizes, values = ([*numbers[:at], *numbers[at + 1 :]] for numbers in (parameters, means))
        crossings.append(fit_line(sizes, values).crossing if len(set(sizes)) > 1 else math.nan)
    return crossings


def _fit(env: str, group: str, models: pd.DataFrame) -> dict[str, object]:
    """One line of the table of fits."""
    sizes, means = models["n_parameters"].tolist(), models["mean"].tolist()
    count = len(models)
    numbers = ("slope", "intercept", "r2", "crossing_parameters", "loo_lo", "loo_hi")
    nothing = {"env": env, "group": group, "n_models": count, **dict.fromkeys(numbers, math.nan)}
    if len(set(sizes)) < 2:
        note = f"{_count(count)} of one size: no line" if count > 1 else "1 model: no line"
        return {**nothing, "note": note}
    line = fit_line(sizes, means)
    fitted = {**nothing, "slope": line.slope, "intercept": line.intercept, "r2": line.r2}
    if count < MIN_MODELS:
        return {**fitted, "note": f"{_count(count)}: no crossing is extrapolated from fewer than 3"}
    notes = []
    if not line.slope > 0:
        notes.append("the slope is not above 0: no crossing")
    elif math.isnan(line.crossing):
        notes.append("the slope is too near 0 for a crossing")
    others = leave_one_out(sizes, means)
    without = [name for name, one in zip(models["model"], others, strict=True) if math.isnan(one)]
    if without:
        notes.append(f"none without {', '.join(without)}")
    elif count == MIN_MODELS:
        notes.append("each leave-one-out line has 2 models")
    known = [one for one in others if not math.isnan(one)]
    lowest = min(known) if known else math.nan
    highest = max(others) if not without else math.nan  # with no crossing the range has no upper end
    ends = {"crossing_parameters": line.crossing, "loo_lo": lowest, "loo_hi": highest}
    return {**fitted, **ends, "note": "; ".join(notes)}


def _count(number: int) -> str:
    return f"{number} model{'' if number == 1 else 's'}"
