"""How long a rollout goes without repeating a failed action: the Kaplan-Meier curve of each arm.

    S(t) = Π over u ≤ t of (1 − events(u) / at risk(u))                                       Kaplan & Meier 1958

The clock counts a rollout's free steps since its first failure (its chances to repeat), the event is its first
canonical repeat, and a rollout that ends before one is censored there, not dropped: solved, out of steps or out of
tokens to choose from alike. The curve takes it that a censored rollout would have gone on like the others, which a
solved one might not have: read it beside how rollouts ended. Intervals are pointwise, from the cluster bootstrap over
tasks; everything within one model and environment.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from probes.rollouts.steps import ROLLOUT, per_step
from probes.stats.bootstrap import (
    MAX_DROPPED,
    N_DRAWS,
    RngFactory,
    cluster_codes,
    draw_clusters,
    percentile_ends,
)


def survival(steps: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Kaplan-Meier curve of "no canonical repeat yet" of each arm.

    Args:
        steps: as `probes.rollouts.steps.per_step`.
        rng_for: gives the streams `rollouts/survival/MODEL/ENV/ARM`.
        n_draws: bootstrap draws, over tasks.

    Returns:
        model, env, arm, harness, change, t, at_risk, events, censored, survival, ci_lo, ci_hi; t = 0, 1, … in free
        steps since the first failure. At t = 0 all rollouts are at risk, and those are censored that never get a
        chance to repeat; later, censored are those that end after t unrepeated chances. The interval is pointwise
        (`probes.stats.bootstrap.percentile_ends`); it is empty where more than MAX_DROPPED of the draws have nobody
        at risk at t (the others are used), and where there are fewer than six tasks.

    Raises:
        InputError: as `per_step`.
    """
    marked = per_step(steps)
    lines: list[dict[str, object]] = []
    for (model, env, arm), group in marked.groupby(["model", "env", "arm"], sort=False):
        times = _times(group)
        names = {"model": model, "env": env, "arm": arm, **group[["harness", "change"]].iloc[0]}
        rng = rng_for(f"rollouts/survival/{model}/{env}/{arm}")
        lines += [{**names, **cells} for cells in _kaplan_meier(times, rng, n_draws)]
    return pd.DataFrame(lines)


def _times(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a rollout: task_id, time (chances until the first repeat or the end) and event (it repeated)."""
    lines = []
    for _, rollout in steps.groupby(list(ROLLOUT), sort=False):
        chances = rollout.loc[rollout["at_risk"], "canonical_repeat"].to_numpy(bool)
        event = bool(chances.any())
        lines.append(
            (rollout["task_id"].iloc[0], int(chances.argmax()) + 1 if event else len(chances), event)
        )
    return pd.DataFrame(lines, columns=["task_id", "time", "event"])


def _kaplan_meier(times: pd.DataFrame, rng: np.random.Generator, n_draws: int) -> list[dict[str, object]]:
    """The columns from t on; a draw's curve is the product over the sums of the clusters it took."""
    codes, n_clusters = cluster_codes(times["task_id"], len(times))
    time, event = times["time"].to_numpy(int), times["event"].to_numpy(bool)
    clock = np.arange(time.max() + 1)
    at_risk, events = np.zeros((2, n_clusters, len(clock)))
    np.add.at(at_risk, codes, time[:, None] >= clock)
    np.add.at(events, codes, event[:, None] & (time[:, None] == clock))
    curve = _product(events.sum(axis=0), at_risk.sum(axis=0))
    counts = draw_clusters(n_clusters, rng, n_draws)
    drawn_risk = counts @ at_risk
    curves = np.where(drawn_risk > 0, _product(counts @ events, drawn_risk), np.nan)
    lines: list[dict[str, object]] = []
    for t in clock:
        known = curves[:, t][~np.isnan(curves[:, t])]
        shown = len(known) >= (1 - MAX_DROPPED) * n_draws
        ends = percentile_ends(known, n_clusters) if shown else (math.nan, math.nan)
        lines.append(
            {
                **{"t": int(t), "at_risk": int(at_risk[:, t].sum()), "events": int(events[:, t].sum())},
                **{"censored": int((~event & (time == t)).sum()), "survival": float(curve[t])},
                **{"ci_lo": ends[0], "ci_hi": ends[1]},
            }
        )
    return lines


def _product(events: np.ndarray, at_risk: np.ndarray) -> np.ndarray:
    """Π (1 − events / at risk) along the last axis; where nobody is at risk nothing happens."""
    hazard = np.divide(events, at_risk, out=np.zeros(at_risk.shape), where=at_risk > 0)
    return np.asarray(np.cumprod(1 - hazard, axis=-1))
