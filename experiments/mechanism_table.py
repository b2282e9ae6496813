"""The one table of `backfire mechanism`: what the top k heads carry of Δcopy by every method, with what else changes.

    mechanism.csv   one row a method, place and k: share with interval, controls, p, off-target changes
    mechanism.md    the same for a README: shares beside the range of their controls; off-target changes below

Methods at the candidate positions come from `backfire joint` (carried.csv, carried_offtarget.csv), the ablation at all
positions, whose losses on prose and code are read, from `backfire ablate` (removed.csv, controls.csv, offtarget.csv).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

COLUMNS = (
    *("env", "method", "where", "direction", "k", "share", "ci_lo", "ci_hi"),
    *("n_controls", "control_mean", "control_lo", "control_hi", "p"),
    *("reference_change", "sem_change", "sem_equivalent", "prose_change", "code_change", "n"),
)
NAMES = {
    ("noise", "candidate"): "noising (z from `pre`)",
    ("denoise", "candidate"): "denoising (z from `neut`)",
    ("mean", "candidate"): "mean ablation",
    ("resample", "candidate"): "resample ablation",
    ("zero", "candidate"): "zero ablation",
    ("knockout", "candidate"): "attention to the call cut",
    ("mean", "all"): "mean ablation, all positions",
    ("resample", "all"): "resample ablation, all positions",
    ("zero", "all"): "zero ablation, all positions",
}
_QUANTITIES = {
    "reference_change": "log p of the reference action",
    "sem_change": "Δsem",
    "prose_change": "loss on prose, a token",
    "code_change": "loss on code, a token",
}


def from_joint(carried: pd.DataFrame, off_target: pd.DataFrame) -> pd.DataFrame:
    """Rows at the candidate positions, random controls beside them; COLUMNS."""
    own = carried[carried["controls"].isin(["random", ""])]
    wide = off_target.pivot_table(index=["env", "method", "k"], columns="quantity", values="change")
    sem = off_target[off_target["quantity"] == "sem"].set_index(["env", "method", "k"])["equivalent"]
    lines = []
    for row in own.to_dict("records"):
        key = (row["env"], row["method"], row["k"])
        changes = wide.loc[key] if key in wide.index else {}  # no item may have a reference action
        lines.append(
            {
                **{name: row[name] for name in COLUMNS if name in row},
                "where": "candidate",
                "reference_change": float(changes.get("reference", math.nan)),
                "sem_change": float(changes.get("sem", math.nan)),
                "sem_equivalent": str(sem[key]).lower() if key in sem.index else "",
            }
        )
    return pd.DataFrame(lines).reindex(columns=list(COLUMNS))


def from_ablation(
    env: str,
    how: str,
    removed: pd.DataFrame,
    controls: pd.DataFrame,
    off_target: pd.DataFrame,
) -> pd.DataFrame:
    """Rows of an ablation at all positions (of log p(a×)); COLUMNS."""
    removed, controls = (
        table[(table["how"] == how) & (table["metric"] == "logprob")] for table in (removed, controls)
    )
    off_target = off_target[off_target["how"] == how]
    beside = controls[controls["control"] == "random"].set_index("set")
    of_set = {
        str(label): group.set_index("quantity")
        for label, group in off_target[off_target["kind"] == "selected"].groupby("set")
    }
    lines = []
    for row in removed[removed["kind"] == "selected"].to_dict("records"):
        against, changes = beside.loc[row["set"]], of_set[row["set"]]
        change = changes["change"]
        lines.append(
            {
                **{"env": env, "method": how, "where": "all", "direction": "necessity"},
                **{name: row[name] for name in ("k", "share", "ci_lo", "ci_hi", "n")},
                "n_controls": against["n_controls"],
                "control_mean": against["random_mean"],
                "control_lo": against["random_lo"],
                "control_hi": against["random_hi"],
                "p": against["p"],
                "reference_change": change.get("reference_logprob", math.nan),
                "sem_change": change["sem"],
                "sem_equivalent": str(changes["equivalent"]["sem"]).lower(),
                "prose_change": change["prose_loss"],
                "code_change": change["code_loss"],
            }
        )
    return pd.DataFrame(lines).reindex(columns=list(COLUMNS))


def markdown(table: pd.DataFrame) -> str:
    """The table for a README, an environment after another: shares, then off-target changes of every size."""
    parts = []
    for env, rows in table.groupby("env", sort=False):
        sizes = sorted(set(rows["k"]))
        parts += [f"### {env}, {_counts(rows['n'])} items", "", *_shares(rows, sizes), ""]
        parts += [*_changes(rows, sizes), ""]
    return "\n".join(parts)


def _counts(n: pd.Series) -> str:
    low, high = int(n.min()), int(n.max())
    return str(low) if low == high else f"{low} to {high}"


def _shares(rows: pd.DataFrame, sizes: Sequence[int]) -> list[str]:
    head = ["share of Δcopy carried by", *(f"top {k}" for k in sizes)]
    lines = [_line(head), _line(["---"] * len(head))]
    for (method, where), group in rows.groupby(["method", "where"], sort=False):
        by_k = {row["k"]: row for row in group.to_dict("records")}
        name = f"{NAMES[method, where]}: {group['direction'].iloc[0]}"
        lines.append(_line([name, *(_share(by_k.get(k)) for k in sizes)]))
        lines.append(_line(["random, same layers", *(_control(by_k.get(k)) for k in sizes)]))
    return lines


def _changes(rows: pd.DataFrame, sizes: Sequence[int]) -> list[str]:
    head = ["change off target, nats", *(f"top {k}" for k in sizes)]
    lines = [_line(head), _line(["---"] * len(head))]
    for (method, where), group in rows.groupby(["method", "where"], sort=False):
        by_k = {row["k"]: row for row in group.to_dict("records")}
        for column, what in _QUANTITIES.items():
            if group[column].notna().any():
                cells = [_change(by_k.get(k), column) for k in sizes]
                lines.append(_line([f"{NAMES[method, where]}: {what}", *cells]))
    return lines


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None or math.isnan(row["share"]):
        return ""
    share = f"{row['share']:.0%}".replace("%", " %").replace("-", "−")
    if math.isnan(row["ci_lo"]):
        return share
    ends = f"{100 * row['ci_lo']:.0f}, {100 * row['ci_hi']:.0f}".replace("-", "−")
    return f"{share} [{ends}]"


def _control(row: Mapping[str, Any] | None) -> str:
    if row is None or not row["n_controls"] or math.isnan(row["control_mean"]):
        return ""
    ends = f"{100 * row['control_lo']:.0f} to {100 * row['control_hi']:.0f}"
    return f"{100 * row['control_mean']:.0f} % ({ends}; p {row['p']:.2f})".replace("-", "−")


def _change(row: Mapping[str, Any] | None, column: str) -> str:
    if row is None or math.isnan(row[column]):
        return ""
    return f"{row[column]:+.2f}".replace("-", "−")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
