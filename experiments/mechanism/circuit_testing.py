"""Found sets where they were not found: shares of every kind in every metric, controls, completeness, minimality.

A found set is tested in all of `probes.scoring.contrast.FORMS`; its control sets too, by the criterion. The excess
over a kind of control is paired: each item's effect of the set, less the mean of its effects under the control sets,
over the mean difference. Its test (`excess_p`) is over clusters and is what Holm's correction is of; `p` only ranks
the set among so many control sets, and cannot be less than 1 / (m + 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.heads.control_sets import NamedSet, random_sets
from experiments.mechanism.circuit_values import Evaluations, ItemSet
from experiments.run.frames import in_schema
from experiments.run.schema import TABLES
from mech.heads import Head, HeadSet
from mech.models.model import Model
from mech.patching.circuits import CRITERIA as KINDS
from mech.patching.circuits import Criterion as Kind
from probes.effects.circuit import (
    against_random,
    completeness_gaps,
    minimality,
    pooled,
    random_subsets,
    shares,
    without,
)
from probes.effects.circuit_search import Found
from probes.scoring.contrast import FORMS
from probes.stats.bootstrap import Interval, RngFactory
from probes.stats.families import corrected
from probes.stats.frame_checks import MIN_DELTA

GRID = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
BAND_SIZES = (4, 16, 64)
BAND_DRAWS = 5
"""Random sets for each size of the curve's band, which is measured at BAND_SIZES and at the size found."""
RANDOM = "random"
FEWEST_CONTROLS = 19
"""Control sets below which a rank among them cannot reach p = .05; it is NaN then."""


@dataclass(frozen=True)
class Testing:
    """The found sets and what they are tested with.

    Attributes:
        evaluations: exact effects.
        kind: the criterion.
        target: the share that was looked for.
        found: method → what it found.
        controls: method → kind of control → its sets.
        subsets: method → random subsets of the circuit, the empty one first.
        rng_for: streams of the intervals.
        level: the clusters that intervals resample (task, template or system).
    """

    evaluations: Evaluations
    kind: Kind
    target: float
    found: Mapping[str, Found]
    controls: Mapping[str, Mapping[str, Sequence[NamedSet]]]
    subsets: Mapping[str, Sequence[HeadSet]]
    rng_for: RngFactory
    level: str = "task"

    def intervals(
        self, test: ItemSet, kind: Kind, sets: Sequence[HeadSet], metric: str, stream: str
    ) -> list[Interval]:
        """Each set's share in a metric, with intervals over the clusters."""
        effects = self.evaluations.effects(test, kind, sets, metric)
        deltas = self.evaluations.deltas(test, metric)
        least = MIN_DELTA if metric in SUMS else 0.0
        return shares(effects, deltas, test.clusters(self.level), self.rng_for(stream), min_delta=least)


SUMS = tuple(name for name in FORMS if not name.endswith("_per_token"))


def circuit_tables(testing: Testing, tests: Sequence[ItemSet]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """circuit.csv, a line a method, test set and metric, and circuit_controls.csv, one a kind of control as well.

    Controls are evaluated by the criterion, and not on training items, where the set was chosen to beat them. A metric
    is of the items that it is defined for.
    """
    lines: list[tuple[object, ...]] = []
    beside: list[tuple[object, ...]] = []
    for at, test in enumerate(tests):
        training = at == 0
        _ensure(testing, test, training)
        for metric in FORMS:
            items = testing.evaluations.defined(test, metric)
            if not items.items:
                continue
            lines += _shares_of_found(testing, items, metric)
            beside += [] if training else _beside_controls(testing, items, metric)
    table = pd.DataFrame(lines, columns=[name for name in TABLES["circuit"] if name not in _FROM_CONTROLS])
    columns = [name for name in TABLES["circuit_controls"] if name not in ("p_holm", "family_size")]
    controls = corrected(pd.DataFrame(beside, columns=columns), "circuit", "excess_p")
    ours = controls[controls["control"] == RANDOM].rename(columns={"control_mean": "random_mean"})
    keys = ["method", "test_set", "metric"]
    found = table.merge(
        ours[[*keys, *(name for name in _FROM_CONTROLS if name in ours)]], on=keys, how="left"
    )
    found["n_controls"] = found["n_controls"].fillna(0).astype(int)
    return found.reindex(columns=list(TABLES["circuit"])), in_schema("circuit_controls", controls)


_FROM_CONTROLS = (
    *("random_mean", "percentile", "p", "n_controls", "displaced"),
    *("excess", "excess_p", "p_holm", "family_size", "completeness_mean", "completeness_worst"),
)
"""The columns of circuit.csv that are not of the found set alone."""


def _ensure(testing: Testing, test: ItemSet, training: bool) -> None:
    """Compute every candidate under every found set, and its controls by the criterion."""
    listed = [found.set for found in testing.found.values()]
    wanted: dict[Kind, list[HeadSet]] = {kind: list(listed) for kind in KINDS}
    if not training:
        wanted[testing.kind] += [
            one.heads for kinds in testing.controls.values() for sets in kinds.values() for one in sets
        ]
    testing.evaluations.ensure(test, wanted, f"test on {test.label}", every=True)


def _shares_of_found(testing: Testing, test: ItemSet, metric: str) -> list[tuple[object, ...]]:
    sets = {method: found.set for method, found in testing.found.items()}
    intervals = {
        kind: testing.intervals(test, kind, list(sets.values()), metric, f"circuit/{test.label}/{kind}")
        for kind in KINDS
    }
    delta = float(testing.evaluations.deltas(test, metric).mean())
    lines: list[tuple[object, ...]] = []
    for index, (method, heads) in enumerate(sets.items()):
        each = [intervals[kind][index] for kind in KINDS]
        cells = [value for one in each for value in (one.mean, one.lo, one.hi)]
        about = (method, testing.kind, testing.target, len(heads), str(heads), testing.found[method].reached)
        lines.append((*about, test.label, metric, *cells, each[0].n, each[0].n_clusters, delta))
    return lines


def _beside_controls(testing: Testing, test: ItemSet, metric: str) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = []
    for method, found in testing.found.items():
        [own] = testing.intervals(
            test, testing.kind, [found.set], metric, f"circuit/{test.label}/{testing.kind}"
        )
        for control, sets in testing.controls[method].items():
            drawn = [one.heads for one in sets]
            each = _shares(testing.evaluations, test, testing.kind, drawn, metric) if drawn else []
            rank = against_random(own.mean, each)
            lowest, highest = (min(each), max(each)) if each else (math.nan, math.nan)
            excess = _excess(testing, test, found.set, drawn, metric, control)
            displaced = sum(one.displaced for one in sets) / len(sets) if sets else math.nan
            ratios = [one.ratio for one in sets if one.ratio is not None]
            ratio = sum(ratios) / len(ratios) if ratios else math.nan
            size = sum(len(one.heads) for one in sets) / len(sets) if sets else math.nan
            p = rank.p if len(each) >= FEWEST_CONTROLS else math.nan
            about = (method, testing.kind, len(found.set), test.label, metric, control, own.mean)
            beside = (
                rank.random_mean,
                lowest,
                highest,
                len(each),
                size,
                displaced,
                ratio,
                rank.percentile,
                p,
            )
            cells = (excess.mean, excess.lo, excess.hi, excess.p, own.n, own.n_clusters)
            lines.append((*about, *beside, *cells))
    return lines


def _excess(
    testing: Testing, test: ItemSet, heads: HeadSet, drawn: Sequence[HeadSet], metric: str, control: str
) -> Interval:
    """What the set recovers beyond the mean of its controls, as a share, paired by item."""
    deltas = testing.evaluations.deltas(test, metric)
    labels = test.clusters(testing.level)
    rng = testing.rng_for(f"circuit/{test.label}/{testing.kind}/excess/{control}")
    if not drawn:
        return Interval(math.nan, math.nan, math.nan, len(deltas), len(set(labels)), math.nan, True)
    own = testing.evaluations.effects(test, testing.kind, [heads], metric)[:, 0]
    others = testing.evaluations.effects(test, testing.kind, drawn, metric).mean(axis=1)
    least = MIN_DELTA if metric in SUMS else 0.0
    return shares((own - others)[:, None], deltas, labels, rng, min_delta=least)[0]


def completeness_table(testing: Testing, test: ItemSet) -> pd.DataFrame:
    """circuit_completeness.csv: one line a method and subset K of its circuit; `subset` 0 is the empty one.

    `circuit_left` is F(C ∖ K), `model_left` F(M ∖ K), gap their distance: shares of the mean delta.
    """
    left = {m: [without(testing.found[m].set, k) for k in testing.subsets[m]] for m in testing.found}
    wanted: dict[Kind, list[HeadSet]] = {
        "faithfulness": [heads for sets in left.values() for heads in sets],
        "necessity": [heads for sets in testing.subsets.values() for heads in sets],
    }
    testing.evaluations.ensure(test, wanted, "completeness")
    lines = []
    for method, subsets in testing.subsets.items():
        alone = _shares(testing.evaluations, test, "faithfulness", left[method])
        removed = _shares(testing.evaluations, test, "necessity", subsets)
        for index, (heads, gap) in enumerate(zip(subsets, completeness_gaps(alone, removed), strict=True)):
            lines.append((method, test.label, index, len(heads), str(heads), *gap))
    columns = ["method", "test_set", "subset", "k_removed", "removed", "circuit_left", "model_left", "gap"]
    return pd.DataFrame(lines, columns=columns)


def heads_table(
    testing: Testing, training: ItemSet, test: ItemSet, scores: Mapping[Head, float]
) -> pd.DataFrame:
    """circuit_heads.csv: each head of each found set, in the order chosen; cost is measured on the test items.

    `alone` is the share of the head by itself on the training items, by the criterion, and `sign` its sign: a
    suppression head has −1.
    """
    out: dict[str, list[HeadSet]] = {
        method: [without(found.set, HeadSet([head])) for head in found.heads]
        for method, found in testing.found.items()
    }
    whole = [found.set for found in testing.found.values()]
    testing.evaluations.ensure(
        test, {testing.kind: [*whole, *(one for sets in out.values() for one in sets)]}, "minimality"
    )
    lines = []
    for method, found in testing.found.items():
        [share] = _shares(testing.evaluations, test, testing.kind, [found.set])
        rest = _shares(testing.evaluations, test, testing.kind, out[method])
        costs = minimality(share, dict(zip(found.heads, rest, strict=True)))
        alone = _shares(
            testing.evaluations, training, testing.kind, [HeadSet([head]) for head in found.heads]
        )
        for order, (head, single) in enumerate(zip(found.heads, alone, strict=True), start=1):
            cost, spare = costs[head]
            sign = int(np.sign(single))
            lines.append((method, head.layer, head.head, order, cost, spare, scores[head], single, sign))
    return pd.DataFrame(lines, columns=list(TABLES["circuit_heads"]))


def curve_table(
    testing: Testing, sides: Sequence[ItemSet], orders: Mapping[str, Sequence[Head]], model: Model
) -> pd.DataFrame:
    """circuit_curve.csv: share by criterion and metric against size, and the range of random sets, on these items.

    Args:
        testing: as everywhere here.
        sides: the training items, then those held out; the random sets are drawn for the latter only.
        orders: method → heads in order; prefixes of GRID's sizes are measured, and all of them.
        model: whose heads the random sets come from; they match the layers of the first order's prefixes.
    """
    lines: list[tuple[object, ...]] = []
    metric = testing.evaluations.metric
    sizes = {
        method: sorted(
            {size for size in GRID if size < len(order)} | {len(order), len(testing.found[method].heads)}
        )
        for method, order in orders.items()
    }
    sets = {m: [HeadSet(order[:size]) for size in sizes[m]] for m, order in orders.items()}
    for test in sides:
        testing.evaluations.ensure(
            test, {testing.kind: [one for each in sets.values() for one in each]}, "curve"
        )
        deltas = testing.evaluations.deltas(test)
        for method in orders:
            effects = testing.evaluations.effects(test, testing.kind, sets[method])
            rng = testing.rng_for(f"circuit/curve/{test.label}/{method}")
            found = shares(effects, deltas, test.clusters(testing.level), rng)
            for size, one in zip(sizes[method], found, strict=True):
                lines.append((method, test.label, metric, size, one.mean, one.lo, one.hi, one.n))
    first = next(iter(orders))
    band = {*BAND_SIZES, len(testing.found[first].heads)}
    for size, heads in zip(sizes[first], sets[first], strict=True):
        if size not in band:
            continue
        drawn = [one.heads for one in random_sets(model, heads, BAND_DRAWS, testing.rng_for)]
        if drawn:
            each = _shares(testing.evaluations, sides[-1], testing.kind, drawn)
            mean = math.fsum(each) / len(each)
            row = ("random", sides[-1].label, metric, size, mean, min(each), max(each), len(sides[-1].items))
            lines.append(row)
    return pd.DataFrame(lines, columns=list(TABLES["circuit_curve"]))


def subsets_of(found: Mapping[str, Found], n: int, rng_for: RngFactory) -> dict[str, list[HeadSet]]:
    """Method → the empty set and n random subsets of what it found."""
    return {
        method: random_subsets(one.set, n, rng_for(f"circuit/subsets/{one.set.sha256}"))
        for method, one in found.items()
    }


def _shares(
    evaluations: Evaluations, test: ItemSet, kind: Kind, sets: Sequence[HeadSet], metric: str | None = None
) -> list[float]:
    """Shares of the mean delta, without intervals; NaN where it is too small to divide by."""
    deltas = evaluations.deltas(test, metric)
    effects = evaluations.effects(test, kind, sets, metric)
    least = MIN_DELTA if metric is None or metric in SUMS else 0.0
    mean = abs(float(deltas.mean()))
    return [math.nan] * len(sets) if mean < least or not mean else pooled(effects, deltas)
