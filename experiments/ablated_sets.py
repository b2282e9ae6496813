"""The sets of heads that an ablation study takes out: none, the selected ones, and the controls of each.

random      as many heads in each layer, drawn at random, none of them selected (`mech.controls`)
strength    of about the same output norm and of low prefix-matching scores (`mech.strength`)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.ablating import reference_set
from experiments.find_heads import ranking
from experiments.head_choice import choose_heads
from experiments.options import Option, not_negative, positive, whole_numbers
from experiments.session import Session
from mech.controls import distinct_controls
from mech.errors import InputError
from mech.head_norms import head_norms
from mech.heads import HeadSet
from mech.strength import LOW_IN, StrengthControl, low_heads, strength_matched

HEADS = Option("heads", str, "top:16", "top:K by score, heads by name, a head list, not:… or random:…")
K = Option("k", whole_numbers, None, "with top:K, the sizes of a dose curve in its place: 4,8,16,32")
CONTROLS = Option(
    "controls", positive, 5, "random layer-matched control sets for each size; 20 for a p of 0.05"
)
STRENGTH = Option(
    "strength-controls",
    not_negative,
    0,
    "control sets of heads that write as much and score low in prefix matching",
)
TRIES = 200  # draws in which the strength controls asked for must turn up


@dataclass(frozen=True)
class Ablated:
    """One set of heads to take out.

    Attributes:
        label: the selected set's name, a control's with /DRAW behind it.
        kind: none, selected, random or strength.
        heads: which; None for the whole model.
        displaced: heads that had to come from another layer than the one they stand for.
        ratio: the set's output norm over that of the heads it controls, of strength controls alone.
    """

    label: str
    kind: str
    heads: HeadSet | None
    displaced: int = 0
    ratio: float | None = None

    @property
    def k(self) -> int:
        """How many heads."""
        return len(self.heads) if self.heads is not None else 0


def head_sets(session: Session, args: argparse.Namespace) -> list[Ablated]:
    """No heads; then each selected set with its controls.

    Raises:
        InputError: a malformed set, a head the model lacks, --k without top:, or no heads left for a control.
    """
    model = session.model
    selected = [
        (label, heads.check(model.n_layers, model.n_heads)) for label, heads in _selected(session, args)
    ]
    by_strength = list(_by_strength(session, args, selected)) if args.strength_controls else []
    sets = [Ablated("none", "none", None)]
    for label, heads in selected:
        sets.append(Ablated(label, "selected", heads))
        drawn = distinct_controls(heads, model.n_layers, model.n_heads, args.controls, session.rng_for)
        sets += [
            Ablated(f"{label}/random{index}", "random", control.heads, control.displaced)
            for index, control in enumerate(drawn)
        ]
        sets += [one for one in by_strength if one.label.startswith(f"{label}/")]
    return sets


def about_sets(sets: Sequence[Ablated]) -> dict[str, Any]:
    """What a run records of its sets."""
    return {
        "sets": {one.label: str(one.heads or "") for one in sets},
        "displaced": {one.label: one.displaced for one in sets if one.displaced},
        "norm_ratio": {one.label: one.ratio for one in sets if one.ratio is not None},
    }


def _by_strength(
    session: Session, args: argparse.Namespace, selected: Sequence[tuple[str, HeadSet]]
) -> Iterator[Ablated]:
    """The strength controls of every selected set, no two alike; norms are over the contexts of the mean reference."""
    scores, _ = ranking(session.model, args.out, args.seed, args.by)
    eligible = low_heads(scores, tuple(dict.fromkeys((*LOW_IN, args.by))))
    norms = head_norms(session.engine, reference_set(session, args).prompts)
    for label, heads in selected:
        drawn: dict[HeadSet, StrengthControl] = {}
        for index in range(TRIES):
            rng = session.rng_for(f"strength/{heads.sha256}/{index}")
            control = strength_matched(heads, eligible, norms, rng)
            drawn.setdefault(control.heads, control)
            if len(drawn) == args.strength_controls:
                break
        else:
            raise InputError(
                f"Of the {len(heads)} heads of {label} there are no more than {len(drawn)} strength controls: "
                f"set --strength-controls to {len(drawn)} at most."
            )
        for index, control in enumerate(drawn.values()):
            name = f"{label}/strength{index}"
            yield Ablated(name, "strength", control.heads, control.displaced, control.ratio)


def _selected(session: Session, args: argparse.Namespace) -> list[tuple[str, HeadSet]]:
    if args.k and not args.heads.startswith("top:"):
        raise InputError("--k needs a ranking: write --heads top:K, not heads by name.")
    if args.k:
        _, _, listed = args.heads.partition("@")
        specs = {f"top{k}": f"top:{k}@{listed}" if listed else f"top:{k}" for k in args.k}
    else:
        specs = {args.heads.replace(":", "") if args.heads.startswith("top:") else "named": args.heads}
    return [
        (label, choose_heads(spec, session.model, args, session.rng_for)) for label, spec in specs.items()
    ]
