"""Frames as plain text, for the end of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from probes.stats.layout import UNABLATED

ARM_MEASURES = (
    *("G", "copy", "sem", "margin_shift", "p_repeat_pre", "p_repeat_fail"),
    *("greedy_repeat_fail", "G_abstract"),
)
"""What is printed of an arm; arms.csv has every measure."""
NAMES = {
    "G": "corrective gain G",
    "copy": "Δcopy",
    "sem": "Δsem",
    "p_repeat_pre": "repeat probability before",
    "p_repeat_fail": "repeat probability after",
    "greedy_repeat_fail": "greedy repeats after",
    "G_abstract": "G, abstract record",
}


def summary_text(summary: pd.DataFrame) -> str:
    """Mean and interval of every measure, one a line."""
    lines = [f"{'measure':<28}{'mean':>9}   95 % interval        items (tasks)"]
    for row in summary.itertuples():
        name = NAMES.get(str(row.measure), str(row.measure))
        ends = interval_text(row.ci_lo, row.ci_hi, 8)
        lines.append(f"{name:<28}{row.mean:>9.3f}   {ends}  {row.n} ({row.n_clusters})")
    return "\n".join(lines)


def arms_text(arms: pd.DataFrame, measures: Sequence[str] = ARM_MEASURES) -> list[str]:
    """Lines on each ablation arm against the unablated model: paired difference, its test, and the share removed."""
    shown = arms[(arms["against"] == UNABLATED) & arms["measure"].isin(measures)]
    lines: list[str] = []
    for (env, label), group in shown.groupby(["env", "ablation"], sort=False):
        lines += [
            "",
            f"ablation {label} against the unablated model, {env} (p_holm: of {int(group['family_size'].max())} arms)",
            f"{'measure':<28}{'whole':>9}{'ablated':>9}{'difference':>12}   95 % interval        p_holm   removed",
        ]
        ordered = group.set_index("measure").reindex(
            [name for name in measures if name in set(group["measure"])]
        )
        for name, row in ordered.iterrows():
            share = "" if pd.isna(row["removed"]) else f"{row['removed']:.2f}"
            if share and not pd.isna(row["removed_lo"]):
                share += " " + interval_text(row["removed_lo"], row["removed_hi"], digits=2)
            lines.append(
                f"{NAMES.get(str(name), str(name)):<28}{row['mean_against']:>9.3f}{row['mean']:>9.3f}"
                f"{row['difference']:>12.3f}   {interval_text(row['ci_lo'], row['ci_hi'], 8)}"
                f"{row['p_holm']:>9.3g}   {share}"
            )
    return lines


def unablated(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of the unablated model in a table that has a column `ablation`."""
    return table[table["ablation"] == UNABLATED]


def interval_text(lo: float, hi: float, width: int = 0, digits: int = 3, sign: str = "") -> str:
    """`[lo, hi]`; where there is no interval (fewer than six clusters), a dash in its place and as wide."""
    if math.isnan(lo) or math.isnan(hi):
        return "—".center(2 * width + 4)
    return f"[{lo:>{sign}{width}.{digits}f}, {hi:>{sign}{width}.{digits}f}]"


def estimate_text(estimates: pd.DataFrame) -> str:
    """Lines of name, estimate and interval; columns name, estimate, ci_lo, ci_hi, n, n_clusters."""
    return "\n".join(
        f"{row.name:<28}{row.estimate:>9.3f}   {interval_text(row.ci_lo, row.ci_hi, 8)}  {row.n} ({row.n_clusters})"
        for row in estimates.itertuples(index=False)
    )


def frame_text(frame: pd.DataFrame, digits: int = 3) -> str:
    """A small frame without its index, numbers rounded for reading."""
    return str(frame.to_string(index=False, float_format=lambda value: f"{value:.{digits}f}"))


def forwards_text(ran: int, saved: int) -> str:
    """How much of the model was run."""
    return f"forwards run: {ran}, saved by the cache: {saved}"
