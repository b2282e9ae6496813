"""Exact activation patching: score the recipient's action with activations taken from a donor run.

    noising   (necessity):   run neut, z of head h from pre;   effect = logp(neut) − logp(patched)
    denoising (sufficiency): run pre,  z of head h from neut;  effect = logp(patched) − logp(pre)

    site        a part is                                at the action positions    at positions given by number
    z, q        a query head, L18H6                      yes                        yes
    k, v        a key/value head, L18KV2                 yes (as seen from there)   yes
    pattern     a query head                             `mech.patching.patterns`   no
    mlp_out     a layer, L18: the output of its MLP      yes                        yes
    resid_pre   a layer: the residual stream before its  yes                        yes, except L30
                block; L30 of 30: after the last block

Both runs score the same action, so action positions correspond one to one and contexts may differ in length. At
positions given by number (the call in the record, say) recipient and donor must correspond position by position; the
prefix cache ends before the first of them, and everything from there on is recomputed. Patches at the action positions
share forwards (`mech.engine.sweep`).

Two ends of resid_pre are known in advance: before block 0 the tokens are the same (no effect, unless positions are
learned, as in GPT-2), and after the last block the patch is the donor's whole answer. Terms as in Heimersheim & Nanda
2024 (arXiv:2404.15255).
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
from mech.engine.sweep import require_clean, score_edits, score_interventions, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import HEAD_SITES, HOOKS, Edit, Site, Where, hook_name
from mech.interventions.hooks import EditLocation, HookFunction, edit_hooks, hooked
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
    """The sign of an effect relative to the change of the recipient's log p: −1 noise, 1 denoise; InputError else."""
    if direction not in DIRECTIONS:
        raise InputError(f"'{direction}' is not a direction: write noise or denoise.")
    return -1.0 if direction == "noise" else 1.0


def sides(without: Run, with_it: Run, direction: str) -> Sides:
    """Noising patches the run that has something from the one without it, denoising the reverse; InputError else."""
    sign = direction_sign(direction)
    return Sides(with_it, without, sign) if sign < 0 else Sides(without, with_it, sign)


def as_run(engine: Engine, run: Run | Query, keep: Sequence[str]) -> Run:
    """The run itself, or a run of the query that keeps these activations."""
    return run if isinstance(run, Run) else engine.run(run, keep)


def sweep_names(model: Model) -> list[str]:
    """The activations that both sides of a sweep must have kept."""
    return everything_names(model, "hook_resid_pre", "attn.hook_z")


def all_heads(model: Model) -> HeadSet:
    """Every query head of the model."""
    return HeadSet(Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads))


def patch_heads(
    engine: Engine, recipient: Run, donor: Run, heads: HeadSet | None = None
) -> dict[Head, Score]:
    """Score the recipient's action with z of one head after another (None: of all) taken from the donor.

    Both runs kept `sweep_names(model)`; results and errors as `patch_parts`.
    """
    model = engine.model
    chosen = (all_heads(model) if heads is None else heads).check(model.n_layers, model.n_heads)
    scores = patch_parts(engine, recipient, donor, "z", parts=[Part(h.layer, h.head) for h in chosen])
    return dict(zip(chosen, scores.values(), strict=True))


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
    """Patch all heads' z together by three full forwards: nothing is cached, shared between runs, or skipped as equal.

    With the recipient as its own donor the two scores are equal bit for bit, on a deterministic device.

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
    """The donor's z at the action positions, [layer, pos, head, d_head]; InputError as `require_pair` and `stacked`."""
    require_pair(recipient, donor)
    return stacked(donor, model, "attn.hook_z")


def layer_names(model: Model) -> list[str]:
    """The activations that both sides of a layer sweep must have kept."""
    return [*everything_names(model, "hook_resid_pre", "hook_mlp_out"), final_name(model)]


def final_name(model: Model) -> str:
    """The hook of the residual stream after the last block."""
    return hook_name("resid_post", model.n_layers - 1)


def final_resid(model: Model, run: Run) -> Tensor:
    """The residual stream after the last block at the action positions, [pos, d_model]; InputError if not kept."""
    return run.activation(final_name(model))


def patch_layers(
    engine: Engine,
    recipient: Run,
    donor: Run,
    site: LayerSite = "mlp_out",
    layers: Sequence[int] | None = None,
) -> dict[int, Score]:
    """Score the recipient's action with one layer's activation after another (None: of all) taken from the donor.

    Both runs kept `layer_names(model)`. For resid_pre, layer n_layers is the residual stream after the last block.
    Results and errors as `patch_parts`.
    """
    if site not in LAYER_SITES:
        raise InputError(f"'{site}' is not a site of a layer sweep: choose one of {', '.join(LAYER_SITES)}.")
    chosen = None if layers is None else [Part(layer) for layer in layers]
    scores = patch_parts(engine, recipient, donor, site, parts=chosen)
    return {part.layer: score for part, score in scores.items()}


def overwrite(name: str, place: tuple[Any, ...], values: Tensor) -> tuple[str, HookFunction]:
    """A hook of this name that replaces a part of the activation, given as an index, by values."""

    def function(activation: Tensor, hook: Any) -> Tensor:
        edited = activation.clone()
        edited[place] = values.to(activation)
        return edited

    return name, function


def _score_final_resid(engine: Engine, recipient: Run, resid: Tensor) -> Score:
    """The recipient's action read off another final residual stream [pos, d_model]: no block is run."""
    model, query = engine.model, recipient.query
    if not engine.slow:
        [score] = packed.read_scores(model, resid[None], [range(len(query.action))], [query.action])
        return score

    rows = slice(query.candidate.start, None)
    with hooked(model, [overwrite(final_name(model), (0, rows), resid)], fires=1):
        [score] = reference.score(model, [query])
    engine.forwards.ran += 1
    return score


@dataclass(frozen=True, order=True)
class Part:
    """What one patch replaces: a query head (L18H6), a key/value head (L18KV2) or a layer (L18)."""

    layer: int
    head: int | None = None
    kv_head: int | None = None

    def __str__(self) -> str:
        if self.head is not None:
            return f"L{self.layer}H{self.head}"
        return f"L{self.layer}" if self.kv_head is None else f"L{self.layer}KV{self.kv_head}"


def parts_of(model: Model, site: str) -> list[Part]:
    """All parts of a site, by layer; InputError for an unknown site."""
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
    """These query heads as parts of a head site: themselves, or the key/value heads that they read.

    Patching a key/value head changes every query head of its group, also those that are not in the set.
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
        engine: runs the model; with `engine.slow`, one hooked full forward a part.
        recipient: a clean run that kept `site_names(model, site)` at the position set `at`.
        donor: a run of the same action that kept them there too.
        site: one of PATCH_SITES.
        at: "candidate", or another position set of both runs, of the same length in both.
        positions: the recipient's absolute positions of that set; empty for the action positions.
        parts: which; None means all.

    Returns:
        Part → score. A part that equals the donor's bit for bit is not run: it has the recipient's own score.

    Raises:
        InputError: the actions differ, the recipient is not clean, the site or a part does not exist, the sets differ
            in length, or an activation was not kept.
    """
    model = engine.model
    model.require_eval_mode()
    require_pair(recipient, donor)
    known = parts_of(model, site)
    if at != "candidate":  # the final residual stream feeds no later position
        known = [part for part in known if part.layer < model.n_layers]
    chosen = known if parts is None else list(parts)
    if unknown := set(chosen).difference(known):
        raise InputError(
            f"There is no {min(unknown, key=str)} to patch at {site} of the {at} positions: choose from {known[0]} to "
            f"{known[-1]}."
        )
    made = _edits(model, recipient, donor, site, chosen, at, positions)
    edits = {part: edit for part, edit in made.items() if part.layer < model.n_layers}
    if at == "candidate":
        found = score_edits(engine, recipient, list(edits.values()))
    else:
        found = engine.score(_queries(recipient, [Intervention((edit,)) for edit in edits.values()]))
    scores = dict.fromkeys(chosen, recipient.score) | dict(zip(edits, found, strict=True))
    for part in made.keys() - edits.keys():  # after the last block
        scores[part] = _score_final_resid(engine, recipient, final_resid(model, donor))
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
    changes = []
    for heads in sets.values():
        parts = parts_of_heads(model, site, heads)
        edits = _edits(model, recipient, donor, site, parts, at, positions)
        changes.append(Intervention(tuple(edits.values())))
    if at == "candidate":
        return dict(zip(sets, score_interventions(engine, recipient, changes), strict=True))
    return dict(zip(sets, engine.score(_queries(recipient, changes)), strict=True))


def _queries(recipient: Run, changes: Sequence[Intervention]) -> list[Query]:
    """The recipient's query under each of these changes."""
    return [Query(recipient.query.prompt, recipient.query.action, change) for change in changes]


def _edits(
    model: Model,
    recipient: Run,
    donor: Run,
    site: Site,
    parts: Iterable[Part],
    at: str,
    positions: Sequence[int],
) -> dict[Part, Edit]:
    """Each part's edit with the donor's value, without the parts that are equal in both runs, bit for bit."""
    where: Where = "candidate" if at == "candidate" else tuple(positions)
    edits = {}
    for part in parts:
        value, own = (_value(model, run, site, part, at) for run in (donor, recipient))
        if value.shape != own.shape:
            raise InputError(f"The donor has {len(value)} {at} positions, the recipient {len(own)}.")
        if not torch.equal(value, own):
            head = part.kv_head if part.head is None else part.head
            edits[part] = Edit(site, part.layer, head, where, value.clone())
    return edits


def _value(model: Model, run: Run, site: Site, part: Part, at: str) -> Tensor:
    """A part's activation in a run, [pos, d]."""
    if part.layer == model.n_layers:
        return final_resid(model, run)
    value = run.activation(hook_name(site, part.layer), at)
    head = part.kv_head if part.head is None else part.head
    return value if head is None else value[:, head]
