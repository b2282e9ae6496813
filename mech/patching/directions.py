"""A norm-matched control of a replacement: z moved as far, in a direction drawn at random.

    z_random = z + ‖z_replacement − z‖ · u,    u uniform on the unit sphere of [d_head], one a head and position

What a replacement does because it says something else, and not because z was moved that far, the random direction does
not do.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def random_direction(
    z_recipient: Float[Tensor, "*axes d_head"],
    z_replacement: Float[Tensor, "*#axes d_head"],
    rng: np.random.Generator,
) -> Float[Tensor, "*axes d_head"]:
    """The recipient's z moved as far as the replacement moves it, per head and position, in a random direction.

    Args:
        z_recipient: z as it is.
        z_replacement: what takes its place, of a shape that broadcasts to it.
        rng: gives the directions (standard normal, normalised).
    """
    wide = z_recipient.double()
    length = torch.linalg.vector_norm(z_replacement.double() - wide, dim=-1, keepdim=True)
    drawn = torch.from_numpy(rng.standard_normal(tuple(z_recipient.shape))).to(wide)
    unit = drawn / torch.linalg.vector_norm(drawn, dim=-1, keepdim=True)
    return (wide + length * unit).to(z_recipient.dtype)
