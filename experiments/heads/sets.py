"""The sets of heads that an ablation study takes out: none, the selected ones, and the controls of each.

Controls by kind: `experiments.heads.control_sets`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from experiments.heads.control_sets import KindsOptions, MatchedOptions, NamedSet, control_sets
from experiments.heads.reference_sets import ReferenceSet
from experiments.heads.spec import choose_heads
from experiments.run.session import Session
from experiments.run.study import Flag, positive, whole_numbers
from mech.errors import InputError
from mech.heads import HeadSet


@dataclass(frozen=True, kw_only=True)
class SetsOptions(KindsOptions, MatchedOptions):
    """Which sets of heads are taken out, and how many controls each has."""

    heads: Annotated[str, Flag("top:K by score, heads by name, a head list, not:… or random:…")] = "top:16"
    k: Annotated[
        tuple[int, ...] | None,
        Flag("with top:K, the sizes of a dose curve in its place: 4,8,16,32", whole_numbers),
    ] = None
    controls: Annotated[
        int, Flag("control sets of each drawn kind for each size; 20 for a p of 0.05", positive)
    ] = 20


def selected_sets(session: Session, args: SetsOptions) -> list[tuple[str, HeadSet]]:
    """Label → heads, of --heads and --k.

    Raises:
        InputError: a malformed set, a head the model lacks, or --k without top:.
    """
    if args.k and not args.heads.startswith("top:"):
        raise InputError("--k needs a ranking: write --heads top:K, not heads by name.")
    if args.k:
        _, _, listed = args.heads.partition("@")
        specs = {f"top{k}": f"top:{k}@{listed}" if listed else f"top:{k}" for k in args.k}
    else:
        specs = {args.heads.replace(":", "") if args.heads.startswith("top:") else "named": args.heads}
    model = session.model
    return [
        (label, choose_heads(spec, model, args, session.rng_for).check(model.n_layers, model.n_heads))
        for label, spec in specs.items()
    ]


def head_sets(
    session: Session,
    args: SetsOptions,
    selected: Sequence[tuple[str, HeadSet]],
    reference: ReferenceSet | None,
) -> list[NamedSet]:
    """No heads; then each selected set with its controls.

    Raises:
        InputError: as `control_sets`.
    """
    sets = [NamedSet("none", "none", HeadSet(()))]
    for label, heads in selected:
        controls = control_sets(session, args, label, heads, args.control_kinds, args.controls, reference)
        sets += [replace(one, k=len(heads)) for one in (NamedSet(label, "selected", heads), *controls)]
    return sets


def about_sets(sets: Sequence[NamedSet]) -> dict[str, Any]:
    """What a run records of its sets."""
    return {
        "sets": {one.label: str(one.heads) for one in sets},
        "displaced": {one.label: one.displaced for one in sets if one.displaced},
        "ratio": {one.label: one.ratio for one in sets if one.ratio is not None},
        "not_reached": [one.label for one in sets if not one.reached],
    }


def notes_of(sets: Sequence[NamedSet], kinds: Collection[str]) -> list[str]:
    """What a report says of controls that are not there, or not what their kind promises."""
    notes = []
    for label in [one.label for one in sets if one.kind == "selected"]:
        own = {one.kind for one in sets if one.label.startswith(f"{label}/")}
        notes += [f"{label} has no '{kind}' control: {_WHY[kind]}" for kind in kinds if kind not in own]
    short = [one.label for one in sets if not one.reached]
    if short:
        notes.append(
            f"{len(short)} damage controls cost less than their selected set even with every other head: "
            + ", ".join(short)
        )
    return notes


_WHY = {
    "norm": "no other heads score low enough",
    "damage": "taking it out costs the reference items nothing",
}
