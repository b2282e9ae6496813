"""Our summary beside a published one, line by line: every line of theirs, whether or not we have it.

    difference            ours − theirs
    overlap               whether the two intervals share a point
    same_sign             whether both means are above, below or exactly zero
    paper_excludes_zero   whether their interval has zero outside: only there can a sign disagree

Overlapping intervals do not show that two means are equal, nor separate ones that the models behave differently: where
items, weights or wording differ, so may the means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats.summaries import KEYS, check_summary

_BOOLEANS = ("overlap", "same_sign", "paper_excludes_zero")


def compare(
    ours: pd.DataFrame, paper: pd.DataFrame, model_map: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Each line that the paper has of our models, beside ours.

    Args:
        ours: a summary; with a column `run` it may hold several runs, and of a measure that several have the one whose
            n is nearest to the paper's is taken (the first of equals).
        paper: the published summary.
        model_map: our name of a model → the paper's; a model that is not in it has the paper's name but for an ending
            `-q4`.

    Returns:
        model, env, measure, ours, paper, each with _lo, _hi and _n, difference, overlap, same_sign,
        paper_excludes_zero, paper_model and run (of our line): by our models' names and then in the paper's order.
        Where we lack a line, the columns that need it are empty. `overlap` is empty too where an interval is.

    Raises:
        InputError: a table is no summary or has a line twice, the map names a model we lack, or the paper has none of
            our models.
    """
    mine, theirs, names = _matched(ours, paper, model_map)
    lines = []
    for model, paper_model in names.items():
        own = mine[mine["model"] == model]
        for row in theirs[theirs["model"] == paper_model].to_dict("records"):
            same = own[(own["env"] == row["env"]) & (own["measure"] == row["measure"])]
            lines.append({"model": model, "paper_model": paper_model, **_line(same, row)})
    table = pd.DataFrame(lines)
    counts = dict.fromkeys(["ours_n", "paper_n"], "Int64")
    return table.astype({**counts, **dict.fromkeys(_BOOLEANS, "boolean")})


def only_ours(
    ours: pd.DataFrame, paper: pd.DataFrame, model_map: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """The model, env and measure of every line of ours that the paper has nothing beside.

    Raises:
        InputError: as `compare`.
    """
    mine, theirs, names = _matched(ours, paper, model_map)
    known = {tuple(line) for line in theirs[list(KEYS)].to_numpy()}
    lines = mine[list(KEYS)].drop_duplicates(ignore_index=True)
    alone = [
        (names.get(model), env, measure) not in known
        for model, env, measure in lines.itertuples(index=False, name=None)
    ]
    return lines[alone].reset_index(drop=True)


def disagreements(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of `compare` whose sign differs although the paper's interval excludes zero."""
    return table[~table["same_sign"].fillna(True) & table["paper_excludes_zero"]].reset_index(drop=True)


def _matched(
    ours: pd.DataFrame, paper: pd.DataFrame, model_map: Mapping[str, str] | None
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Both tables checked, and our name → the paper's of every model that both have."""
    mine = check_summary(ours, "Our summary", ["run"] if "run" in ours.columns else [])
    theirs = check_summary(paper, "The paper's table")
    models = sorted(mine["model"].unique())
    unknown = [name for name in model_map or {} if name not in models]
    if unknown:
        raise InputError(f"There is no model '{unknown[0]}' in our runs: they are of {', '.join(models)}.")
    names = {model: (model_map or {}).get(model, model.removesuffix("-q4")) for model in models}
    published = set(theirs["model"])
    shared = {model: name for model, name in names.items() if name in published}
    if not shared:
        raise InputError(
            f"The paper's table has none of our models ({', '.join(names.values())}); it has "
            f"{', '.join(sorted(published))}."
        )
    return mine, theirs, shared


def _line(same: pd.DataFrame, row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of one line of the paper's and the nearest of ours."""
    excludes = bool(row["ci_lo"] > 0 or row["ci_hi"] < 0)
    line = {
        **{"env": row["env"], "measure": row["measure"], "paper": row["mean"]},
        **{"paper_lo": row["ci_lo"], "paper_hi": row["ci_hi"], "paper_n": row["n"]},
        "paper_excludes_zero": excludes,
    }
    if len(same) == 0:
        return {
            **{**line, **dict.fromkeys(("ours", "ours_lo", "ours_hi", "difference"), np.nan)},
            **dict.fromkeys(("ours_n", "overlap", "same_sign", "run")),
        }
    own = same.iloc[int((same["n"] - row["n"]).abs().to_numpy().argmin())]
    bounds = (own["ci_lo"], own["ci_hi"], row["ci_lo"], row["ci_hi"])
    overlap = max(bounds[0], bounds[2]) <= min(bounds[1], bounds[3])
    return {
        **line,
        **{"ours": own["mean"], "ours_lo": own["ci_lo"], "ours_hi": own["ci_hi"], "ours_n": own["n"]},
        "difference": own["mean"] - row["mean"],
        "overlap": None if any(np.isnan(bounds)) else bool(overlap),
        "same_sign": bool(np.sign(own["mean"]) == np.sign(row["mean"])),
        "run": own.get("run"),
    }
