"""From ablated heads to dose curves, the share of Δcopy removed, and the test against control heads.

    share removed    (mean of the unablated model − mean under ablation) / mean of the unablated model
    p of a set       (b + 1) / (m + 1): b of the m controls of its size and kind remove as much or more
    area             mean height of a dose curve over k = 0 … largest k (trapezoids, k linear; `dose_areas`)

Shares are NaN, and flagged, where the mean of the unablated model is too small to divide by. Intervals:
`probes.stats.bootstrap`, with tasks as clusters. All rows are of one model and one environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_ratios
from probes.stats.frame_checks import (
    MIN_DELTA,
    SHARE_CELLS,
    column_means,
    item_columns,
    rectangle,
    require,
    require_known,
    share_cells,
)
from probes.stats.ranks import spearman

ABLATION = ("set", "kind", "k", "measure", "mean", "ci_lo", "ci_hi", "n")
DOSE = (
    *("measure", "control", "k_max", "n_sizes", "area", "ci_lo", "ci_hi", "trend"),
    *("control_mean", "control_lo", "control_hi", "n_controls", "p", "percentile"),
    *("n", "n_clusters", "flagged"),
)
DRAWN = ("random", "norm", "damage", "direction")
SINGLE_CONTROLS = ("previous_token", "sink", "complement")
CONTROLS = (*DRAWN, *SINGLE_CONTROLS)
"""Kinds of control (`experiments.heads.control_sets` says what each is; direction: the selected heads, moved as far
in a random direction). Those that are not drawn are one set a size, among which a p would say nothing: it is NaN. `k`
of a control is that of the set it controls, whatever its own size."""
SET_KINDS = ("none", "selected", *CONTROLS)

_SET = ["k", "kind", "set"]
_ROW = ("set", "kind", "k", "item_id", "task_id", "measure", "value")


def dose_curve(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Mean of each measure under each ablated set of heads.

    Args:
        rows: set (a label), kind (one of SET_KINDS), k (heads ablated), item_id, task_id,
            measure, value.
        rng_for: gives the stream `dose/MEASURE`; all sets see the same draws.
        n_draws: bootstrap draws.

    Returns:
        The columns of `ABLATION`, by measure, then k, kind and set.

    Raises:
        InputError: a column or number is missing, a value occurs twice, a kind is unknown, or a
            measure was taken on different items under different sets.
    """
    check_ablated(rows)
    lines = []
    for measure, group in rows.groupby("measure", sort=True):
        sets, found = column_means(group, _SET, "value", rng_for(f"dose/{measure}"), n_draws)
        for (k, kind, label), dose in zip(sets, found, strict=True):
            lines.append((label, kind, int(k), measure, *dose.cells, dose.n))
    return pd.DataFrame(lines, columns=list(ABLATION))


def share_removed(
    rows: pd.DataFrame,
    rng_for: RngFactory,
    measure: str = "copy",
    n_draws: int = N_DRAWS,
    min_delta: float = MIN_DELTA,
) -> pd.DataFrame:
    """Share of a measure that ablating a set removes: 1 − mean under ablation / mean of the unablated model.

    Args:
        rows: as `dose_curve`, with exactly one set of kind `none`.
        rng_for: gives the stream `removed/MEASURE`.
        measure: whose mean is divided.
        n_draws: bootstrap draws.
        min_delta: a mean of the unablated model below this (absolute) is too small to divide by.

    Returns:
        set, kind, k, share, ci_lo, ci_hi, effect_nats (mean removed), n, n_clusters, flagged.

    Raises:
        InputError: as `dose_curve`, or the measure or the unablated model is not in the rows.
    """
    check_ablated(rows)
    base, ablated, tasks = against_unablated(rows, measure)
    removed = base - ablated.to_numpy(float)
    over = np.repeat(base, ablated.shape[1], axis=1)
    found = cluster_ratios(removed, over, tasks, rng_for(f"removed/{measure}"), n_draws)
    small = abs(float(base.mean())) < min_delta
    lines = [
        (label, kind, int(k), *share_cells(share, small, float(effect)))
        for (k, kind, label), share, effect in zip(ablated.columns, found, removed.mean(axis=0), strict=True)
    ]
    return pd.DataFrame(lines, columns=["set", "kind", "k", *SHARE_CELLS])


def against_unablated(
    rows: pd.DataFrame, measure: str
) -> tuple[Float[np.ndarray, "item 1"], pd.DataFrame, pd.Series]:
    """A measure of the unablated model, under every set (items down, columns k, kind and set), and the items' tasks.

    Raises:
        InputError: the measure or the unablated model is not in the rows, or the items of the sets differ.
    """
    group = rows[rows["measure"] == measure]
    values = rectangle(group, _SET, "value") if len(group) else pd.DataFrame()
    unablated = [column for column in values.columns if column[1] == "none"]
    if len(unablated) != 1:
        raise InputError(f"The change of '{measure}' needs one set of kind none, not {len(unablated)}.")
    tasks = item_columns(group, values.index)["task_id"]
    return values[unablated].to_numpy(float), values.drop(columns=unablated), tasks


def against_controls(removed: pd.DataFrame) -> pd.DataFrame:
    """Each selected set against the control sets of its size, kind by kind: one-sided p = (b + 1) / (m + 1).

    Args:
        removed: what `share_removed` returns.

    Returns:
        set, k, share, random_mean, random_lo, random_hi (mean and extremes of the controls), n_controls, p, control
        (their kind; random where there is none), percentile (of 100 controls, how many remove less). With m controls p
        is never below 1 / (m + 1); p and percentile are NaN where there is no control, of SINGLE_CONTROLS, or where a
        share is undefined.
    """
    kinds = _kinds_of_controls(removed)
    lines = []
    for _, selected in removed[removed["kind"] == "selected"].iterrows():
        for kind in kinds:
            same = (removed["kind"] == kind) & (removed["k"] == selected["k"])
            controls = removed[same]["share"]
            cells = _among_kind(kind, float(selected["share"]), controls.to_numpy(float))
            lines.append((selected["set"], int(selected["k"]), selected["share"], *cells[:5], kind, cells[5]))
    names = ["share", "random_mean", "random_lo", "random_hi", "n_controls", "p", "control", "percentile"]
    return pd.DataFrame(lines, columns=["set", "k", *names])


def _kinds_of_controls(removed: pd.DataFrame) -> list[str]:
    """The kinds of control in the rows; the first of CONTROLS where there is none."""
    return [kind for kind in CONTROLS if (removed["kind"] == kind).any()] or [CONTROLS[0]]


FEWEST_DRAWN = 19
"""Control sets below which the smallest p, 1 / (m + 1), is above .05: there is none."""


def among(
    value: float, controls: Float[np.ndarray, " control"]
) -> tuple[float, float, float, int, float, float]:
    """Mean, extremes and number of the controls, p of as much or more among them, percentile of the value."""
    m = len(controls)
    if m == 0 or np.isnan(controls).any() or math.isnan(value):
        return (math.nan,) * 3 + (m, math.nan, math.nan)
    # With fewer than 19 sets p cannot reach .05.
    p = (int((controls >= value).sum()) + 1) / (m + 1) if m >= FEWEST_DRAWN else math.nan
    spread = (float(controls.mean()), float(controls.min()), float(controls.max()))
    return (*spread, m, p, 100 * float((controls < value).mean()))


def _among_kind(
    kind: str, value: float, controls: Float[np.ndarray, " control"]
) -> tuple[float, float, float, int, float, float]:
    """As `among`, without p and percentile for a kind that is not drawn."""
    cells = among(value, controls)
    return cells if kind in DRAWN else (*cells[:4], math.nan, math.nan)


def dose_areas(
    rows: pd.DataFrame,
    rng_for: RngFactory,
    measures: Sequence[str] = ("copy", "G"),
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """The dose curve of the selected heads as one number, against the curves of the controls.

    With s(k) the share of the measure's mean that the best k heads remove (s(0) = 0), the area is the mean height of
    s over 0 … the largest k (trapezoids, k linear). The controls of one draw, over all sizes, are one curve; a draw
    that was not made at every size (a large set has fewer controls) is none, and is not among `n_controls`.

    Args:
        rows: as `share_removed`; the label of a control ends in /DRAW, the same word for one draw at every size.
        rng_for: gives the stream `area/MEASURE`; all curves see the same draws.
        measures: those whose share is taken.
        n_draws: bootstrap draws.

    Returns:
        The columns of DOSE, a row a measure and kind of control. `trend`: Spearman's correlation of share and k, the
        unablated model at k = 0 among the points; NaN with one size. p and percentile as `against_controls`.

    Raises:
        InputError: as `share_removed`.
    """
    lines = []
    for measure in measures:
        removed = share_removed(rows, rng_for, measure, n_draws)
        sizes, curves = _curves(removed)
        steps = np.diff([0, *sizes])
        weights = (steps + np.append(steps[1:], 0)) / 2 / sizes[-1]
        base, ablated, tasks = against_unablated(rows, measure)
        own = base - ablated.droplevel(["k", "kind"], axis=1)[curves["selected", ""]["set"]].to_numpy(float)
        rng = rng_for(f"area/{measure}")
        [found] = cluster_ratios((own @ weights)[:, None], base, tasks, rng, n_draws)
        areas = {key: float(curve["share"].to_numpy(float) @ weights) for key, curve in curves.items()}
        area = areas["selected", ""]
        known = (found.lo, found.hi) if not math.isnan(area) else (math.nan, math.nan)
        trend = _trend(sizes, curves["selected", ""]["share"].to_numpy(float))
        for kind in _kinds_of_controls(removed):
            controls = np.array([area for (of, _), area in areas.items() if of == kind])
            about = (measure, kind, sizes[-1], len(sizes), area, *known, trend)
            cells = (*_among_kind(kind, area, controls), *found.counts)
            lines.append((*about, *cells, found.degenerate or math.isnan(area)))
    return pd.DataFrame(lines, columns=list(DOSE))


def _curves(removed: pd.DataFrame) -> tuple[list[int], dict[tuple[str, str], pd.DataFrame]]:
    """The sizes, ascending, and (kind, draw) → its sets in that order, of draws at every size; selected: no draw."""
    draws = removed["set"].str.rpartition("/")[2].where(removed["kind"] != "selected", "")
    curves = {key: curve.sort_values("k") for key, curve in removed.groupby([removed["kind"], draws])}
    if ("selected", "") not in curves:
        raise InputError("A dose curve needs a selected set of heads.")
    sizes = curves["selected", ""]["k"].tolist()
    return sizes, {key: curve for key, curve in curves.items() if curve["k"].tolist() == sizes}


def _trend(sizes: Sequence[int], shares: Float[np.ndarray, " size"]) -> float:
    """Rank correlation of share and size with (0, 0) among the points; NaN where there is no trend to speak of."""
    if len(sizes) < 2 or np.isnan(shares).any():
        return math.nan
    return float(spearman(np.array([[0.0, *sizes]]), np.array([[0.0, *shares]]))[0])


def check_ablated(rows: pd.DataFrame) -> None:
    """Refuse ablation rows that could only give a wrong curve."""
    require(rows, _ROW, ["set", "kind", "k", "item_id", "measure"])
    require_known(rows["kind"], SET_KINDS, "a kind of head set", f"write {', '.join(SET_KINDS)}")
