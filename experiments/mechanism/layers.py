"""`backfire layers`: which layers cause Δcopy, by exact patching of MLP outputs and of the residual stream.

    mlp_out      what one layer's MLP adds at the action positions, from the other run
    resid_pre    the stream before a layer there: where the difference has arrived (the last point is the end)

Noising and denoising, by every metric. layers.jsonl → layers.csv (share of Δcopy with interval, a layer a line).
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from experiments.mechanism.pairs import (
    DIRECTIONS,
    PairContext,
    PairSweepOptions,
    of_metric,
    open_pair,
    pair_runs,
    pair_units,
    references_said,
    row_about,
)
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemStudy, ItemUnit, Row, Tables
from experiments.run.study import Report
from experiments.run.tables import frame_text
from mech.patching.patch import LAYER_SITES, layer_names, patch_layers
from probes.effects.shares import head_shares
from probes.scoring.metric_sums import by_metric, metrics_by_part, metrics_of
from probes.stats.frame_checks import SHARE_CELLS


def measure(context: PairContext, unit: ItemUnit) -> list[Row]:
    """One row a direction: site → sum → layer → its effect (nats)."""
    engine, item = context.session.engine, unit.item
    runs = pair_runs(context.session, item, context.pair, layer_names(engine.model))
    rows = []
    for direction in DIRECTIONS:
        effects = {
            site: runs.effects(direction, runs.patched(direction, partial(patch_layers, engine, site=site)))
            for site in LAYER_SITES
        }
        rows.append({**row_about(item, context.pair, direction, runs), "sites": effects})
    return rows


def layers_tables(context: PairContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """layers.csv, of every pair in the folder."""
    session = context.session
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
    return {"layers": pd.concat(tables, ignore_index=True)[columns]}


def report(context: PairContext, tables: Tables) -> Report:
    """The shares of every layer, in each direction."""
    here = of_metric(context.of_pair(tables["layers"]), context.metric)
    wide = here.pivot(index="layer", columns=["site", "direction"], values="share").reset_index()
    wide.columns = [" ".join(filter(None, map(str, name))) for name in wide.columns]
    return Report(f"shares of {context.metric}:\n{frame_text(wide)}")


STUDY = ItemStudy(
    "layers",
    "backfire layers --from pre --to neut --limit 4 --out runs/first",
    PairSweepOptions,
    rows="layers",
    open=partial(open_pair, "layers"),
    units=pair_units,
    measure=measure,
    tables=layers_tables,
    report=report,
    notes=references_said,
)
