"""Cutting a pool of items down to a number per operator without favouring the first tasks or the commonest error."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from probes.items.item import Item


def capped(pool: list[Item], per_operator: int, rng: random.Random, by_template: bool = False) -> list[Item]:
    """At most so many of each operator: error families in even shares, tasks as drawn, not the first ones.

    `by_template`: within a family the templates in even shares as well.
    """
    order = list(pool)
    rng.shuffle(order)
    order = _in_turns(order, lambda item: (item.operator, item.task_id))
    if by_template:
        order = _in_turns(order, lambda item: (f"{item.operator}/{item.error_type}", item.template))
    order = _in_turns(order, lambda item: (item.operator, item.error_type))
    kept: list[Item] = []
    taken: Counter[str] = Counter()
    for item in order:
        if taken[item.operator] < per_operator:
            taken[item.operator] += 1
            kept.append(item)
    return kept


def _in_turns(items: list[Item], group: Callable[[Item], tuple[str, str]]) -> list[Item]:
    """The first item of every group, then the second of every group, and so on; else in the given order."""
    seen: Counter[tuple[str, str]] = Counter()
    ranked: list[tuple[int, Item]] = []
    for item in items:
        ranked.append((seen[group(item)], item))
        seen[group(item)] += 1
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]
