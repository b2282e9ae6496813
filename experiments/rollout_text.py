"""What a rollout study says at the end: first how much of what the model wrote can be read at all."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from experiments.tables import frame_text, interval_text

SHOWN = {
    "parseable_share": "readable",
    "solved": "solved",
    "recovered": "recovered",
    "exact_repeat_rate": "exact",
    "canonical_repeat_rate": "canonical",
    "near_repeat_rate": "near",
    "repeat_per_chance": "per chance",
    "first_chance_repeats": "first chance",
    "again_share": "any again",
    "stuck": "stuck",
    "stuck_near": "or near",
    "prose_rate": "prose",
    "truncated_rate": "cut off",
    "demonstration_share": "demo copies",
    "runtime_share": "runtime copies",
    "n_steps": "steps",
    "n_ban_events": "bans met",
}
"""Measure → heading; means over rollouts. exact, canonical and near are shares of failed steps."""
FLOOR = 0.5
COMPARED = ("parseable_share", "solved", "repeat_per_chance", "again_share", "stuck")


def rollout_text(tables: Mapping[str, pd.DataFrame]) -> str:
    """The rates of every arm, paired differences to the first, and a sentence where an arm is at a floor."""
    rates = tables["rollout_rates"]
    order = list(dict.fromkeys(rates["arm"]))
    wide = rates.pivot(index="arm", columns="metric", values="mean").loc[order, list(SHOWN)]
    shown = wide.rename(columns=SHOWN).reset_index()
    lines = [f"means over {int(rates['n'].max())} rollouts an arm", frame_text(shown, 2)]
    if "rollout_contrasts" in tables:
        lines += ["", _contrast_text(tables["rollout_contrasts"])]
    low = wide.index[wide["parseable_share"] < FLOOR].tolist()
    if low:
        lines.append(
            f"Fewer than half of the steps under {', '.join(low)} can be read as calls: these arms are at their "
            "floor, and a low repeat rate there is no mitigation. --first given isolates what follows a failure."
        )
    if not wide["recovered"].max() > 0:
        lines.append(
            "No rollout with a failure in it was solved in any arm: that an arm costs no success is not shown."
        )
    return "\n".join(lines)


def _contrast_text(contrasts: pd.DataFrame) -> str:
    """Paired differences to the first arm with their intervals; a star where Holm's p is below 0.05."""
    chosen = contrasts[contrasts["metric"].isin(COMPARED)]
    cells = chosen.assign(
        cell=[
            f"{row.difference:+.2f} {interval_text(row.ci_lo, row.ci_hi, digits=2, sign='+')}"
            f"{'*' if row.p_holm < 0.05 else ' '}"
            for row in chosen.itertuples()
        ]
    )
    order = list(dict.fromkeys(cells["arm"]))
    wide = cells.pivot(index="arm", columns="metric", values="cell").loc[order, list(COMPARED)]
    shown = wide.rename(columns=SHOWN).reset_index()
    baseline = chosen["baseline"].iloc[0]
    head = f"paired differences to {baseline} (*: p < 0.05, Holm's correction over the arms of a measure)"
    return f"{head}\n{frame_text(shown)}"
