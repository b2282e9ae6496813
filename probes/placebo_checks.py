"""Placebos that must find nothing, each beside what the instrument finds on the same items.

    redrawn_copy        weights drawn anew: Δcopy, as a share of the real model's, has its interval inside ±SMALL
    redrawn_ablation    the same heads taken out of it remove a share of the real Δcopy inside ±SMALL
    shuffled_scores     scores permuted over heads: p of the real top set, (b + 1) / (m + 1), is at most ALPHA
    unrelated_call      a failed call that has nothing to do with a×: the interval of G is not below 0
    self_patch          all heads patched with what the same run computes, by full forwards: exactly 0
    self_patch_run      each head patched with its own value, through the sweep: at most ROUNDING nats
    padding_edges       cutting attention to words that carry nothing, over cutting it to the call: inside ±MODEST

A placebo passes only if its positive counterpart is alive: an instrument that finds nothing anywhere fails, whatever
its placebos say. Counterparts: the real Δcopy per token, the share its top set removes, −G under fail, the cut to the
call (each with its interval above 0); for self-patches, the effect of another run's values by the same path is at
least LIVELY on every item (of all heads; of the head whose effect is the largest), and the hooks fired. Intervals:
`probes.stats`, with tasks as clusters. With one task there is none, and nothing passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.stats import N_DRAWS, Interval, RngFactory, cluster_ratios

PLACEBOS = (
    *("what", "expected", "found", "ci_lo", "ci_hi", "threshold", "unit"),
    *("counterpart", "positive", "positive_lo", "positive_hi", "alive", "passed", "n", "n_clusters"),
)
SMALL, MODEST, ALPHA = 0.05, 0.2, 0.05
ROUNDING = 2e-4  # nats: what the engine's paths may differ by
LIVELY = 0.02  # nats: a hundred times that
SHUFFLED = "shuffled"

_NONE = Interval(
    math.nan, math.nan, math.nan, 0, 0, math.nan, True
)  # of a placebo that no item could be put to


@dataclass(frozen=True)
class _Table:
    """Values by part and name, one series of items each, and the items' tasks."""

    parts: Mapping[str, pd.DataFrame]
    tasks: pd.Series
    rng_for: RngFactory
    n_draws: int

    def of(self, part: str, name: str) -> pd.Series:
        if part not in self.parts or name not in self.parts[part]:
            raise InputError(f"The placebos lack '{name}' of the part '{part}': finish the run.")
        values: pd.Series = self.parts[part][name].dropna()
        return values

    def copy(self, part: str) -> pd.Series:
        """Δcopy of the items under a part."""
        return self.of(part, "neut") - self.of(part, "pre")

    def ratio(self, what: str, top: pd.Series, bottom: pd.Series | None = None) -> Interval:
        """Σ top / Σ bottom with its interval; the mean where there is no bottom."""
        below = np.ones(len(top)) if bottom is None else bottom.loc[top.index].to_numpy(float)
        rng = self.rng_for(f"placebo/{what}")
        tasks = self.tasks.loc[top.index]
        return cluster_ratios(top.to_numpy(float)[:, None], below[:, None], tasks, rng, self.n_draws)[0]


def placebo_table(rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """The verdict on every placebo, in the columns of PLACEBOS.

    Args:
        rows: part, item_id, task_id, name, value. Parts: whole (pre, neut, fail, fail_unrelated, n_tokens), selected
            and shuffled0, shuffled1, … (pre, neut), redrawn and redrawn_selected (pre, neut), self (full, full_other,
            fired, run, other), padding (n_padding, and whole, record, padding where it is above 0). Values in nats.
        rng_for: gives the streams `placebo/WHAT`.
        n_draws: bootstrap draws.

    Raises:
        InputError: a part or value is missing, or an item has it twice.
    """
    if rows.duplicated(["part", "item_id", "name"]).any():
        raise InputError("A placebo's value stands twice for an item.")
    parts = {
        str(part): group.pivot(index="item_id", columns="name", values="value").sort_index()
        for part, group in rows.groupby("part")
    }
    tasks = rows.drop_duplicates("item_id").set_index("item_id")["task_id"]
    table = _Table(parts, tasks, rng_for, n_draws)
    lines = [*_redrawn(table), _shuffled(table), _unrelated(table), *_self_patches(table), _padding(table)]
    return pd.DataFrame(lines, columns=list(PLACEBOS))


def _redrawn(table: _Table) -> list[tuple[object, ...]]:
    real, tokens = table.copy("whole"), table.of("whole", "n_tokens")
    per_token = table.ratio("redrawn_copy/positive", real, tokens)
    found = table.ratio("redrawn_copy", table.copy("redrawn"), real)
    taken = table.ratio("redrawn_ablation", table.copy("redrawn") - table.copy("redrawn_selected"), real)
    share = table.ratio("share", real - table.copy("selected"), real)
    expected = f"inside ±{SMALL:g}"
    return [
        _line("redrawn_copy", expected, found, _inside(found, SMALL), SMALL, "share of real Δcopy",
              "Δcopy per token", per_token),
        _line("redrawn_ablation", expected, taken, _inside(taken, SMALL), SMALL, "share of real Δcopy",
              "share removed", share, share.lo > 0 and per_token.lo > 0),
    ]  # fmt: skip


def _shuffled(table: _Table) -> tuple[object, ...]:
    real = table.copy("whole")
    share = table.ratio("share", real - table.copy("selected"), real)
    copies = table.ratio("redrawn_copy/positive", real, table.of("whole", "n_tokens"))
    names = sorted(part for part in table.parts if part.startswith(SHUFFLED))
    if not names:
        raise InputError("There is no set of shuffled scores to compare with.")
    shares = np.array([table.ratio("share", real - table.copy(name), real).mean for name in names])
    known = not np.isnan([share.mean, *shares]).any()
    p = (int((shares >= share.mean).sum()) + 1) / (len(shares) + 1) if known else math.nan
    # Its interval is where the shuffled sets lie.
    found = Interval(p, float(shares.min()), float(shares.max()), share.n, share.n_clusters, p, False)
    expected = f"at most {ALPHA:g}; interval: shares of {len(shares)} sets"
    alive = share.lo > 0 and copies.lo > 0  # a share of nothing that is removed is no effect
    return _line("shuffled_scores", expected, found, p <= ALPHA, ALPHA, "p", "share removed", share, alive)


def _unrelated(table: _Table) -> tuple[object, ...]:
    pre = table.of("whole", "pre")
    found = table.ratio("unrelated_call", pre - table.of("whole", "fail_unrelated"))
    rise = table.ratio("unrelated_call/positive", table.of("whole", "fail") - pre)
    passed = math.isfinite(found.hi) and found.hi >= 0
    return _line("unrelated_call", "G not below 0", found, passed, 0.0, "nats", "−G under fail", rise)


def _self_patches(table: _Table) -> list[tuple[object, ...]]:
    lines = []
    for what, name, other, heads, limit in (
        ("self_patch", "full", "full_other", "all heads", 0.0),
        ("self_patch_run", "run", "other", "largest of all heads", ROUNDING),
    ):
        own, another = table.of("self", name), table.of("self", other)
        weakest = Interval(float(another.min()), *(math.nan,) * 2, len(another), 0, math.nan, True)
        n_tasks = table.tasks.loc[own.index].nunique()
        found = Interval(float(own.max()), *(math.nan,) * 2, len(own), n_tasks, math.nan, True)
        expected = "exactly 0" if limit == 0 else f"at most {limit:g}"
        alive = weakest.mean >= LIVELY and bool((table.of("self", "fired") > 0).all())
        lines.append(_line(what, expected, found, found.mean <= limit, limit, f"nats, {heads}",
                           f"effect of another run, {heads}", weakest, alive))  # fmt: skip
    return lines


def _padding(table: _Table) -> tuple[object, ...]:
    if (table.of("padding", "n_padding") > 0).any():
        whole = table.of("padding", "whole")
    else:
        return _line("padding_edges", f"inside ±{MODEST:g}", _NONE, False, MODEST,
                     "share of the cut to the call", "nats lost by the cut to the call", _NONE)  # fmt: skip
    call, words = whole - table.of("padding", "record"), whole - table.of("padding", "padding")
    found = table.ratio("padding_edges", words, call)
    cut = table.ratio("padding_edges/positive", call)
    return _line("padding_edges", f"inside ±{MODEST:g}", found, _inside(found, MODEST), MODEST,
                 "share of the cut to the call", "nats lost by the cut to the call", cut)  # fmt: skip


def _inside(found: Interval, limit: float) -> bool:
    return -limit < found.lo and found.hi < limit  # no interval is not inside


def _line(
    what: str,
    expected: str,
    found: Interval,
    behaves: bool,
    threshold: float,
    unit: str,
    counterpart: str,
    positive: Interval,
    alive: bool | None = None,
) -> tuple[object, ...]:
    lives = positive.lo > 0 if alive is None else alive
    cells = (what, expected, found.mean, found.lo, found.hi, threshold, unit)
    shown = (counterpart, positive.mean, positive.lo, positive.hi, lives, behaves and lives)
    return (*cells, *shown, found.n, found.n_clusters)
