"""Heads taken out of every run of a study: what the options say, as an intervention with what a run records of it.

    mean        z ← its mean over all positions of the `pre` contexts of the reference items
    resample    z ← what it was at one drawn position of one drawn context out of those: one draw for all heads
    zero        z ← 0
    scale       z ← alpha · z

At all positions the shared prefix is recomputed under the ablation; at the candidate positions alone it is not.

The reference items (--reference-items) are of other tasks than every measured one: drawn from the pool that the
measured items are of, or from a file. Too few others is an error, never a reason to take the measured ones.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.find_heads import ALL_SCORES
from experiments.head_choice import choose_heads
from experiments.item_pools import read_pool
from experiments.options import REFERENCE_SIZE, Option, ReferenceFile, existing, reference_items
from experiments.seeds import py_stream
from experiments.session import Session
from mech.changes import stacked
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions import NOTHING, Intervention, replace_heads, scale_heads
from mech.means import mean_z
from mech.queries import Query
from probes.items import Item, item_line, load_items
from probes.scoring import asks

METHODS = ("mean", "zero", "resample", "scale")
ABLATE = Option(
    "ablate",
    str,
    "none",
    "an ablation beside the whole model, repeatable: top:16, names, a head list, not:…, random:16; then @how=… @where=…",
    repeatable=True,
)
HOW = Option("how", str, "mean", "what takes the place of their z", METHODS)
WHERE = Option("where", str, "all", "at all positions, or at those that predict a×", ("all", "candidate"))
ALPHA = Option("alpha", float, 0.5, "with --how scale: the factor on z")
BY = Option("by", str, "prefix_matching", "the score that top: ranks by", ALL_SCORES)
REFERENCE = Option(
    "reference-items",
    reference_items,
    REFERENCE_SIZE,
    "N, FILE or N@FILE: items of other tasks whose contexts the mean is taken over, and a file to draw them from",
)
MIN_REFERENCE = 4  # items; fewer (unless fewer are asked for) say more of those items than of contexts
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


@dataclass(frozen=True, eq=False)
class ReferenceSet:
    """Items of other tasks; `prompts`: their `pre` contexts as ids; `rng`: the stream that drew them, further on."""

    items: list[Item]
    prompts: list[tuple[int, ...]]
    rng: random.Random
    file: str | None = None

    @property
    def about(self) -> dict[str, Any]:
        """What a run records of the set: ids, tasks, the hash of the items' lines, and of the file that was named."""
        lines = "\n".join(item_line(item) for item in self.items)
        found = {
            "items": [item.item_id for item in self.items],
            "n": len(self.items),
            "tasks": sorted({item.task_id for item in self.items}),
            "items_sha256": hashlib.sha256(lines.encode()).hexdigest(),
        }
        return found if self.file is None else {**found, "file": self.file}


def replacement(session: Session, args: argparse.Namespace, tasks: Collection[str] = ()) -> Replacement:
    """The values that `args.how` puts in the place of z; `tasks` as in `reference_set`.

    Raises:
        InputError: as `reference_set`.
    """
    if args.how in ("zero", "scale"):
        return Replacement(None)
    reference = reference_set(session, args, tasks)
    prompts, rng = reference.prompts, reference.rng
    if args.how == "mean":
        mean = mean_z(session.engine, prompts)
        about = {**reference.about, "positions": mean.n_positions, "sha256": mean.sha256}
        return Replacement(mean.z, about, mean.sha256)
    which = rng.randrange(len(prompts))
    at = rng.randrange(len(prompts[which]) - 1)
    sha256 = hashlib.sha256(repr(prompts[which][: at + 1]).encode()).hexdigest()
    drawn = {"item": reference.items[which].item_id, "position": at, "sha256": sha256}
    return Replacement(_z_at(session, prompts[which], at), {**reference.about, **drawn}, sha256)


def reference_set(session: Session, args: argparse.Namespace, tasks: Collection[str] = ()) -> ReferenceSet:
    """The reference items of `args.reference_items`, of the measured items' environments and of other tasks.

    In item files two tasks may have one text, so there an item with the context of a measured one is left out as well.

    Args:
        session: whose items are measured (none, in a rollout).
        args: `reference_items`, `seed`, and the options that the pool is read with.
        tasks: further tasks that the model is run on.

    Raises:
        InputError: fewer than `MIN_REFERENCE` items (or than were asked for, if that is less) are left.
    """
    wanted = args.reference_items
    file, n = (wanted.path, wanted.n) if isinstance(wanted, ReferenceFile) else (None, wanted)
    if file is None:
        pool, where = read_pool(args), f"The item file '{args.items}'" if args.items else "The pool"
    else:
        existing(file, "reference items")
        pool, where = load_items(file), f"The item file '{file}'"
    envs = {item.env for item in session.items}
    measured = {*tasks, *(item.task_id for item in session.items)}
    others = [
        item for item in pool if item.task_id not in measured and (not envs or item.env in envs)
    ]  # a rollout measures no items, and takes those of any environment
    if file is not None or args.items:
        contexts = {_context(item) for item in session.items}
        others = [item for item in others if _context(item) not in contexts]
    least = min(n, MIN_REFERENCE)
    if len(others) < least:
        kind = f" and of the environment {', '.join(sorted(envs))}" if envs else ""
        raise InputError(
            f"{where} has {len(others)} items of other tasks than the measured ones{kind}, and a reference takes "
            f"{least} at least: name a file of other items with --reference-items FILE, or measure fewer."
        )
    rng = py_stream(args.seed, "mean reference")
    chosen = rng.sample(others, min(n, len(others)))
    prompts = [
        asks(session.model, item, ["pre"], session.wording, ["failed"])[0].query.prompt for item in chosen
    ]
    return ReferenceSet(chosen, prompts, rng, None if file is None else file.name)


def _context(item: Item) -> tuple[object, ...]:
    """All that a `pre` prompt is written from."""
    return item.system_prompt, item.goal, item.prefix_actions, item.prefix_observations


def _z_at(session: Session, prompt: tuple[int, ...], at: int) -> torch.Tensor:
    """Z of every head at one position of a context, [layer, head, d_head]."""
    model = session.model
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    run = session.engine.run(Query(prompt[: at + 1], prompt[at + 1 : at + 2]), names)
    return stacked(run, model, "attn.hook_z")[:, 0]
