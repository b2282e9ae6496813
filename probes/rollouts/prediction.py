"""Does a measure taken before a step predict whether the step repeats: area under the ROC curve, and calibration.

    AUC    P(a repeat scores above a non-repeat) + ½ P(they tie), over all such pairs of decision points: Mann &
           Whitney's U / (n₁ n₀), Hanley & McNeil 1982. A predictor that is low before repeats has an AUC below ½.
    Brier  mean of (probability − outcome)², 0 the best; always saying the base rate b has b (1 − b)
    ECE    Σ over bins of n / N |mean predicted − observed share|: expected calibration error

Intervals are percentile cluster bootstraps over tasks. A draw is a weight w for each task, and its AUC is w·A·w /
(w·n₁)(w·n₀) with A[c, d] the won pairs of repeats of task c against non-repeats of task d, so all draws are one matrix
product. Draws without a repeat, or with nothing else, have no AUC: they are dropped and counted; more than MAX_DROPPED
of them and there is no interval.

Bins hold equal numbers of points, not equal widths: repeat probabilities crowd at both ends, and bins of fixed width
would be empty in the middle. Equal probabilities are never divided, so there may be fewer bins than asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata

from mech.errors import InputError
from probes.stats.bootstrap import (
    MAX_DROPPED,
    MIN_CLUSTERS,
    N_DRAWS,
    RATE,
    RngFactory,
    cluster_bootstrap,
    cluster_codes,
    draw_clusters,
    percentile_ends,
)
from probes.stats.frame_checks import require_columns
from probes.stats.layout import UNABLATED

N_BINS = 10
_GROUP = ("model", "env", "arm")
_BIN = ("bin", "predicted", "observed", "ci_lo", "ci_hi", "n", "n_clusters")


@dataclass(frozen=True)
class Auc:
    """An area under the ROC curve with its interval; flagged: there is none, or all draws are the same."""

    auc: float
    lo: float
    hi: float
    n: int
    n_repeats: int
    n_clusters: int
    n_dropped: int
    flagged: bool


def auc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of (repeat, no repeat) pairs in which the repeat has the higher score, ties ½; NaN without a pair.

    Raises:
        InputError: a label is neither 0 nor 1, or there are not as many labels as scores.
    """
    numbers, repeats = _checked(scores, labels)
    n_one, n_zero = int(repeats.sum()), int((~repeats).sum())
    if n_one == 0 or n_zero == 0 or np.isnan(numbers).any():
        return math.nan
    ranks = rankdata(numbers)
    return float((ranks[repeats].sum() - n_one * (n_one + 1) / 2) / (n_one * n_zero))


def clustered_auc(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
    level: float = 0.95,
) -> Auc:
    """AUC over decision points with its expanded percentile interval (`probes.stats.bootstrap.percentile_ends`).

    Args:
        scores: one number a point; NaN makes the AUC NaN.
        labels: 1 for a repeat, 0 for none.
        clusters: one label a point, its task.
        rng: the stream of this statistic.
        n_draws: bootstrap draws.
        level: coverage of the interval.

    Raises:
        InputError: as `auc`, or a point has no cluster.
    """
    numbers, repeats = _checked(scores, labels)
    codes, n_clusters = cluster_codes(clusters, len(numbers))
    estimate = auc(numbers, repeats)
    interval = _interval(estimate, [numbers], repeats, (codes, n_clusters), rng, n_draws, level)
    lo, hi, n_dropped, flagged = interval
    return Auc(estimate, lo, hi, len(numbers), int(repeats.sum()), n_clusters, n_dropped, flagged)


def _interval(
    estimate: float,
    scores: Sequence[Float[np.ndarray, " point"]],
    repeats: Bool[np.ndarray, " point"],
    clusters: tuple[Int[np.ndarray, " point"], int],
    rng: np.random.Generator,
    n_draws: int,
    level: float = 0.95,
) -> tuple[float, float, int, bool]:
    """Ends of the interval of an AUC, or of the first AUC less the second; draws dropped; flagged."""
    codes, n_clusters = clusters
    if math.isnan(estimate) or n_clusters < MIN_CLUSTERS:
        return math.nan, math.nan, 0, True
    won, *others = (_won_pairs(numbers, repeats, codes, n_clusters) for numbers in scores)
    for less in others:
        won = won - less
    sizes = np.stack([np.bincount(codes[mark], minlength=n_clusters) for mark in (repeats, ~repeats)], axis=1)
    counts = draw_clusters(n_clusters, rng, n_draws)
    pairs = (counts @ sizes).prod(axis=1)
    wins = ((counts @ won) * counts).sum(axis=1)
    draws = wins[pairs > 0] / pairs[pairs > 0]
    n_dropped = n_draws - len(draws)
    if n_dropped > MAX_DROPPED * n_draws:
        return math.nan, math.nan, n_dropped, True
    return (*percentile_ends(draws, n_clusters, level), n_dropped, bool(np.ptp(draws) <= 1e-12))


def calibration(
    probabilities: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    clusters: npt.ArrayLike,
    rng: np.random.Generator,
    bins: int = N_BINS,
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """Mean predicted probability and observed share of each bin of (nearly) equal numbers of points.

    Returns:
        bin (0 the lowest), predicted, observed, ci_lo, ci_hi (of the observed share, within the bin's points), n,
        n_clusters.

    Raises:
        InputError: a probability is not between 0 and 1, or as `auc`; fewer than one bin.
    """
    numbers, repeats = _checked(probabilities, outcomes, probability=True)
    places = _bins(numbers, bins)
    tasks = np.asarray(clusters, dtype=object)
    cluster_codes(tasks, len(numbers))
    lines = []
    for place in np.unique(places):
        inside = places == place
        found = cluster_bootstrap(repeats[inside], tasks[inside], rng, n_draws, bounds=RATE)
        predicted = float(numbers[inside].mean())
        lines.append((int(place), predicted, *found.cells, *found.counts))
    return pd.DataFrame(lines, columns=list(_BIN))


def brier(probabilities: npt.ArrayLike, outcomes: npt.ArrayLike) -> float:
    """Mean squared distance of probability and outcome; NaN of no point.

    Raises:
        InputError: as `calibration`.
    """
    numbers, repeats = _checked(probabilities, outcomes, probability=True)
    return float(((numbers - repeats) ** 2).mean()) if len(numbers) else math.nan


def expected_calibration_error(
    probabilities: npt.ArrayLike, outcomes: npt.ArrayLike, bins: int = N_BINS
) -> float:
    """Mean over points of |mean predicted − observed share| of their bin; NaN of no point.

    Raises:
        InputError: as `calibration`.
    """
    numbers, repeats = _checked(probabilities, outcomes, probability=True)
    if not len(numbers):
        return math.nan
    gaps = np.bincount(
        _bins(numbers, bins), weights=numbers - repeats
    )  # n (predicted − observed) of each bin
    return float(np.abs(gaps).sum() / len(numbers))


def predict_table(
    points: pd.DataFrame,
    predictors: Sequence[str],
    probabilities: Sequence[str],
    rng_for: RngFactory,
    bins: int = N_BINS,
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """How well each predictor tells repeats from other steps, in each arm.

    Args:
        points: one row a decision point: model, env, arm, task_id, repeats (0 or 1) and a column a predictor.
        predictors: columns to judge; a point where one is NaN is left out of it and counted.
        probabilities: those of them that are probabilities, which have a Brier score and a calibration error too.
        rng_for: gives the streams `predict/MODEL/ENV/ARM/PREDICTOR`.
        bins: of the calibration error.
        n_draws: bootstrap draws.

    Returns:
        model, env, arm, predictor, auc, ci_lo, ci_hi, n, n_repeats, n_clusters, n_undefined, n_dropped, flagged, brier,
        ece; brier and ece are empty for what is no probability.

    Raises:
        InputError: a column is missing, or as `clustered_auc` and `calibration`.
    """
    _require(points, [*predictors, *probabilities])
    lines = []
    for group, rows in points.groupby(list(_GROUP), sort=False):
        for name in predictors:
            known = rows[rows[name].notna()]
            rng = rng_for("/".join(("predict", *map(str, group), name)))
            found = clustered_auc(known[name], known["repeats"], known["task_id"], rng, n_draws)
            errors = {"brier": math.nan, "ece": math.nan}
            if name in probabilities:
                pair = (known[name], known["repeats"])
                errors = {"brier": brier(*pair), "ece": expected_calibration_error(*pair, bins)}
            lines.append(
                {
                    **dict(zip((*_GROUP, "predictor"), (*group, name), strict=True)),
                    **{"auc": found.auc, "ci_lo": found.lo, "ci_hi": found.hi, "n": found.n},
                    **{"n_repeats": found.n_repeats, "n_clusters": found.n_clusters},
                    **{"n_undefined": len(rows) - len(known), "n_dropped": found.n_dropped},
                    **{"flagged": found.flagged, **errors},
                }
            )
    return pd.DataFrame(lines)


def auc_differences(
    points: pd.DataFrame, predictors: Sequence[str], rng_for: RngFactory, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """The AUC of each predictor taken under an ablation less that of the unablated model, on the same decision points.

    Both AUCs of a draw are of the same clusters, so what is common to the two cancels.

    Args:
        points: as `predict_table`, with step (what both have in common) and ablation ("none": the unablated model).
        predictors: columns to judge; over the points that have it under both.
        rng_for: gives the streams `predict_arms/MODEL/ENV/ARM/PREDICTOR/ABLATION`.
        n_draws: bootstrap draws.

    Returns:
        model, env, arm, predictor, ablation, auc, auc_whole, difference, ci_lo, ci_hi, n, n_repeats, n_clusters,
        n_dropped, flagged; no interval (flagged) where `clustered_auc` has none.

    Raises:
        InputError: a column is missing, or as `clustered_auc`.
    """
    _require(points, [*predictors, "step", "ablation"])
    lines = []
    for group, rows in points.groupby(list(_GROUP), sort=False):
        unablated = rows[rows["ablation"] == UNABLATED].set_index("step")
        for label, changed in rows[rows["ablation"] != UNABLATED].groupby("ablation", sort=False):
            other = changed.set_index("step")
            for name in predictors:
                both = pd.DataFrame({"one": other[name], "zero": unablated[name]}).dropna()
                about = unablated.loc[both.index]
                rng = rng_for("/".join(("predict_arms", *map(str, group), name, str(label))))
                found = _auc_difference(both, about["repeats"], about["task_id"], rng, n_draws)
                names = dict(zip((*_GROUP, "predictor", "ablation"), (*group, name, label), strict=True))
                lines.append({**names, **found})
    return pd.DataFrame(lines)


def _auc_difference(
    both: pd.DataFrame, labels: pd.Series, clusters: pd.Series, rng: np.random.Generator, n_draws: int
) -> dict[str, float | int | bool]:
    """The columns of one line from auc to flagged."""
    codes, n_clusters = cluster_codes(clusters, len(both))
    (one, repeats), (zero, _) = (_checked(both[name], labels) for name in ("one", "zero"))
    areas = [auc(numbers, repeats) for numbers in (one, zero)]
    difference = areas[0] - areas[1]
    found = _interval(difference, [one, zero], repeats, (codes, n_clusters), rng, n_draws)
    lo, hi, n_dropped, flagged = found
    return {
        **{"auc": areas[0], "auc_whole": areas[1], "difference": difference, "ci_lo": lo, "ci_hi": hi},
        **{"n": len(both), "n_repeats": int(repeats.sum()), "n_clusters": n_clusters},
        **{"n_dropped": n_dropped, "flagged": flagged},
    }


def calibration_table(
    points: pd.DataFrame,
    probabilities: Sequence[str],
    rng_for: RngFactory,
    bins: int = N_BINS,
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """`calibration` of each probability in each arm, on the points that have it.

    Returns:
        model, env, arm, predictor, bin, predicted, observed, ci_lo, ci_hi, n, n_clusters; streams
        `calibration/MODEL/ENV/ARM/PREDICTOR`.

    Raises:
        InputError: as `predict_table`.
    """
    _require(points, probabilities)
    tables = [pd.DataFrame()]
    for group, rows in points.groupby(list(_GROUP), sort=False):
        for name in probabilities:
            known = rows[rows[name].notna()]
            rng = rng_for("/".join(("calibration", *map(str, group), name)))
            table = calibration(known[name], known["repeats"], known["task_id"], rng, bins, n_draws)
            names = dict(zip((*_GROUP, "predictor"), (*group, name), strict=True))
            tables.append(table.assign(**names))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def _won_pairs(
    scores: Float[np.ndarray, " point"],
    repeats: Bool[np.ndarray, " point"],
    codes: Int[np.ndarray, " point"],
    n_clusters: int,
) -> Float[np.ndarray, "cluster cluster"]:
    """[c, d]: pairs of a repeat of c and a non-repeat of d that the repeat wins, ties ½."""
    won = np.zeros((n_clusters, n_clusters))
    for other in range(n_clusters):
        against = np.sort(scores[~repeats & (codes == other)])
        below, up_to = (np.searchsorted(against, scores[repeats], side) for side in ("left", "right"))
        np.add.at(won[:, other], codes[repeats], (below + up_to) / 2)
    return won


def _bins(probabilities: Float[np.ndarray, " point"], bins: int) -> Int[np.ndarray, " point"]:
    """Number of each point's bin, from 0 without gaps: by its mid-rank, which equal probabilities share."""
    if bins < 1:
        raise InputError(f"A calibration curve needs at least one bin, not {bins}.")
    middle = (rankdata(probabilities) - 0.5) / max(len(probabilities), 1)
    return np.unique(np.floor(middle * bins), return_inverse=True)[1]


def _checked(
    scores: npt.ArrayLike, labels: npt.ArrayLike, probability: bool = False
) -> tuple[Float[np.ndarray, " point"], Bool[np.ndarray, " point"]]:
    numbers, marks = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    if numbers.shape != marks.shape:
        raise InputError(f"There are {len(numbers)} scores and {len(marks)} outcomes; each point needs both.")
    if not np.isin(marks, (0.0, 1.0)).all():
        raise InputError("The outcome of a point is 0 or 1 (it repeats).")
    if probability and not ((numbers >= 0) & (numbers <= 1)).all():
        raise InputError("A probability lies between 0 and 1.")
    return numbers, marks.astype(bool)


def _require(points: pd.DataFrame, more: Sequence[str]) -> None:
    require_columns(points, [*_GROUP, "task_id", "repeats", *more], "The decision points lack")
