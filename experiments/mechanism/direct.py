"""`backfire direct`: how much of what a head or an MLP does reaches the logits by itself, and how much through others.

Total, direct (final norm frozen) and indirect effect of every head and MLP on every metric, noising and denoising;
heads whose direct effect is negative hold copying back. direct.jsonl → direct.csv (shares of Δcopy, with intervals and
signs).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from experiments.mechanism.metric_views import of_metric, require_metric
from experiments.mechanism.pairs import (
    DIRECTIONS,
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
from mech.heads import Head
from mech.patching.direct_effect import Parts, direct_names, head_parts, mlp_parts
from probes.effects.direct import direct_shares
from probes.items.item import Item
from probes.scoring.metric_sums import by_metric, changes_of, metrics_by_part, metrics_of, reference_notes
from probes.stats.families import corrected, family_lines


def run(args: argparse.Namespace) -> Report:
    """Measure every item in both directions, then derive the table."""
    session, pair = open_session(args, one_env=True), pair_of(args)
    session = require_conditions(session, pair)
    require_metric(session.items, args.metric)
    with open_run(for_pair(STUDY, pair), args, session.model, about_items(session)) as folder:
        measure_all(folder, session, pair, direct_item, "direct", args.quiet)
        table = write_direct(folder, session)
        notes = [*write_left_out(folder, session), *reference_notes(folder.rows("direct").to_dict("records"))]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved})
    here = table[(table["from"] == pair[0]) & (table["to"] == pair[1])]
    notes += family_lines(here[here["metric"] == args.metric], "direct")
    shown = told(of_metric(here, args.metric))
    return Report(
        "\n".join(
            [
                f"shares of {args.metric}:",
                shown,
                *notes,
                forwards_text(forwards.ran, forwards.saved),
                f"written to {args.out}",
            ]
        )
    )


def direct_item(
    session: Session, item: Item, pair: tuple[str, str], directions: list[str]
) -> list[dict[str, Any]]:
    """One row a direction: sum → head or MLP → its total and direct effect (nats)."""
    engine = session.engine
    runs = pair_runs(session, item, pair, direct_names(engine.model))
    rows = []
    for direction in directions:
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
        rows.append({**row_about(item, pair, direction, runs), **effects})
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
                known = [row["item_id"], row["task_id"], row["direction"], metric, deltas[metric], kind]
                for name, value in parts.items():
                    place: list[int | None]
                    if kind == "head":
                        head = Head.parse(name)
                        place = [head.layer, head.head]
                    else:
                        place = [int(name), None]
                    lines.append([*known, *place, value, direct[metric][name]])
    known_columns = ["item_id", "task_id", "direction", "metric", "delta", "kind", "layer", "head"]
    return pd.DataFrame(lines, columns=[*known_columns, "total_nats", "direct_nats"])


def write_direct(folder: RunFolder, session: Session) -> pd.DataFrame:
    """direct.csv, of every pair in the folder."""
    tables = []
    rows = session.clustered(folder.rows("direct"))
    for (source, target), part in rows.groupby(["from", "to"], sort=False):
        streams = session.streams(f"direct/{source}>{target}")
        table = by_metric(long_direct(part), partial(direct_shares, rng_for=streams))
        tables.append(table.assign(**{"from": source, "to": target}))
    table = corrected(pd.concat(tables, ignore_index=True), "direct")
    folder.write_table("direct", table)
    return table


def told(table: pd.DataFrame) -> str:
    """The heads of largest direct effect that carry the difference, and of those that hold it back, by direction."""
    shown = ["direction", "layer", "head", "total_share", "direct_share", "direct_lo", "direct_hi", "role"]
    heads = table[table["kind"] == "head"].sort_values("direct_share", ascending=False)
    lines = []
    for direction in DIRECTIONS:
        of = heads[heads["direction"] == direction]
        lines += [frame_text(of.head(6)[shown]), ""]
        lines += ["hold it back:", frame_text(of[of["direct_nats"] < 0].tail(4)[::-1][shown]), ""]
    return "\n".join(lines)


STUDY = Study(
    "direct",
    "split every head's and MLP's effect into what reaches the logits by itself and what goes through others",
    "backfire direct --from pre --to neut --limit 4 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, METRIC, *RUNNING),
    run,
)
