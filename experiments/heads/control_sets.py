"""The sets of heads that studies ablate, and their control sets: others, alike in what might explain an effect.

random           as many heads in each layer, drawn at random                             (`mech.head_scores.controls`)
norm             of about the same output norm, and of low prefix-matching scores         (`mech.head_scores.controls`)
damage           as many random heads as cost log p(reference action | pre) what the selected ones cost it, under mean
                 ablation at the action positions on the reference items               (`mech.head_scores.controls`)
previous_token   the best k heads by that score, selected ones left out
sink             the best k by attention to the first position, likewise
complement       all other heads

random, norm and damage are drawn, `count` sets of each; the others are one set each. Labels are SELECTED/KINDn, with n
from 0: `top16/damage3`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from experiments.heads.ranking import ranking
from experiments.heads.reference_sets import ReferenceOptions, ReferenceSet, reference_set
from experiments.heads.spec import RankedOptions, choose_heads
from experiments.run.session import Session, require_out
from experiments.run.study import Flag, positive, whole_numbers
from mech.engine.engine import Run
from mech.engine.sweep import score_interventions
from mech.errors import InputError
from mech.head_scores.controls import (
    LOW_IN,
    Control,
    damage_matched,
    distinct_controls,
    low_heads,
    strength_matched,
)
from mech.head_scores.induction import top_heads
from mech.head_scores.norms import head_norms
from mech.heads import HeadSet
from mech.interventions.intervention import replace_heads
from mech.models.model import Model
from mech.patching.patch import all_heads
from probes.scoring.score import run_decision_point
from probes.stats.bootstrap import RngFactory

DRAWN = ("random", "norm", "damage")
FIXED = ("previous_token", "sink", "complement")
KINDS = (*DRAWN, *FIXED)
SCORE_OF = {"previous_token": "previous_token", "sink": "attention_sink"}
DAMAGE_ITEMS = 8
"""Reference items that damage is measured on: as many questions a set, side by side."""
TRIES = 200  # draws in which the norm-matched controls asked for must turn up


def control_kinds(text: str) -> tuple[str, ...]:
    """Read `random,damage`, `all` or `none`; each name once, in the order of KINDS.

    Raises:
        ValueError: an unknown kind.
    """
    names = {part.strip() for part in text.split(",") if part.strip()}
    if names == {"all"}:
        return KINDS
    unknown = sorted(names - set(KINDS) - {"none"})
    if unknown or not names:
        raise ValueError(
            f"there is no kind of control '{unknown[0] if unknown else text}': choose from all, none, "
            + ", ".join(KINDS)
        )
    return tuple(kind for kind in KINDS if kind in names)


@dataclass(frozen=True, kw_only=True)
class MatchedOptions(RankedOptions, ReferenceOptions):
    """What control sets are ranked and matched by."""


@dataclass(frozen=True, kw_only=True)
class KindsOptions:
    """Which kinds of control sets there are."""

    control_kinds: Annotated[
        tuple[str, ...],
        Flag(f"kinds of control sets: all, none, or some of {','.join(KINDS)}", control_kinds),
    ] = KINDS


@dataclass(frozen=True)
class NamedSet:
    """A set of heads under a name: a selected one, one of its controls, or none (the unablated model).

    Attributes:
        label: the selected set's name; of a control that, a stroke, the kind and a number.
        kind: none, selected, or one of KINDS.
        heads: which; none for the unablated model.
        displaced: heads that had to come from another layer than the one they replace.
        ratio: what a control was matched in (output norm, damage) over that of the selected set; else None.
        reached: False where no set of that draw costs as much as the selected one, so that this is the nearest.
        k: where sets of several sizes are compared, the size of the selected set, also for its controls.
    """

    label: str
    kind: str
    heads: HeadSet
    displaced: int = 0
    ratio: float | None = None
    reached: bool = True
    k: int = 0


UNABLATED = NamedSet("none", "none", HeadSet(()))
Sets = Mapping[str, NamedSet]
"""Label → set."""


def control_sets(
    session: Session,
    settings: MatchedOptions,
    label: str,
    heads: HeadSet,
    kinds: Collection[str],
    count: int,
    reference: ReferenceSet | None = None,
) -> list[NamedSet]:
    """The controls of a selected set, kind by kind in the order of KINDS.

    Args:
        session: the model, and the measured items, whose tasks are no reference.
        settings: `out` (a folder whose heads.csv ranks heads, if there is one), `seed`, `by`; for norm and damage what
            a reference set is read with as well.
        label: the selected set's name.
        heads: the selected set.
        kinds: out of KINDS.
        count: how many sets of a drawn kind; no two are the same, and there are fewer where there are no more (of
            damage none where the selected set costs nothing, of norm none where too few heads score low).
        reference: the reference set, where it is at hand.

    Raises:
        InputError: an unknown kind, no heads left for a control, or as `reference_set`.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"There is no kind of control '{unknown[0]}': choose from {', '.join(KINDS)}.")
    if {"norm", "damage"} & set(kinds) and reference is None:
        reference = reference_set(session, settings)
    makers: dict[str, Callable[[], list[NamedSet]]] = {
        "random": lambda: _random(session, label, heads, count),
        "norm": lambda: _norm(session, settings, label, heads, count, _known(reference)),
        "damage": lambda: _damage(session, label, heads, count, _known(reference)),
        "previous_token": lambda: [_best(session, settings, label, heads, "previous_token")],
        "sink": lambda: [_best(session, settings, label, heads, "sink")],
        "complement": lambda: [_complement(session, label, heads)],
    }
    return [control for kind in KINDS if kind in kinds for control in makers[kind]()]


def _known(reference: ReferenceSet | None) -> ReferenceSet:
    if reference is None:
        raise AssertionError("norm and damage are measured on a reference set")
    return reference


def random_sets(model: Model, heads: HeadSet, n: int, rng_for: RngFactory) -> list[Control]:
    """Random sets with as many heads in each layer; none where more than half of all heads are selected."""
    if not n or 2 * len(heads) > model.n_layers * model.n_heads:
        return []
    return distinct_controls(heads, model.n_layers, model.n_heads, n, rng_for)


def _random(session: Session, label: str, heads: HeadSet, count: int) -> list[NamedSet]:
    model = session.model
    drawn = distinct_controls(heads, model.n_layers, model.n_heads, count, session.rng_for)
    return [
        NamedSet(f"{label}/random{index}", "random", control.heads, control.displaced)
        for index, control in enumerate(drawn)
    ]


def _norm(
    session: Session,
    settings: MatchedOptions,
    label: str,
    heads: HeadSet,
    count: int,
    reference: ReferenceSet,
) -> list[NamedSet]:
    """No two alike, none where too few heads score low; norms are over the contexts of the reference."""
    scores, _ = ranking(session.model, require_out(settings), settings.seed, settings.by)
    eligible = low_heads(scores, tuple(dict.fromkeys((*LOW_IN, settings.by))))
    if len([head for head in eligible if head not in heads]) < len(heads):
        return []
    norms = head_norms(session.engine, reference.prompts)
    drawn: dict[HeadSet, Control] = {}
    for index in range(TRIES):
        rng = session.rng_for(f"strength/{heads.sha256}/{index}")
        control = strength_matched(heads, eligible, norms, rng)
        drawn.setdefault(control.heads, control)
        if len(drawn) == count:
            break
    return [
        NamedSet(f"{label}/norm{index}", "norm", control.heads, control.displaced, control.ratio)
        for index, control in enumerate(drawn.values())
    ]


def _damage(
    session: Session, label: str, heads: HeadSet, count: int, reference: ReferenceSet
) -> list[NamedSet]:
    rngs = [session.rng_for(f"damage/{heads.sha256}/{index}") for index in range(count)]
    measure = damage_of(session, reference)
    found: dict[HeadSet, NamedSet] = {}
    for control in damage_matched(heads, all_heads(session.model), measure, rngs):
        name = f"{label}/damage{len(found)}"
        found.setdefault(
            control.heads, NamedSet(name, "damage", control.heads, 0, control.ratio, control.reached)
        )
    return list(found.values())


def damage_of(session: Session, reference: ReferenceSet) -> Callable[[Sequence[HeadSet]], list[float]]:
    """What mean ablation at the action positions costs log p(reference action | pre), nats a reference item.

    Items without a reference action lend their failed one.
    """
    mean = reference.mean_z(session.engine).z
    runs: list[Run] = []
    for item in reference.items[:DAMAGE_ITEMS]:
        candidate = "gold" if item.gold_action is not None else "failed"
        runs.append(run_decision_point(session.engine, item, "pre", session.wording, candidate=candidate))

    def measure(sets: Sequence[HeadSet]) -> list[float]:
        changes = [replace_heads(heads, mean, "candidate") for heads in sets]
        costs = [
            [run.score.total - score.total for score in score_interventions(session.engine, run, changes)]
            for run in runs
        ]
        return [float(cost) for cost in np.mean(costs, axis=0)]

    return measure


def _best(session: Session, settings: MatchedOptions, label: str, heads: HeadSet, kind: str) -> NamedSet:
    """As many of the best heads by a score, those that are selected left out."""
    column = SCORE_OF[kind]
    scores, source = ranking(session.model, require_out(settings), settings.seed, settings.by)
    if column not in scores.columns:
        raise InputError(f"{source} has no column {column}: run `backfire heads` again in another folder.")
    chosen = {(head.layer, head.head) for head in heads}
    free = scores[[(row.layer, row.head) not in chosen for row in scores.itertuples()]]
    if len(free) < len(heads):
        raise InputError(
            f"{len(heads)} of {len(scores)} heads are selected: no '{kind}' control of that size is left."
        )
    return NamedSet(f"{label}/{kind}0", kind, top_heads(free, len(heads), column))


def _complement(session: Session, label: str, heads: HeadSet) -> NamedSet:
    rest = [head for head in all_heads(session.model) if head not in heads]
    if not rest:
        raise InputError("All heads are selected: there are no others.")
    return NamedSet(f"{label}/complement0", "complement", HeadSet(rest))


@dataclass(frozen=True, kw_only=True)
class SetsOptions(KindsOptions, MatchedOptions):
    """Which sets of heads are ablated, and how many controls each has."""

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
    sets = [UNABLATED]
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
