"""Reference means of z for mean ablation, over all token positions of a set of sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import einops
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.capture import everything_names
from mech.engine.engine import Engine
from mech.engine.packed import run_row
from mech.engine.prefix_cache import PrefixCache
from mech.engine.trie import Trie, common_prefix

MEAN_NODES = 4096


@dataclass(frozen=True, eq=False)
class MeanZ:
    """The mean of z over every position of every sequence, all with the same weight.

    Attributes:
        z: the means.
        n_positions: the number of positions (a shared prefix counts once for each sequence).
        sha256: hash of the token sequences, the identity of the reference set.
    """

    z: Float[Tensor, "layer head d_head"]
    n_positions: int
    sha256: str


@torch.no_grad()
def mean_z(engine: Engine, sequences: Sequence[Sequence[int]]) -> MeanZ:
    """Mean z of every head over the positions of these sequences.

    Sequences with a common beginning (one system prompt) run that beginning once: two packed forwards for each such
    family, or one more for every MEAN_NODES tokens after it (attention grows with the square of a row's length).
    """
    model = engine.model
    total = torch.zeros(
        model.n_layers, model.n_heads * model.d_head, dtype=torch.float64, device=model.device
    )
    for family in _families(sequences):
        total += _summed(engine, family)
    n_positions = sum(map(len, sequences))
    mean = einops.rearrange(
        total / n_positions, "layer (head d_head) -> layer head d_head", head=model.n_heads
    )
    digest = hashlib.sha256(repr([tuple(sequence) for sequence in sequences]).encode()).hexdigest()
    return MeanZ(mean.to(model.dtype), n_positions, digest)


def _summed(engine: Engine, sequences: Sequence[Sequence[int]]) -> Float[Tensor, "layer width"]:
    """Sum of z over the positions of sequences whose common prefix is run once."""
    model = engine.model
    names = everything_names(model, "attn.hook_z")
    shared = common_prefix(sequences) if len(sequences) > 1 else 0
    total = torch.zeros(
        model.n_layers, model.n_heads * model.d_head, dtype=torch.float64, device=model.device
    )
    prefix_cache = PrefixCache((), "clean")
    parts = [(list(sequences[0][:shared]), [sequences[0][:shared]] * len(sequences))] if shared else []
    rest = _groups([sequence[shared:] for sequence in sequences])
    for prefix, paths in [*parts, *((None, group) for group in rest)]:
        trie = Trie(len(prefix_cache))
        nodes = [trie.insert(path, [""] * len(path)) for path in sorted(map(tuple, paths))]
        if not len(trie):
            continue
        run = run_row(model, trie, prefix_cache, keep=names)
        engine.forwards.ran += 1
        weights = torch.from_numpy(trie.counts(nodes)).to(total)
        z = (run.kept[name][0].double() for name in names)
        total += torch.stack([einops.einsum(weights, one, "node, node width -> width") for one in z])
        if prefix is not None:
            prefix_cache = prefix_cache.extend(prefix, run.keys, run.values)
    return total


def _families(sequences: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Sequences grouped by their beginning: each joins the first family whose first member shares half of the shorter.

    All are one family where they fit one row.
    """
    if sum(map(len, sequences)) <= MEAN_NODES:
        return [list(sequences)]
    families: list[list[Sequence[int]]] = []
    for sequence in sequences:
        for family in families:
            if 2 * common_prefix([family[0], sequence]) >= min(len(family[0]), len(sequence)):
                family.append(sequence)
                break
        else:
            families.append([sequence])
    return families


def _groups(paths: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Consecutive paths, up to MEAN_NODES tokens a group; a longer path is a group of its own."""
    groups: list[list[Sequence[int]]] = [[]]
    for path in paths:
        if groups[-1] and sum(map(len, groups[-1])) + len(path) > MEAN_NODES:
            groups.append([])
        groups[-1].append(path)
    return groups
