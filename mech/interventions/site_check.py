"""Whether a site feeds the computation in this model: a change there, in any layer, must move the logits.

The load-time checks (`mech.checks.checks`) ask it of the sites that every study writes to; here it is asked of the
others, before their first use. TransformerLens has families in which such a hook fires on a copy: an edit there would
read as "no effect".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from mech.errors import InputError
from mech.interventions.edits import HOOK_NAMES, Site
from mech.interventions.hooks import hooked
from mech.models.model import Model

CHECKED_AT_LOAD: tuple[Site, ...] = ("z", "resid_pre", "mlp_out")


@torch.no_grad()
def require_causal(model: Model, sites: Iterable[Site]) -> None:
    """Run one small forward a site: row r of its batch is changed at layer r, the last two rows are not changed.

    Three tokens, as over a single key the softmax sees no change of queries and keys; they are from the middle of the
    vocabulary, as a padding token may be embedded as zero.

    Raises:
        InputError: the model has no such hook, or a change at it moves no logit; the site and the layer are named.
        HookMissed: a hook did not fire exactly once.
    """
    for site in sites:
        require_moved(model, HOOK_NAMES[site], site)


@torch.no_grad()
def require_moved(model: Model, template: str, what: str) -> None:
    """As `require_causal`, for the hooks that a name with `{layer}` in it stands for."""
    middle = model.d_vocab // 2
    ids = torch.tensor([[middle, middle + 1, middle - 1]], device=model.device).repeat(model.n_layers + 2, 1)
    names = [template.format(layer=layer) for layer in range(model.n_layers)]
    with hooked(model, [(name, _disturb(row)) for row, name in enumerate(names)], fires=1):
        logits: Tensor = model.bridge(ids)[:, -1]
    rounding = torch.finfo(model.dtype).eps * float(logits[-1].abs().max())
    floor = 4 * max(rounding, float((logits[-2] - logits[-1]).abs().max()))
    moved = (logits[:-2] - logits[-1]).abs().amax(-1)
    if not bool((moved > floor).all()):
        raise InputError(
            f"A change at {names[int(moved.argmin())]} moves no logit of {model.identity.architecture}: "
            f"'{what}' cannot be edited in this model."
        )


def _disturb(row: int) -> Callable[[Tensor, Any], Tensor]:
    """Add a fixed wave of the activation's own size to one row of the batch."""

    def hook(activation: Tensor, point: Any) -> Tensor:
        one = activation[row]
        wave = torch.sin(1.7 * torch.arange(1, one.numel() + 1, device=one.device) ** 1.1).to(one.dtype)
        changed = activation.clone()
        changed[row] = one + (1.0 + float(one.std())) * wave.reshape(one.shape)
        return changed

    return hook
