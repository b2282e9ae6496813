"""`backfire cut`: attention from the candidate positions to the failed call in the record is cut before the softmax.

The most direct test of "the string being there": the call stays in the transcript, and some heads cannot see it from
where it would be repeated. All heads, the best k by score, as many random heads of the same layers; and for each,
as many tokens elsewhere. cuts.jsonl → knockout.csv (share of Δcopy removed).
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd

from experiments.ablating import BY
from experiments.head_choice import displaced, ranked_sets
from experiments.left_out import write_left_out
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive, whole_numbers
from experiments.pairs import require_conditions
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.heads import HeadSet
from mech.interventions import NOTHING, Intervention, cut_edges
from mech.patching import all_heads
from mech.queries import Query
from probes.dose import share_removed
from probes.items import Item
from probes.record import SOURCES, edge_sources
from probes.scoring import asks, system_length
from probes.stats import RngFactory

K = Option("k", whole_numbers, (4, 8, 16, 32), "sizes of the selected sets, best first by --by")
CONTROLS = Option("controls", positive, 5, "random layer-matched control sets for each size")
TO = Option("to", str, "neut", "condition with the record; its difference to pre is what is explained")
WITHOUT = "pre"


def run(args: argparse.Namespace) -> Report:
    """Cut for every item, set of heads and kind of source, then derive the table."""
    session = require_conditions(open_session(args, one_env=True), (WITHOUT, args.to))
    everyone = {"all": ("selected", all_heads(session.model))}
    sets = {**everyone, **ranked_sets(session.model, args, session.rng_for)}
    about = {
        **about_items(session),
        "sets": {name: str(heads) for name, (_, heads) in sets.items() if name != "all"},
        "displaced": displaced(sets),
    }
    derived = {"set_sha256": {name: heads.sha256 for name, (_, heads) in sets.items()}}
    with open_run(STUDY, args, session.model, about, derived) as folder:
        for item in progress(session.items, len(session.items), "cut", args.quiet):
            done = folder.done_ids("cuts")
            if f"{item.item_id}|none" not in done:  # the last of its rows
                rows = cut_item(session, item, args.to, sets)
                folder.append_all("cuts", [row for row in rows if row["id"] not in done])
        table = knockout(folder, session)
        notes = write_left_out(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    shown = table[(table["kind"] == "selected") | (table["sources"] == "record")]
    text = frame_text(shown[["sources", "set", "kind", "k", "share", "ci_lo", "ci_hi", "effect_nats", "n"]])
    return Report("\n".join([text, *notes, meter_text(meter.ran, meter.saved), f"written to {args.out}"]))


def cut_item(
    session: Session, item: Item, condition: str, sets: dict[str, tuple[str, HeadSet]]
) -> list[dict[str, Any]]:
    """One row a set of heads and kind of source: log p(a×) (nats) under the cut; the last row is the uncut run.

    A cut acts at the candidate positions alone, so the whole prompt before them is one trunk for all of them.
    """
    sources = edge_sources(session.engine, item, condition, session.wording)
    changes: dict[tuple[str, str], Intervention] = {
        (kind, name): cut_edges(heads, sources[kind])
        for kind in SOURCES
        if kind in sources
        for name, (_, heads) in sets.items()
    }
    changes["none", "none"] = NOTHING
    [after], [before] = (
        asks(session.model, item, [c], session.wording, ["failed"]) for c in (condition, WITHOUT)
    )
    prompt, action = after.query.prompt, after.query.action
    queries = [Query(prompt, action, change) for change in changes.values()]
    scores = session.engine.score(queries, len(prompt) - 1)
    [start] = session.engine.score([before.query], system_length(session.model, item))
    rows = []
    for (kind, name), score in zip(changes, scores, strict=True):
        role, heads = sets.get(name, ("none", ()))
        about = {
            "sources": kind,
            "set": name,
            "kind": role,
            "k": len(heads),
            "n_cut": len(sources.get(kind, ())),
        }
        row_id = f"{item.item_id}|{kind}|{name}" if kind != "none" else f"{item.item_id}|none"
        keys = {"id": row_id, "item_id": item.item_id, "task_id": item.task_id}
        rows.append({**keys, **about, "before": start.total, "logprob": score.total})
    return rows


def knockout(folder: RunFolder, session: Session) -> pd.DataFrame:
    """knockout.csv: the share of L(to) − L(pre) that each cut removes, by kind of source."""
    rows = folder.rows("cuts")
    rows = rows.assign(measure="copy", value=rows["logprob"] - rows["before"])
    tables = []
    for kind in [one for one in SOURCES if one in set(rows["sources"])]:
        of_kind = rows[rows["sources"] == kind]
        uncut = rows[(rows["kind"] == "none") & rows["item_id"].isin(of_kind["item_id"])]
        both = pd.concat([uncut, of_kind], ignore_index=True)
        tables.append(share_removed(both, _streams(session, kind)).assign(sources=kind))
    table = pd.concat(tables, ignore_index=True)
    table = table[["sources", *[name for name in table.columns if name != "sources"]]]
    folder.write_table("knockout", table)
    return table


def _streams(session: Session, kind: str) -> RngFactory:
    return lambda name: session.rng_for(f"knockout/{kind}/{name}")


STUDY = Study(
    "cut",
    "cut attention from where the call would be repeated to the failed call in the record",
    "backfire cut --limit 8 --k 8,16 --controls 3 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, TO, BY, K, CONTROLS, *RUNNING),
    run,
)
