"""Changes of a head's output to the residual stream, with the scale of every later norm frozen.

    head h of layer l:    Δ(h) = N_l[(z' − z)[h] W_O[h]]      N_l: the norm after the attention (Gemma 3), else nothing
    a frozen norm:        N[Δ] = γ · (Δ − mean Δ) / s         s: the scale it had in the recipient's run
                          N[Δ] = γ · Δ / s                    (RMS: no mean)

A norm's centring is linear, so it applies to the change; only its scale depends on all components together, so it is
frozen. Then changes add up: heads, MLPs and embedding sum to the difference of two residual streams. `require_additive`
checks that a model's blocks do add up like this, and refuses the model otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import einops
import torch
from jaxtyping import Float
from torch import Tensor

from mech.checks.checks import SUM_LIMITS
from mech.errors import InputError
from mech.interventions.hooks import HookFunction, hooked
from mech.models.model import Model


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm whose scale is held at what it was for one input.

    Attributes:
        out: the norm of that input.
        scale: what that input was divided by.
        gain: the norm's weight, the offset of Gemma's included.
        centred: the mean is taken off (LayerNorm).
    """

    out: Float[Tensor, "pos d_model"]
    scale: Float[Tensor, "pos 1"]
    gain: Float[Tensor, " d_model"]
    centred: bool

    def change(self, delta: Float[Tensor, "*copies pos d_model"]) -> Float[Tensor, "*copies pos d_model"]:
        """The change of the norm's output for a change of its input; linear, exactly 0 for 0."""
        moved = delta - delta.mean(-1, keepdim=True) if self.centred else delta
        return moved / self.scale * self.gain


@torch.no_grad()
def final_norm(model: Model, x: Float[Tensor, "pos d_model"]) -> FrozenNorm:
    """The final norm, its scale frozen at that of these residual streams."""
    return _freeze(model, "ln_final", model.bridge.ln_final, x)


@torch.no_grad()
def attention_norm(model: Model, layer: int, z: Float[Tensor, "pos head d_head"]) -> FrozenNorm | None:
    """The norm between a layer's attention and the residual stream, frozen at these z; None where there is none."""
    block = model.bridge.blocks[layer]
    if "ln1_post" not in block.submodules:
        return None
    return _freeze(model, f"blocks.{layer}.ln1_post", block.ln1_post, _attention(model, layer, z))


@torch.no_grad()
def attention_output(
    model: Model, layer: int, z: Float[Tensor, "pos head d_head"]
) -> Float[Tensor, "pos d_model"]:
    """A layer's attention output to the residual stream: all heads, the bias, and the norm where there is one."""
    norm = attention_norm(model, layer, z)
    return _attention(model, layer, z) if norm is None else norm.out


@torch.no_grad()
def head_outputs(
    model: Model,
    layer: int,
    heads: Sequence[int],
    z: Float[Tensor, "pos head d_head"],
    changed: Float[Tensor, "pos head d_head"],
) -> Float[Tensor, "copies pos d_model"]:
    """The change of the residual stream when z of one of these heads becomes that of `changed`, for each head."""
    index = torch.as_tensor(list(heads), dtype=torch.long, device=z.device)
    delta = einops.einsum(
        (changed - z)[:, index],
        model.w_o(layer)[index],
        "pos copies d_head, copies d_head d_model -> copies pos d_model",
    )
    norm = attention_norm(model, layer, z)
    return delta if norm is None else norm.change(delta)


@torch.no_grad()
def require_additive(
    model: Model, resid: Sequence[Tensor], z: Float[Tensor, "layer pos head d_head"], mlp: Sequence[Tensor]
) -> None:
    """Raise InputError unless each block adds the outputs of its heads and its MLP, and nothing else.

    All from one run: `resid` before each block and after the last, n_layers + 1 times [pos, d_model]; `mlp`, the MLP
    output of each layer, [pos, d_model].
    """
    for layer in range(model.n_layers):
        summed = resid[layer] + attention_output(model, layer, z[layer]) + mlp[layer]
        gap = float((summed - resid[layer + 1]).abs().max() / resid[layer + 1].abs().max())
        if not gap <= _limit(model):
            raise InputError(
                f"Layer {layer} of {model.identity.architecture} adds to the residual stream more than its heads, "
                f"biases and MLP (off by {gap:.2g} of its size): direct effects are not exact here."
            )


def hold_scale(model: Model, name: str, scale: Tensor, rows: Tensor) -> list[tuple[str, HookFunction]]:
    """Hooks that freeze a norm's scale at these positions in a full forward: the slow path of `FrozenNorm`.

    The norm runs, and its output without the bias is multiplied by its own scale over the frozen one.
    `name` is such as "ln_final" or "blocks.3.ln1_post"; `scale` [pos, 1] divides its input.
    """
    live: dict[str, Tensor] = {}
    norm: Any = model.bridge.get_submodule(name)
    bias = getattr(norm.original_component, "bias", None)
    offset = 0.0 if bias is None else bias.detach()

    def read(value: Tensor, hook: Any) -> None:
        live["scale"] = value.detach()

    def rescale(output: Tensor, hook: Any) -> Tensor:
        edited = output.clone()
        ratio = (live["scale"][0, rows] / scale).to(output)
        edited[0, rows] = (output[0, rows] - offset) * ratio + offset
        return edited

    return [(f"{name}.hook_scale", read), (f"{name}.hook_out", rescale)]


def _freeze(model: Model, name: str, norm: Any, x: Tensor) -> FrozenNorm:
    kept: dict[str, Tensor] = {}

    def keep(scale: Tensor, hook: Any) -> None:
        kept["scale"] = scale.detach()

    with hooked(model, [(f"{name}.hook_scale", keep)], fires=1):
        out = norm(x[None])[0]
    stock = norm.original_component
    weight, bias = getattr(stock, "weight", None), getattr(stock, "bias", None)
    gain = torch.ones_like(x[0]) if weight is None else weight.detach()
    frozen = FrozenNorm(
        out,
        kept["scale"][0].to(x),
        gain + 1 if norm.uses_weight_offset else gain,
        not norm.uses_rms_norm,
    )
    affine = frozen.change(x) + (0.0 if bias is None else bias.detach())
    gap = float((affine - out).abs().max() / out.abs().max())
    if not gap <= _limit(model):
        raise InputError(
            f"The norm '{name}' of {model.identity.architecture} is not weight times input over scale "
            f"(off by {gap:.2g} of its size): its scale cannot be frozen."
        )
    return frozen


def _attention(model: Model, layer: int, z: Tensor) -> Tensor:
    """The attention's own output: the sum over heads of z W_O, and the bias."""
    out = einops.einsum(z, model.w_o(layer), "pos head d_head, head d_head d_model -> pos d_model")
    bias = model.bridge.blocks[layer].attn.b_O
    return out if bias is None else out + bias.detach()


def _limit(model: Model) -> float:
    """Rounding at most: transformers takes norms in float32 whatever the dtype."""
    return max(SUM_LIMITS[model.dtype], SUM_LIMITS[torch.float32])
