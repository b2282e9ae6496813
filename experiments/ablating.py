"""Heads taken out of every run of a study: what the options say, as an intervention with what a run records of it.

    mean        z ← its mean over all positions of the `pre` contexts of items of other tasks (--reference-items)
    resample    z ← what it was at one drawn position of one drawn context out of those: one draw for all heads
    zero        z ← 0
    scale       z ← alpha · z

At all positions the shared prefix is recomputed under the ablation; at the candidate positions alone it is not.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.find_heads import ALL_SCORES
from experiments.head_choice import choose_heads
from experiments.item_pools import read_pool
from experiments.options import Option, positive
from experiments.seeds import py_stream
from experiments.session import Session
from mech.changes import stacked
from mech.heads import HeadSet
from mech.interventions import NOTHING, Intervention, replace_heads, scale_heads
from mech.means import mean_z
from mech.queries import Query
from probes.items import Item
from probes.scoring import asks

METHODS = ("mean", "zero", "resample", "scale")
ABLATE = Option("ablate", str, "none", "heads to take out: none, top:16, names, a head list, not:…, random:…")
HOW = Option("how", str, "mean", "what takes the place of their z", METHODS)
WHERE = Option("where", str, "all", "at all positions, or at those that predict a×", ("all", "candidate"))
ALPHA = Option("alpha", float, 0.5, "with --how scale: the factor on z")
BY = Option("by", str, "prefix_matching", "the score that top: ranks by", ALL_SCORES)
REFERENCE = Option("reference-items", positive, 16, "items whose contexts the mean is taken over")
ABLATING: Sequence[Option] = (ABLATE, HOW, WHERE, ALPHA, BY, REFERENCE)


@dataclass(frozen=True, eq=False)
class Replacement:
    """What z of an ablated head becomes: `z` [layer, head, d_head] (None where it is scaled) and where that is from."""

    z: torch.Tensor | None
    about: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""

    def intervention(self, heads: HeadSet | None, args: argparse.Namespace) -> Intervention:
        """These heads taken out where `args.where` says."""
        if heads is None:
            return NOTHING
        if self.z is not None:
            return replace_heads(heads, self.z, args.where)
        return scale_heads(heads, args.alpha if args.how == "scale" else 0.0, args.where)


@dataclass(frozen=True, eq=False)
class Ablation:
    """The intervention of a study, what a run records of it, and what of it decides rows (see `open_run`)."""

    intervention: Intervention = NOTHING
    about: Mapping[str, Any] = field(default_factory=dict)
    derived: Mapping[str, Any] = field(default_factory=dict)


def ablation(session: Session, args: argparse.Namespace) -> Ablation:
    """What --ablate, --how, --where and --alpha ask for.

    Raises:
        InputError: the heads cannot be told or do not exist.
    """
    if args.ablate == "none":
        return Ablation()
    heads = choose_heads(args.ablate, session.model, args, session.rng_for)
    with_what = replacement(session, args)
    about = {"ablated": {"heads": str(heads), "sha256": heads.sha256, "reference": dict(with_what.about)}}
    derived = {"ablated_sha256": heads.sha256, "replacement_sha256": with_what.sha256}
    return Ablation(with_what.intervention(heads, args), about, derived)


def replacement(session: Session, args: argparse.Namespace) -> Replacement:
    """The values that `args.how` puts in the place of z, over contexts of items of other tasks and their environments.

    Where no other task is left, all items are taken.
    """
    if args.how in ("zero", "scale"):
        return Replacement(None)
    chosen, prompts, rng = reference_prompts(session, args)
    about: dict[str, Any] = {"items": [item.item_id for item in chosen]}
    if args.how == "mean":
        mean = mean_z(session.engine, prompts)
        return Replacement(
            mean.z, {**about, "positions": mean.n_positions, "sha256": mean.sha256}, mean.sha256
        )
    which = rng.randrange(len(prompts))
    at = rng.randrange(len(prompts[which]) - 1)
    sha256 = hashlib.sha256(repr(prompts[which][: at + 1]).encode()).hexdigest()
    drawn = {"item": chosen[which].item_id, "position": at, "sha256": sha256}
    return Replacement(_z_at(session, prompts[which], at), {**about, **drawn}, sha256)


def reference_prompts(
    session: Session, args: argparse.Namespace
) -> tuple[list[Item], list[tuple[int, ...]], random.Random]:
    """The items of the reference set, their `pre` contexts as token ids, and the stream that drew them, further on."""
    measured, envs = {item.task_id for item in session.items}, {item.env for item in session.items}
    pool = [item for item in read_pool(args) if not envs or item.env in envs]  # rollouts measure no items
    others = [item for item in pool if item.task_id not in measured] or pool
    rng = py_stream(args.seed, "mean reference")
    chosen = rng.sample(others, min(args.reference_items, len(others)))
    prompts = [
        asks(session.model, item, ["pre"], session.wording, ["failed"])[0].query.prompt for item in chosen
    ]
    return chosen, prompts, rng


def _z_at(session: Session, prompt: tuple[int, ...], at: int) -> torch.Tensor:
    """Z of every head at one position of a context, [layer, head, d_head]."""
    model = session.model
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    run = session.engine.run(Query(prompt[: at + 1], prompt[at + 1 : at + 2]), names)
    return stacked(run, model, "attn.hook_z")[:, 0]
