"""`backfire direct`: how much of what a head or an MLP does reaches the logits by itself, and how much through others.

Total, direct (final norm frozen) and indirect effect of every head and MLP on every metric, noising and denoising;
heads whose direct effect is negative suppress copying. direct.jsonl → direct.csv (shares of Δcopy, with intervals and
signs).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from experiments.mechanism.pairs import (
    DIRECTIONS,
    PairContext,
    PairSweepOptions,
    by_pair,
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
from mech.heads import Head
from mech.patching.direct_effect import Parts, direct_names, head_parts, mlp_parts
from probes.effects.direct import direct_shares
from probes.scoring.metric_sums import by_metric, changes_of, metrics_by_part, metrics_of
from probes.stats.families import family_lines

KEYS = ("item_id", "task_id", "direction", "from", "to")


def measure(context: PairContext, unit: ItemUnit) -> list[Row]:
    """One row a direction: sum → head or MLP → its total and direct effect (nats)."""
    engine, item = context.session.engine, unit.item
    runs = pair_runs(context.session, item, context.pair, direct_names(engine.model))
    rows = []
    for direction in DIRECTIONS:
        effects: dict[str, dict[str, dict[str, list[float]]]] = {"heads": {}, "mlps": {}}
        for candidate in runs.runs:
            recipient, donor, sign = runs.sides(candidate, direction)
            found: dict[str, Mapping[Any, Parts]] = {
                "heads": head_parts(engine, recipient, donor),
                "mlps": mlp_parts(engine, recipient, donor),
            }
            for kind, parts in found.items():
                for part, one in parts.items():
                    total, direct = (
                        changes_of(runs.contrast, candidate, sign * change)
                        for change in (one.total_by_token, one.direct_by_token)
                    )
                    for name in total:
                        effects[kind].setdefault(name, {})[str(part)] = [total[name], direct[name]]
        rows.append({**row_about(item, context.pair, direction, runs), **effects})
    return rows


def long_direct(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a metric and head or MLP."""
    lines = []
    for row in rows.to_dict("records"):
        counts = row["n_tokens"]
        deltas = metrics_of(counts, row["delta"])
        for kind, sums in (("head", row["heads"]), ("mlp", row["mlps"])):
            total, direct = (
                metrics_by_part(
                    counts,
                    {name: {part: both[at] for part, both in one.items()} for name, one in sums.items()},
                )
                for at in (0, 1)
            )
            for metric, parts in total.items():
                known = [*(row[name] for name in KEYS), metric, deltas[metric], kind]
                for name, value in parts.items():
                    place: list[int | None]
                    if kind == "head":
                        head = Head.parse(name)
                        place = [head.layer, head.head]
                    else:
                        place = [int(name), None]
                    lines.append([*known, *place, value, direct[metric][name]])
    own = ["metric", "delta", "kind", "layer", "head", "total_nats", "direct_nats"]
    return pd.DataFrame(lines, columns=[*KEYS, *own])


def direct_tables(context: PairContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """direct.csv, of every pair in the folder."""
    rows = long_direct(context.session.clustered(folder.rows("direct")))
    return {
        "direct": by_pair(
            context, rows, lambda own, streams: by_metric(own, partial(direct_shares, rng_for=streams))
        )
    }


def report(context: PairContext, tables: Tables) -> Report:
    """The strongest heads of either sign, and the size of the family that they are corrected in."""
    here = context.of_pair(tables["direct"])
    family = family_lines(here[here["metric"] == context.metric], "direct")
    lines = [f"shares of {context.metric}:", strongest(of_metric(here, context.metric)), *family]
    return Report("\n".join(lines))


def strongest(table: pd.DataFrame) -> str:
    """The heads of largest direct effect of positive sign, and of those of negative sign, by direction."""
    shown = ["direction", "layer", "head", "total_share", "direct_share", "direct_lo", "direct_hi", "role"]
    heads = table[table["kind"] == "head"].sort_values("direct_share", ascending=False)
    lines = []
    for direction in DIRECTIONS:
        of = heads[heads["direction"] == direction]
        lines += [frame_text(of.head(6)[shown]), ""]
        lines += ["hold it back:", frame_text(of[of["direct_nats"] < 0].tail(4)[::-1][shown]), ""]
    return "\n".join(lines)


STUDY = ItemStudy(
    "direct",
    "backfire direct --from pre --to neut --limit 4 --out runs/first",
    PairSweepOptions,
    rows="direct",
    open=partial(open_pair, "direct"),
    units=pair_units,
    measure=measure,
    tables=direct_tables,
    report=report,
    notes=references_said,
)
