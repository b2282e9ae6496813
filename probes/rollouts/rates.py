"""Rollouts in tables: rates of each arm, contrasts to a baseline, random controls, and a change and a ban together.

    rate         mean over rollouts
    contrast     mean of the paired difference arm − baseline, same task and same sample
    control      the contrast of a chosen set of heads among those of random sets, all on the same rollouts
    interaction  mean of (H+ban/X − H+ban) − (H/X − H) on the same task and sample: how much more the change X does
                 under a ban than without one; an X that only does what the ban does has one that cancels its effect

A measure that is undefined for a rollout (no failure: no repeat rate) leaves it, or its pair, out and is counted.
Tests of paired differences are sign flips over tasks (several samples of a task are one), of which 0/1 measures make
McNemar's test: a task on which both arms did the same (n_clusters − n_changed of them) tells nothing of a sign. A rate
itself has an interval and no p: "the probability is zero" is no hypothesis. Shares, rates and their differences have
bounded intervals, counts studentised ones. Families of Holm's correction: `probes.stats.families`; arms of random heads
are controls and no members. Everything is within one model and environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.rollouts.steps import KEYS, ROLLOUT
from probes.stats.bootstrap import N_DRAWS, RATE, RngFactory, cluster_bootstrap
from probes.stats.families import corrected
from probes.stats.frame_checks import require_once

NOT_RECORDED = "not recorded"

_BAN = "+ban"
_RANDOM = "-random"
_TIE = 1e-12  # differences of rates that differ in the last bit are equal
_CHANCE = "repeat_per_chance"  # undefined where a rollout had none
_CELL = ["model", "env"]
_ARM = ["arm", "harness", "change"]


def rates(rollouts: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The mean of each measure of each arm; the share of readable calls first, as all else depends on it.

    Args:
        rollouts: what `probes.rollouts.steps.per_rollout` returns.
        rng_for: gives the streams `rollouts/rate/MODEL/ENV/ARM/METRIC`.
        n_draws: bootstrap draws.

    Returns:
        model, env, arm, harness, change, metric, mean, ci_lo, ci_hi, n, n_clusters, n_undefined, n_chance, arms in the
        order of the rollouts; n counts rollouts with a value, n_undefined those
        without, n_chance those with a value that had a chance to repeat (a failure with a free step after it).

    Raises:
        InputError: a rollout occurs twice, or an arm goes by two harnesses or changes.
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
                lines.append(
                    {
                        **dict(zip((*_CELL, *_ARM, "metric"), (*cell, *names, metric), strict=True)),
                        **{**found.columns(), "n_undefined": len(rows) - len(known)},
                        "n_chance": int(known[_CHANCE].notna().sum()),
                    }
                )
    return pd.DataFrame(lines)


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
        model, env, metric, arm, baseline, baseline_mean, arm_mean, difference and its test, over n pairs, those in
        which both arms have a value: the two means and their difference, n_changed the tasks on which the arms
        differ, n_chance the pairs in which both arms had a chance to repeat, n_undefined pairs in which a value is
        missing, n_unpaired rollouts of which only one of the two arms has the task and sample. p is NaN where it
        could not reach .05, and such a test is in no family; family_size is how many tests the family holds, 0 for
        arms of random heads.

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
                pairs = _paired(group, metric, (arm, baseline))
                rng = rng_for("/".join(("rollouts/contrast", *map(str, cell), arm, metric)))
                of, to = (pairs.values[name] for name in (arm, baseline))
                lines.append(
                    {
                        **dict(zip(_CELL, cell, strict=True)),
                        **{"metric": metric, "arm": arm, "baseline": baseline},
                        **{"baseline_mean": _mean(to), "arm_mean": _mean(of), "difference": _mean(of - to)},
                        **_test(of - to, pairs, rng, n_draws, _range(metric, (-1.0, 1.0))),
                    }
                )
    return corrected(pd.DataFrame(lines), "rollout contrasts")


def controls(rollouts: pd.DataFrame) -> pd.DataFrame:
    """What chosen heads change beside what random sets of as many heads change, on the same rollouts.

    Args:
        rollouts: as `rates`; arms HARNESS/CHANGE with their controls HARNESS/CHANGE-random0, …, and HARNESS.

    Returns:
        model, env, metric, arm, baseline, difference, n_controls, control_mean, control_lo, control_hi, n_as_far, n,
        n_clusters, n_undefined, p, p_holm, family_size: one row a measure and arm of which random draws were run: its
        difference to HARNESS, the mean, least and largest difference of the n_controls random sets, all over the n
        rollouts in which the arm, HARNESS and every control have a value, and p = (n_as_far + 1) / (n_controls + 1),
        n_as_far being the controls that change the measure at least as much in either direction (Phipson & Smyth
        2010). p is NaN where so few sets could not reach .05, and where the arm changes nothing.

    Raises:
        InputError: as `rates`.
    """
    _check(rollouts)
    lines = []
    for cell, group in rollouts.groupby(_CELL, sort=False):
        named = {row.arm: (row.harness, row.change) for row in group.drop_duplicates("arm").itertuples()}
        baselines = {harness: arm for arm, (harness, change) in named.items() if change == "none"}
        for metric in metrics(rollouts):
            for arm, (harness, change) in named.items():
                drawn = [one for one, (of, x) in named.items() if of == harness and is_draw_of(x, change)]
                if not drawn or harness not in baselines:
                    continue
                pairs = _paired(group, metric, (baselines[harness], arm, *drawn))
                of = {
                    one: _mean(pairs.values[one] - pairs.values[baselines[harness]]) for one in (arm, *drawn)
                }
                lines.append(
                    {
                        **dict(zip(_CELL, cell, strict=True)),
                        **{"metric": metric, "arm": arm, "baseline": baselines[harness]},
                        **_among(of.pop(arm), [*of.values()], pairs),
                    }
                )
    return corrected(pd.DataFrame(lines), "rollout controls")


def is_draw_of(change: str, selected: str) -> bool:
    """Whether a change is a random control of another: knockout-random3 of knockout."""
    head, found, draw = change.rpartition(_RANDOM)
    return bool(found) and head == selected and draw.isdigit()


def is_random(change: str) -> bool:
    """Whether a change (or an arm's name) is of random heads."""
    return _RANDOM in change


def _among(found: float, drawn: Sequence[float], pairs: _Pairs) -> dict[str, object]:
    """The columns of `controls` from difference to p."""
    numbers = ("difference", "control_mean", "control_lo", "control_hi", "p")
    about: dict[str, object] = {
        **{**dict.fromkeys(numbers, math.nan), "n_controls": len(drawn), "n_as_far": 0},
        **{"n": len(pairs.values), "n_undefined": pairs.n_undefined},
        "n_clusters": int(pairs.values.index.get_level_values("task_id").nunique()),
    }
    if not len(pairs.values):
        return about
    as_far = sum(abs(one) >= abs(found) - _TIE for one in drawn)
    testable = 1 / (len(drawn) + 1) <= 0.05
    p = (as_far + 1) / (len(drawn) + 1) if testable else math.nan
    extremes = {"control_lo": min(drawn), "control_hi": max(drawn)}
    return {
        **{**about, "difference": found, "control_mean": float(np.mean(drawn)), **extremes},
        **{"n_as_far": as_far, "p": p},
    }


def factorial(rollouts: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """What a change does to a banned and to an unbanned harness, and the interaction.

    Args:
        rollouts: as `rates`.
        rng_for: gives the streams `rollouts/factorial/MODEL/ENV/HARNESS/CHANGE/METRIC`.
        n_draws: bootstrap draws.

    Returns:
        model, env, metric, harness, change, the four effects and the test: one row a measure, harness H and change X
        of which H, H/X, H+ban and H+ban/X were run, over the same rollouts: by_change = H/X − H, by_ban = H+ban − H,
        by_both = H+ban/X − H, and interaction = by_both − by_change − by_ban, whose interval and p follow.

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
                pairs = _paired(group, metric, four)
                plain, changed, banned, both = (pairs.values[arm] for arm in four)
                alone = {"by_change": _mean(changed - plain), "by_ban": _mean(banned - plain)}
                rng = rng_for("/".join(("rollouts/factorial", *map(str, cell), harness, change, metric)))
                interaction = (both - banned) - (changed - plain)
                lines.append(
                    {
                        **dict(zip(_CELL, cell, strict=True)),
                        **{"metric": metric, "harness": harness, "change": change, **alone},
                        **{"by_both": _mean(both - plain), "interaction": _mean(interaction)},
                        **_test(interaction, pairs, rng, n_draws, _range(metric, (-2.0, 2.0))),
                    }
                )
    return corrected(pd.DataFrame(lines), "rollout factorial")


def extractions(steps: pd.DataFrame) -> pd.DataFrame:
    """How often each edit was made to a reply to get its action, by arm.

    Args:
        steps: one row a step: model, env, arm, harness, change, given and extraction, a list of the edits' names.

    Returns:
        model, env, arm, harness, change, edit, n, n_steps, share: n of n_steps free steps had the edit, share their
        quotient, edits in the order of their names. Steps without the column or without a value, which older versions
        wrote, count as NOT_RECORDED.
    """
    free = steps[~steps["given"].astype(bool)]
    named = free["extraction"] if "extraction" in free else pd.Series(None, index=free.index, dtype=object)
    free = free.assign(edit=[each if isinstance(each, list) else [NOT_RECORDED] for each in named])
    lines = []
    for names, rows in free.groupby([*_CELL, *_ARM], sort=False):
        counts = rows["edit"].explode().dropna().value_counts()
        arm = dict(zip((*_CELL, *_ARM), names, strict=True))
        lines += [
            {**arm, "edit": edit, "n": int(n), "n_steps": len(rows), "share": n / len(rows)}
            for edit, n in sorted(counts.items())
        ]
    return pd.DataFrame(lines)


def metrics(rollouts: pd.DataFrame) -> list[str]:
    """The measures among the columns of rollouts, the share of readable calls first."""
    found = [column for column in rollouts.columns if column not in {*KEYS, "end"}]
    return sorted(found, key=lambda column: column != "parseable_share")


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Rollouts that several arms share.

    values: [task_id, sample] × arm, without gaps; n_chance: of these, those in which every arm had a chance to repeat;
    n_undefined: shared rollouts in which a value is missing; n_unpaired: rollouts that some arm lacks.
    """

    values: pd.DataFrame
    n_chance: int
    n_undefined: int
    n_unpaired: int


def _paired(group: pd.DataFrame, metric: str, arms: Sequence[str]) -> _Pairs:
    rows = group[group["arm"].isin(arms)]
    n_arms = rows.groupby(["task_id", "sample"])["arm"].transform("size")
    shared = rows[n_arms == len(arms)]
    wide = {
        name: shared.assign(value=shared[name].astype(float))
        .pivot(index=["task_id", "sample"], columns="arm", values="value")
        .reindex(columns=list(arms))
        for name in {metric, _CHANCE}
    }
    known = wide[metric].dropna()
    chances = int(wide[_CHANCE].loc[known.index].notna().all(axis=1).sum())
    return _Pairs(known, chances, len(wide[metric]) - len(known), len(rows) - len(shared))


def _range(metric: str, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """The bounds, of a metric that is a share, a rate or a truth value; counts have none."""
    return None if metric.startswith("n_") else bounds


def _test(
    values: pd.Series,
    pairs: _Pairs,
    rng: np.random.Generator,
    n_draws: int,
    bounds: tuple[float, float] | None,
) -> dict[str, object]:
    """The columns of a paired test from ci_lo to p."""
    tasks = values.index.get_level_values("task_id")
    found = cluster_bootstrap(values, tasks, rng, n_draws, bounds=bounds)
    changed = int((values.groupby(tasks).sum().abs() > _TIE).sum())
    return {
        **{"ci_lo": found.lo, "ci_hi": found.hi, "n": found.n, "n_clusters": found.n_clusters},
        **{"n_changed": changed, "n_chance": pairs.n_chance, "n_undefined": pairs.n_undefined},
        **{"n_unpaired": pairs.n_unpaired, "p": found.p},
    }


def _mean(values: pd.Series) -> float:
    return float(values.mean()) if len(values) else math.nan


def _check(rollouts: pd.DataFrame) -> None:
    """Refuse rollouts that could only be paired wrongly."""
    require_once(rollouts, ROLLOUT, "A rollout")
    arms = rollouts[[*_CELL, *_ARM]].drop_duplicates()
    for once in ([*_CELL, "arm"], [*_CELL, "harness", "change"]):
        twice = arms.duplicated(once)
        if twice.any():
            name = arms.loc[twice, "arm"].iloc[0]
            raise InputError(
                f"The arm '{name}' and its harness and change do not belong to each other one to one."
            )
