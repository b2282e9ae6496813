"""`backfire cut`: attention from the action positions to the failed call in the record is cut before the softmax.

The most direct test of "the string being there": the call stays in the transcript, and some heads cannot see it from
where it would be repeated. All heads, the best k by score, as many random heads of the same layers (and other kinds of
controls); and for each, as many tokens elsewhere. The failed call and the reference are scored under every cut, so that
every metric has its own share of L(to) − L(from). Where FROM has a record too, it is TO's that is cut. One folder holds
several pairs of conditions. cuts.jsonl → knockout.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sized
from typing import Any

import pandas as pd

from experiments.heads.ablation import BY, REFERENCE
from experiments.mechanism.joint_controls import CONTROL_K, DIRECTION, K, control_kinds, joint_sets
from experiments.mechanism.pairs import DEFAULT, FROM, TO, for_pair, pair_of, require_conditions
from experiments.run.left_out import noted, of_candidates, write_left_out
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import METRIC, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive
from experiments.run.tables import forwards_text, frame_text
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import NOTHING, Intervention, knock_out_edges
from mech.patching.patch import all_heads
from probes.effects.dose import against_controls, share_removed
from probes.effects.joint_effects import kind_and_size
from probes.items.item import Item
from probes.scoring.contrast import FORMS, contrast_of
from probes.scoring.metric_sums import metrics_of, reference_notes, sums_of, token_counts
from probes.scoring.record import SOURCES, edge_sources
from probes.scoring.score import build_queries, system_length
from probes.stats.bootstrap import RngFactory
from probes.stats.families import corrected, family_lines

CONTROLS = Option("controls", positive, 5, "control sets of each drawn kind for each size")
CONTROL_KINDS = Option(
    "control-kinds", str, "random", "list of kinds of controls, as `backfire joint` has them, less direction"
)


def run(args: argparse.Namespace) -> Report:
    """Cut for every item, set of heads and kind of source, then derive the table."""
    if DIRECTION in control_kinds(args.control_kinds, args.controls):
        raise InputError(
            "A cut moves no z, so that nothing can be moved in a random direction: leave direction out."
        )
    pair = pair_of(args)
    everything = open_session(args, one_env=True)
    session = require_conditions(everything, pair)
    session = noted(session, of_candidates(session.items))
    ranked, about_sets = joint_sets(everything, args)
    sets = {"all": ("selected", all_heads(session.model)), **ranked}
    about = {**about_items(session), **about_sets}
    derived = {"set_sha256": {name: heads.sha256 for name, (_, heads) in sets.items()}}
    with open_run(for_pair(STUDY, pair), args, session.model, about, derived) as folder:
        for item in progress(session.items, len(session.items), "cut", args.quiet):
            done = folder.done_ids("cuts")
            if row_id(item, pair, "none") not in done:  # the last of its rows
                rows = cut_item(session, item, pair, sets)
                folder.append_all("cuts", [row for row in rows if row["id"] not in done])
        table = knockout(folder, everything)
        rows = folder.rows("cuts").to_dict("records")
        notes = [*write_left_out(folder, session), *reference_notes(rows)]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved})
    own = table[(table["from"] == pair[0]) & (table["to"] == pair[1]) & (table["metric"] == args.metric)]
    shown = own[(own["kind"] == "selected") | (own["sources"] == "record")]
    notes += family_lines(own, "knockout")
    columns = ["sources", "set", "kind", "k", "share", "ci_lo", "ci_hi", "effect_nats", "p", "p_holm", "n"]
    text = [f"{pair[0]} → {pair[1]}, {args.metric}", frame_text(shown[columns]), *notes]
    return Report("\n".join([*text, forwards_text(forwards.ran, forwards.saved), f"written to {args.out}"]))


def row_id(item: Item, pair: tuple[str, str], *parts: str) -> str:
    """The id of a row; the pair is named where it is not pre → neut."""
    named = () if pair == DEFAULT else (f"{pair[0]}>{pair[1]}",)
    return "|".join((item.item_id, *named, *parts))


def cut_item(
    session: Session, item: Item, pair: tuple[str, str], sets: Mapping[str, tuple[str, HeadSet]]
) -> list[dict[str, Any]]:
    """One row a set of heads and kind of source: `terms` (nats) under the cut, `before_terms` under FROM.

    `logprob` and `before` are of the failed call alone. The last row is the uncut run. A cut acts at the candidate
    positions alone, so the whole prompt before them is one prefix cache for all of them.
    """
    low, high = pair
    sources = edge_sources(session.engine, item, high, session.wording)
    changes: dict[tuple[str, str], Intervention] = {
        (kind, name): knock_out_edges(heads, sources[kind])
        for kind in SOURCES
        if kind in sources
        for name, (_, heads) in sets.items()
    }
    changes["none", "none"] = NOTHING
    contrast = contrast_of(session.model, item, session.wording)
    found: list[dict[str, float]] = [{} for _ in changes]
    start: dict[str, float] = {}
    tokens = {}
    for candidate in contrast.candidates:
        [after], [before] = (
            build_queries(session.model, item, [condition], session.wording, [candidate])
            for condition in (high, low)
        )
        prompt, action = after.query.prompt, after.query.action
        tokens[candidate] = len(action)
        queries = [Query(prompt, action, change) for change in changes.values()]
        scores = session.engine.score(queries, len(prompt) - 1)
        for terms, score in zip(found, scores, strict=True):
            terms.update(sums_of(contrast, candidate, score))
        [score] = session.engine.score([before.query], system_length(session.model, item))
        start.update(sums_of(contrast, candidate, score))
    rows = []
    for (kind, name), terms in zip(changes, found, strict=True):
        role, heads = sets.get(name, ("none", ()))
        parts = (kind, name) if kind != "none" else ("none",)
        rows.append(
            {
                **{"id": row_id(item, pair, *parts), "item_id": item.item_id, "task_id": item.task_id},
                **{
                    "from": low,
                    "to": high,
                    "sources": kind,
                    "set": name,
                    "kind": role,
                    "k": size_of(name, heads),
                },
                **{
                    "n_cut": len(sources.get(kind, ())),
                    "before": start["failed"],
                    "logprob": terms["failed"],
                },
                **{"references": contrast.references_are, "n_tokens": token_counts(contrast, tokens)},
                **{"terms": terms, "before_terms": start},
            }
        )
    return rows


def size_of(label: str, heads: Sized) -> int:
    """How many heads; of a control, those of the set that it controls."""
    return kind_and_size(label)[1] if "/" in label else len(heads)


def knockout(folder: RunFolder, session: Session) -> pd.DataFrame:
    """knockout.csv: the share of L(to) − L(from) that each cut removes, by pair, metric and kind of source.

    p: of a selected set among the random sets of its size, as `probes.effects.dose.against_controls`.
    """
    rows = session.clustered(folder.rows("cuts"))
    tables = []
    for pair, of_pair in rows.groupby(["from", "to"], sort=False):
        for metric, part in by_metric(of_pair).items():
            for kind in [one for one in SOURCES if one in set(part["sources"])]:
                of_kind = part[part["sources"] == kind]
                uncut = part[(part["kind"] == "none") & part["item_id"].isin(of_kind["item_id"])]
                both = pd.concat([uncut, of_kind], ignore_index=True)
                table = share_removed(both, _streams(session, pair, kind))
                beside = against_controls(table)
                p = beside[beside["control"] == "random"].set_index("set")["p"]
                named = table.assign(p=table["set"].map(p))
                tables.append(
                    named.assign(**{"from": pair[0], "to": pair[1], "metric": metric, "sources": kind})
                )
    table = pd.concat(tables, ignore_index=True)
    first = ["from", "to", "metric", "sources"]
    table = corrected(table[[*first, *[name for name in table.columns if name not in first]]], "knockout")
    folder.write_table("knockout", table)
    return table


def by_metric(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Metric → the rows of the items that have it, with `value`: the metric under the cut minus that under FROM."""
    found = [
        metrics_of(lengths, {term: value - start[term] for term, value in terms.items()})
        for terms, start, lengths in zip(rows["terms"], rows["before_terms"], rows["n_tokens"], strict=True)
    ]
    tables = {}
    for metric in FORMS:
        has = [metric in values for values in found]
        if any(has):
            values = [values[metric] for values in found if metric in values]
            tables[metric] = rows[has].assign(measure="copy", value=values)
    return tables


def _streams(session: Session, pair: tuple[str, str], kind: str) -> RngFactory:
    named = kind if pair == DEFAULT else f"{pair[0]}>{pair[1]}/{kind}"
    return lambda name: session.rng_for(f"knockout/{named}/{name}")


STUDY = Study(
    "cut",
    "cut attention from where the call would be repeated to the failed call in the record",
    "backfire cut --limit 8 --k 8,16 --controls 3 --out runs/first",
    (
        *(*ON_MODEL, *ON_ITEMS, FROM, TO, METRIC, BY, K, CONTROLS, CONTROL_K, CONTROL_KINDS, REFERENCE),
        *RUNNING,
    ),
    run,
)
