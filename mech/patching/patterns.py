"""Exact patching of a head's attention pattern at the action positions, with the recipient's values.

    z'[h] = pattern'[h] @ v[h]        pattern': the donor's attention of head h, moved to the recipient's positions
                                      v: the recipient's values, each read by a group of query heads

A head's z depends on its pattern (set by q and k) and on its values. Patching z changes both; this changes the pattern
alone. Positions of the recipient without a counterpart in the donor get no attention, so a donor without the record
(noising) moves the record's attention to where the donor had it. This holds under sliding windows too.

Single heads: z' is known before the run (lower layers are the recipient's), so it is an edit of z, swept as in
`mech.patching.patch`. Sets: heads of later layers read values that the patch has changed, so the pattern itself is
replaced in one packed row. `engine.slow` does both by a hook on `hook_pattern` in a full forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import einops
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.blocks import RowCache, block_arguments, run_block
from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Score
from mech.engine.sweep import by_layer, copies, score_edits
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import hook_name
from mech.interventions.hooks import HookFunction, hooked
from mech.interventions.intervention import Edit
from mech.interventions.site_check import require_causal
from mech.interventions.sites import kv_head_of
from mech.models.model import Model
from mech.patching.patch import all_heads, overwrite, require_pair

Columns = Sequence[tuple[int, int]]
"""(donor position, recipient position) pairs: attention to the first moves to the second."""


def pattern_names(model: Model) -> list[str]:
    """The activations that both sides must have kept."""
    return everything_names(model, "hook_resid_pre", "attn.hook_v", "attn.hook_pattern")


def moved_patterns(
    model: Model, recipient: Run, donor: Run, columns: Columns
) -> list[Float[Tensor, "head pos seq"]]:
    """The donor's attention from the action positions, moved to the recipient's positions, layer by layer.

    `columns` names each position of the donor exactly once; the donor kept `pattern_names(model)`.

    Raises:
        InputError: a position is named twice, does not exist, or one of the donor is left out (rows would no longer sum
            to one).
    """
    theirs, ours = [pair[0] for pair in columns], [pair[1] for pair in columns]
    n_theirs, n_ours = len(donor.query.tokens), len(recipient.query.tokens)
    if sorted(theirs) != list(range(n_theirs)):
        raise InputError(
            f"Each of the donor's {n_theirs} positions must have one counterpart: attention may not be lost."
        )
    if len(set(ours)) != len(ours) or not set(ours) <= set(range(n_ours)):
        raise InputError(f"Counterparts are positions 0-{n_ours - 1} of the recipient, each once.")
    out = []
    for pattern in by_layer(donor, model, "attn.hook_pattern"):
        placed = torch.zeros(*pattern.shape[:2], n_ours, dtype=pattern.dtype, device=pattern.device)
        placed[:, :, ours] = pattern[:, :, theirs]
        out.append(placed)
    return out


@torch.no_grad()
def patch_patterns(
    engine: Engine, recipient: Run, donor: Run, columns: Columns, heads: HeadSet | None = None
) -> dict[Head, Score]:
    """Score the recipient's action with the pattern of one head after another (None: of all) taken from the donor.

    Both runs kept `pattern_names(model)`. A head whose pattern equals the donor's bit for bit is not run: it has the
    recipient's own score.

    Raises:
        InputError: as `moved_patterns`; the actions differ, the recipient is not clean, a head does not exist.
    """
    model = engine.model
    model.require_eval_mode()
    require_pair(recipient, donor)
    chosen = (all_heads(model) if heads is None else heads).check(model.n_layers, model.n_heads)
    theirs, own = (
        moved_patterns(model, recipient, donor, columns),
        by_layer(recipient, model, "attn.hook_pattern"),
    )
    changed = [h for h in chosen if not torch.equal(theirs[h.layer][h.head], own[h.layer][h.head])]
    scores = {head: recipient.score for head in chosen}
    if engine.slow:
        require_causal(model, ["pattern"])
        found = [_slowly(engine, recipient, HeadSet([head]), theirs) for head in changed]
    else:
        values = [_values(model, recipient, layer) for layer in range(model.n_layers)]
        edits = []
        for head in changed:
            z = theirs[head.layer][head.head] @ values[head.layer][:, kv_head_of(model, head)]
            edits.append(Edit("z", head.layer, head.head, "candidate", z))
        found = score_edits(engine, recipient, edits)
    scores.update(zip(changed, found, strict=True))
    return scores


@torch.no_grad()
def patch_pattern_sets(
    engine: Engine, recipient: Run, donor: Run, columns: Columns, sets: Mapping[str, HeadSet]
) -> dict[str, Score]:
    """Score the recipient's action with the patterns of all heads of a set taken from the donor together, set by set.

    Values are the recipient's under the patch. Arguments and errors as `patch_patterns`; InputError too
    where a change of the pattern moves no logit of the model.
    """
    model = engine.model
    model.require_eval_mode()
    require_pair(recipient, donor)
    require_causal(model, ["pattern"])
    theirs = moved_patterns(model, recipient, donor, columns)
    run = _slowly if engine.slow else _packed
    return {
        name: run(engine, recipient, heads.check(model.n_layers, model.n_heads), theirs)
        for name, heads in sets.items()
    }


def _values(model: Model, run: Run, layer: int) -> Float[Tensor, "seq kv_head d_head"]:
    """Values at every position of the sequence: those of the prefix cache, then those of the action positions."""
    before = einops.rearrange(run.prefix_cache.values[layer], "1 kv_head pos d_head -> pos kv_head d_head")
    return torch.cat([before, by_layer(run, model, "attn.hook_v")[layer]])


def _packed(engine: Engine, recipient: Run, heads: HeadSet, patterns: Sequence[Tensor]) -> Score:
    """The candidate nodes over the recipient's prefix cache, whose columns are the sequence's positions in order."""
    model, query, prefix_cache = engine.model, recipient.query, recipient.prefix_cache
    resid_pre = by_layer(recipient, model, "hook_resid_pre")
    cache = RowCache(prefix_cache.keys, prefix_cache.values)
    arguments = block_arguments(model, copies(model, query, 1), cache)
    patched = heads.per_layer()
    first = min(patched)
    row = resid_pre[first][None]
    for layer in range(first, model.n_layers):
        hooks = [_replace(layer, patched[layer], slice(None), patterns)] if layer in patched else []
        with hooked(model, hooks, fires=1):
            row = run_block(model, layer, row, arguments[layer])
    engine.forwards.ran += 1
    [score] = packed.read_scores(model, row, [range(len(query.action))], [query.action])
    return score


def _slowly(engine: Engine, recipient: Run, heads: HeadSet, patterns: Sequence[Tensor]) -> Score:
    """One full forward in which the pattern of these heads is replaced after the softmax."""
    rows = slice(recipient.query.candidate.start, None)
    hooks = [_replace(layer, those, rows, patterns) for layer, those in heads.per_layer().items()]
    with hooked(engine.model, hooks, fires=1):
        [score] = reference.score(engine.model, [recipient.query])
    engine.forwards.ran += 1
    return score


def _replace(
    layer: int, heads: Sequence[int], rows: slice, patterns: Sequence[Tensor]
) -> tuple[str, HookFunction]:
    """A hook that gives these query heads another pattern in these rows."""
    index = list(heads)
    return overwrite(hook_name("pattern", layer), (0, index, rows), patterns[layer][index])
