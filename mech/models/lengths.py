"""The longest sequence that a model scores exactly.

Scores are computed from forwards of other lengths: a shared prefix, a packed row, token after token. That is exact only
where the keys and values of a position do not depend on the sequence's length. Two cases break it:

- rotations that depend on the length (rope types `dynamic` past the maximum, `longrope` past its switch). The length
  is found by running the rotary modules alone, without a forward of the model;
- layers that see chunks, or windows of another kind than `sliding_attention` (Llama 4's chunks, GPT-Neo's local
  attention). The packed row has no such mask; up to that length none is needed.

Longer sequences are refused. Sliding windows are exact at every length (`mech.checks.checks`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

LONGEST = 2**24
"""The longest length that is tried: float32, in which positions are rotated, has no larger consecutive integers."""

SPANS = ("attention_chunk_size", "window_size", "local_attention")
"""Names in configurations of the span of layers with limited attention, except `sliding_window`."""


class Limit(NamedTuple):
    """The most tokens of a sequence, and why, as the rest of the sentence "MODEL …".

    `learned`: the model has no more positions; otherwise it has, but scores would be wrong.
    """

    n_tokens: int
    reason: str
    learned: bool = False


def limits(network: Any, config: Any, learned: bool) -> list[Limit]:
    """Every limit of a transformers model, shortest first; `learned`: it has an embedding for each position."""
    found = []
    if learned:
        n = int(config.max_position_embeddings)
        found.append(Limit(n, f"knows {n} positions", learned=True))
    n_same = same_rotation(network)
    if n_same is not None:
        reason = f"rotates positions differently in sequences of more than {n_same} tokens"
        found.append(Limit(n_same, reason))
    for name in SPANS:
        span = getattr(config, name, None)
        if isinstance(span, int) and span > 0:
            found.append(Limit(span, f"has layers that see {span} tokens ({name}), which is not supported"))
    return sorted(found)


def same_rotation(network: Any) -> int | None:
    """The largest length up to which all sequences rotate a position alike; None where all do."""
    lengths = [_same(module, kind) for module, kind in _rotaries(network)]
    return min((length for length in lengths if length is not None), default=None)


def _rotaries(network: Any) -> Iterator[tuple[Any, str | None]]:
    """The rotary modules, once for each layer type on which they depend."""
    for module in network.modules():
        asked = inspect.signature(type(module).forward).parameters
        if "position_ids" not in asked or "Rotary" not in type(module).__name__:
            continue
        kinds = sorted(set(module.config.layer_types)) if "layer_type" in asked else [None]
        yield from ((module, kind) for kind in kinds)


def _same(rotary: Any, kind: str | None) -> int | None:
    """As `same_rotation`, of one module, by doubling the length and then bisection."""
    shortest = _rotated(rotary, kind, 2)

    def changed(length: int) -> bool:
        found = _rotated(rotary, kind, length)
        return any(not torch.equal(one, other) for one, other in zip(found, shortest, strict=True))

    same, length = 2, 4
    while not changed(length):
        same, length = length, 2 * length
        if length > LONGEST:
            return None
    while length - same > 1:
        middle = (same + length) // 2
        same, length = (same, middle) if changed(middle) else (middle, length)
    return same


def _rotated(rotary: Any, kind: str | None, length: int) -> tuple[Tensor, ...]:
    """The rotation of position 1 in a sequence of that length, by a copy of the module (`dynamic` has state)."""
    device = next((buffer.device for buffer in rotary.buffers()), torch.device("cpu"))
    places = torch.tensor([[1, length - 1]], device=device)
    like = torch.empty(0, dtype=torch.float32, device=device)
    out = copy.deepcopy(rotary)(like, places, *([kind] if kind else []))
    return tuple(part[:, 0] for part in (out if isinstance(out, tuple) else (out,)))
