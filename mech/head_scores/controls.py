"""Random control sets for a head set: as many heads in each layer, none of them selected.

Layers matter: any sixteen late heads move logits more than sixteen early ones, so an unmatched control proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mech.errors import InputError
from mech.heads import Head, HeadSet

TRIES = 50
"""Draws in which a control unlike the earlier ones must turn up."""


@dataclass(frozen=True)
class Control:
    """A control set; `displaced` counts the heads that had to come from another layer than the one they stand for."""

    heads: HeadSet
    displaced: int


def layer_matched(selected: HeadSet, n_layers: int, n_heads: int, rng: np.random.Generator) -> Control:
    """Draw a random set disjoint from `selected` with as many heads in each layer, without replacement.

    Where a layer has too few other heads left, the rest come from the nearest layers, and are counted.

    Raises:
        InputError: more than half of all heads are selected, so that no disjoint set of that size exists.
    """
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
        nearest = min((other for other in free if free[other]), key=lambda other: (abs(other - layer), other))
        head = int(rng.choice(free[nearest]))
        free[nearest].remove(head)
        drawn.append(Head(nearest, head))
    return Control(HeadSet(drawn), len(lacking))


def control_stream(selected: HeadSet, draw: int, attempt: int = 0) -> str:
    """The name of the stream of a control draw."""
    return f"control/{selected.sha256}/{draw}" + (f"/{attempt}" if attempt else "")


def distinct_controls(
    selected: HeadSet, n_layers: int, n_heads: int, count: int, rng_for: Callable[[str], np.random.Generator]
) -> list[Control]:
    """That many layer-matched controls, no two the same, as p counts sets; fewer where no more turn up.

    Args:
        selected: what is controlled.
        n_layers: of the model.
        n_heads: a layer.
        count: how many.
        rng_for: gives the streams that `control_stream` names.

    Raises:
        InputError: as `layer_matched`.
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
