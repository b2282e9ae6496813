"""What is changed in a run, as a value: a set of edits and knockouts with a fingerprint; no torch hooks here.

    ablated = scale_heads(heads, 0.0, "all") + knock_out_edges(heads, record, "candidate")

All changes of an intervention are made in one run, in this order wherever they meet: those at all positions, those at
positions given by number, those at the action positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.edits import Edit, Knockout, Where

__all__ = [
    "NOTHING",
    "Knockout",
    "Edit",
    "Intervention",
    "knock_out_edges",
    "merge",
    "replace_heads",
    "scale_heads",
]


@dataclass(frozen=True, eq=False)
class Intervention:
    """A set of changes made together in one run.

    No two edits have the same site, layer, head and a place in common that is given in the same way ("all",
    "candidate" or by number): their order would matter, and the fingerprint has none. Knockouts may overlap.
    `NOTHING` is the clean run.
    """

    edits: tuple[Edit | Knockout, ...] = ()

    def __post_init__(self) -> None:
        taken: set[tuple[object, ...]] = set()
        for edit in self.without_knockouts:
            for place in edit.where if isinstance(edit.where, tuple) else (edit.where,):
                target = (edit.site, edit.layer, edit.head, place)
                if target in taken:
                    raise InputError("An intervention edits the same activation at the same positions twice.")
                taken.add(target)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the sorted edits; "clean" where there are none. Keys every cached activation."""
        if not self.edits:
            return "clean"
        return hashlib.sha256("".join(sorted(edit.fingerprint for edit in self.edits)).encode()).hexdigest()

    @property
    def everywhere(self) -> Intervention:
        """The part that acts at all positions, and so belongs to the prefix too."""
        return Intervention(tuple(edit for edit in self.edits if edit.where == "all"))

    @property
    def at_positions(self) -> Intervention:
        """The part that acts at positions given by number."""
        return Intervention(tuple(edit for edit in self.edits if isinstance(edit.where, tuple)))

    @property
    def at_candidate(self) -> Intervention:
        """The part that acts at the action positions only."""
        return Intervention(tuple(edit for edit in self.edits if edit.where == "candidate"))

    @property
    def without_knockouts(self) -> tuple[Edit, ...]:
        """The edits alone."""
        return tuple(edit for edit in self.edits if isinstance(edit, Edit))

    @property
    def local(self) -> Intervention:
        """All but `everywhere`, in the order in which it acts: no prefix may include a position that it touches."""
        return self.at_positions + self.at_candidate

    def __add__(self, other: Intervention) -> Intervention:
        return Intervention(self.edits + other.edits)


NOTHING = Intervention()


def scale_heads(heads: HeadSet, alpha: float, where: Where = "all") -> Intervention:
    """Multiply z of every head by alpha (0: zero ablation)."""
    return Intervention(tuple(Edit("z", h.layer, h.head, where, None, alpha) for h in heads))


def replace_heads(heads: HeadSet, z: Tensor, where: Where) -> Intervention:
    """Replace z of every head by the slice of `z` that is its own.

    Args:
        heads: which heads.
        z: [layer, head, d_head] (one value: mean ablation), or [layer, pos, head, d_head] with one value a
            position of `where` (donor patching).
        where: the positions replaced.
    """
    edits = [Edit("z", h.layer, h.head, where, z[h.layer, ..., h.head, :].clone()) for h in heads]
    return Intervention(tuple(edits))


def knock_out_edges(heads: HeadSet, sources: Sequence[int], where: Where = "candidate") -> Intervention:
    """Knock out the attention of these heads from the positions `where` to the `sources`.

    The tokens at the sources stay: other heads read them, other positions too, and what those copied from them reaches
    the destinations still. Knocking out the record's edges at the action positions in all heads is therefore not
    the run without the record. What a row loses goes to its other edges, in proportion (the softmax is taken after the
    knockout): a change of attention elsewhere is part of the effect.

    Args:
        heads: query heads.
        sources: absolute positions in the prompt, ascending; none knocks out nothing.
        where: "candidate", or absolute positions, ascending.

    Raises:
        InputError: `where` is "all", or positions are not ascending; at the run: a head or position does not exist,
            or a head would have no edge left at a destination.
    """
    if not len(sources):
        return NOTHING
    at = tuple(int(source) for source in sources)
    return Intervention(
        tuple(Knockout(layer, tuple(those), at, where) for layer, those in heads.per_layer().items())
    )


def merge(interventions: Iterable[Intervention]) -> Intervention:
    """All edits of several interventions in one."""
    return Intervention(tuple(edit for one in interventions for edit in one.edits))
