"""Exact effects of patching beside their estimates by attribution: do the estimates pick the heads that patching would?

Rows (ATTRIBUTION): one an item, metric, direction and unit. A unit is a head (site z) or a layer's MLP (site mlp_out,
which has no head); its exact effect and its estimate are in nats, with the signs of `probes.effects.shares`.

Units are ranked by magnitude, so that suppression heads (negative effects) are found as well; ties go to the lower
layer, then head.

    spearman, spearman_within_layer
                    rank correlation of exact effect and estimate, signed (`probes.stats.ranks`)
    recall@k        of the k units of largest exact effect, the share that is among the k of largest estimate
    reliability, reliability_within_layer
                    of the exact effects with themselves: one half of the tasks with the other, mean over splits and
                    their range: estimates cannot be expected to agree with effects better than these with themselves
    screen of s     only the s units of largest estimate are patched exactly; it misses the others

Each statistic is taken per item (scope item: mean over items) and of effects and estimates averaged over items (scope
pooled: the ranking that a study reports). `with` says what the agreement is with. Intervals: 95 %, tasks drawn with
their items (`probes.stats.bootstrap`), from six tasks on; pooled statistics are taken anew in each draw, and lean
towards lower agreement, as draws add noise to ranks. What a screen misses is known only where everything was patched:
for other items it is an extrapolation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from mech.engine.engine import Engine, Run
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.patching.attribution import Attribution, attribute
from mech.patching.gradients import SITES
from mech.patching.patch import direction_sign
from probes.effects.agreement import AGREED_WITH, TOP, UNITS, Target, reliability_name
from probes.scoring.contrast import Contrast
from probes.scoring.metric_sums import DIVERGING, FAILED
from probes.stats.bootstrap import (
    N_DRAWS,
    Interval,
    RngFactory,
    cluster_bootstrap,
    cluster_codes,
    cluster_ratios,
    cluster_sums,
    draw_clusters,
    percentile_ends,
)
from probes.stats.frame_checks import (
    item_columns,
    rectangle,
    require,
    require_columns,
    require_directions,
)
from probes.stats.ranks import NO_K, places, rank_statistics, ranking_reliability, ratio

ATTRIBUTION = (
    *("item_id", "task_id", "direction", "delta", "site", "layer", "head"),
    *("effect_nats", "estimate_nats"),
)
NO_HEAD = -1  # the head of an MLP while tables are pivoted

_UNIT = ["layer", "head"]
SCREENING = (
    *("site", "direction", "scope", "statistic", "k", "estimate", "ci_lo", "ci_hi"),
    *("n", "n_clusters", "n_units", *AGREED_WITH),
)
NEGATIVES = (
    *("site", "direction", "scope", "item_id", "layer", "head"),
    *("effect_nats", "estimate_nats", "exact_rank", "estimate_rank"),
)
MISSES = (
    *("site", "direction", "screen", "quantity", "k", "mean", "ci_lo", "ci_hi", "worst"),
    *("n", "n_clusters"),
)


@dataclass(frozen=True)
class Table:
    """One site and direction: exact effects and estimates (items down, units across), the items' tasks and deltas."""

    site: str
    direction: str
    exact: pd.DataFrame
    guess: pd.DataFrame
    tasks: pd.Series
    deltas: pd.Series


def attribute_sums(
    engine: Engine,
    contrast: Contrast,
    candidate: str,
    recipient: Run,
    donor: Run,
    direction: str,
    steps: int = 1,
    sites: Sequence[str] = SITES,
) -> dict[str, Attribution]:
    """The estimates of one candidate's runs, signed by the direction, for each of its `metric_sums`.

    One backward pass for the candidate's log-probability, and for a× one more for its diverging tokens, where these are
    not all of it. Errors as `mech.patching.attribution.attribute`.
    """
    sign = direction_sign(direction)
    total = attribute(engine, recipient, donor, steps, sites=sites)
    found = {candidate: total.signed(sign)}
    if candidate == FAILED and contrast.references:
        first = contrast.diverging_from
        part = attribute(engine, recipient, donor, steps, sites=sites, first=first) if first else total
        found[DIVERGING] = part.signed(sign)
    return found


def compared(
    item_id: str,
    task_id: str,
    direction: str,
    delta: float,
    exact: Mapping[str, float],
    estimates: Mapping[str, float],
) -> list[tuple[Any, ...]]:
    """One item's exact effects beside their estimates: a line a unit, in the columns of ATTRIBUTION.

    Args:
        item_id: the item.
        task_id: its cluster.
        direction: noise or denoise.
        delta: the item's difference (nats) that the effects are part of.
        exact: unit (L18H6, MLP3) → effect (nats), signed by the direction; units without one have no line.
        estimates: the same of the estimates.

    Raises:
        InputError: an unknown direction, a unit was patched and not attributed, or is none.
    """
    direction_sign(direction)
    lines: list[tuple[Any, ...]] = []
    for unit, effect in exact.items():
        if unit not in estimates:
            raise InputError(f"{unit} was patched and not attributed.")
        place: tuple[Any, ...]
        if unit.startswith("MLP"):
            place = ("mlp_out", int(unit.removeprefix("MLP")), None)
        else:
            head = Head.parse(unit)
            place = ("z", head.layer, head.head)
        lines.append((item_id, task_id, direction, delta, *place, effect, estimates[unit]))
    return lines


def units_of(attribution: Attribution) -> dict[str, float]:
    """Unit (L18H6, MLP3) → its estimate."""
    heads = {str(head): value for head, value in attribution.heads.items()}
    return {**heads, **{f"MLP{layer}": value for layer, value in attribution.mlps.items()}}


def tables(rows: pd.DataFrame) -> Iterator[Table]:
    """The rows by site and direction; InputError for rows that could only give a wrong comparison."""
    require_columns(rows, ATTRIBUTION)
    # An MLP has no head; a head without a number is an error.
    filled = rows.assign(head=rows["head"].mask(rows["site"] == "mlp_out", NO_HEAD))
    needed = [name for name in ATTRIBUTION if name != "delta"]
    require(filled, needed, ["item_id", "direction", "site", *_UNIT])
    require_directions(filled)
    for (site, direction), group in filled.groupby(["site", "direction"], sort=True):
        exact, guess = (rectangle(group, _UNIT, value) for value in ("effect_nats", "estimate_nats"))
        items = item_columns(group, exact.index)
        yield Table(str(site), str(direction), exact, guess, items["task_id"], items["delta"])


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """The table with whole numbers for layer and head, and no head for MLPs."""
    head = table["head"].astype("Int64")
    return table.assign(layer=table["layer"].astype("Int64"), head=head.mask(head == NO_HEAD))


def screened(attribution: Attribution, k: int) -> HeadSet:
    """The k heads of largest estimate by magnitude: those to patch exactly.

    Raises:
        InputError: fewer than k heads were attributed, or k < 1.
    """
    if not 1 <= k <= len(attribution.heads):
        raise InputError(f"A screen of {k} heads is asked for, and {len(attribution.heads)} were attributed.")
    ordered = sorted(attribution.heads, key=lambda head: (-abs(attribution.heads[head]), head))
    return HeadSet(ordered[:k])


def screen_agreement(
    rows: pd.DataFrame, rng_for: RngFactory, top: Sequence[int] = TOP, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """Spearman and recall@k of the screen against the exact sweep, per item and pooled, with intervals.

    Args:
        rows: the columns of ATTRIBUTION; every item of a site and direction has the same units.
        rng_for: gives the streams `screening/SITE/DIRECTION/item/STATISTIC`, `screening/SITE/DIRECTION/pooled` and
            `reliability/SITE/DIRECTION`.
        top: the k of recall; those that are not fewer than the units are left out, as recall is then 1.
        n_draws: bootstrap draws.

    Returns:
        The columns of SCREENING: k is NaN but for recall, n counts items, n_clusters tasks. An interval is NaN with
        fewer than six clusters, or where a statistic is undefined (Spearman where all units are equal), and the range
        of the splits for a reliability.

    Raises:
        InputError: a column or number is missing, a row occurs twice, items have unequal units.
    """
    lines = []
    for table in tables(rows):
        key, name = (table.site, table.direction), f"screening/{table.site}/{table.direction}"
        counts = (len(table.exact), table.tasks.nunique(), table.exact.shape[1])
        target = Target.of(table.direction, table.exact, table.deltas, UNITS[table.site])
        layers = _layers(table)
        per_item = _statistics(table.exact.to_numpy(float), table.guess.to_numpy(float), top, layers)
        for (statistic, k), values in per_item.items():
            rng = rng_for(f"{name}/item/{statistic}{k or ''}")
            found = cluster_bootstrap(values, table.tasks, rng, n_draws)
            lines.append((*key, "item", statistic, k, *found.cells, *counts, *target.cells()))
        pooled = _pooled(table, top, rng_for(f"{name}/pooled"), n_draws)
        lines += [
            (*key, "pooled", statistic, k, *ends, *counts, *target.cells())
            for (statistic, k), ends in pooled.items()
        ]
        sums = _cluster_sums(table.exact, table.tasks)
        splits = ranking_reliability(sums, rng_for(f"reliability/{table.site}/{table.direction}"), layers)
        for (statistic, _), one in splits.items():
            cells = (one.mean, one.lowest, one.highest, *counts)
            lines.append(
                (*key, "pooled", reliability_name(statistic), NO_K, *cells, *target.cells(half=True))
            )
    return _without_zero(pd.DataFrame(lines, columns=list(SCREENING)))


def false_negatives(rows: pd.DataFrame, k: int, screen: int) -> pd.DataFrame:
    """The units among the exact top k that a screen of `screen` leaves out, by name.

    Args:
        rows: as `screen_agreement`.
        k: how many units of largest exact effect are looked for.
        screen: how many units of largest estimate a screen takes.

    Returns:
        The columns of NEGATIVES, ranks from 1; item_id is empty in the scope pooled, whose effects are means over
        items. Largest exact effect first.

    Raises:
        InputError: as `screen_agreement`, or k or screen is below 1.
    """
    _require_positive(k, "top")
    _require_positive(screen, "screen")
    lines: list[tuple[Any, ...]] = []
    for table in tables(rows):
        items: list[str | None] = list(table.exact.index)
        lines += _missed("item", items, table, table.exact, table.guess, k, screen)
        means = (table.exact.mean().to_frame().T, table.guess.mean().to_frame().T)
        lines += _missed("pooled", [None], table, *means, k, screen)
    return typed(pd.DataFrame(lines, columns=list(NEGATIVES)))


def _missed(
    scope: str,
    items: Sequence[str | None],
    table: Table,
    exact: pd.DataFrame,
    guess: pd.DataFrame,
    k: int,
    screen: int,
) -> Iterator[tuple[Any, ...]]:
    """The lines of NEGATIVES of one scope: per item, largest exact effect first."""
    ours, theirs = exact.to_numpy(float), guess.to_numpy(float)
    rank, estimate_rank = _places(ours) + 1, _places(theirs) + 1
    missed = np.argwhere((rank <= k) & (estimate_rank > screen)).tolist()
    for row, column in sorted(missed, key=lambda at: (at[0], rank[at[0], at[1]])):
        at = row, column
        about = (table.site, table.direction, scope, items[row], *exact.columns[column])
        yield (*about, ours[at], theirs[at], int(rank[at]), int(estimate_rank[at]))


def misses(
    rows: pd.DataFrame, screen: int, rng_for: RngFactory, top: Sequence[int] = TOP, n_draws: int = N_DRAWS
) -> pd.DataFrame:
    """What a screen of this size can miss, measured on items where every unit was patched as well.

    Args:
        rows: as `screen_agreement`; those of one screen size for each site.
        screen: how many units of largest estimate an item's screen keeps.
        rng_for: gives the streams `misses/SITE/DIRECTION/QUANTITY`.
        top: the k of `missed_top`; those above the number of units are left out.
        n_draws: bootstrap draws.

    Returns:
        The columns of MISSES, per site and direction (screen is at most the number of units):
        missed_top: how many of an item's exact top k are left out (k gives the k); worst: the most in any item;
        largest_nats: the largest |effect| left out of an item; worst: the largest of all;
        magnitude_share: Σ |effect| left out / Σ |effect|, a ratio of sums over items; worst: of one item.

    Raises:
        InputError: as `screen_agreement`, or screen is below 1.
    """
    _require_positive(screen, "screen")
    lines: list[tuple[Any, ...]] = []
    for table in tables(rows):
        exact, tasks, size = table.exact.to_numpy(float), table.tasks, table.exact.shape[1]
        left_out = _places(table.guess.to_numpy(float)) >= screen
        effects, gone = np.abs(exact), np.where(left_out, np.abs(exact), 0.0)
        key, name = (table.site, table.direction, min(screen, size)), f"misses/{table.site}/{table.direction}"
        for k in [k for k in top if k <= size]:
            counts = (left_out & (_places(exact) < k)).sum(axis=1).astype(float)
            found = cluster_bootstrap(counts, tasks, rng_for(f"{name}/missed_top{k}"), n_draws)
            lines.append((*key, "missed_top", k, *_cells(found, counts)))
        largest = gone.max(axis=1)
        found = cluster_bootstrap(largest, tasks, rng_for(f"{name}/largest_nats"), n_draws)
        lines.append((*key, "largest_nats", NO_K, *_cells(found, largest)))
        sums = gone.sum(axis=1, keepdims=True), effects.sum(axis=1, keepdims=True)
        [found] = cluster_ratios(*sums, tasks, rng_for(f"{name}/magnitude_share"), n_draws)
        lines.append((*key, "magnitude_share", NO_K, *_cells(found, ratio(*sums)[:, 0])))
    return _without_zero(pd.DataFrame(lines, columns=list(MISSES)))


def miss_sentence(table: pd.DataFrame, site: str, direction: str, k: int = 16) -> str:
    """What `misses` says of one site and direction, as a sentence to print beside a screened run.

    Raises:
        InputError: the table has no such site and direction, or no such k.
    """
    part = table[(table["site"] == site) & (table["direction"] == direction)]
    lines = {
        quantity: part[
            (part["quantity"] == quantity) & ((part["k"] == k) if quantity == "missed_top" else True)
        ]
        for quantity in ("missed_top", "largest_nats", "magnitude_share")
    }
    empty = [name for name, found in lines.items() if found.empty]
    if empty:
        raise InputError(f"What the screen misses is not known for {site}, {direction}, top {k}.")
    top, largest, share = (found.iloc[0] for found in lines.values())
    units = "heads" if site == "z" else "MLPs"
    return (
        f"{direction}: on {top['n']} fully patched items a screen of {top['screen']} {units} left out "
        f"{top['mean']:.1f} of the exact top {k} (at most {top['worst']:.0f}), effects of up to "
        f"{largest['worst']:.2f} nats and {100 * share['mean']:.0f} % of all effects by magnitude."
    )


def _require_positive(value: int, name: str) -> None:
    if value < 1:
        raise InputError(f"The size of the {name} must be at least 1, not {value}.")


def _without_zero(table: pd.DataFrame) -> pd.DataFrame:
    """The table with an empty k for what takes all units."""
    return table.assign(k=table["k"].where(table["k"] != NO_K).astype("Int64"))


def _places(values: Float[np.ndarray, "row unit"]) -> Int[np.ndarray, "row unit"]:
    """Place of each unit in its row by magnitude, 0 the largest."""
    return places(np.abs(values))


def _statistics(
    exact: Float[np.ndarray, "row unit"],
    guess: Float[np.ndarray, "row unit"],
    top: Sequence[int],
    layers: Int[np.ndarray, " unit"] | None,
) -> dict[tuple[str, int], Float[np.ndarray, " row"]]:
    """(statistic, k) → its value in each row."""
    sizes = [k for k in top if k < exact.shape[1]]
    found = rank_statistics(exact, guess, sizes, layers, by_magnitude=True)
    return {key: values for key, values in found.items() if key[0] != "jaccard"}


def _layers(table: Table) -> Int[np.ndarray, " unit"] | None:
    """Each unit's layer; None of MLPs, of which a layer has one."""
    if table.site != "z":
        return None
    return table.exact.columns.get_level_values("layer").to_numpy(int)


def _cluster_sums(values: pd.DataFrame, tasks: pd.Series) -> Float[np.ndarray, "cluster unit"]:
    return cluster_sums(values.to_numpy(float), *cluster_codes(tasks, len(values)))


def _pooled(
    table: Table, top: Sequence[int], rng: np.random.Generator, n_draws: int
) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Statistics of the means over items, with the ends of their intervals."""
    exact, guess = (_cluster_sums(values, table.tasks) for values in (table.exact, table.guess))
    n_clusters, layers = len(exact), _layers(table)
    taken = draw_clusters(n_clusters, rng, n_draws)
    # Sums rank units as means do: every unit has the same items in a draw.
    found = _statistics(exact.sum(axis=0)[None], guess.sum(axis=0)[None], top, layers)
    drawn = _statistics(taken @ exact, taken @ guess, top, layers)
    return {
        key: (float(values[0]), *percentile_ends(drawn[key], n_clusters)) for key, values in found.items()
    }


def _cells(
    found: Interval, values: Float[np.ndarray, " item"]
) -> tuple[float, float, float, float, int, int]:
    return (*found.cells, float(np.max(values)), *found.counts)
