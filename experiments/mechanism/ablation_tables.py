"""From the rows of an ablation study to its tables; all have the column `how`, all but two the column `metric`.

ablate.csv               every measure under every set
ablate_removed.csv       share of the difference that a set removes
ablate_controls.csv      each size against its controls
ablate_dose.csv          the whole dose curve against the controls'
ablate_off_target.csv    what else changes, and whether within ±δ
ablate_control_sets.csv  how well controls match, and their size

With v(c) the metric under condition c (mean over draws):

    copy = v(to) − v(from)        G = v(pre) − v(fail)        sem = v(fail) − v(neut)        (where both were run)
    repair, margin_shift, reference_logprob                   of the reference action; of metric logprob alone
    draw_sd    standard deviation, over the draws of the donors, of the share that the set removes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.heads.control_sets import NamedSet
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session
from mech.errors import InputError
from probes.effects.dose import against_controls, dose_areas, dose_curve, share_removed
from probes.effects.off_target import off_target_changes
from probes.scoring.contrast import FORMS
from probes.scoring.text_loss import LOSSES
from probes.stats.families import corrected

_KEYS: Sequence[str] = ("how", "set", "kind", "k", "item_id", "task_id")
ON_ITEMS: Sequence[str] = ("sem", "reference_logprob")
"""Off-target quantities of items, in nats; those of LOSSES are in nats a token."""
LOSS = "loss"
"""The value of `metric` in the rows of losses."""


def measures_of(
    scores: Mapping[str, Mapping[str, Sequence[float]]], metric: str, pair: tuple[str, str], known: bool
) -> dict[str, list[float]]:
    """Measure → a value a draw, of one row's scores; see the module. `known`: the item has a reference action."""
    v = {name: np.array(values, dtype=float) for name, values in scores[metric].items()}
    found = {"copy": v[pair[1]] - v[pair[0]]}
    if {"pre", "fail"} <= set(v):
        found["G"] = v["pre"] - v["fail"]
    if {"neut", "fail"} <= set(v):
        found["sem"] = v["fail"] - v["neut"]
    if metric == "logprob" and known:
        reference = {name: np.array(values, dtype=float) for name, values in scores["reference"].items()}
        found["reference_logprob"] = reference[pair[0]]
        if "G" in found:
            found["repair"] = reference["fail"] - reference["pre"]
            found["margin_shift"] = found["repair"] + found["G"]
    return {name: values.tolist() for name, values in found.items()}


def long_draws(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows of items, one line a metric, measure and draw."""
    lines: list[list[Any]] = []
    for row in rows[rows["item_id"] != "prose"].to_dict("records"):
        keys = [row[name] for name in _KEYS]
        known = row["references"] == "gold"
        for metric in (name for name in FORMS if name in row["scores"]):
            try:
                found = measures_of(row["scores"], metric, (row["from"], row["to"]), known)
            except KeyError as lacking:
                raise InputError(
                    f"The row '{row['id']}' of ablate.jsonl has no {lacking} in its scores: restore or delete that "
                    "line."
                ) from lacking
            lines += [
                [*keys, metric, name, draw, value]
                for name, values in found.items()
                for draw, value in enumerate(values)
            ]
    return pd.DataFrame(lines, columns=[*_KEYS, "metric", "measure", "draw", "value"])


def long_values(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a metric and measure: means over draws; losses are means over passages or sequences."""
    draws = long_draws(rows)
    means = draws.groupby([*_KEYS, "metric", "measure"], sort=False)["value"].mean().reset_index()
    lines = [
        [*(row[name] for name in _KEYS), LOSS, name, sum(values) / len(values)]
        for row in rows[rows["item_id"] == "prose"].to_dict("records")
        for name, values in _losses(row).items()
    ]
    losses = pd.DataFrame(lines, columns=[*_KEYS, "metric", "measure", "value"])
    return pd.concat([part for part in (means, losses) if len(part)], ignore_index=True)


def long_off_target(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a quantity and unit: items, and passages or sequences, each of which is a cluster of its own."""
    long = long_values(rows)
    own = long[long["measure"].isin(ON_ITEMS) & (long["metric"] == "logprob")].drop(columns="metric")
    lines = [
        [row["how"], row["set"], row["kind"], row["k"], f"{name}/{index}", f"{name}/{index}", name, value]
        for row in rows[rows["item_id"] == "prose"].to_dict("records")
        for name, values in _losses(row).items()
        for index, value in enumerate(values)
    ]
    units = pd.DataFrame(lines, columns=own.columns)
    return pd.concat([part for part in (own, units) if len(part)], ignore_index=True)


def _losses(row: dict[Any, Any]) -> dict[str, list[float]]:
    losses = row.get("losses")
    if not isinstance(losses, dict):
        raise InputError(f"The row '{row['id']}' of ablate.jsonl has no losses: restore or delete that line.")
    return losses


def by_how(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(way, its rows with those of the unablated model), in the order in which the ways were run."""
    whole = rows[rows["kind"] == "none"]
    for how in dict.fromkeys(rows.loc[rows["kind"] != "none", "how"]):
        yield str(how), pd.concat([whole, rows[rows["how"] == how]], ignore_index=True)


def ablation_tables(
    folder: RunFolder, session: Session, sets: Sequence[NamedSet], delta: float, delta_loss: float
) -> dict[str, pd.DataFrame]:
    """Every table, from all rows of the folder; control_sets where there are controls."""
    kept = folder.rows("ablate")
    texts = kept["item_id"] == "prose"
    rows = pd.concat([session.clustered(kept[~texts]), kept[texts]], ignore_index=True)
    draws, rng_for = long_draws(rows), session.rng_for
    names = ("ablate", "ablate_removed", "ablate_controls", "ablate_dose", "ablate_off_target")
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
    for how, long in by_how(long_values(rows)):
        for metric in [name for name in (*FORMS, LOSS) if name in set(long["metric"])]:
            group = long[long["metric"] == metric].drop(columns=["how", "metric"])

            def named(table: pd.DataFrame, how: str = how, metric: str = metric) -> pd.DataFrame:
                return _first(table, {"how": how, "metric": metric})

            parts["ablate"].append(named(dose_curve(group, rng_for)))
            if metric == LOSS:
                continue
            removed = share_removed(group, rng_for)
            parts["ablate_controls"].append(named(against_controls(removed)))
            own = draws[((draws["how"] == how) | (draws["kind"] == "none")) & (draws["metric"] == metric)]
            parts["ablate_removed"].append(named(removed.assign(draw_sd=removed["set"].map(draw_sds(own)))))
            shares = [name for name in ("copy", "G") if name in set(group["measure"])]
            parts["ablate_dose"].append(named(dose_areas(group, rng_for, shares)))
    for how, units in by_how(long_off_target(rows)):
        parts["ablate_off_target"].append(_first(_changes(units, delta, delta_loss, rng_for), {"how": how}))
    whole = {name: pd.concat(found, ignore_index=True) for name, found in parts.items()}
    whole |= {name: corrected(whole[name], name) for name in ("ablate_controls", "ablate_dose")}
    controls = [
        {
            **{"set": one.label, "kind": one.kind, "k": one.k, "n_heads": len(one.heads)},
            **{"ratio": one.ratio, "displaced": one.displaced, "reached": one.reached},
        }
        for one in sets
        if one.kind not in ("none", "selected")
    ]
    return {**whole, "ablate_control_sets": pd.DataFrame(controls)} if controls else whole


def draw_sds(draws: pd.DataFrame) -> dict[str, float]:
    """Set → standard deviation over draws of the share of `copy` that it removes; NaN with one draw."""
    copy = draws[draws["measure"] == "copy"]
    whole = copy[copy["kind"] == "none"].set_index("item_id")["value"]
    found = {}
    for label, group in copy[copy["kind"] != "none"].groupby("set"):
        means = group.groupby("draw")["value"].mean()
        base = float(whole.mean())
        found[str(label)] = float((1 - means / base).std(ddof=1)) if base and len(means) > 1 else np.nan
    return found


def _changes(
    units: pd.DataFrame, delta: float, delta_loss: float, rng_for: Callable[[str], np.random.Generator]
) -> pd.DataFrame:
    """Off-target changes of one way: of the quantities that were measured under it."""
    under = set(units.loc[units["kind"] != "none", "measure"])
    bounds = {**dict.fromkeys(ON_ITEMS, delta), **dict.fromkeys(LOSSES, delta_loss)}
    deltas = {name: bound for name, bound in bounds.items() if name in under}
    return off_target_changes(units.drop(columns="how"), deltas, rng_for)


def _first(table: pd.DataFrame, keys: Mapping[str, str]) -> pd.DataFrame:
    """The table with these columns in front."""
    return table.assign(**keys)[[*keys, *table.columns]]
