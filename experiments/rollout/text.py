"""What a rollout study says at the end: first how much of what the model wrote can be read at all."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from experiments.run.tables import frame_text
from probes.rollouts.rates import is_random

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
MANY = 3
"""From so many random sets on, they are shown as one row instead of one each."""


def rollout_text(tables: Mapping[str, pd.DataFrame]) -> str:
    """The rates of every arm, paired differences to the first, and a sentence where an arm is at a floor."""
    rates = tables["rollout_rates"]
    order = list(dict.fromkeys(rates["arm"]))
    wide = rates.pivot(index="arm", columns="metric", values="mean").loc[order, list(SHOWN)]
    chances = rates[rates["metric"] == "stuck"].set_index("arm")["n_chance"].loc[order]
    shown = _draws_as_one(wide.rename(columns=SHOWN).assign(**{"with a chance": chances}))
    lines = [
        f"means over {int(rates['n'].max())} rollouts an arm; with a chance: those with a step after a failure",
        frame_text(shown.reset_index(), 2),
    ]
    if "rollout_contrasts" in tables:
        lines += ["", contrast_text(tables["rollout_contrasts"])]
    if "rollout_controls" in tables:
        lines += ["", _control_text(tables["rollout_controls"])]
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


def _draws_as_one(wide: pd.DataFrame) -> pd.DataFrame:
    """Arms of random sets that differ in the draw alone as one row of means, where they are many."""
    draws = pd.Series(
        [name.rstrip("0123456789") if is_random(name) else "" for name in wide.index], wide.index
    )
    for name, members in draws[draws != ""].groupby(draws, sort=False):
        if len(members) >= MANY:
            mean = wide.loc[members.index].mean().rename(f"{name} ({len(members)} sets)")
            wide = pd.concat([wide.drop(index=members.index), mean.to_frame().T])
    return wide.rename_axis("arm")


def contrast_text(contrasts: pd.DataFrame) -> str:
    """A block a measure: each arm's mean, paired difference to the first arm, and exact test."""
    chosen = contrasts[contrasts["metric"].isin(COMPARED)]
    n_random = chosen["arm"].map(is_random).groupby(chosen["metric"]).sum().max()
    if n_random >= MANY:
        chosen = chosen[~chosen["arm"].map(is_random)]
    blocks = [
        f"paired differences to {contrasts['baseline'].iloc[0]} on the same tasks and samples; p: exact sign flips "
        "over the tasks that differ (-: too few to reach .05), Holm over the arms of a measure"
    ]
    for metric in COMPARED:
        rows = chosen[chosen["metric"] == metric]
        shown = [
            {
                SHOWN[metric]: row.arm,
                "first arm": f"{row.baseline_mean:.2f}",
                "this": f"{row.arm_mean:.2f}",
                "difference": difference_text(row.difference, row.ci_lo, row.ci_hi),
                "tasks that differ": f"{row.n_changed} of {row.n_clusters}",
                "pairs (with a chance)": f"{row.n} ({row.n_chance})",
                "p": p_text(row.p),
                "Holm": f"{p_text(row.p_holm)} of {row.family_size}" if row.family_size else "-",
            }
            for row in rows.itertuples()
        ]
        if shown:
            blocks.append(frame_text(pd.DataFrame(shown)))
    return "\n".join(blocks)


def _control_text(controls: pd.DataFrame) -> str:
    """A line a measure and arm: what the chosen heads change beside what random ones do."""
    rows = controls[controls["metric"].isin(COMPARED)]
    shown = pd.DataFrame(
        {
            "measure": row.metric,
            "arm": row.arm,
            "difference": f"{row.difference:+.2f}",
            "random sets": f"{row.control_mean:+.2f} from {row.control_lo:+.2f} to {row.control_hi:+.2f}",
            "as far": f"{row.n_as_far} of {row.n_controls}",
            "rollouts": row.n,
            "p": p_text(row.p),
        }
        for row in rows.itertuples()
    )
    return (
        "chosen heads among random sets of as many heads of the same layers, differences to the same harness "
        f"(p: share of sets that change as much, -: too few sets)\n{frame_text(shown)}"
    )


def difference_text(difference: float, lo: float, hi: float) -> str:
    """`+0.25 [+0.10, +0.40]`; without brackets where there is no interval."""
    if pd.isna(difference):
        return "-"
    return f"{difference:+.2f}" if pd.isna(lo) or pd.isna(hi) else f"{difference:+.2f} [{lo:+.2f}, {hi:+.2f}]"


def p_text(p: float) -> str:
    """`0.031`, `<0.001`, or `-` where there is none."""
    return "-" if pd.isna(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
