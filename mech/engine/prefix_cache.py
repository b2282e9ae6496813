"""Keys and values of a shared prefix, frozen, and good only for the tokens *and* the intervention they came from.

A prefix cache computed without an ablation and used under it was off by most of the ablation's effect (traps, 10):
the fingerprint travels with the tensors and is compared at every use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PrefixCache:
    """`keys[layer]` and `values[layer]` are [1, n_kv_heads, len(tokens), d_head]; keys are rotated already."""

    tokens: tuple[int, ...]
    fingerprint: str
    keys: tuple[Float[Tensor, "1 n_kv_heads pos d_head"], ...] = ()
    values: tuple[Float[Tensor, "1 n_kv_heads pos d_head"], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def require(self, tokens: Sequence[int], fingerprint: str) -> None:
        """Raise ValueError unless this cache is that of the first tokens of a sequence under that intervention."""
        if tuple(tokens[: len(self)]) != self.tokens:
            raise ValueError("A prefix cache was offered to a sequence that does not begin with its tokens.")
        if len(self) and fingerprint != self.fingerprint:
            raise ValueError(
                "A prefix cache was offered under another intervention than it was computed under."
            )

    def extend(self, tokens: Sequence[int], keys: Sequence[Tensor], values: Sequence[Tensor]) -> PrefixCache:
        """The prefix cache with more tokens after it; `keys` and `values` are theirs alone, layer by layer."""
        if not self.keys:
            return PrefixCache(self.tokens + tuple(tokens), self.fingerprint, tuple(keys), tuple(values))
        return PrefixCache(
            self.tokens + tuple(tokens),
            self.fingerprint,
            tuple(torch.cat(pair, dim=-2) for pair in zip(self.keys, keys, strict=True)),
            tuple(torch.cat(pair, dim=-2) for pair in zip(self.values, values, strict=True)),
        )
