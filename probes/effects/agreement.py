"""Do head scores, frozen before any task data, rank heads as their causal effects do?

For one direction (noise or denoise), with x_h the score of head h and e_h its mean effect (nats) over items:

    spearman               correlation of the ranks of x and e, ties at their mean rank
    spearman_within_layer  the same within each layer, pooled (`probes.stats.ranks.layer_spearman`): scores and
                           effects that only lie in the same layers do not agree by it
    kendall                tau-b: (concordant − discordant pairs) / sqrt(pairs untied in x · pairs untied in e)
    recall                 |top k by x ∩ top k by e| / k; ties go to the lower layer, then head
    jaccard                |top k by x ∩ top k by e| / |their union|
    reliability            of the effects with themselves, without a score: one half of the tasks ranks heads as the
                           other does (Spearman; `_within_layer`; `_recall` among the top k). Mean over splits of
                           disjoint halves, and their range. A score cannot be expected to agree with effects better
                           than these agree with themselves

`chance` is the expectation if the score ordered heads at random: 0, k / heads for recall, and for jaccard that of a
hypergeometric overlap. `with` says in words what is agreed with, and `effects_nats` of `delta_nats` how much of the
difference the single effects sum up to. Mean effects rank heads as shares do (Σ effects / Σ delta,
`probes.effects.shares`) where Σ delta is positive.

Heads may be ranked perfectly by effects that hardly add up to anything: in noising each head alone does little, as
others stand in for it. A high agreement is not to be taken for more than it is (`Target`).

Intervals: 95 % percentile cluster bootstrap. Tasks are drawn with their items, the effects averaged and ranked anew in
each draw; scores stay as they are. All scores see the same draws. Fewer than six clusters give no interval. A
percentile interval of a rank statistic leans towards 0, as draws add noise to ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import rankdata

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RngFactory, percentile_ends
from probes.stats.frame_checks import item_columns, rectangle, require
from probes.stats.halves import ranking_reliability
from probes.stats.ranks import chance_jaccard, places_by_value, ratio

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
_NO_K = 0  # of the statistics that take all heads
_Key = tuple[str, str, int]
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
            one row an item, direction and head. With a column `set`, rows that name one (joint patches) are left
            aside. Where only some heads were patched, the agreement is over those, and `n_heads` says how many.
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
    single = effects[effects["set"].isna() | (effects["set"] == "")] if "set" in effects else effects
    require(
        single,
        ["item_id", "task_id", "direction", *_HEAD, "effect_nats", "delta"],
        ["item_id", "direction", *_HEAD],
    )
    lines: list[tuple[object, ...]] = []
    for direction, group in single.groupby("direction", sort=True):
        table = rectangle(group, _HEAD, "effect_nats")
        values = _scores_of(scores, chosen, table.columns)
        items = item_columns(group, table.index)
        tasks = items["task_id"]
        target = Target.of(str(direction), table, items["delta"])
        layers = table.columns.get_level_values("layer").to_numpy(int)
        sums, codes = table.to_numpy(float), np.unique(tasks.astype(str), return_inverse=True)[1]
        n_clusters = int(codes.max()) + 1
        clusters = np.zeros((n_clusters, sums.shape[1]))
        np.add.at(clusters, codes, sums)
        rng = rng_for(f"agreement/{direction}")
        taken = rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=n_draws)
        # Sums rank heads as means do: every head has the same items in a draw.
        found = _statistics(values, clusters.sum(0)[None], top, layers)
        drawn = _statistics(values, taken @ clusters, top, layers)
        counts = (len(table), n_clusters, sums.shape[1])
        for (name, statistic, k), estimates in found.items():
            cells = _interval(float(estimates[0]), drawn[name, statistic, k], n_clusters)
            about = (
                direction,
                name,
                statistic,
                k or math.nan,
                *cells[:3],
                _chance(statistic, k, sums.shape[1]),
            )
            lines.append((*about, *counts, cells[3], *target.cells()))
        splits = ranking_reliability(clusters, rng_for(f"reliability/{direction}"), layers, tuple(top))
        for (statistic, k), one in splits.items():
            name = reliability_name(statistic)
            range_of = (one.mean, one.lowest, one.highest, _chance(statistic, k, sums.shape[1]))
            about = (direction, "", name, k or math.nan, *range_of)
            lines.append((*about, *counts, one.n_splits == 0, *target.cells(half=True)))
    return pd.DataFrame(lines, columns=list(AGREEMENT))


def reliability_name(statistic: str) -> str:
    """What a statistic of one half with the other is called: reliability, with `_within_layer` or `_recall`."""
    return {"spearman": "reliability", "spearman_within_layer": "reliability_within_layer"}.get(
        statistic, f"reliability_{statistic}"
    )


def _chance(statistic: str, k: int, n_heads: int) -> float:
    """What a random order gives."""
    return {"jaccard": chance_jaccard(k, n_heads), "recall": k / n_heads}.get(statistic, 0.0) if k else 0.0


def between_scores(scores: pd.DataFrame, by: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """How alike scores rank heads: each of the others against the score `by`, in the columns of BETWEEN.

    Raises:
        InputError: there is no such score, or a number is missing.
    """
    chosen = _score_columns(scores, columns)
    if by not in scores.columns:
        raise InputError(f"There is no score '{by}' to compare with.")
    heads = pd.MultiIndex.from_frame(scores[_HEAD].sort_values(_HEAD))
    values = _scores_of(scores, list(dict.fromkeys([by, *chosen])), heads)
    others = {name: value for name, value in values.items() if name != by}
    found = _statistics(others, values[by][None], (), None)
    lines = [
        (
            by,
            name,
            *(float(found[name, statistic, _NO_K][0]) for statistic in ("spearman", "kendall")),
            len(heads),
        )
        for name in others
    ]
    return pd.DataFrame(lines, columns=list(BETWEEN))


def _statistics(
    values: dict[str, Float[np.ndarray, " head"]],
    effects: Float[np.ndarray, "draw head"],
    top: Sequence[int],
    layers: Int[np.ndarray, " head"] | None,
) -> dict[_Key, Float[np.ndarray, " draw"]]:
    """(score, statistic, k) → its value in each draw of effects."""
    found: dict[_Key, Float[np.ndarray, " draw"]] = {}
    ranks = rankdata(effects, axis=1)
    taus = _kendall(np.stack(list(values.values())), effects) if values else np.empty((0, len(effects)))
    sizes = [k for k in top if 1 <= k <= effects.shape[1]]
    places = places_by_value(effects)
    within = _layer_ranks(effects, layers) if layers is not None else []
    for index, (name, value) in enumerate(values.items()):
        found[name, "spearman", _NO_K] = _correlation(rankdata(value), ranks)
        if layers is not None:
            found[name, "spearman_within_layer", _NO_K] = _within_layers(value, within, len(effects))
        found[name, "kendall", _NO_K] = taus[index]
        own = places_by_value(value[None])
        for k in sizes:
            common = ((own < k) & (places < k)).sum(axis=1)
            found[name, "recall", k] = common / k
            found[name, "jaccard", k] = common / (2 * k - common)
    return found


def _layer_ranks(
    effects: Float[np.ndarray, "draw head"], layers: Int[np.ndarray, " head"]
) -> list[tuple[Int[np.ndarray, " _"], Float[np.ndarray, "draw _"]]]:
    """Of every layer of three heads or more: which heads are its own, and their ranks in each draw."""
    own = [np.flatnonzero(layers == layer) for layer in np.unique(layers)]
    return [(heads, rankdata(effects[:, heads], axis=1)) for heads in own if len(heads) > 2]


def _within_layers(
    value: Float[np.ndarray, " head"],
    within: Sequence[tuple[Int[np.ndarray, " _"], Float[np.ndarray, "draw _"]]],
    n_draws: int,
) -> Float[np.ndarray, " draw"]:
    """As `probes.stats.ranks.layer_spearman`, of one score with many draws."""
    total, weight = np.zeros(n_draws), np.zeros(n_draws)
    for heads, ranks in within:
        found = _correlation(rankdata(value[heads]), ranks)
        known = ~np.isnan(found)
        total[known] += (len(heads) - 1) * found[known]
        weight[known] += len(heads) - 1
    return ratio(total, weight)


def _correlation(
    one: Float[np.ndarray, " head"], many: Float[np.ndarray, "draw head"]
) -> Float[np.ndarray, " draw"]:
    """Pearson's correlation of `one` with each row of `many`; NaN where either does not vary."""
    a, b = one - one.mean(), many - many.mean(axis=1, keepdims=True)
    return ratio(b @ a, np.sqrt((a @ a) * (b * b).sum(axis=1)))


def _kendall(
    values: Float[np.ndarray, "score head"], effects: Float[np.ndarray, "draw head"]
) -> Float[np.ndarray, "score draw"]:
    """Tau-b of each score with each draw of effects; NaN where either does not vary."""
    low, high = np.triu_indices(values.shape[1], 1)
    own = np.sign(values[:, low] - values[:, high]).astype(np.float32)
    out = np.empty((len(values), len(effects)))
    for block in _blocks(len(effects), max(1, len(low))):
        signs = np.sign(effects[block][:, low] - effects[block][:, high]).astype(np.float32)
        untied = np.outer((own != 0).sum(axis=1), (signs != 0).sum(axis=1)).astype(float)
        out[:, block] = ratio((own @ signs.T).astype(float), np.sqrt(untied))
    return out


def _blocks(n: int, width: int) -> Iterator[slice]:
    step = max(1, _MAX_CELLS // width)
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


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
) -> dict[str, Float[np.ndarray, " head"]]:
    """The scores of these heads, in their order; raises InputError for a head without one or with two."""
    table = scores.set_index(_HEAD)[list(columns)]
    if table.index.has_duplicates:
        layer, head = table.index[table.index.duplicated()][0]
        raise InputError(f"L{layer}H{head} stands twice among the head scores.")
    lacking = [key for key in heads if key not in table.index]
    if lacking:
        raise InputError(f"L{lacking[0][0]}H{lacking[0][1]} was patched and has no score.")
    chosen = table.loc[list(heads)]
    for name in columns:
        wrong = ~np.isfinite(chosen[name].to_numpy(float))
        if wrong.any():
            layer, head = chosen.index[wrong][0]
            raise InputError(f"The score {name} of L{layer}H{head} is no finite number.")
    return {name: chosen[name].to_numpy(float) for name in columns}
