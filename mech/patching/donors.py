"""Values of z from other contexts, position by position: which position of a donor answers which of a recipient.

    in order     action positions: the first from the first, the others from the donor's others, in order, from the
                 start again where the donor has fewer
    by role      a position drawn among those of the donor that have the same role (what part of the prompt it is)
    role mean    the mean of z over all positions of the same role of many contexts

A role is any word; what roles there are is the caller's (`probes.scoring.roles`).
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
    """For each of n action positions, the donor's; the first is the last prompt token's in both.

    Raises:
        InputError: the donor has no position.
    """
    if n_donor < 1:
        raise InputError("A donor without action positions gives no values.")
    if n_donor == 1:
        return [0] * n
    return [at if at == 0 else 1 + (at - 1) % (n_donor - 1) for at in range(n)]


def by_role(recipient: Sequence[str], donor: Sequence[str], rng: np.random.Generator) -> list[int]:
    """For each position of the recipient, one of the donor's positions of the same role, drawn; any where it has none.

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
        """Count in one run's positions.

        Raises:
            ValueError: there is not one role a position.
        """
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
