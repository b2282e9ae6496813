"""Held-out items for a set of heads, and the stability of the set over halves of the items it was found on.

    split_items     training and held-out items that share no task and no goal, or no template either
    halves          the training items in two parts that share no cluster: what one finds against what the other finds
    jaccard         |A ∩ B| / |A ∪ B| of two sets
    kendall         τ-b of two scorings of the same heads, ties allowed
    spearman        rank correlation of the same
    within layers   its mean over layers: a scoring that only knows in which layers heads matter has 0
    recall@k        share of the k best heads of one scoring that are among the k best of the other; chance: k / n

A result is compared with one found on other clusters, never with the one found on all, which contains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.stats import kendalltau

from mech.errors import InputError
from mech.heads import Head, HeadSet
from probes.items.item import Item
from probes.stats.ranks import spearman

Level = Literal["task", "template"]
LEVELS: tuple[Level, ...] = ("task", "template")
FEWEST_TEMPLATES = 6
"""Templates among the items below which a split by template is no default: either side would have one or two."""
_TRIES = 50  # draws in which a split unlike the earlier ones must turn up


def default_level(items: Iterable[Item]) -> Level:
    """What is held out where nothing is said: templates where there are FEWEST_TEMPLATES of them, else tasks."""
    found = {(item.env, item.template) for item in items}
    return "template" if len(found) >= FEWEST_TEMPLATES else "task"


def split_items(
    items: Sequence[Item], level: Level, held_out: float, rng: np.random.Generator
) -> tuple[list[Item], list[Item]]:
    """Training and held-out items, in their order, of which no two share a task, a goal, or (by template) a template.

    Args:
        items: decision points of at least two tasks, or templates.
        level: what is never divided between the sides; tasks of one goal always stay together.
        held_out: share of the tasks (templates) to hold out, between 0 and 1; at least one stays on each side.
        rng: draws the groups.

    Raises:
        InputError: the items are of one group, or a share that is not between 0 and 1.
    """
    if not 0 < held_out < 1:
        raise InputError(f"The share of {level}s held out lies between 0 and 1: {held_out:g} does not.")
    group = groups(items, level)
    names = sorted(set(group))
    if len(names) < 2:
        raise InputError(
            f"Items of {len(names)} {level} cannot be split into training and held-out {level}s"
            + (" (templates that share a task or a goal count as one)." if level == "template" else ".")
        )
    count = min(max(round(held_out * len(names)), 1), len(names) - 1)
    out = {names[at] for at in rng.permutation(len(names))[:count]}
    sides: tuple[list[Item], list[Item]] = ([], [])
    for item, name in zip(items, group, strict=True):
        sides[name in out].append(item)
    return sides


def groups(items: Sequence[Item], level: Level) -> list[tuple[str, str]]:
    """The group of each item: the first of the tasks that it hangs together with by shared goals (and templates)."""
    group: dict[tuple[str, str], tuple[str, str]] = {}
    first: dict[tuple[str, ...], tuple[str, str]] = {}
    for item in sorted(items, key=lambda one: (one.env, one.task_id)):
        task = (item.env, item.task_id)
        group.setdefault(task, task)
        shared: list[tuple[str, ...]] = [("goal", item.goal)]
        shared += [("template", item.env, item.template)] if level == "template" else []
        for key in shared:
            other, old = group[first.setdefault(key, task)], group[task]
            group = {name: min(old, other) if to in (old, other) else to for name, to in group.items()}
    return [group[item.env, item.task_id] for item in items]


def untouched(items: Iterable[Item], training: Iterable[Item], level: Level = "task") -> list[Item]:
    """The items that share neither task nor goal (nor template) with a training item: files may hold the same task."""
    seen = list(training)
    tasks, goals = {(item.env, item.task_id) for item in seen}, {item.goal for item in seen}
    templates = {(item.env, item.template) for item in seen} if level == "template" else set()
    return [
        item
        for item in items
        if (item.env, item.task_id) not in tasks
        and item.goal not in goals
        and (item.env, item.template) not in templates
    ]


def halves(
    items: Sequence[Item], level: Level, n: int, rng: np.random.Generator
) -> list[tuple[list[Item], list[Item]]]:
    """Up to n different ways to part the items in two halves that share no task, goal (or template).

    Args:
        items: those that a search sees.
        level: as in `split_items`; of an odd number of groups the second half has one more.
        n: how many; fewer come back where no more turn up (three groups have three, four have three, six have ten).
        rng: draws the groups.
    """
    group = groups(items, level)
    names = sorted(set(group))
    found: dict[frozenset[tuple[str, str]], tuple[list[Item], list[Item]]] = {}
    for _ in range(_TRIES * n if len(names) > 1 else 0):
        one = {names[at] for at in rng.permutation(len(names))[: len(names) // 2]}
        parts = ({name for name in names if name not in one}, one)
        if any(frozenset(part) in found for part in parts):
            continue
        found[frozenset(one)] = (
            [item for item, name in zip(items, group, strict=True) if name in one],
            [item for item, name in zip(items, group, strict=True) if name not in one],
        )
        if len(found) == n:
            break
    return list(found.values())


def jaccard(one: HeadSet, other: HeadSet) -> float:
    """Overlap of two sets; NaN of two empty ones."""
    both, either = set(one) & set(other), set(one) | set(other)
    return len(both) / len(either) if either else math.nan


def rank_correlations(one: Mapping[Head, float], other: Mapping[Head, float]) -> tuple[float, float]:
    """Kendall's τ-b and Spearman's ρ of two scorings; NaN where a scoring is constant.

    Raises:
        InputError: the scorings are of different heads.
    """
    if set(one) != set(other):
        raise InputError("Two rankings are compared over the same heads only.")
    heads = sorted(one)
    a, b = (np.array([scores[head] for head in heads]) for scores in (one, other))
    return float(kendalltau(a, b).statistic), float(spearman(a[None], b[None])[0])


def within_layers(one: Mapping[Head, float], other: Mapping[Head, float]) -> float:
    """Mean over layers of Spearman's ρ among the layer's heads; layers in which a scoring is constant are left out."""
    found = []
    for layer in sorted({head.layer for head in one}):
        heads = sorted(head for head in one if head.layer == layer)
        if len(heads) > 1:
            a, b = (np.array([scores[head] for head in heads]) for scores in (one, other))
            found.append(float(spearman(a[None], b[None])[0]))
    known = [value for value in found if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def recall(one: Mapping[Head, float], other: Mapping[Head, float], k: int) -> float:
    """The share of one's k best heads among the other's; NaN where there are not more than k heads."""
    if k >= len(one):
        return math.nan
    return len(set(best_first(one)[:k]) & set(best_first(other)[:k])) / k


def best_first(scores: Mapping[Head, float]) -> list[Head]:
    """Heads by score, the highest first; ties go to the lower layer, then head."""
    return sorted(scores, key=lambda head: (-scores[head], head))
