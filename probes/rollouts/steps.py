"""From the steps of rollouts to measures of each step and of each rollout (repeats: `probes.rollouts.repeats`).

Free steps are those the model wrote itself; a given step (a forced first failure) is not counted. Of the
free steps of a rollout

    parseable_share        a readable call: kind ok, done or failed
    ok_share               a call that ran: ok or done (finish() is a call)
    prose_rate, truncated_rate, unparsable_rate, empty_rate          of that kind
    ban_active             the ban changed the choice of a token at least once
    exact_repeat_rate      of the failed free steps, the share whose text already failed (the paper's measure);
                           canonical_repeat_rate and near_repeat_rate in the same way; NaN where no free step failed
    repeat_per_chance      of the free steps with a failure before them ("at risk"), the share that is a canonical
                           repeat, whether it fails again or not; NaN where none is at risk
    again_share            of the free steps with any step before them, the share whose canonical action was taken
                           before, failed or not; NaN where none has one
    first_chance_repeats   1 if the first step at risk is a canonical repeat, else 0; NaN where none is at risk
    cycle2, cycle3, same_action_error_3, same_observation_4, alternating_6          some free step completes the pattern
    stuck                  the step limit ended the rollout, and at least 2 failed free steps are canonical repeats (the
                           paper's "ended in a loop"); stuck_near: near repeats count too, since a ban turns the one
                           into the other
    recovered              solved, of rollouts with a failure; NaN where nothing failed
    demonstration_share    of the free steps, those that send a demonstration's own call; runtime_share: those whose
                           text occurs in what the runtime had written, numbers aside; NaN without the column `copies`

A rate over failures and a rate over chances answer different questions: a model that repeats once and then recovers has
few failures to divide by, one that is solved early few chances; `end` says how a rollout ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.rollouts import repeats
from probes.stats.frame_checks import require_columns, require_known

ROLLOUT = ("model", "env", "arm", "task_id", "sample")
"""What one rollout is."""
ENDS = ("solved", "done", "step_limit", "ban_exhausted", "no_room")
KEYS = ("model", "env", "arm", "harness", "change", "task_id", "template", "sample")
_NEEDED = (
    *(*KEYS, "index", "given", "action", "canonical", "kind", "error_type", "observation"),
    *("solved", "last", "end", "n_prompt_tokens", "n_new_tokens", "n_ban_events"),
)
_MAY_BE_EMPTY = {"error_type", "end"}


def per_step(steps: pd.DataFrame, similarity: float = repeats.SIMILARITY) -> pd.DataFrame:
    """The rows of steps with the truth values exact, canonical_repeat, near and at_risk after their own columns.

    Args:
        steps: one row a step; model, env, arm, harness, change, task_id, template, sample, index (0, 1, …), given,
            action, canonical, kind, error_type, observation, solved, last, end, n_prompt_tokens, n_new_tokens,
            n_ban_events. Any order.
        similarity: of a near repeat.

    Returns:
        Rollouts in the order in which they are first met, the steps of each in theirs. Given steps have marks too,
        except that they are never at risk.

    Raises:
        InputError: a column or value is missing, a kind or an end is unknown, or a rollout is incomplete: a step is
            missing or occurs twice, or the last one is not marked.
    """
    parts = [_marked(rollout, similarity) for rollout in _rollouts(steps)]
    return pd.concat(parts, ignore_index=True) if parts else _marked(steps, similarity)


def per_rollout(
    steps: pd.DataFrame,
    similarity: float = repeats.SIMILARITY,
    action_error: int = repeats.ACTION_ERROR,
    observation: int = repeats.OBSERVATION,
    alternation: int = repeats.ALTERNATION,
) -> pd.DataFrame:
    """One row a rollout, in the order in which they are first met.

    Args:
        steps: as `per_step`.
        similarity: of a near repeat.
        action_error: times in a row that the same action brings the same error.
        observation: times in a row that the same observation comes.
        alternation: steps over which two actions take turns.

    Returns:
        Columns as in rollout.csv, then same_action_error_N, same_observation_N and alternating_N with the thresholds
        as N. Counts are of free steps; tokens are summed over them, n_prompt_tokens the full context of every step.

    Raises:
        InputError: as `per_step`, or a threshold is below 2.
    """
    if min(action_error, observation, alternation) < 2:
        raise InputError("A loop detector needs a threshold of at least 2.")
    detectors = (
        f"same_action_error_{action_error}",
        f"same_observation_{observation}",
        f"alternating_{alternation}",
    )
    lines = []
    for rollout in _rollouts(steps):
        patterns = (
            repeats.same_action_and_error(rollout, action_error),
            repeats.same_observation(rollout, observation),
            repeats.alternating(rollout, alternation),
        )
        free = ~rollout["given"].to_numpy(bool)
        loops = {name: bool((marks & free).any()) for name, marks in zip(detectors, patterns, strict=True)}
        lines.append({**_measures(_marked(rollout, similarity)), **loops})
    return pd.DataFrame(lines)


def _rollouts(steps: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Each rollout's steps in order, checked to be complete."""
    _check(steps)
    for key, rollout in steps.groupby(list(ROLLOUT), sort=False):
        name = ", ".join(f"{column} {value}" for column, value in zip(ROLLOUT, key, strict=True))
        ordered = rollout.sort_values("index")
        if ordered["index"].tolist() != list(range(len(ordered))):
            raise InputError(f"A step is missing or occurs twice in the rollout of {name}.")
        last = ordered["last"].tolist()
        if last != [False] * (len(last) - 1) + [True]:
            raise InputError(f"The rollout of {name} does not end with its last step: finish the run first.")
        if ordered["end"].iloc[-1] not in ENDS:
            raise InputError(f"The rollout of {name} has no known end: it is one of {', '.join(ENDS)}.")
        yield ordered


def _check(steps: pd.DataFrame) -> None:
    """Refuse rows that could only give wrong measures."""
    require_columns(steps, _NEEDED, "The steps lack")
    for column in _NEEDED:
        if column not in _MAY_BE_EMPTY and steps[column].isna().any():
            raise InputError(f"A step has no {column}.")
    kinds = repeats.STEP_KINDS
    require_known(steps["kind"], kinds, "a kind of step", f"it is one of {', '.join(kinds)}")


def _marked(rollout: pd.DataFrame, similarity: float) -> pd.DataFrame:
    free = ~rollout["given"].to_numpy(bool)
    return rollout.assign(
        exact=repeats.exact(rollout),
        canonical_repeat=repeats.canonical(rollout),
        near=repeats.near(rollout, similarity),
        at_risk=free & repeats.after_failure(rollout),
    )


def _measures(rollout: pd.DataFrame) -> dict[str, object]:
    """The row of one rollout with its marks."""
    last = rollout.iloc[-1]
    given = rollout["given"].to_numpy(bool)
    cycles = {f"cycle{period}": bool((repeats.cycle(rollout, period) & ~given).any()) for period in (2, 3)}
    free = rollout[~given]
    kinds, fails = free["kind"], repeats.failed(free)
    taken_before = repeats.again(rollout)[~given & (np.arange(len(rollout)) > 0)]
    again, at_risk = free["canonical_repeat"].to_numpy(bool), free["at_risk"].to_numpy(bool)
    chances = again[at_risk]
    return {
        **{key: last[key] for key in KEYS},
        "solved": bool(last["solved"]),
        "end": last["end"],
        "n_steps": len(free),
        "n_new_tokens": int(free["n_new_tokens"].sum()),
        "n_prompt_tokens": int(free["n_prompt_tokens"].sum()),
        "n_failed": int(fails.sum()),
        "parseable_share": _share(kinds.isin(repeats.READABLE)),
        "ok_share": _share(kinds.isin(("ok", "done"))),
        **{f"{kind}_rate": _share(kinds == kind) for kind in ("prose", "truncated", "unparsable", "empty")},
        "banned_out": bool((kinds == "banned_out").any()),
        "exact_repeat_rate": _share(free["exact"][fails]),
        "canonical_repeat_rate": _share(again[fails]),
        "near_repeat_rate": _share(free["near"][fails]),
        "repeat_per_chance": _share(chances),
        "first_chance_repeats": float(chances[0]) if len(chances) else math.nan,
        "again_share": _share(taken_before),
        **cycles,
        "stuck": bool(last["end"] == "step_limit" and (again & fails).sum() >= 2),
        "stuck_near": bool(
            last["end"] == "step_limit" and ((again | free["near"].to_numpy(bool)) & fails).sum() >= 2
        ),
        "recovered": float(last["solved"]) if repeats.failed(rollout).any() else math.nan,
        **{f"{source}_share": _copied(free, source) for source in ("demonstration", "runtime")},
        "n_ban_events": int(free["n_ban_events"].sum()),
        "ban_active": _share(free["n_ban_events"] > 0),
    }


def _copied(free: pd.DataFrame, source: str) -> float:
    return _share(free["copies"] == source) if "copies" in free else math.nan


def _share(marks: pd.Series | np.ndarray) -> float:
    """Share of true values; NaN of none."""
    return float(np.mean(marks)) if len(marks) else math.nan
