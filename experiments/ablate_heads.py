"""`backfire ablate`: take heads out of the whole run, and measure G, Δcopy, Δsem again, beside random controls.

A head set is frozen before task data are seen (by its score on random tokens, or by name). Its z is replaced at every
position, prefix included, by a mean over the contexts of other items (or by zero); each control draws as many other
heads from the same layers. ablations.jsonl → ablation.csv, removed.csv (share of Δcopy removed), controls.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.ablating import ALPHA, BY, HOW, REFERENCE, WHERE, replacement
from experiments.head_choice import choose_heads
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive, whole_numbers
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.controls import layer_matched
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions import Intervention
from probes.dose import against_random, dose_curve, share_removed
from probes.items import Item
from probes.measures import measure
from probes.offtarget import prose_losses
from probes.scoring import score_item

HEADS = Option("heads", str, "top:16", "top:K by score, heads by name, a head list, not:… or random:…")
K = Option("k", whole_numbers, None, "with top:K, the sizes of a dose curve in its place: 4,8,16,32")
CONTROLS = Option("controls", positive, 5, "random layer-matched control sets for each size")
MEASURES = ("G", "copy", "sem", "repair", "margin_shift")


@dataclass(frozen=True)
class Ablated:
    """One set of heads to take out; kind is none, selected or random; `displaced` as in `mech.controls`."""

    label: str
    kind: str
    heads: HeadSet | None
    displaced: int = 0

    @property
    def k(self) -> int:
        """How many heads."""
        return len(self.heads) if self.heads is not None else 0


def run(args: argparse.Namespace) -> Report:
    """Measure every item under every set, whole sets first, then derive the tables."""
    session = open_session(args)
    sets = head_sets(session, args)
    with_what = replacement(session, args)
    about = {
        **about_items(session),
        "sets": {one.label: str(one.heads or "") for one in sets},
        "displaced": {one.label: one.displaced for one in sets if one.displaced},
        "mean_reference": dict(with_what.about),
    }
    derived = {
        "set_sha256": {one.label: one.heads.sha256 for one in sets if one.heads is not None},
        "mean_sha256": with_what.sha256,
    }
    with open_run(STUDY, args, session.model, about, derived) as folder:
        units = [(one, item) for one in sets for item in [None, *session.items]]
        for one, item in progress(units, len(units), "ablate", args.quiet):
            row_id = f"{one.label}|{item.item_id if item else 'prose'}"
            if row_id not in folder.done_ids("ablations"):
                change = with_what.intervention(one.heads, args)
                values = off_target(session, change) if item is None else on_item(session, item, change)
                folder.append(
                    "ablations", {"id": row_id, "set": one.label, "kind": one.kind, "k": one.k, **values}
                )
        curve, removed, controls = write_ablation(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    shown = curve[curve["measure"].isin(["G", "copy", "sem", "prose_loss"])]
    wide = shown.pivot_table(index=["k", "kind", "set"], columns="measure", values="mean").reset_index()
    parts = [
        frame_text(wide),
        "",
        frame_text(removed[removed["kind"] == "selected"]),
        "",
        frame_text(controls),
    ]
    return Report("\n".join([*parts, meter_text(meter.ran, meter.saved), f"written to {args.out}"]))


def head_sets(session: Session, args: argparse.Namespace) -> list[Ablated]:
    """No heads; then each selected set with its controls.

    Raises:
        InputError: a malformed set, a head the model lacks, --k without top:, or no heads left for a control.
    """
    model = session.model
    sets = [Ablated("none", "none", None)]
    for label, heads in _selected(session, args):
        sets.append(Ablated(label, "selected", heads.check(model.n_layers, model.n_heads)))
        for index in range(args.controls):
            rng = session.rng_for(f"control/{heads.sha256}/{index}")
            control = layer_matched(heads, model.n_layers, model.n_heads, rng)
            sets.append(Ablated(f"{label}/random{index}", "random", control.heads, control.displaced))
    return sets


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


def on_item(session: Session, item: Item, change: Intervention) -> dict[str, Any]:
    """The measures of one item under the intervention, and the log-prob of its reference action."""
    names, candidates = ["pre", "neut", "fail"], ["failed", "gold"]
    rows = pd.DataFrame(score_item(session.engine, item, names, session.wording, candidates, change))
    found = measure(rows).set_index("measure")["value"]
    values = {name: float(found[name]) for name in MEASURES}
    reference = rows[(rows["condition"] == "pre") & (rows["candidate"] == "gold")]["logprob"].iloc[0]
    return {
        "item_id": item.item_id,
        "task_id": item.task_id,
        "values": {**values, "reference_logprob": float(reference)},
    }


def off_target(session: Session, change: Intervention) -> dict[str, Any]:
    """The loss on plain prose (nats a token), mean over the bundled passages."""
    losses = prose_losses(session.engine, change)
    return {"item_id": "prose", "task_id": "prose", "values": {"prose_loss": sum(losses) / len(losses)}}


def long_values(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a measure."""
    columns: Sequence[str] = ["set", "kind", "k", "item_id", "task_id"]
    lines = [
        [*(row[name] for name in columns), name, value]
        for row in rows.to_dict("records")
        for name, value in row["values"].items()
    ]
    return pd.DataFrame(lines, columns=[*columns, "measure", "value"])


def write_ablation(folder: RunFolder, session: Session) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """ablation.csv, removed.csv and controls.csv."""
    long = long_values(folder.rows("ablations"))
    curve = dose_curve(long, session.rng_for)
    removed = share_removed(long, session.rng_for)
    controls = against_random(removed)
    folder.write_table("ablation", curve)
    folder.write_table("removed", removed)
    folder.write_table("controls", controls)
    return curve, removed, controls


STUDY = Study(
    "ablate",
    "take a frozen head set out of the whole run and measure again, beside random layer-matched controls",
    "backfire ablate --heads top:16 --how mean --controls 5 --k 4,8,16,32 --limit 12 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, HEADS, BY, HOW, WHERE, ALPHA, K, CONTROLS, REFERENCE, *RUNNING),
    run,
)
