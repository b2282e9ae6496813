"""The one table of `backfire mechanism`: what the top k heads recover, by method and metric, and what else changes.

    mechanism.csv   one row a pair of conditions, metric, method, place, k and kind of control: share with interval,
                    controls, p, off-target changes
    mechanism.md    the same for a README: shares of log p(a×) and of the margin side by side, every kind of control
                    beside the size that has them, off-target changes

Methods at the action positions come from `backfire joint` (joint.csv, joint_off_target.csv), the ablation at all
positions, whose losses on prose and code are read, from `backfire ablate` (ablate_removed.csv, ablate_controls.csv,
ablate_off_target.csv).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.run.schema import TABLES
from probes.effects.dose import SINGLE_CONTROLS as SINGLE
from probes.scoring.contrast import METRICS

COLUMNS = TABLES["mechanism"]
NAMES = {
    ("noise", "candidate"): "noising (z from `{from}`)",
    ("denoise", "candidate"): "denoising (z from `{to}`)",
    ("mean", "candidate"): "mean ablation",
    ("mean-role", "candidate"): "mean ablation, by role",
    ("resample", "candidate"): "resample ablation",
    ("zero", "candidate"): "zero ablation",
    ("optimal", "candidate"): "optimal ablation",
    ("knockout", "candidate"): "attention to the call knocked out",
    ("mean", "all"): "mean ablation, all positions",
    ("resample", "all"): "resample ablation, all positions",
    ("zero", "all"): "zero ablation, all positions",
}
KINDS = {
    "random": "random, same layers",
    "norm": "equal output norm",
    "damage": "equal damage",
    "direction": "random direction",
    "previous_token": "previous-token heads",
    "sink": "sink heads",
    "complement": "all other heads",
}
SHOWN = ("logprob", "margin")
_QUANTITIES = {
    "reference_change": "log p of the reference action",
    "sem_change": "Δsem",
    "prose_change": "loss on prose, a token",
    "code_change": "loss on code, a token",
}
_Row = Mapping[str, Any]


def from_joint(joint: pd.DataFrame, off_target: pd.DataFrame) -> pd.DataFrame:
    """Rows at the action positions, of the sums among the metrics; COLUMNS."""
    key_of = ["env", "from", "to", "method", "k"]
    wide = off_target.pivot_table(index=key_of, columns="quantity", values="change")
    sem = off_target[off_target["quantity"] == "sem"].set_index(key_of)["equivalent"]
    lines = []
    for row in joint[joint["metric"].isin(METRICS)].to_dict("records"):
        key = tuple(row[name] for name in key_of)
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
    """Rows of an ablation at all positions, whose share is of Δcopy; COLUMNS."""
    removed, controls, off_target = (one[one["how"] == how] for one in (removed, controls, off_target))
    of_set = {
        str(label): group.set_index("quantity")
        for label, group in off_target[off_target["kind"] == "selected"].groupby("set")
    }
    own = removed[(removed["kind"] == "selected") & removed["metric"].isin(METRICS)]
    lines = []
    for row in own.to_dict("records"):
        changes = of_set[row["set"]]
        change = changes["change"]
        beside = controls[(controls["set"] == row["set"]) & (controls["metric"] == row["metric"])]
        for against in beside.to_dict("records"):
            lines.append(
                {
                    **{"env": env, "from": "pre", "to": "neut", "method": how, "where": "all"},
                    **{"direction": "necessity", "n_draws": 1},
                    **{name: row[name] for name in COLUMNS if name in row},
                    **{name: against[name] for name in ("n_controls", "percentile", "p")},
                    "controls": against["control"],
                    "control_mean": against["random_mean"],
                    "control_lo": against["random_lo"],
                    "control_hi": against["random_hi"],
                    "reference_change": change.get("reference_logprob", math.nan),
                    "sem_change": change["sem"],
                    "sem_equivalent": str(changes["equivalent"]["sem"]).lower(),
                    "prose_change": change["prose_loss"],
                    "code_change": change["code_loss"],
                }
            )
    return pd.DataFrame(lines).reindex(columns=list(COLUMNS))


def markdown(table: pd.DataFrame) -> str:
    """The table for a README, an environment and pair after another: shares, controls, off-target changes."""
    parts = []
    for (env, low, high), rows in table.groupby(["env", "from", "to"], sort=False):
        sizes = sorted(set(rows["k"]))
        parts += [f"### {env}, {low} → {high}, {_counts(rows['n'])} items", ""]
        parts += ["Shares of log p(a×) / of the margin over the reference.", "", *_shares(rows, sizes), ""]
        for k in sizes:
            if set(rows.loc[rows["k"] == k, "controls"]) - {"random", ""}:
                parts += [*_controls(rows[rows["k"] == k], k), ""]
        parts += [*_changes(rows, sizes), ""]
    return "\n".join(parts)


def _counts(n: pd.Series) -> str:
    low, high = int(n.min()), int(n.max())
    return str(low) if low == high else f"{low} to {high}"


def _shares(rows: pd.DataFrame, sizes: Sequence[int]) -> list[str]:
    """Every size: the share, below it the random sets'."""
    head = ["share of the difference", *(f"top {k}" for k in sizes)]
    lines = [_line(head), _line(["---"] * len(head))]
    for _, group in rows.groupby(["method", "where"], sort=False):
        name = f"{_name(group)}: {group['direction'].iloc[0]}"
        lines.append(_line([name, *(_cell(group, k, "", _share) for k in sizes)]))
        lines.append(_line([KINDS["random"], *(_cell(group, k, "random", _control) for k in sizes)]))
    return lines


def _controls(rows: pd.DataFrame, k: int) -> list[str]:
    """One size: every kind of control, and the excess over random sets with its test over clusters."""
    kinds = [kind for kind in KINDS if kind in set(rows["controls"])]
    head = [f"top {k}", "excess over random sets (Holm p)", *(KINDS[kind] for kind in kinds)]
    lines = [_line(head), _line(["---"] * len(head))]
    for _, group in rows.groupby(["method", "where"], sort=False):
        if group["excess"].isna().all() and set(group["controls"]) <= {"random", ""}:
            continue
        cells = [_cell(group, k, "random", _excess), *(_cell(group, k, kind, _control) for kind in kinds)]
        lines.append(_line([_name(group), *cells]))
    return lines


def _changes(rows: pd.DataFrame, sizes: Sequence[int]) -> list[str]:
    head = ["change off target, nats", *(f"top {k}" for k in sizes)]
    lines = [_line(head), _line(["---"] * len(head))]
    for _, group in rows[rows["metric"] == SHOWN[0]].groupby(["method", "where"], sort=False):
        by_k = {row["k"]: row for row in group.to_dict("records")}
        for column, what in _QUANTITIES.items():
            if group[column].notna().any():
                cells = [_change(by_k.get(k), column) for k in sizes]
                lines.append(_line([f"{_name(group)}: {what}", *cells]))
    return lines


def _name(group: pd.DataFrame) -> str:
    row = group.iloc[0]
    return NAMES[row["method"], row["where"]].format(**{"from": row["from"], "to": row["to"]})


def _cell(group: pd.DataFrame, k: int, controls: str, show: Callable[[_Row], str]) -> str:
    """The metrics shown, side by side; `controls` empty takes any row of the set."""
    found = group[group["k"] == k]
    if controls:
        found = found[found["controls"] == controls]
    shown = []
    for metric in SHOWN:
        rows = found[found["metric"] == metric].to_dict("records")
        shown.append(show(rows[0]) if rows else "")
    return " / ".join(one or "–" for one in shown) if any(shown) else ""


def _share(row: _Row) -> str:
    if math.isnan(row["share"]):
        return ""
    return f"{_percent(row['share'])}{_ends(row['ci_lo'], row['ci_hi'])}"


def _control(row: _Row) -> str:
    """Mean with the extremes of drawn sets; of one set, its interval."""
    if not row["n_controls"] or math.isnan(row["control_mean"]):
        return ""
    if row["controls"] in SINGLE:
        return f"{_percent(row['control_mean'])}{_ends(row['control_lo'], row['control_hi'])}"
    ends = f"{100 * row['control_lo']:.0f} to {100 * row['control_hi']:.0f}"
    return f"{_percent(row['control_mean'])} ({ends})".replace("-", "−")


def _excess(row: _Row) -> str:
    if math.isnan(row["excess"]):
        return ""
    holm = "" if math.isnan(row["excess_p_holm"]) else f" (p {row['excess_p_holm']:.3f})"
    return f"{_percent(row['excess'])}{_ends(row['excess_lo'], row['excess_hi'])}{holm}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %".replace("-", "−")


def _ends(low: float, high: float) -> str:
    return "" if math.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]".replace("-", "−")


def _change(row: _Row | None, column: str) -> str:
    if row is None or math.isnan(row[column]):
        return ""
    return f"{row[column]:+.2f}".replace("-", "−")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
