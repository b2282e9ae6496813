"""`backfire layers`: which layers carry Δcopy, by exact patching of MLP outputs and of the residual stream.

    mlp_out      what one layer's MLP adds at the action positions, from the other run
    resid_pre    all that stands before a layer there: where the difference has arrived (the last point is the end)

Noising and denoising, by every metric. layers.jsonl → layers.csv (share of Δcopy with interval, a layer a line).
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import pandas as pd

from experiments.mechanism.metric_views import of_metric, require_metric
from experiments.mechanism.pairs import (
    FROM,
    TO,
    for_pair,
    measure_all,
    pair_of,
    pair_runs,
    require_conditions,
    row_about,
)
from experiments.run.left_out import write_left_out
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import METRIC, ON_ITEMS, ON_MODEL, RUNNING, Report, Study
from experiments.run.tables import forwards_text, frame_text
from mech.patching.patch import LAYER_SITES, layer_names, patch_layers
from probes.effects.shares import head_shares
from probes.items.item import Item
from probes.scoring.metric_sums import by_metric, effects_of, metrics_by_part, metrics_of, reference_notes
from probes.stats.frame_checks import SHARE_CELLS


def run(args: argparse.Namespace) -> Report:
    """Sweep every item, both sites and directions, then derive the table."""
    session, pair = open_session(args, one_env=True), pair_of(args)
    session = require_conditions(session, pair)
    require_metric(session.items, args.metric)
    with open_run(for_pair(STUDY, pair), args, session.model, about_items(session)) as folder:
        measure_all(folder, session, pair, layers_item, "layers", args.quiet)
        table = write_layers(folder, session)
        notes = [*write_left_out(folder, session), *reference_notes(folder.rows("layers").to_dict("records"))]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved})
    here = of_metric(table[(table["from"] == pair[0]) & (table["to"] == pair[1])], args.metric)
    wide = here.pivot(index="layer", columns=["site", "direction"], values="share").reset_index()
    wide.columns = [" ".join(filter(None, map(str, name))) for name in wide.columns]
    text = [
        f"shares of {args.metric}:",
        frame_text(wide),
        *notes,
        forwards_text(forwards.ran, forwards.saved),
        f"written to {args.out}",
    ]
    return Report("\n".join(text))


def layers_item(
    session: Session, item: Item, pair: tuple[str, str], directions: list[str]
) -> list[dict[str, Any]]:
    """One row a direction: site → sum → layer → its effect (nats)."""
    engine = session.engine
    runs = pair_runs(session, item, pair, layer_names(engine.model))
    rows = []
    for direction in directions:
        effects: dict[str, dict[str, dict[str, float]]] = {site: {} for site in LAYER_SITES}
        for candidate in runs.runs:
            recipient, donor, sign = runs.sides(candidate, direction)
            for site in LAYER_SITES:
                for layer, score in patch_layers(engine, recipient, donor, site).items():
                    found = effects_of(runs.contrast, candidate, sign, score, recipient.score)
                    for name, value in found.items():
                        effects[site].setdefault(name, {})[str(layer)] = value
        rows.append({**row_about(item, pair, direction, runs), "sites": effects})
    return rows


def write_layers(folder: RunFolder, session: Session) -> pd.DataFrame:
    """layers.csv, of every pair in the folder."""
    lines = [
        [
            row["item_id"],
            row["task_id"],
            row["direction"],
            metric,
            delta[metric],
            site,
            int(layer),
            0,
            effect,
            *pair,
        ]
        for row in session.clustered(folder.rows("layers")).to_dict("records")
        for pair in [(row["from"], row["to"])]
        for delta in [metrics_of(row["n_tokens"], row["delta"])]
        for site, sums in row["sites"].items()
        for metric, layers in metrics_by_part(row["n_tokens"], sums).items()
        for layer, effect in layers.items()
    ]
    known = ["item_id", "task_id", "direction", "metric", "delta", "site", "layer", "head", "effect_nats"]
    long = pd.DataFrame(lines, columns=[*known, "from", "to"])
    tables = []
    for (site, source, target), rows in long.groupby(["site", "from", "to"], sort=False):
        streams = session.streams(f"layers/{source}>{target}/{site}")
        shares = by_metric(rows, partial(head_shares, rng_for=streams))
        tables.append(shares.assign(**{"site": site, "from": source, "to": target}))
    columns = ["metric", "site", "direction", "layer", *SHARE_CELLS, "from", "to"]
    table = pd.concat(tables, ignore_index=True)[columns]
    folder.write_table("layers", table)
    return table


STUDY = Study(
    "layers",
    "attribute a difference of two conditions to layers: MLP outputs and the residual stream",
    "backfire layers --from pre --to neut --limit 4 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, METRIC, *RUNNING),
    run,
)
