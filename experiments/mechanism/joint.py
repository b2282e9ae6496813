"""`backfire joint`: what the best k heads recover of Δcopy (or of any difference of two conditions), by eight methods.

noise, denoise (z from the other run), mean, mean-role, resample, zero, optimal (z replaced in both runs), knockout
(attention to the call in TO's record removed), all at the action positions; see `probes.effects.joint` for what each
effect is. The failed call and the reference are scored under every set and control, so that every metric has its own
share. Head sets are frozen by their score on repeated random tokens.

With --from pre --to neut the difference is Δcopy; with --from neut_other --to neut the part of it that belongs to the
failed call's own text, two records of near equal length. Where FROM has a record too, knockout removes TO's alone. One
folder holds several pairs; each has an entry of its own in run.json. joint.jsonl → joint.csv,
joint_off_target.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pandas as pd
import torch

from experiments.heads.ablation import Donors, DrawsOptions, Replacement, replacement
from experiments.heads.control_sets import Sets
from experiments.heads.reference_sets import ReferenceSet, reference_set
from experiments.mechanism.joint_controls import (
    DIRECTION,
    ControlledOptions,
    RankedControls,
    joint_sets,
    labelled,
    needs_reference,
)
from experiments.mechanism.joint_item import decision, item_rows
from experiments.mechanism.pairs import (
    PairContext,
    PairSweepOptions,
    pair_of,
    pair_units,
    references_said,
    require_conditions,
)
from experiments.run.durable import naming, parse_rows
from experiments.run.left_out import noted, of_candidates
from experiments.run.run_folder import RunFolder
from experiments.run.run_json import config_hash
from experiments.run.run_study import ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import Session, open_session
from experiments.run.study import DeltaOptions, Flag, Report, not_negative, positive
from experiments.run.tables import frame_text
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.patching.optimal_constants import Fit
from probes.effects.dose import SINGLE_CONTROLS
from probes.effects.joint import ABLATIONS, METHODS, joint_shares, off_target
from probes.effects.joint_effects import kind_and_size, long_joint
from probes.scoring.record import recorded_call
from probes.stats.families import corrected, family_lines

DONORS = {"mean", "mean-role", "resample", "optimal"}
"""Methods whose values come from other items."""


@dataclass(frozen=True, kw_only=True)
class MethodsOptions(ControlledOptions, DrawsOptions):
    """By which methods sets of heads are measured, and how many controls each is worth."""

    methods: Annotated[str, Flag(f"all, or a list out of {', '.join(METHODS)}")] = "all"
    ablation_controls: Annotated[
        int,
        Flag(
            "of the controls of each kind, how many for mean, mean-role, resample and zero, which cost twice as much",
            not_negative,
        ),
    ] = 20
    optimal_controls: Annotated[
        int, Flag("random controls for optimal ablation, each with constants of its own", not_negative)
    ] = 5
    control_draws: Annotated[int, Flag("resample: draws of donors for a control", positive)] = 1


@dataclass(frozen=True, kw_only=True)
class JointConfig(PairSweepOptions, DeltaOptions, MethodsOptions, RankedControls):
    """What `backfire joint` is given."""


@dataclass(frozen=True, kw_only=True)
class JointContext(PairContext):
    """The head sets, and what each ablation puts in the place of z.

    Attributes:
        everything: the session with all items asked for, whose streams and tasks decide sets and references.
        sets: label → set.
        reference: the reference set, where one is needed.
        puts: ablation → its replacement.
        same: hash of what, beside the pair, decides the numbers.
        known: item → method → a row of another pair in the folder whose ablations need not be run again.
    """

    config: JointConfig
    everything: Session
    sets: Sets
    reference: ReferenceSet | None
    puts: Mapping[str, Replacement]
    same: str = ""
    known: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods asked for."""
        return methods_of(self.config.methods)

    @property
    def kinds(self) -> dict[str, str]:
        """Label → kind of every set."""
        return {label: one.kind for label, one in self.sets.items()}


def open_joint(config: JointConfig) -> JointContext:
    """The session, the sets and the replacements.

    Raises:
        InputError: an unknown method or kind of control, or conditions, sets or references that cannot be had.
    """
    pair, methods = pair_of(config), methods_of(config.methods)
    everything = open_session(config, one_env=True)
    session = require_conditions(everything, pair)
    session = noted(session, of_candidates(session.items))
    if "knockout" in methods:
        require_record(session, pair)
    reference = None
    if DONORS & {*methods} or needs_reference(config):
        reference = reference_set(everything, config)
    sets, about_sets = joint_sets(everything, config, reference)
    donors = None if reference is None else Donors(everything, reference)
    puts = {
        how: replacement(everything, config, how=how, reference=reference, donors=donors)
        for how in methods
        if how in ABLATIONS
    }
    hashes = {
        "set_sha256": {label: one.heads.sha256 for label, one in sets.items()},
        "replacement_sha256": {how: put.sha256 for how, put in puts.items()},
    }
    return JointContext(
        session,
        recorded={**about_sets, "replacements": {how: dict(put.about) for how, put in puts.items()}},
        decided=hashes,
        study="joint",
        config=config,
        everything=everything,
        sets=sets,
        reference=reference,
        puts=puts,
    )


def prepare(context: JointContext, folder: RunFolder) -> JointContext:
    """With the rows of other pairs, and the fitted constants, that the folder has."""
    settings = {**STUDY.settings(context.config), **context.derived}
    same = config_hash({key: value for key, value in settings.items() if key not in ("from", "to")})
    puts = dict(context.puts)
    if "optimal" in puts:
        puts["optimal"] = with_kept_fits(puts["optimal"], folder, context.everything)
    return replace(context, puts=puts, same=same, known=measured(folder, same))


def measure(context: JointContext, unit: ItemUnit) -> list[Row]:
    """One row a method: both candidates clean and under every set."""
    config, item = context.config, unit.item
    sets_of = {
        method: {label: context.sets[label] for label in kept(context.kinds, method, config)}
        for method in context.methods
    }
    at = decision(context.session, item, context.pair, context.methods)
    known = context.known.get(item.item_id, {})
    return item_rows(at, sets_of, context.puts, draws_of(config), context.same, known)


def methods_of(text: str) -> tuple[str, ...]:
    """`noise,mean` as methods, in the order of METHODS.

    Raises:
        InputError: one is unknown.
    """
    given = METHODS if text == "all" else text.split(",")
    unknown = [one for one in given if one not in METHODS]
    if unknown:
        raise InputError(f"--methods: '{unknown[0]}' is none of {', '.join(METHODS)}.")
    return tuple(one for one in METHODS if one in given)


def require_record(session: Session, pair: tuple[str, str]) -> None:
    """Raise InputError where TO does not record the failed call, which knockout hides."""
    try:
        recorded_call(session.model, session.items[0], pair[1], session.wording)
    except InputError as reason:
        rest = ",".join(one for one in METHODS if one != "knockout")
        raise InputError(
            f"{reason} Knockout hides that record: leave it out, with --methods {rest}."
        ) from None


def kept(kinds: Mapping[str, str], method: str, config: MethodsOptions) -> dict[str, str]:
    """The sets (label → kind) that a method is asked of: an ablation of fewer controls, knockout of no direction."""

    def wanted(label: str, kind: str) -> bool:
        if kind == "selected":
            return True
        if method == "knockout":
            return kind != DIRECTION  # nothing is moved
        number = int(label[len(label.rstrip("0123456789")) :])
        if method == "optimal":
            few = number < config.optimal_controls and kind_and_size(label)[1] in config.control_k
            return kind == "random" and few
        return method not in ABLATIONS or number < config.ablation_controls or kind in SINGLE_CONTROLS

    return {label: kind for label, kind in kinds.items() if wanted(label, kind)}


def draws_of(config: MethodsOptions) -> Callable[[str, str], int]:
    """(method, kind of set) → how many draws it takes."""

    def count(method: str, kind: str) -> int:
        if method != "resample":
            return 1
        return config.draws if kind == "selected" else config.control_draws

    return count


def measured(folder: RunFolder, settings: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Item → method → a row of another pair under the same settings, whose ablations need not be run again."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    rows = folder.rows("joint") if folder.done_ids("joint") else pd.DataFrame()
    for row in rows.to_dict("records"):
        if row["settings_sha256"] == settings:
            found.setdefault(row["item_id"], {})[row["method"]] = row
    return found


def with_kept_fits(put: Replacement, folder: RunFolder, session: Session) -> Replacement:
    """The replacement with the fits that the folder has, which keeps there those that it makes: fitting takes minutes.

    joint_fits.jsonl has one row a head set and settings (replacement, model, wording, engine): losses, steps and each
    head's constant, written as soon as it is fitted. Float32 values come back from JSON as they were.

    Args:
        put: `how` is optimal.
        folder: claimed by the study that ablates.
        session: its model, wording and engine.

    Raises:
        InputError: a row of joint_fits.jsonl is damaged.
    """
    identity = session.model.identity
    settings = config_hash(
        {
            **{"replacement": put.sha256, "wording": session.wording.sha256, "slow": session.engine.slow},
            **{"sha256": identity.sha256, "tensors_sha256": identity.tensors_sha256},
            **{"dtype": str(session.model.dtype), "device": str(session.model.device)},
        }
    )
    path = folder.path / "joint_fits.jsonl"
    fits = dict(put.fits)
    with naming(path):
        for row in parse_rows(path)[0]:
            if row["settings_sha256"] == settings:
                fits[HeadSet.parse(row["heads"]).sha256] = _fit(put, row)

    def keep(heads: HeadSet, fit: Fit) -> None:
        constants = {str(head): fit.z[head.layer, head.head].double().tolist() for head in heads}
        row = {"id": f"{heads.sha256}|{settings}", "heads": str(heads), "settings_sha256": settings}
        losses = {"before": fit.before, "after": fit.after, "steps": fit.steps}
        folder.append("joint_fits", {**row, **losses, "constants": constants})

    return replace(put, fits=fits, keep=keep)


def _fit(put: Replacement, row: Mapping[str, Any]) -> Fit:
    assert put.z is not None  # optimal constants start from the mean
    z = put.z.clone()
    heads = HeadSet.parse(row["heads"]).check(z.shape[0], z.shape[1])
    if set(row["constants"]) != {str(head) for head in heads}:
        raise InputError(
            f"The row '{row['id']}' has constants of other heads than it names: delete that line."
        )
    for name, values in row["constants"].items():
        if len(values) != z.shape[2]:
            raise InputError(f"The row '{row['id']}' has {len(values)} numbers for {name}: delete that line.")
        head = Head.parse(name)
        z[head.layer, head.head] = torch.tensor(values, dtype=torch.float64).to(z)
    return Fit(z, row["before"], row["after"], row["steps"])


def joint_tables(context: JointContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """joint.csv and joint_off_target.csv, of all pairs that the folder holds."""
    session = context.everything
    effects, off = long_joint(session.clustered(folder.rows("joint")))
    # A rank among twenty sets is 1/21 at best, and could survive no correction: the tests over clusters are corrected.
    shares = corrected(joint_shares(effects, session.rng_for), "joint", "excess_p")
    return {
        "joint": shares.rename(columns={"p_holm": "excess_p_holm"}),
        "joint_off_target": off_target(off, context.config.delta, session.rng_for),
    }


def report(context: JointContext, tables: Tables) -> Report:
    """The pair's shares in the metric that is asked for, off-target changes, and the families of tests."""
    table, metric = tables["joint"], context.metric
    own = context.of_pair(table[table["metric"] == metric])
    shown = ["env", "method", "k", "share", "ci_lo", "ci_hi", "controls", "n_controls", "control_mean"]
    shown += ["control_lo", "control_hi", "p", "excess", "excess_p", "excess_p_holm", "draw_sd"]
    changes = context.of_pair(tables["joint_off_target"])
    wide = changes.pivot_table(
        index=["env", "method", "k"], columns="quantity", values="change"
    ).reset_index()
    title = f"{context.pair[0]} → {context.pair[1]}, {metric}"
    families = family_lines(table[table["metric"] == metric], "joint")
    return Report("\n".join([title, frame_text(own[shown]), "", frame_text(wide), *families]))


def notes(context: JointContext, rows: pd.DataFrame) -> Sequence[str]:
    """What the margin is against; which control sets are lacking or too weak; how small the reference set is."""
    said = references_said(context, rows)
    lacking = [label for label in labelled(context.config) if label not in context.kinds]
    if lacking:
        said.append(f"{len(lacking)} control sets could not be drawn: {', '.join(lacking[:4])} …")
    missed = context.recorded["not_reached"]
    if missed:
        said.append(
            f"{len(missed)} damage-matched sets cost less than the set they control, whatever their size "
            "(not_reached in run.json)"
        )
    return [*said, *(context.reference.notes if context.reference is not None else ())]


def fitted(context: JointContext, _: Tables) -> Mapping[str, Any]:
    """What was fitted for optimal ablation."""
    return {"fitted": context.puts["optimal"].fitted()} if "optimal" in context.puts else {}


STUDY = ItemStudy(
    "joint",
    "backfire joint --k 4,8,16,32 --controls 20 --limit 12 --out runs/first",
    JointConfig,
    rows="joint",
    open=open_joint,
    prepare=prepare,
    units=lambda context: pair_units(context, context.methods),
    measure=measure,
    tables=joint_tables,
    report=report,
    notes=notes,
    extra=fitted,
)
