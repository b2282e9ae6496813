"""Path patching into keys, the induction circuit's second step: sender heads → keys of receiver heads → the answer.

    a previous-token head writes the token of p − 1 to position p of the record; an induction head's key at p is read
    from there, and action positions with that token attend to p

    r'(p)  = r(p) + Σ over senders below the receiver of Δ(sender)     Δ: the senders' z replaced
           (`mech.patching.frozen_norm`)
    k'     = W_K · norm(r'(p))                                         outputs of all other heads and MLPs unchanged

Then the action positions are recomputed over the unchanged context, in which only the receivers' keys at these
positions are k'. The effect is logp(clean) − logp(patched), the necessity (noising) of the path senders → keys.

Grouped-query heads share their keys. Only the receivers see k', not the other query heads of their group
(`sharing_keys`): a receiver's attention scores are those of the block run with k', all others those of the block run
with k. `engine.slow` does the same by hooked full forwards. Wang et al. 2022 (arXiv:2211.00593).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.blocks import RowCache, block_arguments, run_block
from mech.engine.capture import capture_hooks, everything_names
from mech.engine.engine import Engine, Run
from mech.engine.layout import layout
from mech.engine.queries import Score
from mech.engine.sweep import by_layer, copies, require_clean, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import hook_name
from mech.interventions.hooks import EditLocation, HookFunction, edit_hooks, hooked
from mech.interventions.intervention import Edit, Intervention
from mech.interventions.sites import kv_head_of
from mech.models.model import Model
from mech.patching.frozen_norm import head_outputs
from mech.patching.patch import overwrite

Keys = dict[int, Tensor]
"""Layer → keys [pos, kv_head, d_head] as `hook_k` has them: before the key norm and the rotary embedding."""


def path_names(model: Model) -> list[str]:
    """The activations that a run must have kept, at the action positions and at those of the path."""
    return everything_names(model, "hook_resid_pre", "attn.hook_z")


def sharing_keys(model: Model, receivers: HeadSet) -> HeadSet:
    """The query heads that read a receiver's keys and are not receivers; empty without grouped-query attention."""
    groups = {(head.layer, kv_head_of(model, head)) for head in receivers}
    return HeadSet(
        other
        for layer in receivers.per_layer()
        for other in (Head(layer, head) for head in range(model.n_heads))
        if (layer, kv_head_of(model, other)) in groups and other not in receivers
    )


@torch.no_grad()
def keys_without(
    model: Model, run: Run, receivers: HeadSet, senders: HeadSet, replacement: Tensor, at: str = "record"
) -> Keys:
    """The receivers' keys at a set of positions, with the senders' z replaced there and all other outputs unchanged.

    Args:
        model: the model.
        run: a run that kept `path_names(model)` at the position set `at`.
        receivers: query heads; the keys of all key/value heads of their layers are returned.
        senders: query heads; those of a receiver's own layer and above do not reach its keys.
        replacement: of the senders' z, [layer, head, d_head] or [layer, pos, head, d_head]: zero, or the mean over the
            record's positions of other items.
        at: a position set of the run.

    Raises:
        InputError: a head does not exist, no sender is below a receiver, the replacement has another shape, or the run
            did not keep an activation.
    """
    model.require_eval_mode()
    for heads in (receivers, senders):
        heads.check(model.n_layers, model.n_heads)
    if not receivers.heads or not senders.heads or senders.heads[0].layer >= receivers.heads[-1].layer:
        raise InputError("No sender is in a layer below a receiver: there is no path from one to the other.")
    resid, z = (by_layer(run, model, kind, at) for kind in ("hook_resid_pre", "attn.hook_z"))
    changed = _replaced(model, torch.stack(z), replacement)
    delta = torch.zeros_like(resid[0])
    keys: Keys = {}
    sending, receiving = senders.per_layer(), receivers.per_layer()
    for layer in range(receivers.heads[-1].layer + 1):
        if layer in receiving:
            keys[layer], _ = _project(model, layer, resid[layer] + delta, range(len(delta)))
        if layer in sending:
            delta = delta + head_outputs(model, layer, sending[layer], z[layer], changed[layer]).sum(0)
    return keys


@torch.no_grad()
def patch_keys(
    engine: Engine, recipient: Run, receivers: HeadSet, keys: Mapping[int, Tensor], positions: Sequence[int]
) -> Score:
    """Score the recipient's action with the receivers' keys at these positions replaced, seen by the receivers only.

    Args:
        engine: runs the model.
        recipient: a clean run that kept `hook_resid_pre`.
        receivers: query heads.
        keys: layer → [pos, kv_head, d_head], as `keys_without` gives them, for every layer of the receivers.
        positions: absolute positions of the keys, in the prompt before the first action position.

    Raises:
        InputError: the recipient is not clean, another position, or keys of another shape.
    """
    model = engine.model
    model.require_eval_mode()
    require_clean(recipient)
    receivers.check(model.n_layers, model.n_heads)
    where = list(positions)
    end = recipient.query.candidate.start
    if not where or min(where) < 0 or max(where) >= end or sorted(set(where)) != where:
        raise InputError(
            f"Keys are replaced at positions 0-{end - 1} of the prompt, ascending: not at {where}."
        )
    for layer in receivers.per_layer():
        shape = tuple(keys[layer].shape) if layer in keys else None
        if shape != (len(where), model.n_kv_heads, model.d_head):
            raise InputError(f"The keys of layer {layer} are {shape}, and not [pos, kv_head, d_head].")
    run = _slowly if engine.slow else _packed
    return run(engine, recipient, receivers, keys, where)


def patch_path(
    engine: Engine,
    recipient: Run,
    receivers: HeadSet,
    senders: HeadSet,
    replacement: Tensor,
    positions: Sequence[int],
    at: str = "record",
) -> Score:
    """Score the recipient's action with the path senders → the receivers' keys at these positions replaced.

    `positions` are those of the run's position set `at`. Where the replacement equals the senders' z bit for bit, the
    score is the recipient's own. Arguments and errors as `keys_without` and `patch_keys`.
    """
    model = engine.model
    keys = keys_without(model, recipient, receivers, senders, replacement, at)
    z = stacked(recipient, model, "attn.hook_z", at)
    changed = _replaced(model, z, replacement)
    if all(torch.equal(changed[h.layer, :, h.head], z[h.layer, :, h.head]) for h in senders):
        return recipient.score
    return patch_keys(engine, recipient, receivers, keys, positions)


def _replaced(model: Model, z: Tensor, replacement: Tensor) -> Float[Tensor, "layer pos head d_head"]:
    wide = replacement[:, None] if replacement.ndim == 3 else replacement
    if wide.shape not in (z.shape, z[:, :1].shape):
        raise InputError(
            f"The senders' replacement is {tuple(replacement.shape)}, and not [layer, head, d_head] with or without "
            f"an axis of {z.shape[1]} positions after the first."
        )
    return wide.to(z).expand_as(z)


def _project(
    model: Model,
    layer: int,
    resid: Float[Tensor, "pos d_model"],
    positions: Sequence[int],
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Keys that a stock block computes from these residual streams: `hook_k` [pos, kv_head, d_head], and as cached.

    Args:
        model: the model.
        layer: of the block.
        resid: before the block; each position attends to itself, and the block's output is not used.
        positions: for the rotary embedding, which comes after `hook_k`.
        keys: replace `hook_k`; only the cached keys differ then.
    """
    n = len(positions)
    cache = RowCache((), ())
    arguments = block_arguments(model, layout(model, positions, [-1] * n, 0), cache)
    name = hook_name("k", layer)
    kept: dict[str, Tensor] = {}
    hooks = capture_hooks(model, [name], kept.__setitem__)
    if keys is not None:
        rows = torch.arange(n, device=model.device)
        edits = [Edit("k", layer, head, "candidate", keys[:, head]) for head in range(model.n_kv_heads)]
        hooks += edit_hooks(model, [EditLocation(edit, rows) for edit in edits])
    with hooked(model, hooks, fires=1):
        run_block(model, layer, resid[None], arguments[layer])
    return kept[name][0].reshape(n, model.n_kv_heads, model.d_head), cache.keys[layer]


def _packed(
    engine: Engine, recipient: Run, receivers: HeadSet, keys: Mapping[int, Tensor], where: Sequence[int]
) -> Score:
    """The candidate nodes over the recipient's prefix cache, from the first receiver's layer on."""
    model, query, prefix_cache = engine.model, recipient.query, recipient.prefix_cache
    resid_pre = by_layer(recipient, model, "hook_resid_pre")
    place = copies(model, query, 1)
    receiving = receivers.per_layer()
    first = min(receiving)
    row = resid_pre[first][None]
    for layer in range(first, model.n_layers):
        hooks: list[tuple[str, HookFunction]] = []
        if layer in receiving:
            name = hook_name("scores", layer)
            dummy = torch.zeros(len(where), model.d_model, dtype=model.dtype, device=model.device)
            _, turned = _project(model, layer, dummy, where, keys[layer])
            other = list(prefix_cache.keys)
            other[layer] = other[layer].index_copy(2, torch.tensor(where, device=model.device), turned)
            scores: dict[str, Tensor] = {}
            arguments = block_arguments(model, place, RowCache(other, prefix_cache.values))
            with hooked(model, capture_hooks(model, [name], scores.__setitem__), fires=1):
                run_block(model, layer, row, arguments[layer])
            own = receiving[layer]
            hooks = [overwrite(name, (0, own), scores[name][0, own])]
        arguments = block_arguments(model, place, RowCache(prefix_cache.keys, prefix_cache.values))
        with hooked(model, hooks, fires=1):
            row = run_block(model, layer, row, arguments[layer])
    engine.forwards.ran += 1
    [score] = packed.read_scores(model, row, [range(len(query.action))], [query.action])
    return score


def _slowly(
    engine: Engine, recipient: Run, receivers: HeadSet, keys: Mapping[int, Tensor], where: Sequence[int]
) -> Score:
    """One full forward a receiver layer, for its scores with the keys replaced; then one with all of these scores."""
    model, query = engine.model, recipient.query
    rows = slice(query.candidate.start, None)
    hooks: list[tuple[str, HookFunction]] = []
    for layer, heads in receivers.per_layer().items():
        name = hook_name("scores", layer)
        values = enumerate(keys[layer].unbind(1))
        edits = tuple(Edit("k", layer, head, tuple(where), value) for head, value in values)
        scores: dict[str, Tensor] = {}
        with hooked(model, [*hooks, *capture_hooks(model, [name], scores.__setitem__)], fires=1):
            reference.full_forward(model, replace(query, intervention=Intervention(edits)))
        hooks.append(overwrite(name, (0, heads, rows), scores[name][0, heads, rows]))
    with hooked(model, hooks, fires=1):
        [score] = reference.score(model, [query])
    engine.forwards.ran += len(hooks) + 1
    return score
