"""`backfire ablate`: take heads out of the whole run, and measure G, Δcopy, Δsem again, beside controls.

A head set is frozen before task data are seen (by its score on random tokens, or by name). Its z is replaced at every
position, prefix included, by a mean over the contexts of other items (or by zero). Controls: as many random heads of
the same layers; heads that write as much and score low. Under the same interventions, what should stay: losses on
prose, code and random tokens, the reference action, Δsem. ablations.jsonl → tables: `experiments.ablation_tables`.
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd

from experiments.ablated_sets import CONTROLS, HEADS, STRENGTH, K, about_sets, head_sets
from experiments.ablating import ALPHA, BY, HOW, REFERENCE, WHERE, replacement
from experiments.ablation_tables import Tables, write_tables
from experiments.left_out import noted, of_candidates, write_left_out
from experiments.options import DELTA, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive_number
from experiments.progress import progress
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.induction import RepeatedTokens, repeated_tokens
from mech.interventions import Intervention
from probes.items import Item
from probes.measures import measure
from probes.offtarget import off_target_losses
from probes.scoring import score_item

DELTA_LOSS = Option(
    "delta-loss", positive_number, 0.1, "nats a token within which a change of a loss counts as none"
)
MEASURES = ("G", "copy", "sem", "repair", "margin_shift")
N_SEQUENCES, LENGTH = 8, 32  # repeated random tokens: other ones than heads are chosen on


def run(args: argparse.Namespace) -> Report:
    """Measure every item under every set, whole sets first, then derive the tables."""
    session = open_session(args, one_env=True)
    session = noted(session, of_candidates(session.items))
    sets = head_sets(session, args)
    with_what = replacement(session, args)
    about = {**about_items(session), **about_sets(sets), "mean_reference": dict(with_what.about)}
    derived = {
        "set_sha256": {one.label: one.heads.sha256 for one in sets if one.heads is not None},
        "mean_sha256": with_what.sha256,
    }
    sequences = repeated_tokens(session.model, session.rng_for("off-target tokens"), N_SEQUENCES, LENGTH)
    with open_run(STUDY, args, session.model, about, derived) as folder:
        units = [(one, item) for one in sets for item in [None, *session.items]]
        for one, item in progress(units, len(units), "ablate", args.quiet):
            row_id = f"{one.label}|{item.item_id if item else 'prose'}"
            if row_id not in folder.done_ids("ablations"):
                change = with_what.intervention(one.heads, args)
                found = (
                    off_target(session, sequences, change) if item is None else on_item(session, item, change)
                )
                folder.append(
                    "ablations", {"id": row_id, "set": one.label, "kind": one.kind, "k": one.k, **found}
                )
        tables = write_tables(folder, sets, args.delta, args.delta_loss, session.rng_for)
        notes = write_left_out(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    return Report(
        "\n".join([report(tables), *notes, meter_text(meter.ran, meter.saved), f"written to {args.out}"])
    )


def on_item(session: Session, item: Item, change: Intervention) -> dict[str, Any]:
    """The measures of one item under the intervention, and the log-prob of its reference action, if it has one."""
    names, candidates = (
        ["pre", "neut", "fail"],
        [one for one in ("failed", "gold") if one in item.candidates()],
    )
    rows = pd.DataFrame(score_item(session.engine, item, names, session.wording, candidates, change))
    found = measure(rows).set_index("measure")["value"]
    values = {name: float(found[name]) for name in MEASURES if name in found.index}
    if item.gold_action is not None:
        reference = rows[(rows["condition"] == "pre") & (rows["candidate"] == "gold")]["logprob"].iloc[0]
        values["reference_logprob"] = float(reference)
    return {"item_id": item.item_id, "task_id": item.task_id, "values": values}


def off_target(session: Session, sequences: RepeatedTokens, change: Intervention) -> dict[str, Any]:
    """The losses on text and random tokens (nats a token): means, and each passage and sequence by itself."""
    losses = off_target_losses(session.engine, sequences, change)
    means = {name: sum(values) / len(values) for name, values in losses.items()}
    return {"item_id": "prose", "task_id": "prose", "values": means, "losses": losses}


def report(tables: Tables) -> str:
    """The dose curve, shares, controls, area, and what else the selected sets change."""
    curve, removed, changes = tables.ablation, tables.removed, tables.offtarget
    shown = curve[curve["measure"].isin(["G", "copy", "sem", "prose_loss"])]
    wide = shown.pivot_table(index=["k", "kind", "set"], columns="measure", values="mean").reset_index()
    selected = changes[changes["kind"] == "selected"]
    parts = [
        wide,
        removed[removed["kind"] == "selected"],
        tables.controls,
        tables.dose.drop(columns=["n", "n_clusters", "flagged"]),
        selected.drop(columns=["kind", "n", "n_clusters"]),
    ]
    return "\n\n".join(frame_text(part) for part in parts)


STUDY = Study(
    "ablate",
    "take a frozen head set out of the whole run and measure again, beside matched controls",
    "backfire ablate --heads top:16 --controls 20 --strength-controls 5 --k 4,8,16,32 --limit 12 --out runs/first",
    (
        *(*ON_MODEL, *ON_ITEMS, HEADS, BY, HOW, WHERE, ALPHA, K, CONTROLS, STRENGTH),
        *(REFERENCE, DELTA, DELTA_LOSS, *RUNNING),
    ),
    run,
)
