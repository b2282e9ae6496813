"""`backfire direct`: how much of what a head or an MLP does reaches the logits by itself, and how much through others.

Total, direct (final norm frozen) and indirect effect of every head and MLP, noising and denoising; heads whose direct
effect is negative hold copying back. direct.jsonl → direct.csv (shares of Δcopy, with intervals and signs).
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd

from experiments.left_out import write_left_out
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Report, Study
from experiments.pairs import DIRECTIONS, FROM, TO, for_pair, measure_all, pair_of, require_conditions, row_of
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.direct_effect import Parts, direct_names, head_parts, mlp_parts
from mech.heads import Head
from probes.direct_shares import direct_shares
from probes.items import Item
from probes.scoring import decision_run


def run(args: argparse.Namespace) -> Report:
    """Measure every item in both directions, then derive the table."""
    session, pair = open_session(args, one_env=True), pair_of(args)
    session = require_conditions(session, pair)
    with open_run(for_pair(STUDY, pair), args, session.model, about_items(session)) as folder:
        measure_all(folder, session, pair, direct_item, "direct", args.quiet)
        table = write_direct(folder, session)
        notes = write_left_out(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    here = table[(table["from"] == pair[0]) & (table["to"] == pair[1])]
    return Report(
        "\n".join([told(here), *notes, meter_text(meter.ran, meter.saved), f"written to {args.out}"])
    )


def direct_item(
    session: Session, item: Item, pair: tuple[str, str], directions: list[str]
) -> list[dict[str, Any]]:
    """One row a direction: total and direct effect (nats) of every head and MLP."""
    engine = session.engine
    names = direct_names(engine.model)
    low, high = (decision_run(engine, item, name, session.wording, names) for name in pair)
    rows = []
    for direction in directions:
        recipient, donor, sign, about = row_of(item, pair, direction, (low, high))

        def signed(parts: Parts, sign: float = sign) -> list[float]:
            return [sign * parts.total, sign * parts.direct]

        heads, mlps = head_parts(engine, recipient, donor), mlp_parts(engine, recipient, donor)
        of_heads = {str(head): signed(parts) for head, parts in heads.items()}
        rows.append({**about, "heads": of_heads, "mlps": {str(at): signed(one) for at, one in mlps.items()}})
    return rows


def long_direct(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a head or MLP."""
    lines = []
    for row in rows.to_dict("records"):
        known = [row["item_id"], row["task_id"], row["direction"], row["delta"]]
        for name, values in row["heads"].items():
            head = Head.parse(name)
            lines.append([*known, "head", head.layer, head.head, *values])
        lines += [[*known, "mlp", int(layer), None, *values] for layer, values in row["mlps"].items()]
    known_columns = ["item_id", "task_id", "direction", "delta", "kind", "layer", "head"]
    return pd.DataFrame(lines, columns=[*known_columns, "total_nats", "direct_nats"])


def write_direct(folder: RunFolder, session: Session) -> pd.DataFrame:
    """direct.csv, of every pair in the folder."""
    tables = []
    for (source, target), rows in folder.rows("direct").groupby(["from", "to"], sort=False):
        table = direct_shares(long_direct(rows), session.streams(f"direct/{source}>{target}"))
        tables.append(table.assign(**{"from": source, "to": target}))
    table = pd.concat(tables, ignore_index=True)
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
    (*ON_MODEL, *ON_ITEMS, FROM, TO, *RUNNING),
    run,
)
