"""The share of a difference of two conditions that head sets explain, by several methods, beside controls.

    method     what is changed at the action positions               effect (nats)                      direction
    noise      TO, z of the set from FROM                               L(TO) − L(patched)                 necessity
    denoise    FROM, z of the set from TO                               L(patched) − L(FROM)               sufficiency
    mean, mean-role, resample, zero, optimal
               z of the set replaced, in FROM and in TO                 Δ − Δ under it                     necessity
    knockout   TO, the set cannot attend to the call in the record      L(TO) − L(knockout)                necessity

    L          any metric of `probes.scoring.contrast`: log p(a×), its margin over the reference, its diverging tokens
    Δ          L(TO) − L(FROM): Δcopy with pre → neut; with neut_other → neut the part that is the recorded call's own
    share      Σ effects / Σ Δ over items, both in one metric: a ratio of means
    excess     share of the set − mean share of its controls, item by item before it is summed; its p:
               `probes.stats.bootstrap`
    percentile of 100 controls, how many have a smaller share than the set
    p          (b + 1) / (m + 1), b of m controls having a share as large or larger
    draw_sd    resample: SD over draws of the share that one draw of every item gives. An item's effect is the mean over
               draws in an order of donors of its own: the interval over items includes the variance of the draws, and
               not that of the reference set from which all donors are drawn. Controls take fewer draws: excess,
               percentile and p compare them with the selected set under the same first draws

Controls of kind random, norm, damage and direction are drawn: their mean, extremes, p and percentile. Of
previous_token, sink and complement there is one set: its share (control_mean) with its interval (control_lo,
control_hi), and no p.

Off target, under the same change: the reference action's log-probability, and Δsem (what the mark of failure does).
Denoising and noising: Heimersheim & Nanda 2024 (arXiv:2404.15255); knockout: Geva et al. 2023 (arXiv:2304.14767);
optimal: Li & Janson 2024 (arXiv:2409.09951); p: Phipson & Smyth 2010. Clusters as in `probes.stats.bootstrap`. All
rows are of one model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.effects.dose import CONTROLS as CONTROL_KINDS
from probes.effects.dose import SINGLE_CONTROLS, among
from probes.stats.bootstrap import (
    N_DRAWS,
    Interval,
    RngFactory,
    cluster_bootstrap,
    cluster_ratios,
    equivalent,
)
from probes.stats.frame_checks import MIN_DELTA, item_columns, rectangle, require

ABLATIONS = ("mean", "mean-role", "resample", "zero", "optimal")
METHODS = ("noise", "denoise", *ABLATIONS, "knockout")
NECESSITY = ("noise", *ABLATIONS, "knockout")
_PAIR = ("from", "to")
ROW = ("env", *_PAIR, "metric", "item_id", "task_id", "method", "set", "kind", "k", "effect_nats", "delta")
OFF_ROW = ("env", *_PAIR, "item_id", "task_id", "method", "set", "k", "quantity", "whole", "under")


def joint_shares(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The share of each selected set by each method, beside its controls of each kind.

    Args:
        rows: env, from, to, metric, item_id, task_id, method, set, kind (selected, or a kind of control), k,
            effect_nats and delta (the item's TO − FROM in this metric): one row an item, pair, metric, method and set;
            every set on every item of its environment. `draws`, where it is a column: the effects of single draws, or
            nothing; `paired_nats`, likewise: the effect that the controls of a selected set are compared with (under
            the draws that they took), in place of effect_nats.
        rng_for: gives the streams `carried/ENV/FROM>TO/METHOD`, the same for all metrics.
        n_draws: bootstrap draws.

    Returns:
        Columns as in joint.csv but those of Holm's correction, one row a pair, metric, method, selected set and kind
        of control. Shares are NaN where the mean |delta| is too small to divide by.

    Raises:
        InputError: a column or number is missing, a row occurs twice, a set lacks an item.
    """
    require(rows, ROW, [*_PAIR, "metric", "item_id", "method", "set"])
    lines = []
    keys = ["env", *_PAIR, "method", "metric"]
    for (env, low, high, method, metric), group in rows.groupby(keys, sort=False):
        effects = rectangle(group, ["kind", "set", "k"], "effect_nats")
        paired = effects
        if "paired_nats" in group.columns:
            paired = rectangle(group, ["kind", "set", "k"], "paired_nats")
        items = item_columns(group, effects.index)
        rng = rng_for(f"carried/{env}/{low}>{high}/{method}")
        direction = "necessity" if method in NECESSITY else "sufficiency"
        spread = _draw_spread(group, float(items["delta"].sum()))
        about = {"env": env, "from": low, "to": high, "metric": metric, "method": method}
        lines += [
            {**about, "direction": direction, **cells}
            for cells in _of_method(effects, paired, items, spread, rng, n_draws)
        ]
    return pd.DataFrame(lines)


def _draw_spread(group: pd.DataFrame, delta: float) -> dict[str, tuple[int, float]]:
    """Set → number of draws, and the SD over draws of the share that one draw of every item gives."""
    if "draws" not in group.columns:
        return {}
    found = {}
    several = group[[isinstance(one, list | tuple) for one in group["draws"]]]
    for label, rows in several.groupby("set"):
        counts = {len(one) for one in rows["draws"]}
        if len(counts) > 1:
            raise InputError(
                f"The items have {min(counts)} to {max(counts)} draws of {label}: finish the run."
            )
        shares = np.array(rows["draws"].tolist(), dtype=float).sum(axis=0) / delta
        found[str(label)] = (counts.pop(), float(shares.std(ddof=1)))
    return found


def _of_method(
    effects: pd.DataFrame,
    paired: pd.DataFrame,
    items: pd.DataFrame,
    spread: dict[str, tuple[int, float]],
    rng: np.random.Generator,
    n_draws: int,
) -> list[dict[str, object]]:
    """One method in one environment: the columns after `direction`, all from the same bootstrap draws."""
    delta = items["delta"].to_numpy(float)
    small = abs(float(delta.mean())) < MIN_DELTA
    place = {column: at for at, column in enumerate(effects.columns)}
    nats, compared_nats = (table.to_numpy(float) for table in (effects, paired))
    pairs = []
    for column in place:
        if column[0] == "selected":
            kinds = [kind for kind in CONTROL_KINDS if _controls(place, kind, column)]
            pairs += [(column, kind) for kind in kinds or [""]]
    columns: list[np.ndarray] = []
    beside_of = []
    for column, kind in pairs:
        own = nats[:, place[column]]
        against = nats.take(_controls(place, kind, column), axis=1)
        mean = against.mean(axis=1) if against.size else np.full_like(own, math.nan)
        columns += [own, compared_nats[:, place[column]] - mean, mean]
        beside_of.append(against)
    over = np.repeat(delta[:, None], len(columns), axis=1)
    found = cluster_ratios(np.stack(columns, axis=1), over, items["task_id"], rng, n_draws)
    lines: list[dict[str, object]] = []
    for index, (column, kind) in enumerate(pairs):
        share, excess, beside = found[3 * index : 3 * index + 3]
        shares = beside_of[index].sum(axis=0) / delta.sum() if not small else np.array([])
        if kind in SINGLE_CONTROLS:
            control = {
                **_cells("control_mean", "control", beside, small),
                **{"n_controls": len(shares), "percentile": math.nan, "p": math.nan},
            }
        else:
            compared = float(compared_nats[:, place[column]].sum() / delta.sum()) if not small else math.nan
            names = ("control_mean", "control_lo", "control_hi", "n_controls", "p", "percentile")
            control = dict(zip(names, among(compared, shares), strict=True))
        undefined = small or not kind
        label, k = column[1], int(column[2])
        n_of, sd = spread.get(label, (1, math.nan))
        lines.append(
            {
                **{"set": label, "k": k, **_cells("share", "ci", share, small)},
                **{"effect_nats": float(nats[:, place[column]].mean()), "controls": kind, **control},
                **{
                    **_cells("excess", "excess", excess, undefined),
                    "excess_p": math.nan if undefined else excess.p,
                },
                **{"n_draws": n_of, "draw_sd": math.nan if small else sd},
                **{"n": share.n, "n_clusters": share.n_clusters},
            }
        )
    return lines


def _controls(
    place: Mapping[tuple[str, str, int], int], kind: str, column: tuple[str, str, int]
) -> list[int]:
    """Places of the controls of one kind drawn for a selected set: labelled after it, as `top16/random3`."""
    return [at for one, at in place.items() if one[0] == kind and one[1].startswith(f"{column[1]}/")]


def _cells(mean: str, ends: str, share: Interval, undefined: bool) -> dict[str, float]:
    values = (math.nan,) * 3 if undefined else share.cells
    return dict(zip((mean, f"{ends}_lo", f"{ends}_hi"), values, strict=True))


def off_target(rows: pd.DataFrame, delta: float, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """What a change that removes Δ does to what it should leave alone, with an equivalence bound.

    Args:
        rows: env, from, to, item_id, task_id, method, set, k, quantity (reference | sem), whole and under (nats).
        delta: nats; a change whose interval lies inside ±delta counts as none.
        rng_for: gives the streams `off target/ENV/FROM>TO/METHOD/SET/QUANTITY`.
        n_draws: bootstrap draws.

    Returns:
        Columns as in joint_off_target.csv: means over items, and the mean paired change with its interval.

    Raises:
        InputError: a column or number is missing, a row occurs twice, or delta is not above 0.
    """
    require(rows, OFF_ROW, [*_PAIR, "item_id", "method", "set", "quantity"])
    if not delta > 0:
        raise InputError("The bound of an equivalence is above 0.")
    lines = []
    keys = ["env", *_PAIR, "method", "set", "quantity"]
    for (env, low, high, method, label, quantity), group in rows.groupby(keys, sort=False):
        rng = rng_for(f"off target/{env}/{low}>{high}/{method}/{label}/{quantity}")
        change = (group["under"] - group["whole"]).to_numpy(float)
        found = cluster_bootstrap(change, group["task_id"], rng, n_draws)
        lines.append(
            {
                **{"env": env, "from": low, "to": high, "method": method, "set": label},
                **{"k": int(group["k"].iloc[0]), "quantity": quantity},
                **{name: float(group[name].mean()) for name in ("whole", "under")},
                **{**found.columns("change"), "delta": delta, "equivalent": equivalent(found, delta)},
            }
        )
    return pd.DataFrame(lines)
