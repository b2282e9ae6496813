"""One change of one activation, as a value with a fingerprint: edits of activations and knockouts of attention edges.

    Edit, value given:  x ← value          (mean, resample and donor patching: they differ in where the value is from)
    Edit, value None:   x ← alpha · x      (alpha = 0 is zero ablation, alpha = 1 changes nothing)
    Knockout:           score[h, dest, src] ← −∞ before the softmax: what is left of the row sums to one again

The sites, and where in the computation they are (the hooks named are TransformerLens's; each was seen to feed it):

    q, k, v                 the projections, per head, *before* the query/key norm where the model has one (Qwen 3,
                            Gemma 3) and before the rotary embedding: a donor's key put there is normalised and turned
                            to the recipient's position. k and v have n_key_value_heads heads, each read by a group
                            of query heads (`mech.interventions.sites.kv_head_of`). hook_rot_q, hook_rot_k do not
                            exist in every family, and in GPT-NeoX they exist and never fire.
    z                       the input slice of the output projection, per query head
    attn_out, mlp_out       what is added to the residual stream, after the sublayer's own norm where it has one
                            (Gemma 3)
    resid_pre, resid_post   the residual stream before and after the block

`where` says at which positions of the sequence:

    "all"          every one: a shared prefix must be recomputed under it
    "candidate"    the n positions whose logits predict the n tokens of the action: the prefix is untouched
    (17, 18, 21)   these absolute positions, ascending: the prefix before the first is untouched
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from mech.errors import InputError

Site = Literal["q", "k", "v", "z", "attn_out", "mlp_out", "resid_pre", "resid_post"]
Where = Literal["all", "candidate"] | tuple[int, ...]

SITES: tuple[Site, ...] = get_args(Site)
HOOKS: dict[str, str] = {
    **{site: f"attn.hook_{site}" for site in ("z", "q", "k", "v", "pattern")},
    **{site: f"hook_{site}" for site in ("attn_out", "mlp_out", "resid_pre", "resid_post")},
    "scores": "attn.hook_attn_scores",
}
"""Site → TransformerLens hook name inside a block. Scores (where edges are knocked out) are
[head, dest_pos, src_pos] as they enter the softmax, masks added; the pattern is what leaves it."""
HEAD_SITES: tuple[Site, ...] = ("z", "q", "k", "v")
"""Sites with a head axis; that of k and v counts key/value heads."""


def hook_name(site: str, layer: int) -> str:
    """The TransformerLens name of a site's activation in a layer."""
    return f"blocks.{layer}.{HOOKS[site]}"


@dataclass(frozen=True, eq=False)
class Edit:
    """One change of one activation; two edits are equal when their fingerprints are.

    Attributes:
        site: the activation, one of SITES.
        layer: from 0.
        head: from 0, for the HEAD_SITES: a query head for `z` and `q`, a key/value head for `k` and `v`; None for
            the other sites.
        where: "all", "candidate", or absolute positions, ascending.
        value: None, or [d] for one value at every position, or [pos, d] for one a position of `where`;
            d is d_head for the HEAD_SITES and d_model otherwise.
        alpha: the factor used when `value` is None.
    """

    site: Site
    layer: int
    head: int | None
    where: Where
    value: Tensor | None = None
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise InputError(f"'{self.site}' is not a site: choose one of {', '.join(SITES)}.")
        if (self.head is None) == (self.site in HEAD_SITES):
            needs = "needs a" if self.site in HEAD_SITES else "takes no"
            raise InputError(f"An edit of '{self.site}' {needs} head.")
        _require_where(self.where)
        if self.value is None:
            return
        if self.value.ndim not in (1, 2):
            raise InputError("The value of an edit is [d] or [pos, d].")
        if self.value.ndim == 2 and self.where == "all":
            raise InputError("An edit at all positions takes one value, not one a position.")
        if self.value.ndim == 2 and isinstance(self.where, tuple) and len(self.value) != len(self.where):
            raise InputError(f"An edit has {len(self.value)} values for {len(self.where)} positions.")

    @property
    def hook_name(self) -> str:
        """The TransformerLens name of the edited activation."""
        return hook_name(self.site, self.layer)

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
class Knockout:
    """Attention of some query heads from the positions `where` to the `sources` is knocked out before the softmax.

    An edge that is not there (a source after the destination, or outside a sliding window) stays as masked as it was.

    Attributes:
        layer: from 0.
        heads: query heads, from 0, ascending.
        sources: absolute positions in the prompt, ascending.
        where: the destinations: "candidate", or absolute positions, ascending.
    """

    layer: int
    heads: tuple[int, ...]
    sources: tuple[int, ...]
    where: Where

    def __post_init__(self) -> None:
        if self.where == "all":
            raise InputError("Edges are knocked out at the action positions or at positions given by number.")
        _require_where(self.where)
        _require_ascending(self.heads, "heads")
        _require_ascending(self.sources, "source positions")

    @property
    def hook_name(self) -> str:
        """The TransformerLens name of the attention scores."""
        return hook_name("scores", self.layer)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over every field."""
        described = ["cut", self.layer, self.heads, self.sources, self.where]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _require_where(where: object) -> None:
    """Raise InputError unless `where` is "all", "candidate" or positions that name each place once, ascending."""
    if isinstance(where, tuple):
        _require_ascending(where, "positions")
    elif where not in ("all", "candidate"):
        raise InputError(f"'{where}' is no place: write all, candidate or a tuple of positions.")


def _require_ascending(numbers: tuple[int, ...], what: str) -> None:
    """A place named twice would be changed twice; none at all would read as "no effect"."""
    if not numbers or numbers[0] < 0 or any(one >= other for one, other in pairwise(numbers)):
        raise InputError(
            f"The {what} of a change are numbers from 0, ascending, at least one: not {numbers}."
        )
