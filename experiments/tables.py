"""Frames as plain text, for the end of a study."""

from __future__ import annotations

import math

import pandas as pd

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


def meter_text(ran: int, saved: int) -> str:
    """How much of the model was run."""
    return f"forwards run: {ran}, saved by the cache: {saved}"
