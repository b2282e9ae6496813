"""Attribution patching: the effect of patching a head or an MLP, estimated to first order from gradients.

    x(α) = x_recipient + α · (x_donor − x_recipient)                   x: z of a head, or a layer's MLP output
    estimate(x) = Σ_pos (x_donor − x_recipient) · ∂ logp(a) / ∂ x      at the action positions, nats

logp(a) is of all tokens of one action, or of those from one on; the estimate of a margin of two actions is the
difference of two estimates. It estimates logp(patched) − logp(recipient): the denoising effect of
`mech.patching.patch`, and minus the noising effect (`Attribution.signed`).

    steps = 1    the gradient at the recipient, α = 0: one backward pass for every head and MLP
                 (Nanda 2023, "Attribution patching"; Syed et al. 2023, arXiv:2310.10348)
    steps = m    the mean of the gradients at α = 1/2m, 3/2m, …, 1 − 1/2m: integrated gradients (Sundararajan et al.
                 2017, arXiv:1703.01365; for attribution patching: Hanna et al. 2024, arXiv:2403.17806)

Each layer has its own integration path: all chosen heads of one layer move along the line together (they do not feed
each other, so z is exactly on it), or its MLP output alone; lower layers are the recipient's, later ones respond. With
many steps the estimates of a layer's heads sum to their exact joint effect, and a head or MLP that moves alone gets its
exact effect (completeness). A path on which all layers move at once is cheaper (m copies in all), but ends at the joint
patch of every layer.

Cost, in copies of the action positions: 1 for steps = 1, else m a layer and site against n_heads + 1 a layer of an
exact sweep; a backward costs about as much as a forward. Where layers have few heads, integrating saves little.

Limit: a gradient is local and misses the effects of saturated attention and softmax (Kramár et al. 2024,
arXiv:2403.00745); copy heads saturate. `probes.effects.attribution` compares the estimates with the exact sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import einops
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.engine.sweep import by_layer, stacked
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import HOOKS, hook_name
from mech.models.model import Model
from mech.patching.gradients import (
    SITES,
    GradientSite,
    Shifted,
    clean_gradients,
    full_gradients,
    shifted_gradients,
)
from mech.patching.patch import all_heads, as_run, require_pair
from mech.results import Result, axes, head_map

GRADIENT_NODES = 128
"""Nodes in one packed row that is differentiated: all its activations stay in memory until the backward."""


@dataclass(frozen=True, repr=False)
class Attribution(Result):
    """Estimated change (nats) of the recipient's log p(a) for each head and MLP patched from the donor.

    Attributes:
        heads: head → estimate for its z.
        mlps: layer → estimate for its MLP output.
        steps: number of points of the line over which gradients were averaged.
    """

    heads: dict[Head, float]
    mlps: dict[int, float]
    steps: int

    @property
    def headline(self) -> str:
        """What was estimated."""
        how = "gradients at the recipient" if self.steps == 1 else f"gradients over {self.steps} steps"
        return f"Attribution patching ({how}): estimated change of log p of the action, nats"

    def to_dataframe(self) -> pd.DataFrame:
        """Columns site, layer, head (empty for MLPs) and effect, the estimate in nats."""
        rows = [("z", head.layer, head.head, value) for head, value in self.heads.items()]
        mlps = [("mlp_out", layer, None, value) for layer, value in self.mlps.items()]
        frame = pd.DataFrame([*rows, *mlps], columns=["site", "layer", "head", "effect"])
        return frame.astype({"layer": "Int64", "head": "Int64", "effect": float})

    def plot(self, ax: Any = None) -> Any:
        """A map of layers and heads where heads were attributed, else a bar for each layer's MLP; nats."""
        if not self.heads:
            ax = axes(ax)
            ax.bar(list(self.mlps), list(self.mlps.values()))
            ax.set_xlabel("layer")
            ax.set_ylabel("estimated effect (nats)")
            return ax
        return head_map(self.heads, "estimated effect (nats)", ax)

    def signed(self, sign: float) -> Attribution:
        """The estimates times the sign of a direction (`mech.patching.patch.sides`)."""
        return Attribution(
            {head: sign * value for head, value in self.heads.items()},
            {layer: sign * value for layer, value in self.mlps.items()},
            self.steps,
        )


def attribution_names(model: Model) -> list[str]:
    """The activations that both runs must have kept, those of `mech.patching.patch.sweep_names` among them."""
    return everything_names(model, "hook_resid_pre", *(HOOKS[site] for site in SITES))


def attribute(
    engine: Engine,
    recipient: Run | Query,
    donor: Run | Query,
    steps: int = 1,
    heads: HeadSet | None = None,
    sites: Sequence[str] = SITES,
    first: int = 0,
) -> Attribution:
    """Estimate the change of the recipient's log p(a) for every head's z and every MLP output taken from the donor.

    Args:
        engine: runs the model; with `engine.slow`, by plain full forwards instead of packed rows.
        recipient: a clean run that kept `attribution_names(model)` (without "mlp_out" among the sites,
            `hook_mlp_out` is not needed), or its query.
        donor: a run of the same action that kept them too, or its query.
        steps: 1 for the gradient at the recipient, more for integrated gradients.
        heads: which; None means all. With integrated gradients those of one layer move together.
        sites: "z", "mlp_out" or both.
        first: the first token of the action whose log-probability counts; 0 counts all.

    Returns:
        Estimates in nats; exactly 0.0 where donor and recipient have the same activation.

    Raises:
        InputError: steps < 1, an unknown site, the actions differ, the recipient is not clean, an activation was not
            kept, a head or the first token does not exist.
        FloatingPointError: a logit or a gradient is not finite.
    """
    model = engine.model
    model.require_eval_mode()
    recipient, donor = (as_run(engine, one, attribution_names(model)) for one in (recipient, donor))
    if steps < 1:
        raise InputError(f"Gradients are averaged over at least one step, not {steps}.")
    unknown = [site for site in sites if site not in SITES]
    if unknown:
        raise InputError(f"There is no attribution to '{unknown[0]}': choose from {', '.join(SITES)}.")
    require_pair(recipient, donor)
    if not 0 <= first < len(recipient.query.action):
        raise InputError(
            f"There is no token {first} of an action of {len(recipient.query.action)} to count from."
        )
    chosen = all_heads(model) if heads is None else heads
    chosen.check(model.n_layers, model.n_heads)
    differences = {
        site: _difference(model, recipient, donor, site, chosen) for site in SITES if site in sites
    }
    means = _at_recipient(engine, recipient, differences, first) if steps == 1 else {}
    if steps > 1:
        means = _along_the_line(engine, recipient, differences, steps, first)
    products = {site: means[site].double() * differences[site].double() for site in differences}
    by_head, by_layer = {}, {}
    if "z" in products:
        table = einops.reduce(
            products["z"], "layer pos (head d_head) -> layer head", "sum", head=model.n_heads
        )
        by_head = {head: float(table[head.layer, head.head]) for head in chosen}
    if "mlp_out" in products:
        sums = einops.reduce(products["mlp_out"], "layer pos d_model -> layer", "sum")
        by_layer = dict(enumerate(sums.tolist()))
    return Attribution(by_head, by_layer, steps)


def _difference(
    model: Model, recipient: Run, donor: Run, site: GradientSite, heads: HeadSet
) -> Float[Tensor, "layer pos width"]:
    """Donor minus recipient; zero for heads that are not chosen."""
    ours, theirs = (stacked(run, model, HOOKS[site]) for run in (recipient, donor))
    if site == "mlp_out":
        return theirs - ours
    asked = torch.zeros(model.n_layers, 1, model.n_heads, 1, dtype=torch.bool, device=model.device)
    for head in heads:
        asked[head.layer, 0, head.head] = True
    return torch.where(asked, theirs - ours, 0.0).flatten(2)


def _at_recipient(
    engine: Engine, recipient: Run, differences: dict[GradientSite, Tensor], first: int
) -> dict[GradientSite, Tensor]:
    """Gradients at the recipient, [layer, pos, width] each."""
    model, query = engine.model, recipient.query
    engine.forwards.ran += 1
    if not engine.slow:
        start = recipient.activation(hook_name("resid_pre", 0))
        return clean_gradients(model, query, recipient.prefix_cache, start, tuple(differences), first)
    still = [
        Shifted(site, layer, torch.zeros_like(difference[layer]))
        for site, difference in differences.items()
        for layer in range(model.n_layers)
    ]
    gradients = full_gradients(model, query, still, first)
    size = model.n_layers
    return {site: torch.stack(gradients[at * size : (at + 1) * size]) for at, site in enumerate(differences)}


def _along_the_line(
    engine: Engine, recipient: Run, differences: dict[GradientSite, Tensor], steps: int, first: int
) -> dict[GradientSite, Tensor]:
    """Mean gradients over the midpoints of `steps` equal parts of each layer's line, [layer, pos, width] each."""
    model, query = engine.model, recipient.query
    resid_pre = by_layer(recipient, model, "hook_resid_pre")
    runs = [
        Shifted(site, layer, (step + 0.5) / steps * difference[layer])
        for layer in range(model.n_layers)
        for site, difference in differences.items()
        if bool(difference[layer].any())  # a line without length has no effect, whatever its gradient
        for step in range(steps)
    ]
    means = {site: torch.zeros_like(difference) for site, difference in differences.items()}
    for group in [[run] for run in runs] if engine.slow else _groups(runs, len(query.action)):
        engine.forwards.ran += 1
        if engine.slow:
            found = full_gradients(model, query, group, first)
        else:
            found = shifted_gradients(model, query, recipient.prefix_cache, resid_pre, group, first)
        for run, gradient in zip(group, found, strict=True):
            means[run.site][run.layer] += gradient / steps
    return means


def _groups(runs: Sequence[Shifted], n: int) -> Iterator[Sequence[Shifted]]:
    """Runs in layer order, cut so that their copies (n nodes each) fit one row."""
    size = max(1, GRADIENT_NODES // n)
    for start in range(0, len(runs), size):
        yield runs[start : start + size]
