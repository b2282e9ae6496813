"""The strength of a head: the mean norm of its output z W_O over the positions of a set of sequences.

    norm(h) = mean over positions of ‖z_h W_O[h]‖ = mean of sqrt(z_h (W_O[h] W_O[h]ᵀ) z_hᵀ)

z and a [d_head, d_head] matrix a head give the norm, in float64, without the output [pos, head, d_model]. It is taken
before the norm that a model may have after its attention (Gemma 3), and without the bias, which belongs to no head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import einops
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine import reference
from mech.engine.capture import capture_hooks, everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.engine.trie import common_prefix
from mech.heads import Head
from mech.interventions.hooks import hooked
from mech.models.model import Model


@dataclass(frozen=True, eq=False)
class HeadNorms:
    """`norms` [layer, head] over `n_positions` positions (a shared prefix counts once for each sequence)."""

    norms: Float[Tensor, "layer head"]
    n_positions: int

    def of(self, head: Head) -> float:
        """The mean norm of one head."""
        return float(self.norms[head.layer, head.head])


@torch.no_grad()
def head_norms(engine: Engine, sequences: Sequence[Sequence[int]]) -> HeadNorms:
    """Mean output norm of every head over all positions of these token sequences.

    One packed row a sequence over the prefix that all share; with `engine.slow`, one hooked full forward a sequence.
    """
    model = engine.model
    shared = 0 if engine.slow else max(common_prefix(sequences) - 1, 0) if len(sequences) > 1 else 0
    total = torch.zeros(model.n_layers, model.n_heads, dtype=torch.float64, device=model.device)
    if shared:
        total += len(sequences) * _summed(model, _kept(engine, sequences[0][:shared], 0))
    for sequence in sequences:
        total += _summed(model, _kept(engine, sequence, shared))
    n_positions = sum(map(len, sequences))
    return HeadNorms(total / n_positions, n_positions)


def _kept(engine: Engine, sequence: Sequence[int], shared: int) -> list[Float[Tensor, "pos head d_head"]]:
    """Z of every layer at the positions from `shared` on."""
    model, names = engine.model, everything_names(engine.model, "attn.hook_z")
    query = Query(tuple(sequence), tuple(sequence[-1:]))  # the action is a dummy: it is not run
    if not engine.slow:
        run = engine.run(query, names, shared, {"every": range(shared, len(sequence))})
        return [run.at["every"][name] for name in names]
    found: dict[str, Tensor] = {}
    with hooked(model, capture_hooks(model, names, found.__setitem__), fires=1):
        reference.full_forward(model, query)
    engine.forwards.ran += 1
    return [
        einops.rearrange(found[name][0], "pos (head d_head) -> pos head d_head", head=model.n_heads)
        for name in names
    ]


def _summed(model: Model, z: Sequence[Float[Tensor, "pos head d_head"]]) -> Float[Tensor, "layer head"]:
    """Sum over positions of the norm of each head's output."""
    rows = []
    for layer, values in enumerate(z):
        by_head = model.w_o(layer).double()
        gram = einops.einsum(by_head, by_head, "head a d_model, head b d_model -> head a b")
        wide = values.double()
        squares = einops.einsum(wide, gram, wide, "pos head a, head a b, pos head b -> pos head")
        rows.append(squares.clamp(min=0).sqrt().sum(dim=0))
    return torch.stack(rows)
