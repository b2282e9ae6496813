"""The searches of the study `circuit`, and how far their results depend on seed, training tasks and templates.

score         the smallest prefix of the ranking by prefix matching on repeated random tokens, which no task chose
attribution   the smallest prefix of the ranking by attribution estimates, summed over training items
greedy        forward selection among screened heads (the best by |estimate| and by score), then pruning
elimination   the attribution prefix, pruned
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from experiments.circuit_values import Evaluations, ItemSet
from experiments.find_heads import score_heads
from experiments.seeds import derive
from mech.circuits import Kind
from mech.errors import InputError
from mech.heads import Head, HeadSet
from probes.circuit import require_delta
from probes.circuit_search import Found, by_ranking, eliminate, greedy
from probes.circuit_stability import agreement, best_first, jaccard, resampled, template_halves
from probes.stats import RngFactory

METHODS = ("score", "attribution", "greedy", "elimination")


@dataclass(frozen=True)
class Search:
    """What a search goes by.

    Attributes:
        evaluations: exact effects.
        kind: the criterion: whose share must reach the target.
        training: the items that choose.
        scores: head → prefix-matching score.
        estimates: training item's id → head → attribution estimate.
        args: target, max_size, screen, width, repeats, seed, quiet.
    """

    evaluations: Evaluations
    kind: Kind
    training: ItemSet
    scores: Mapping[Head, float]
    estimates: Mapping[str, Mapping[Head, float]]
    args: argparse.Namespace

    @property
    def pooled(self) -> dict[Head, float]:
        """Each head's estimated share of the training items' mean delta, a ratio of means: > 0 where it carries it."""
        each = [self.estimates[item.item_id] for item in self.training.items]
        total = float(self.evaluations.deltas(self.training).sum())
        return {head: sum(one[head] for one in each) / total for head in self.scores}

    def order(self, method: str) -> list[Head]:
        """The ranking that a method without a search of its own follows, best first."""
        return best_first(self.scores if method == "score" else self.pooled)

    def screen(self) -> HeadSet:
        """The candidates of `greedy`: the best by |estimate| (heads that hold copying back too), and by score."""
        estimates = {head: abs(estimate) for head, estimate in self.pooled.items()}
        best = best_first(estimates)[: self.args.screen] + best_first(self.scores)[: self.args.screen]
        return HeadSet(dict.fromkeys(best))

    def find(self, method: str) -> Found:
        """The set that a method finds on the training items."""
        exact = self.evaluations.value(self.training, self.kind)
        target, most = self.args.target, self.args.max_size
        if method == "greedy":
            return greedy(self.screen(), exact, target, most, self.args.width)
        search = eliminate if method == "elimination" else by_ranking
        return search(self.order(method), exact, target, most)


def stability(search: Search, found: Mapping[str, Found], rng_for: RngFactory) -> pd.DataFrame:
    """Every search again under other seeds, resampled training tasks and halves of the templates.

    Returns:
        method, variation (seed, tasks or templates), label, n_items, k, reached, and against the study's own result
        jaccard of the sets, kendall and spearman of the rankings (of the scores for score, else of the pooled
        estimates; NaN where the ranking was not varied).
    """
    lines = []
    nan = float("nan")
    for variation, label, varied, methods in _variations(search, rng_for):
        if not _has_delta(
            varied, rng_for, label
        ):  # a part of the items whose difference is too small to share out
            size = len(varied.training.items)
            lines += [(name, variation, label, size, 0, False, nan, nan, nan) for name in methods]
            continue
        for method in (name for name in METHODS if name in methods):
            other = varied.find(method)
            ranks = _agreement(search, varied, method, variation)
            about = (method, variation, label, len(varied.training.items), len(other.heads), other.reached)
            lines.append((*about, jaccard(found[method].set, other.set), *ranks))
    columns = ["method", "variation", "label", "n_items", "k", "reached", "jaccard", "kendall", "spearman"]
    return pd.DataFrame(lines, columns=columns)


def _has_delta(search: Search, rng_for: RngFactory, label: str) -> bool:
    deltas = search.evaluations.deltas(search.training)
    try:
        require_delta(deltas.tolist(), search.training.tasks, rng_for(f"circuit/delta/{label}"), label)
    except InputError:
        return False
    return True


def _variations(search: Search, rng_for: RngFactory) -> list[tuple[str, str, Search, tuple[str, ...]]]:
    """(variation, label, the search under it, the methods that it can move)."""
    model, args = search.evaluations.session.model, search.args
    found: list[tuple[str, str, Search, tuple[str, ...]]] = []
    for repeat in range(args.repeats):
        scores = scores_of(score_heads(model, derive(args.seed, f"circuit/tokens/{repeat}")))
        found.append(("seed", f"tokens{repeat}", replace(search, scores=scores), ("score",)))
    by_tasks = ("attribution", "greedy", "elimination")
    for repeat in range(args.repeats):
        drawn = resampled(search.training.items, rng_for(f"circuit/tasks/{repeat}"))
        varied = replace(search, training=replace(search.training, items=drawn))
        found.append(("tasks", f"resample{repeat}", varied, by_tasks))
    for label, half in template_halves(search.training.items):
        varied = replace(search, training=replace(search.training, items=half))
        found.append(("templates", label, varied, METHODS))
    return found


def _agreement(search: Search, varied: Search, method: str, variation: str) -> tuple[float, float]:
    if method == "score":
        ranks = agreement(search.scores, varied.scores) if variation == "seed" else (float("nan"),) * 2
        return ranks[0], ranks[1]
    return agreement(search.pooled, varied.pooled)


def scores_of(table: pd.DataFrame, by: str = "prefix_matching") -> dict[Head, float]:
    """Head → score, from a table with layer, head and a column per score."""
    return {
        Head(int(layer), int(head)): float(score)
        for layer, head, score in zip(table["layer"], table["head"], table[by], strict=True)
    }
