"""How much a found set depends on what it was found with: splits of tasks and templates, overlap, rank agreement.

    jaccard     |A ∩ B| / |A ∪ B| of two sets
    kendall     τ-b of two scorings of the same heads, ties allowed
    spearman    rank correlation of the same

Training and test items never share a task: `split_tasks` and `untouched` see to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.stats import kendalltau

from mech.errors import InputError
from mech.heads import Head, HeadSet
from probes.items import Item
from probes.ranks import spearman


def split_tasks(
    items: Sequence[Item], held_out: float, rng: np.random.Generator
) -> tuple[list[Item], list[Item]]:
    """Training and held-out items, in their order: whole tasks go to one side, and tasks of one goal together.

    Args:
        items: decision points of at least two tasks.
        held_out: share of the tasks to hold out, between 0 and 1; at least one task stays on each side.
        rng: draws the groups of tasks.

    Raises:
        InputError: fewer than two tasks, or a share that is not between 0 and 1.
    """
    if not 0 < held_out < 1:
        raise InputError(f"The share of tasks held out lies between 0 and 1: {held_out:g} does not.")
    group = _groups(items)
    names = sorted(set(group.values()))
    if len(names) < 2:
        raise InputError(f"Items of {len(names)} task cannot be split into training and held-out tasks.")
    count = min(max(round(held_out * len(names)), 1), len(names) - 1)
    out = {names[at] for at in rng.permutation(len(names))[:count]}
    sides: tuple[list[Item], list[Item]] = ([], [])
    for item in items:
        sides[group[item.env, item.task_id] in out].append(item)
    return sides


def _groups(items: Iterable[Item]) -> dict[tuple[str, str], tuple[str, str]]:
    """Task → the first of the tasks with which it shares a goal, by a chain of shared goals if need be."""
    group: dict[tuple[str, str], tuple[str, str]] = {}
    by_goal: dict[str, tuple[str, str]] = {}
    for item in sorted(items, key=lambda one: (one.env, one.task_id)):
        task = (item.env, item.task_id)
        group.setdefault(task, task)
        other = group[by_goal.setdefault(item.goal, task)]
        old = group[task]
        group = {name: min(old, other) if first in (old, other) else first for name, first in group.items()}
    return group


def untouched(items: Iterable[Item], training: Iterable[Item]) -> list[Item]:
    """The items that share neither task nor goal with a training item: another file may hold the same task."""
    seen = list(training)
    tasks, goals = {(item.env, item.task_id) for item in seen}, {item.goal for item in seen}
    return [item for item in items if (item.env, item.task_id) not in tasks and item.goal not in goals]


def template_halves(items: Sequence[Item]) -> list[tuple[str, list[Item]]]:
    """The items in two parts that share no template, of about equal numbers, each named by its templates.

    None where all items are of one template.
    """
    counts: dict[str, int] = {}
    for item in items:
        counts[item.template] = counts.get(item.template, 0) + 1
    if len(counts) < 2:
        return []
    sides: tuple[list[str], list[str]] = ([], [])
    for template in sorted(
        counts, key=lambda name: (-counts[name], name)
    ):  # the largest first, to the lighter
        loads = [sum(counts[name] for name in side) for side in sides]
        sides[loads[1] < loads[0]].append(template)
    return [("+".join(sorted(side)), [item for item in items if item.template in side]) for side in sides]


def resampled(items: Sequence[Item], rng: np.random.Generator) -> list[Item]:
    """The items of as many tasks as there are, drawn with replacement: an item may come more than once."""
    tasks = sorted({item.task_id for item in items})
    drawn = rng.choice(len(tasks), size=len(tasks), replace=True)
    return [item for at in drawn for item in items if item.task_id == tasks[at]]


def jaccard(one: HeadSet, other: HeadSet) -> float:
    """Overlap of two sets; NaN of two empty ones."""
    both, either = set(one) & set(other), set(one) | set(other)
    return len(both) / len(either) if either else math.nan


def agreement(one: Mapping[Head, float], other: Mapping[Head, float]) -> tuple[float, float]:
    """Kendall's τ-b and Spearman's ρ of two scorings; NaN where a scoring is constant.

    Raises:
        InputError: the scorings are of different heads.
    """
    if set(one) != set(other):
        raise InputError("Two rankings are compared over the same heads only.")
    heads = sorted(one)
    a, b = (np.array([scores[head] for head in heads]) for scores in (one, other))
    return float(kendalltau(a, b).statistic), float(spearman(a[None], b[None])[0])


def best_first(scores: Mapping[Head, float]) -> list[Head]:
    """Heads by score, the highest first; ties go to the lower layer, then head."""
    return sorted(scores, key=lambda head: (-scores[head], head))
