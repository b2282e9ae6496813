"""Placebos, which must find nothing, beside their positive counterparts on the same items and their power.

    redrawn_copy        weights drawn anew: Δcopy, as a share of the real model's, has its interval inside ±SMALL
    redrawn_ablation    ablating the trained model's heads in it removes a share of the real Δcopy inside ±SMALL
    redrawn_own_…       as do its own best heads, ranked by its own scores
    redrawn_noising     likewise, with z of the heads at the action positions of neut taken from pre
    shuffled_scores     scores permuted over heads: p of the real top set, (b + 1) / (m + 1), is at most ALPHA
    random_heads        the same against random sets with as many heads in each layer
    unrelated_call      a failed call of another task and tool: the interval of G is not below 0
    self_patch          all heads patched with what the same run computes, by full forwards: exactly 0
    self_patch_run      each head patched with its own value, through the sweep: at most ROUNDING nats
    padding_edges       knocking out filler, over knocking out the call: inside ±MODEST

A placebo passes only if it behaves and two more things hold. Its positive counterpart is alive: a method that finds
nothing anywhere fails. Counterparts: the real Δcopy per token, the share its top set removes, −G under fail, the
knockout of the call (each with its interval above 0); for self-patches, the effect of another run's values by the same
path is at least LIVELY on every item (of all heads; of the head whose effect is the largest), and the hooks fired. And
the placebo has power: its minimal detectable effect is at most ENOUGH of the counterpart's size, in the same unit.

    mde of a ratio or mean      (t(.975) + t(.8)) · se with C − 1 degrees of freedom, se its linearised error over
                                clusters: what a test at .05 finds with a chance of 80 % (Bloom 1995); NaN below
                                MIN_CLUSTERS, where no interval is given: nothing can be shown
    mde of a rank               the least share whose rank among the m sets has p ≤ ALPHA, and z(.8) · se of the
                                share above it; NaN where m is too small for such a p
    mde of a self-patch         its threshold: any larger change of one item is found

Each is judged in every metric that is measured (`probes.scoring.contrast`); self-patches in logprob alone. Intervals:
`probes.stats.bootstrap`, over the clusters that `task_id` names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import norm, t

from mech.errors import InputError
from probes.scoring.contrast import FORMS
from probes.stats.bootstrap import (
    MIN_CLUSTERS,
    N_DRAWS,
    Interval,
    RngFactory,
    cluster_codes,
    cluster_ratios,
    equivalent,
)
from probes.stats.frame_checks import require_once

SMALL, MODEST, ALPHA = 0.05, 0.2, 0.05
POWER, ENOUGH = 0.8, 0.5
ROUNDING = 2e-4  # nats: what the engine's paths may differ by
LIVELY = 0.02  # nats: a hundred times that
SHUFFLED, RANDOM = "shuffled", "random"


def value_name(name: str, metric: str) -> str:
    """How a row calls a value in a metric: by its name alone for logprob."""
    return name if metric == "logprob" else f"{name}:{metric}"


@dataclass(frozen=True)
class _Table:
    """Values by part and name, one series of items each, the items' clusters, and the metric that is judged."""

    parts: Mapping[str, pd.DataFrame]
    tasks: pd.Series
    rng_for: RngFactory
    n_draws: int
    metric: str

    def plain(self, part: str, name: str) -> pd.Series:
        """A value that is of no metric, or in the metric that its name says."""
        if part not in self.parts or name not in self.parts[part]:
            raise InputError(f"The placebos lack '{name}' of the part '{part}': finish the run.")
        values: pd.Series = self.parts[part][name].dropna()
        return values

    def of(self, part: str, name: str) -> pd.Series:
        """A value in the metric that is judged."""
        return self.plain(part, value_name(name, self.metric))

    def copy(self, part: str) -> pd.Series:
        """Δcopy of the items under a part."""
        return self.of(part, "neut") - self.of(part, "pre")

    def ratio(self, what: str, top: pd.Series, bottom: pd.Series | None = None) -> Interval:
        """Σ top / Σ bottom with its interval; the mean where there is no bottom."""
        below = np.ones(len(top)) if bottom is None else bottom.loc[top.index].to_numpy(float)
        rng = self.rng_for(f"placebo/{what}")
        tasks = self.tasks.loc[top.index]
        return cluster_ratios(top.to_numpy(float)[:, None], below[:, None], tasks, rng, self.n_draws)[0]

    def error(self, top: pd.Series, bottom: pd.Series | None = None) -> tuple[float, int]:
        """The linearised error of that ratio over clusters, and how many there are; NaN below MIN_CLUSTERS."""
        tops = top.to_numpy(float)
        below = np.ones(len(top)) if bottom is None else bottom.loc[top.index].to_numpy(float)
        codes, n = cluster_codes(self.tasks.loc[top.index], len(top))
        if n < MIN_CLUSTERS or not below.sum():
            return math.nan, n
        residuals = np.bincount(codes, tops - tops.sum() / below.sum() * below)
        return float(np.sqrt(n / (n - 1) * (residuals**2).sum()) / abs(below.sum())), n

    def mde(self, top: pd.Series, bottom: pd.Series | None = None) -> float:
        """The smallest ratio that a two-sided test at .05 finds with a chance of POWER."""
        error, n = self.error(top, bottom)
        return math.nan if math.isnan(error) else float((t.ppf(0.975, n - 1) + t.ppf(POWER, n - 1)) * error)


def placebo_table(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The verdict on every placebo in every metric; columns as in placebo.csv.

    Args:
        rows: part, item_id, task_id (its cluster), name, value. Parts: whole (pre, neut, fail, fail_unrelated,
            n_tokens), selected, shuffled0, shuffled1, … and random0, … (pre, neut; random may be missing), noised
            (neut, selected), redrawn, redrawn_selected and redrawn_own (pre, neut), redrawn_noised (neut, selected,
            own), self (full, full_other, fired, run, other), padding (n_padding, and whole, record, padding where it
            is above 0). Values in nats, named as `value_name` says.
        rng_for: gives the streams `placebo/WHAT`.
        n_draws: bootstrap draws.

    Raises:
        InputError: a part or value is missing, or an item has it twice.
    """
    require_once(rows, ["part", "item_id", "name"], "A placebo's value")
    parts = {
        str(part): group.pivot(index="item_id", columns="name", values="value").sort_index()
        for part, group in rows.groupby("part")
    }
    tasks = rows.drop_duplicates("item_id").set_index("item_id")["task_id"]
    lines = []
    for metric in FORMS:
        if metric != "logprob" and value_name("pre", metric) not in parts.get("whole", pd.DataFrame()):
            continue
        table = _Table(parts, tasks, rng_for, n_draws, metric)
        lines += [*_redrawn(table), *_ranked(table), _unrelated(table)]
        lines += _self_patches(table) if metric == "logprob" else []
        lines.append(_padding(table))
    return pd.DataFrame(lines)


def _redrawn(table: _Table) -> list[dict[str, object]]:
    real = table.copy("whole")
    per_token, share = _copies(table), table.ratio("share", real - table.copy("selected"), real)
    lost = table.of("noised", "neut") - table.of("noised", "selected")
    noised = table.ratio("noised", lost, real)
    drawn, own = table.copy("redrawn"), table.of("redrawn_noised", "neut")
    unit = "share of real Δcopy"
    lines = []
    for what, top, counterpart, positive, live, size in (
        ("redrawn_copy", drawn, "Δcopy per token", per_token, per_token.lo > 0, 1.0),
        ("redrawn_ablation", drawn - table.copy("redrawn_selected"), "share removed", share, share.lo > 0, share.mean),
        ("redrawn_own_ablation", drawn - table.copy("redrawn_own"), "share removed", share, share.lo > 0, share.mean),
        ("redrawn_noising", own - table.of("redrawn_noised", "selected"), "share lost by noising", noised,
         noised.lo > 0, noised.mean),
        ("redrawn_own_noising", own - table.of("redrawn_noised", "own"), "share lost by noising", noised,
         noised.lo > 0, noised.mean),
    ):  # fmt: skip
        found = table.ratio(what, top, real)
        alive = live and per_token.lo > 0
        seen = _Seen(positive, alive, size, table.mde(top, real))
        verdict = (f"inside ±{SMALL:g}", found, equivalent(found, SMALL), SMALL)
        lines.append(_line(table, what, *verdict, unit, counterpart, seen))
    return lines


def _copies(table: _Table) -> Interval:
    """The real Δcopy per token of a×; of a metric that is per token, its mean."""
    real = table.copy("whole")
    tokens = None if table.metric.endswith("_per_token") else table.plain("whole", "n_tokens")
    return table.ratio("redrawn_copy/positive", real, tokens)


def _ranked(table: _Table) -> list[dict[str, object]]:
    real = table.copy("whole")
    removed = real - table.copy("selected")
    share = table.ratio("share", removed, real)
    alive = share.lo > 0 and _copies(table).lo > 0  # a share of nothing that is removed is no effect
    lines = []
    for what, kind in (("shuffled_scores", SHUFFLED), ("random_heads", RANDOM)):
        names = sorted(part for part in table.parts if part.startswith(kind))
        if not names and kind == SHUFFLED:
            raise InputError("There is no set of shuffled scores to compare with.")
        if not names:
            continue
        shares = np.array([table.ratio("share", real - table.copy(name), real).mean for name in names])
        known = not np.isnan([share.mean, *shares]).any()
        p = (int((shares >= share.mean).sum()) + 1) / (len(shares) + 1) if known else math.nan
        # Its interval is where the other sets lie.
        found = Interval(p, float(shares.min()), float(shares.max()), share.n, share.n_clusters, p, False)
        expected = f"at most {ALPHA:g}; interval: shares of {len(shares)} sets"
        seen = _Seen(share, alive, share.mean, _least_of_rank(shares, table.error(removed, real)[0]))
        lines.append(_line(table, what, expected, found, p <= ALPHA, ALPHA, "p", "share removed", seen))
    return lines


def _least_of_rank(shares: np.ndarray, error: float) -> float:
    """The share that has a rank of p ≤ ALPHA among these with a chance of POWER; NaN where no rank has."""
    beaten = math.floor(ALPHA * (len(shares) + 1) + 1e-9) - 1  # so many of them may be as large or larger
    if beaten < 0 or np.isnan(shares).any():
        return math.nan
    return float(np.sort(shares)[::-1][beaten] + norm.ppf(POWER) * error)


def _unrelated(table: _Table) -> dict[str, object]:
    pre = table.of("whole", "pre")
    gain = pre - table.of("whole", "fail_unrelated")
    found = table.ratio("unrelated_call", gain)
    rise = table.ratio("unrelated_call/positive", table.of("whole", "fail") - pre)
    behaves = math.isfinite(found.hi) and found.hi >= 0
    seen = _Seen(rise, rise.lo > 0, rise.mean, table.mde(gain))
    unit = "nats a token" if table.metric.endswith("_per_token") else "nats"
    return _line(table, "unrelated_call", "G not below 0", found, behaves, 0.0, unit, "−G under fail", seen)


def _self_patches(table: _Table) -> list[dict[str, object]]:
    lines = []
    for what, name, other, heads, limit in (
        ("self_patch", "full", "full_other", "all heads", 0.0),
        ("self_patch_run", "run", "other", "largest of all heads", ROUNDING),
    ):
        own, another = table.plain("self", name), table.plain("self", other)
        weakest = replace(Interval.unknown(len(another)), mean=float(another.min()))
        n_tasks = table.tasks.loc[own.index].nunique()
        found = replace(Interval.unknown(len(own), n_tasks), mean=float(own.max()))
        expected = "exactly 0" if limit == 0 else f"at most {limit:g}"
        alive = weakest.mean >= LIVELY and bool((table.plain("self", "fired") > 0).all())
        seen = _Seen(weakest, alive, weakest.mean, limit)
        lines.append(_line(table, what, expected, found, found.mean <= limit, limit, f"nats, {heads}",
                           f"effect of another run, {heads}", seen))  # fmt: skip
    return lines


def _padding(table: _Table) -> dict[str, object]:
    expected, unit = f"inside ±{MODEST:g}", "share of the knockout of the call"
    counterpart = "nats lost by the knockout of the call"
    padded = (table.plain("padding", "n_padding") > 0).any()
    if not padded or value_name("whole", table.metric) not in table.parts["padding"]:
        none = Interval.unknown()
        seen = _Seen(none, False, math.nan, math.nan)
        return _line(table, "padding_edges", expected, none, False, MODEST, unit, counterpart, seen)
    clean = table.of("padding", "whole")
    call, words = clean - table.of("padding", "record"), clean - table.of("padding", "padding")
    found = table.ratio("padding_edges", words, call)
    cut = table.ratio("padding_edges/positive", call)
    seen = _Seen(cut, cut.lo > 0, 1.0, table.mde(words, call))
    verdict = (expected, found, equivalent(found, MODEST), MODEST)
    return _line(table, "padding_edges", *verdict, unit, counterpart, seen)


@dataclass(frozen=True)
class _Seen:
    """A placebo's counterpart: its estimate, whether it is alive, its size in the placebo's unit; and the mde."""

    positive: Interval
    alive: bool
    live: float
    mde: float

    @property
    def powered(self) -> bool:
        """The placebo would have found ENOUGH of the counterpart's size; never where that is not known."""
        return self.mde <= ENOUGH * self.live


def _line(
    table: _Table,
    what: str,
    expected: str,
    found: Interval,
    behaves: bool,
    threshold: float,
    unit: str,
    counterpart: str,
    seen: _Seen,
) -> dict[str, object]:
    positive = dict(zip(("positive", "positive_lo", "positive_hi"), seen.positive.cells, strict=True))
    return {
        **{"what": what, "metric": table.metric, "expected": expected, **found.columns("found")},
        **{"threshold": threshold, "unit": unit, "counterpart": counterpart},
        **{**positive, "live": seen.live, "mde": seen.mde},
        **{"behaves": behaves, "alive": seen.alive, "powered": seen.powered},
        "passed": behaves and seen.alive and seen.powered,
    }
