"""The sums that every metric of two candidates is made of, so that rows keep numbers and tables choose the metric.

    failed      log p of every token of a×
    diverging   log p of its tokens from the first on at which it differs from the reference
    gold, or distractor…      log p of every token of a reference

All metrics of `probes.contrast` are linear in these, with the numbers of tokens as constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mech.queries import Score
from probes.contrast import Contrast

FAILED, DIVERGING = "failed", "diverging"


def terms_of(contrast: Contrast, candidate: str, score: Score) -> dict[str, float]:
    """The terms (nats) that one candidate's score gives."""
    found = {candidate: score.total}
    if candidate == FAILED and contrast.references:
        found[DIVERGING] = math.fsum(score.logprobs[contrast.diverging_from :].tolist())
    return found


def lengths_of(contrast: Contrast, tokens: Mapping[str, int]) -> dict[str, int]:
    """Term → its number of tokens, out of those of each candidate."""
    lengths = {name: tokens[name] for name in contrast.candidates}
    if contrast.references:
        lengths[DIVERGING] = tokens[FAILED] - contrast.diverging_from
    return lengths


def metrics_of(terms: Mapping[str, float], lengths: Mapping[str, int]) -> dict[str, float]:
    """Metric → value, as `Contrast.values` of the scores that the terms are of; sums first.

    Args:
        terms: term → nats, or an effect on them.
        lengths: as `lengths_of`.
    """
    references = [name for name in lengths if name not in (FAILED, DIVERGING)]
    sums = {"logprob": terms[FAILED]}
    each = {"logprob_per_token": terms[FAILED] / lengths[FAILED]}
    if references:
        n = len(references)
        sums["margin"] = terms[FAILED] - math.fsum(terms[name] for name in references) / n
        sums["diverging"] = terms[DIVERGING]
        theirs = math.fsum(terms[name] / lengths[name] for name in references) / n
        each["margin_per_token"] = each["logprob_per_token"] - theirs
        each["diverging_per_token"] = terms[DIVERGING] / lengths[DIVERGING]
    return {**sums, **each}
