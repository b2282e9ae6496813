"""Whether a site feeds the computation in this model: a change at its hook, in any layer, must move the logits.

TransformerLens has families in which a hook fires on a copy: an edit there would read as "no effect". The sites that
every study writes to are checked at load (`mech.checks.checks`), the others before their first use (`require_causal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mech.errors import InputError
from mech.interventions.edits import Site, hook_name
from mech.interventions.hooks import hooked
from mech.models.model import Model

CHECKED_AT_LOAD: tuple[Site, ...] = ("z", "resid_pre", "mlp_out")


@torch.no_grad()
def disturbed(model: Model, ids: Tensor, names: Sequence[str]) -> tuple[Tensor, float]:
    """How far the last logits move when one hook's activation is changed, for each hook, in one forward.

    Row r of a batch is changed by hook r alone; the last two rows are not changed, and compared with each other.

    Args:
        model: the model.
        ids: [1, pos]; over a single position no change of queries, keys or scores is seen by the softmax.
        names: hook names.

    Returns:
        The largest change of a logit, one a hook, and what rounding can make of it: anything above is a change.

    Raises:
        InputError: the model has no such hook.
        HookMissed: a hook did not fire exactly once.
    """
    hooks = [(name, _disturb(name, row)) for row, name in enumerate(names)]
    with hooked(model, hooks, fires=1):
        logits: Tensor = model.bridge(ids.repeat(len(names) + 2, 1))[:, -1]
    base = logits[-1]
    rounding = torch.finfo(model.dtype).eps * float(base.abs().max())
    floor = 4 * max(float((logits[-2] - base).abs().max()), rounding)
    return (logits[: len(names)] - base).abs().amax(-1), floor


def require_causal(model: Model, sites: Iterable[str]) -> None:
    """Raise InputError for a site where a change, in some layer, moves no logit; the site and the layer are named.

    One small forward a site: three tokens, from the middle of the vocabulary, as a padding token may be embedded as
    zero.

    Raises:
        InputError: also where the model has no such hook.
        HookMissed: a hook did not fire exactly once.
    """
    middle = model.d_vocab // 2
    ids = torch.tensor([[middle, middle + 1, middle - 1]], device=model.device)
    for site in sites:
        names = [hook_name(site, layer) for layer in range(model.n_layers)]
        moved, floor = disturbed(model, ids, names)
        if not bool((moved > floor).all()):
            raise InputError(
                f"A change at {names[int(moved.argmin())]} moves no logit of {model.identity.architecture}: "
                f"'{site}' cannot be edited in this model."
            )


def _disturb(name: str, row: int) -> Callable[[Tensor, Any], Tensor]:
    """Add a fixed wave to one row of the batch, of the row's own size (of size 1 for scores and patterns)."""

    def hook(activation: Tensor, point: Any) -> Tensor:
        one = activation[row]
        wave = torch.sin(1.7 * torch.arange(1, one.numel() + 1, device=one.device) ** 1.1).to(one.dtype)
        size = 1.0 if name.endswith(("hook_attn_scores", "hook_pattern")) else 1.0 + float(one.std())
        changed = activation.clone()
        changed[row] = one + size * wave.reshape(one.shape)
        return changed

    return hook
