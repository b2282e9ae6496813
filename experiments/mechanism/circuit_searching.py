"""The searches of the study `circuit`, and how far the results of one half of the items agree with the other's.

score         the smallest prefix of the ranking by prefix matching on repeated random tokens, which no task chose
attribution   the smallest prefix of the ranking by attribution estimates, summed over training items
greedy        forward selection among screened heads (the best by |estimate| and by score), then pruning
elimination   the attribution prefix, pruned
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pandas as pd

from experiments.heads.ranking import score_heads
from experiments.mechanism.circuit_values import Evaluations, ItemSet
from experiments.run.schema import TABLES
from experiments.run.seeds import derive
from experiments.run.study import Flag, SeedOptions, not_negative, positive, positive_number
from mech.heads import Head, HeadSet
from mech.patching.circuits import Criterion as Kind
from probes.effects.circuit_search import Found, by_ranking, eliminate, greedy
from probes.effects.circuit_stability import (
    LEVELS,
    Level,
    best_first,
    halves,
    jaccard,
    rank_correlations,
    recall,
    within_layers,
)
from probes.items.item import Item
from probes.stats.bootstrap import RngFactory
from probes.stats.frame_checks import MIN_DELTA
from probes.stats.ranks import chance_jaccard

METHODS = ("score", "attribution", "greedy", "elimination")
COSTLY = ("greedy", "elimination")
"""Searches that ask for hundreds of sets; the other two ask for prefixes of a ranking."""
EXACT = "exact"
RECALLED = (8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SeedOptions):
    """How far and how often is searched."""

    target: Annotated[float, Flag("share of the difference to reach", positive_number)] = 0.9
    max_size: Annotated[int, Flag("no larger set is looked at", positive)] = 64
    screen: Annotated[int, Flag("greedy: best heads by |attribution|, and as many by score", positive)] = 40
    width: Annotated[int, Flag("greedy: candidates checked a step, those of largest last gain", positive)] = 6
    repeats: Annotated[
        int, Flag("stability: pairs of halves of the training items, and other random tokens", positive)
    ] = 10
    search_repeats: Annotated[
        int, Flag("of these, pairs in which greedy and elimination search as well", not_negative)
    ] = 2


@dataclass(frozen=True)
class Search:
    """What a search goes by.

    Attributes:
        evaluations: exact effects.
        kind: the criterion: whose share must reach the target.
        training: the items that choose.
        scores: head → prefix-matching score.
        estimates: training item's id → head → attribution estimate.
        config: how far and how often is searched.
    """

    evaluations: Evaluations
    kind: Kind
    training: ItemSet
    scores: Mapping[Head, float]
    estimates: Mapping[str, Mapping[Head, float]]
    config: SearchOptions

    @property
    def summed(self) -> dict[Head, float]:
        """Each head's estimated effect (nats), summed over the training items: what halves are ranked by."""
        each = [self.estimates[item.item_id] for item in self.training.items]
        return {head: sum(one[head] for one in each) for head in self.scores}

    @property
    def pooled(self) -> dict[Head, float]:
        """Each head's estimated share of the training items' mean delta, a ratio of means: > 0 where it adds to it."""
        total = float(self.evaluations.deltas(self.training, self.evaluations.estimated).sum())
        return {head: effect / total for head, effect in self.summed.items()}

    def exact(self) -> dict[Head, float]:
        """Each head's effect alone, by the criterion, summed over the training items (nats)."""
        heads = sorted(self.scores)
        effects = self.evaluations.effects(self.training, self.kind, [HeadSet([head]) for head in heads])
        return dict(zip(heads, effects.sum(axis=0).tolist(), strict=True))

    def order(self, method: str) -> list[Head]:
        """The ranking that a method without a search of its own follows, best first."""
        return best_first(self.scores if method == "score" else self.pooled)

    def screen(self) -> HeadSet:
        """The candidates of `greedy`: the best by |estimate| (suppression heads too), and by score."""
        estimates = {head: abs(estimate) for head, estimate in self.pooled.items()}
        best = best_first(estimates)[: self.config.screen] + best_first(self.scores)[: self.config.screen]
        return HeadSet(dict.fromkeys(best))

    def find(self, method: str) -> Found:
        """The set that a method finds on the training items."""
        exact = self.evaluations.value(self.training, self.kind)
        target, most = self.config.target, self.config.max_size
        if method == "greedy":
            return greedy(self.screen(), exact, target, most, self.config.width)
        search = eliminate if method == "elimination" else by_ranking
        return search(self.order(method), exact, target, most)


def stability(search: Search, found: Mapping[str, Found], rng_for: RngFactory) -> pd.DataFrame:
    """What one half of the training items finds against what the other half finds, and the score by other tokens.

    The halves share no cluster: no template (and no task), or no task. Neither is compared with the set found on all
    items, which contains it. Rankings of halves cost nothing, as the effects they are of are kept by item; sets are
    looked for in the halves of one level (`searched_level`), by the rankings' prefixes in all of them, and by the
    costly searches (COSTLY) in the first --search-repeats. Halves whose difference is too small
    to divide by have no set.

    Returns:
        The columns of circuit_stability.csv. `exact` ranks heads by their own effects, alone, by the criterion;
        attribution and the searches that start from it by the summed estimates.
    """
    training, config = search.training, search.config
    lines: list[dict[str, object]] = []
    for repeat in range(config.repeats):
        scores = scores_of(
            score_heads(search.evaluations.session.model, derive(config.seed, f"circuit/tokens/{repeat}"))
        )
        other = replace(search, scores=scores).find("score")
        about = _about("score", "tokens", f"tokens{repeat}", search, search)
        lines.append(about | _sets(found["score"], other) | _ranks(search.scores, scores))
    if len(training.items) > 1:
        singles = [HeadSet([head]) for head in sorted(search.scores)]
        search.evaluations.ensure(training, {search.kind: singles}, "single heads")
    searched = searched_level(search, rng_for)
    for level in LEVELS:
        for repeat, pair in enumerate(_halves(search, level, rng_for)):
            one, other_half = (replace(search, training=replace(training, items=items)) for items in pair)
            label = f"half{repeat}"
            exact = _about(EXACT, level, label, one, other_half)
            lines.append(exact | _ranks(one.exact(), other_half.exact()))
            for method in METHODS:
                row = _about(method, level, label, one, other_half)
                if method != "score":
                    row |= _ranks(one.summed, other_half.summed)
                wanted = level == searched and (method not in COSTLY or repeat < config.search_repeats)
                if wanted and _have_deltas(one, other_half):
                    row |= _sets(one.find(method), other_half.find(method))
                lines.append(row)
    return pd.DataFrame(lines).reindex(columns=list(TABLES["circuit_stability"]))


def stability_summary(table: pd.DataFrame, n_heads: int) -> pd.DataFrame:
    """Each statistic over repeats; the columns of circuit_stability_summary.csv.

    Repeats part the same items anew: lo and hi (2.5 and 97.5 %) say how much depends on which half a cluster fell
    into, and are no confidence interval over tasks.
    """
    lines = []
    names = [
        name
        for name in TABLES["circuit_stability"]
        if name.startswith(("jaccard", "kendall", "spearman", "recall"))
    ]
    for (method, variation), group in table.groupby(["method", "variation"], sort=False):
        for name in names:
            known = group[name].astype(float).dropna()
            if known.empty:
                continue
            lo, hi = np.quantile(known, [0.025, 0.975])
            chance = 0.0
            if name == "jaccard":
                sizes = group.loc[known.index, ["k", "k_other"]].astype(float)
                chance = chance_jaccard(round(float(sizes.to_numpy().mean())), n_heads)
            elif name.startswith("recall"):
                chance = int(name.removeprefix("recall_")) / n_heads
            cells = (float(known.mean()), float(lo), float(hi), float(known.min()), float(known.max()))
            lines.append((method, variation, name, *cells, len(known), chance))
    return pd.DataFrame(lines, columns=list(TABLES["circuit_stability_summary"]))


def searched_level(search: Search, rng_for: RngFactory) -> Level:
    """Halves of which sets are looked for: by template where there are as many as by task, else by task."""
    n = {level: len(_halves(search, level, rng_for)) for level in LEVELS}
    return "template" if n["template"] and n["template"] >= n["task"] else "task"


def _halves(search: Search, level: Level, rng_for: RngFactory) -> list[tuple[list[Item], list[Item]]]:
    return halves(search.training.items, level, search.config.repeats, rng_for(f"circuit/halves/{level}"))


def _about(method: str, variation: str, label: str, one: Search, other: Search) -> dict[str, object]:
    sizes = {"n_items": len(one.training.items), "n_items_other": len(other.training.items)}
    return {"method": method, "variation": variation, "label": label, **sizes}


def _sets(one: Found, other: Found) -> dict[str, object]:
    sizes = {"k": len(one.heads), "k_other": len(other.heads)}
    reached = {"reached": one.reached, "reached_other": other.reached}
    return {**sizes, **reached, "jaccard": jaccard(one.set, other.set)}


def _ranks(one: Mapping[Head, float], other: Mapping[Head, float]) -> dict[str, object]:
    kendall, spearman = rank_correlations(one, other)
    recalls = {f"recall_{k}": recall(one, other, k) for k in RECALLED}
    inside = within_layers(one, other)
    return {"kendall": kendall, "spearman": spearman, "spearman_within_layer": inside, **recalls}


def _have_deltas(*halves: Search) -> bool:
    """Whether the mean differences of these items can be divided by, and are of one sign."""
    means = [float(half.evaluations.deltas(half.training).mean()) for half in halves]
    return min(map(abs, means)) >= MIN_DELTA and len({mean > 0 for mean in means}) == 1


def scores_of(table: pd.DataFrame, by: str = "prefix_matching") -> dict[Head, float]:
    """Head → score, from a table with layer, head and a column per score."""
    return {
        Head(int(layer), int(head)): float(score)
        for layer, head, score in zip(table["layer"], table["head"], table[by], strict=True)
    }
