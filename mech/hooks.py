"""The only place that registers hooks: by TransformerLens name, counted, and gone afterwards whatever happens.

A hook that matches nothing or never fires would leave a number that looks like "no effect"; here it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mech.errors import InputError
from mech.interventions import Edit
from mech.model import Model

HookFunction = Callable[[Tensor, Any], "Tensor | None"]
"""`(activation, hook_point) -> replacement or None`: None leaves the activation as it is."""


class HookMissed(RuntimeError):
    """A registered hook fired another number of times than it must: the run's numbers cannot be trusted."""


@dataclass
class HookCount:
    """How often each registered hook fired: one entry a registration, in the order given."""

    names: tuple[str, ...]
    counts: list[int] = field(default_factory=list)

    @property
    def fired(self) -> dict[str, int]:
        """Hook name → firings, summed over the hooks registered under that name."""
        totals: dict[str, int] = {}
        for name, count in zip(self.names, self.counts, strict=True):
            totals[name] = totals.get(name, 0) + count
        return totals


def hook_point(points: Mapping[str, HookPoint], name: str) -> HookPoint:
    """The bridge's hook point of that name, aliases resolved; raises InputError with close names for a miss.

    `points` is `bridge.hook_dict`, which the bridge collects anew at every look: take it once for many names.
    """
    if name not in points:
        near = get_close_matches(name, list(points), n=3, cutoff=0.6)
        hint = f" Close names: {', '.join(near)}." if near else ""
        raise InputError(f"This model has no hook named '{name}'.{hint}")
    return points[name]


@contextmanager
def hooked(
    model: Model, hooks: Sequence[tuple[str, HookFunction]], *, fires: int | None = None
) -> Iterator[HookCount]:
    """Run the body with forward hooks in place; on leaving, exactly these hooks are removed.

    Args:
        model: the model whose bridge is hooked; a user's own hooks on it stay.
        hooks: (TransformerLens name, function) pairs; a name may be given more than once.
        fires: how often each hook must fire in the body; None asks for at least once.

    Raises:
        InputError: a name matches no hook point (nothing is registered then).
        HookMissed: the body ended normally and a hook fired another number of times.
    """
    known = model.bridge.hook_dict if hooks else {}
    points = [hook_point(known, name) for name, _ in hooks]
    count = HookCount(tuple(name for name, _ in hooks), [0] * len(hooks))
    handles = []
    try:
        for index, (point, (_, function)) in enumerate(zip(points, hooks, strict=True)):
            handles.append(point.register_forward_hook(_counting(function, point, count, index)))
        yield count
    finally:
        for handle in handles:
            handle.remove()
    for (name, _), fired in zip(hooks, count.counts, strict=True):
        if fired == 0 or (fires is not None and fired != fires):
            wanted = "at least once" if fires is None else f"{fires} times"
            raise HookMissed(f"The hook '{name}' fired {fired} times where it must fire {wanted}.")


def _counting(function: HookFunction, point: HookPoint, count: HookCount, index: int) -> Callable[..., Any]:
    """A torch forward hook on a hook point: the value as it flows (no reshaping), counted."""

    def hook(module: Any, args: Any, output: Tensor) -> Tensor | None:
        count.counts[index] += 1
        return function(output, point)

    return hook


@dataclass(frozen=True)
class Placement:
    """An edit and where it lands in this run: positions along the row, or None for all of them."""

    edit: Edit
    rows: Tensor | None


def edit_hooks(model: Model, placements: Sequence[Placement]) -> list[tuple[str, HookFunction]]:
    """One hook a touched site and layer, carrying out every placement there in order; for runs of batch size 1.

    Raises:
        InputError: an edit's head does not exist, or its value has another width than the activation.
    """
    grouped: dict[str, list[Placement]] = {}
    for placement in placements:
        _require_fit(model, placement.edit)
        grouped.setdefault(placement.edit.hook_name, []).append(placement)
    return [(name, _apply(model, group)) for name, group in grouped.items()]


def _require_fit(model: Model, edit: Edit) -> None:
    """An edit of a head beyond the last would change nothing, and read as "no effect"."""
    if edit.head is not None and not 0 <= edit.head < model.n_heads:
        raise InputError(
            f"L{edit.layer}H{edit.head} does not exist: the model has heads 0-{model.n_heads - 1} a layer."
        )
    width = model.d_model if edit.head is None else model.d_head
    if edit.value is not None and edit.value.shape[-1] != width:
        raise InputError(
            f"A value for {edit.hook_name} must be {width} wide, this one is {edit.value.shape[-1]}."
        )


def _apply(model: Model, group: Sequence[Placement]) -> HookFunction:
    def function(activation: Tensor, hook: Any) -> Tensor:
        if activation.ndim != 3 or activation.shape[0] != 1:
            raise HookMissed(
                f"'{hook.name}' carries {tuple(activation.shape)} where [1, pos, width] is expected."
            )
        edited = activation.clone()
        for placement in group:
            edit = placement.edit
            rows = slice(None) if placement.rows is None else placement.rows
            columns = slice(None)
            if edit.head is not None:
                columns = slice(edit.head * model.d_head, (edit.head + 1) * model.d_head)
            target = edited[0, rows, columns]
            value = edit.alpha * target if edit.value is None else edit.value.to(edited).expand_as(target)
            edited[0, rows, columns] = value
        return edited

    return function
