"""Where the nodes of a row are and what each of them sees: one mask for eager attention, a few parts for fused.

    prefix cache | a b c d e f           a row in depth-first order: a is followed by all that descends from it
                   a─b─c─d               every node sees the prefix cache, its ancestors and itself
                     └─e─f

A *part* is one call of attention: some nodes as queries over keys that all of them see (no mask), that each sees up to
itself (causal) or that the part's own mask says. The prefix is one part for all nodes; a chain of nodes is one part for
all that descends from it; subtrees of at most BLOCK nodes attend to themselves under a mask. Keys that a node does not
see are in no part but such a mask's, and every (node, key) pair that is seen is in one part exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mech.errors import InputError
from mech.models.model import Model

BLOCK = 96
"""Nodes that attend to one another under one mask: more would compute more that the mask hides."""


@dataclass(frozen=True, eq=False)
class Part:
    """One call of attention.

    Attributes:
        queries: of this forward's nodes.
        keys: of the prefix cache's tokens, or of the row's nodes.
        of_prefix: which of the two.
        causal: the queries are the keys, and each sees those up to itself.
        mask: [query, key], added to the scores; None where all is seen or `causal`.
    """

    queries: slice
    keys: slice
    of_prefix: bool = False
    causal: bool = False
    mask: Float[Tensor, "query key"] | None = None


@dataclass(frozen=True, eq=False)
class Layout:
    """Nodes of a row, of which those from `first` on are run now and the others were run before.

    Attributes:
        positions: [node], the place of each node in its own sequence.
        parents: [node], the node before it in its sequence, -1 for the prefix cache's end; depth-first order.
        prefix_length: tokens of the prefix cache, which every node sees.
        first: the first node of this forward.
        window: how many positions, itself included, a node sees in sliding layers; None without such layers.
        dtype, device: of masks.
    """

    positions: Int[np.ndarray, " node"]
    parents: Int[np.ndarray, " node"]
    prefix_length: int
    first: int
    window: int | None
    dtype: torch.dtype
    device: torch.device

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> Int[Tensor, " node"]:
        """Positions of this forward's nodes."""
        return torch.from_numpy(self.positions[self.first :]).to(self.device)

    @cached_property
    def mask(self) -> Float[Tensor, "1 1 node seen"]:
        """What this forward's nodes see of prefix and row: added to scores, 0 or the dtype's minimum."""
        return self._full_mask(None)

    @cached_property
    def sliding_mask(self) -> Float[Tensor, "1 1 node seen"]:
        """The same in sliding layers."""
        return self._full_mask(self.window)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What is attended to in full layers."""
        prefix = slice(0, self.prefix_length)
        whole = [Part(slice(0, len(self) - self.first), prefix, of_prefix=True)] if self.prefix_length else []
        return (*whole, *self._forest(0, len(self)))

    @cached_property
    def sliding_parts(self) -> tuple[Part, ...]:
        """What is attended to in sliding layers: the same parts, less what is out of the window."""
        return tuple(filter(None, (self._within_window(part) for part in self.parts)))

    @cached_property
    def _chains(self) -> dict[int, tuple[int, int]]:
        """First node of each unbranched chain → the end of the chain, and of all that descends from it."""
        n = len(self)
        children = np.bincount(self.parents + 1, minlength=n + 1)[1:]
        follows = self.parents[1:] == np.arange(n - 1)
        starts = [0, *(np.flatnonzero(~(follows & (children[:-1] == 1))) + 1).tolist()] if n else []
        stops = [*starts[1:], n]
        ends: dict[int, tuple[int, int]] = {}
        open_chains: list[tuple[int, int]] = []
        for start, stop in zip(starts, stops, strict=True):
            parent = int(self.parents[start])
            while open_chains and open_chains[-1][1] - 1 != parent:
                begun, own_stop = open_chains.pop()
                ends[begun] = (own_stop, start)
            if not open_chains and parent >= 0:
                raise ValueError("The nodes of a row are in depth-first order, each after its parent.")
            open_chains.append((start, stop))
        ends.update({begun: (own_stop, n) for begun, own_stop in open_chains})
        return ends

    @cached_property
    def _subtree_ends(self) -> Int[np.ndarray, " node"]:
        """The node after the last descendant of each node."""
        ends = np.empty(len(self), dtype=np.int64)
        for start, (stop, end) in self._chains.items():
            ends[start:stop] = end
        return ends

    def _forest(self, start: int, end: int) -> list[Part]:
        """The parts among sibling subtrees, nodes start to end: small neighbours share a block, a large one is cut."""
        parts: list[Part] = []
        while self._chains[start][1] <= self.first:  # run before, with all that descends from it
            start = self._chains[start][1]
        block = at = start
        while at < end:
            stop, after = self._chains[at]
            if after - block > BLOCK and at > block:
                parts += self._block(block, at)
                block = at
            if after - at > BLOCK:
                parts += self._chain(at, stop, after)
                parts += self._forest(stop, after) if stop < after else []
                block = after
            at = after
        return [*parts, *self._block(block, end)]

    def _block(self, start: int, end: int) -> list[Part]:
        """Whole subtrees whose nodes attend to their ancestors among them."""
        rows = slice(max(start, self.first), end)
        if rows.start >= end:
            return []
        keys = slice(start, end)
        if self._chains[start] == (end, end) and start >= self.first:
            return [Part(self._own(rows), keys, causal=True)]
        return [Part(self._own(rows), keys, mask=self._additive(self._visible(rows, keys)))]

    def _chain(self, start: int, stop: int, after: int) -> list[Part]:
        """A chain: its nodes attend to it up to themselves, what descends from it attends to all of it."""
        parts, here = [], max(start, self.first)
        if here == stop - 1:
            parts.append(Part(self._own(slice(here, stop)), slice(start, stop)))
        elif start < here < stop:
            parts.append(Part(self._own(slice(here, stop)), slice(start, here)))
        if here < stop - 1:
            parts.append(Part(self._own(slice(here, stop)), slice(here, stop), causal=True))
        below = slice(max(stop, self.first), after)
        return [*parts, Part(self._own(below), slice(start, stop))] if below.start < after else parts

    def _own(self, nodes: slice) -> slice:
        return slice(nodes.start - self.first, nodes.stop - self.first)

    def _visible(self, rows: slice, keys: slice) -> Bool[np.ndarray, "query key"]:
        """True where the column is the row's node or its ancestor."""
        row, column = np.arange(rows.start, rows.stop)[:, None], np.arange(keys.start, keys.stop)
        return (column <= row) & (row < self._subtree_ends[keys])

    def _near(self, rows: slice, places: Int[np.ndarray, " key"]) -> Bool[np.ndarray, "query key"]:
        """True where the column is in the row's window."""
        return self.positions[rows, None] - places < self.window

    def _within_window(self, part: Part) -> Part | None:
        """A part of a sliding layer; None where all of it is out of the window."""
        rows = slice(part.queries.start + self.first, part.queries.stop + self.first)
        places = np.arange(self.prefix_length)[part.keys] if part.of_prefix else self.positions[part.keys]
        near = self._near(rows, places)
        if near.all():
            return part
        if not near.any():
            return None
        seen = near if part.of_prefix else near & self._visible(rows, part.keys)
        used = np.flatnonzero(seen.any(axis=0))
        keys = slice(part.keys.start + int(used[0]), part.keys.start + int(used[-1]) + 1)
        mask = self._additive(seen[:, used[0] : used[-1] + 1])
        return Part(part.queries, keys, part.of_prefix, mask=mask)

    def _full_mask(self, window: int | None) -> Tensor:
        rows, everything = slice(self.first, len(self)), slice(0, len(self))
        seen = np.ones((len(self) - self.first, self.prefix_length), dtype=bool)
        seen = np.concatenate([seen, self._visible(rows, everything)], axis=1)
        if window is not None:
            seen &= self._near(rows, np.concatenate([np.arange(self.prefix_length), self.positions]))
        return self._additive(seen)[None, None]

    def _additive(self, seen: Bool[np.ndarray, "query key"]) -> Tensor:
        """0 where seen, else the dtype's minimum: finite, so that a row of a part that sees nothing is no NaN."""
        hidden = torch.from_numpy(~seen).to(self.device)
        zeros = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        return zeros.masked_fill_(hidden, torch.finfo(self.dtype).min)


def layout(
    model: Model, positions: npt.ArrayLike, parents: npt.ArrayLike, prefix_length: int, first: int = 0
) -> Layout:
    """The layout of a row over a prefix cache.

    Args:
        model: for its dtype, device and sliding window.
        positions: of each node in its own sequence.
        parents: the node before each in its sequence, -1 where that is the prefix cache's end.
        prefix_length: number of prefix cache tokens, all of which every node sees.
        first: the nodes before this one were run before.

    Raises:
        InputError: a node's position is beyond what the model's sequences may reach.
        ValueError: the nodes are not in depth-first order (when masks or parts are first asked for).
    """
    places, before = np.asarray(positions, dtype=np.int64), np.asarray(parents, dtype=np.int64)
    if model.n_positions is not None:
        model.require_room(int(places.max()) + 1)
    return Layout(places, before, prefix_length, first, sliding_window(model), model.dtype, model.device)


def chain(start: int, n: int, copies: int = 1) -> tuple[Int[np.ndarray, " node"], Int[np.ndarray, " node"]]:
    """Positions and parents of sequences of n nodes from a position on, side by side over one prefix."""
    positions = np.tile(np.arange(start, start + n), copies)
    parents = np.arange(n * copies) - 1
    parents[::n] = -1
    return positions, parents


def sliding_window(model: Model) -> int | None:
    """How many positions, itself included, a position of a sliding-attention layer sees; None without such layers."""
    window = getattr(model.hf_config, "sliding_window", None)
    return int(window) if window and any(slides(model, layer) for layer in range(model.n_layers)) else None


def slides(model: Model, layer: int) -> bool:
    """Whether a layer's attention is limited to the window; InputError for a kind of layer that is not known."""
    kinds = getattr(model.hf_config, "layer_types", None)
    if kinds is None:
        return getattr(model.hf_config, "sliding_window", None) is not None
    if kinds[layer] not in ("full_attention", "sliding_attention"):
        raise InputError(
            f"Layer {layer} is of kind '{kinds[layer]}', which this package cannot patch exactly."
        )
    return bool(kinds[layer] == "sliding_attention")
