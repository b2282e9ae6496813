"""What the engine hands out and counts: a query's answer with its kept activations, and forwards run and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query, Score


@dataclass
class ForwardCounter:
    """Forwards (passes of the model over a row or a sequence) that were run, and that a cache made unnecessary."""

    ran: int = 0
    saved: int = 0


@dataclass(frozen=True)
class Run:
    """One query's answer with what was kept of it.

    Attributes:
        query: the question.
        score: log-probabilities of the action's tokens.
        cache: hook name → activation at the action positions (shapes: `mech.engine.capture`).
        at: position set name → such a cache, for further sets ("record", "observation", …) that were asked for.
        prefix_cache: keys and values of the prompt without its last token, under the query's all-position edits; it
        ends
            before the first position that another edit touches (`Query.untouched`).
    """

    query: Query
    score: Score
    cache: Mapping[str, Tensor]
    at: Mapping[str, Mapping[str, Tensor]]
    prefix_cache: PrefixCache
