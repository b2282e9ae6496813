"""Frames as plain text, for the end of a study."""

from __future__ import annotations

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
        lines.append(
            f"{name:<28}{row.mean:>9.3f}   [{row.ci_lo:>8.3f}, {row.ci_hi:>8.3f}]  {row.n} ({row.n_clusters})"
        )
    return "\n".join(lines)


def estimate_text(estimates: pd.DataFrame) -> str:
    """Lines of name, estimate and interval; columns name, estimate, ci_lo, ci_hi, n, n_clusters."""
    return "\n".join(
        f"{row.name:<28}{row.estimate:>9.3f}   [{row.ci_lo:>8.3f}, {row.ci_hi:>8.3f}]  {row.n} ({row.n_clusters})"
        for row in estimates.itertuples(index=False)
    )


def frame_text(frame: pd.DataFrame, digits: int = 3) -> str:
    """A small frame without its index, numbers rounded for reading."""
    return str(frame.to_string(index=False, float_format=lambda value: f"{value:.{digits}f}"))


def meter_text(ran: int, saved: int) -> str:
    """How much of the model was run."""
    return f"forwards run: {ran}, saved by the cache: {saved}"
