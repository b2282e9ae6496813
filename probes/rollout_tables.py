"""Rollouts in tables: rates of each arm, contrasts to a baseline, and what a change and a ban do together.

    rate         mean over rollouts
    contrast     mean of the paired difference arm − baseline, same task and same sample
    interaction  mean of (H+ban/X − H+ban) − (H/X − H) on the same task and sample: how much more the change X does
                 under a ban than without one; an X that only does what the ban does has one that cancels its effect

A measure that is undefined for a rollout (no failure: no repeat rate) leaves it, or its pair, out and is counted.
Families of Holm's correction (`probes.families`): all arms of one measure; in the factorial, all harnesses and changes
of one measure. Differences of shares and rates have bounded intervals, counts studentised ones.
Tasks are the clusters (several samples of a task are one). Intervals: `probes.stats`; everything within one model and
environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.families import corrected
from probes.rollout_measures import KEYS, ROLLOUT
from probes.stats import N_DRAWS, RATE, RngFactory, cluster_bootstrap

RATES = (
    *("model", "env", "arm", "harness", "change", "metric"),
    *("mean", "ci_lo", "ci_hi", "n", "n_clusters", "n_undefined"),
)
_TESTED = ("ci_lo", "ci_hi", "n", "n_clusters", "n_undefined", "n_unpaired", "p", "p_holm", "family_size")
CONTRASTS = ("model", "env", "metric", "arm", "baseline", "difference", *_TESTED)
EXTRACTIONS = ("model", "env", "arm", "harness", "change", "edit", "n", "n_steps", "share")
NOT_RECORDED = "not recorded"
FACTORIAL = (
    *("model", "env", "metric", "harness", "change"),
    *("by_change", "by_ban", "by_both", "interaction", *_TESTED),
)

_BAN = "+ban"
_CELL = ["model", "env"]
_ARM = ["arm", "harness", "change"]


def rates(rollouts: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The mean of each measure of each arm; the share of readable calls first, since all else stands on it.

    Args:
        rollouts: what `probes.rollout_measures.per_rollout` returns.
        rng_for: gives the streams `rollouts/rate/MODEL/ENV/ARM/METRIC`.
        n_draws: bootstrap draws.

    Returns:
        The columns of RATES, arms in the order of the rollouts; n counts rollouts with a value, n_undefined those
        without.

    Raises:
        InputError: a rollout stands twice, or an arm goes by two harnesses or changes.
    """
    _check(rollouts)
    lines = []
    for cell, group in rollouts.groupby(_CELL, sort=False):
        for names, rows in group.groupby(_ARM, sort=False):
            for metric in metrics(rollouts):
                known = rows[rows[metric].notna()]
                rng = rng_for("/".join(("rollouts/rate", *map(str, cell), str(names[0]), metric)))
                values = known[metric].astype(float)
                found = cluster_bootstrap(values, known["task_id"], rng, n_draws, bounds=_range(metric, RATE))
                counts = (found.n, found.n_clusters, len(rows) - len(known))
                lines.append((*cell, *names, metric, found.mean, found.lo, found.hi, *counts))
    return pd.DataFrame(lines, columns=list(RATES))


def contrasts(
    rollouts: pd.DataFrame, rng_for: RngFactory, baseline: str = "verbatim", n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """Each arm against the baseline arm, paired by task and sample.

    Args:
        rollouts: as `rates`.
        rng_for: gives the streams `rollouts/contrast/MODEL/ENV/ARM/METRIC`.
        baseline: the arm that is subtracted.
        n_draws: bootstrap draws.

    Returns:
        The columns of CONTRASTS: n pairs, n_undefined pairs in which a value is missing, n_unpaired rollouts of which
        only one of the two arms has the task and sample. A difference that is the same in every pair has no p and is
        not in its family; family_size is how many tests it holds.

    Raises:
        InputError: as `rates`, or a model and environment lack the baseline.
    """
    _check(rollouts)
    lines = []
    for cell, group in rollouts.groupby(_CELL, sort=False):
        arms = list(dict.fromkeys(group["arm"]))
        if baseline not in arms:
            raise InputError(
                f"The arm '{baseline}' was not run for {cell[0]} on {cell[1]}: name a baseline that was."
            )
        for metric in metrics(rollouts):
            for arm in arms:
                if arm == baseline:
                    continue
                values, counts = _paired(group, metric, (arm, baseline))
                rng = rng_for("/".join(("rollouts/contrast", *map(str, cell), arm, metric)))
                tests = _test(
                    values[arm] - values[baseline], counts, rng, n_draws, _range(metric, (-1.0, 1.0))
                )
                lines.append((*cell, metric, arm, baseline, *tests))
    return corrected(pd.DataFrame(lines, columns=list(CONTRASTS)), "rollout contrasts")


def factorial(rollouts: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """What a change does to a banned and to an unbanned harness, and the interaction.

    Args:
        rollouts: as `rates`.
        rng_for: gives the streams `rollouts/factorial/MODEL/ENV/HARNESS/CHANGE/METRIC`.
        n_draws: bootstrap draws.

    Returns:
        The columns of FACTORIAL, one row a measure, harness H and change X of which H, H/X, H+ban and H+ban/X were
        run, over the same rollouts: by_change = H/X − H, by_ban = H+ban − H, by_both = H+ban/X − H, and interaction =
        by_both − by_change − by_ban, whose interval and p follow.

    Raises:
        InputError: as `rates`.
    """
    _check(rollouts)
    lines = []
    for cell, group in rollouts.groupby(_CELL, sort=False):
        arms = {(row.harness, row.change): row.arm for row in group.drop_duplicates("arm").itertuples()}
        squares = [
            (harness, change, [arms[harness + ban, x] for ban in ("", _BAN) for x in ("none", change)])
            for harness, change in arms
            if change != "none"
            and all((harness + ban, x) in arms for ban in ("", _BAN) for x in ("none", change))
        ]
        for metric in metrics(rollouts):
            for harness, change, four in squares:
                values, counts = _paired(group, metric, four)
                plain, changed, banned, both = (values[arm] for arm in four)
                effects = [_mean(changed - plain), _mean(banned - plain), _mean(both - plain)]
                rng = rng_for("/".join(("rollouts/factorial", *map(str, cell), harness, change, metric)))
                apart = (both - banned) - (changed - plain)
                tests = _test(apart, counts, rng, n_draws, _range(metric, (-2.0, 2.0)))
                lines.append((*cell, metric, harness, change, *effects, *tests))
    return corrected(pd.DataFrame(lines, columns=list(FACTORIAL)), "rollout factorial")


def extractions(steps: pd.DataFrame) -> pd.DataFrame:
    """How often each edit was made to a reply to get its action, by arm.

    Args:
        steps: one row a step: model, env, arm, harness, change, given and extraction, a list of the edits' names.

    Returns:
        The columns of EXTRACTIONS: n of n_steps free steps had the edit, share their quotient, edits in the order of
        their names. Steps without the column or without a value, which older versions wrote, count as NOT_RECORDED.
    """
    free = steps[~steps["given"].astype(bool)]
    named = free["extraction"] if "extraction" in free else pd.Series(None, index=free.index, dtype=object)
    free = free.assign(edit=[each if isinstance(each, list) else [NOT_RECORDED] for each in named])
    lines = []
    for names, rows in free.groupby([*_CELL, *_ARM], sort=False):
        counts = rows["edit"].explode().dropna().value_counts()
        lines += [(*names, edit, int(n), len(rows), n / len(rows)) for edit, n in sorted(counts.items())]
    return pd.DataFrame(lines, columns=list(EXTRACTIONS))


def metrics(rollouts: pd.DataFrame) -> list[str]:
    """The measures among the columns of rollouts, the share of readable calls first."""
    found = [column for column in rollouts.columns if column not in {*KEYS, "end"}]
    return sorted(found, key=lambda column: column != "parseable_share")


def _paired(group: pd.DataFrame, metric: str, arms: Sequence[str]) -> tuple[pd.DataFrame, tuple[int, int]]:
    """Values [task_id, sample] × arm without gaps; pairs with an undefined value, rollouts without a partner."""
    rows = group[group["arm"].isin(arms)]
    n_arms = rows.groupby(["task_id", "sample"])["arm"].transform("size")
    whole = rows[n_arms == len(arms)]
    values = whole.assign(value=whole[metric].astype(float)).pivot(
        index=["task_id", "sample"], columns="arm", values="value"
    )
    values = values.reindex(columns=list(arms))
    known = values.dropna()
    return known, (len(values) - len(known), len(rows) - len(whole))


def _range(metric: str, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """The bounds, of a metric that is a share, a rate or a truth value; counts have none."""
    return None if metric.startswith("n_") else bounds


def _test(
    values: pd.Series,
    counts: tuple[int, int],
    rng: np.random.Generator,
    n_draws: int,
    bounds: tuple[float, float] | None,
) -> tuple[object, ...]:
    """Mean and the cells of _TESTED, those of the family still empty."""
    tasks = values.index.get_level_values("task_id")
    found = cluster_bootstrap(values, tasks, rng, n_draws, bounds=bounds)
    return (found.mean, found.lo, found.hi, found.n, found.n_clusters, *counts, found.p, math.nan, 0)


def _mean(values: pd.Series) -> float:
    return float(values.mean()) if len(values) else math.nan


def _check(rollouts: pd.DataFrame) -> None:
    """Refuse rollouts that could only be paired wrongly."""
    doubled = rollouts.duplicated(list(ROLLOUT))
    if doubled.any():
        first = rollouts.loc[doubled, list(ROLLOUT)].iloc[0]
        raise InputError(
            f"A rollout stands twice: {', '.join(f'{name} {key}' for name, key in first.items())}."
        )
    arms = rollouts[[*_CELL, *_ARM]].drop_duplicates()
    for once in ([*_CELL, "arm"], [*_CELL, "harness", "change"]):
        twice = arms.duplicated(once)
        if twice.any():
            name = arms.loc[twice, "arm"].iloc[0]
            raise InputError(
                f"The arm '{name}' and its harness and change do not belong to each other one to one."
            )
