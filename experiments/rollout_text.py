"""What a rollout study says at the end: first how much of what the model wrote can be read at all."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from experiments.tables import frame_text

SHOWN = {
    "parseable_share": "readable",
    "solved": "solved",
    "exact_repeat_rate": "exact",
    "canonical_repeat_rate": "canonical",
    "near_repeat_rate": "near",
    "repeat_per_chance": "per chance",
    "first_chance_repeats": "first chance",
    "again_share": "any again",
    "stuck": "stuck",
    "prose_rate": "prose",
    "truncated_rate": "cut off",
    "n_steps": "steps",
    "n_ban_events": "bans met",
}
"""Measure → heading; means over rollouts. exact, canonical and near are shares of failed steps."""
FLOOR = 0.5


def rollout_text(tables: Mapping[str, pd.DataFrame]) -> str:
    """The rates of every arm, and a sentence where readable calls or solved tasks are at a floor."""
    rates = tables["rollout_rates"]
    order = list(dict.fromkeys(rates["arm"]))
    wide = rates.pivot(index="arm", columns="metric", values="mean").loc[order, list(SHOWN)]
    shown = wide.rename(columns=SHOWN).reset_index()
    lines = [f"means over {int(rates['n'].max())} rollouts an arm", frame_text(shown, 2)]
    first = wide.iloc[0]
    if first["parseable_share"] < FLOOR:
        lines.append(
            f"Only {first['parseable_share']:.0%} of what the model wrote under {order[0]} can be read as a call: "
            "tasks are at their floor, and differences between arms say little. --first given isolates what follows "
            "a failure."
        )
    return "\n".join(lines)
