"""How well the length-matched conditions are matched, in tokens of the model that read them."""

from __future__ import annotations

import pandas as pd

LENGTH_MATCH = ("model", "env", "condition", "n", "mean_mismatch", "max_abs_mismatch", "share_exact")


def length_match(rows: pd.DataFrame) -> pd.DataFrame:
    """The residual mismatch of each length-matched condition.

    Args:
        rows: score rows with model, env, item_id, condition, candidate, length_mismatch (tokens by which the prompt is
            longer than the one it was to match; empty where the condition matches none).

    Returns:
        The columns of `LENGTH_MATCH`, one line a model, environment and condition; n counts items.
    """
    matched = rows[(rows["candidate"] == "failed") & rows["length_mismatch"].notna()]
    lines = [
        (*key, len(found), found.mean(), found.abs().max(), (found == 0).mean())
        for key, found in matched.groupby(["model", "env", "condition"], sort=True)["length_mismatch"]
    ]
    return pd.DataFrame(lines, columns=list(LENGTH_MATCH))
