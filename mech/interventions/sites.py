"""What a model has at each site: how many heads, how wide, and which changes would be lost there.

Grouped-query attention: query head h reads key/value head h // (n_heads / n_kv_heads), heads of one group are
neighbours.
"""

from __future__ import annotations

from mech.errors import InputError
from mech.heads import Head
from mech.interventions.edits import HEAD_SITES, Edit, Knockout, Site
from mech.models.model import Model

KV_SITES: tuple[Site, ...] = ("k", "v")


def kv_head_of(model: Model, head: Head) -> int:
    """The key/value head that a query head reads: the `head` of an edit of `k` or `v` in its layer.

    Raises:
        InputError: the query head does not exist.
    """
    if not 0 <= head.head < model.n_heads:
        raise InputError(f"{head} does not exist: the model has heads 0-{model.n_heads - 1} a layer.")
    return head.head // (model.n_heads // model.n_kv_heads)


def require_fit(model: Model, edit: Edit | Knockout) -> None:
    """Raise InputError for a change that this model cannot carry out as it is written.

    A head beyond the last would change nothing and read as "no effect"; so would a positive factor on queries or keys
    that are normalised per head afterwards, which undoes it.
    """
    if isinstance(edit, Knockout):
        _require_heads(edit.layer, edit.heads[-1], model.n_heads, "")
        return
    if edit.head is not None:
        if edit.site in KV_SITES:
            _require_heads(edit.layer, edit.head, model.n_kv_heads, "key/value ")
        else:
            _require_heads(edit.layer, edit.head, model.n_heads, "")
    width = model.d_head if edit.site in HEAD_SITES else model.d_model
    if edit.value is not None and edit.value.shape[-1] != width:
        raise InputError(
            f"A value for {edit.hook_name} must be {width} wide, this one is {edit.value.shape[-1]}."
        )
    if edit.value is None and edit.alpha > 0 and edit.alpha != 1 and _is_normalised(model, edit):
        raise InputError(
            f"{edit.hook_name} is normalised after the hook, which undoes a factor of {edit.alpha:g}: give a value."
        )


def _require_heads(layer: int, head: int, count: int, kind: str) -> None:
    if not 0 <= head < count:
        raise InputError(f"L{layer}H{head} does not exist: the model has {kind}heads 0-{count - 1} a layer.")


def _is_normalised(model: Model, edit: Edit) -> bool:
    """The site is q or k and its model norms each head's vector by itself (a norm across heads undoes no factor)."""
    if edit.site not in ("q", "k") or edit.layer >= model.n_layers:
        return False
    norm = model.bridge.blocks[edit.layer].attn.submodules.get(f"{edit.site}_norm")
    return norm is not None and norm.weight.shape[-1] == model.d_head
