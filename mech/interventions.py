"""What is changed in a run, as a value: which activation, where, how, with a fingerprint; no torch hooks here.

An `Intervention` is a tuple of `Edit`s. An edit acts on one site of one layer (one head of it for `z`):

    value given:  x ← value          (mean, resample and donor patching: they differ in where the value is from)
    value None:   x ← alpha · x      (alpha = 0 is zero ablation, alpha = 1 changes nothing)

`where` is "all" (every position of the sequence: the shared prefix must be recomputed under it) or "candidate"
(the n positions whose logits predict the n tokens of the action: the prefix is untouched).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mech.errors import InputError
from mech.heads import HeadSet

Site = Literal["z", "resid_pre", "mlp_out"]
Where = Literal["all", "candidate"]

HOOK_NAMES: dict[Site, str] = {
    "z": "blocks.{layer}.attn.hook_z",
    "resid_pre": "blocks.{layer}.hook_resid_pre",
    "mlp_out": "blocks.{layer}.hook_mlp_out",
}
"""Site → TransformerLens hook name. `z` is the input slice of the output projection, per query head."""


@dataclass(frozen=True, eq=False)
class Edit:
    """One change of one activation; two edits are equal when their fingerprints are.

    Attributes:
        site: the activation, a key of HOOK_NAMES.
        layer: from 0.
        head: the query head for `z` (from 0), None for the other sites.
        where: "all" positions or the "candidate" positions.
        value: None, or [d] for one value at every position, or [pos, d] for one a candidate position;
            d is d_head for `z` and d_model otherwise.
        alpha: the factor used when `value` is None.
    """

    site: Site
    layer: int
    head: int | None
    where: Where
    value: Tensor | None = None
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if self.site not in HOOK_NAMES:
            raise InputError(f"'{self.site}' is not a site: choose one of {', '.join(HOOK_NAMES)}.")
        if (self.head is None) == (self.site == "z"):
            raise InputError(f"An edit of '{self.site}' {'needs' if self.site == 'z' else 'takes no'} head.")
        if self.value is not None and self.value.ndim == 2 and self.where == "all":
            raise InputError("An edit at all positions takes one value, not one a position.")
        if self.value is not None and self.value.ndim not in (1, 2):
            raise InputError("The value of an edit is [d] or [pos, d].")

    @property
    def hook_name(self) -> str:
        """The TransformerLens name of the edited activation."""
        return HOOK_NAMES[self.site].format(layer=self.layer)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over every field, the value's bytes included."""
        described = [self.site, self.layer, self.head, self.where, self.alpha if self.value is None else None]
        digest = hashlib.sha256(json.dumps(described).encode())
        if self.value is not None:
            digest.update(f"{self.value.dtype}{tuple(self.value.shape)}".encode())
            digest.update(self.value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Intervention:
    """A set of edits made together in one run, those at all positions before those at the candidate positions.

    No two edits have the same site, layer, head and positions: their order would matter, and the fingerprint has none.
    `NOTHING` is the clean run.
    """

    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        targets = [(edit.site, edit.layer, edit.head, edit.where) for edit in self.edits]
        if len(set(targets)) != len(targets):
            raise InputError("An intervention edits the same activation at the same positions twice.")

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
    def at_candidate(self) -> Intervention:
        """The part that acts at the candidate positions only."""
        return Intervention(tuple(edit for edit in self.edits if edit.where == "candidate"))

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
            candidate position (donor patching).
        where: the positions replaced.
    """
    edits = [Edit("z", h.layer, h.head, where, z[h.layer, ..., h.head, :].clone()) for h in heads]
    return Intervention(tuple(edits))


def merge(interventions: Iterable[Intervention]) -> Intervention:
    """All edits of several interventions in one."""
    return Intervention(tuple(edit for one in interventions for edit in one.edits))
