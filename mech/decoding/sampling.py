"""The next token of a distribution, given what must not be written: the best that is not refused, or a draw.

greedy     the token of the largest logit; refused, the next largest, and so on
sampled    a draw from softmax(logits / temperature); refused, a new draw from what is left: exactly the distribution
           over the tokens that are not refused, since which ones are does not depend on the draw

A ban is asked about the tokens that the model would choose, one after another, never about the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mech.errors import InputError

Refusal = Callable[[int], "str | None"]
"""Token → the label of the ban that refuses it, or None."""


@dataclass(frozen=True)
class Choice:
    """A token (None: every one is refused), its log-probability in the whole distribution, and what was refused.

    `logprob` is of the model's own distribution, at temperature 1 and with nothing refused; `refused` holds (token,
    label of the ban) in the order in which the tokens would have been chosen.
    """

    token: int | None
    logprob: float
    refused: tuple[tuple[int, str], ...]


def choose(
    logits: Float[Tensor, " d_vocab"],
    refusal: Refusal,
    temperature: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Choice:
    """One token.

    Args:
        logits: of the next token, finite.
        refusal: see `Refusal`.
        temperature: 0 for greedy.
        rng: the stream of the draws, for a temperature above 0.

    Raises:
        InputError: a negative temperature, or one above 0 without a stream.
    """
    if temperature < 0 or not np.isfinite(temperature):
        raise InputError(f"A temperature is 0 (greedy) or above, not {temperature}.")
    if temperature > 0 and rng is None:
        raise InputError("Sampling needs a stream of random numbers.")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    left = wide.clone()
    refused: list[tuple[int, str]] = []
    while len(refused) < len(left):
        token = int(left.argmax()) if temperature == 0 or rng is None else _draw(left, temperature, rng)
        label = refusal(token)
        if label is None:
            return Choice(token, float(wide[token] - torch.logsumexp(wide, 0)), tuple(refused))
        refused.append((token, label))
        left[token] = -torch.inf
    return Choice(None, float("nan"), tuple(refused))


def best(logits: Float[Tensor, " d_vocab"], count: int) -> list[tuple[int, float]]:
    """The likeliest tokens with their log-probabilities (nats), best first."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    values, tokens = torch.log_softmax(wide, 0).topk(min(count, len(wide)))
    return [(int(token), float(value)) for token, value in zip(tokens, values, strict=True)]


def _draw(left: Tensor, temperature: float, rng: np.random.Generator) -> int:
    """One token of softmax(left / temperature), by one uniform number and the cumulative sum in float64."""
    weights = torch.softmax(left.double() / temperature, 0).cpu().numpy()
    total = np.cumsum(weights)
    place = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
    last = int(np.flatnonzero(weights)[-1])
    return min(place, last)  # rounding of the last sum must not choose a token that has no weight
