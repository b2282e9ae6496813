"""Calls of other tasks for each item: the far placebo, and valid calls for the in-distribution contrast.

The far placebo is a failed call of another task and tool, with the error it met there.

The near placebo (`fail_other`) shares most of its tokens with a×, so that it bounds no effect.
Here the call is another item's: of another task and another tool, among the nearest to a× in length the one with the
least text in common.

`neut_other` records a valid call, one that is right in another task (the reference action there, or a step that
worked). An item lists the candidates nearest to a× in length, of other tools and of its own; which of them is as long
in tokens, and has least in common with a×, is for the model to say (`probes.prompts.conditions.other_call`). None is
a call of the item's own task, its failed action or one of its distractors. Both depend on the pool alone, not on
which of its items are measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probes.items.item import Item
from probes.prompts.conditions import OTHER_CALLS, UNRELATED, grams

NEAREST = 20  # candidates by length, out of which the least similar is taken
N_OTHER = 24  # valid calls that an item lists, of other tools and of its own each


def with_unrelated(items: Sequence[Item], pool: Sequence[Item]) -> list[Item]:
    """The items, each with an unrelated call and valid calls of the pool in its meta (keys UNRELATED, OTHER_CALLS).

    An item that already has them keeps them; one for which the pool has no such call gets none.
    """
    valid = _valid_calls(pool)
    return [_with_valid(_with_call(item, pool), valid) for item in items]


def _with_call(item: Item, pool: Sequence[Item]) -> Item:
    if set(UNRELATED) <= set(item.meta):
        return item
    others = [
        other
        for other in pool
        if other.task_id != item.task_id and (item.tool is None or _first_tool(other) != _first_tool(item))
    ]
    if not others:
        return item
    length = len(item.failed_action)
    others.sort(key=lambda other: (abs(len(other.failed_action) - length), other.item_id))
    own = grams(item.failed_action) | grams(item.gold_action or "")
    chosen = min(others[:NEAREST], key=lambda other: len(grams(other.failed_action) & own))
    return replace(
        item, meta={**item.meta, **dict(zip(UNRELATED, (chosen.failed_action, chosen.obs_fail), strict=True))}
    )


def _valid_calls(pool: Iterable[Item]) -> dict[str, set[str]]:
    """Every call of the pool that was right where it stood → the tasks it was right in."""
    found: dict[str, set[str]] = {}
    for item in pool:
        right = (*item.prefix_actions, *(() if item.gold_action is None else (item.gold_action,)))
        for call in right:
            found.setdefault(call, set()).add(item.task_id)
    return found


def _with_valid(item: Item, valid: dict[str, set[str]]) -> Item:
    if OTHER_CALLS in item.meta:
        return item
    own = {item.failed_action, *item.distractors, *item.prefix_actions, item.gold_action}
    others = [call for call, tasks in valid.items() if call not in own and item.task_id not in tasks]
    if not others:
        return item
    length, tool = _pieces(item.failed_action), _first_tool(item)
    others.sort(key=lambda call: (abs(_pieces(call) - length), call))
    same = [call for call in others if item.tool is not None and _tool(call) == tool]
    chosen = [call for call in others if call not in same][:N_OTHER] + same[:N_OTHER]
    return replace(item, meta={**item.meta, OTHER_CALLS: chosen})


def _pieces(text: str) -> int:
    """About how many tokens a text has, before a tokenizer is at hand: digits one by one, words in fives, signs."""
    return len(re.findall(r"\d|[^\W\d_]{1,5}|_|[^\w\s]+", text))


def _first_tool(item: Item) -> str:
    """The tool that was meant: a misspelt one counts as the one the reference action calls, where there is one."""
    return _tool(item.gold_action or item.failed_action)


def _tool(call: str) -> str:
    """The tool of a call: what is before its bracket, or the name in a call that is written as JSON."""
    if call.startswith('{"name": "'):
        return call.split('"', 4)[3]
    return call.partition("(")[0]
