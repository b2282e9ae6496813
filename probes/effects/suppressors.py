"""Suppression heads: those whose causal effect is below zero, with their scores.

A ranking by |effect| mixes them with the heads of positive effect, and a ranking by effect puts them last. A head is
listed where its mean effect (nats) over items has its 95 % cluster interval below 0. Every head is tested, so some
would be listed by chance: `p_holm` is corrected over all heads of the direction, whose number is given. Suppression
heads: McDougall et al. 2023 ("Copy Suppression"); their score is `copy_suppression`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from probes.effects.agreement import require_scores
from probes.stats.bootstrap import N_DRAWS, RngFactory
from probes.stats.families import holm
from probes.stats.frame_checks import column_means

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
        heads, found = column_means(group, _HEAD, "effect_nats", rng_for(f"suppressors/{direction}"), n_draws)
        corrected = holm([one.p for one in found])
        for (layer, head), one, p_holm in zip(heads, found, corrected, strict=True):
            if one.hi < 0:  # no interval is not below 0
                cells = (*one.cells, one.p, float(p_holm), *one.counts, len(found))
                lines.append((direction, int(layer), int(head), *cells))
    listed = pd.DataFrame(lines, columns=list(SUPPRESSORS))
    listed = listed.sort_values(["direction", "effect_nats"], ignore_index=True)
    own = scores.set_index(_HEAD)[list(columns)]
    require_scores(own, zip(listed["layer"], listed["head"], strict=True))
    return listed.join(own, on=_HEAD)
