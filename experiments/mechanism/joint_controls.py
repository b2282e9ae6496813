"""The head sets of `backfire joint` and `backfire knockout`: the best k by score, beside controls that could win.

    random           as many heads in each layer, none selected           at every size
    norm, damage     matched in output norm; in the loss that they cost `pre`
    previous_token, sink, complement
                     the heads that attend most to the token before, to the first token; all that are not selected
    direction        no other heads: the selected ones, moved as far as a method moves them, in a random direction

All but random are for the sets of --control-k heads. A set is labelled after the one that it controls:
`top16/damage3`. The sets: `experiments.heads.control_sets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from experiments.heads.control_sets import MatchedOptions, NamedSet, about_sets, control_sets
from experiments.heads.ranking import ranking
from experiments.heads.reference_sets import ReferenceSet
from experiments.run.run_json import read_run, recorded
from experiments.run.session import Session, require_out
from experiments.run.study import Flag, not_negative, whole_numbers
from mech.errors import InputError
from mech.head_scores.induction import top_heads
from mech.heads import HeadSet
from mech.models.model import Model
from probes.effects.dose import SINGLE_CONTROLS

DIRECTION = "direction"
ALL_KINDS = ("random", "norm", "damage", *SINGLE_CONTROLS, DIRECTION)


@dataclass(frozen=True, kw_only=True)
class ControlledOptions:
    """The sizes of the selected sets, and which controls they have."""

    k: Annotated[tuple[int, ...], Flag("sizes of the selected sets, best first by --by", whole_numbers)] = (
        4,
        8,
        16,
        32,
    )
    controls: Annotated[int, Flag("control sets of each drawn kind for each size", not_negative)] = 20
    control_k: Annotated[
        tuple[int, ...],
        Flag("sizes that get all kinds of controls, not random alone", whole_numbers),
    ] = (16,)
    control_kinds: Annotated[
        str,
        Flag(
            "list of kinds of controls, KIND or KIND:N (random:100 draws 100 sets in place of --controls); or none"
        ),
    ] = ",".join(ALL_KINDS)

    @property
    def counts(self) -> dict[str, int]:
        """Kind → number of sets; InputError as `control_kinds`."""
        return control_kinds(self.control_kinds, self.controls)


@dataclass(frozen=True, kw_only=True)
class RankedControls(ControlledOptions, MatchedOptions):
    """What `joint_sets` is given."""


def control_kinds(text: str, default: int) -> dict[str, int]:
    """`random:100,norm,sink` as kind → number of sets; `none` is none at all.

    Raises:
        InputError: an unknown kind, or no number after a colon.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if text != "none" else []:
        kind, colon, count = part.partition(":")
        if kind not in ALL_KINDS:
            raise InputError(f"--control-kinds: '{kind}' is none of {', '.join(ALL_KINDS)}.")
        if colon and (kind in SINGLE_CONTROLS or not count.isdigit()):
            raise InputError(f"--control-kinds: '{part}' says no number of sets; of some kinds there is one.")
        found[kind] = 1 if kind in SINGLE_CONTROLS else int(count) if colon else default
    return found


def joint_sets(
    session: Session, config: RankedControls, reference: ReferenceSet | None = None
) -> tuple[dict[str, NamedSet], dict[str, Any]]:
    """Label → set, each selected set before its controls; and what a run records of them.

    Args:
        session: whose model has the heads.
        config: sizes, controls, the score that ranks, and what a reference set is read with.
        reference: the reference set, on which norms and damage are measured, where it is at hand.

    Raises:
        InputError: more heads are asked for than the model has, or none are left for a control.
    """
    kinds = config.counts
    scores, source = ranking(session.model, require_out(config), config.seed, config.by)
    sets: dict[str, NamedSet] = {}
    for k in config.k:
        label, heads = f"top{k}", top_heads(scores, k, config.by)
        sets[label] = NamedSet(label, "selected", heads, k=k)
        here = {kind: n for kind, n in kinds.items() if n and (kind == "random" or k in config.control_k)}
        moved = here.pop(DIRECTION, 0)
        known = {} if reference is None else kept_controls(config, session.model, reference, label, heads)
        for count in dict.fromkeys(here.values()):
            alike = [kind for kind, n in here.items() if n == count]
            found = [one for kind in alike for one in known.get(kind, [])]
            drawn = [kind for kind in alike if kind not in known]
            found += control_sets(session, config, label, heads, drawn, count, reference)
            found.sort(key=lambda one: ALL_KINDS.index(one.kind))
            sets.update({one.label: replace(one, k=k) for one in found})
        elsewhere = [NamedSet(f"{label}/{DIRECTION}{draw}", DIRECTION, heads, k=k) for draw in range(moved)]
        sets.update({one.label: one for one in elsewhere})
    about = about_sets([one for one in sets.values() if one.kind != DIRECTION])
    ratios = about.pop("ratio")
    return sets, {"head_scores": source, **about, "ratios": ratios}


MATCHED = ("norm", "damage")
DECIDES = ("seed", "by", "controls", "control_kinds")  # of a selected set's controls


def kept_controls(
    config: MatchedOptions, model: Model, reference: ReferenceSet, label: str, heads: HeadSet
) -> dict[str, list[NamedSet]]:
    """Kind (of MATCHED) → the sets of that kind that another run of `joint` in the folder `config.out` drew.

    Matching them takes minutes. They follow from the model, the seed, the selected set, how many are asked for and the
    reference items: an entry of run.json that agrees in all of these has the same. It is that of another pair of
    conditions, or of the same one before it was killed.

    Args:
        config: of the study, whose `out` is the folder.
        model: the model.
        reference: what norms and damage are measured on.
        label: the selected set's name.
        heads: the selected set.

    Raises:
        InputError: run.json is damaged.
    """
    found: dict[str, list[NamedSet]] = {}
    if config.out is None or not (config.out / "run.json").is_file():
        return found
    for name, entry in read_run(config.out)["studies"].items():
        if name.split(" ")[0] != "joint" or not _alike(config, model, reference, entry):
            continue
        sets, displaced, ratios = (
            recorded(config.out, entry, f"provenance.{name}", dict)
            for name in ("sets", "displaced", "ratios")
        )
        missed = recorded(config.out, entry, "provenance.not_reached", list)
        if sets.get(label) != str(heads):
            continue
        for kind in MATCHED:
            labels = [one for one in sets if one.startswith(f"{label}/{kind}")]
            if labels:
                found[kind] = [
                    NamedSet(
                        one,
                        kind,
                        HeadSet.parse(sets[one]),
                        displaced.get(one, 0),
                        ratios.get(one),
                        one not in missed,
                    )
                    for one in labels
                ]
    return found


def _alike(config: MatchedOptions, model: Model, reference: ReferenceSet, entry: Mapping[str, Any]) -> bool:
    there, about = entry["config"], entry["provenance"]
    identity, of = model.identity, about.get("model", {})
    used = {put.get("items_sha256") for put in about.get("replacements", {}).values()}
    return (
        all(there.get(name) == vars(config)[name] for name in DECIDES)
        and (of.get("sha256"), of.get("tensors_sha256")) == (identity.sha256, identity.tensors_sha256)
        and of.get("dtype") == str(model.dtype)
        and reference.about["items_sha256"] in used
    )


def labelled(config: ControlledOptions) -> dict[str, str]:
    """Label → kind of the sets that `joint_sets` makes, where the model has as many; nothing is drawn."""
    found = {}
    for k in config.k:
        found[f"top{k}"] = "selected"
        for kind, count in config.counts.items():
            if kind == "random" or k in config.control_k:
                found.update({f"top{k}/{kind}{draw}": kind for draw in range(count)})
    return found


def needs_reference(config: ControlledOptions) -> bool:
    """Whether norms or damage of these controls are measured on a reference set."""
    counts = config.counts
    return any(counts.get(kind) for kind in ("norm", "damage")) and bool({*config.k} & {*config.control_k})
