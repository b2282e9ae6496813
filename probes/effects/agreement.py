"""Do head scores, frozen before any task data, rank heads as their causal effects do?

For one direction (noise or denoise), the scores x of heads beside their mean effects e (nats) over items:

    spearman, spearman_within_layer, recall, jaccard
                   of x and e, as `probes.stats.ranks` defines them; ties go to the lower layer, then head
    kendall        tau-b: (concordant − discordant pairs) / sqrt(pairs untied in x · pairs untied in e)
    reliability    of the effects with themselves, without a score: one half of the tasks ranks heads as the other does
                   (Spearman; `_within_layer`; `_recall` among the top k). Mean over splits of disjoint halves, and
                   their range: a score cannot be expected to agree with effects better than these with themselves

`chance` is the expectation if the score ordered heads at random. `with` says in words what is agreed with, and
`effects_nats` of `delta_nats` how much of the difference the single effects sum to. Mean effects rank heads as shares
do (Σ effects / Σ delta, `probes.effects.shares`) where Σ delta is positive. Heads may be ranked perfectly by effects
that hardly sum to anything: in noising each head alone does little, as others compensate for it.

Intervals: 95 % percentile cluster bootstrap. Tasks are drawn with their items, the effects averaged and ranked anew in
each draw; scores stay as they are. All scores see the same draws. Fewer than six clusters give no interval. A
percentile interval of a rank statistic leans towards 0, as draws add noise to ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from mech.errors import InputError
from probes.effects.shares import single_patches
from probes.stats.bootstrap import (
    N_DRAWS,
    RngFactory,
    cluster_codes,
    cluster_sums,
    draw_clusters,
    percentile_ends,
)
from probes.stats.frame_checks import item_columns, rectangle, require
from probes.stats.ranks import NO_K, chance, rank_statistics, ranking_reliability, ratio

AGREED_WITH = ("with", "effects_nats", "delta_nats")
UNITS = {"z": "head", "mlp_out": "MLP"}
_NAMES = {"noise": "noising", "denoise": "denoising"}
AGREEMENT = (
    *("direction", "score", "statistic", "k", "estimate", "ci_lo", "ci_hi", "chance"),
    *("n", "n_clusters", "n_heads", "flagged", *AGREED_WITH),
)
BETWEEN = ("score", "other", "spearman", "kendall", "n_heads")
TOP = (4, 8, 16, 32)
_HEAD = ["layer", "head"]
_Key = tuple[str, int]
_MAX_CELLS = 4_000_000  # draws × pairs held at once: 16 MB in float32


@dataclass(frozen=True)
class Target:
    """Exact effects of single units in one direction: their mean sum over items, and the mean difference (nats)."""

    direction: str
    unit: str
    effects_nats: float
    delta_nats: float

    @classmethod
    def of(cls, direction: str, effects: pd.DataFrame, deltas: pd.Series, unit: str = "head") -> Target:
        """From effects [item, unit] and each item's difference."""
        return cls(direction, unit, float(effects.sum(axis=1).mean()), float(deltas.mean()))

    def __str__(self) -> str:
        return (
            f"exact single-{self.unit} {_NAMES[self.direction]}, sum of effects {self.effects_nats:.1f} of "
            f"{self.delta_nats:.1f} nats"
        )

    def cells(self, half: bool = False) -> tuple[str, float, float]:
        """The cells of AGREED_WITH; `half`: the agreement is of one half of the clusters with the other."""
        return (f"the other half: {self}" if half else str(self), self.effects_nats, self.delta_nats)


def agreement(
    scores: pd.DataFrame,
    effects: pd.DataFrame,
    rng_for: RngFactory,
    columns: Sequence[str] | None = None,
    top: Sequence[int] = TOP,
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """Rank agreement of every score with the causal effects, direction by direction.

    Args:
        scores: one row a head: layer, head, and a column a score.
        effects: item_id, task_id (the cluster), direction, layer, head, effect_nats, delta (the item's difference);
            one row an item, direction and head. With a column `set`, rows that name one (joint patches) are not
            read. Where only some heads were patched, the agreement is over those, and `n_heads` says how many.
        rng_for: gives the streams `agreement/DIRECTION` and `reliability/DIRECTION`.
        columns: the scores to compare; None takes every numeric column but layer, head, selected.
        top: the k of the overlaps; those above the number of heads are left out.
        n_draws: bootstrap draws.

    Returns:
        The columns of AGREEMENT: k is NaN but for jaccard and recall; n counts items, n_clusters tasks. `flagged`:
        there is no interval (fewer than six clusters), it has no width, or a score that is the same for all heads
        ranks nothing (NaN). Of a reliability the score is empty and the ends are the range of the splits.

    Raises:
        InputError: a column or number is missing, a head has no score or two, items were patched on unequal heads.
    """
    chosen = _score_columns(scores, columns)
    single = single_patches(effects)
    require(
        single,
        ["item_id", "task_id", "direction", *_HEAD, "effect_nats", "delta"],
        ["item_id", "direction", *_HEAD],
    )
    lines: list[tuple[object, ...]] = []
    for direction, group in single.groupby("direction", sort=True):
        table = rectangle(group, _HEAD, "effect_nats")
        n_heads = table.shape[1]
        values = _scores_of(scores, chosen, table.columns)
        items = item_columns(group, table.index)
        target = Target.of(str(direction), table, items["delta"])
        layers = table.columns.get_level_values("layer").to_numpy(int)
        codes, n_clusters = cluster_codes(items["task_id"], len(table))
        clusters = cluster_sums(table.to_numpy(float), codes, n_clusters)
        taken = draw_clusters(n_clusters, rng_for(f"agreement/{direction}"), n_draws)
        # Sums rank heads as means do: every head has the same items in a draw.
        found = _statistics(values, clusters.sum(0)[None], top, layers)
        drawn = _statistics(values, taken @ clusters, top, layers)
        counts = (len(table), n_clusters, n_heads)
        for index, name in enumerate(chosen):
            for (statistic, k), estimates in found.items():
                cells = _interval(float(estimates[index, 0]), drawn[statistic, k][index], n_clusters)
                about = (direction, name, statistic, k or math.nan, *cells[:3], chance(statistic, k, n_heads))
                lines.append((*about, *counts, cells[3], *target.cells()))
        splits = ranking_reliability(clusters, rng_for(f"reliability/{direction}"), layers, top)
        for (statistic, k), one in splits.items():
            range_of = (one.mean, one.lowest, one.highest, chance(statistic, k, n_heads))
            about = (direction, "", reliability_name(statistic), k or math.nan, *range_of)
            lines.append((*about, *counts, one.n_splits == 0, *target.cells(half=True)))
    return pd.DataFrame(lines, columns=list(AGREEMENT))


def reliability_name(statistic: str) -> str:
    """What a statistic of one half with the other is called: reliability, with `_within_layer` or `_recall`."""
    return "reliability" + f"_{statistic}".replace("_spearman", "")


def between_scores(scores: pd.DataFrame, by: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """How alike scores rank heads: each of the others against the score `by`, in the columns of BETWEEN.

    Raises:
        InputError: there is no such score, or a number is missing.
    """
    chosen = _score_columns(scores, columns)
    if by not in scores.columns:
        raise InputError(f"There is no score '{by}' to compare with.")
    heads = pd.MultiIndex.from_frame(scores[_HEAD].sort_values(_HEAD))
    others = [name for name in chosen if name != by]
    [reference, *values] = _scores_of(scores, [by, *others], heads)
    found = _statistics(np.array(values).reshape(-1, len(heads)), reference[None])
    rho, tau = (found[name, NO_K][:, 0].tolist() for name in ("spearman", "kendall"))
    lines = [(by, *cells, len(heads)) for cells in zip(others, rho, tau, strict=True)]
    return pd.DataFrame(lines, columns=list(BETWEEN))


def _statistics(
    values: Float[np.ndarray, "score head"],
    effects: Float[np.ndarray, "draw head"],
    top: Sequence[int] = (),
    layers: Int[np.ndarray, " head"] | None = None,
) -> dict[_Key, Float[np.ndarray, "score draw"]]:
    """(statistic, k) → its value for each score in each draw of effects."""
    found = rank_statistics(values[:, None], effects, top, layers)
    found["kendall", NO_K] = _kendall(values, effects)
    return dict(sorted(found.items(), key=lambda one: one[0][1] > 0))  # those of all heads first


def _kendall(
    values: Float[np.ndarray, "score head"], effects: Float[np.ndarray, "draw head"]
) -> Float[np.ndarray, "score draw"]:
    """Tau-b of each score with each draw of effects; NaN where either does not vary."""
    low, high = np.triu_indices(values.shape[1], 1)
    own = np.sign(values[:, low] - values[:, high]).astype(np.float32)
    out = np.empty((len(values), len(effects)))
    step = max(1, _MAX_CELLS // max(1, len(low)))
    for start in range(0, len(effects), step):
        block = effects[start : start + step]
        signs = np.sign(block[:, low] - block[:, high]).astype(np.float32)
        untied = np.outer((own != 0).sum(axis=1), (signs != 0).sum(axis=1)).astype(float)
        out[:, start : start + step] = ratio((own @ signs.T).astype(float), np.sqrt(untied))
    return out


def _interval(
    estimate: float, draws: Float[np.ndarray, " draw"], n_clusters: int
) -> tuple[float, float, float, bool]:
    """The estimate, the ends of its 95 % interval, and whether that is none or has no width."""
    if math.isnan(estimate):
        return estimate, math.nan, math.nan, True
    lo, hi = percentile_ends(draws, n_clusters)
    return estimate, lo, hi, math.isnan(lo) or lo == hi


def _score_columns(scores: pd.DataFrame, columns: Sequence[str] | None) -> list[str]:
    missing = [name for name in (*_HEAD, *(columns or ())) if name not in scores.columns]
    if missing:
        raise InputError(f"The head scores lack the column {missing[0]}.")
    if columns is not None:
        return list(columns)
    numeric = scores.select_dtypes("number").columns
    return [name for name in numeric if name not in (*_HEAD, "selected")]


def _scores_of(
    scores: pd.DataFrame, columns: Sequence[str], heads: pd.MultiIndex
) -> Float[np.ndarray, "score head"]:
    """The scores of these heads, in their order; raises InputError for a head without one or with two."""
    table = scores.set_index(_HEAD)[list(columns)]
    if table.index.has_duplicates:
        layer, head = table.index[table.index.duplicated()][0]
        raise InputError(f"L{layer}H{head} occurs twice among the head scores.")
    require_scores(table, heads)
    chosen = table.loc[list(heads)]
    for name in columns:
        wrong = ~np.isfinite(chosen[name].to_numpy(float))
        if wrong.any():
            layer, head = chosen.index[wrong][0]
            raise InputError(f"The score {name} of L{layer}H{head} is no finite number.")
    return chosen.to_numpy(float).T


def require_scores(scores: pd.DataFrame, heads: Iterable[tuple[int, int]]) -> None:
    """Raise InputError where one of the heads is not in the index (layer, head) of the scores."""
    lacking = [key for key in heads if key not in scores.index]
    if lacking:
        raise InputError(f"L{lacking[0][0]}H{lacking[0][1]} was patched and has no score.")
