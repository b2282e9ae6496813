"""`backfire attribute`: first-order estimates for every head and MLP, always shown against the exact sweep.

Per item and direction: one (or, with --steps, a few) backward passes, and the exact patch of every unit.
attributions.jsonl → attribution.csv, screening.csv (Spearman, recall), screen_misses.csv (what a screen of k can
miss), false_negatives.csv (by name).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.left_out import write_left_out
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive
from experiments.pairs import DIRECTIONS, FROM, TO, pair_of, require_conditions
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.attribution import attribute, attribution_names
from mech.engine import Run
from mech.layer_patching import patch_layers
from mech.patching import patch_heads
from probes.attributed import ATTRIBUTION, compared
from probes.items import Item
from probes.scoring import decision_run
from probes.screening import agreement, false_negatives, misses

STEPS = Option("steps", positive, 1, "points of the line between the runs that gradients are averaged over")
SCREEN = Option("screen", positive, 40, "heads that a screen would keep; what it misses is told")


def run(args: argparse.Namespace) -> Report:
    """Attribute and patch every item in both directions, then derive the tables."""
    session = require_conditions(open_session(args, one_env=True), pair_of(args))
    with open_run(STUDY, args, session.model, about_items(session)) as folder:
        for item in progress(session.items, len(session.items), "attribute", args.quiet):
            done = folder.done_ids("attributions")
            todo = [name for name in DIRECTIONS if f"{item.item_id}|{name}" not in done]
            if todo:
                folder.append_all("attributions", attribute_item(session, item, args, todo))
        found, missed = write_tables(folder, session, args.screen)
        notes = write_left_out(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    text = [frame_text(found[found["scope"] == "pooled"]), "", frame_text(missed)]
    return Report("\n".join([*text, *notes, meter_text(meter.ran, meter.saved), f"written to {args.out}"]))


def attribute_item(
    session: Session, item: Item, args: argparse.Namespace, directions: Sequence[str]
) -> list[dict[str, Any]]:
    """One row a direction: exact effect and estimate (nats) of every head and MLP."""
    engine = session.engine
    names = attribution_names(engine.model)
    without, with_it = (
        decision_run(engine, item, name, session.wording, names) for name in (vars(args)["from"], args.to)
    )
    rows = []
    for direction in directions:
        recipient, donor = (with_it, without) if direction == "noise" else (without, with_it)
        estimates = attribute(engine, recipient, donor, args.steps)
        heads, mlps = exact_effects(session, recipient, donor, direction)
        table = compared(item.item_id, item.task_id, direction, estimates, heads, mlps)
        units = table.astype(object).where(table.notna(), None).to_dict("records")
        about = {"item_id": item.item_id, "task_id": item.task_id, "direction": direction}
        rows.append({"id": f"{item.item_id}|{direction}", **about, "units": units})
    return rows


def exact_effects(
    session: Session, recipient: Run, donor: Run, direction: str
) -> tuple[dict[Any, float], dict[int, float]]:
    """Effects (nats) of every head and of every MLP, one at a time, with the sign of the direction."""
    sign, base = (1.0 if direction == "denoise" else -1.0), recipient.score.total
    heads = patch_heads(session.engine, recipient, donor)
    mlps = patch_layers(session.engine, recipient, donor, "mlp_out")
    return (
        {head: sign * (score.total - base) for head, score in heads.items()},
        {layer: sign * (score.total - base) for layer, score in mlps.items()},
    )


def write_tables(folder: RunFolder, session: Session, screen: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """attribution.csv and what is told of it; returns agreement and misses."""
    rows = folder.rows("attributions")
    table = pd.DataFrame([unit for row in rows.to_dict("records") for unit in row["units"]])[
        list(ATTRIBUTION)
    ]
    table = table.astype({"layer": "Int64", "head": "Int64"})
    found = agreement(table, session.rng_for)
    missed = misses(table, screen, session.rng_for)
    folder.write_table("attribution", table)
    folder.write_table("screening", found)
    folder.write_table("screen_misses", missed)
    folder.write_table("false_negatives", false_negatives(table, 16, screen))
    return found, missed


STUDY = Study(
    "attribute",
    "estimate every head's effect by gradients and show the estimates against the exact sweep",
    "backfire attribute --limit 4 --steps 1 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, STEPS, SCREEN, *RUNNING),
    run,
)
