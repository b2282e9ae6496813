"""Damage-matched control sets: random other heads, as many as it takes to cost what the selected ones cost.

    damage(S)   what taking the heads S out costs a stated loss (nats; the caller measures it)
    one draw    the heads that are not selected in an order drawn at random; of this order's prefixes, the measured one
                whose damage is nearest to the selected set's, found by bisection over the prefix's length

Damage need not grow with every head, so that bisection finds a crossing and not all of them; every prefix on its way is
measured and may be the nearest. A control of the same size may cost nothing because it does nothing; this one costs as
much, and what it leaves alone is then not spared by weakness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mech.errors import InputError
from mech.heads import Head, HeadSet

Measure = Callable[[Sequence[HeadSet]], list[float]]
"""Head sets → the damage of each."""


@dataclass(frozen=True)
class DamageControl:
    """A control set; `ratio`: its damage over the selected set's; `reached`: some prefix costs as much or more."""

    heads: HeadSet
    ratio: float
    reached: bool


def damage_matched(
    selected: HeadSet, every: HeadSet, measure: Measure, rngs: Sequence[np.random.Generator]
) -> list[DamageControl]:
    """One control a generator, none where the selected heads cost nothing: nothing can then cost as much.

    All draws are measured side by side, a round of bisection at a time.

    Args:
        selected: what is controlled.
        every: all heads of the model.
        measure: what sets cost.
        rngs: one a draw.

    Raises:
        InputError: no head is left.
    """
    others = [head for head in every if head not in selected]
    if not others:
        raise InputError("All heads are selected: none are left for a control of equal damage.")
    [target] = measure([selected])
    if not target > 0:
        return []
    draws = [_Draw([others[int(at)] for at in rng.permutation(len(others))]) for rng in rngs]
    while True:
        open_draws = [(draw, size) for draw in draws for size in [draw.wanted(target)] if size is not None]
        if not open_draws:
            break
        found = measure([HeadSet(draw.order[:size]) for draw, size in open_draws])
        for (draw, size), damage in zip(open_draws, found, strict=True):
            draw.measured[size] = damage
    return [draw.nearest(target) for draw in draws]


class _Draw:
    """One order of heads, and the damage of those of its prefixes that were measured."""

    def __init__(self, order: list[Head]) -> None:
        self.order = order
        self.measured: dict[int, float] = {}

    def wanted(self, target: float) -> int | None:
        """The prefix to measure next: the whole order, then the middle of what still brackets the target."""
        whole = len(self.order)
        if whole not in self.measured:
            return whole
        enough = [size for size, damage in self.measured.items() if damage >= target]
        if not enough:
            return None
        high = min(enough)
        low = max((size for size in self.measured if size < high), default=0)
        return (low + high) // 2 if high - low > 1 else None

    def nearest(self, target: float) -> DamageControl:
        """The measured prefix of the nearest damage, the shorter of two."""
        size = min(sorted(self.measured), key=lambda one: abs(self.measured[one] - target))
        reached = max(self.measured.values()) >= target
        return DamageControl(HeadSet(self.order[:size]), self.measured[size] / target, reached)
