"""Values put in the place of z: from other contexts, position by position, and in random directions.

    in order     action positions: the first from the donor's first, the others from the donor's others, in order,
                 starting again where the donor has fewer
    by role      a position drawn among those of the donor that have the same role (part of the prompt)
    role mean    the mean of z over all positions of the same role of many contexts
    random       a norm-matched control of any replacement

A role is any word; the caller defines them (`probes.scoring.roles`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mech.errors import InputError


def in_order(n: int, n_donor: int) -> list[int]:
    """The donor's position for each of n action positions, the last prompt token's first; InputError if none."""
    if n_donor < 1:
        raise InputError("A donor without action positions gives no values.")
    if n_donor == 1:
        return [0] * n
    return [at if at == 0 else 1 + (at - 1) % (n_donor - 1) for at in range(n)]


def by_role(recipient: Sequence[str], donor: Sequence[str], rng: np.random.Generator) -> list[int]:
    """A donor position of the same role for each position of the recipient, drawn; of any role where there is none.

    Raises:
        InputError: the donor has no position.
    """
    if not donor:
        raise InputError("A donor without positions gives no values.")
    of: dict[str, list[int]] = {}
    for at, role in enumerate(donor):
        of.setdefault(role, []).append(at)
    every = list(range(len(donor)))
    return [int(rng.choice(of.get(role, every))) for role in recipient]


@dataclass
class RoleMeans:
    """Means of z by role, added to run by run; `everything` is the mean over all positions, whatever their role."""

    sums: dict[str, Float[Tensor, "layer head d_head"]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, z: Float[Tensor, "layer pos head d_head"], roles: Sequence[str]) -> None:
        """Count in one run's positions; ValueError: there is not one role a position."""
        if z.shape[1] != len(roles):
            raise ValueError(f"{z.shape[1]} positions have {len(roles)} roles.")
        for role in dict.fromkeys(roles):
            at = torch.tensor([i for i, one in enumerate(roles) if one == role], device=z.device)
            total = z[:, at].double().sum(dim=1)
            self.sums[role] = self.sums[role] + total if role in self.sums else total
            self.counts[role] = self.counts.get(role, 0) + len(at)

    @property
    def means(self) -> Mapping[str, Float[Tensor, "layer head d_head"]]:
        """Role → mean, in float64."""
        return {role: total / self.counts[role] for role, total in self.sums.items()}

    @property
    def everything(self) -> Float[Tensor, "layer head d_head"]:
        """The mean over all positions, in float64."""
        return torch.stack(list(self.sums.values())).sum(dim=0) / sum(self.counts.values())

    def at(self, roles: Sequence[str]) -> Float[Tensor, "layer pos head d_head"]:
        """The value of every position of a recipient; the mean over everything for a role that was never seen."""
        means, rest = self.means, self.everything
        return torch.stack([means.get(role, rest) for role in roles], dim=1)


def random_direction(
    z_recipient: Float[Tensor, "*axes d_head"],
    z_replacement: Float[Tensor, "*#axes d_head"],
    rng: np.random.Generator,
) -> Float[Tensor, "*axes d_head"]:
    """A norm-matched control: z moved as far as a replacement moves it, per head and position, in a random direction.

    z_random = z + ‖z_replacement − z‖ · u,    u uniform on the unit sphere of [d_head], one a head and position
    """
    wide = z_recipient.double()
    length = torch.linalg.vector_norm(z_replacement.double() - wide, dim=-1, keepdim=True)
    drawn = torch.from_numpy(rng.standard_normal(tuple(z_recipient.shape))).to(wide)
    unit = drawn / torch.linalg.vector_norm(drawn, dim=-1, keepdim=True)
    return (wide + length * unit).to(z_recipient.dtype)
