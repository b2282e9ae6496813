"""Control sets of a head set, drawn at random among the heads that are not selected, and matched in one respect.

    layer      as many heads in each layer; where a layer has too few others, the rest come from the nearest layers
    strength   for each selected head, one of the NEAREST heads of its layer in mean output norm
               (`mech.head_scores.norms`), drawn among the heads below the median of all heads in the given scores;
               without prefix matching and copying, they write as much as the selected heads
    damage     as many heads as it takes to cost the selected set's loss: other heads in a random order, of whose
               prefixes the measured one of nearest damage is taken, found by bisection over the prefix's length

Layers matter: any sixteen late heads move logits more than sixteen early ones. Damage need not grow with every head, so
bisection finds one crossing; every prefix measured on the way may be the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mech.errors import InputError
from mech.head_scores.norms import HeadNorms
from mech.heads import Head, HeadSet

TRIES = 50
"""Draws in which a control unlike the earlier ones must turn up."""
LOW_IN = ("prefix_matching",)
NEAREST = 3
"""Strength matches are drawn from this many heads; from the nearest alone, every draw would give the same control."""

Measure = Callable[[Sequence[HeadSet]], list[float]]
"""Head sets → the damage of each: the loss (nats) that ablating it adds."""


@dataclass(frozen=True)
class Control:
    """A control set.

    Attributes:
        heads: the set.
        displaced: heads that came from another layer than the selected head they are matched to.
        ratio: of strength and damage: norms summed, or damage, over the selected set's. Near 1 for a good match.
        reached: of damage: whether a measured prefix costs at least as much as the selected set.
    """

    heads: HeadSet
    displaced: int = 0
    ratio: float | None = None
    reached: bool = True


def layer_matched(selected: HeadSet, n_layers: int, n_heads: int, rng: np.random.Generator) -> Control:
    """Draw a disjoint set with as many heads in each layer; InputError where over half of all heads are selected."""
    selected.check(n_layers, n_heads)
    free = {
        layer: [head for head in range(n_heads) if Head(layer, head) not in selected]
        for layer in range(n_layers)
    }
    if sum(map(len, free.values())) < len(selected):
        raise InputError(
            f"{len(selected)} of {n_layers * n_heads} heads are selected: no control set of that size is left."
        )
    drawn: list[Head] = []
    lacking: list[int] = []
    for layer, heads in selected.per_layer().items():
        take = min(len(heads), len(free[layer]))
        for head in sorted(rng.choice(free[layer], size=take, replace=False).tolist()) if take else []:
            free[layer].remove(head)
            drawn.append(Head(layer, int(head)))
        lacking += [layer] * (len(heads) - take)
    for layer in lacking:
        nearest = _nearest(layer, (other for other in free if free[other]))
        head = int(rng.choice(free[nearest]))
        free[nearest].remove(head)
        drawn.append(Head(nearest, head))
    return Control(HeadSet(drawn), len(lacking))


def _nearest(layer: int, layers: Iterable[int]) -> int:
    """The nearest of some layers, the lower of two."""
    return min(layers, key=lambda other: (abs(other - layer), other))


def control_stream(selected: HeadSet, draw: int, attempt: int = 0) -> str:
    """The name of the random stream of a control draw."""
    return f"control/{selected.sha256}/{draw}" + (f"/{attempt}" if attempt else "")


def distinct_controls(
    selected: HeadSet, n_layers: int, n_heads: int, count: int, rng_for: Callable[[str], np.random.Generator]
) -> list[Control]:
    """`count` different layer-matched controls, since p counts sets; fewer where TRIES draws give no further one.

    `rng_for` gives the streams that `control_stream` names. InputError as `layer_matched`.
    """
    found: dict[str, Control] = {}
    for draw in range(count):
        for attempt in range(TRIES):
            rng = rng_for(control_stream(selected, draw, attempt))
            control = layer_matched(selected, n_layers, n_heads, rng)
            if control.heads.sha256 not in found:
                found[control.heads.sha256] = control
                break
    return list(found.values())


def low_heads(scores: pd.DataFrame, columns: Sequence[str] = LOW_IN) -> HeadSet:
    """The heads below the median of all heads in every one of these scores.

    `scores` has layer, head and a column a score; InputError where one is missing.
    """
    missing = [name for name in ("layer", "head", *columns) if name not in scores.columns]
    if missing:
        raise InputError(f"The head scores lack the column {missing[0]}, which a strength control needs.")
    low = (scores[list(columns)] < scores[list(columns)].median()).all(axis=1)
    return HeadSet(Head(int(row.layer), int(row.head)) for row in scores[low].itertuples())


def strength_matched(
    selected: HeadSet, eligible: HeadSet, norms: HeadNorms, rng: np.random.Generator
) -> Control:
    """Draw a control of the selected heads' output norms among the eligible heads; InputError where these are fewer."""
    free = [head for head in eligible if head not in selected]
    if len(free) < len(selected):
        raise InputError(
            f"{len(free)} heads score low enough to control {len(selected)} selected ones by strength: "
            "select fewer, or leave 'norm' out of --control-kinds."
        )
    drawn: list[Head] = []
    displaced = 0
    # Matches in the head's own layer come first, so that no other layer takes them.
    order = [selected.heads[place] for place in rng.permutation(len(selected))]
    for own_layer in (True, False):
        left: list[Head] = []
        for head in order:
            layer = head.layer if own_layer else _nearest(head.layer, (other.layer for other in free))
            candidates = [other for other in free if other.layer == layer]
            if not candidates:
                left.append(head)
                continue
            chosen = _near_in_norm(candidates, norms, norms.of(head), rng)
            free.remove(chosen)
            drawn.append(chosen)
        if own_layer:
            order, displaced = left, len(left)
    ratio = sum(map(norms.of, drawn)) / sum(map(norms.of, selected))
    return Control(HeadSet(drawn), displaced, ratio)


def _near_in_norm(
    candidates: Sequence[Head], norms: HeadNorms, wanted: float, rng: np.random.Generator
) -> Head:
    """One of the NEAREST by |log(norm / wanted)|; a norm of zero is infinitely far."""
    with np.errstate(divide="ignore"):
        gaps = np.abs(np.log([norms.of(head) for head in candidates]) - np.log(wanted))
    nearest = np.argsort(gaps, kind="stable")[:NEAREST]
    return candidates[int(rng.choice(nearest))]


def damage_matched(
    selected: HeadSet, every: HeadSet, measure: Measure, rngs: Sequence[np.random.Generator]
) -> list[Control]:
    """One control a generator; none where the selected heads cost nothing.

    All draws are measured side by side, one step of bisection at a time. `every` has all heads of the model; InputError
    where none is left.
    """
    others = [head for head in every if head not in selected]
    if not others:
        raise InputError("All heads are selected: none are left for a control of equal damage.")
    [target] = measure([selected])
    if not target > 0:
        return []
    orders = [[others[int(at)] for at in rng.permutation(len(others))] for rng in rngs]
    measured: list[dict[int, float]] = [{} for _ in orders]  # length of the prefix → its damage
    while wanted := [
        (at, size) for at, known in enumerate(measured) if (size := _next_size(known, len(others), target))
    ]:
        found = measure([HeadSet(orders[at][:size]) for at, size in wanted])
        for (at, size), damage in zip(wanted, found, strict=True):
            measured[at][size] = damage
    controls = []
    for order, known in zip(orders, measured, strict=True):
        size = min(sorted(known), key=lambda one: abs(known[one] - target))
        ratio, reached = known[size] / target, max(known.values()) >= target
        controls.append(Control(HeadSet(order[:size]), ratio=ratio, reached=reached))
    return controls


def _next_size(known: dict[int, float], n_others: int, target: float) -> int:
    """The prefix to measure next: all heads first, then the middle of the bracket; 0 where it is closed."""
    if n_others not in known:
        return n_others
    high = min((size for size, damage in known.items() if damage >= target), default=0)
    low = max((size for size in known if size < high), default=0)
    return (low + high) // 2 if high - low > 1 else 0
