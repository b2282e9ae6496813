"""What changing the record of the failure does to the probability of repeating it: every manipulation against `fail`.

    delta(X) = mean over items of L(X) − L(fail), nats: paired, both of the same a×; negative = less repetition
    G(X)     = mean of L(pre) − L(X) over the same items

G of two conditions that were scored on different items cannot be compared; delta can, since it is paired. The family
of Holm's correction is all manipulations of one model and environment whose p is defined (a delta that is the same on
every item has none); its size is `probes.stats.bootstrap.family_size` of their p. Equivalence is a statement of its
own: the interval inside ±δ, never a large p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from mech.errors import InputError
from probes.prompts.conditions import MANIPULATIONS as MANIPULATED
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_bootstrap, equivalent
from probes.stats.families import corrected
from probes.stats.frame_checks import require

DELTA = 0.5  # nats: the call becomes at most e^0.5 = 1.65 times more or less likely

_MEASURED = ("model", "env", "item_id", "task_id", "measure", "value")
_PREFIX = "delta_"


def manipulations(
    measures: pd.DataFrame, rng_for: RngFactory, delta: float = DELTA, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """Each manipulation X for which the measure `delta_X` was taken; clusters are tasks.

    Args:
        measures: long frame with model, env, item_id, task_id, measure, value; the measures `delta_X` and `G_X`.
        rng_for: gives the stream of `manipulation/MODEL/ENV/CONDITION`.
        delta: half-width, in nats, within which X counts as no change.
        n_draws: bootstrap draws.

    Returns:
        model, env, condition, delta, ci_lo, ci_hi, n, n_clusters, deff, p, p_holm, family_size, G, equivalent, by the
        first three. G is NaN where an item lacks `G_X`.

    Raises:
        InputError: a column or number is missing, a value occurs twice, or delta is not above zero.
    """
    require(measures, _MEASURED, ["model", "env", "item_id", "measure"])
    if not delta > 0:
        raise InputError(f"The half-width of equivalence must be above 0 nats, not {delta}.")
    lines = []
    for (model, env), group in measures.groupby(["model", "env"], sort=True):
        for condition, pairs in _by_condition(group):
            rng = rng_for(f"manipulation/{model}/{env}/{condition}")
            found = cluster_bootstrap(pairs["value"], pairs["task_id"], rng, n_draws)
            gain = _mean_over(group[group["measure"] == f"G_{condition}"], pairs["item_id"])
            lines.append(
                {
                    **{"model": model, "env": env, "condition": condition},
                    **{**found.columns("delta"), "deff": found.deff, "p": found.p},
                    **{"G": gain, "equivalent": equivalent(found, delta)},
                }
            )
    return corrected(pd.DataFrame(lines), "manipulations")


def length_match(rows: pd.DataFrame) -> pd.DataFrame:
    """The residual mismatch of each length-matched condition.

    Args:
        rows: score rows with model, env, item_id, condition, candidate, length_mismatch (tokens by which the prompt is
            longer than the one it was to match; empty where the condition matches none) and shared_tokens (share of
            a×'s tokens in the call recorded in its place; empty where a× itself is, or where older rows do not say).

    Returns:
        One line a model, env and condition: n (items), mean_mismatch, max_abs_mismatch (tokens), share_exact,
        shared_tokens (mean).
    """
    matched = rows[(rows["candidate"] == "failed") & rows["length_mismatch"].notna()]
    lines = []
    for (model, env, condition), group in matched.groupby(["model", "env", "condition"], sort=True):
        found = group["length_mismatch"]
        shared = group["shared_tokens"].astype(float).mean() if "shared_tokens" in group else math.nan
        lines.append(
            {
                **{"model": model, "env": env, "condition": condition, "n": len(found)},
                **{"mean_mismatch": found.mean(), "max_abs_mismatch": found.abs().max()},
                **{"share_exact": (found == 0).mean(), "shared_tokens": shared},
            }
        )
    return pd.DataFrame(lines)


def _by_condition(group: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Condition → its paired differences against `fail`, in nats, one an item.

    An early failure is one only where a step follows it: elsewhere `fail_early` is `fail`, whose zeros would dilute it.
    """
    for condition in sorted(MANIPULATED):
        name = f"{_PREFIX}{condition}{'_moved' if condition == 'fail_early' else ''}"
        pairs = group[group["measure"] == name]
        if len(pairs):
            yield condition, pairs


def _mean_over(values: pd.DataFrame, items: pd.Series) -> float:
    """Mean over exactly these items; NaN if one has no value."""
    return float(values.set_index("item_id")["value"].reindex(items).mean(skipna=False))
