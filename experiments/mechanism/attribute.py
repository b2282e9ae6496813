"""`backfire attribute`: first-order estimates for every head and MLP, always shown against the exact sweep.

Per item, direction and candidate (a×, the reference action): one (or, with --steps, a few) backward passes, one more
for the diverging tokens of a×, and the exact patch of every unit (from `direct`, where the folder has its rows of the
same pair and settings). attributions.jsonl → attribution.csv, screening.csv
(Spearman, recall, reliability), screen_misses.csv (what a screen of k can miss), false_negatives.csv (by name): each by
every metric.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.mechanism.direct import STUDY as DIRECT
from experiments.mechanism.kept_totals import Exact, KeptTotals
from experiments.mechanism.metric_views import of_metric, require_metric
from experiments.mechanism.pairs import (
    DIRECTIONS,
    FROM,
    TO,
    for_pair,
    pair_of,
    pair_runs,
    require_conditions,
    row_id,
)
from experiments.run.left_out import write_left_out
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import METRIC, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive
from experiments.run.tables import forwards_text, frame_text
from mech.engine.engine import Engine, Run
from mech.engine.queries import Score
from mech.patching.attribution import attribution_names
from mech.patching.patch import patch_heads, patch_layers
from probes.effects.attribution import (
    ATTRIBUTION,
    attribute_sums,
    compared,
    false_negatives,
    misses,
    screen_agreement,
    units_of,
)
from probes.items.item import Item
from probes.scoring.contrast import METRICS
from probes.scoring.metric_sums import by_metric, effects_of, metrics_by_part, metrics_of, reference_notes

STEPS = Option("steps", positive, 1, "points of the line between the runs that gradients are averaged over")
SCREEN = Option("screen", positive, 40, "heads that a screen would keep; what it misses is told")


def run(args: argparse.Namespace) -> Report:
    """Attribute and patch every item in both directions, then derive the tables."""
    session = require_conditions(open_session(args, one_env=True), pair_of(args))
    require_metric(session.items, args.metric)
    with open_run(STUDY, args, session.model, about_items(session)) as folder:
        kept = KeptTotals(folder.path, STUDY.name, for_pair(DIRECT, pair_of(args)).name)
        for item in progress(session.items, len(session.items), "attribute", args.quiet):
            done = folder.done_ids("attributions")
            todo = [name for name in DIRECTIONS if f"{item.item_id}|{name}" not in done]
            if todo:
                folder.append_all("attributions", attribute_item(session, item, args, todo, kept))
        found, missed = write_tables(folder, session, args.screen)
        rows = folder.rows("attributions").to_dict("records")
        notes = [*write_left_out(folder, session), *reference_notes(rows)]
        forwards = session.engine.forwards
        folder.finish(
            {"forwards_run": forwards.ran, "forwards_saved": forwards.saved, "from_direct": kept.used}
        )
    if kept.used:
        notes.append(f"exact effects of {kept.used} rows are those that `direct` measured in this folder")
    found, missed = (of_metric(table, args.metric) for table in (found, missed))
    text = [f"{args.metric}:", frame_text(found[found["scope"] == "pooled"]), "", frame_text(missed)]
    return Report(
        "\n".join([*text, *notes, forwards_text(forwards.ran, forwards.saved), f"written to {args.out}"])
    )


def attribute_item(
    session: Session, item: Item, args: argparse.Namespace, directions: Sequence[str], kept: KeptTotals
) -> list[dict[str, Any]]:
    """One row a direction: by sum, exact effect and estimate (nats) of every head and MLP."""
    engine = session.engine
    runs = pair_runs(session, item, pair_of(args), attribution_names(engine.model))
    contrast = runs.contrast
    rows = []
    for direction in directions:
        known = kept.exact(row_id(item, pair_of(args), direction), runs.about())
        exact: Exact = known or {}
        estimates: dict[str, dict[str, float]] = {}
        for candidate in runs.runs:
            recipient, donor, sign = runs.sides(candidate, direction)
            found = attribute_sums(engine, contrast, candidate, recipient, donor, direction, args.steps)
            estimates.update({name: units_of(one) for name, one in found.items()})
            if known is not None:
                continue
            for unit, score in exact_scores(engine, recipient, donor).items():
                for name, effect in effects_of(contrast, candidate, sign, score, recipient.score).items():
                    exact.setdefault(name, {})[unit] = effect
        about = {"item_id": item.item_id, "task_id": item.task_id, "direction": direction, **runs.about()}
        rows.append({"id": f"{item.item_id}|{direction}", **about, "exact": exact, "estimates": estimates})
    return rows


def exact_scores(engine: Engine, recipient: Run, donor: Run) -> dict[str, Score]:
    """Unit (L18H6, MLP3) → the recipient's score with that one unit taken from the donor."""
    heads = patch_heads(engine, recipient, donor)
    mlps = patch_layers(engine, recipient, donor, "mlp_out")
    return {
        **{str(head): score for head, score in heads.items()},
        **{f"MLP{layer}": score for layer, score in mlps.items()},
    }


def long_attributions(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a metric, item, direction and unit."""
    lines = []
    for row in rows.to_dict("records"):
        counts = row["n_tokens"]
        deltas = metrics_of(counts, row["delta"])
        exact, estimates = (metrics_by_part(counts, row[name]) for name in ("exact", "estimates"))
        for metric, delta in deltas.items():
            known = (row["item_id"], row["task_id"], row["direction"], delta)
            lines += [(metric, *line) for line in compared(*known, exact[metric], estimates[metric])]
    table = pd.DataFrame(lines, columns=["metric", *ATTRIBUTION])
    return table.astype({"layer": "Int64", "head": "Int64"})


def write_tables(folder: RunFolder, session: Session, screen: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """attribution.csv and what is told of it; returns agreement and misses."""
    table = long_attributions(session.clustered(folder.rows("attributions")))
    found = by_metric(table, lambda rows: screen_agreement(rows, session.rng_for), METRICS)
    missed = by_metric(table, lambda rows: misses(rows, screen, session.rng_for), METRICS)
    folder.write_table("attribution", by_metric(table, lambda rows: rows))
    folder.write_table("screening", found)
    folder.write_table("screen_misses", missed)
    folder.write_table(
        "false_negatives", by_metric(table, lambda rows: false_negatives(rows, 16, screen), METRICS)
    )
    return found, missed


STUDY = Study(
    "attribute",
    "estimate every head's effect by gradients and show the estimates against the exact sweep",
    "backfire attribute --limit 4 --steps 1 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, STEPS, SCREEN, METRIC, *RUNNING),
    run,
)
