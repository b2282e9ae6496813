"""Found sets where they were not found: shares of every kind, random controls, completeness, minimality, curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.circuit_values import Evaluations, ItemSet
from mech.circuits import KINDS, Kind
from mech.controls import Control, distinct_controls
from mech.heads import Head, HeadSet
from mech.model import Model
from probes.circuit import (
    against_random,
    completeness_gaps,
    minimality,
    pooled,
    random_subsets,
    shares,
    without,
)
from probes.circuit_search import Found
from probes.effects import MIN_DELTA
from probes.stats import RngFactory

GRID = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
BAND_SIZES = (4, 16, 64)
BAND_DRAWS = 5
"""Random sets for each size of the curve's band, which is measured at BAND_SIZES and at the size found."""


@dataclass(frozen=True)
class Testing:
    """The found sets and what they are tested with.

    Attributes:
        evaluations: exact effects.
        kind: the criterion.
        target: the share that was looked for.
        found: method → what it found.
        controls: method → random layer-matched sets of the same size.
        subsets: method → random subsets of the circuit, the empty one first.
        rng_for: streams of the intervals.
    """

    evaluations: Evaluations
    kind: Kind
    target: float
    found: Mapping[str, Found]
    controls: Mapping[str, Sequence[Control]]
    subsets: Mapping[str, Sequence[HeadSet]]
    rng_for: RngFactory


def random_sets(model: Model, heads: HeadSet, n: int, rng_for: RngFactory) -> list[Control]:
    """Random sets with as many heads in each layer; none where more than half of all heads are selected."""
    if 2 * len(heads) > model.n_layers * model.n_heads:
        return []
    return distinct_controls(heads, model.n_layers, model.n_heads, n, rng_for)


def circuit_table(testing: Testing, tests: Sequence[ItemSet]) -> pd.DataFrame:
    """circuit.csv: one line a method and test set; see `experiments.schema`.

    Controls are evaluated by the criterion, and not on training items, where the set was chosen to beat them.
    """
    lines = []
    for at, test in enumerate(tests):
        training = at == 0
        sets = {method: found.set for method, found in testing.found.items()}
        listed = list(sets.values())
        controls = [] if training else [one.heads for drawn in testing.controls.values() for one in drawn]
        wanted: dict[Kind, list[HeadSet]] = {kind: list(listed) for kind in KINDS}
        wanted[testing.kind] += controls
        testing.evaluations.ensure(test, wanted, f"test on {test.label}")
        deltas = testing.evaluations.deltas(test)
        intervals = {
            kind: shares(
                testing.evaluations.effects(test, kind, listed),
                deltas,
                test.tasks,
                testing.rng_for(f"circuit/{test.label}/{kind}"),
            )
            for kind in KINDS
        }
        for index, (method, heads) in enumerate(sets.items()):
            cells: list[object] = []
            for kind in KINDS:
                one = intervals[kind][index]
                cells += [one.mean, one.lo, one.hi]
            found = intervals[testing.kind][index]
            drawn = [] if training else _controls(testing, test, method)
            beside = against_random(found.mean, drawn)
            reached = testing.found[method].reached
            about = (method, testing.kind, testing.target, len(heads), str(heads), reached, test.label)
            counts = (found.n, found.n_clusters, float(deltas.mean()))
            random = (
                beside.random_mean,
                beside.percentile,
                beside.p,
                beside.n_controls,
                _displaced(testing.controls[method], drawn),
            )
            lines.append((*about, *cells, *counts, *random))
    shown = [f"{kind}{end}" for kind in KINDS for end in ("", "_lo", "_hi")]
    names = ["method", "criterion", "target", "k", "heads", "reached", "test_set", *shown]
    sizes = ["n", "n_clusters", "delta_nats", "random_mean", "percentile", "p", "n_controls", "displaced"]
    return pd.DataFrame(lines, columns=[*names, *sizes])


def _displaced(controls: Sequence[Control], drawn: Sequence[float]) -> float:
    """How many heads of a random set stand, on the mean, in another layer than the one they are matched to.

    Where a circuit has most heads of a layer, its controls have the few others and neighbours: they hardly differ.
    """
    return sum(one.displaced for one in controls) / len(controls) if drawn else math.nan


def _controls(testing: Testing, test: ItemSet, method: str) -> list[float]:
    drawn = [one.heads for one in testing.controls[method]]
    if not drawn:
        return []
    return _shares(testing.evaluations, test, testing.kind, drawn)


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

    `alone` is the share of the head by itself on the training items, by the criterion, and `sign` its sign: a head that
    holds copying back has −1.
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
    columns = ["method", "layer", "head", "order", "cost", "spare", "prefix_matching", "alone", "sign"]
    return pd.DataFrame(lines, columns=columns)


def curve_table(
    testing: Testing, sides: Sequence[ItemSet], orders: Mapping[str, Sequence[Head]], model: Model
) -> pd.DataFrame:
    """circuit_curve.csv: share by the criterion against size, and the range of random sets, on these items.

    Args:
        testing: as everywhere here.
        sides: the training items, then those held out; the random sets are drawn for the latter only.
        orders: method → heads in order; prefixes of GRID's sizes are measured, and all of them.
        model: whose heads the random sets come from; they match the layers of the first order's prefixes.
    """
    lines: list[tuple[object, ...]] = []
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
            for size, one in zip(sizes[method], shares(effects, deltas, test.tasks, rng), strict=True):
                lines.append((method, test.label, size, one.mean, one.lo, one.hi, one.n))
    first = next(iter(orders))
    band = {*BAND_SIZES, len(testing.found[first].heads)}
    for size, heads in zip(sizes[first], sets[first], strict=True):
        if size not in band:
            continue
        drawn = [one.heads for one in random_sets(model, heads, BAND_DRAWS, testing.rng_for)]
        if drawn:
            found = _shares(testing.evaluations, sides[-1], testing.kind, drawn)
            mean = math.fsum(found) / len(found)
            row = ("random", sides[-1].label, size, mean, min(found), max(found), len(sides[-1].items))
            lines.append(row)
    return pd.DataFrame(lines, columns=["method", "test_set", "k", "share", "ci_lo", "ci_hi", "n"])


def subsets_of(found: Mapping[str, Found], n: int, rng_for: RngFactory) -> dict[str, list[HeadSet]]:
    """Method → the empty set and n random subsets of what it found."""
    return {
        method: random_subsets(one.set, n, rng_for(f"circuit/subsets/{one.set.sha256}"))
        for method, one in found.items()
    }


def _shares(evaluations: Evaluations, test: ItemSet, kind: Kind, sets: Sequence[HeadSet]) -> list[float]:
    """Shares of the mean delta, without intervals; NaN where it is too small to divide by."""
    deltas = evaluations.deltas(test)
    effects = evaluations.effects(test, kind, sets)
    return [math.nan] * len(sets) if abs(float(deltas.mean())) < MIN_DELTA else pooled(effects, deltas)
