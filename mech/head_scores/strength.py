"""Matched-strength control sets: heads that write as much as the selected ones and hardly match prefixes.

    eligible    not selected, and below the median of all heads in every score given: prefix matching, where nothing
                else selected (below the median in `copying` as well is as good as random: half of all heads are at 0)
    matched     for each selected head, in an order drawn at random, one of the NEAREST eligible heads of its layer by
                |log(norm / norm of the selected head)|, drawn at random; no head twice
    displaced   where the layer has none left, the nearest layer that has: counted
    ratio       Σ norms of the control / Σ norms of the selected set: near 1, or the match is poor

An unmatched random head may do nothing because it writes nothing; these write. Norms: `mech.head_scores.norms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mech.errors import InputError
from mech.head_scores.norms import HeadNorms
from mech.heads import Head, HeadSet

LOW_IN = ("prefix_matching",)
NEAREST = 3
"""How many of the nearest in norm a match is drawn from: one would give the same control in every draw."""


@dataclass(frozen=True)
class StrengthControl:
    """A control set; `displaced` counts heads of another layer than the one they stand for, `ratio` as above."""

    heads: HeadSet
    displaced: int
    ratio: float


def low_heads(scores: pd.DataFrame, columns: Sequence[str] = LOW_IN) -> HeadSet:
    """The heads below the median of all heads in every one of these scores.

    Args:
        scores: layer, head and a column a score; one row a head.
        columns: which scores.

    Raises:
        InputError: a score is missing.
    """
    missing = [name for name in ("layer", "head", *columns) if name not in scores.columns]
    if missing:
        raise InputError(f"The head scores lack the column {missing[0]}, which a strength control needs.")
    low = (scores[list(columns)] < scores[list(columns)].median()).all(axis=1)
    return HeadSet(Head(int(row.layer), int(row.head)) for row in scores[low].itertuples())


def strength_matched(
    selected: HeadSet, eligible: HeadSet, norms: HeadNorms, rng: np.random.Generator
) -> StrengthControl:
    """Draw a control of the selected heads' output norms among the eligible heads; see the module.

    Raises:
        InputError: fewer heads are eligible than selected.
    """
    free = [head for head in eligible if head not in selected]
    if len(free) < len(selected):
        raise InputError(
            f"{len(free)} heads score low enough to control {len(selected)} selected ones by strength: "
            "select fewer, or leave 'norm' out of --control-kinds."
        )
    drawn: list[Head] = []
    displaced = 0
    # First what a layer can give its own, so that no neighbour takes it.
    order = [selected.heads[place] for place in rng.permutation(len(selected))]
    for own_layer in (True, False):
        left: list[Head] = []
        for head in order:
            layer = head.layer if own_layer else _nearest_layer(free, head.layer)
            candidates = [other for other in free if other.layer == layer]
            if not candidates:
                left.append(head)
                continue
            chosen = _draw(candidates, norms, norms.of(head), rng)
            free.remove(chosen)
            drawn.append(chosen)
        if own_layer:
            order, displaced = left, len(left)
    ratio = sum(map(norms.of, drawn)) / sum(map(norms.of, selected))
    return StrengthControl(HeadSet(drawn), displaced, ratio)


def _draw(candidates: Sequence[Head], norms: HeadNorms, wanted: float, rng: np.random.Generator) -> Head:
    """One of the nearest in norm; a head that writes nothing is infinitely far."""
    with np.errstate(divide="ignore"):
        gaps = np.abs(np.log([norms.of(head) for head in candidates]) - np.log(wanted))
    nearest = np.argsort(gaps, kind="stable")[:NEAREST]
    return candidates[int(rng.choice(nearest))]


def _nearest_layer(free: Sequence[Head], layer: int) -> int:
    return min((head.layer for head in free), key=lambda other: (abs(other - layer), other))
