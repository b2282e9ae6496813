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

from experiments.find_heads import ranking
from experiments.item_pools import read_pool
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive, whole_numbers
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.seeds import py_stream
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.controls import layer_matched
from mech.errors import InputError
from mech.heads import HeadSet
from mech.induction import SCORES, top_heads
from mech.interventions import NOTHING, Intervention, replace_heads, scale_heads
from mech.means import MeanZ, mean_z
from probes.dose import against_random, dose_curve, share_removed
from probes.items import Item
from probes.measures import measure
from probes.offtarget import prose_losses
from probes.scoring import asks, score_item

HEADS = Option("heads", str, "top:16", "top:K by score, or heads by name: L18H6,L17H3")
BY = Option("by", str, "prefix_matching", "the score that top: ranks by", SCORES)
HOW = Option("how", str, "mean", "what z is replaced by at all positions", ("mean", "zero"))
K = Option("k", whole_numbers, None, "with top:K, the sizes of a dose curve in its place: 4,8,16,32")
CONTROLS = Option("controls", positive, 5, "random layer-matched control sets for each size")
REFERENCE = Option("reference-items", positive, 16, "items whose contexts the mean is taken over")
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
    mean, reference = reference_mean(session, args)
    about = {
        **about_items(session),
        "sets": {one.label: str(one.heads or "") for one in sets},
        "displaced": {one.label: one.displaced for one in sets if one.displaced},
        "mean_reference": {"items": reference, "positions": mean.n_positions, "sha256": mean.sha256},
    }
    derived = {
        "set_sha256": {one.label: one.heads.sha256 for one in sets if one.heads is not None},
        "mean_sha256": mean.sha256,
    }
    with open_run(STUDY, args, session.model, about, derived) as folder:
        units = [(one, item) for one in sets for item in [None, *session.items]]
        for one, item in progress(units, len(units), "ablate", args.quiet):
            row_id = f"{one.label}|{item.item_id if item else 'prose'}"
            if row_id not in folder.done_ids("ablations"):
                change = intervention(one, args.how, mean)
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
    if not args.heads.startswith("top:"):
        if args.k:
            raise InputError("--k needs a ranking: write --heads top:K, not heads by name.")
        return [("named", HeadSet.parse(args.heads))]
    number = args.heads.removeprefix("top:")
    if not number.isdecimal():
        raise InputError(
            f"'{args.heads}' is not a head set: write top:16, or heads by name such as L18H6,L17H3."
        )
    scores, _ = ranking(session.model, args.out, args.seed, args.by)
    return [(f"top{k}", top_heads(scores, k, args.by)) for k in args.k or (int(number),)]


def reference_mean(session: Session, args: argparse.Namespace) -> tuple[MeanZ, list[str]]:
    """Mean z over the `pre` contexts of items of other tasks (of all items where no other task is left)."""
    measured = {item.task_id for item in session.items}
    pool = read_pool(args)
    others = [item for item in pool if item.task_id not in measured] or pool
    chosen = py_stream(args.seed, "mean reference").sample(others, min(args.reference_items, len(others)))
    prompts = [
        asks(session.model, item, ["pre"], session.wording, ["failed"])[0].query.prompt for item in chosen
    ]
    return mean_z(session.engine, prompts), [item.item_id for item in chosen]


def intervention(one: Ablated, how: str, mean: MeanZ) -> Intervention:
    """The set's heads taken out at all positions."""
    if one.heads is None:
        return NOTHING
    return replace_heads(one.heads, mean.z, "all") if how == "mean" else scale_heads(one.heads, 0.0, "all")


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
    (*ON_MODEL, *ON_ITEMS, HEADS, BY, HOW, K, CONTROLS, REFERENCE, *RUNNING),
    run,
)
