"""Heads that work against the copy: those whose causal effect is below zero, signed, with what their scores say.

A ranking by |effect| would put them among the heads that carry the effect, and one from the top would not show them.
A head is listed where its mean effect (nats) over items has its 95 % cluster interval below 0. That asks every head
once, and some would be listed by chance: `p_holm` is corrected over all heads of the direction, whose number is given.
Negative heads are those of McDougall et al. 2023 ("Copy Suppression"); their score is `copy_suppression`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_ratios, holm
from probes.stats.frame_checks import item_columns, rectangle

SUPPRESSORS = (
    *("direction", "layer", "head", "effect_nats", "ci_lo", "ci_hi", "p", "p_holm"),
    *("n", "n_clusters", "n_heads"),
)
_HEAD = ["layer", "head"]


def suppressors(
    effects: pd.DataFrame,
    scores: pd.DataFrame,
    rng_for: RngFactory,
    columns: Sequence[str],
    n_draws: int = N_DRAWS,
) -> pd.DataFrame:
    """The heads whose effect is negative beyond its interval, the most negative first.

    Args:
        effects: item_id, task_id, direction, layer, head, effect_nats; one row an item, direction and head.
        scores: layer, head and the scores; one row a head.
        rng_for: gives the stream `suppressors/DIRECTION`; all heads see the same draws.
        columns: the scores to show beside the effect.
        n_draws: bootstrap draws.

    Returns:
        The columns of SUPPRESSORS and then `columns`; no rows where no head is negative.

    Raises:
        InputError: heads were patched on different items, or one that is listed has no score.
    """
    lines = []
    for direction, group in effects.groupby("direction", sort=True):
        table = rectangle(group, _HEAD, "effect_nats")
        numbers = table.to_numpy(float)
        tasks = item_columns(group, table.index)["task_id"]
        rng = rng_for(f"suppressors/{direction}")
        found = cluster_ratios(numbers, np.ones_like(numbers), tasks, rng, n_draws)
        corrected = holm([one.p for one in found])
        for (layer, head), one, p_holm in zip(table.columns, found, corrected, strict=True):
            if one.hi < 0:  # no interval is not below 0
                cells = (one.mean, one.lo, one.hi, one.p, float(p_holm), one.n, one.n_clusters, len(found))
                lines.append((direction, int(layer), int(head), *cells))
    listed = pd.DataFrame(lines, columns=list(SUPPRESSORS))
    listed = listed.sort_values(["direction", "effect_nats"], ignore_index=True)
    own = scores.set_index(_HEAD)[list(columns)]
    lacking = [key for key in zip(listed["layer"], listed["head"], strict=True) if key not in own.index]
    if lacking:
        raise InputError(f"L{lacking[0][0]}H{lacking[0][1]} was patched and has no score.")
    return listed.join(own, on=_HEAD)
