"""The far placebo: for each item a failed call that has nothing to do with it, with the error it really met.

The near placebo (`fail_other`) shares most of its tokens with a×, so that what it leaves of the effect bounds nothing.
Here the call is another item's: of another task and another tool, among the nearest to a× in length the one with the
least text in common. It depends on the pool alone, not on which of its items are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.conditions import UNRELATED
from probes.items import Item

NEAREST = 20  # candidates by length, out of which the least similar is taken
_GRAM = 4  # characters that two calls must share in a row to have something in common


def with_unrelated(items: Sequence[Item], pool: Sequence[Item]) -> list[Item]:
    """The items, each with an unrelated call of the pool in its meta (keys UNRELATED).

    An item that already has one keeps it; one for which the pool holds no other task and tool stays without.
    """
    return [item if set(UNRELATED) <= set(item.meta) else _with_call(item, pool) for item in items]


def _with_call(item: Item, pool: Sequence[Item]) -> Item:
    others = [
        other
        for other in pool
        if other.task_id != item.task_id and (item.tool is None or _first_tool(other) != _first_tool(item))
    ]
    if not others:
        return item
    length = len(item.failed_action)
    others.sort(key=lambda other: (abs(len(other.failed_action) - length), other.item_id))
    own = _grams(item.failed_action) | _grams(item.gold_action or "")
    chosen = min(others[:NEAREST], key=lambda other: len(_grams(other.failed_action) & own))
    return replace(
        item, meta={**item.meta, **dict(zip(UNRELATED, (chosen.failed_action, chosen.obs_fail), strict=True))}
    )


def _first_tool(item: Item) -> str:
    """The tool that was meant: a misspelt one counts as the one the reference action calls, where there is one."""
    return (item.gold_action or item.failed_action).partition("(")[0]


def _grams(text: str) -> set[str]:
    return {text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)}
