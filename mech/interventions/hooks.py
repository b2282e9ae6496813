"""The only place that registers hooks: by TransformerLens name, counted, and gone afterwards whatever happens.

A hook that matches nothing or never fires would leave a number that looks like "no effect"; here it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mech.errors import InputError
from mech.interventions.edits import Edit, Knockout
from mech.interventions.sites import require_fit
from mech.models.model import Model

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
class EditLocation:
    """A change and where it lands in this run.

    Attributes:
        edit: what is changed.
        rows: [place], the nodes of its positions along the row (for a knockout, its destinations); None for all.
        columns: [source], for a knockout: the columns of its sources (prefix cache first, then the row's nodes).
    """

    edit: Edit | Knockout
    rows: Tensor | None
    columns: Tensor | None = None


def edit_hooks(model: Model, locations: Sequence[EditLocation]) -> list[tuple[str, HookFunction]]:
    """One hook a touched site and layer, carrying out every location there in order; for runs of batch size 1.

    Raises:
        InputError: a change that this model cannot carry out (`mech.interventions.sites.require_fit`).
    """
    grouped: dict[str, list[EditLocation]] = {}
    for location in locations:
        require_fit(model, location.edit)
        grouped.setdefault(location.edit.hook_name, []).append(location)
    return [(name, _apply(model, group)) for name, group in grouped.items()]


def acting_hooks(
    model: Model, names: Sequence[str], acting: Mapping[str, Sequence[EditLocation]]
) -> list[tuple[str, HookFunction]]:
    """One hook a name that carries out what `acting` holds under that name when it fires; for many forwards.

    A name without an entry leaves that forward as it is, and fires all the same.
    """

    def following(name: str) -> HookFunction:
        def hook(activation: Tensor, point: Any) -> Tensor | None:
            locations = acting.get(name)
            return _apply(model, locations)(activation, point) if locations else None

        return hook

    return [(name, following(name)) for name in names]


def _apply(model: Model, group: Sequence[EditLocation]) -> HookFunction:
    """The hook of one site and layer: its placements are all edits or all knockouts."""

    def edit_all(activation: Tensor, hook: Any) -> Tensor:
        _require_axes(activation, 3, "[1, pos, width]", hook)
        edited = activation.clone()
        for location in group:
            if isinstance(location.edit, Edit):
                _edit(model, edited, location.edit, location.rows)
        return edited

    def cut_all(scores: Tensor, hook: Any) -> Tensor:
        _require_axes(scores, 4, "[1, head, dest_pos, src_pos]", hook)
        cut = scores.clone()
        for location in group:
            if isinstance(location.edit, Knockout):
                cut[0][_edges(location, location.edit, cut)] = -torch.inf
        for location in group:
            if isinstance(location.edit, Knockout):
                _require_an_edge(model, cut, location.edit, location.rows)
        return cut

    return cut_all if isinstance(group[0].edit, Knockout) else edit_all


def _require_axes(activation: Tensor, ndim: int, axes: str, hook: Any) -> None:
    if activation.ndim != ndim or activation.shape[0] != 1:
        raise HookMissed(f"'{hook.name}' carries {tuple(activation.shape)} where {axes} is expected.")


def _edit(model: Model, activation: Tensor, edit: Edit, at: Tensor | None) -> None:
    """Write one edit into the activation [1, pos, width]."""
    rows = slice(None) if at is None else at
    columns = slice(None)
    if edit.head is not None:
        columns = slice(edit.head * model.d_head, (edit.head + 1) * model.d_head)
    target = activation[0, rows, columns]
    value = edit.alpha * target if edit.value is None else edit.value.to(activation).expand_as(target)
    activation[0, rows, columns] = value


def _edges(location: EditLocation, cut: Knockout, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The index of a knockout's scores in [head, dest_pos, src_pos]."""
    if location.rows is None or location.columns is None:
        raise ValueError("A knockout needs the rows of its destinations and the columns of its sources.")
    heads = torch.tensor(cut.heads, device=scores.device)
    return heads[:, None, None], location.rows[:, None], location.columns


def _require_an_edge(model: Model, scores: Tensor, cut: Knockout, rows: Tensor | None) -> None:
    """A softmax over nothing is NaN, or the same weight for every position that is knocked out: no result at all."""
    heads = torch.tensor(cut.heads, device=scores.device)
    seen = scores[0][heads[:, None], rows] > torch.finfo(model.dtype).min / 2
    lost = (~seen.any(-1)).nonzero()
    if len(lost):
        raise InputError(
            f"L{cut.layer}H{cut.heads[int(lost[0, 0])]} has no edge left at {len(lost[lost[:, 0] == lost[0, 0]])} of "
            "its destination positions: knock out fewer sources, or begin after them."
        )
