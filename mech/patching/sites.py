"""Exact patching of any site, of one part after another: by query head, by key/value head, or by layer.

    site        a part is                      at the action positions    at positions given by number
    z, q        a query head, L18H6            yes                           yes
    k, v        a key/value head, L18KV2       yes (seen from there only)    yes
    pattern     a query head                   `mech.patching.patterns`       no
    mlp_out     a layer, L18                   yes                           yes
    resid_pre   a layer; L30 of 30: the end    yes                           yes, without the end

At given positions (the call in the record, say) recipient and donor must correspond position by position, and the
prefix cache ends before the first of them: everything behind is recomputed. At the action positions a part enters at
its own layer (`mech.patching.patch.sweep`). Effects are differences of scores, as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.engine.sweep import score_interventions, sweep
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.edits import HEAD_SITES, Edit, Site, Where
from mech.interventions.intervention import Intervention
from mech.interventions.sites import KV_SITES, kv_head_of
from mech.models.model import Model
from mech.patching.layers import layer_names, patch_layers
from mech.patching.patch import patch_heads, patch_sets, require_pair

PatchSite = Literal["z", "q", "k", "v", "mlp_out", "resid_pre"]
PATCH_SITES: tuple[PatchSite, ...] = ("z", "q", "k", "v", "mlp_out", "resid_pre")
KINDS: dict[str, str] = {
    **{site: f"attn.hook_{site}" for site in ("z", "q", "k", "v", "pattern")},
    **{site: f"hook_{site}" for site in ("mlp_out", "resid_pre")},
}


@dataclass(frozen=True, order=True)
class Part:
    """What is patched at once: a query head, a key/value head or a layer; the other two numbers are None.

    Prints as L18H6, L18KV2 or L18, so that a key/value head is not taken for a query head.
    """

    layer: int
    head: int | None = None
    kv_head: int | None = None

    def __str__(self) -> str:
        if self.head is not None:
            return f"L{self.layer}H{self.head}"
        return f"L{self.layer}" if self.kv_head is None else f"L{self.layer}KV{self.kv_head}"


def parts_of(model: Model, site: str) -> list[Part]:
    """All parts of a site, by layer; for resid_pre the number of layers stands for what the final norm reads."""
    if site not in KINDS:
        raise InputError(f"'{site}' is not a site to patch: choose one of {', '.join(KINDS)}.")
    if site in ("mlp_out", "resid_pre"):
        return [Part(layer) for layer in range(model.n_layers + (site == "resid_pre"))]
    if site in KV_SITES:
        return [Part(i, kv_head=j) for i in range(model.n_layers) for j in range(model.n_kv_heads)]
    return [Part(i, head=j) for i in range(model.n_layers) for j in range(model.n_heads)]


def parts_of_heads(model: Model, site: str, heads: HeadSet) -> list[Part]:
    """The parts of a head site that these query heads have: themselves, or the key/value heads that they read.

    A key/value head is read by its whole group: patching it changes the heads of the group that are not asked for, too.
    """
    if site in KV_SITES:
        return sorted({Part(head.layer, kv_head=kv_head_of(model, head)) for head in heads})
    return [Part(head.layer, head=head.head) for head in heads]


def site_names(model: Model, site: str) -> list[str]:
    """The activations that both sides must have kept (for `pattern`: `mech.patching.patterns.pattern_names`)."""
    if site in ("mlp_out", "resid_pre"):
        return layer_names(model)
    return everything_names(model, "hook_resid_pre", KINDS[site])


@torch.no_grad()
def patch_parts(
    engine: Engine,
    recipient: Run,
    donor: Run,
    site: PatchSite,
    at: str = "candidate",
    positions: Sequence[int] = (),
    parts: Iterable[Part] | None = None,
) -> dict[Part, Score]:
    """Score the recipient's action with one part after another of a site taken from the donor.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a part.
        recipient: a clean run that kept `site_names(model, site)`, at the position set `at`.
        donor: a run of the same action that kept them there too.
        site: one of PATCH_SITES.
        at: "candidate", or a further position set of both runs, as long in both.
        positions: the recipient's absolute positions of that set; not given for the action positions.
        parts: which; None means all (at given positions: without the end of resid_pre, which feeds no later position).

    Returns:
        Part → score. A part that is bit for bit the donor's needs no run: its score is the recipient's own.

    Raises:
        InputError: the actions differ, the recipient is not clean, the site or a part does not exist, the sets differ
            in length, or an activation was not kept.
    """
    model = engine.model
    model.require_eval_mode()
    require_pair(recipient, donor)
    everything = parts_of(model, site)
    if at != "candidate":
        everything = [part for part in everything if part.layer < model.n_layers]
    chosen = everything if parts is None else list(parts)
    known = set(everything)
    for part in chosen:
        if part not in known:
            raise InputError(f"There is no {part} to patch at {site} of the {at} positions.")
    if at == "candidate" and site in ("mlp_out", "resid_pre"):
        layers = patch_layers(engine, recipient, donor, site, [part.layer for part in chosen])
        return {part: layers[part.layer] for part in chosen}
    if at == "candidate" and site == "z":
        heads = patch_heads(engine, recipient, donor, HeadSet.parse(",".join(map(str, chosen))))
        return {Part(head.layer, head.head): score for head, score in heads.items()}
    where: Where = "candidate" if at == "candidate" else tuple(positions)
    edits = {part: _edit(model, recipient, donor, site, part, at, where) for part in chosen}
    run = [edit for edit in edits.values() if edit is not None]
    if at == "candidate":
        found = sweep(engine, recipient, run)
    else:
        found = engine.score(_queries(recipient, [Intervention((edit,)) for edit in run])) if run else []
    scores = dict.fromkeys(chosen, recipient.score)
    scores.update(zip([part for part, edit in edits.items() if edit is not None], found, strict=True))
    return scores


@torch.no_grad()
def patch_part_sets(
    engine: Engine,
    recipient: Run,
    donor: Run,
    site: PatchSite,
    sets: Mapping[str, HeadSet],
    at: str = "candidate",
    positions: Sequence[int] = (),
) -> dict[str, Score]:
    """Score the recipient's action with a head site of all heads of a set taken from the donor together, set by set.

    For k and v: of all key/value heads that the set's heads read. Arguments and errors as `patch_parts`.
    """
    model = engine.model
    model.require_eval_mode()
    require_pair(recipient, donor)
    if site not in HEAD_SITES:
        raise InputError(f"Sets of heads have no '{site}': choose one of {', '.join(HEAD_SITES)}.")
    for heads in sets.values():
        heads.check(model.n_layers, model.n_heads)
    if at == "candidate" and site == "z":
        return patch_sets(engine, recipient, donor, sets)
    where: Where = "candidate" if at == "candidate" else tuple(positions)
    changes = []
    for heads in sets.values():
        parts = parts_of_heads(model, site, heads)
        edits = [_edit(model, recipient, donor, site, part, at, where) for part in parts]
        changes.append(Intervention(tuple(edit for edit in edits if edit is not None)))
    if at == "candidate":
        return dict(zip(sets, score_interventions(engine, recipient, changes), strict=True))
    return dict(zip(sets, engine.score(_queries(recipient, changes)), strict=True))


def _queries(recipient: Run, changes: Sequence[Intervention]) -> list[Query]:
    """The recipient's question under each of these changes."""
    return [Query(recipient.query.prompt, recipient.query.action, change) for change in changes]


def _edit(
    model: Model,
    recipient: Run,
    donor: Run,
    site: Site,
    part: Part,
    at: str,
    where: Where,
) -> Edit | None:
    """The part's edit with the donor's value; None where recipient and donor have the same, bit for bit."""
    name = f"blocks.{part.layer}.{KINDS[site]}"
    theirs, own = (_kept(run, name, at) for run in (donor, recipient))
    head = part.kv_head if part.head is None else part.head
    if head is not None:
        theirs, own = theirs[:, head], own[:, head]
    if theirs.shape != own.shape:
        raise InputError(f"The donor has {len(theirs)} {at} positions, the recipient {len(own)}.")
    if torch.equal(theirs, own):
        return None
    return Edit(site, part.layer, head, where, theirs.clone())


def _kept(run: Run, name: str, at: str) -> Tensor:
    kept = run.cache if at == "candidate" else run.at.get(at, {})
    if name not in kept:
        raise InputError(
            f"The run did not keep '{name}' at its {at} positions: keep site_names(model, site)."
        )
    return kept[name]
