"""The reference items (--reference-items): items of other tasks than every measured one, with the contexts they give.

They are drawn from the pool that the measured items are of, or from a file. Means are taken over their contexts,
resampled values come from their decision points, constants and damage are measured on them. At least MIN_REFERENCE
different contexts (rendered `pre` prompts, not items) are needed; a smaller number that is asked for by name is
taken as it is, and said. Too few others is an error, never a reason to take the measured ones.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from experiments.run.item_pools import read_pool
from experiments.run.seeds import py_stream
from experiments.run.session import Session
from experiments.run.study import (
    REFERENCE_SIZE,
    Flag,
    PoolOptions,
    ReferenceFile,
    existing,
    reference_items,
)
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.patching.means import MeanZ, mean_z
from probes.items.item import Item, item_line, load_items
from probes.prompts.unrelated import with_unrelated
from probes.scoring.score import build_queries

MIN_REFERENCE = (
    30  # different contexts; fewer (unless fewer are asked for) say more of those than of contexts
)


@dataclass(frozen=True, kw_only=True)
class ReferenceItemsOptions:
    """How many reference items, and of which file."""

    reference_items: Annotated[
        int | ReferenceFile,
        Flag(
            "N, FILE or N@FILE: items of other tasks (means, donors, constants are from them), and a file to draw "
            "them from",
            reference_items,
        ),
    ] = REFERENCE_SIZE


@dataclass(frozen=True, kw_only=True)
class ReferenceOptions(ReferenceItemsOptions, PoolOptions):
    """Where reference items come from."""


_Prompt = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ReferenceSet:
    """Items of other tasks than the measured ones.

    `prompts`: their `pre` contexts as ids; `rng`: the stream that drew them, further on; `others`: all the items that
    they were drawn from.
    """

    items: list[Item]
    prompts: list[_Prompt]
    rng: random.Random
    file: str | None = None
    others: Sequence[Item] = ()
    _means: dict[int, MeanZ] = field(default_factory=dict)

    @cached_property
    def donors(self) -> list[Item]:
        """The items with the calls that `probes.prompts.unrelated` takes from a pool, here of tasks not measured."""
        return with_unrelated(self.items, [*self.items, *self.others])

    def mean_z(self, engine: Engine) -> MeanZ:
        """Mean z over all positions of the contexts; taken once for a model."""
        key = id(engine.model)
        if key not in self._means:
            self._means[key] = mean_z(engine, self.prompts)
        return self._means[key]

    @property
    def n_contexts(self) -> int:
        """How many different contexts the items have."""
        return len(set(self.prompts))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says of the set: that it is smaller than it should be, if it is."""
        if self.n_contexts >= MIN_REFERENCE:
            return ()
        return (
            f"the reference set has {self.n_contexts} different contexts, as was asked for: fewer than "
            f"{MIN_REFERENCE} say more of those contexts than of contexts",
        )

    @property
    def about(self) -> dict[str, Any]:
        """What a run records of the set: ids, tasks, the hash of the items' lines, and of the file that was named."""
        lines = "\n".join(item_line(item) for item in self.items)
        found = {
            "items": [item.item_id for item in self.items],
            "n": len(self.items),
            "n_contexts": self.n_contexts,
            "tasks": sorted({item.task_id for item in self.items}),
            "items_sha256": hashlib.sha256(lines.encode()).hexdigest(),
            **({"notes": list(self.notes)} if self.notes else {}),
        }
        return found if self.file is None else {**found, "file": self.file}


def reference_set(session: Session, args: ReferenceOptions, tasks: Collection[str] = ()) -> ReferenceSet:
    """The reference items of `args.reference_items`, of the measured items' environments and of other tasks.

    In item files two tasks may have one text, so there an item with the context of a measured one is left out as well.
    Of N items of MIN_REFERENCE or more each has a context of its own; fewer are drawn item by item.

    Args:
        session: whose items are measured (none, in a rollout).
        args: `reference_items`, `seed`, and the options that the pool is read with.
        tasks: further tasks that the model is run on.

    Raises:
        InputError: fewer than `MIN_REFERENCE` contexts (or than were asked for, if that is less) are left.
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
    same_env = [item for item in pool if not envs or item.env in envs]
    others = [item for item in same_env if item.task_id not in measured]
    if file is not None or args.items:
        contexts = {_context(item) for item in session.items}
        others = [item for item in others if _context(item) not in contexts]
    least = min(n, MIN_REFERENCE)
    available = len({_context(item) for item in others}) if n >= MIN_REFERENCE else len(others)
    if available < least:
        kind = f" and of the environment {', '.join(sorted(envs))}" if envs else ""
        what = "different contexts" if n >= MIN_REFERENCE else "items"
        raise InputError(
            f"{where} has {available} {what} of other tasks than the measured ones{kind}, and a reference takes "
            f"{least} at least: name a file of other items with --reference-items FILE, or measure fewer"
            f"{_at_most(same_env, len(measured), least)}."
        )
    rng = py_stream(args.seed, "mean reference")
    chosen = rng.sample(others, min(n, len(others)))
    prompts = _prompts(session, chosen)
    if n >= MIN_REFERENCE:
        chosen, prompts = _distinct(session, chosen, prompts, others, n, rng)
    return ReferenceSet(chosen, prompts, rng, None if file is None else file.name, others)


def _distinct(
    session: Session,
    chosen: Sequence[Item],
    prompts: Sequence[_Prompt],
    others: Sequence[Item],
    n: int,
    rng: random.Random,
) -> tuple[list[Item], list[_Prompt]]:
    """The first item of every context, and others drawn in the place of the rest, up to n contexts."""
    found: dict[_Prompt, Item] = {}
    for item, prompt in zip(chosen, prompts, strict=True):
        found.setdefault(prompt, item)
    taken = {item.item_id for item in chosen}
    left = [item for item in others if item.item_id not in taken]
    rng.shuffle(left)
    seen = {_context(item) for item in chosen}
    for item in left:
        if len(found) >= n:
            break
        if _context(item) not in seen:
            seen.add(_context(item))
            found.setdefault(_prompts(session, [item])[0], item)
    if len(found) < MIN_REFERENCE:
        raise InputError(
            f"The reference items have {len(found)} different prompts in this model's template, and a reference takes "
            f"{MIN_REFERENCE} at least: name a file of other items with --reference-items FILE."
        )
    return list(found.values()), list(found)


def _at_most(pool: Sequence[Item], n_measured: int, least: int) -> str:
    """How many tasks of the pool may be measured so that `least` contexts are left whichever they are; else nothing."""
    contexts: dict[str, set[object]] = defaultdict(set)
    for item in pool:
        contexts[item.task_id].add(_context(item))
    sizes = sorted(map(len, contexts.values()))
    left = 0
    for count, size in enumerate(sizes, 1):
        left += size
        if left >= least:
            return f" ({len(sizes) - count} of its {len(sizes)} tasks at most; {n_measured} are measured)"
    return ""


def _prompts(session: Session, items: Sequence[Item]) -> list[_Prompt]:
    return [
        build_queries(session.model, item, ["pre"], session.wording, ["failed"])[0].query.prompt
        for item in items
    ]


def _context(item: Item) -> tuple[object, ...]:
    """All that a `pre` prompt is written from."""
    return item.system_prompt, item.goal, item.prefix_actions, item.prefix_observations
