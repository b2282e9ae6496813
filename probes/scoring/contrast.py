"""The metrics of one action, or of two, in which every effect of this package is counted.

    logprob      L(a×)                                   summed log-probability, nats
    margin       L(a×) − L(reference)                    against the call that would have been right
    diverging    L of a×'s tokens from the first on at which it differs from the reference
    …_per_token  each sum divided by the number of its tokens (a margin: each of its two sums by its own)

A record lends probability to whatever shares its text, so an effect on L(a×) alone may mean no more than "copies
text": a margin asks whether a× gained on the reference. The tokens that both share have the same context and
cancel in it, so that a margin over the diverging tokens is the margin; `diverging` is of a× alone.

All metrics are linear in the log-probabilities of single tokens: the effect of a change on a metric is the metric of
the effects, and −G = Δcopy + Δsem holds in each. The reference is the item's reference action; where none is known,
the mean over its distractors; where there are none either, logprob alone is defined. Zhang & Nanda 2023
(arXiv:2309.16042) and Heimersheim & Nanda 2024 (arXiv:2404.15255) compare such metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mech.engine.queries import Score
from mech.models.model import Model
from probes.items.item import Item
from probes.prompts.wording import Wording
from probes.scoring.score import build_queries

METRICS = ("logprob", "margin", "diverging")
PER_TOKEN = tuple(f"{name}_per_token" for name in METRICS)
FORMS = (*METRICS, *PER_TOKEN)
"""Every value of the column `metric`, sums first."""


@dataclass(frozen=True)
class Contrast:
    """The candidates that an item's metrics are made of.

    Attributes:
        references: names out of `item.candidates()`: ("gold",), else its distractors, else none.
        diverging_from: the first token of a× at which it differs from the reference (from any of several); 0 where
            there is none.
    """

    references: tuple[str, ...]
    diverging_from: int

    @property
    def candidates(self) -> tuple[str, ...]:
        """All that must be scored: the failed action first."""
        return ("failed", *self.references)

    @property
    def references_are(self) -> str:
        """What the margin is against: gold, distractors or none."""
        if not self.references:
            return "none"
        return "gold" if self.references == ("gold",) else "distractors"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The FORMS that are defined: all, or those of logprob alone where there is no reference."""
        return FORMS if self.references else ("logprob", "logprob_per_token")

    def values(self, scores: Mapping[str, Score]) -> dict[str, float]:
        """Metric → its value (nats, or nats a token), of scores by candidate; see `metrics` for which there are."""
        own = {name: scores[name] for name in self.candidates}
        tail = own["failed"].logprobs[self.diverging_from :]
        totals = {name: score.total for name, score in own.items()}
        lengths = {name: score.n_tokens for name, score in own.items()}
        found = metric_values(Scored(totals, lengths, math.fsum(tail.tolist()), len(tail)))
        return {name: found[name] for name in self.metrics}


@dataclass(frozen=True)
class Scored:
    """What the metrics are made of, as sums: of log-probabilities, or of effects on them.

    Attributes:
        logprobs: candidate → nats; "failed", and the references there are.
        n_tokens: candidate → how many tokens it has.
        diverging: a×'s tokens from the first on at which it differs from the reference, nats.
        n_diverging: how many tokens that is.
    """

    logprobs: Mapping[str, float]
    n_tokens: Mapping[str, int]
    diverging: float
    n_diverging: int


def metric_values(sums: Scored) -> dict[str, float]:
    """Metric → its value; logprob and its per-token form alone where there is no reference."""
    per_token = {name: value / sums.n_tokens[name] for name, value in sums.logprobs.items()}
    values = {"logprob": sums.logprobs["failed"], "logprob_per_token": per_token["failed"]}
    others = [name for name in sums.logprobs if name != "failed"]
    if others:
        values["margin"] = values["logprob"] - _mean([sums.logprobs[name] for name in others])
        values["margin_per_token"] = per_token["failed"] - _mean([per_token[name] for name in others])
        values["diverging"] = sums.diverging
        values["diverging_per_token"] = sums.diverging / sums.n_diverging
    return values


def needed(contrast: Contrast, metric: str) -> tuple[str, ...]:
    """The candidates that a metric is made of: all for a margin, a× alone for the others."""
    return contrast.candidates if metric.startswith("margin") else ("failed",)


def contrast_of(model: Model, item: Item, wording: Wording) -> Contrast:
    """The item's contrast in this model's tokens.

    Raises:
        InputError: as `probes.scoring.score.build_queries`.
    """
    others = [name for name in item.candidates() if name not in ("failed", "gold")]
    references = ("gold",) if item.gold_action is not None else tuple(others)
    found = build_queries(model, item, ["pre"], wording, ("failed", *references))
    failed, *rest = (scoring.query.action for scoring in found)
    return Contrast(references, min((_first_difference(failed, other) for other in rest), default=0))


def _first_difference(tokens: Sequence[int], other: Sequence[int]) -> int:
    """The first place at which the tokens differ; the last of `tokens` where it only goes on, or not even that."""
    for place, (one, two) in enumerate(zip(tokens, other, strict=False)):
        if one != two:
            return place
    return min(len(other), len(tokens) - 1)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
