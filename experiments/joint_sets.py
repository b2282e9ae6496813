"""`backfire joint`: what the best k heads carry of Δcopy together, by six methods, each beside random heads.

noise, denoise (z from the other run), mean, resample, zero (z replaced in both runs), knockout (attention to the call
in the record cut), all at the candidate positions; see `probes.carried` for what each effect is. Head sets are frozen
by their score on repeated random tokens. joint_sets.jsonl → carried.csv, carried_offtarget.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.ablating import BY, REFERENCE, Replacement, replacement
from experiments.head_choice import displaced, ranked_sets
from experiments.left_out import noted, of_candidates, write_left_out
from experiments.options import (
    DELTA,
    ON_ITEMS,
    ON_MODEL,
    RUNNING,
    Option,
    Report,
    Study,
    positive,
    whole_numbers,
)
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.changes import score_changes, stacked
from mech.engine import Run
from mech.heads import HeadSet
from mech.interventions import Intervention, cut_edges, replace_heads, scale_heads
from probes.carried import METHODS, carried, off_target
from probes.items import Item
from probes.record import edge_sources
from probes.scoring import decision_run

K = Option("k", whole_numbers, (4, 8, 16, 32), "sizes of the selected sets, best first by --by")
CONTROLS = Option("controls", positive, 20, "random layer-matched control sets for each size")
ABLATION_CONTROLS = Option(
    "ablation-controls",
    positive,
    20,
    "of these, how many for mean, resample and zero, which cost twice as much",
)
ABLATIONS = ("mean", "resample", "zero")
BEFORE, AFTER, MARKED = "pre", "neut", "fail"
# The condition in which a method's change of the reference action is read: the one that it acts in.
REFERENCE_IN = {"noise": AFTER, "knockout": AFTER}

Sets = Mapping[str, tuple[str, HeadSet]]
"""Label → (kind, heads)."""
Change = Callable[[HeadSet, str, str], Intervention]
"""(heads, action, condition) → what is done to these heads there."""


@dataclass(frozen=True)
class Runs:
    """One item's clean runs, by (action, condition), and the tokens of the call in its record."""

    clean: Mapping[tuple[str, str], Run]
    record: tuple[int, ...]


def run(args: argparse.Namespace) -> Report:
    """Measure every item by every method under every set, then derive the tables."""
    session = open_session(args)
    session = noted(session, of_candidates(session.items))
    sets = ranked_sets(session.model, args, session.rng_for)
    puts = {
        how: replacement(session, argparse.Namespace(**{**vars(args), "how": how, "alpha": 0.0}))
        for how in ABLATIONS
    }
    about = {
        **about_items(session),
        "sets": {label: str(heads) for label, (_, heads) in sets.items()},
        "displaced": displaced(sets),
        "replacements": {how: dict(put.about) for how, put in puts.items()},
    }
    derived = {
        "set_sha256": {label: heads.sha256 for label, (_, heads) in sets.items()},
        "replacement_sha256": {how: put.sha256 for how, put in puts.items()},
    }
    with open_run(STUDY, args, session.model, about, derived) as folder:
        for item in progress(session.items, len(session.items), "joint", args.quiet):
            done = folder.done_ids("joint_sets")
            todo = [method for method in METHODS if f"{item.item_id}|{method}" not in done]
            if todo:
                of_method = {method: kept(sets, method, args.ablation_controls) for method in todo}
                folder.append_all("joint_sets", joint_item(session, item, of_method, puts))
        table, off = write_tables(folder, session, sets, args.delta)
        notes = write_left_out(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    shown = ["env", "method", "k", "share", "ci_lo", "ci_hi", "control_mean", "control_lo", "control_hi", "p"]
    changes = off.pivot_table(index=["env", "method", "k"], columns="quantity", values="change").reset_index()
    text = [frame_text(table[shown]), "", frame_text(changes)]
    return Report("\n".join([*text, *notes, meter_text(meter.ran, meter.saved), f"written to {args.out}"]))


def kept(sets: Sets, method: str, ablation_controls: int) -> Sets:
    """The sets that a method is asked of: an ablation of no more controls of a size than are allowed it."""
    if method not in ABLATIONS:
        return sets
    return {
        label: one
        for label, one in sets.items()
        if one[0] == "selected" or int(label.rpartition("/random")[2]) < ablation_controls
    }


def joint_item(
    session: Session, item: Item, sets_of: Mapping[str, Sets], puts: Mapping[str, Replacement]
) -> list[dict[str, Any]]:
    """One row a method: log p (nats) of the failed call, and of the reference action, clean and under its sets."""
    runs = clean_runs(session, item)
    changes = changes_of(session, runs, puts)
    rows = []
    for method, sets in sets_of.items():
        selected = {label: heads for label, (kind, heads) in sets.items() if kind == "selected"}
        every = {label: heads for label, (_, heads) in sets.items()}
        own = REFERENCE_IN.get(method, BEFORE)
        # Controls only where the effect is read; what a set does off target is asked of the selected ones.
        asked = {("failed", one): every for one in acts_in(method)}
        if method != "denoise":
            asked["failed", MARKED] = selected
            asked.setdefault(("failed", AFTER), selected)
        if item.gold_action is not None:
            asked["gold", own] = selected
        under = {
            f"{action}|{condition}": _scores(session, runs, changes[method], heads, action, condition)
            for (action, condition), heads in asked.items()
        }
        whole = {f"{action}|{condition}": one.score.total for (action, condition), one in runs.clean.items()}
        keys = {"item_id": item.item_id, "task_id": item.task_id, "env": item.env, "method": method}
        rows.append({"id": f"{item.item_id}|{method}", **keys, "whole": whole, "under": under})
    return rows


def acts_in(method: str) -> tuple[str, ...]:
    """The conditions whose log-probabilities a method's effect is made of."""
    return {"noise": (AFTER,), "denoise": (BEFORE,), "knockout": (AFTER,)}.get(method, (BEFORE, AFTER))


def clean_runs(session: Session, item: Item) -> Runs:
    """The item's runs: the failed call under pre, neut and fail, the reference action (if any) under pre and neut."""
    asked = [("failed", BEFORE), ("failed", AFTER), ("failed", MARKED), ("gold", BEFORE), ("gold", AFTER)]
    clean = {
        (action, condition): decision_run(session.engine, item, condition, session.wording, candidate=action)
        for action, condition in asked
        if action in item.candidates()
    }
    return Runs(clean, edge_sources(session.engine, item, AFTER, session.wording)["record"])


def changes_of(session: Session, runs: Runs, puts: Mapping[str, Replacement]) -> dict[str, Change]:
    """Method → what it does to a set of heads; the donor of a patch is the other run of the same action."""
    z = {key: stacked(run, session.model, "attn.hook_z") for key, run in runs.clean.items()}

    def donor(condition: str) -> Change:
        return lambda heads, action, _: replace_heads(heads, z[action, condition], "candidate")

    def put(how: str) -> Change:
        value = puts[how].z
        if value is None:
            return lambda heads, action, condition: scale_heads(heads, 0.0, "candidate")
        return lambda heads, action, condition: replace_heads(heads, value, "candidate")

    return {
        "noise": donor(BEFORE),
        "denoise": donor(AFTER),
        **{how: put(how) for how in puts},
        "knockout": lambda heads, action, condition: cut_edges(heads, runs.record),
    }


def _scores(
    session: Session, runs: Runs, change: Change, sets: Mapping[str, HeadSet], action: str, condition: str
) -> dict[str, float]:
    run = runs.clean[action, condition]
    scores = score_changes(session.engine, run, [change(heads, action, condition) for heads in sets.values()])
    return {label: score.total for label, score in zip(sets, scores, strict=True)}


def long_joint(rows: pd.DataFrame, sets: Sets) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kept rows as `probes.carried` reads them: effects of every set, and what selected sets do off target."""
    effects, off = [], []
    for row in rows.to_dict("records"):
        whole, under = row["whole"], row["under"]
        delta = whole["failed|neut"] - whole["failed|pre"]
        keys = [row["env"], row["item_id"], row["task_id"], row["method"]]
        own = f"gold|{REFERENCE_IN.get(row['method'], BEFORE)}"
        for label in under["failed|pre" if row["method"] == "denoise" else "failed|neut"]:
            kind, heads = sets[label]
            effects.append(
                [*keys, label, kind, len(heads), effect(row["method"], whole, under, label), delta]
            )
            if kind != "selected":
                continue
            if own in under:
                off.append([*keys, label, len(heads), "reference", whole[own], under[own][label]])
            if "failed|fail" in under:
                change = under["failed|fail"][label] - under["failed|neut"][label]
                sem = whole["failed|fail"] - whole["failed|neut"]
                off.append([*keys, label, len(heads), "sem", sem, change])
    base = ["env", "item_id", "task_id", "method", "set"]
    return (
        pd.DataFrame(effects, columns=[*base, "kind", "k", "effect_nats", "delta"]),
        pd.DataFrame(off, columns=[*base, "k", "quantity", "whole", "under"]),
    )


def effect(
    method: str, whole: Mapping[str, float], under: Mapping[str, Mapping[str, float]], label: str
) -> float:
    """The effect (nats) of one set by one method, as `probes.carried` defines it."""
    if method == "denoise":
        return under["failed|pre"][label] - whole["failed|pre"]
    lost = whole["failed|neut"] - under["failed|neut"][label]
    if acts_in(method) == (AFTER,):
        return lost
    return lost - (whole["failed|pre"] - under["failed|pre"][label])


def write_tables(
    folder: RunFolder, session: Session, sets: Sets, delta: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """carried.csv and carried_offtarget.csv."""
    effects, off = long_joint(folder.rows("joint_sets"), sets)
    tables = carried(effects, session.rng_for), off_target(off, delta, session.rng_for)
    for name, table in zip(("carried", "carried_offtarget"), tables, strict=True):
        folder.write_table(name, table)
    return tables


STUDY = Study(
    "joint",
    "what the best heads carry of Δcopy together, by six methods, each beside random heads of its layers",
    "backfire joint --k 4,8,16,32 --controls 20 --limit 12 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, BY, K, CONTROLS, ABLATION_CONTROLS, REFERENCE, DELTA, *RUNNING),
    run,
)
