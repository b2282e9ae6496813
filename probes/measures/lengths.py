"""How well the length-matched conditions are matched, in tokens of the model that read them."""

from __future__ import annotations

import pandas as pd

LENGTH_MATCH = (
    *("model", "env", "condition", "n", "mean_mismatch", "max_abs_mismatch", "share_exact", "shared_tokens"),
)


def length_match(rows: pd.DataFrame) -> pd.DataFrame:
    """The residual mismatch of each length-matched condition.

    Args:
        rows: score rows with model, env, item_id, condition, candidate, length_mismatch (tokens by which the prompt is
            longer than the one it was to match; empty where the condition matches none) and shared_tokens (share of
            a×'s tokens in the call recorded in its place; empty where a× itself is, or where older rows do not say).

    Returns:
        The columns of `LENGTH_MATCH`, one line a model, environment and condition; n counts items, shared_tokens is
        their mean.
    """
    matched = rows[(rows["candidate"] == "failed") & rows["length_mismatch"].notna()]
    shared = (
        matched["shared_tokens"]
        if "shared_tokens" in matched
        else pd.Series(index=matched.index, dtype=float)
    )
    lines = []
    for key, group in matched.groupby(["model", "env", "condition"], sort=True):
        found = group["length_mismatch"]
        of_calls = shared.reindex(group.index).astype(float).mean()
        lines.append((*key, len(found), found.mean(), found.abs().max(), (found == 0).mean(), of_calls))
    return pd.DataFrame(lines, columns=list(LENGTH_MATCH))
