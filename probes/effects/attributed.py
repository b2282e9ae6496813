"""Exact effects of patching beside their estimates by attribution: the table, and its checks.

One row an item, metric, direction and unit. A unit is a head (site z) or a layer's MLP (site mlp_out, which has no
head); both its exact effect and its estimate are in nats, with the signs of `probes.effects.shares`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mech.engine.engine import Engine, Run
from mech.errors import InputError
from mech.heads import Head
from mech.patching.attribution import Attribution, attribute
from mech.patching.gradients import SITES
from probes.scoring.contrast import Contrast
from probes.scoring.metric_sums import DIVERGING, FAILED
from probes.stats.frame_checks import DIRECTIONS, by_item, rectangle, require

ATTRIBUTION = (
    *("item_id", "task_id", "direction", "delta", "site", "layer", "head"),
    *("effect_nats", "estimate_nats"),
)
NO_HEAD = -1  # stands for the head of an MLP while tables are pivoted

_UNIT = ["layer", "head"]


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
    whole = attribute(engine, recipient, donor, steps, sites=sites)
    found = {candidate: whole.effects(direction)}
    if candidate == FAILED and contrast.references:
        first = contrast.diverging_from
        part = attribute(engine, recipient, donor, steps, sites=sites, first=first) if first else whole
        found[DIVERGING] = part.effects(direction)
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
    if direction not in DIRECTIONS:
        raise InputError(f"'{direction}' is not a direction: write noise or denoise.")
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
    missing = [column for column in ATTRIBUTION if column not in rows.columns]
    if missing:
        raise InputError(f"The rows lack the columns {', '.join(missing)}.")
    # An MLP has no head; a head without a number is an error.
    filled = rows.assign(head=rows["head"].mask(rows["site"] == "mlp_out", NO_HEAD))
    needed = [name for name in ATTRIBUTION if name != "delta"]
    require(filled, needed, ["item_id", "direction", "site", *_UNIT])
    unknown = filled.loc[~filled["direction"].isin(DIRECTIONS), "direction"]
    if len(unknown):
        raise InputError(f"'{unknown.iloc[0]}' is not a direction: write noise or denoise.")
    for (site, direction), group in filled.groupby(["site", "direction"], sort=True):
        exact, guess = (rectangle(group, _UNIT, value) for value in ("effect_nats", "estimate_nats"))
        items = by_item(group, exact.index)
        yield Table(str(site), str(direction), exact, guess, items["task_id"], items["delta"])


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """The table with whole numbers for layer and head, and no head for MLPs."""
    head = table["head"].astype("Int64")
    return table.assign(layer=table["layer"].astype("Int64"), head=head.mask(head == NO_HEAD))
