"""How much an engine may hold at a time, given a bound on the memory of the whole process.

    spare = bound − BASE − weights − the larger of: weights again (while they are loaded), logits of UNEMBED_ROWS nodes
    a quarter each:  prefix caches that are kept | keys and values of a row | one forward's activations | a run's

What one forward holds grows with the context where a layer is eager (scores of all heads over all that is seen), so
that long contexts leave fewer nodes. Without a bound the engine's own limits hold; nothing grows with the items.
"""

from __future__ import annotations

from dataclasses import dataclass

from mech.engine.packed import UNEMBED_ROWS
from mech.errors import InputError
from mech.models.model import Model

BASE = 3 << 28
"""Bytes of Python with torch, transformers, TransformerLens and pandas (0.5 GiB), and of items and tables."""
FEWEST = 16
"""Nodes that a forward must have room for."""


@dataclass(frozen=True)
class MemoryBound:
    """What fits in so many bytes, for one model; a bound of None bounds nothing."""

    model: Model
    n_bytes: int | None = None

    @property
    def quarter(self) -> float:
        """A quarter of what is left for work, in bytes."""
        if self.n_bytes is None:
            return float("inf")
        size = self.model.dtype.itemsize
        weights, logits = self.model.identity.n_parameters, 3 * UNEMBED_ROWS * self.model.d_vocab
        fixed = BASE + size * (weights + max(weights, logits))
        return (self.n_bytes - fixed) / 4

    def forward_nodes(self, context: int, most: int) -> int:
        """How many nodes over a context of so many tokens one forward may have, at most `most`.

        Raises:
            InputError: there is room for fewer than FEWEST.
        """
        cfg, size = self.model.bridge.cfg, self.model.dtype.itemsize
        width = 8 * self.model.d_model + 3 * int(cfg.d_mlp or 4 * self.model.d_model)
        scores = 3 * self.model.n_heads * (context + most)
        nodes = min(float(most), self.quarter // (size * (width + scores)))
        if self.n_bytes is not None and nodes < min(FEWEST, most):
            needed = self.n_bytes + 4 * (FEWEST * size * (width + scores) - self.quarter)
            raise InputError(
                f"A memory of {self.n_bytes / 2**30:.2f} GiB is too little for {self.model.identity.name}"
                f"{f' over contexts of {context} tokens' if context else ''}: it takes {needed / 2**30:.2f} GiB at "
                "the least."
            )
        return int(nodes)

    def row_nodes(self, most: int) -> int:
        """How many nodes of a row may have their keys and values in memory together, at most `most`."""
        kv = 2 * self.model.n_layers * self.model.n_kv_heads * self.model.d_head + self.model.d_model
        return int(max(1.0, min(float(most), self.quarter // (kv * self.model.dtype.itemsize))))
