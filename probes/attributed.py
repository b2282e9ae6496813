"""Exact effects of patching beside their estimates by attribution: the table, and its checks.

One row an item, direction and unit. A unit is a head (site z) or a layer's MLP (site mlp_out, which has no head); both
its exact effect and its estimate are in nats, with the signs of `probes.effects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mech.attribution import Attribution
from mech.errors import InputError
from mech.heads import Head
from probes.effects import DIRECTIONS, by_item, rectangle, require

ATTRIBUTION = ("item_id", "task_id", "direction", "site", "layer", "head", "effect_nats", "estimate_nats")
NO_HEAD = -1  # stands for the head of an MLP while tables are pivoted

_UNIT = ["layer", "head"]


@dataclass(frozen=True)
class Table:
    """One site and direction: exact effects and estimates (items down, units across), and the items' tasks."""

    site: str
    direction: str
    exact: pd.DataFrame
    guess: pd.DataFrame
    tasks: pd.Series


def compared(
    item_id: str,
    task_id: str,
    direction: str,
    attribution: Attribution,
    heads: Mapping[Head, float],
    mlps: Mapping[int, float] | None = None,
) -> pd.DataFrame:
    """One item's exact effects beside their estimates, a row a unit, in the columns of ATTRIBUTION.

    Args:
        item_id: the item.
        task_id: its cluster.
        direction: noise or denoise.
        attribution: as `mech.attribution.attribute` gives it: the sign of the direction is put on here.
        heads: exact effects (nats), signed already; units without an exact effect have no row.
        mlps: exact effects of MLP outputs, by layer.

    Raises:
        InputError: an unknown direction, or a unit was patched and not attributed.
    """
    estimates = attribution.effects(direction)
    about = (item_id, task_id, direction)
    lacking = [str(head) for head in heads if head not in estimates.heads]
    lacking += [f"MLP{layer}" for layer in mlps or {} if layer not in estimates.mlps]
    if lacking:
        raise InputError(f"{lacking[0]} was patched and not attributed.")
    lines: list[tuple[Any, ...]] = [
        (*about, "z", head.layer, head.head, effect, estimates.heads[head]) for head, effect in heads.items()
    ]
    lines += [
        (*about, "mlp_out", layer, None, effect, estimates.mlps[layer])
        for layer, effect in (mlps or {}).items()
    ]
    return typed(pd.DataFrame(lines, columns=list(ATTRIBUTION)))


def tables(rows: pd.DataFrame) -> Iterator[Table]:
    """The rows by site and direction; InputError for rows that could only give a wrong comparison."""
    missing = [column for column in ATTRIBUTION if column not in rows.columns]
    if missing:
        raise InputError(f"The rows lack the columns {', '.join(missing)}.")
    # An MLP has no head; a head without a number is an error.
    filled = rows.assign(head=rows["head"].mask(rows["site"] == "mlp_out", NO_HEAD))
    require(filled, ATTRIBUTION, ["item_id", "direction", "site", *_UNIT])
    unknown = filled.loc[~filled["direction"].isin(DIRECTIONS), "direction"]
    if len(unknown):
        raise InputError(f"'{unknown.iloc[0]}' is not a direction: write noise or denoise.")
    for (site, direction), group in filled.groupby(["site", "direction"], sort=True):
        exact, guess = (rectangle(group, _UNIT, value) for value in ("effect_nats", "estimate_nats"))
        yield Table(str(site), str(direction), exact, guess, by_item(group, exact.index)["task_id"])


def typed(table: pd.DataFrame) -> pd.DataFrame:
    """The table with whole numbers for layer and head, and no head for MLPs."""
    head = table["head"].astype("Int64")
    return table.assign(layer=table["layer"].astype("Int64"), head=head.mask(head == NO_HEAD))
