"""Exact activation patching: the recipient's action scored with activations of a donor run, part by part or together.

    noising   (necessity):   run neut, z of head h from pre;   effect = logp(neut) − logp(patched)
    denoising (sufficiency): run pre,  z of head h from neut;  effect = logp(patched) − logp(pre)

    site        a part is                      at the action positions    at positions given by number
    z, q        a query head, L18H6            yes                           yes
    k, v        a key/value head, L18KV2       yes (seen from there only)    yes
    pattern     a query head                   `mech.patching.patterns`       no
    mlp_out     a layer, L18: what its MLP adds                  yes         yes
    resid_pre   a layer: all that stands before its block; L30   yes         yes, without the end
                of 30: what the final norm reads

The same action ends both runs, so its action positions correspond one to one and no corrupted prompt of equal length
is needed. At given positions (the call in the record, say) recipient and donor must correspond position by position,
and the prefix cache ends before the first of them: everything behind is recomputed. At the action positions a part
enters at its own layer, and many patches are one forward (`mech.engine.sweep`).

Two ends of resid_pre are identities: before block 0 stand the same tokens (no effect at all, unless positions are
learned, as in GPT-2), behind the last block stands the donor's whole answer. Terms as in Heimersheim & Nanda 2024
(arXiv:2404.15255).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.capture import capture_hooks, everything_names, shape_rows
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.engine.sweep import by_layer, require_clean, score_edits, score_interventions, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import HEAD_SITES, HOOKS, Edit, Site, Where, hook_name
from mech.interventions.hooks import EditLocation, edit_hooks, hooked
from mech.interventions.intervention import Intervention, replace_heads
from mech.interventions.sites import KV_SITES, kv_head_of
from mech.models.model import Model

Direction = Literal["noise", "denoise"]
DIRECTIONS: tuple[Direction, ...] = ("noise", "denoise")
PatchSite = Literal["z", "q", "k", "v", "mlp_out", "resid_pre"]
PATCH_SITES: tuple[PatchSite, ...] = ("z", "q", "k", "v", "mlp_out", "resid_pre")
LayerSite = Literal["mlp_out", "resid_pre"]
LAYER_SITES: tuple[LayerSite, ...] = ("mlp_out", "resid_pre")
_Key = TypeVar("_Key", bound=Hashable)


class Sides(NamedTuple):
    """The two runs of a patch, and the sign that turns a change of the recipient's log p into an effect."""

    recipient: Run
    donor: Run
    sign: float


def direction_sign(direction: str) -> float:
    """What turns a change of the recipient's log p into an effect: −1 for noise, 1 for denoise.

    Raises:
        InputError: an unknown direction.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"'{direction}' is not a direction: write noise or denoise.")
    return -1.0 if direction == "noise" else 1.0


def sides(without: Run, with_it: Run, direction: str) -> Sides:
    """Noising patches the run that has something from the one without it, denoising the other way round.

    Raises:
        InputError: an unknown direction.
    """
    sign = direction_sign(direction)
    return Sides(with_it, without, sign) if sign < 0 else Sides(without, with_it, sign)


def as_run(engine: Engine, run: Run | Query, keep: Sequence[str]) -> Run:
    """The run, or the query run with these activations kept."""
    return run if isinstance(run, Run) else engine.run(run, keep)


def sweep_names(model: Model) -> list[str]:
    """The activations that both sides of a sweep must have kept."""
    return everything_names(model, "hook_resid_pre", "attn.hook_z")


def all_heads(model: Model) -> HeadSet:
    """Every query head of the model."""
    return HeadSet(Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads))


@torch.no_grad()
def patch_heads(
    engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None
) -> dict[Head, Score]:
    """Score the recipient's action with z of one head after another taken from the donor.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a head instead of the sweep.
        recipient: a clean run that kept `sweep_names(model)`.
        donor: a run of the same action that kept them too.
        heads: which; None means all.

    Returns:
        Head → score of the patched run. A head whose z is bit for bit the donor's needs no run: its score is the
        recipient's own.

    Raises:
        InputError: the actions differ, the recipient is not clean, a head does not exist.
    """
    model = engine.model
    model.require_eval_mode()
    chosen = (all_heads(model) if heads is None else heads).check(model.n_layers, model.n_heads)
    z = donor_z(model, recipient, donor)
    own = stacked(recipient, model, "attn.hook_z")
    changed = [h for h in chosen if not torch.equal(z[h.layer, :, h.head], own[h.layer, :, h.head])]
    scores = {head: recipient.score for head in chosen}
    edits = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in changed]
    scores.update(zip(changed, score_edits(engine, recipient, edits), strict=True))
    return scores


@torch.no_grad()
def patch_sets(engine: Engine, recipient: Run, donor: Run, sets: Mapping[_Key, HeadSet]) -> dict[_Key, Score]:
    """Score the recipient's action with z of all heads of a set taken from the donor together, set by set.

    Arguments and errors as `patch_heads`; a set without heads has the recipient's own score.
    """
    model = engine.model
    z = donor_z(model, recipient, donor)
    changes = [
        replace_heads(heads.check(model.n_layers, model.n_heads), z, "candidate") for heads in sets.values()
    ]
    return dict(zip(sets, score_interventions(engine, recipient, changes), strict=True))


class FullPatch(NamedTuple):
    """The recipient's score, its score under the patch, and how often the hooks that patched it fired."""

    clean: Score
    patched: Score
    fired: int


def patch_in_full(model: Model, recipient: Query, donor: Query) -> FullPatch:
    """Patch all heads' z together by three full forwards: nothing is kept, shared between runs, or skipped as equal.

    With the recipient as its own donor the two scores must be equal to the bit, on a device that is deterministic.

    Raises:
        InputError: the actions differ in length, or a sequence is longer than the model's may be.
        HookMissed: a hook did not fire once a forward.
    """
    if len(recipient.action) != len(donor.action):
        raise InputError("Patching needs as many action tokens in both runs.")
    seen: dict[str, Tensor] = {}
    names = everything_names(model, "attn.hook_z")
    with hooked(model, capture_hooks(model, names, seen.__setitem__), fires=1):
        reference.score(model, [donor])
    places = list(donor.candidate)
    z = torch.stack([shape_rows(model, name, seen[name], places, [], len(donor.tokens)) for name in names])
    [clean] = reference.score(model, [recipient])
    rows = torch.tensor(list(recipient.candidate), device=model.device)
    edits = replace_heads(all_heads(model), z, "candidate").edits
    with hooked(model, edit_hooks(model, [EditLocation(edit, rows) for edit in edits]), fires=1) as count:
        [patched] = reference.score(model, [recipient])
    return FullPatch(clean, patched, sum(count.counts))


def patched_query(recipient: Run, heads: HeadSet, z: Tensor) -> Query:
    """The recipient's query with z of these heads replaced at the action positions; z [layer, pos, head, d_head]."""
    query = recipient.query
    return Query(query.prompt, query.action, query.intervention + replace_heads(heads, z, "candidate"))


def require_pair(recipient: Run, donor: Run) -> None:
    """Raise InputError unless both runs end in one action and the recipient is clean."""
    if recipient.query.action != donor.query.action:
        raise InputError("Patching needs the same action tokens in both runs.")
    require_clean(recipient)


def donor_z(model: Model, recipient: Run, donor: Run) -> Tensor:
    """What the donor kept of z, [layer, pos, head, d_head]; InputError as `require_pair` and `stacked`."""
    require_pair(recipient, donor)
    return stacked(donor, model, "attn.hook_z")


def layer_names(model: Model) -> list[str]:
    """The activations that both sides of a layer sweep must have kept."""
    return [*everything_names(model, "hook_resid_pre", "hook_mlp_out"), final_name(model)]


def final_name(model: Model) -> str:
    """The residual stream behind the last block, which the final norm reads."""
    return hook_name("resid_post", model.n_layers - 1)


def final_resid(model: Model, run: Run) -> Tensor:
    """The residual stream behind the last block at the action positions, [pos, d_model]; InputError if not kept."""
    return run.activation(final_name(model))


@torch.no_grad()
def patch_layers(
    engine: Engine,
    recipient: Run,
    donor: Run,
    site: LayerSite = "mlp_out",
    layers: Sequence[int] | None = None,
) -> dict[int, Score]:
    """Score the recipient's action with one layer's activation after another taken from the donor.

    Args:
        engine: its model runs; `engine.slow` takes one hooked full forward a layer instead of the sweep.
        recipient: a clean run that kept `layer_names(model)`.
        donor: a run of the same action that kept them too.
        site: "mlp_out" or "resid_pre".
        layers: which; None means all. For resid_pre, the number of layers stands for the final residual stream.

    Returns:
        Layer → score of the patched run, in the order asked. A layer whose activation is bit for bit the donor's needs
        no run: its score is the recipient's own.

    Raises:
        InputError: the actions differ, the recipient is not clean, an unknown site, a layer does not exist.
    """
    model = engine.model
    if site not in LAYER_SITES:
        raise InputError(f"'{site}' is not a site of a layer sweep: choose one of {', '.join(LAYER_SITES)}.")
    require_pair(recipient, donor)
    end = model.n_layers + (site == "resid_pre")
    chosen = list(range(end)) if layers is None else list(layers)
    for layer in chosen:
        if not 0 <= layer < end:
            raise InputError(f"There is no {site} of layer {layer}: choose from 0-{end - 1}.")
    theirs, own = (_layer_values(model, run, site) for run in (donor, recipient))
    changed = [layer for layer in chosen if not torch.equal(theirs[layer], own[layer])]
    inside = [layer for layer in changed if layer < model.n_layers]
    edits = [Edit(site, layer, None, "candidate", theirs[layer]) for layer in inside]
    scores = {layer: recipient.score for layer in chosen}
    scores.update(zip(inside, score_edits(engine, recipient, edits), strict=True))
    if model.n_layers in changed:
        scores[model.n_layers] = _behind_the_last(engine, recipient, theirs[model.n_layers])
    return scores


def _layer_values(model: Model, run: Run, site: LayerSite) -> list[Tensor]:
    values = by_layer(run, model, HOOKS[site])
    return [*values, final_resid(model, run)] if site == "resid_pre" else values


def _behind_the_last(engine: Engine, recipient: Run, resid: Tensor) -> Score:
    """The recipient's action read off another final residual stream [pos, d_model]: no block is left to run."""
    model, query = engine.model, recipient.query
    if not engine.slow:
        [score] = packed.read_scores(model, resid[None], [range(len(query.action))], [query.action])
        return score

    def replace(activation: Tensor, hook: Any) -> Tensor:
        edited = activation.clone()
        edited[0, query.candidate.start :] = resid
        return edited

    with hooked(model, [(final_name(model), replace)], fires=1):
        [score] = reference.score(model, [query])
    engine.forwards.ran += 1
    return score


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
    if site not in (*PATCH_SITES, "pattern"):
        raise InputError(
            f"'{site}' is not a site to patch: choose one of {', '.join((*PATCH_SITES, 'pattern'))}."
        )
    if site in LAYER_SITES:
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
    if site in LAYER_SITES:
        return layer_names(model)
    return everything_names(model, "hook_resid_pre", HOOKS[site])


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
        found = score_edits(engine, recipient, run)
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
    name = hook_name(site, part.layer)
    theirs, own = (run.activation(name, at) for run in (donor, recipient))
    head = part.kv_head if part.head is None else part.head
    if head is not None:
        theirs, own = theirs[:, head], own[:, head]
    if theirs.shape != own.shape:
        raise InputError(f"The donor has {len(theirs)} {at} positions, the recipient {len(own)}.")
    if torch.equal(theirs, own):
        return None
    return Edit(site, part.layer, head, where, theirs.clone())
