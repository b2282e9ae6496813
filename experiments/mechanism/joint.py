"""`backfire joint`: what the best k heads carry of Δcopy (or of any difference of two conditions), by eight methods.

noise, denoise (z from the other run), mean, mean-role, resample, zero, optimal (z replaced in both runs), knockout
(attention to the call in TO's record cut), all at the action positions; see `probes.effects.joint` for what each
effect is. The failed call and the reference are scored under every set and control, so that every metric has its own
share. Head sets are frozen by their score on repeated random tokens.

With --from pre --to neut the difference is Δcopy; with --from neut_other --to neut the part of it that belongs to the
failed call's own text, two records of near equal length. Where FROM has a record too, knockout cuts TO's alone. One
folder holds several pairs; each has an entry of its own in run.json. joint_sets.jsonl → carried.csv,
carried_offtarget.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from experiments.heads.ablation import BY, DRAWS, Donors, replacement
from experiments.heads.reference_sets import REFERENCE, reference_set
from experiments.mechanism.joint_controls import (
    CONTROL_K,
    CONTROL_KINDS,
    CONTROLS,
    DIRECTION,
    K,
    joint_sets,
    labelled,
    needs_reference,
)
from experiments.mechanism.joint_item import decision, item_rows
from experiments.mechanism.kept_fits import with_kept_fits
from experiments.mechanism.pairs import FROM, TO, for_pair, pair_of, require_conditions, row_id
from experiments.run.left_out import noted, of_candidates, write_left_out
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder, config_hash
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import (
    DELTA,
    METRIC,
    ON_ITEMS,
    ON_MODEL,
    RUNNING,
    Option,
    Report,
    Study,
    not_negative,
    positive,
)
from experiments.run.tables import forwards_text, frame_text
from mech.errors import InputError
from probes.effects.dose import SINGLE_CONTROLS
from probes.effects.joint import ABLATIONS, METHODS, carried, off_target
from probes.effects.joint_effects import kind_and_size, long_joint
from probes.scoring.metric_sums import reference_notes
from probes.scoring.record import recorded_call
from probes.stats.families import corrected, family_lines

DONORS = {"mean", "mean-role", "resample", "optimal"}
"""Methods whose values come from other items."""
METHODS_OPTION = Option("methods", str, "all", f"all, or a list out of {', '.join(METHODS)}")
ABLATION_CONTROLS = Option(
    "ablation-controls",
    not_negative,
    20,
    "of the controls of each kind, how many for mean, mean-role, resample and zero, which cost twice as much",
)
OPTIMAL_CONTROLS = Option(
    "optimal-controls",
    not_negative,
    5,
    "random controls for optimal ablation, each with constants of its own",
)
CONTROL_DRAWS = Option("control-draws", positive, 1, "resample: draws of donors for a control")


def run(args: argparse.Namespace) -> Report:
    """Measure every item by every method under every set, then derive the tables."""
    pair, methods = pair_of(args), methods_of(args.methods)
    everything = open_session(args, one_env=True)
    session = require_conditions(everything, pair)
    session = noted(session, of_candidates(session.items))
    if "knockout" in methods:
        require_record(session, pair)
    reference = None
    if DONORS & {*methods} or needs_reference(args):
        reference = reference_set(everything, args)
    sets, about_sets = joint_sets(everything, args, reference)
    scaled = argparse.Namespace(**{**vars(args), "alpha": 0.0})
    donors = None if reference is None else Donors(everything, reference)
    puts = {
        how: replacement(everything, scaled, how=how, reference=reference, donors=donors)
        for how in methods
        if how in ABLATIONS
    }
    kinds = {label: kind for label, (kind, _) in sets.items()}
    about = {
        **about_items(session),
        **about_sets,
        "replacements": {how: dict(put.about) for how, put in puts.items()},
    }
    derived = {
        "set_sha256": {label: heads.sha256 for label, (_, heads) in sets.items()},
        "replacement_sha256": {how: put.sha256 for how, put in puts.items()},
    }
    settings = {**STUDY.settings(args), **derived}
    same = config_hash({key: value for key, value in settings.items() if key not in ("from", "to")})
    with open_run(for_pair(STUDY, pair), args, session.model, about, derived) as folder:
        known = measured(folder, same)
        if "optimal" in puts:
            puts["optimal"] = with_kept_fits(puts["optimal"], folder, everything)
        for item in progress(session.items, len(session.items), "joint", args.quiet):
            done = folder.done_ids("joint_sets")
            todo = [method for method in methods if row_id(item, pair, method) not in done]
            if todo:
                sets_of = {method: {one: sets[one] for one in kept(kinds, method, args)} for method in todo}
                at = decision(session, item, pair, todo)
                found = item_rows(at, sets_of, puts, draws_of(args), same, known.get(item.item_id, {}))
                folder.append_all("joint_sets", found)
        table, off = write_tables(folder, everything, args.delta)
        rows = folder.rows("joint_sets").to_dict("records")
        notes = [
            *write_left_out(folder, session),
            *reference_notes(rows),
            *notes_of_sets(kinds, about_sets, args),
        ]
        notes += [] if reference is None else reference.notes
        forwards = session.engine.forwards
        fitted = {"fitted": puts["optimal"].fitted()} if "optimal" in puts else {}
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved, **fitted})
    text = [
        told(table, off, pair, args.metric),
        *notes,
        *tested(table, args.metric),
        forwards_text(forwards.ran, forwards.saved),
    ]
    return Report("\n".join([*text, f"written to {args.out}"]))


def notes_of_sets(kinds: Mapping[str, str], about: Mapping[str, Any], args: argparse.Namespace) -> list[str]:
    """Which control sets there are fewer of than was asked for, and which do not reach the damage that they match."""
    notes = []
    lacking = [label for label in labelled(args) if label not in kinds]
    if lacking:
        notes.append(f"{len(lacking)} control sets could not be drawn: {', '.join(lacking[:4])} …")
    if about["not_reached"]:
        notes.append(
            f"{len(about['not_reached'])} damage-matched sets cost less than the set they control, whatever their "
            "size (not_reached in run.json)"
        )
    return notes


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


def kept(kinds: Mapping[str, str], method: str, args: argparse.Namespace) -> dict[str, str]:
    """The sets (label → kind) that a method is asked of: an ablation of fewer controls, knockout of no direction."""

    def wanted(label: str, kind: str) -> bool:
        if kind == "selected":
            return True
        if method == "knockout":
            return kind != DIRECTION  # nothing is moved
        number = int(label[len(label.rstrip("0123456789")) :])
        if method == "optimal":
            few = number < args.optimal_controls and kind_and_size(label)[1] in args.control_k
            return kind == "random" and few
        return method not in ABLATIONS or number < args.ablation_controls or kind in SINGLE_CONTROLS

    return {label: kind for label, kind in kinds.items() if wanted(label, kind)}


def draws_of(args: argparse.Namespace) -> Callable[[str, str], int]:
    """(method, kind of set) → how many draws it takes."""

    def count(method: str, kind: str) -> int:
        if method != "resample":
            return 1
        return int(args.draws if kind == "selected" else args.control_draws)

    return count


def measured(folder: RunFolder, settings: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Item → method → a row of another pair under the same settings, whose ablations need not be run again."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    rows = folder.rows("joint_sets") if folder.done_ids("joint_sets") else pd.DataFrame()
    for row in rows.to_dict("records"):
        if row["settings_sha256"] == settings:
            found.setdefault(row["item_id"], {})[row["method"]] = row
    return found


def write_tables(folder: RunFolder, session: Session, delta: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """carried.csv and carried_offtarget.csv, of all pairs that the folder holds."""
    effects, off = long_joint(session.clustered(folder.rows("joint_sets")))
    # A rank among twenty sets is 1/21 at best, and could survive no correction: the tests over clusters are corrected.
    shares = corrected(carried(effects, session.rng_for), "carried", "excess_p")
    tables = shares.rename(columns={"p_holm": "excess_p_holm"}), off_target(off, delta, session.rng_for)
    for name, table in zip(("carried", "carried_offtarget"), tables, strict=True):
        folder.write_table(name, table)
    return tables


def tested(table: pd.DataFrame, metric: str) -> list[str]:
    """The sizes of the families of tests in the metric that is shown."""
    return family_lines(table[table["metric"] == metric], "carried")


def told(table: pd.DataFrame, off: pd.DataFrame, pair: tuple[str, str], metric: str) -> str:
    """The pair's shares in the metric that is asked for, and off-target changes, for reading."""
    own = table[(table["from"] == pair[0]) & (table["to"] == pair[1]) & (table["metric"] == metric)]
    shown = ["env", "method", "k", "share", "ci_lo", "ci_hi", "controls", "n_controls", "control_mean"]
    shown += ["control_lo", "control_hi", "p", "excess", "excess_p", "excess_p_holm", "draw_sd"]
    changes = off[(off["from"] == pair[0]) & (off["to"] == pair[1])]
    wide = changes.pivot_table(
        index=["env", "method", "k"], columns="quantity", values="change"
    ).reset_index()
    return "\n".join([f"{pair[0]} → {pair[1]}, {metric}", frame_text(own[shown]), "", frame_text(wide)])


STUDY = Study(
    "joint",
    "what the best heads carry of Δcopy together, by eight methods, each beside seven kinds of controls",
    "backfire joint --k 4,8,16,32 --controls 20 --limit 12 --out runs/first",
    (
        *(*ON_MODEL, *ON_ITEMS, FROM, TO, METHODS_OPTION, METRIC, BY, K, CONTROLS, CONTROL_K, CONTROL_KINDS),
        *(ABLATION_CONTROLS, OPTIMAL_CONTROLS, DRAWS, CONTROL_DRAWS, REFERENCE, DELTA, *RUNNING),
    ),
    run,
)
